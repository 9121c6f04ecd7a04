"""Parse `--wire clip=1.0,noise=0.8,secure`, check it, and assemble the stages, the noise and the privacy mechanism."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch

from fedtaste.core import Download, Examples, Method, Model, Params, Schedule, Stage, chain
from fedtaste.errors import SettingError
from fedtaste.text import did_you_mean
from fedtaste.wire import stages
from fedtaste.wire.accounting import Mechanism, solve
from fedtaste.wire.noise import fine_step, modular_step, rounding_cost
from fedtaste.wire.robust_sums import RULES, check_memory
from fedtaste.wire.secure_sums import FEWEST, SecureSum
from fedtaste.wire.turns import Turns, take_turns

MOST_ROUNDING = 0.01  # of the sensitivity: above it, the modulus is 2^64
StageList = tuple[tuple[str, float | None], ...]  # names and values, in order
ORDER = ("turns", "common_turns", "sparsify", "quantise", "clip", "local", "noise", "secure")
VALUELESS = ("secure", "bound", "median", "noise", "local")  # may stand without a value: noise is solved for then


class Range(NamedTuple):
    """Valid values of a stage."""

    valid: Callable[[float], bool]
    expected: str
    example: str


_SHARE = Range(lambda x: 0 < x < 0.5, "a share of hostile people below one half", "0.1")
_NOISE = Range(lambda x: 0.01 <= x <= 1e6, "a multiple of the clip from 0.01 to a million", "0.8")
_TURN = Range(lambda x: 0.001 <= x < 1, "a share of the catalogue's rows from 0.001 to below 1", "0.2")
RANGES = {
    "turns": _TURN,
    "common_turns": _TURN,
    "sparsify": Range(lambda x: 0 < x < 1, "a share of the numbers between 0 and 1", "0.1"),
    "quantise": Range(lambda x: x in range(2, 17), "2 to 16 bits", "8"),
    "clip": Range(lambda x: 1e-12 < x < 1e12, "a positive norm", "1.0"),
    "local": _NOISE,
    "noise": _NOISE,
    "secure": Range(lambda x: x == int(x) and x >= 3, "a group of 3 people or more", "10"),
    "bound": Range(lambda x: 0 < x < 1e12, "a positive norm", "1.0"),
    "trim": _SHARE,
    "krum": _SHARE,
}


@dataclass(frozen=True, eq=False)
class Wire:
    """A method with the stages that its uploads pass."""

    method: Method  # with a memory of what it did not send, where the wire sparsifies
    stage: Stage
    mechanism: Mechanism | None  # what an accountant may count; None where nothing is promised
    noisy: bool  # noise is added, promised or not
    notes: tuple[str, ...] = ()


def parse(text: str) -> StageList:
    """The stages of a wire string; SettingError where a name, a value, the order or a combination is wrong.

    >>> parse("clip=1.0,noise=0.8,secure")
    (('clip', 1.0), ('noise', 0.8), ('secure', None))
    """
    parsed: list[tuple[str, float | None]] = []
    for part in map(str.strip, text.split(",") if text else ()):
        if not part:
            raise SettingError(
                f'--wire "{text}" has a stage without a name. Leave out the comma beside it, or name it.'
            )
        name, equals, value = (piece.strip() for piece in part.partition("="))
        if name not in ORDER and name not in RULES:
            raise SettingError(did_you_mean(name, [*ORDER, *RULES], "stage") + f" In order: {', '.join(ORDER)}.")
        parsed.append((name, _value(name, value if equals else None)))
    names = [name for name, _ in parsed]
    _check_combination(names)
    ordered = sorted(names, key=[*ORDER, *RULES].index)
    if names != ordered:
        parts = text.replace(" ", "").split(",")
        corrected = ",".join(part for name in ordered for part in parts if part.split("=")[0] == name)
        raise SettingError(f"--wire {text} is out of order. Devices apply {' -> '.join(ordered)}: --wire {corrected}.")
    return tuple(parsed)


def _value(name: str, text: str | None) -> float | None:
    if text is None and name in VALUELESS:
        return None
    if name == "median":
        raise SettingError(f"median takes no value in --wire, got median={text}. Write median.")
    try:
        number = float(text) if text else math.nan
    except ValueError:
        number = math.nan
    valid, expected, example = RANGES[name]
    if not (math.isfinite(number) and valid(number)):
        got = name if text is None else f"{name}={text}"
        raise SettingError(f"{name} in --wire needs {expected}, as in {name}={example}; got {got}.")
    return number


def _check_combination(names: list[str]) -> None:
    """Refuse stages that cannot stand together, with the reason."""
    if repeated := [name for name in names if names.count(name) > 1]:
        raise SettingError(f"{repeated[0]} stands more than once in --wire. Keep one.")
    rules = [name for name in names if name in RULES]
    if len(rules) > 1:
        raise SettingError(f"--wire can have one rule that replaces the sum, got {' and '.join(rules)}. Keep one.")
    for name, why in {
        "secure": "reads single uploads, which secure sums hide",
        "noise": "is not a sum, and the noise is measured for a sum: no epsilon would be true",
        "local": "would compare noise and not people",
    }.items():
        if rules and name in names:
            raise SettingError(f"{rules[0]} {why}. Leave {rules[0]} or {name} out.")
    _check_turns(names, rules)
    if "local" in names and "noise" in names:
        raise SettingError("--wire can have local noise (on every upload) or noise (on the sum), not both. Keep one.")


def _check_turns(names: list[str], rules: list[str]) -> None:
    """Refuse turns beside stages that need the same rows from everybody, or rows that are all there."""
    both = [name for name in ("turns", "common_turns") if name in names]
    if len(both) > 1:
        raise SettingError("--wire can have turns (everybody their own rows) or common_turns (the same), not both.")
    if both and "sparsify" in names:
        raise SettingError(f"{both[0]} chooses the rows that are sent by turn, and sparsify by size. Keep one.")
    reasons = {"secure": "adds masks to the same rows of everybody", "local": "adds noise to whole tables"}
    reasons |= dict.fromkeys(rules, "compares people who send the same rows")
    for name, why in reasons.items():
        if "turns" in names and name in names:
            raise SettingError(f"{name} {why}, and with turns everybody sends other rows. Use common_turns instead.")


def assemble(
    requested: StageList, method: Method, likes: Sequence[Params], *, everybody: int, rate: float = 1.0,
    multiplier: float | None = None, seed: int = 0,
) -> Wire:  # fmt: skip
    """The wire of this method. `likes` has one of its uploads for each round that differs, `everybody` is the number of
    people, `rate` the chance to be in a round's cohort, `multiplier` the noise that was solved for, if any, and `seed`
    a public number, from which turns follow."""
    values, notes, like = dict(requested), [], likes[0]
    limit, bounds = values.get("clip"), method.privacy.bounds
    _check_method(values, method, like)
    if bounds and limit:
        notes.append("clip is not used by a method that bounds its uploads itself (fedveil).")
        limit = None
    method, parts = _partial(values, method, like, seed)
    if "sparsify" in values:
        notes.append("sparsify: which numbers are sent reveals which items a person has. See `fedtaste audit`.")
    noise = multiplier or values.get("noise") or values.get("local") or 0.0
    sealed_bits, bits = _sealed_bits(values, limit, noise), values.get("quantise")
    if bits and not sealed_bits:
        parts.append(stages.quantise(int(bits)))
    if method.stage and not (
        "sparsify" in values or bits or limit or noise
    ):  # these send other numbers than the method
        parts.append(method.stage)
    sent = chain(*parts)
    protection = _Protection(method, limit, noise, "local" in values, everybody, likes, sent, sealed_bits)
    parts += protection.stages("secure" in values, values.get("secure"))
    for name, value in requested:
        if name in RULES:
            check_memory(math.ceil(min(rate, 1) * everybody), like)
            parts.append(RULES[name](value, method.rows))
    stage = chain(*parts)
    if "secure" in values:  # whole tables of integers, even where quantise or sparsify would write less
        written = chain(*(part for part in parts if part.turns or part.secure_sum))
        stage = replace(stage, message_layout=written.message_layout)
    mechanism = None
    if noise and (bounds or limit is not None):
        shares = tuple(share for _, share in bounds)
        mechanism = Mechanism(noise, rate, shares, "local" in values, "secure" in values, bool(values.get("secure")))
    return Wire(method, stage, mechanism, bool(noise), tuple(notes))


def _partial(values: dict[str, float | None], method: Method, like: Params, seed: int) -> tuple[Method, list[Stage]]:
    """(the method, the stages) where only a part of an upload is sent: by turns, or the largest numbers."""
    for name in ("turns", "common_turns"):
        if turn := values.get(name):
            method, stage = take_turns(method, _turns_of(method, name, turn, like, seed))
            return method, [stage]
    if share := values.get("sparsify"):
        method, stage = stages.sparsify(method, share, like)
        return method, [stage]
    return method, []


def _sealed_bits(values: dict[str, float | None], limit: float | None, noise: float) -> int:
    """The bits of numbers that are quantised in secure sums; 0 where they are not, or where noise has its own grid."""
    bits = values.get("quantise")
    if not bits or "secure" not in values or noise:
        return 0
    if limit is None:
        raise SettingError(
            "quantise with secure needs clip, as in quantise=8,clip=1.0,secure: everybody rounds to the same announced "
            "step, which follows from the largest number that is possible."
        )
    return int(bits)


def _turns_of(method: Method, name: str, share: float, like: Params, seed: int) -> Turns:
    """The turns of this method's uploads; SettingError where it needs whole tables or sends none."""
    tables = tuple(leaf for leaf in like if leaf in method.rows)
    if not tables:
        raise SettingError(f"{name} would change nothing: this method sends no table by items. Leave it out.")
    if name not in method.takes_turns:
        other = f" Use {method.takes_turns[0]}." if method.takes_turns else " Leave it out, or use quantise=8."
        raise SettingError(f"{name} is not for this method, whose server needs every row in every round.{other}")
    return Turns(share, name == "common_turns", tables, len(like[tables[0]]), seed)


