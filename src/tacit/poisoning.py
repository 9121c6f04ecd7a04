"""The poisoning simulator: some of the people turn hostile, and it is measured what that does to everybody else.

A seeded share of the members turn hostile; nobody is added. What they want:
    promote     that a target, an item hardly anybody took, is recommended to everybody: their histories are fake (the
                target and popular items), and the target's row of their upload is crafted. Where the upload is a change
                of item factors, the row points to the middle of popular items and is `size` times as long as the
                longest row of the device; where it is FedALS's sums, the person's vector is `size` times too long
    profiles    the same by fake histories alone: the devices run the right program on wrong data
    random      noise in every number of every table, `size` times as long as an honest upload
    flip        what they took is told as not taken, and as many items that they did not take as taken
Unpopular is what somebody took, but no more people than took the median item; the target is a seeded choice of these.
What is measured, on honest people only, the same ones in every row of the result: exposure ER@k, the share of those
without the target in their history who have it among the top k of the whole catalogue; HR@10 and NDCG@10 under the
clean protocol. `clean`: the same people, all honest. Rounds are fixed before: nothing is chosen on test.
A defence is a rule of the server (wire/robust.py). What a device does to its own upload, a hostile one leaves out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from .core import Stage
from .data.importing import BroughtSplit
from .data.interactions import Histories, Interactions
from .data.sampling import SERVE, SPLIT, key_of, some, uniform
from .engine.run import State, begin, run
from .errors import DivergedError, SettingError, did_you_mean
from .evaluation.scoring import personal_scores
from .experiment import Silent, Watch, make_task
from .federation import Federation, of_histories
from .hostile import MARK, fake_profiles, flipped, hostile_method, target_first
from .settings import Plan, Settings, plan
from .tasks import Task
from .wire.admission import LIMIT
from .wire.plan import parse, upload_of
from .wire.robust import RULES, room

People = NDArray[np.int64]
ATTACKS = ("promote", "profiles", "random", "flip")
AIMED = ("promote", "profiles")  # those with a target
SIZE = 1e4  # times an honest row: the door (wire/admission.py) lets it in, and it is out of all proportion
SUMS = 10.0  # the same where sums are sent, which are solved: with much more everybody's system breaks down


@dataclass(frozen=True, eq=False)
class World:
    """All that the runs of one simulation share."""

    task: Task
    plan: Plan
    seed: int
    histories: Histories  # what everybody really took
    members: People
    hostile: People
    honest: People  # those who are judged
    titles: tuple[str, ...]
    names: tuple[str, ...]
    cohort: int | float | None = None

    @property
    def catalogue(self) -> int:
        return self.task.facts.items

    @property
    def counts(self) -> NDArray[np.int64]:
        return np.bincount(self.histories.items, minlength=self.catalogue)

    def federation(self, histories: Histories, **options: Any) -> Federation:
        return of_histories(
            histories, self.catalogue, examples=self.plan.method.examples, negatives=self.plan.sampling.negatives,
            batch=self.plan.sampling.batch, seed=self.seed, **options,
        )  # fmt: skip


def make_world(settings: Settings, data: Interactions | BroughtSplit, hostile: float) -> World:
    """The task of these settings with a seeded share of its members turned hostile."""
    if not 0 < hostile <= 0.5:
        raise SettingError(f"{hostile:g} hostile people were asked for; expected a share above 0 and up to 0.5.")
    task = make_task(settings, data)
    if task.facts.kind != "ranking":
        raise SettingError(f"Poisoning is simulated for rankings, and {settings.data} is for {task.facts.kind}.")
    made = plan(settings, task.facts)
    if made.method.pooled or settings.method in ("local", "popularity"):
        raise SettingError(f"{settings.method} learns no model from uploads. Choose another method, such as fedmf.")
    bare = task.federation("final", made.method.but(examples="history"), made.sampling, None)
    held = bare.examples(np.arange(task.people), 0)
    histories = Histories(held.starts, held.inputs.astype(np.int32), held.targets)
    turned = some(bare.members, max(1, round(hostile * len(bare.members))), key_of(settings.seed, SPLIT, 7))
    about = data.train if isinstance(data, BroughtSplit) else data
    honest = np.setdiff1d(task.seen, turned)
    if not len(honest):
        raise SettingError("Nobody honest is left to be judged. Give a smaller share of hostile people.")
    return World(
        task,
        made,
        settings.seed,
        histories,
        bare.members,
        turned,
        honest,
        about.titles,
        about.items,
        settings.cohort,
    )


def unpopular(world: World) -> NDArray[np.int64]:
    """Items that somebody took, but no more people than took the median item; in a seeded order."""
    counts = world.counts
    taken = np.flatnonzero(counts)
    few = taken[counts[taken] <= np.median(counts[taken])]
    return few[np.argsort(uniform(few, key_of(world.seed, SPLIT, 8)), kind="stable")]


def train(world: World, wire: Stage, attack: str | None, target: int, size: float, watch: Watch) -> State:
    """The state after all rounds, with this rule at the server and this attack; None: everybody is honest."""
    method, histories = world.plan.method, world.histories
    if attack in AIMED:
        histories = fake_profiles(histories, world.catalogue, world.hostile, target, world.seed)
    elif attack == "flip":
        histories = flipped(histories, world.catalogue, world.hostile, world.seed)
    federation = world.federation(histories, members=world.members)
    if attack in ("promote", "random"):
        method = hostile_method(method, str(attack), size)
        federation = target_first(federation, world.hostile, target) if attack == "promote" else federation
        wire = replace(wire, whole=wire.whole or attack == "random")  # noise also where the device touched nothing
    state = begin(method, world.plan.model, federation, world.seed)
    if MARK in state.private.stacked:
        state.private.stacked[MARK][torch.from_numpy(world.hostile)] = torch.from_numpy(world.hostile + 1).float()
    rounds = run(
        method, world.plan.model, federation, rounds=world.plan.rounds, cohort=world.cohort, seed=world.seed, wire=wire,
        state=state,
    )  # fmt: skip
    try:
        for done in rounds:
            state = done.state
            watch.round(done.number, None)
    except torch.linalg.LinAlgError as error:
        raise DivergedError(
            f"A system of equations could not be solved in round {state.round + 1}: with this size the attack does not "
            "promote, it breaks the training. Give a smaller --size."
        ) from error
    state.private.stacked.pop(MARK, None)
    state.private.initial.pop(MARK, None)
    return state


def judge(world: World, state: State) -> dict[str, float]:
    """HR@10 and NDCG@10 of honest people."""
    found = world.task.judge(
        world.plan.method, world.plan.model, state, world.plan.sampling, world.honest, None
    ).values["sampled"]
    return {"hr@10": found["hr@10"], "ndcg@10": found["ndcg@10"]}


def exposure(world: World, state: State, targets: Sequence[int], k: int) -> list[float]:
    """ER@k of every target: the share of honest people without it in their history who have it in their top k."""
    held = world.federation(world.histories, stream=SERVE).examples(world.honest, 0)
    hits, asked = np.zeros(len(targets)), np.zeros(len(targets))
    every = torch.arange(world.catalogue)
    for part, scores in personal_scores(
        world.plan.method, world.plan.model, state.shared, state.private, world.honest, held, every
    ):
        for place, row in zip(part, scores.double().numpy()):
            had = world.histories.of(int(world.honest[place]))
            row = np.where(np.isfinite(row), row, -np.inf)
            row[had] = -np.inf
            free = ~np.isin(targets, had)
            ahead = np.array([(row >= row[target]).sum() - 1 for target in targets])  # ties count against the target
            asked += free
            hits += free & (ahead < k)
    return [round(float(value), 6) for value in hits / np.maximum(asked, 1)]


def defences(world: World, wires: Sequence[str]) -> dict[str, Stage]:
    """The server's rules that these wire strings name."""
    found = {}
    for text in wires:
        asked = parse(text)
        other = [name for name, _ in asked if name not in RULES]
        if other or len(asked) != 1:
            raise SettingError(
                f'--wire "{text}" was got; a defence is one rule of the server: {", ".join(RULES)}.'
                + (f" {other[0]} happens on the device, and a hostile one leaves it out." if other else "")
            )
        (name, value), method = asked[0], world.plan.method
        people = len(world.federation(world.histories, members=world.members).cohort(0, size=world.cohort)[0])
        room(people, upload_of(method, world.plan.model, torch.zeros(1, 1, dtype=torch.int64)))
        found[text] = RULES[name](value, method.rows)
    return found


