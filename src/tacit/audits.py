"""One audit from settings to result: the steps of a configuration, the uploads it produces, and what attacks find."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from .core import Seat, Upload
from .engine.run import State, begin, run
from .errors import SettingError
from .evaluation.attacks import POPULARITY
from .evaluation.audit import SIZES, Pairs, Step, Watch, World, order, pairs, produce, seat_of, seen, sent, world
from .evaluation.canary_run import Setup, audit_membership
from .evaluation.cross_round import many_rounds
from .evaluation.findings import Tried, baselines, feed, measure
from .evaluation.observed import noise_seed_of
from .experiment import Silent
from .federation import Federation, cohort_size
from .saved_uploads import Saved, Shelf
from .settings import Plan, Settings, plan
from .tasks import Task
from .wire.accounting import statement
from .wire.plan import ORDER, parse

NOTHING, SAVED = "no stages", "as saved"
SHOWN = 15  # guessed items of the person who is shown
FIGURES = ("f1", "worst_f1", "auc", "matched_auc", "upload_f1")
QUIET = 0.99  # of the stated noise: what is certainly less is reported
BROKEN = "The printed epsilon {:.3g} is refuted: epsilon is at least {:.3g} ({:.0f} % confidence)."
OFF_GRID = "Released numbers are not on the public grid: which values occur tells something about the data."
WEAK = "The noise that was really added has {:.3g} times the stated standard deviation."
BARE = {"wire": "", "epsilon": None, "delta": None}
ANYWAY = "The data themselves are handed over: nothing has to be attacked."
SILENT = "Nothing is sent, so nothing is told: the figures are those of popularity."
NO_HELP = "No attack beats popularity: what the server sees did not help to guess people's items."
INSIDE = "Devices add the noise, each a share: the server opens no sum without all of it."
ON_DEVICES = "Every device adds all of the noise to its own upload before it is sent."
OUTSIDE = "The noise is added by the server, to the sum: it hides nobody from the server, which sees single uploads."


def prefixes(settings: Settings, made: Plan) -> list[str]:
    """The wire strings of the steps, from none to all; noise that was solved for is written out."""
    asked = [(name, value) for name, value in parse(settings.wire) if name not in ("noise", "local") or value]
    found = made.wire.mechanism
    if settings.epsilon is not None and found is not None:
        asked.append(("local" if found.local else "noise", found.noise))
        asked.sort(key=lambda part: ORDER.index(part[0]) if part[0] in ORDER else len(ORDER))
    parts = [name if value is None else f"{name}={value!r}" for name, value in asked]
    return [",".join(parts[:many]) for many in range(len(parts) + 1)]


def steps_of(settings: Settings, task: Task, people: int) -> tuple[list[Step], Plan]:
    """The configuration without stages, then with one more of them at a time; and the plan of all of it."""
    made = plan(settings, task.facts)
    steps = []
    for text in prefixes(settings, made):
        part = plan(settings.model_copy(update=BARE | {"wire": text}), task.facts)
        asked = dict(parse(text))
        cohort = people if settings.cohort is None else cohort_size(settings.cohort, people)
        group = int(asked["secure"] or cohort) if "secure" in asked else 1
        steps.append(Step(label(text), part.wire.stage, min(group, people), part.method))
    return steps, made


def label(text: str) -> str:
    """A wire string as a table shows it.

    >>> label("clip=1.0,noise=0.8123456,secure"), label("")
    ('clip 1 + noise 0.812 + secure', 'no stages')
    """
    parts = [part.partition("=") for part in text.split(",") if part]
    return " + ".join(f"{name} {float(value):.3g}" if value else name for name, _, value in parts) or NOTHING


def audit(
    settings: Settings,
    task: Task,
    titles: Sequence[str],
    *,
    rounds: int | None = None,
    people: int = 300,
    canaries: int | None = None,
    save: Path | None = None,
    watch: Watch | None = None,
    coin_seed: int | None = None,
) -> dict[str, Any]:
    """The result that `--json` prints. An attacker who sees the uploads of rounds 1 to `rounds` (default: of the first)
    of a run of usual length guesses people's lists; one who sees the whole planned run guesses who took part
    (`canaries` at most are added for that in a run, 0: none)."""
    began, watch = time.perf_counter(), watch or Silent()
    settings, plain = checked(settings, task, rounds)
    rounds = rounds or 1
    federation = task.federation("final", plain.method.but(pooled=False), plain.sampling, None)
    steps, made = steps_of(settings, task, len(federation.members))
    truth, everybody = pairs(federation, task.facts.kind, 0), order(federation.members, settings.seed)
    draws = noise_seed_of(settings.seed, settings.noise_seed)
    about = world(truth, everybody[:people], federation.catalogue, {})
    found: list[Tried] = []
    for part in together(steps, rounds):
        coming = everybody[: max(people, *(size for size in sizes_of(part) if size <= len(everybody)))]
        shelf = (
            Shelf(save, truth, about, {}, rounds - 1, titles, settings.seed) if save and part[-1] is steps[-1] else None
        )
        found += _attacked(part, made, federation, settings, rounds, truth, about, coming, shelf, watch)
    last = found[-1]
    if last.step.wire.seal is not None and last.step.method is not None:
        attack = many_rounds(
            last.step, made.model, federation, about, rounds, seed=settings.seed, noise_seed=draws,
            cohort=settings.cohort, dropout=settings.dropout, watch=watch,
        )  # fmt: skip
        found[-1] = last._replace(attacks=[*(old for old in last.attacks if old.size < last.step.group), attack])
    member = membership(settings, task, made, federation, about, canaries, draws, watch, coin_seed)
    promise = statement(made.wire.mechanism, made.rounds, made.delta) if made.wire.noisy else {}
    notes = [*([ANYWAY] if plain.method.pooled else []), *task.notes, *made.notes]
    return {
        "data": settings.data, "task": task.facts.kind, "method": settings.method, "settings": made.shown,
        "wire": settings.wire, "rounds": rounds, "planned_rounds": made.rounds, "seed": settings.seed,
        "epsilon": promise.get("epsilon"), "epsilon_lower": member and member["epsilon_lower"],
        "delta": promise.get("delta"), "tpr_at_fpr_0.001": member and member["tpr_at_fpr_0.001"],
        **outcome(found, about, titles, [*lies(promise.get("epsilon"), member), *notes]), "membership": member,
        "seconds": round(time.perf_counter() - began, 3),
    }  # fmt: skip


def _attacked(
    part: list[Step], made: Plan, federation: Federation, settings: Settings, rounds: int, truth: Pairs, about: World,
    coming: NDArray[np.int64], shelf: Shelf | None, watch: Watch,
) -> list[Tried]:  # fmt: skip
    """What attacks find in these steps, whose devices compute the same, over all rounds that are seen."""
    draws, many = noise_seed_of(settings.seed, settings.noise_seed), len(coming)
    found = [Tried.of(step, about, many, seat_of(draws, "noise", 0, many), rounds) for step in part]
    method = part[0].method
    if method is None or method.pooled:
        feed(found, handed(truth, coming, federation.catalogue), about.known, many, seed=draws, watch=watch)
    for number, state in enumerate(_states(part[0], made, federation, settings, rounds, draws)):
        assert method is not None
        uploads = produce(method, federation, state, coming)
        if shelf is not None and number == rounds - 1:
            shelf.sent_down(state.shared)
            uploads = kept(uploads, shelf, part[-1], seat_of(draws, "devices", number, many))
        known = replace(about.known, shared={name: value.numpy() for name, value in state.shared.items()})
        feed(found, uploads, known, many, number=number, seed=draws, watch=watch)
    for tried in found:
        for attack in tried.attacks:
            attack.finish()
    return found


def sizes_of(part: list[Step]) -> tuple[int, ...]:
    """People whose uploads are added up."""
    return (*SIZES, *(step.group for step in part))


def membership(
    settings: Settings, task: Task, made: Plan, federation: Federation, about: World, canaries: int | None, draws: int,
    watch: Watch, coin_seed: int | None,
) -> dict[str, Any] | None:  # fmt: skip
    """The membership audit of the whole planned run; None where it does not apply."""
    text = prefixes(settings, made)[-1]
    stages, method = dict(parse(text)), made.wire.method
    if canaries == 0 or method.pooled:
        return None
    still = ",".join(piece for piece in text.split(",") if not piece.startswith("local"))
    quiet = plan(settings.model_copy(update=BARE | {"wire": still}), task.facts).wire.stage
    setup = Setup(
        method, made.model, federation, made.wire.stage, quiet, stages, made.rounds, about.known.popularity,
        made.wire.mechanism.rate if made.wire.mechanism and not made.wire.mechanism.local else 1.0,
        task.facts.scale[1] if task.facts.kind == "ratings" else 1.0, settings.cohort, settings.dropout, settings.seed,
    )  # fmt: skip
    return audit_membership(setup, made.delta, most=canaries, noise_seed=draws, coin_seed=coin_seed, watch=watch)


def lies(epsilon: float | None, member: dict[str, Any] | None) -> list[str]:
    """Notes where the noise is not what the configuration states."""
    out = []
    if member and epsilon is not None and member["epsilon_lower"] > epsilon:
        out.append(BROKEN.format(epsilon, member["epsilon_lower"], 100 * member["confidence"]))
    if member and member["noise_ratio"] and member["noise_ratio"][2] < QUIET:
        out.append(WEAK.format(member["noise_ratio"][0]))
    if member and member["on_grid"] is False:
        out.append(OFF_GRID)
    return out


def checked(settings: Settings, task: Task, rounds: int | None) -> tuple[Settings, Plan]:
    """The settings, and the plan without stages; what cannot be audited is refused."""
    if task.facts.kind not in ("ranking", "ratings"):
        raise SettingError(
            f"tacit audit looks for lists of items, and {settings.data} has none: its task is {task.facts.kind}. Use "
            "data of people and items, such as ml-100k."
        )
    plain = plan(settings.model_copy(update=BARE | {"rounds": None}), task.facts)
    if not plain.method.release:
        most = settings.rounds or plain.rounds
        return settings.model_copy(update={"rounds": max(most, rounds or 1)}), plain
    if rounds and rounds > len(plain.method.release):
        many = len(plain.method.release)
        raise SettingError(f"--rounds {rounds} was asked for; {settings.method} sends {many} times. Give 1 to {many}.")
    return settings.model_copy(update={"rounds": None}), plain


def _states(
    step: Step, made: Plan, federation: Federation, settings: Settings, rounds: int, draws: int
) -> Iterator[State]:
    """The state before each of the rounds; none where the data themselves are handed over."""
    if step.method is None or step.method.pooled:
        return
    state = begin(step.method, made.model, federation, settings.seed)
    yield state
    for done in run(
        step.method, made.model, federation, rounds=rounds - 1, seed=settings.seed, wire=step.wire, state=state,
        noise_seed=draws, cohort=settings.cohort, dropout=settings.dropout,
    ):  # fmt: skip
        yield done.state


def together(steps: list[Step], rounds: int) -> list[list[Step]]:
    """Steps whose devices compute the same: in the first round all of them, but where a stage is part of the method
    (sparsify), or the method knows the noise."""
    first = steps[0].method
    if rounds > 1 or first is None or first.release:
        return [[step] for step in steps]
    parts = [[step] for step in steps if step.method and step.method.rows != first.rows]
    return [[step for step in steps if [step] not in parts], *parts]


def handed(truth: Pairs, people: NDArray[np.int64], items: int) -> Iterator[tuple[int, Upload]]:
    """What a place that holds everybody's data gets from each of these people: all of it."""
    for who in people.tolist():
        mine = truth.who == who
        count, stars = torch.zeros(items), torch.zeros(items)
        count[torch.from_numpy(truth.item[mine])] = 1.0
        if truth.said is not None:
            stars[torch.from_numpy(truth.item[mine])] = torch.from_numpy(truth.said[mine]).float()
        yield who, Upload({"count": count} | ({"stars": stars} if truth.said is not None else {}), torch.ones(()))