def _check_method(values: dict[str, float | None], method: Method, like: Params) -> None:
    """Refuse stages that this method has no use for."""
    if method.pooled and values:
        raise SettingError("--wire means nothing for a method that holds everybody's data. Leave it out.")
    if not like and values:
        raise SettingError("--wire would change nothing: this method sends nothing. Leave it out.")
    own = next((name for name in ("sparsify", "quantise", "clip", "bound") if name in values), None)
    if own and method.stage and method.stage.leaves:
        raise SettingError(
            f"{own} is not for uploads of whole numbers with announced steps, whose unit changes from round to round. "
            "Leave it out, or use --set bits=32."
        )
    if "sparsify" in values and method.schedule and method.schedule.counting:
        raise SettingError(
            "sparsify is not for a method whose first round sends counts: what was not sent of them has no next round. "
            "Use quantise=8, or start without counts (--set start=random --set trail=false)."
        )
    refused = [name for name in values if name not in ("clip", "noise", "secure")]
    if method.privacy.bounds and refused:
        raise SettingError(f"{refused[0]} is not for this method, which bounds its own uploads. Leave it out.")


@dataclass(frozen=True, eq=False)
class _Protection:
    """Clipping, noise and secure sums, which depend on each other: they share a bound and an integer grid."""

    method: Method
    limit: float | None  # the clip
    noise: float  # the multiplier; 0: none
    local: bool  # the noise is on every upload, and not on the sum
    people: int
    likes: Sequence[Params]
    sent: Stage  # what uploads have passed before
    bits: int = 0  # of the numbers in a secure sum without noise; 0: not rounded

    def stages(self, secure: bool, group: float | None) -> list[Stage]:
        """`secure`: with secure sums, of `group` people or, where that is None, of the whole cohort."""
        facts, sums, step = self.method.privacy, [], None
        if secure:
            secure_sum, step = self._secure_sum(None if group is None else int(group))
            sums = [secure_sum.stage()]
        if self.bits and self.limit:
            return [stages.clip(self.limit, facts.curve_only), stages.quantise_clipped(self.bits, self.limit), *sums]
        if not self.noise:  # with noise, the noise stage clips and rounds to the grid in one step
            return [stages.clip(self.limit, facts.curve_only), *sums] if self.limit else sums
        if self.local:
            return [stages.local(self.noise, self.limit, facts.curve_only), *sums]
        unsent = facts.curve_only if self.limit else ()
        return [stages.noise(self.noise, self.limit, facts.bounds, step, unsent), *sums]

    def _secure_sum(self, group: int | None) -> tuple[SecureSum, float | None]:
        """(the secure sum, the step of the grid that it can carry). With noise the modulus is 2^32 where the grid that
        fits costs less than 1 % of accuracy, and 2^64 otherwise; without noise numbers are at most the clip, or the
        bound that a method's own stage states."""
        people = self.people
        if group is not None and group > people:
            raise SettingError(f"secure in --wire needs a group of at most {people:,}, everybody; got secure={group}.")
        if self.bits:  # a sum has at most so many bits more than one number
            words = self.bits + math.ceil(math.log2(people))
            return SecureSum(group, most=people, words=words if words <= 32 else 64), None
        if not self.noise and self.sent.leaves and not self.limit:  # rounds of counting have other numbers
            plan, sent = self.method.schedule or Schedule(), self.sent
            most = min(plan.cohort or people, people)
            training = SecureSum(group, clip=sent.bound, most=most, unit=sent.step, weight_unit=sent.weight_step)
            first = plan.counting
            return SecureSum(group, most=people, training=training, training_from=first, leaves=sent.leaves), None
        if not self.noise:
            return SecureSum(group, clip=self.limit or self.sent.bound, most=people, unit=self.sent.step), None
        if self.local:
            return SecureSum(group, most=people, words=64), None
        releases = self.method.privacy.bounds or ((self.limit or 1.0, 1.0),)
        largest = 2 * group if group else people  # the last group takes the rest
        least = max(FEWEST, (group or people) // 2 + 1)
        sizes = [sum(value.numel() for value in like.values()) for like in self.likes]
        for bits in (32, 64):
            step = max(modular_step(c, self.noise / math.sqrt(share), largest, least, bits) for c, share in releases)
            worst = max(rounding_cost(c, step, size) for (c, _), size in zip(releases, sizes))
            if worst <= MOST_ROUNDING:
                finest = min(fine_step(c) for c, _ in releases)
                return SecureSum(group, most=people, words=bits), step if bits == 32 else max(step, finest)
        raise SettingError(
            f"Noise of {self.noise:.3g} x the bound is too large for a secure sum of {people:,} people: 64 bits cannot "
            "hold it together with the uploads. Use a larger --epsilon, or less noise."
        )


def multiplier_for(
    requested: StageList, epsilon: float | None, delta: float, rounds: int, rate: float, bounded: bool
) -> float | None:
    """The noise multiplier that --epsilon needs; None without --epsilon. `bounded`: the method bounds its uploads
    itself, and its rounds share one budget."""
    values = dict(requested)
    named = next((name for name in ("noise", "local") if name in values), None)
    if epsilon is None:
        if named and values[named] is None:
            raise SettingError(f"{named} in --wire needs a number, as in {named}=0.8, or --epsilon 3.")
        return None
    if named and values[named] is not None:
        raise SettingError(
            f"--epsilon {epsilon:g} solves for the noise, and --wire has {named}={values[named]:g}. Give one."
        )
    if not bounded and "clip" not in values:
        raise SettingError(
            f"--epsilon {epsilon:g} needs a bound on one person's upload, or no noise would be enough. Add clip, as in "
            "--wire clip=1.0. For recommendations --method fedveil is made for private runs."
        )
    noise = solve(epsilon, delta, 1 if bounded else rounds, rate, named == "local")
    return noise * 1.0001 if bounded else noise  # the accountant's grid is coarser for three releases than one


def upload_of(method: Method, model: Model, inputs: torch.Tensor, down: Download | None = None) -> Params:
    """An upload of this method, to show the names, whole shapes and types that it sends. `inputs` is one example,
    [1, 1, ...]; `down` is what the device received (default: the first round's)."""
    shared, private = method.init(model.init(torch.Generator().manual_seed(0)))
    ones = torch.ones(1, 1)
    upload, _ = method.client(down or Download(shared, torch.tensor(0.0)), private, Examples(inputs, ones, ones))
    return {name: value.detach() for name, value in upload.total.items()}


def uploads_of(method: Method, model: Model, inputs: torch.Tensor) -> list[Params]:
    """An upload for each round of a method that sends something else in every round; otherwise one."""
    shared, _ = method.init(model.init(torch.Generator().manual_seed(0)))
    rounds = range(max(len(method.privacy.bounds), 1))
    return [upload_of(method, model, inputs, Download(shared, torch.tensor(float(round)))) for round in rounds]
