"""One experiment from settings to result: load, train, choose, train again, judge once.

    search   learn from the training part; after every round validation says how good it is
    final    learn from training and validation together, for as many rounds as were best; then test is read, once
    fold-i   (`--new-people folds`) the same without a tenth of the people, who are then judged as new

Every phase is checkpointed; `execute` on a folder with a checkpoint goes on where it ended, to the same bytes.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from .client_tasks import supervised
from .costs import gradients, peak_rss_mb, threads
from .data import splits
from .data.importing import BroughtSplit
from .data.interactions import Interactions
from .data.supervised import Supervised
from .engine.run import Convergence, Round, State, begin, run
from .errors import DivergedError, SettingError
from .evaluation.protocol import Judged
from .federation import cohort_size
from .lock import alone
from .privacy_ledger import noted_total
from .progress import Elsewhere, Progress, Silent, Stopwatch, Watch
from .promises import is_private, phase_key, privacy_statement, require_cohort, sentence
from .rating_tasks import ratings
from .runs import RunFolder
from .secure_leak import leak_note, secure_leak
from .settings import Plan, Settings, plan
from .tasks import Task, ranking
from .wire.packing import pack

FOLDS = 10
SOME_REFUSED = "Some updates were refused; how many, and why, is not told in a private run."
Data = Interactions | BroughtSplit | Supervised


def make_task(settings: Settings, data: Data) -> Task:
    """The task that the data and the settings ask for."""
    wanted = settings.task or (data.task if isinstance(data, Supervised) else "ranking")
    fits = data.task if isinstance(data, Supervised) else "ranking or ratings"
    if wanted not in fits.split():
        raise SettingError(f"--task {wanted} was asked of {data.name}, which fits {fits}. Leave --task out.")
    unread: dict[str, tuple[Any, ...]] = (
        {"protocol": ("clean",), "split": ("leave-one-out",)} if wanted != "ranking" else {}
    )
    if isinstance(data, Supervised):
        unread["new_people"] = (None,)
    for name, usual in unread.items():
        if getattr(settings, name) not in usual:
            option = f"--{name.replace('_', '-')} {getattr(settings, name)}"
            raise SettingError(f"{option} would change nothing for {wanted}. Leave it out.")
    if isinstance(data, Supervised):
        return supervised(data, seed=settings.seed)
    share = settings.new_share
    if wanted == "ratings":
        return ratings(data, new_people=share, seed=settings.seed)
    return ranking(
        data, protocol_name=settings.protocol, split_name=settings.split, new_people=share, seed=settings.seed
    )


def execute(
    settings: Settings,
    data: Data | None,
    folder: RunFolder,
    watch: Watch | None = None,
    task: Task | None = None,
    began: float | None = None,
    fleet: Elsewhere | None = None,
) -> dict[str, Any]:
    """Run, or go on with, the experiment of this folder; returns the result that `--json` prints. With a `fleet` the
    devices are elsewhere; `task` is then theirs, and no data are here."""
    with alone(folder.path):
        return _execute(settings, data, folder, watch, task, began, fleet)


def _execute(
    settings: Settings, data: Data | None, folder: RunFolder, watch: Watch | None, task: Task | None,
    began: float | None, fleet: Elsewhere | None,
) -> dict[str, Any]:  # fmt: skip
    watch, begun = watch or Silent(), time.perf_counter() if began is None else began
    threads(settings.threads)
    task = task or make_task(settings, data)  # type: ignore[arg-type]
    made = plan(settings, task.facts, elsewhere=fleet is not None)
    require_cohort(made.wire.mechanism, max(task.facts.people, 1), made.rounds, made.delta)
    folder.same_plan(made.shown)
    settled = time.perf_counter()

    def new() -> State:
        federation = task.federation("final", made.method, made.sampling, None)
        return begin(made.method, made.model, federation, made.seed, _shelf(settings, folder))

    state, progress = folder.restore(new)
    progress = progress or Progress(phase="search" if task.validate and made.searches else "final")
    if fleet:
        fleet.recall(progress.fleet)
    if progress.phase == "search":
        train(made, task, settings, folder, watch, progress, state, fleet=fleet)
        state = None
        _enter(folder, progress, "final", fleet)
    final: State | None = None
    if progress.phase == "final":
        final = train(made, task, settings, folder, watch, progress, state, fleet=fleet)
        folder.save_final(final)
        state = None
        _enter(folder, progress, "fold-0")
    if settings.folds:
        final = None  # ten more trainings: two states at once may be too many
        _folds(made, task, settings, folder, watch, progress, state)
    final = final or folder.final(new())
    result = _judge(made, task, settings, progress, _received(final, settings), settled - begun)
    if result["privacy"] and (total := noted_total(folder)):
        result["privacy"]["ledger"] = total
    if fleet is None and (leak := secure_leak(made, task, settings, watch)):
        result |= {"secure": leak, "notes": [*leak_note(leak), *result["notes"]]}
    if fleet:
        hidden = {"nodes", "people", "refused"} if is_private(settings) else set()  # nobody is told who was asked
        history = [{n: v for n, v in entry.items() if n not in hidden} for entry in fleet.note()["history"]]
        result["federation"] = {"history": history}
        result["notes"] += fleet.note().get("notes", [])
    folder.write("result.json", result | {"run": str(folder.path)})
    return result | {"run": str(folder.path)}


def _received(state: State, settings: Settings) -> State:
    """What people are served with: the shared part as it comes out of a download."""
    return replace(state, shared=pack(state.shared, settings.download)[1])


def _shelf(settings: Settings, folder: RunFolder) -> Path | None:
    return folder.path / "private" if settings.store == "disk" else None


def _enter(folder: RunFolder, progress: Progress, phase: str, fleet: Elsewhere | None = None) -> None:
    """Begin a phase, with nothing trained in it yet."""
    progress.phase = phase
    if fleet:
        progress.fleet = fleet.note() | {"versions": {}}
        fleet.recall(progress.fleet)
    folder.save(None, progress)


def train(
    made: Plan, task: Task, settings: Settings, folder: RunFolder, watch: Watch, progress: Progress,
    state: State | None, without: np.ndarray | None = None, fleet: Elsewhere | None = None,
) -> State:  # fmt: skip
    """One phase, from its checkpoint or from the start, to its last round."""
    searching = progress.phase == "search"
    rounds = made.rounds if searching or not progress.best_round else progress.best_round
    federation = task.federation("search" if searching else "final", made.method, made.sampling, without)
    state = state or begin(made.method, made.model, federation, made.seed, _shelf(settings, folder))
    stop = Convergence(made.tolerance, made.patience)
    watch.phase(progress.phase, rounds, state.round)
    clock, saved, cost = Stopwatch(progress), time.perf_counter(), 0.0
    reason = f"all {rounds} rounds were run" if rounds > 1 else "its one round was run"
    lap = time.perf_counter()
    first = ""
    rounds_run = run(
        made.method, made.model, federation, rounds=rounds, cohort=settings.cohort, dropout=settings.dropout,
        seed=settings.seed, backend=settings.backend, download=settings.download, state=state,
        wire=fleet.wire(made.wire.stage) if fleet else made.wire.stage, name=folder.number,
        noise_key=phase_key(settings, folder, progress.phase),
        clients=fleet.clients(progress.phase) if fleet else None,
    )  # fmt: skip
    searches = task.validate is not None and made.searches
    while (done := _next(rounds_run, folder, state, progress)) is not None:
        state, metrics = done.state, None
        first = first or (f", {done.refused}'s in round {done.number} first" if done.refused else "")
        progress.laps.append(round(time.perf_counter() - lap, 6))
        if searching and task.validate and (done.number % made.every == 0 or done.number == rounds):
            clock.stop()
            metrics = task.validate(made.method, made.model, _received(state, settings), made.sampling)
            clock = Stopwatch(progress)
        expected = _expected(settings, len(federation.members)) if is_private(settings) else None
        _count(progress, done, metrics, searches, expected)
        if progress.phase == "final":
            progress.privacy = privacy_statement(settings, made.wire, made.rounds, made.delta)
        watch.round(done.number, metrics)
        if searching or not searches:
            why = stop.reason(done.change, _scores(progress.curve, task))
            if why:
                reason = f"stopped after round {done.number}: {why}"
                break
        if fleet:
            progress.fleet = fleet.note()
        if fleet or time.perf_counter() - saved > max(1.0, 10 * cost):
            at = time.perf_counter()
            folder.save(state, progress)
            saved = time.perf_counter()
            cost = saved - at
        lap = time.perf_counter()
    clock.stop()
    if progress.phase == "final" and progress.rejected and not progress.traffic["uploads"]:
        folder.save(state, progress)
        if set(progress.rejected) == {"abandoned"}:
            raise SettingError(
                f"No secure sum could be opened: in every group too few of the people were left (abandoned: "
                f"{progress.rejected['abandoned']:,}), and nothing was revealed. Ask more people (--cohort), lose "
                "fewer (--dropout), or make groups smaller (secure=10)."
            )
        raise DivergedError(
            f"Every upload was refused ({', '.join(f'{n}: {c:,}' for n, c in progress.rejected.items())}{first}): "
            "nothing was learnt. A learning rate (lr), or lam of fedrap, is likely too large: try a tenth of it."
        )
    if searching:
        taken = [(score, -n) for n, score in enumerate(_scores(progress.curve, task), 1) if score is not None]
        progress.best_round = -max(taken)[1] if taken else state.round  # of equally good rounds the first
    if searching or not progress.stopped:
        progress.stopped = reason
    return state


def _next(rounds: Iterator[Round], folder: RunFolder, state: State, progress: Progress) -> Round | None:
    """The next round, or None after the last; if the numbers are lost in it, the state before it is kept."""
    try:
        return next(rounds, None)
    except DivergedError:
        folder.save(state, progress)
        raise


def _expected(settings: Settings, members: int) -> int:
    """People whom a round asks, on average: a public number."""
    return members if settings.cohort is None else cohort_size(settings.cohort, members)


def _expected_traffic(progress: Progress, done: Round, expected: int) -> dict[str, int]:
    """Bytes of a round in which the expected number of people was asked and answered. Where nobody was, it is what the
    round before took: no figure tells whom the coins chose."""
    if done.senders and done.asked:
        each = {"up_bytes": done.up_bytes // done.senders, "down_bytes": done.down_bytes // done.asked}
        return {name: value * expected for name, value in each.items()}
    before = [{"up_bytes": 0, "down_bytes": 0}, {"up_bytes": 0, "down_bytes": 0}, *progress.curve][-2:]
    return {name: before[1][name] - before[0][name] for name in ("up_bytes", "down_bytes")}


def _count(
    progress: Progress, done: Round, metrics: dict[str, float] | None, searches: bool, expected: int | None
) -> None:
    """Add a round to the curve (the search's, or the only phase's) and to the ledger (what training the final model
    costs: the search before it and the folds after it are the experimenter's). In a private run (`expected` people
    a round) nothing tells how many were asked or answered: traffic is of the expected number."""
    progress.rejected = dict(Counter(progress.rejected) + done.rejected)
    sent, answered = {"up_bytes": done.up_bytes, "down_bytes": done.down_bytes}, done.answered
    if expected is not None:
        sent, answered = _expected_traffic(progress, done, expected), expected if done.answered else 0
    if progress.phase == "final":
        for name, value in {**sent, "uploads": answered}.items():
            progress.traffic[name] += value
    if progress.phase == ("search" if searches else "final"):
        last = progress.curve[-1] if progress.curve else {"up_bytes": 0, "down_bytes": 0}
        point = {
            "round": done.number,
            "change": done.change if math.isfinite(done.change) else None,
            "loss": done.loss,
            "answered": done.answered if expected is None else None,
            "zeros": done.zeros,
            "valid": metrics,
        }
        progress.curve.append(point | {name: last[name] + value for name, value in sent.items()})


def _scores(curve: list[dict[str, Any]], task: Task) -> list[float | None]:
    name, sign = task.better
    return [sign * point["valid"][name] if point["valid"] else None for point in curve]


def _folds(
    made: Plan, task: Task, settings: Settings, folder: RunFolder, watch: Watch, progress: Progress, state: State | None
) -> None:
    """Everybody is new once: trained without a tenth of the people, who are then judged from their own history."""
    fold = splits.folds(task.people, FOLDS, settings.seed)
    for number in range(len(progress.folds), FOLDS):
        out = np.flatnonzero(fold == number)
        state = train(made, task, settings, folder, watch, progress, state, without=out)
        judged = task.judge(
            made.method, made.model, _received(state, settings), made.sampling,
            np.intersect1d(out, task.everybody), passes(state),
        )  # fmt: skip
        progress.folds.append(judged.raw)
        state = None
        _enter(folder, progress, f"fold-{number + 1}")


def passes(state: State) -> int:
    """How often a new device runs the client's code before it is served: as often as others did, within reason."""
    return max(1, min(state.round, 50))


