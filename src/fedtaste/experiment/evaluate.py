"""Evaluate a trained run and write its result: test metrics, costs, privacy statement and notes."""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np

from fedtaste.engine.run import State
from fedtaste.evaluation.protocol import Evaluation, join_folds
from fedtaste.experiment.folder import RunFolder
from fedtaste.experiment.plan import Plan
from fedtaste.experiment.privacy import adds_noise, privacy_sentence
from fedtaste.experiment.privacy_ledger import noted_total
from fedtaste.experiment.progress import Progress, ProgressListener, RemoteClients
from fedtaste.experiment.resources import peak_rss_mb
from fedtaste.experiment.result import (
    CurvePoint,
    Gradients,
    Intervals,
    Leak,
    PrivacyStatement,
    RunResult,
    Scores,
    Seconds,
    Stopped,
    Traffic,
)
from fedtaste.experiment.secure_leak import leak_note, secure_leak
from fedtaste.experiment.settings import Settings
from fedtaste.result_part import JsonObject
from fedtaste.tasks.base import Served, Task
from fedtaste.tasks.serve import passes

SOME_REFUSED = "Some updates were refused; how many, and why, is not told in a private run."
NOBODY_ANSWERED = "Nobody answered in any round: this is the untrained model."
WHO_TOOK_PART = {"nodes", "people", "refused"}  # not told of a round of a private run


@dataclass(frozen=True)
class Trained:
    """A run whose training has ended, and the parts of its result."""

    plan: Plan
    task: Task
    settings: Settings
    progress: Progress
    state: State  # as clients receive it in a download
    setup_seconds: float
    watch: ProgressListener
    fleet: RemoteClients | None

    @property
    def private(self) -> bool:
        """Whether the run has noise; then the result tells nothing that its promise does not cover."""
        return adds_noise(self.settings)

    @property
    def served(self) -> Served:
        """The trained method as people are served with it."""
        return Served(self.plan.method, self.plan.model, self.state, self.plan.sampling)

    def scores(self) -> tuple[Scores, Scores | None, Intervals]:
        """Test metrics of seen and of new people, and their intervals."""
        task = self.task
        seen = task.evaluate(self.served, task.seen, None)
        new: Evaluation | None = None
        if self.progress.folds:
            new = join_folds(self.progress.folds)
        elif len(task.newcomers):
            new = task.evaluate(self.served, task.newcomers, passes(self.state))
        intervals = Intervals(seen=seen.intervals, new=new.intervals if new else None)
        return Scores(**seen.values), Scores(**new.values) if new else None, intervals

    def traffic(self) -> Traffic:
        """Bytes of the final training. A pooled method has no uploads: its bytes are averaged over all people."""
        sent, uploads = self.progress.traffic, self.progress.traffic["uploads"]
        if self.plan.method.pooled:
            uploads = self.task.people * self.state.round
        each = round(sent["up_bytes"] / uploads) if uploads else 0
        return Traffic(up_bytes=sent["up_bytes"], down_bytes=sent["down_bytes"], up_bytes_per_person_round=each)

    def computation(self) -> tuple[Gradients | None, tuple[CurvePoint, ...]]:
        """Gradient evaluations of one person, in all and up to every round of the curve."""
        rounds, curve = self.state.round, self.progress.curve
        counted = self.task.gradients(self.served, self.plan.seed)
        if counted is None:
            return None, tuple(CurvePoint(**point, gradients=None) for point in curve)
        first, later = counted
        points = (CurvePoint(**point, gradients=first + (point["round"] - 1) * later) for point in curve)
        return Gradients(per_person_round=later, total=first + max(rounds - 1, 0) * later), tuple(points)

    def privacy(self, folder: RunFolder) -> PrivacyStatement | None:
        """The privacy statement, with the total of the ledger in which the run was entered."""
        if not self.progress.privacy:
            return None
        total = noted_total(folder)
        fields = self.progress.privacy | {"predictor": self.plan.predictor} | ({"ledger": total} if total else {})
        return PrivacyStatement(**fields)

    def seconds(self, evaluate: float) -> Seconds:
        """Times of this run. The median round, as the first one may compile."""
        progress = self.progress
        lap = round(float(np.median(progress.laps)), 6) if progress.laps else None
        train, cpu = round(progress.train_seconds, 3), round(progress.train_cpu, 3)
        return Seconds(setup=round(self.setup_seconds, 3), train=train, evaluate=evaluate, train_cpu=cpu, round=lap)

    def notes(self) -> list[str]:
        """What a reader of the figures must know."""
        progress = self.progress
        silence = [] if progress.traffic["uploads"] else [NOBODY_ANSWERED]
        refusals = [SOME_REFUSED] if self.private and progress.rejected else []
        about = () if self.private else self.task.notes
        return [*privacy_sentence(progress.privacy), *about, *self.plan.notes, *silence, *refusals]

    def optional(self) -> JsonObject:
        """Fields that only some results have, by name, and the notes about them."""
        fields: JsonObject = {"notes": self.notes()}
        if self.fleet is None:
            if leak := secure_leak(self.plan, self.task, self.settings, self.watch):
                fields |= {"secure": leak, "notes": [leak_note(leak), *fields["notes"]]}
            return fields
        log = self.fleet.note()
        hidden = WHO_TOOK_PART if self.private else set()
        rounds = [{n: v for n, v in entry.items() if n not in hidden} for entry in log["history"]]
        return {"federation": {"history": rounds}, "notes": [*fields["notes"], *log.get("notes", [])]}


def write_result(folder: RunFolder, trained: Trained) -> RunResult:
    """Evaluate the run, write result.json and return it."""
    began, plan, task, settings = time.perf_counter(), trained.plan, trained.task, trained.settings
    progress, state, private = trained.progress, trained.state, trained.private
    seen, new, intervals = trained.scores()
    extra = {} if private else task.extra(trained.served)
    seen = seen.model_copy(update=extra.pop("seen", {}))
    computed, curve = trained.computation()
    leak = task.leak()
    evaluate = round(time.perf_counter() - began, 3)
    result = RunResult(
        data=settings.data, task=task.facts.kind, method=settings.method, settings=plan.settings,
        protocol=settings.protocol, wire=settings.wire, seed=settings.seed, rounds=state.round,
        people=task.people, members=task.facts.people, items=task.facts.items, feature_count=task.facts.feature_count,
        interactions=None if private else task.interactions,
        seen=seen, new=new, intervals=intervals, best_round=progress.best_round or state.round,
        stopped=Stopped(round=len(progress.curve), reason=progress.stopped), leak=Leak(**leak) if leak else None,
        traffic=trained.traffic(), gradients=computed, privacy=trained.privacy(folder),
        seconds=trained.seconds(evaluate), peak_rss_mb=peak_rss_mb(), rejected_updates={} if private else progress.rejected,
        run=str(folder.path), scale=task.facts.scale, curve=curve, **extra, **trained.optional(),
    )  # fmt: skip
    folder.write("result.json", result.dump())
    return result
