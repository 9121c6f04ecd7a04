"""`fedtaste tune`: search the settings of a method on validation data; `run --tune`; and `resume` of a study."""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.table import Table

from fedtaste import __version__
from fedtaste.cli.options import ResumeOptions, RunOptions, TuneOptions
from fedtaste.cli.output import emit, out, put, say
from fedtaste.cli.own_methods import allow_method
from fedtaste.cli.results import show_result
from fedtaste.cli.run import check_ledger, load_data, new_folder, train_folder
from fedtaste.errors import RunError, SettingError, was_interrupted
from fedtaste.experiment.compare import WorkerPool
from fedtaste.experiment.folder import RunFolder
from fedtaste.experiment.privacy import adds_noise
from fedtaste.experiment.progress_bars import Bars
from fedtaste.experiment.result import RunResult
from fedtaste.experiment.settings import Settings
from fedtaste.experiment.tracking import copy_tracking, remember_tracking, require_tracker
from fedtaste.experiment.train import prepare
from fedtaste.experiment.tune import (
    Clock,
    TunePlan,
    Tuner,
    Workers,
    begin_study,
    best_settings,
    prepare_tuning,
)
from fedtaste.experiment.tune import tune as run_study
from fedtaste.experiment.tune_result import StudyHeader, TuneResult
from fedtaste.report.numbers import human_bytes
from fedtaste.report.tuning import comparison_rows, write_tuning_report
from fedtaste.text import command_text, count

WORKER = (sys.executable, "-m", "fedtaste", "resume", "--json", "--worker")
POLL_SECONDS = 0.3


def tune(settings: Settings, options: TuneOptions) -> None:
    """Search the settings of one method on one data set."""
    allow_method(settings.method)
    plan = prepare_tuning(settings, load_data(settings), options.space)
    path = options.out or new_folder(plan.data.name, settings.method, "tune")
    final = str((path / "final").resolve()) if options.final else None
    header = StudyHeader(
        space=plan.words(), own_space=options.space, trials=options.trials, minutes=options.minutes, final=final
    )
    folder = begin_study(path, plan, header, __version__)
    result = search(plan, folder, options.jobs)
    show_tuning(result, train_best(plan, result), options.as_json)


def run_tuned(settings: Settings, options: RunOptions) -> None:
    """`fedtaste run --tune N`: search the settings, then train with the best ones and read the test data once."""
    assert options.tune is not None
    if options.from_model is not None:
        raise SettingError("--tune and --from cannot be combined: a continued model keeps its settings.")
    allow_method(settings.method)
    require_tracker(options.track, options.track_to, adds_noise(settings))
    plan = prepare_tuning(settings, load_data(settings), {})
    check_ledger(options.ledger, [plan.base], plan.data)
    path = (options.out or new_folder(plan.data.name, settings.method)).resolve()  # also "." has a name then
    if (path / "settings.json").exists():
        raise RunError(f"{path} holds a run already. Choose another --out.")
    header = StudyHeader(space=plan.words(), own_space={}, trials=options.tune, minutes=None, final=str(path))
    folder = begin_study(path.with_name(f"{path.name}-study"), plan, header, __version__)
    remember_tracking(folder, options.track, options.track_to)
    run = train_best(plan, search(plan, folder, jobs=1))
    assert run is not None
    show_result(run, path / "report.html", options.as_json)


def resume_study(folder: RunFolder, options: ResumeOptions) -> None:
    """Continue a study; a worker only runs its trials."""
    settings, header = folder.settings(), folder.study()
    data = load_data(settings)
    folder.require_same_data(data)
    folder.require_same_version(__version__)
    plan = prepare_tuning(settings, data, header.own_space)
    if options.worker:
        Tuner(plan, folder, Clock(None, 0.0)).run(header.trials)
        return
    result = search(plan, folder, jobs=1)
    show_tuning(result, train_best(plan, result), options.as_json)