def check(world: World, attack: str, targets: int, k: int, size: float) -> None:
    few = len(unpopular(world))
    if attack not in ATTACKS:
        raise SettingError(did_you_mean(attack, ATTACKS, "attack"))
    if not 1 <= k < world.catalogue:
        raise SettingError(f"A top {k} was asked for; expected 1 to {world.catalogue - 1:,}: there are no more items.")
    if not 1 <= targets <= few:
        raise SettingError(f"{targets} targets were asked for; expected 1 to {few:,}: no more items are unpopular.")
    if not 0 < size <= LIMIT:
        raise SettingError(f"A size of {size:g} was got; expected a positive number of times what is honest.")


def simulate(
    settings: Settings, data: Interactions | BroughtSplit, *, hostile: float = 0.05, attack: str = "promote",
    wires: Sequence[str] = (), targets: int = 1, k: int = 10, size: float | None = None, watch: Watch | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Rows `clean`, `undefended` and, for every wire, its rule `at peace` and `defended`. Every target is attacked in a
    run of its own; a row has the mean over them, and exposures one by one."""
    world, watch = make_world(settings, data, hostile), watch or Silent()
    like = upload_of(world.plan.method, world.plan.model, torch.zeros(1, 1, dtype=torch.int64))
    solved = bool(set(like) & set(world.plan.method.rows) - set(world.plan.model.rows))
    size = (SUMS if solved else SIZE) if size is None else size
    check(world, attack, targets, k, size)
    rules = {"": Stage(), **defences(world, wires)}
    few = unpopular(world)
    aims = [int(item) for item in few[:targets]]
    rows: list[dict[str, Any]] = []
    usual = 0.0  # what an unpopular item is exposed to when nobody attacks
    for wire, stage in rules.items():
        watch.phase(f"honest, {wire or 'plain sum'}", world.plan.rounds, 0)
        state = train(world, stage, None, aims[0], size, watch)
        if not wire:
            usual = float(np.mean(exposure(world, state, few.tolist(), k)))
        rows.append(
            _row("at peace" if wire else "clean", wire, [(judge(world, state), exposure(world, state, aims, k))])
        )
        found = []
        for place, target in enumerate(aims if attack in AIMED else aims[:1]):
            watch.phase(f"{attack}, {wire or 'plain sum'}, {place + 1}", world.plan.rounds, 0)
            state = train(world, stage, attack, target, size, watch)
            hit = [target] if attack in AIMED else aims
            found.append((judge(world, state), exposure(world, state, hit, k)))
        rows.append(_row("defended" if wire else "undefended", wire, found))
    for row in rows:
        row["ndcg_loss"] = round(1 - row["ndcg@10"] / max(rows[0]["ndcg@10"], 1e-12), 6)
    told = [{"item": world.names[a], "title": world.titles[a], "count": int(world.counts[a])} for a in aims]
    return {
        "data": settings.data, "method": settings.method, "settings": world.plan.shown, "rounds": world.plan.rounds,
        "seed": settings.seed, "attack": attack, "size": size if attack in ("promote", "random") else None, "k": k,
        "hostile": {"share": hostile, "people": len(world.hostile)}, "honest": len(world.honest), "rows": rows,
        "target": told[0], "targets": told, "unpopular": {"items": len(few), "exposure": round(usual, 9)},
    }  # fmt: skip


def _row(name: str, wire: str, found: Sequence[tuple[dict[str, float], list[float]]]) -> dict[str, Any]:
    """One row of the result, from (metrics, exposures) of every run that it is the mean of."""
    by_target = [value for _, exposures in found for value in exposures]
    mean = {name: round(float(np.mean([metrics[name] for metrics, _ in found])), 6) for name in found[0][0]}
    return {"row": name, "wire": wire, "exposure": round(float(np.mean(by_target)), 6), "exposures": by_target, **mean}
