"""Tune the settings of a method: trials of the search phase of a run, pruned by round, chosen on validation data alone.

A trial trains on the training part and is measured on the validation data after every round, as the search phase of
`fedtaste run` is; its figure is that of its best round. The test data are not read. Trial 0 has the defaults, and they
are kept unless a trial is better by more than the standard error of the difference, paired by person: the best of many
trials is always a little better by chance. The study is a folder (kind "tune" of folder.py) beside whose settings.json
stand

    journal.jsonl    every trial (optuna_study.py)       result.json    the TuneResult that `--json` prints
    scores/          validation scores of every person in every complete trial
    run.toml         the best settings, for `fedtaste run --config`      report.html, plots/
"""

from __future__ import annotations

import json
import math
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from torch.linalg import LinAlgError  # type: ignore[attr-defined]

from fedtaste.data.sources import absolute_source
from fedtaste.errors import DivergedError, RunError, SettingError
from fedtaste.evaluation.paired import paired_differences
from fedtaste.evaluation.protocol import Evaluation
from fedtaste.experiment.folder import Data, RunFolder, fingerprint
from fedtaste.experiment.optuna_study import Pruned, Trial, TrialQueue
from fedtaste.experiment.plan import UNTIMED, plan, unread_settings
from fedtaste.experiment.privacy import adds_noise
from fedtaste.experiment.progress import Progress, ProgressListener
from fedtaste.experiment.scores import PersonScores, person_scores, person_sums, save_scores
from fedtaste.experiment.settings import Settings, with_method_settings
from fedtaste.experiment.train import Prepared, Training, prepare
from fedtaste.experiment.tune_result import StudyHeader, TuneCost, TuneResult, TuneTrial
from fedtaste.files.atomic import write_atomically
from fedtaste.files.lock import lock_folder
from fedtaste.methods import known_method
from fedtaste.methods.search_space import Choice, LogRange, Range, Space, largest_k, parse_space, resolve

NORMAL_95 = 1.96  # standard errors from the middle of a 95 % interval to its ends
NOISE = (
    "Settings cannot be tuned with noise: each trial would release a model, and trials are compared on people's data "
    "without noise, which no epsilon covers. Tune on public data of the same kind without noise, and run with --config "
    "STUDY/run.toml and --epsilon on your own."
)
OPTIMISTIC = (
    "The validation figure of the best of many trials is too good: it was chosen for being the best. The test data "
    "were not read."
)


class OutOfTimeError(Exception):
    """The time of the study is over; the trial that was running is run again when the study is continued."""

    def __init__(self, share: float) -> None:
        super().__init__()
        self.share = share  # of the rounds of the trial that were trained


@dataclass(frozen=True, eq=False)
class TunePlan:
    """A study that is ready to run: the settings that are searched, with their spaces and their defaults."""

    base: Prepared  # with the defaults
    data: Data
    space: dict[str, Space]
    defaults: dict[str, object]

    def settings(self, values: Mapping[str, object]) -> Settings:
        """The settings of a trial, without values that would change nothing beside the others."""
        settings = with_method_settings(self.base.settings, values)
        unread = unread_settings(settings, self.base.task.facts).keys() & values.keys()
        return with_method_settings(self.base.settings, {n: v for n, v in values.items() if n not in unread})

    def queue(self, folder: RunFolder) -> TrialQueue:
        """The trials of this study in its folder."""
        rounds = self.base.plan.rounds
        return TrialQueue(folder.path, self.space, self.defaults, seed=self.base.settings.seed, rounds=rounds)

    @property
    def sign(self) -> int:
        """1 where a larger validation metric is better, or -1."""
        return self.base.task.selection[1]

    def words(self) -> dict[str, str]:
        """The spaces as text."""
        return {name: str(space) for name, space in self.space.items()}


