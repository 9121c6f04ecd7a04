"""List recovery by a server that keeps the secure sums of several rounds: differences, least squares, averages.

    counts over rounds   Where a message holds counts that do not change from round to round, every sum is a linear
                         equation in people's 0/1 lists: box-constrained least squares over all groups of all rounds.
                         Groups that change determine the lists after a few rounds; with fixed groups, or with the whole
                         cohort in one sum, whoever is missing in a later round is the difference of two sums.
    lists of sums        FedALS: the lists of a group's people, separated in each round (fedals_separation.py)
    all others           the attacks of list_recovery.py on every round's sum, their scores averaged over rounds
The attack that is reported was chosen on the other half of the people, as for one round.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from fedtaste.attacks.list_recovery import (
    POPULARITY,
    READ,
    Array,
    Guess,
    Knowledge,
    MergedGuesses,
    Tensors,
    guess_items,
)
from fedtaste.attacks.measure import SumAttack, measure_baselines
from fedtaste.attacks.observed_run import ObservedRun, group_noise, to_release_units, visible_groups
from fedtaste.attacks.result import CrossRoundResult
from fedtaste.attacks.uploads import Step, Targets, Watch, holdings_of, make_targets, shuffle
from fedtaste.core import People, Upload
from fedtaste.engine.backends import Call, Outcome
from fedtaste.engine.run import State

if TYPE_CHECKING:
    from scipy import sparse

COUNTS = "counts over rounds"
STEPS = 400  # of the projected gradient


def solve_in_box(member: sparse.csr_matrix, sums: Array, start: Array, steps: int = STEPS) -> Array:
    """X in [0, 1] [people, items] with the least |member X - sums|, by accelerated projected gradients from `start`.
    Directions that the sums leave open stay near the start."""
    absolute = abs(member)
    size = float(absolute.sum(0).max() * absolute.sum(1).max()) or 1.0  # above the curvature: 1-norm x max-norm
    x = old = start.astype(np.float32)
    member, sums = member.astype(np.float32), sums.astype(np.float32)
    for step in range(steps):
        ahead = x + step / (step + 3) * (x - old)
        old, x = x, np.clip(ahead - member.T @ (member @ ahead - sums) / np.float32(size), 0, 1)
    return np.asarray(x, np.float64)


@dataclass(eq=False)
class RecordingServer:
    """A server that keeps every sum it sees: it answers in place of the devices, group by group."""

    run: ObservedRun
    targets: Targets
    merged: dict[int, MergedGuesses] = field(default_factory=dict)  # by person
    counts: list[tuple[str, People, Array]] = field(default_factory=list)  # message, people, counts in their sum
    sizes: list[int] = field(default_factory=list)

    def answer(self, call: Call, state: State) -> Outcome:
        """One round: attack every group's sum, and return the total."""
        total: Upload | None = None
        refused, answered = Counter[str](), 0
        shared = {name: value.numpy() for name, value in call.down.params.items()}
        knowledge = replace(self.targets.knowledge, shared=shared)
        for people in visible_groups(call):
            outcome = self.run.sum_of(call, people, state)
            refused += outcome.refused
            if outcome.upload is None:
                continue
            clean = outcome.upload.total
            noise, _ = group_noise(call, people, clean)
            noisy = {n: v + noise[n] if n in noise else v for n, v in clean.items()}
            upload = Upload(noisy, outcome.upload.weight)
            released = to_release_units(noisy, call.wire, call.context.round)
            self.observe(people, {name: value.numpy() for name, value in released.items()}, knowledge)
            total, answered = upload if total is None else total + upload, answered + outcome.answered
        return Outcome(total, refused, None, answered, noise=float(bool(call.noise_shares)))

    def observe(self, people: People, total: Tensors, knowledge: Knowledge) -> None:
        """Attack one sum of one round."""
        if not total:
            return
        guesses = guess_items(total, knowledge)
        self.sizes.append(len(people))
        read = [name for name in guesses if name.startswith(READ) and POPULARITY not in name]
        self.counts += [(name, people, guesses[name].scores) for name in read]
        places = {int(who): place for place, who in enumerate(self.targets.people)}
        for who in people.tolist():
            if who in places:
                length = len(self.targets.lists[places[who]])
                about = {name: guess.for_length(length) for name, guess in guesses.items()}
                self.merged.setdefault(who, MergedGuesses()).add(about)

    def lists_from_counts(self) -> dict[str, dict[int, Guess]]:
        """By message that holds counts: everybody's list, from all sums together."""
        from scipy import sparse  # takes a third of a second, which every process would spend

        out: dict[str, dict[int, Guess]] = {}
        for name in dict.fromkeys(name for name, _, _ in self.counts):
            rows = [(people, counts) for message, people, counts in self.counts if message == name]
            everybody = np.unique(np.concatenate([people for people, _ in rows]))
            at = [np.searchsorted(everybody, people) for people, _ in rows]
            ends = np.cumsum([0, *map(len, at)])
            member = sparse.csr_matrix((np.ones(ends[-1]), np.concatenate(at), ends), (len(rows), len(everybody)))
            sums = np.stack([counts for _, counts in rows])
            share = np.clip(sums.sum(0) / max(member.sum(), 1), 0, 1)
            lists = solve_in_box(member, sums, np.broadcast_to(share, (len(everybody), len(share))))
            by_person = {who: Guess(lists[place]) for place, who in enumerate(everybody.tolist())}
            out[f"{COUNTS} ({name.removeprefix(READ).strip()})"] = by_person
        return out


def attack_all_rounds(run: ObservedRun, step: Step, targets: Targets, watch: Watch | None = None) -> SumAttack:
    """Attack as a server that keeps the sums of all rounds; the figures are like those of an attack on one round."""
    server = RecordingServer(run, targets)
    if watch:
        watch.phase(f"all rounds, {step.label}", run.rounds, 0)
    for done in run.train(server.answer):
        if watch:
            watch.round(done.number, None)
    size = int(np.median(server.sizes)) if server.sizes and step.group == 1 else step.group
    attack = SumAttack(targets, step, size)
    from_counts = server.lists_from_counts()
    nothing = Guess(targets.knowledge.popularity)
    guesses = {who: server.merged[who].guesses() for who in targets.people.tolist() if who in server.merged}
    names = dict.fromkeys(name for about in guesses.values() for name in about)  # not everybody is in every kind of sum
    for who, about in guesses.items():
        solved = {name: lists.get(who, nothing) for name, lists in from_counts.items()}
        attack.record([who], solved | {name: about.get(name, nothing) for name in names})
    return attack


def measure_all_rounds(
    run: ObservedRun, people: int = 300, kind: str = "ranking", watch: Watch | None = None
) -> CrossRoundResult:
    """What a server learns about `people` that keeps the secure sums of all rounds of a run; `kind` is the task's."""
    chosen = shuffle(run.federation.members, run.seed)[:people]
    targets = make_targets(holdings_of(run.federation, kind, 0), chosen, run.federation.catalogue, {})
    figures = attack_all_rounds(run, Step("", run.wire, 1, run.method), targets, watch).figures()
    return CrossRoundResult(
        f1=figures.f1, worst_f1=figures.worst_f1, attack=figures.attack, attacks=figures.attacks,
        people=figures.people, in_sum=figures.in_sum, rounds=run.rounds,
        popularity_f1=measure_baselines(targets).popularity_f1,
    )  # fmt: skip
