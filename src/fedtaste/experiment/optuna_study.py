"""TrialQueue: the trials of a study in Optuna's journal file; which settings come next, and which trials are pruned.

The journal is a text file to which every step of every trial is appended and flushed to the disk, so that kill -9 loses
no finished trial. A line that was half written is removed when the journal is opened. A trial that was running then
counts as abandoned, and is run again with the same settings.

The sampler of a trial is seeded by the seed of the study and the number of the trial: in one process, a study that was
interrupted continues as if it had not been. With several processes, the order in which trials end changes the samples.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import optuna
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import FrozenTrial, TrialState

from fedtaste.errors import RunError
from fedtaste.experiment.tune_result import TuneTrial
from fedtaste.files.lock import lock_file
from fedtaste.methods.search_space import Choice, LogRange, Range, Space

JOURNAL, STUDY = "journal.jsonl", "tune"
RANDOM_TRIALS = 6  # the first trials, whose settings are drawn without a model of the earlier ones
UNPRUNED_TRIALS = 5  # trials that must be complete before one is pruned
LEAST_FOR_IMPORTANCES = 4
FINISHED = (TrialState.COMPLETE, TrialState.PRUNED)


class Pruned(Exception):
    """The trial is worse than most were at the same round."""


@dataclass
class JournalLock:
    """A lock of the operating system on the journal. Optuna's own is a link, which a killed process leaves behind, so
    that the next one waits for 30 seconds."""

    path: Path
    _held: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)

    def acquire(self) -> bool:
        self._held.enter_context(lock_file(self.path))
        return True

    def release(self) -> None:
        self._held.close()


@dataclass
class Trial:
    """One trial that is running: its settings, and whether it should go on."""

    number: int  # counted without abandoned trials
    rounds: int  # at most
    values: dict[str, object]  # of the searched settings; empty for the defaults
    _trial: optuna.Trial

    def report(self, round_number: int, score: float) -> None:
        """Enter the score of a round (larger is better); raises Pruned where the trial should end."""
        self._trial.report(score, round_number)
        if self.number and round_number < self.rounds and self._trial.should_prune():  # the defaults never are
            raise Pruned


class TrialQueue:
    """The trials of one study, shared by several processes."""

    def __init__(
        self, folder: Path, space: Mapping[str, Space], defaults: Mapping[str, object], *, seed: int, rounds: int
    ) -> None:
        self.space, self.defaults, self.seed, self.rounds = space, defaults, seed, rounds
        self._turn = folder / ".trials.lock"
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        journal, lock = folder / JOURNAL, folder / ".journal.lock"
        try:
            with lock_file(lock):
                remove_half_line(journal)
            storage = JournalStorage(JournalFileBackend(str(journal), lock_obj=JournalLock(lock)))  # type: ignore[arg-type]
            self._study = optuna.create_study(
                storage=storage, study_name=STUDY, direction="maximize", load_if_exists=True,
                pruner=optuna.pruners.MedianPruner(n_startup_trials=UNPRUNED_TRIALS, n_warmup_steps=rounds // 2),
            )  # fmt: skip
        except (OSError, ValueError, KeyError, AssertionError) as error:
            raise RunError(
                f"{journal} cannot be read ({error}): it was edited or damaged. Restore it from a copy, or tune again."
            ) from error

    def recover(self) -> None:
        """Queue the trials again that were running when their process ended, and, in a new study, the defaults. Only
        for the process that holds the study, before others work on it."""
        trials = self._study.get_trials(deepcopy=False)
        if not trials:
            inside = {name: value for name, value in self.defaults.items() if value in self.space[name]}
            self._study.enqueue_trial(inside, user_attrs={"defaults": True})
        for trial in trials:
            if trial.state == TrialState.RUNNING:
                if not any(_first(later) == _first(trial) for later in trials[trial.number + 1 :]):
                    kept = {"defaults": True} if trial.user_attrs.get("defaults") else {}
                    self._study.enqueue_trial(trial.params, user_attrs={"again": _first(trial), **kept})
                self._study.tell(trial.number, state=TrialState.FAIL)

    def next_trial(self, limit: int) -> Trial | None:
        """Begin the next trial; None where as many as `limit` have been begun."""
        with lock_file(self._turn):
            begun = sum(
                trial.state in (*FINISHED, TrialState.RUNNING) for trial in self._study.get_trials(deepcopy=False)
            )
            if begun >= limit:
                return None
            seed = int(np.random.SeedSequence([self.seed, begun]).generate_state(1)[0])
            self._study.sampler = optuna.samplers.TPESampler(seed=seed, n_startup_trials=RANDOM_TRIALS)
            trial = self._study.ask()
            return Trial(begun, self.rounds, self._suggest(trial), trial)

    def _suggest(self, trial: optuna.Trial) -> dict[str, object]:
        by_default = bool(trial.user_attrs.get("defaults"))
        values: dict[str, object] = {}
        for name, space in self.space.items():
            if by_default and self.defaults[name] not in space:
                continue  # the user's range does not hold the default
            values[name] = _sample(trial, name, space)
        return {} if by_default else values

    def finish(self, trial: Trial, record: TuneTrial, score: float | None) -> None:
        """Enter the result of a trial; without a score it counts as worse than every other."""
        trial._trial.set_user_attr("record", json.loads(record.model_dump_json()))
        state = TrialState.COMPLETE if record.state == "complete" else TrialState.PRUNED
        self._study.tell(trial._trial, score if record.state == "complete" else None, state=state)

    def finished(self) -> list[TuneTrial]:
        """The trials that have ended, in the order in which they were begun."""
        records = [trial.user_attrs["record"] for trial in self._ended()]
        return [TuneTrial(**record | {"number": number}) for number, record in enumerate(records)]

    def _ended(self) -> list[FrozenTrial]:
        return sorted((t for t in self._study.get_trials(deepcopy=False) if t.state in FINISHED), key=_first)

    def importances(self) -> dict[str, float]:
        """The share of the variation between complete trials that each setting explains, the largest first."""
        names = list(self.space)
        trials = [t for t in self._ended() if t.state == TrialState.COMPLETE and set(names) <= set(t.params)]
        values = {trial.value for trial in trials}
        if len(trials) < LEAST_FOR_IMPORTANCES or len(values) < 2:
            return {}
        evaluator = optuna.importance.FanovaImportanceEvaluator(seed=0)
        shares = optuna.importance.get_param_importances(self._study, evaluator=evaluator, params=names)
        return {name: round(float(share), 4) for name, share in shares.items()}


def _first(trial: FrozenTrial) -> int:
    """The number of a trial, or of the abandoned one that it is the repetition of."""
    return int(trial.user_attrs.get("again", trial.number))


def _sample(trial: optuna.Trial, name: str, space: Space) -> object:
    if isinstance(space, Choice):
        return trial.suggest_categorical(name, space.values)  # type: ignore[arg-type]
    log = isinstance(space, LogRange)
    if isinstance(space.low, int) and isinstance(space.high, int):  # the ends of a range of whole numbers are whole
        return trial.suggest_int(name, space.low, space.high, log=log)
    return rounded(trial.suggest_float(name, space.low, space.high, log=log), space)


def rounded(value: float, space: LogRange | Range) -> float:
    """A sampled number with three digits, inside its range: more would only look exact.

    >>> rounded(0.0123456, LogRange(0.001, 0.1)), rounded(0.00123456, LogRange(0.00123456, 0.1))
    (0.0123, 0.00123456)
    """
    return min(max(float(f"{value:.3g}"), space.low), space.high)


def remove_half_line(journal: Path) -> None:
    """Remove what a killed process left of a line: Optuna would append to it, and read nothing after it again."""
    if not journal.exists():
        return
    content = journal.read_bytes()
    if content and not content.endswith(b"\n"):
        with open(journal, "r+b") as file:
            file.truncate(content.rfind(b"\n") + 1)