def kept(uploads: Iterator[tuple[int, Upload]], shelf: Shelf, step: Step, seat: Seat) -> Iterator[tuple[int, Upload]]:
    """The same, written down as they leave the device on their way."""
    for who, upload in uploads:
        shelf.keep(who, seen(step, sent(step, who, upload, seat), seat, noise=False))
        yield who, upload


def audit_saved(saved: Saved, watch: Watch | None = None) -> dict[str, Any]:
    """The same of uploads that are at hand, as they are."""
    began, step = time.perf_counter(), Step(SAVED)
    many = len(saved.files)
    found = measure([step], saved.uploads(), saved.world, many, seed=saved.seed, watch=watch)
    kind = "ranking" if saved.world.ratings is None else "ratings"
    return {
        "data": None, "task": kind, "method": None, "settings": {}, "wire": "", "rounds": None,
        "planned_rounds": None, "seed": saved.seed, "epsilon": None, "epsilon_lower": None, "delta": None,
        "tpr_at_fpr_0.001": None, **outcome(found, saved.world, saved.titles, []), "membership": None,
        "seconds": round(time.perf_counter() - began, 3),
    }  # fmt: skip


def outcome(found: list[Tried], about: World, titles: Sequence[str], notes: list[str]) -> dict[str, Any]:
    """The figures: of all steps, and first of what the server sees in the last one."""
    step, attacks = found[-1]
    rows = [attack.row(tried.step) for tried in found for attack in tried.attacks if attack.places]
    mine = [row for row in rows if row["stages"] == step.label]
    head = next(row for row in mine if row["in_sum"] == min(step.group, max(r["in_sum"] for r in mine)))
    told = baselines(about)
    sends = any(name != POPULARITY for name in attacks[0].names)
    helped = sends and head["f1"] > told["popularity_f1"]
    notes = [*([] if sends else [SILENT]), *([NO_HELP] if sends and not helped else []), *notes]
    if step.wire.server:
        notes.insert(0, ON_DEVICES if step.wire.local else INSIDE if step.wire.seal else OUTSIDE)
    shown = {tried.step.label: example(tried, about, titles) for tried in (found[0], found[-1])}
    return {
        "stages": step.label, "people": head["people"], "items": about.known.items, "in_sum": head["in_sum"],
        **{name: head[name] for name in FIGURES}, "attack": head["attack"], "sends": sends, "helped": helped,
        **{name: value for name, value in told.items() if not name.endswith("interval")},
        "intervals": {name.removesuffix("_interval"): value for name, value in (head | told).items()
                      if name.endswith("interval")},
        "ratings": mine[0].get("ratings"), "rows": rows,
        "sums": {str(row["in_sum"]): {name: row[name] for name in FIGURES} for row in mine},
        "example": shown, "notes": list(dict.fromkeys(notes)),
    }  # fmt: skip


def example(tried: Tried, about: World, titles: Sequence[str]) -> dict[str, Any]:
    """What is guessed about one person, by the attack that their half is reported for."""
    attack = next(attack for attack in reversed(tried.attacks) if attack.size <= tried.step.group)
    truth = about.lists[attack.shown]
    told = attack.about_shown()
    if told is None:
        return {}
    name, guess = told
    guess = guess.about(len(truth))
    best = np.argsort(-np.where(guess.picks, guess.scores, -np.inf) if guess.picks is not None else -guess.scores)
    many = min(SHOWN, len(truth) if guess.picks is None else int(guess.picks.sum()))
    mine = set(truth.tolist())
    return {
        "list": len(truth), "in_sum": attack.size, "attack": name,
        "guessed": [{"title": titles[item], "hit": item in mine} for item in best[:many].tolist()],
    }  # fmt: skip