def prepare_tuning(settings: Settings, data: Data, spaces: Mapping[str, str]) -> TunePlan:
    """Find the settings to search, and raise SettingError for every mistake that can be detected before training.
    `spaces` are those of the user (parse_space), in place of the method's own."""
    if settings.protocol == "published":
        raise SettingError(
            "--protocol published chooses the round on the test data, so nothing can be tuned honestly. Leave it out."
        )
    if adds_noise(settings):
        raise SettingError(NOISE)
    base = prepare(settings, data, strict=True)
    if not base.task.validates:
        raise SettingError(f"{data.name} has no validation data, so nothing could choose between settings.")
    space = _method_spaces(base) | _own_spaces(base, spaces)
    if not space:
        raise SettingError(
            f"{settings.method} has nothing to tune on these data: it names no values to try. Name some, as in --space "
            "lam=0.001..0.1, or choose another method."
        )
    names = sorted(space)
    return TunePlan(
        base, data, {name: space[name] for name in names}, {name: base.plan.settings.get(name) for name in names}
    )


def _method_spaces(base: Prepared) -> dict[str, Space]:
    """The spaces that the method names, of settings that are read here and that the user did not fix."""
    facts, values = base.task.facts, base.plan.settings
    unread = unread_settings(base.settings, facts)
    spaces = {}
    for name, space in known_method(base.settings.method).search.items():
        if name in values and name not in unread and name not in base.settings.set:
            most = largest_k(facts.items) if name == "k" else math.inf
            if (resolved := resolve(space, values[name], most)) is not None:
                spaces[name] = resolved
    return spaces


def _own_spaces(base: Prepared, spaces: Mapping[str, str]) -> dict[str, Space]:
    """The spaces that the user gave. Their ends and values must be possible ones."""
    settings, facts = base.settings, base.task.facts

    def checked(name: str, value: object) -> object:
        return plan(with_method_settings(settings, {name: value}), facts).settings[name]

    found: dict[str, Space] = {}
    for name, text in spaces.items():
        if name in settings.set:
            raise SettingError(f"--set {name} fixes what --space {name} would search. Leave one of them out.")
        space = parse_space(name, text)
        values = [checked(name, v) for v in (space.values if isinstance(space, Choice) else (space.low, space.high))]
        if name in UNTIMED and not facts.timed:
            raise SettingError(f"{name} would change nothing here: the data have no time. Leave it out.")
        if isinstance(space, Choice):
            found[name] = Choice(tuple(values))
            continue
        if not all(isinstance(value, int | float) for value in values):
            raise SettingError(f"{name} has no numbers to choose a range of. List its values, as in {name}=a,b.")
        low, high = (value for value in values if isinstance(value, int | float))
        found[name] = LogRange(low, high) if isinstance(space, LogRange) else Range(low, high)
    return found


@dataclass
class Clock:
    """The time that a study may take."""

    minutes: float | None
    began: float

    @property
    def over(self) -> bool:
        """Whether the time is over."""
        return self.minutes is not None and time.monotonic() - self.began > 60 * self.minutes

    def too_short(self, share: float | None = None) -> SettingError:
        """The error where not even one trial was completed; `share` of its rounds were trained."""
        needed = "more" if share is None else f"at least {(time.monotonic() - self.began) / 60 / share + 0.1:.1f}"
        return SettingError(f"--minutes {self.minutes:g} is too short for one trial. Give {needed}, or fewer --rounds.")


class TrialListener:
    """The ProgressListener of one trial: enters the score of every round, and ends the trial where that is due."""

    def __init__(self, plan: TunePlan, trial: Trial, clock: Clock) -> None:
        self.name, self.sign = plan.base.task.selection
        self.prunes = plan.base.plan.searches  # else rounds release parts of one model and cannot be compared
        self.trial, self.clock, self.rounds = trial, clock, 0
        self.training: Training | None = None
        self.best: tuple[float, Evaluation | None] = (-math.inf, None)  # the score of the best round, and its people's

    def phase(self, name: str, rounds: int, done: int) -> None:
        """Remember how many rounds there are."""
        self.rounds = rounds

    def round(self, number: int, metrics: dict[str, float] | None) -> None:
        """Enter the round; raises Pruned, OutOfTimeError, or DivergedError for a figure that is no number."""
        if metrics and not math.isfinite(metrics[self.name]):
            raise DivergedError(f"{self.name} is {metrics[self.name]} after round {number}.")
        if metrics:
            score = self.sign * metrics[self.name]
            if self.training and (score > self.best[0] or not self.prunes):
                self.best = score, self.training.validation
            if self.prunes:
                self.trial.report(number, score)
        if self.clock.over and number < self.rounds:
            raise OutOfTimeError(number / self.rounds)