def _judge(
    made: Plan, task: Task, settings: Settings, progress: Progress, state: State, setup: float
) -> dict[str, Any]:
    began = time.perf_counter()
    seen = task.judge(made.method, made.model, state, made.sampling, task.seen, None)
    new: Judged | None = None
    if progress.folds:
        new = Judged.joined(progress.folds)
    elif len(task.newcomers):
        new = task.judge(made.method, made.model, state, made.sampling, task.newcomers, passes(state))
    private = is_private(settings)
    uploads, extra = progress.traffic["uploads"], {} if private else task.extra(made.method, made.model, state)
    taken = task.taken(made, state) if task.taken else gradients(made, task, state)
    for point in progress.curve:
        point["gradients"] = None if taken is None else taken[0] + (point["round"] - 1) * taken[1]
    silence = [] if uploads else ["Nobody answered in any round: this is the untrained model."]
    refusals = [SOME_REFUSED] if private and progress.rejected else []
    if made.method.pooled:
        uploads = task.people * state.round
    result: dict[str, Any] = {
        "data": settings.data, "task": task.facts.kind, "method": settings.method, "settings": made.shown,
        "protocol": settings.protocol, "wire": settings.wire, "seed": settings.seed, "rounds": state.round,
        "people": task.people, "members": task.facts.people, "items": task.facts.items,
        "feature_count": task.facts.feature_count,
        "interactions": None if private else task.interactions,
        "seen": seen.values | extra.get("seen", {}), "new": new.values if new else None,
        "intervals": {"seen": seen.intervals, "new": new.intervals if new else None},
        "best_round": progress.best_round or state.round,
        "stopped": {"round": len(progress.curve), "reason": progress.stopped},
        "leak": task.leak(),
        "traffic": {
            "up_bytes": progress.traffic["up_bytes"], "down_bytes": progress.traffic["down_bytes"],
            "up_bytes_per_person_round": round(progress.traffic["up_bytes"] / uploads) if uploads else 0,
        },
        "gradients": None if taken is None else {
            "per_person_round": taken[1], "total": taken[0] + max(state.round - 1, 0) * taken[1],
        },
        "privacy": progress.privacy and progress.privacy | {"predictor": made.predictor},
        "seconds": {
            "setup": round(setup, 3), "train": round(progress.train_seconds, 3), "evaluate": 0.0,
            "train_cpu": round(progress.train_cpu, 3),
            "round": round(float(np.median(progress.laps)), 6) if progress.laps else None,  # the first one may compile
        },
        "peak_rss_mb": peak_rss_mb(), "rejected_updates": {} if private else progress.rejected,
        "notes": [*sentence(progress.privacy), *(() if private else task.notes), *made.notes, *silence, *refusals],
        "run": "", "scale": list(task.facts.scale), "curve": progress.curve,
        **{name: value for name, value in extra.items() if name != "seen"},
    }  # fmt: skip
    result["seconds"]["evaluate"] = round(time.perf_counter() - began, 3)
    return result
