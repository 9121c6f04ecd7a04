"""From `--wire clip=1.0,noise=0.8,secure` to stages: names, values, order, what goes together, and what it promises."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch

from ..core import Download, Examples, Method, Model, Params, Stage, chain
from ..errors import SettingError, did_you_mean
from . import stages
from .accounting import Mechanism, solve
from .noise import fine_step, modular_step, rounding_cost
from .robust import RULES, room
from .secure import FEWEST, SecureSum

MOST_ROUNDING = 0.01  # of the sensitivity, before a wider modulus is taken
Asked = tuple[tuple[str, float | None], ...]  # names and values, in order
ORDER = ("sparsify", "quantise", "clip", "local", "noise", "secure")
EXAMPLES = {"sparsify": "0.1", "quantise": "8", "clip": "1.0", "local": "1.0", "noise": "0.8", "secure": "10"}
EXAMPLES |= {"bound": "1.0", "trim": "0.1", "krum": "0.1"}
ALONE = ("secure", "bound", "median", "noise", "local")  # may stand without a value: noise is solved for then
SENSIBLE: dict[str, tuple[Callable[[float], bool], str]] = {
    "sparsify": (lambda x: 0 < x < 1, "a share of the numbers between 0 and 1"),
    "quantise": (lambda x: x in range(2, 17), "2 to 16 bits"),
    "clip": (lambda x: 1e-12 < x < 1e12, "a positive norm"),
    "local": (lambda x: 0.01 <= x <= 1e6, "a multiple of the clip from 0.01 to a million"),
    "noise": (lambda x: 0.01 <= x <= 1e6, "a multiple of the clip from 0.01 to a million"),
    "secure": (lambda x: x == int(x) and x >= 3, "a group of 3 people or more"),
    "bound": (lambda x: 0 < x < 1e12, "a positive norm"),
    "trim": (lambda x: 0 < x < 0.5, "a share below one half"),
    "krum": (lambda x: 0 < x < 0.5, "a share of hostile people below one half"),
}


@dataclass(frozen=True, eq=False)
class Wire:
    """What crosses, and how."""

    method: Method  # with a memory of what it did not send, where the wire sparsifies
    stage: Stage
    mechanism: Mechanism | None  # what an accountant may count; None where nothing is promised
    noisy: bool  # noise is added, promised or not
    notes: tuple[str, ...] = ()


def parse(text: str) -> Asked:
    """Names and values; refused where a name, a value, the order or the company is wrong.

    >>> parse("clip=1.0,noise=0.8,secure")
    (('clip', 1.0), ('noise', 0.8), ('secure', None))
    """
    found: list[tuple[str, float | None]] = []
    for part in filter(None, map(str.strip, text.split(","))):
        name, equals, value = (piece.strip() for piece in part.partition("="))
        if name not in ORDER and name not in RULES:
            raise SettingError(did_you_mean(name, [*ORDER, *RULES], "stage") + f" In order: {', '.join(ORDER)}.")
        found.append((name, _value(name, value if equals else None)))
    names = [name for name, _ in found]
    _company(names)
    right = sorted(names, key=[*ORDER, *RULES].index)
    if names != right:
        shown = ",".join(
            part for name in right for part in text.replace(" ", "").split(",") if part.split("=")[0] == name
        )
        raise SettingError(
            f"--wire {text} is out of order; a device goes through {' -> '.join(right)}: --wire {shown}."
        )
    return tuple(found)


def _value(name: str, text: str | None) -> float | None:
    if text is None and name in ALONE:
        return None
    if name == "median":
        raise SettingError(f"median={text} was got in --wire; median takes no value.")
    sensible, expected = SENSIBLE[name]
    try:
        number = float(text) if text else float("nan")
    except ValueError:
        number = float("nan")
    if not sensible(number):
        got = name if text is None else f"{name}={text}"
        raise SettingError(f"{got} was got in --wire; {expected} is expected, as in {name}={EXAMPLES[name]}.")
    return number


def _company(names: list[str]) -> None:
    """Refuse stages that do not go together, with the reason."""
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice:
        raise SettingError(f"{twice} stands more than once in --wire. Keep one.")
    rules = [name for name in names if name in RULES]
    if len(rules) > 1:
        raise SettingError(f"{' and '.join(rules)} stand together in --wire; one way of adding is possible. Keep one.")
    for name, why in {
        "secure": "looks at single uploads, and with secure sums nobody can",
        "noise": "is not a sum, and the noise is measured for a sum: no epsilon would be true",
        "local": "would judge noise and not people",
    }.items():
        if rules and name in names:
            raise SettingError(f"{rules[0]} {why}. Leave {rules[0]} or {name} out.")
    if "local" in names and "noise" in names:
        raise SettingError("local and noise stand together in --wire: noise on every upload, or on the sum? Keep one.")


def assemble(
    asked: Asked, method: Method, likes: Sequence[Params], *, everybody: int, rate: float = 1.0,
    multiplier: float | None = None,
) -> Wire:  # fmt: skip
    """The wire for this method. `likes` has one of its uploads for each round that differs, `everybody` how many may be
    asked, `rate` the chance of being asked; `multiplier` is the noise that was solved for, where it was."""
    values, notes, like = dict(asked), [], likes[0]
    limit, bounded = values.get("clip"), bool(method.release)
    _useful(values, method, like)
    z = multiplier or values.get("noise") or values.get("local")
    at_home, central = (z, None) if "local" in values else (None, z)
    if bounded and limit:
        notes.append("clip is not used by a method that bounds its uploads itself (fedveil).")
        limit = None
    promised = bool(z) and (bounded or limit is not None)
    parts: list[Stage] = []
    if values.get("sparsify"):
        method, stage = stages.sparsify(method, float(values["sparsify"] or 0), like)
        parts.append(stage)
        notes.append("sparsify: which numbers are sent tells which items a person has. See `tacit audit`.")
    if values.get("quantise"):
        parts.append(stages.quantise(int(values["quantise"] or 0)))
    if limit and not z:  # with noise, the same step clips and rounds to the grid
        parts.append(stages.clip(limit, method.told))
    sealed = (
        _sealed(values["secure"], method, limit, central, at_home, everybody, likes) if "secure" in values else None
    )
    if at_home:
        parts.append(stages.local(at_home, limit, method.told))
    if central:
        step = sealed.step if sealed else None
        parts.append(stages.noise(central, limit, method.release, step, method.told if limit else ()))
    if sealed:
        parts.append(sealed.sum.stage())
    if any(name in RULES for name in values):
        room(everybody if rate >= 1 else math.ceil(rate * everybody), like)
    parts += [RULES[name](value, method.rows) for name, value in asked if name in RULES]
    stage = chain(*parts)
    if sealed:  # whole tables of words, whatever was small or sparse before
        stage = replace(stage, written=sealed.sum.stage().written)
    shares = tuple(share for _, share in method.release)
    mechanism = Mechanism(
        float(z or 0), rate, shares, bool(at_home), "secure" in values, bool(values.get("secure"))
    ) if promised else None  # fmt: skip
    return Wire(method, stage, mechanism, bool(z), tuple(notes))


def _useful(values: dict[str, float | None], method: Method, like: Params) -> None:
    """Refuse stages that this method has no use for."""
    if method.pooled and values:
        raise SettingError("--wire means nothing for a method that holds everybody's data. Leave it out.")
    if not like and values:
        raise SettingError("--wire would change nothing: this method sends nothing. Leave it out.")
    refused = [name for name in values if name not in ("clip", "noise", "secure")]
    if method.release and refused:
        raise SettingError(f"{refused[0]} is not for this method: its uploads are bounded as they are. Leave it out.")


class Sealed(NamedTuple):
    """Secure sums, and the step of the grid that they can carry."""

    sum: SecureSum
    step: float | None


def _sealed(
    size: float | None, method: Method, limit: float | None, noise: float | None, local: float | None, everybody: int,
    likes: Sequence[Params],
) -> Sealed:  # fmt: skip
    """Secure sums in groups of `size`. With noise the modulus is 2^32 where the grid that fits costs less than 1 % of
    accuracy, and otherwise 2^64; without noise numbers are known not to be larger than the clip, where there is one."""
    group = None if size is None else int(size)
    if group is not None and group > everybody:
        raise SettingError(
            f"secure={group} was got in --wire, and there are {everybody:,} people: no group of that size can be "
            f"made. Give at most {everybody:,}, or secure alone."
        )
    if local:
        return Sealed(SecureSum(group, most=everybody, words=64), None)
    if not noise:
        return Sealed(SecureSum(group, clip=limit, most=everybody), None)
    releases = method.release or ((limit or 1.0, 1.0),)
    largest = 2 * group if group else everybody  # the last group takes the rest
    least = max(FEWEST, (group or everybody) // 2 + 1)
    for bits in (32, 64):
        step = max(modular_step(c, noise / math.sqrt(share), largest, least, bits) for c, share in releases)
        sizes = [sum(value.numel() for value in like.values()) for like in likes]
        worst = max(rounding_cost(c, step, size) for (c, _), size in zip(releases, sizes))
        if worst <= MOST_ROUNDING:
            break
    else:
        raise SettingError(
            f"Noise of {noise:.3g} x the bound is too large for a secure sum of {everybody:,} people: 64 bits cannot "
            "hold it and the uploads at once. Use a larger --epsilon, or less noise."
        )
    finest = [fine_step(c) for c, _ in releases]
    return Sealed(SecureSum(group, most=everybody, words=bits), step if bits == 32 else max(step, min(finest)))


def multiplier_for(
    asked: Asked, epsilon: float | None, delta: float, rounds: int, rate: float, bounded: bool
) -> float | None:
    """The noise that `--epsilon` asks for, or None where the wire says it or there is none."""
    values = dict(asked)
    named = next((name for name in ("noise", "local") if name in values), None)
    if epsilon is None:
        if named and values[named] is None:
            raise SettingError(
                f"{named} was got in --wire without a number. Give one, as in {named}=0.8, or --epsilon 3."
            )
        return None
    if named and values[named] is not None:
        raise SettingError(
            f"--epsilon {epsilon:g} solves for the noise, and --wire has {named}={values[named]:g}. Give one."
        )
    if not bounded and "clip" not in values:
        raise SettingError(
            f"--epsilon {epsilon:g} needs a bound on what one person can change, or no noise would do. "
            "Add clip, as in --wire clip=1.0."
        )
    noise = solve(epsilon, delta, 1 if bounded else rounds, rate, named == "local")
    return noise * 1.0001 if bounded else noise  # an accountant's grid is coarser for three releases than for one


def upload_of(method: Method, model: Model, inputs: torch.Tensor, down: Download | None = None) -> Params:
    """What an upload of this method looks like: names, whole shapes, types. `inputs` is one example, [1, 1, ...];
    `down` what the device received (the first round's when left out)."""
    shared, own = method.init(model.init(torch.Generator().manual_seed(0)))
    one = torch.ones(1, 1)
    upload, _ = method.client(down or Download(shared, torch.tensor(0.0)), own, Examples(inputs, one, one))
    return {name: value.detach() for name, value in upload.total.items()}


def uploads_of(method: Method, model: Model, inputs: torch.Tensor) -> list[Params]:
    """What an upload looks like in each round of a method that sends something else in every round; otherwise one."""
    shared, _ = method.init(model.init(torch.Generator().manual_seed(0)))
    rounds = range(max(len(method.release), 1))
    return [upload_of(method, model, inputs, Download(shared, torch.tensor(float(round)))) for round in rounds]
