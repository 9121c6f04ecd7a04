"""Evaluate a trained run and write its result: test metrics, costs, privacy statement and notes."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from fedtaste.evaluation.protocol import Evaluation, join_folds
from fedtaste.experiment.privacy import adds_noise, privacy_sentence
from fedtaste.experiment.privacy_ledger import read_note
from fedtaste.experiment.progress import Progress
from fedtaste.experiment.resources import peak_rss_mb
from fedtaste.experiment.result import (
    CurvePoint,
    Gradients,
    Intervals,
    Leak,
    NewItemScores,
    PrivacyStatement,
    RunResult,
    Scores,
    Seconds,
    Stopped,
    Traffic,
)
from fedtaste.experiment.scores import save_scores
from fedtaste.experiment.secure_leak import leak_note, secure_leak
from fedtaste.result_part import JsonObject
from fedtaste.tasks.base import Served
from fedtaste.tasks.serve import passes

if TYPE_CHECKING:
    from fedtaste.experiment.train import Training

SOME_REFUSED = "Some updates were refused; a private run does not report how many, and why."
NOBODY_ANSWERED = "Nobody answered in any round: this is the untrained model."
WHO_TOOK_PART = {"nodes", "people", "refused"}  # left out of the rounds of a private run


@dataclass(frozen=True)
class Trained:
    """A run whose training has ended: evaluates it and makes the parts of its result."""

    training: Training
    served: Served  # with the shared parameters that clients decode from a download

    @property
    def progress(self) -> Progress:
        """What the training counted and recorded."""
        return self.training.progress

    @property
    def private(self) -> bool:
        """Whether the run has noise; then the result reports only what its epsilon covers."""
        return adds_noise(self.training.settings)

    def write_result(self) -> RunResult:
        """Evaluate the run, write result.json and return the result."""
        began, training, progress, private = time.perf_counter(), self.training, self.progress, self.private
        plan, task, settings, rounds = training.plan, training.task, training.settings, self.served.state.round
        seen, new, intervals, extra = self.scores()
        gradients, curve = self.computation()
        leak, new_items = task.leak(), self.new_items()
        evaluate = round(time.perf_counter() - began, 3)
        result = RunResult(
            data=settings.data_name, task=task.facts.kind, method=settings.method, settings=plan.settings,
            protocol=settings.protocol, wire=settings.wire, seed=settings.seed, rounds=rounds,
            people=task.people, members=task.facts.people, items=task.facts.items,
            feature_count=task.facts.feature_count, interactions=None if private else task.interactions,
            seen=seen, new=new, intervals=intervals, best_round=progress.best_round or rounds,
            stopped=Stopped(round=len(progress.curve), reason=progress.stopped), leak=Leak(**leak) if leak else None,
            traffic=self.traffic(), gradients=gradients, privacy=self.privacy(), seconds=self.seconds(evaluate),
            peak_rss_mb=peak_rss_mb(), rejected_updates={} if private else progress.rejected,
            run=str(training.folder.path), scale=task.facts.scale, curve=curve, valid=self.valid(),
            **extra, **new_items, **self.optional(new_items), **self.tuning(),
        )  # fmt: skip
        training.folder.write("result.json", result.dump())
        return result

    def scores(self) -> tuple[Scores, Scores | None, Intervals, JsonObject]:
        """Test metrics of seen and of new people, their intervals, and further fields of the result. A run with noise
        has none of these: they come from people's data without noise, and its epsilon does not cover them."""
        task = self.training.task
        seen = task.evaluate(self.served, task.seen, None)
        new: Evaluation | None = None
        if self.progress.folds:
            new = join_folds(self.progress.folds)
        elif len(task.newcomers):
            new = task.evaluate(self.served, task.newcomers, passes(self.served.state))
        intervals = Intervals(seen=seen.intervals, new=new.intervals if new else None)
        if not self.private and self.training.remote is None:
            self.save_scores(seen, new)
        extra = {} if self.private else task.extra(self.served)
        if not self.private and (beyond := task.beyond(seen, new)):
            extra["beyond"] = beyond
        scores = Scores(**seen.values).model_copy(update=extra.pop("seen", {}))
        return scores, Scores(**new.values) if new else None, intervals, extra

    def save_scores(self, seen: Evaluation, new: Evaluation | None) -> None:
        """Write the scores of every person, so that this run can be compared with others in pairs."""
        task, rounds = self.training.task, passes(self.served.state)
        groups = {"seen": (task.measurable(task.seen, None), seen)}
        if new is not None:
            newcomers = self.training.newcomers_of_folds() if self.progress.folds else [task.newcomers]
            groups["new"] = (np.concatenate([task.measurable(part, rounds) for part in newcomers]), new)
        save_scores(self.training.folder.path, groups)

    def valid(self) -> dict[str, float] | None:
        """Validation metrics of the round that was chosen."""
        return next((p["valid"] for p in self.progress.curve if p["round"] == self.progress.best_round), None)

    def traffic(self) -> Traffic:
        """Bytes of the final training. A pooled method has no uploads: its bytes are averaged over all people."""
        sent, uploads = self.progress.traffic, self.progress.traffic["uploads"]
        if self.served.method.pooled:
            uploads = self.training.task.people * self.served.state.round
        each = round(sent["up_bytes"] / uploads) if uploads else 0
        return Traffic(up_bytes=sent["up_bytes"], down_bytes=sent["down_bytes"], up_bytes_per_person_round=each)

    def computation(self) -> tuple[Gradients | None, tuple[CurvePoint, ...]]:
        """Gradient evaluations of one person, in all and up to every round of the curve."""
        rounds, curve = self.served.state.round, self.progress.curve
        counts = self.training.task.gradients(self.served, self.training.plan.seed)
        if counts is None:
            return None, tuple(CurvePoint(**point, gradients=None) for point in curve)
        first, later = counts
        points = (CurvePoint(**point, gradients=first + (point["round"] - 1) * later) for point in curve)
        return Gradients(per_person_round=later, total=first + max(rounds - 1, 0) * later), tuple(points)

    def privacy(self) -> PrivacyStatement | None:
        """The privacy statement, with the total of the ledger in which the run was entered."""
        if not self.progress.privacy:
            return None
        _, total = read_note(self.training.folder)
        fields = self.progress.privacy | {"predictor": self.training.plan.predictor}
        return PrivacyStatement(**fields | ({"ledger": total} if total else {}))

    def seconds(self, evaluate: float) -> Seconds:
        """Times of this run. The median round, as the first one may compile."""
        progress = self.progress
        lap = round(float(np.median(progress.laps)), 6) if progress.laps else None
        train, cpu = round(progress.train_seconds, 3), round(progress.train_cpu, 3)
        setup = round(self.training.setup_seconds, 3)
        return Seconds(setup=setup, train=train, evaluate=evaluate, train_cpu=cpu, round=lap)

    def new_items(self) -> JsonObject:
        """The field of held-out items, where there are any; a private run reports no baseline from exact counts."""
        metrics = self.training.task.new_item_metrics(self.served)
        if metrics is None:
            return {}
        hidden = {"popularity_recall"} if self.private else set()
        return {"new_items": NewItemScores(**{n: v for n, v in metrics.items() if n not in hidden})}

    def tuning(self) -> JsonObject:
        """The field of the study that chose the settings, where there was one."""
        tuning = self.training.folder.tuning()
        return {"tuning": tuning} if tuning else {}

    def optional(self, new_items: JsonObject) -> JsonObject:
        """The notes, which a reader of the figures must know, and the fields that only some results have."""
        training, progress = self.training, self.progress
        notes = [part.sentence() for part in [*new_items.values(), *self.tuning().values()]]
        notes += [*privacy_sentence(progress.privacy), *(() if self.private else training.task.notes)]
        notes += [*training.plan.notes, *([] if progress.traffic["uploads"] else [NOBODY_ANSWERED])]
        notes += [SOME_REFUSED] if self.private and progress.rejected else []
        if training.remote is None:
            leak = secure_leak(training.plan, training.task, training.settings, training.listener)
            return {"secure": leak, "notes": [leak_note(leak), *notes]} if leak else {"notes": notes}
        log = training.remote.note()
        hidden = WHO_TOOK_PART if self.private else set()
        rounds = [{n: v for n, v in entry.items() if n not in hidden} for entry in log["history"]]
        return {"federation": {"history": rounds}, "notes": [*notes, *log.get("notes", [])]}