class Tuner:
    """Runs trials of a study in this process."""

    def __init__(self, plan: TunePlan, folder: RunFolder, clock: Clock) -> None:
        self.plan, self.folder, self.clock = plan, folder, clock
        self.queue = plan.queue(folder)

    def run(self, trials: int, after_trial: Callable[[], None] = lambda: None) -> str:
        """Run trials until there are as many, or the time is over; returns why no more were run."""
        while not (self.clock.over and self.queue.finished()):
            trial = self.queue.next_trial(trials)
            if trial is None:
                return f"all {trials:,} trials were run"
            try:
                record = self._repeated(trial) or self._train(trial)
            except OutOfTimeError as stop:
                if not self.queue.finished():
                    raise self.clock.too_short(stop.share) from None
                break
            score = None if record.valid is None else self.plan.sign * record.valid
            self.queue.finish(trial, record, score)
            after_trial()
        return f"the {self.clock.minutes:g} minutes were over"

    def _repeated(self, trial: Trial) -> TuneTrial | None:
        """The figures of an earlier trial with the same settings, at no cost."""
        wanted = self.plan.defaults | trial.values
        for earlier in self.queue.finished():
            if earlier.state == "complete" and self.plan.defaults | earlier.settings == wanted:
                free = {"rounds": 0, "up_bytes": 0, "down_bytes": 0, "seconds": 0.0}
                return earlier.model_copy(update=free | {"number": trial.number, "settings": trial.values})
        return None

    def _train(self, trial: Trial) -> TuneTrial:
        """Train one trial; a trial that diverges, or whose settings are refused together, fails."""
        listener = TrialListener(self.plan, trial, self.clock)
        state, reason, training = "complete", "", None
        with tempfile.TemporaryDirectory(prefix=".trial-", dir=self.folder.path) as path:
            try:
                prepared = prepare(self.plan.settings(trial.values), self.plan.data, task=self.plan.base.task)
                training = listener.training = Training(prepared, RunFolder(Path(path)), listener, None)
                training.search()
                self._save_scores(trial, listener.best[1])
            except Pruned:
                state = "pruned"
            except (DivergedError, SettingError, LinAlgError) as error:
                state, reason = "failed", str(error)
        progress = training.progress if training else Progress()
        return self._record(trial, progress, state, reason)

    def _save_scores(self, trial: Trial, evaluation: Evaluation | None) -> None:
        """Keep what every person scored in the best round."""
        if evaluation is not None:
            path = scores_of(self.folder, trial.number)
            path.mkdir(parents=True, exist_ok=True)
            people = np.arange(len(next(iter(person_scores(evaluation).values()))))
            save_scores(path, {"seen": (people, evaluation)})

    def _record(self, trial: Trial, progress: Progress, state: str, reason: str) -> TuneTrial:
        name, sign = self.plan.base.task.selection
        points = [point for point in progress.curve if point["valid"]]
        if not self.plan.base.plan.searches:
            points = points[-1:]
        best = max(points, key=lambda point: sign * point["valid"][name], default=None)  # the first of equal ones
        if state == "failed":
            best = None
        last = progress.curve[-1] if progress.curve else {"round": 0, "up_bytes": 0, "down_bytes": 0}
        return TuneTrial(
            number=trial.number, settings=trial.values, state=state,  # type: ignore[arg-type]
            valid=best["valid"][name] if best else None, best_round=best["round"] if best else 0,
            rounds=last["round"], up_bytes=last["up_bytes"], down_bytes=last["down_bytes"],
            seconds=round(progress.train_cpu, 3), reason=reason,
        )  # fmt: skip


Workers = Callable[[RunFolder, Callable[[], None], Clock], None]
"""Runs the trials of a study in other processes; calls the second argument now and then."""


