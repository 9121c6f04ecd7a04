"""Prepare and execute one experiment: search the best round, train again, evaluate once; with checkpoints.

    search   trains on the training part; validation after every round chooses the best number of rounds
    final    trains on training and validation data together for that many rounds; then the test data are read, once
    fold-i   (`--new-people folds`) the same without a tenth of the people, who are then evaluated as newcomers

Every phase is checkpointed; `execute` on a folder with a checkpoint resumes there and ends with the same bytes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace

import numpy as np
import torch

from fedtaste.core import People
from fedtaste.data import splits
from fedtaste.data.supervised import Supervised
from fedtaste.data.user_files import UserSplit
from fedtaste.engine.backends import choose_backend
from fedtaste.engine.run import Convergence, Round, State, begin, run
from fedtaste.errors import DivergedError, RunError, SettingError
from fedtaste.evaluation.protocol import Evaluation
from fedtaste.experiment.evaluate import Trained
from fedtaste.experiment.folder import Data, RunFolder, fingerprint
from fedtaste.experiment.plan import Plan, plan
from fedtaste.experiment.privacy import adds_noise, phase_key, privacy_statement, require_cohort
from fedtaste.experiment.progress import Progress, ProgressListener, RemoteClients, Silent
from fedtaste.experiment.resources import set_threads
from fedtaste.experiment.result import RunResult
from fedtaste.experiment.settings import Settings
from fedtaste.federation import Federation, cohort_size
from fedtaste.files.lock import lock_folder
from fedtaste.tasks.base import Served, Task
from fedtaste.tasks.clients import Clients
from fedtaste.tasks.new_items import NewItems, hold_out_items, require_item_vectors
from fedtaste.tasks.ranking import ranking_task
from fedtaste.tasks.ratings import Ratings, split_for_ratings
from fedtaste.tasks.serve import passes
from fedtaste.wire.packing import pack
from fedtaste.wire.validation import REASONS

FOLDS = 10  # of --new-people folds
DIVERGENCE = {"non-finite", "too large"}  # reasons to refuse an upload that a learning rate explains


def make_task(settings: Settings, data: Data) -> Task:
    """The task of these settings and data; SettingError for a task or an option that the data do not allow."""
    possible = [data.task] if isinstance(data, Supervised) else ["ranking", "ratings"]
    kind = settings.task or possible[0]
    if kind not in possible:
        raise SettingError(
            f"--task {kind} is not possible for {data.name}, only {' or '.join(possible)}. Leave it out."
        )
    unread: dict[str, object] = {} if kind == "ranking" else {"protocol": "clean", "split": "leave-one-out"}
    unread |= {} if kind == "ranking" else {"new_items": 0.0}
    if isinstance(data, Supervised):
        unread["new_people"] = None
    for name, default in unread.items():
        if getattr(settings, name) != default:
            option = f"--{name.replace('_', '-')} {getattr(settings, name)}"
            raise SettingError(f"{option} would change nothing for {kind}. Leave it out.")
    if isinstance(data, Supervised):
        return Clients(data, seed=settings.seed)
    if kind == "ratings":
        return Ratings(split_for_ratings(data, settings.seed), new_people=settings.new_share, seed=settings.seed)
    new_items: NewItems | None = None
    if settings.new_items:
        if isinstance(data, UserSplit):
            raise SettingError(f"--new-items is not possible for {data.name}: the split is the user's. Leave it out.")
        data, new_items = hold_out_items(data, settings.new_items, settings.new_item_ridge, settings.seed)
    task = ranking_task(
        data, protocol_name=settings.protocol, split_name=settings.split, new_people=settings.new_share,
        seed=settings.seed,
    )  # fmt: skip
    task.new_items = new_items
    return task


@dataclass(frozen=True, eq=False)
class Prepared:
    """One experiment that is ready to run: its settings, with the data, the task and the plan that follow from them."""

    settings: Settings
    data: Data | None  # None where clients are remote and hold their data themselves
    task: Task
    plan: Plan
    seconds: float  # that preparing took
    start: Callable[[State], State] = lambda fresh: fresh  # the state to begin with, made from a fresh one


def prepare(
    settings: Settings, data: Data, *, task: Task | None = None, strict: bool = False, began: float | None = None
) -> Prepared:
    """Make the task and the plan, and raise SettingError for every mistake that can be detected before training.

    Pass `task` where several runs share it (a comparison). `strict` also refuses options that this run would not read;
    in a comparison some methods may read them. `began` (time.perf_counter) is when loading the data began, where the
    setup time of the result should include it.
    """
    began = time.perf_counter() if began is None else began
    refuse_tuned_noise(settings, data)
    task = task or make_task(settings, data)
    run_plan = checked_plan(settings, task)
    _require_sequences(settings, task, run_plan)
    set_threads(settings.threads)
    choose_backend(settings.backend, run_plan.method, run_plan.wire.stage)
    if settings.new_items:
        require_item_vectors(run_plan.method.init(run_plan.model.init(torch.Generator()))[0], settings.method)
    if not len(task.seen):
        raise SettingError(f"--new-people {settings.new_people} leaves nobody to learn from. Give a smaller share.")
    if settings.cohort is not None:  # it must fit the phase with the fewest people
        fold = splits.folds(task.people, FOLDS, settings.seed)
        left_out = [np.flatnonzero(fold == number) for number in range(FOLDS)] if settings.folds else []
        parts = [task.federation("search", run_plan.method, run_plan.sampling, who) for who in [None, *left_out]]
        cohort_size(settings.cohort, min(len(part.members) for part in parts))
    if strict:
        _refuse_idle_options(settings, run_plan)
    return Prepared(settings, data, task, run_plan, time.perf_counter() - began)


def _require_sequences(settings: Settings, task: Task, run_plan: Plan) -> None:
    """Raise SettingError where a method learns from the order of histories and nobody has two items to learn from."""
    if not run_plan.method.ordered:
        return
    federation = task.federation("search", run_plan.method, run_plan.sampling, None)
    lengths = federation.examples(federation.members, 0, "history").lengths
    if not len(lengths) or lengths.max() < 2:
        raise SettingError(
            f"{settings.method} predicts the next item of a history, and nobody has two items to learn from. Use "
            "--method popularity, or bring longer histories."
        )


def refuse_tuned_noise(settings: Settings, data: Data) -> None:
    """Refuse a run with noise whose settings were tuned without noise on the same people: no epsilon covers that."""
    if settings.tuned_on and adds_noise(settings) and settings.tuned_on == fingerprint(data):
        raise SettingError(
            "These settings were chosen on the same people's data without noise (tuned_on), which the epsilon of this "
            "run would not cover. Tune on public data of the same kind, and run with the settings found there."
        )


def prepare_remote(settings: Settings, task: Task) -> Prepared:
    """Prepare an experiment whose clients are remote (flower/server.py) and hold the data; `task` reaches them."""
    began = time.perf_counter()
    return Prepared(settings, None, task, checked_plan(settings, task, elsewhere=True), time.perf_counter() - began)


def checked_plan(settings: Settings, task: Task, elsewhere: bool = False) -> Plan:
    """The plan, with a cohort that its privacy allows."""
    run_plan = plan(settings, task.facts, elsewhere)
    if run_plan.method.ordered and not task.facts.timed:
        raise SettingError(
            f"{settings.method} learns from the order in which people took things, and these data have no time: there "
            "is nothing to gain. Use --method fedals, or bring a column of times."
        )
    require_cohort(run_plan.wire.mechanism, max(task.facts.people, 1), run_plan.rounds, run_plan.delta)
    return run_plan


def _refuse_idle_options(settings: Settings, run_plan: Plan) -> None:
    """Raise SettingError for --store and --download where this method has nothing that they apply to."""
    if settings.store == "memory" and settings.download == "dense":
        return
    shared, private = run_plan.method.init(run_plan.model.init(torch.Generator()))
    if settings.store != "memory" and not set(private) & set(run_plan.method.rows):
        raise SettingError(f"--store disk would change nothing: {settings.method} keeps no own rows. Leave it out.")
    if settings.download != "dense" and not any(v.ndim == 2 and v.dtype == torch.float32 for v in shared.values()):
        raise SettingError(
            f"--download {settings.download} would change nothing: {settings.method} downloads no table. Leave it out."
        )


def execute(
    prepared: Prepared,
    folder: RunFolder,
    listener: ProgressListener | None = None,
    *,
    remote: RemoteClients | None = None,
) -> RunResult:
    """Run, or resume, the experiment of this folder; returns the result that `--json` prints. `remote` runs clients
    that are not in this process."""
    with lock_folder(folder.path):
        set_threads(prepared.settings.threads)
        folder.require_same_plan(prepared.plan.settings, prepared.task.facts)
        training = Training(prepared, folder, listener or Silent(), remote)
        return Trained(training, training.served(training.run())).write_result()


class Training:
    """The phases of an experiment: search, final and folds, each resumed from the last checkpoint of the folder."""

    def __init__(
        self, prepared: Prepared, folder: RunFolder, listener: ProgressListener, remote: RemoteClients | None
    ) -> None:
        self.settings, self.task, self.plan = prepared.settings, prepared.task, prepared.plan
        self.setup_seconds, self._start = prepared.seconds, prepared.start
        self.folder, self.listener, self.remote = folder, listener, remote
        self.searches = self.task.validates and self.plan.searches
        self.validation: Evaluation | None = None  # of the last round that was validated
        self._resumed, progress = folder.restore(lambda: self.begin(self.federation("final")))
        self.progress = progress or Progress(phase="search" if self.searches else "final")
        if remote:
            remote.recall(self.progress.fleet)

    def run(self) -> State:
        """Train the phases that are left; returns the state after the final phase."""
        final: State | None = None
        if self.progress.phase == "search":
            Phase(self, self._pop_resumed()).run()
            self.enter("final", forget_versions=True)
        if self.progress.phase == "final":
            final = Phase(self, self._pop_resumed()).run()
            self.folder.save_final(final)
            self.enter("fold-0")
        if self.settings.folds:
            final = None  # ten more trainings follow, and two states may not fit into memory
            self._train_folds()
        return final or self.folder.final(self.begin(self.federation("final")))

    def search(self) -> Progress:
        """Train the search phase alone, and return its progress; for `fedtaste tune`. Nothing is trained on validation
        data, and the test data are not read. Methods whose rounds are fixed are validated, too."""
        self.searches, self.progress.phase = True, "search"
        Phase(self, None).run()
        return self.progress

    def _train_folds(self) -> None:
        """Train ten times without a tenth of the people, who are then evaluated as newcomers."""
        fold, newcomers_of = splits.folds(self.task.people, FOLDS, self.settings.seed), self.newcomers_of_folds()
        for number in range(len(self.progress.folds), FOLDS):
            state = Phase(self, self._pop_resumed(), np.flatnonzero(fold == number)).run()
            newcomers = newcomers_of[number]
            evaluation = self.task.evaluate(self.served(state), newcomers, passes(state))
            self.progress.folds.append(asdict(evaluation))  # type: ignore[call-overload]
            self.enter(f"fold-{number + 1}")

    def newcomers_of_folds(self) -> list[People]:
        """The people who are evaluated as new in each fold."""
        fold = splits.folds(self.task.people, FOLDS, self.settings.seed)
        return [np.intersect1d(np.flatnonzero(fold == number), self.task.evaluated) for number in range(FOLDS)]

    def _pop_resumed(self) -> State | None:
        """The state of the checkpoint, once: it belongs to the phase that was interrupted."""
        state, self._resumed = self._resumed, None
        return state

    def federation(self, phase: str, without: People | None = None) -> Federation:
        """The training data of a phase ("search" or "final")."""
        return self.task.federation(phase, self.plan.method, self.plan.sampling, without)

    def begin(self, federation: Federation) -> State:
        """The state before the first round."""
        rows = self.folder.path / "private" if self.settings.store == "disk" else None
        return self._start(begin(self.plan.method, self.plan.model, federation, self.plan.seed, rows))

    def served(self, state: State) -> Served:
        """The method as people are served with it, with the shared parameters that a client decodes from a download."""
        state = replace(state, shared=pack(state.shared, self.settings.download)[1])
        return Served(self.plan.method, self.plan.model, state, self.plan.sampling)

    def enter(self, phase: str, *, forget_versions: bool = False) -> None:
        """Begin a phase, with nothing trained in it yet."""
        self.progress.phase = phase
        if self.remote and forget_versions:
            self.progress.fleet = self.remote.note() | {"versions": {}}
            self.remote.recall(self.progress.fleet)
        self.folder.save(None, self.progress)


class Phase:
    """One phase of the training, from its checkpoint or its first round to its last round."""

    def __init__(self, training: Training, state: State | None, without: People | None = None) -> None:
        self.training, self.plan, self.task = training, training.plan, training.task
        self.progress, self.settings = training.progress, training.settings
        self.searching = self.progress.phase == "search"
        self.rounds = self.plan.rounds if self.searching or not self.progress.best_round else self.progress.best_round
        self.federation = training.federation("search" if self.searching else "final", without)
        self.state = state or training.begin(self.federation)
        self.convergence = Convergence(self.plan.tolerance, self.plan.patience)
        self.on_curve = self.progress.phase == ("search" if training.searches else "final")
        self.first_refused = ""
        self.saved, self.save_seconds = time.perf_counter(), 0.0

    def run(self) -> State:
        """Train until the last round or convergence; returns the state after it."""
        self.training.listener.phase(self.progress.phase, self.rounds, self.state.round)
        reason = f"all {self.rounds} rounds were run" if self.rounds > 1 else "its one round was run"
        rounds = self._rounds()
        while (done := self._train_round(rounds)) is not None:
            if why := self._record(done):
                reason = f"stopped after round {done.number}: {why}"
                break
            with self.progress.timed():
                self._save_sometimes()
        self._require_uploads()
        if self.searching:
            scores = [(score, -n) for n, score in enumerate(self._scores(), 1) if score is not None]
            self.progress.best_round = -max(scores)[1] if scores else self.state.round  # the first of equally good ones
            if self.plan.method.schedule:  # which is only good at its end
                self.progress.best_round = self.state.round
        if self.searching or not self.progress.stopped:
            self.progress.stopped = reason
        return self.state

    def _rounds(self) -> Iterator[Round]:
        settings, remote, phase = self.settings, self.training.remote, self.progress.phase
        stage, folder = self.plan.wire.stage, self.training.folder
        return run(
            self.plan.method, self.plan.model, self.federation, rounds=self.rounds, cohort=settings.cohort,
            dropout=settings.dropout, seed=settings.seed, backend=settings.backend, download=settings.download,
            state=self.state, wire=remote.wire(stage) if remote else stage, run_id=folder.run_id,
            noise_key=phase_key(settings, folder, phase), clients=remote.clients(phase) if remote else None,
        )  # fmt: skip

    def _train_round(self, rounds: Iterator[Round]) -> Round | None:
        """The next round, or None after the last; where it diverges, the state before it is saved."""
        began = time.perf_counter()
        with self.progress.timed():
            try:
                done = next(rounds, None)
            except DivergedError:
                self.training.folder.save(self.state, self.progress)
                raise
        if done is not None:
            self.progress.laps.append(round(time.perf_counter() - began, 6))
        return done

    def _record(self, done: Round) -> str | None:
        """Validate the round and add it to the progress; returns why training should stop now, or None."""
        self.state, metrics = done.state, None
        if done.refused and not self.first_refused:
            self.first_refused = f", {done.refused}'s in round {done.number} first"
        last = done.number == self.rounds
        if self.searching and self.task.validates and (done.number % self.plan.every == 0 or last):
            self.training.validation = self.task.validation(self.training.served(self.state))
            metrics = self.training.validation.exact()
        self.progress.add_round(done, metrics, self.on_curve, self._expected_cohort())
        if self.progress.phase == "final":
            wire, rounds, delta = self.plan.wire, self.plan.rounds, self.plan.delta
            self.progress.privacy = privacy_statement(self.settings, wire, rounds, delta)
        self.training.listener.round(done.number, metrics)
        if not self.searching and self.training.searches:
            return None  # the search has chosen the number of rounds
        return self.convergence.reason(done.change, self._scores())

    def _expected_cohort(self) -> int | None:
        """People whom a round of a private run requests on average, a public number; None in other runs."""
        if not adds_noise(self.settings):
            return None
        members = len(self.federation.members)
        return members if self.settings.cohort is None else cohort_size(self.settings.cohort, members)

    def _scores(self) -> list[float | None]:
        """The validation metric of every round of the curve, larger is better; None where it was not validated."""
        name, sign = self.task.selection
        return [sign * point["valid"][name] if point["valid"] else None for point in self.progress.curve]

    def _save_sometimes(self) -> None:
        """Save a checkpoint: with remote clients after every round, otherwise for at most a tenth of the time."""
        if self.training.remote:
            self.progress.fleet = self.training.remote.note()
        if self.training.remote or time.perf_counter() - self.saved > max(1.0, 10 * self.save_seconds):
            began = time.perf_counter()
            self.training.folder.save(self.state, self.progress)
            self.saved = time.perf_counter()
            self.save_seconds = self.saved - began

    def _require_uploads(self) -> None:
        """Raise an error where every upload of the final phase was refused; its advice follows from the reasons."""
        rejected = self.progress.rejected
        if self.progress.phase != "final" or not rejected or self.progress.traffic["uploads"]:
            return
        self.training.folder.save(self.state, self.progress)
        if set(rejected) == {"abandoned"}:
            raise SettingError(
                f"No secure sum could be opened: in every group too few of the people were left (abandoned: "
                f"{rejected['abandoned']:,}), and nothing was revealed. Ask more people (--cohort), lose fewer "
                "(--dropout), or make groups smaller (secure=10)."
            )
        reasons = ", ".join(f"{reason}: {count:,}" for reason, count in rejected.items())
        problem = f"Every upload was refused ({reasons}{self.first_refused}): nothing was learnt."
        if DIVERGENCE & set(rejected):
            raise DivergedError(
                f"{problem} A learning rate (lr), or lam of fedrap, is likely too large: try a tenth of it."
            )
        meanings = ", ".join(REASONS.get(reason, reason) for reason in rejected)
        raise RunError(
            f"{problem} The uploads were: {meanings}. Check that server and clients use the same version of fedtaste, "
            "the same settings and this run."
        )
