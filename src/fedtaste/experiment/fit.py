"""Fit a model for production: learn from everything and everybody, for a number of rounds that validation chose.

    search   without the newest item of each person, which then chooses the number of rounds (left out where the
             settings name the rounds, and in private runs)
    final    everything and everybody, for that many rounds

The phases, checkpoints and privacy are those of an evaluated run (train.py). Nothing is held out, so a fit has no test
metrics: `fedtaste run` with the same settings measures them.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from fedtaste.data.supervised import Supervised
from fedtaste.engine.backends import choose_backend
from fedtaste.engine.run import State
from fedtaste.errors import SettingError
from fedtaste.experiment.evaluate import Trained
from fedtaste.experiment.folder import Data, RunFolder
from fedtaste.experiment.privacy import adds_noise, privacy_sentence
from fedtaste.experiment.progress import ProgressListener, Silent
from fedtaste.experiment.resources import set_threads
from fedtaste.experiment.result import FitResult, PrivacyStatement, Stopped
from fedtaste.experiment.settings import Settings
from fedtaste.experiment.stored_interactions import INTERACTIONS, save_interactions
from fedtaste.experiment.train import Prepared, Training, checked_plan, refuse_tuned_noise
from fedtaste.federation import cohort_size
from fedtaste.files.lock import lock_folder
from fedtaste.tasks import ranking, ratings
from fedtaste.tasks.base import Task

Start = Callable[[State], State]
UNPROMISED = "not every training that this model continues promised an epsilon"


def production_task(settings: Settings, data: Data) -> Task:
    """The task whose final phase learns from everything; refuses data without people, and options of evaluations."""
    if isinstance(data, Supervised):
        raise SettingError(
            f"fit is for data of people and items; {data.name} has clients with features. Use `fedtaste run`."
        )
    for name, default in (("new_people", None), ("protocol", "clean"), ("split", "leave-one-out")):
        if getattr(settings, name) != default:
            raise SettingError(f"{name} would change nothing: a fit learns from everybody. Leave it out.")
    if settings.task not in (None, "ranking", "ratings"):
        raise SettingError(f"task must be ranking or ratings for {data.name}, got {settings.task}.")
    module = ratings if settings.task == "ratings" else ranking
    task: Task = module.production_task(data, seed=settings.seed, search=settings.rounds is None)
    return task


def prepare_fit(settings: Settings, data: Data, start: Start = lambda fresh: fresh) -> Prepared:
    """Make the task and the plan; raise SettingError for every mistake that can be detected before training.

    `start` puts what an earlier model learnt into a fresh state (experiment/continuation.py).
    """
    began = time.perf_counter()
    refuse_tuned_noise(settings, data)
    task = production_task(settings, data)
    plan = checked_plan(settings, task)
    set_threads(settings.threads)
    choose_backend(settings.backend, plan.method, plan.wire.stage)
    if settings.cohort is not None:
        members = len(task.federation("search", plan.method, plan.sampling, None).members)
        cohort_size(settings.cohort, members)
    return Prepared(settings, data, task, plan, time.perf_counter() - began, start)


def fit(
    prepared: Prepared, folder: RunFolder, listener: ProgressListener | None = None, *, before: FitResult | None = None
) -> FitResult:
    """Train, or resume training, in this folder; returns the result that `--json` prints. `before` is the result of the
    model that this one continues."""
    with lock_folder(folder.path):
        set_threads(prepared.settings.threads)
        folder.require_same_plan(prepared.plan.settings, prepared.task.facts)
        assert prepared.data is not None and not isinstance(prepared.data, Supervised)
        if not (folder.path / INTERACTIONS).exists():
            save_interactions(folder.path / INTERACTIONS, prepared.data, prepared.settings.seed)
        training = Training(prepared, folder, listener or Silent(), None)
        trained = Trained(training, training.served(training.run()))
        result = _result(trained, prepared, before)
        folder.write("result.json", result.dump())
        return result


def _result(trained: Trained, prepared: Prepared, before: FitResult | None) -> FitResult:
    training, progress = trained.training, trained.progress
    task, plan, settings = prepared.task, prepared.plan, prepared.settings
    rounds, private = trained.served.state.round, adds_noise(settings)
    chosen = progress.curve[progress.best_round - 1]["valid"] if training.searches else None
    privacy = _added_up(trained.privacy(), before)
    stated = privacy_sentence(privacy.model_dump(exclude={"predictor", "ledger"}) if privacy else None)
    if before and privacy and privacy.epsilon is None:
        stated = [f"No epsilon is promised: {privacy.why}."]
    notes = [*stated, *(() if private else task.notes), *plan.notes]
    return FitResult(
        data=settings.data, task=task.facts.kind, method=settings.method, settings=plan.settings, wire=settings.wire,
        seed=settings.seed, rounds=rounds, total_rounds=rounds + (before.total_rounds if before else 0),
        people=task.people, members=task.facts.people, items=task.facts.items, feature_count=task.facts.feature_count,
        interactions=None if private else task.interactions, valid=chosen, traffic=trained.traffic(), privacy=privacy,
        seconds=trained.seconds(0.0), notes=tuple(notes),
        stopped=Stopped(round=len(progress.curve), reason=progress.stopped), run=str(training.folder.path),
        scale=task.facts.scale, curve=trained.computation()[1],
    )  # fmt: skip


def _added_up(privacy: PrivacyStatement | None, before: FitResult | None) -> PrivacyStatement | None:
    """The privacy statement of a model that continues another: epsilons and deltas add up (basic composition), and
    nothing is promised where one of the trainings promised nothing."""
    if privacy is None or before is None:
        return privacy

    def added(name: str) -> float | None:
        now, earlier = (getattr(statement, name, None) for statement in (privacy, before.privacy))
        return None if now is None or earlier is None else float(now + earlier)

    sums = {name: added(name) for name in ("epsilon", "epsilon_rdp", "server_epsilon", "delta")}
    if sums["epsilon"] is None:
        sums |= {"server_epsilon": None, "epsilon_rdp": None, "delta": privacy.delta}
    return privacy.model_copy(update=sums | ({"why": UNPROMISED} if sums["epsilon"] is None else {}))