def tune(plan: TunePlan, folder: RunFolder, listener: ProgressListener, workers: Workers | None = None) -> TuneResult:
    """Run, or continue, the study of this folder; writes result.json and run.toml, and returns the result."""
    header = folder.study()
    trials = header.trials
    with lock_folder(folder.path):
        for left_over in folder.path.glob(".trial-*"):  # by a process that was killed
            shutil.rmtree(left_over, ignore_errors=True)
        folder.require_same_plan(plan.base.plan.settings, plan.base.task.facts)
        tuner = Tuner(plan, folder, Clock(header.minutes, time.monotonic()))
        tuner.queue.recover()
        name = plan.base.task.selection[0]
        listener.phase(f"trials of {plan.base.settings.method}", trials, len(tuner.queue.finished()))

        def show() -> None:
            finished = tuner.queue.finished()
            best = best_trial(finished, plan.sign)
            listener.round(len(finished), {f"best {name}": best.valid} if best and best.valid is not None else None)

        show()
        if workers is not None:
            workers(folder, show, tuner.clock)
            if tuner.clock.over and not tuner.queue.finished():
                raise tuner.clock.too_short()
        stopped = tuner.run(trials, show)
        result = conclude(plan, tuner.queue, folder, stopped)
        if result.final is not None:
            final = final_folder(Path(result.final), best_settings(plan, result))
            result = result.model_copy(update={"final": str(final)})
        folder.write("result.json", result.dump())
        config = run_toml(best_settings(plan, result), result)
        write_atomically(folder.path / "run.toml", config.encode("utf-8", "replace"))
        return result


def best_trial(trials: list[TuneTrial], sign: int) -> TuneTrial | None:
    """The complete trial with the best validation metric, the first of equal ones."""
    complete = [trial for trial in trials if trial.state == "complete" and trial.valid is not None]
    return max(complete, key=lambda trial: sign * (trial.valid or 0.0), default=None)


def trial_of_defaults(trials: list[TuneTrial]) -> TuneTrial | None:
    """The trial with the defaults, where it is complete."""
    return next((trial for trial in trials if trial.number == 0 and trial.state == "complete"), None)


def scores_of(folder: RunFolder, number: int) -> Path:
    """Where the validation scores of a trial are kept."""
    return folder.path / "scores" / str(number)


def gain_over_defaults(folder: RunFolder, number: int, metric: str) -> tuple[float, float] | None:
    """(the metric of a trial minus that of the defaults, the standard error of this difference, paired by person); None
    where the scores of one of them are not stored."""
    scores = [PersonScores.read(scores_of(folder, each)) for each in (number, 0)]
    if scores[0] is None or scores[1] is None:
        return None
    keys = [key for key in (f"seen.sampled.{metric}", f"seen.{metric}") if key in scores[0].columns]
    parts = [person_sums([each], [""], keys[0]) for each in scores if each is not None and keys]
    if len(parts) < 2 or parts[0] is None or parts[1] is None:
        return None
    (difference,) = paired_differences([parts[0], parts[1]])
    low, high = difference.interval
    return difference.mean, (high - low) / (2 * NORMAL_95)


def choose(plan: TunePlan, folder: RunFolder, trials: list[TuneTrial]) -> tuple[TuneTrial | None, tuple[str, ...]]:
    """(the trial whose settings are taken, notes): the best one, or the defaults where it is hardly better."""
    best, name = best_trial(trials, plan.sign), plan.base.task.selection[0]
    defaults = trial_of_defaults(trials)
    if best is None or best is defaults or defaults is None:
        return best, ()
    gain = gain_over_defaults(folder, best.number, name)
    if gain is None or plan.sign * gain[0] > gain[1]:
        return best, ()
    note = (
        f"The best trial, {best.number}, is {abs(gain[0]):.4f} better than the defaults in {name} on validation data, "
        f"within the standard error of this difference ({gain[1]:.4f}): the defaults are kept."
    )
    return defaults, (note,)


