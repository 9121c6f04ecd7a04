"""Attacks of a server that keeps the secure sums of several rounds.

    counts over rounds   Where a message holds counts that do not change from round to round, every sum is a linear
                         equation in people's 0/1 lists: box-constrained least squares over all groups of all rounds.
                         Groups that are dealt anew determine the lists after a few rounds; with fixed groups, or with
                         the whole cohort in one sum, whoever is missing in a later round is the difference of two sums.
    lists of sums        FedALS: the lists of a group's people, separated in each round (evaluation/separation.py)
    all others           the attacks of evaluation/attacks.py on every round's sum, their scores averaged over rounds
The attack that is reported was chosen on the other half of the people, as for one round.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from ..core import Method, Model, Stage, Upload
from ..engine.backends import Call, Outcome
from ..engine.run import State
from ..federation import Federation
from .attacks import POPULARITY, Guess, Known, Merged, attacks
from .audit import Step, Watch, World, order, pairs, seat_of, world
from .findings import Attack, baselines
from .observed import group_noise, groups_of, in_units, noise_seed_of, rounds_of, summed

Array = NDArray[np.float64]
People = NDArray[np.int64]
READ, COUNTS = "read ", "counts over rounds"
STEPS = 400  # of the projected gradient


def boxed(member: sparse.csr_matrix, sums: Array, start: Array, steps: int = STEPS) -> Array:
    """X in [0, 1] [people, items] with the least |member X - sums|, by accelerated projected gradients from `start`.
    What the sums leave open stays near the start."""
    size = float(sparse.linalg.norm(member, 1) * sparse.linalg.norm(member, np.inf)) or 1.0  # above the curvature
    x = old = start.astype(np.float32)
    member, sums = member.astype(np.float32), sums.astype(np.float32)
    for step in range(steps):
        ahead = x + step / (step + 3) * (x - old)
        old, x = x, np.clip(ahead - member.T @ (member @ ahead - sums) / np.float32(size), 0, 1)
    return np.asarray(x, np.float64)


@dataclass(eq=False)
class Server:
    """A server that keeps what it sees: answers in place of the devices, group by group."""

    method: Method
    federation: Federation
    world: World
    merged: dict[int, Merged] = field(default_factory=dict)  # by person
    sums: list[tuple[str, People, Array]] = field(default_factory=list)  # counts that were read, and of whom
    sizes: list[int] = field(default_factory=list)

    def answer(self, call: Call, state: State) -> Outcome:
        total: Upload | None = None
        refused: Counter[str] = Counter()
        answered = 0
        shared = {name: value.numpy() for name, value in call.down.params.items()}
        known = replace(self.world.known, shared=shared)
        for people in groups_of(call):
            outcome = summed(self.method, self.federation, call, people, state)
            refused += outcome.refused
            if outcome.upload is None:
                continue
            noise, _ = group_noise(call, people, outcome.upload.total)
            upload = Upload({n: v + noise[n] if n in noise else v for n, v in outcome.upload.total.items()},
                            outcome.upload.weight)  # fmt: skip
            seen = in_units(upload.total, call.wire, call.seat.round)
            self.see(people, {name: value.numpy() for name, value in seen.items()}, known)
            total, answered = upload if total is None else total + upload, answered + outcome.answered
        return Outcome(total, refused, None, answered, noise=float(bool(call.parts)))

    def see(self, people: People, total: dict[str, Any], known: Known) -> None:
        """One sum of one round."""
        if not total:
            return
        guesses = attacks(total, known)
        self.sizes.append(len(people))
        self.sums += [(name, people, guess.scores) for name, guess in guesses.items()
                      if name.startswith(READ) and POPULARITY not in name]  # fmt: skip
        places = {int(who): place for place, who in enumerate(self.world.people)}
        for who in people.tolist():
            if who in places:
                length = len(self.world.lists[places[who]])
                mine = {name: guess.about(length) for name, guess in guesses.items()}
                self.merged.setdefault(who, Merged()).add(mine)

    def over_rounds(self) -> dict[str, dict[int, Guess]]:
        """By message that holds counts: everybody's list from all sums together."""
        out: dict[str, dict[int, Guess]] = {}
        for name in dict.fromkeys(name for name, _, _ in self.sums):
            rows = [(people, counts) for what, people, counts in self.sums if what == name]
            everybody = np.unique(np.concatenate([people for people, _ in rows]))
            at = [np.searchsorted(everybody, people) for people, _ in rows]
            ends = np.cumsum([0, *map(len, at)])
            member = sparse.csr_matrix((np.ones(ends[-1]), np.concatenate(at), ends), (len(rows), len(everybody)))
            sums = np.stack([counts for _, counts in rows])
            share = np.clip(sums.sum(0) / max(member.sum(), 1), 0, 1)
            lists = boxed(member, sums, np.broadcast_to(share, (len(everybody), len(share))))
            out[f"{COUNTS} ({name.removeprefix(READ)})"] = {
                who: Guess(lists[place]) for place, who in enumerate(everybody.tolist())
            }
        return out


def many_rounds(
    step: Step, model: Model, federation: Federation, about: World, rounds: int, *, seed: int, noise_seed: int,
    cohort: int | float | None = None, dropout: float = 0.0, watch: Watch | None = None,
) -> Attack:  # fmt: skip
    """What a server that keeps all sums of these rounds finds out, as an Attack like that on one round."""
    assert step.method is not None
    server = Server(step.method, federation, about)
    if watch:
        watch.phase(f"all rounds, {step.label}", rounds, 0)
    for done in rounds_of(
        step.method, model, federation, step.wire, rounds, server.answer, seed=seed, noise_seed=noise_seed,
        cohort=cohort, dropout=dropout,
    ):  # fmt: skip
        if watch:
            watch.round(done.number, None)
    size = int(np.median(server.sizes)) if server.sizes and step.group == 1 else step.group
    attack = Attack(about, step, size, seat_of(noise_seed, "noise", 0, size))
    together = server.over_rounds()
    nothing = Guess(about.known.popularity)
    for who in about.people.tolist():
        if who in server.merged:
            all_sums = {name: lists.get(who, nothing) for name, lists in together.items()}
            attack.record([who], all_sums | server.merged[who].guesses())
    return attack


def many_round_f1(
    method: Method, model: Model, federation: Federation, wire: Stage, rounds: int, people: int = 300, seed: int = 0, *,
    noise_seed: int | None = None, cohort: int | float | None = None, dropout: float = 0.0, kind: str = "ranking",
    watch: Watch | None = None,
) -> dict[str, Any]:  # fmt: skip
    """What a server learns that keeps the secure sums of all rounds: {"f1": mean over `people`, "worst_f1": of the
    person about whom most is learnt, "popularity_f1": without any sum, "attack", "attacks", "rounds", "people",
    "in_sum"}."""
    chosen = order(federation.members, seed)[:people]
    about = world(pairs(federation, kind, 0), chosen, federation.catalogue, {})
    step = Step("", wire, 1, method)
    attack = many_rounds(
        step, model, federation, about, rounds, seed=seed, noise_seed=noise_seed_of(seed, noise_seed), cohort=cohort,
        dropout=dropout, watch=watch,
    )  # fmt: skip
    row = attack.row(step)
    names = ("f1", "worst_f1", "attack", "attacks", "people", "in_sum")
    return {name: row[name] for name in names} | {
        "rounds": rounds, "popularity_f1": baselines(about)["popularity_f1"],
    }  # fmt: skip