def search(plan: TunePlan, folder: RunFolder, jobs: int) -> TuneResult:
    """Run the trials that are left, and write the report."""
    workers = start_workers(jobs, plan.base.settings.method) if jobs > 1 else None
    try:
        with Bars() as bars:
            result = run_study(plan, folder, bars, workers)
    except (KeyboardInterrupt, SystemError) as error:
        if not was_interrupted(error):
            raise
        raise RunError(f"Stopped. No finished trial is lost: go on with `{folder.command('resume')}`.") from None
    write_tuning_report(result, folder.path)
    return result


def start_workers(jobs: int, method: str) -> Workers:
    """Processes that run trials of the same study, each as `fedtaste resume --worker`."""

    def work(folder: RunFolder, show: Callable[[], None], clock: Clock) -> None:
        problems: list[str] = []
        with tempfile.TemporaryDirectory() as logs:
            pools = []
            for number in range(jobs):
                (Path(logs) / str(number)).mkdir()
                pools.append(WorkerPool(WORKER, Path(logs) / str(number)))
            try:
                for pool in pools:
                    pool.start("trials", folder.path, method)
                while any(pool.running for pool in pools) and not clock.over:
                    time.sleep(POLL_SECONDS)
                    problems += [problem for pool in pools for _, problem in pool.collect() if problem]
                    show()
            finally:
                for pool in pools:
                    pool.stop()
        if problems:
            raise RunError(
                f"A process of the study failed: {problems[0]} No finished trial is lost: go on with "
                f"`{folder.command('resume')}`."
            )

    return work


def train_best(plan: TunePlan, result: TuneResult) -> RunResult | None:
    """Train with the best settings in the folder that the study names, and evaluate; None where it names none."""
    if result.final is None:
        return None
    path = Path(result.final)
    settings = best_settings(plan, result)
    prepared = prepare(settings, plan.data, strict=True)
    if (path / "settings.json").exists():  # begun before the study was interrupted
        folder = RunFolder.open(path)
        folder.require_same_data(plan.data)
        if folder.finished:
            return folder.result()
    else:
        more = {"tuning": result.tuning().dump()}
        folder = RunFolder.create(path, settings.model_dump(), plan.data, __version__, more=more)
        copy_tracking(RunFolder(Path(result.study)), folder)
    with Bars() as bars:
        return train_folder(folder, prepared, plan.data, bars)


def show_tuning(result: TuneResult, run: RunResult | None, as_json: bool) -> None:
    """Print the best settings beside the defaults, what the search cost, and what to do next."""
    if as_json:
        emit(result.dump())
        return
    table = Table(box=SIMPLE_HEAD, show_edge=False, title_style="bold", title_justify="left")
    table.title = f"{result.method} on {result.data}: the best of {count(result.cost.trials, 'trial')}"
    for name in ("setting", "default", "best", "searched", "importance"):
        table.add_column(name, justify="left" if name in ("setting", "searched") else "right")
    for row in comparison_rows(result):
        table.add_row(*row)
    out.print(table)
    defaults = "not measured" if result.valid_of_defaults is None else f"{result.valid_of_defaults:.4f}"
    put(f"Validation {result.metric}: {result.valid:.4f} (trial {result.best}); defaults: {defaults}.", "bold")
    cost = result.cost
    sent = f"{human_bytes(cost.up_bytes)} up, {human_bytes(cost.down_bytes)} down"
    put(f"The search took {count(cost.rounds, 'round')} in {count(cost.trials, 'trial')}, {sent}: {result.stopped}.")
    for note in result.notes:
        say(note)
    put(f"Report: {Path(result.study) / 'report.html'}")
    if result.cost.trials < result.requested:
        put(f"Go on: {RunFolder(Path(result.study)).command('resume')}")
    if run is not None:
        show_result(run, Path(run.run) / "report.html", as_json=False)
    else:
        put(f"Next: {command_text('run', '--config', result.config)}")