def conclude(plan: TunePlan, queue: TrialQueue, folder: RunFolder, stopped: str) -> TuneResult:
    """The result of the trials that have ended."""
    trials, base, header = queue.finished(), plan.base, folder.study()
    best, kept = choose(plan, folder, trials)
    if best is None or best.valid is None:
        reasons = "; ".join(dict.fromkeys(trial.reason for trial in trials if trial.reason)) or stopped
        raise RunError(f"No trial was completed ({reasons}). Search other values, or give more time.")
    cost = TuneCost(
        trials=len(trials), rounds=sum(t.rounds for t in trials), up_bytes=sum(t.up_bytes for t in trials),
        down_bytes=sum(t.down_bytes for t in trials), seconds=round(sum(t.seconds for t in trials), 3),
    )  # fmt: skip
    defaults = trial_of_defaults(trials)
    config = folder.path / "run.toml"
    return TuneResult(
        data=base.settings.data_name, task=base.task.facts.kind, method=base.settings.method, seed=base.settings.seed,
        metric=base.task.selection[0], better="higher" if plan.sign > 0 else "lower",
        space=plan.words(), requested=header.trials, stopped=stopped,
        trials=tuple(trials), best=best.number, defaults=plan.defaults, settings=plan.defaults | best.settings,
        valid=best.valid, valid_of_defaults=defaults.valid if defaults else None, importances=queue.importances(),
        cost=cost, notes=(*kept, OPTIMISTIC, *base.plan.notes), study=str(folder.path),
        config=str(config), tuned_on=fingerprint(plan.data), **({"final": header.final} if header.final else {}),
    )  # fmt: skip


def best_settings(plan: TunePlan, result: TuneResult) -> Settings:
    """The settings of a run with the best values; the defaults stay defaults where nothing was better."""
    settings = plan.settings(result.best_trial.settings)
    return settings.model_copy(update={"tuned_on": result.tuned_on})


def final_folder(path: Path, settings: Settings) -> Path:
    """The folder of the final run: `path`, or the first of path-2, path-3 and so on that is free, where an earlier one
    was begun with other settings than these."""
    wanted, number, folder = settings.model_dump(exclude={"data"}), 1, path
    while (folder / "settings.json").exists():
        if RunFolder.open(folder).settings().model_dump(exclude={"data"}) == wanted:
            break
        number += 1
        folder = path.with_name(f"{path.name}-{number}")
    return folder


def run_toml(settings: Settings, result: TuneResult) -> str:
    """The settings as a file for --config."""
    defaults = "" if result.valid_of_defaults is None else f"; the defaults have {result.valid_of_defaults:.4f}"
    lines = [
        f"# Written by fedtaste tune: the best of {result.cost.trials} trials by {result.metric} on validation data, "
        f"{result.valid:.4f}{defaults}.",
        "# Use: fedtaste run --config run.toml, or fedtaste fit --config run.toml",
    ]
    values = settings.model_dump(exclude_defaults=True, exclude={"set"})
    values |= {"data": absolute_source(settings.data), "method": settings.method}
    lines += [f"{name} = {_toml(value)}" for name, value in values.items() if not isinstance(value, dict)]
    tables = {name: value for name, value in values.items() if isinstance(value, dict)} | {"set": settings.set}
    for table, content in tables.items():
        if content:
            lines += ["", f"[{table}]", *(f"{_toml(str(key))} = {_toml(value)}" for key, value in content.items())]
    return "\n".join(lines) + "\n"


def _toml(value: object) -> str:
    """A plain value of TOML; its strings are those of JSON, except for the character 127."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def require_same_study(folder: RunFolder, plan: TunePlan) -> None:
    """Refuse to continue a study with other settings or values to try than it was begun with."""
    then = folder.settings().model_dump() | {"space": folder.study().space}
    now = plan.base.settings.model_dump() | {"space": plan.words()}
    now |= {"data": absolute_source(plan.base.settings.data)}
    changed = [name for name in now if now[name] != then.get(name)]
    if changed:
        raise RunError(
            f"{folder.path} is a study with other values of {', '.join(changed)}. Continue it with "
            f"`{folder.command('resume')}`, or choose another --out."
        )


def begin_study(path: Path, plan: TunePlan, header: StudyHeader, version: str) -> RunFolder:
    """Begin a study in a new folder, or continue one that has the same data, settings and values to try; its trials and
    minutes may differ."""
    if not (path / "settings.json").exists() or RunFolder.open(path).kind != "tune":
        settings = plan.base.settings.model_dump()
        return RunFolder.create(path, settings, plan.data, version, "tune", {"study": header.dump()})
    folder = RunFolder(path)
    folder.require_same_data(plan.data)
    folder.require_same_version(version)
    require_same_study(folder, plan)
    folder.write("settings.json", folder.read("settings.json") | {"study": header.dump()})
    return folder
