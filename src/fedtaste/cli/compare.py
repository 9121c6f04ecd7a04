"""`fedtaste compare`: train several methods, or one over sweeps of settings, and compare them; also `run --seeds`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from itertools import product
from pathlib import Path

from fedtaste.cli.compare_auto import compare_auto, resume_auto
from fedtaste.cli.options import CompareOptions, ResumeOptions, RunOptions
from fedtaste.cli.output import emit, say
from fedtaste.cli.own_methods import allow_method, allow_methods_of
from fedtaste.cli.results import show_results
from fedtaste.cli.run import check_ledger, create_folder, load_data, new_folder, require_new, train_folder
from fedtaste.data.sources import depends_on_seed
from fedtaste.errors import SettingError
from fedtaste.experiment.compare import (
    ComparisonPlan,
    Variant,
    choose_jobs,
    copy_duplicates,
    finished_runs,
    label_runs,
    plan_comparison,
    plan_rest,
    require_finished,
    train_in_parallel,
    train_in_turn,
    wait_for_workers,
)
from fedtaste.experiment.comparison_record import read_record
from fedtaste.experiment.folder import Data, RunFolder
from fedtaste.experiment.heterogeneity import heterogeneity
from fedtaste.experiment.privacy import adds_noise
from fedtaste.experiment.privacy_ledger import LedgerFolder
from fedtaste.experiment.progress_bars import Bars
from fedtaste.experiment.runs_alike import alike_runs
from fedtaste.experiment.settings import Settings
from fedtaste.experiment.tracking import remember_tracking, require_tracker
from fedtaste.experiment.train import Prepared
from fedtaste.files.lock import lock_folder
from fedtaste.methods import METHODS
from fedtaste.report.comparison import Compared, compare_runs, write_comparison
from fedtaste.report.html import shape, write_report
from fedtaste.report.pareto import parse_axes

WORKER = (sys.executable, "-m", "fedtaste", "resume", "--json", "--worker")


def compare(settings: Settings, options: CompareOptions) -> None:
    """Train several methods on the same data under the same protocol, or compare finished runs."""
    axes = parse_axes(",".join(options.axes) or None)
    if options.runs:
        compare_finished(settings, options, axes)
    elif options.methods == ("auto",):
        require_tracker(options.track, options.track_to, adds_noise(settings))
        compare_auto(settings, options)
    elif options.minutes is not None:
        raise SettingError("--minutes is the budget of --methods auto. Leave it out.")
    else:
        plan = plan_new(settings, requested_variants(options), options, options.budgets, axes)
        finish(plan, options.as_json)


def run_seeds(settings: Settings, options: RunOptions) -> None:
    """Train one method with several seeds, in one folder."""
    allow_method(settings.method)
    plan = plan_new(settings, [Variant(settings.method, {})], options, [settings.epsilon])
    finish(plan, options.as_json)


def resume_comparison(options: ResumeOptions) -> None:
    """Finish a comparison that was interrupted, or show one that has finished."""
    path, record = options.path, read_record(options.path)
    allow_methods_of(path, record.methods, options.method)
    if record.minutes is not None:
        resume_auto(path, record, options.as_json)
        return
    requested = [record.settings(label) for label in record.runs]
    data = load_seeds(requested[0], [settings.seed for settings in requested])
    finish(plan_rest(path, record, data), options.as_json)


def plan_new(
    settings: Settings, variants: Sequence[Variant], options: CompareOptions | RunOptions,
    budgets: Sequence[float | None], axes: tuple[str, ...] = (),
) -> ComparisonPlan:  # fmt: skip
    """Plan a comparison and write its plan; nothing is written where a mistake is found."""
    noisy = adds_noise(settings) or any(budget is not None for budget in budgets)
    require_tracker(options.track, options.track_to, noisy)
    for variant in variants:
        allow_method(variant.method)
    all_methods = isinstance(options, CompareOptions) and options.methods == ("all",)
    requested = label_runs(settings, variants, budgets, options.seeds)
    data = load_seeds(settings, [run.settings.seed for run in requested.values()])
    first = data[settings.seed]
    path = options.out or new_folder(first.name, "compare" if isinstance(options, CompareOptions) else settings.method)
    require_new(path)
    plan = plan_comparison(requested, data, path, all_methods=all_methods, log=say)
    for seed, part in data.items():
        check_ledger(options.ledger, [p for p in plan.trained.values() if p.settings.seed == seed], part)
    jobs = options.jobs if isinstance(options, CompareOptions) else None
    ledger = str(options.ledger.resolve()) if options.ledger else None
    record = plan.record.model_copy(
        update={"axes": axes, "ledger": ledger, "jobs": jobs, "track": options.track, "track_to": options.track_to}
    )
    private = any(adds_noise(prepared.settings) for prepared in plan.runs.values())
    record.begin(path, private)
    return ComparisonPlan(path, record, plan.tasks, plan.data, plan.runs)


def load_seeds(settings: Settings, seeds: Sequence[int]) -> dict[int, Data]:
    """The data by seed; data that do not depend on it are loaded once."""
    if not depends_on_seed(settings.data):
        return dict.fromkeys(seeds, load_data(settings))
    return {seed: load_data(settings.model_copy(update={"seed": seed})) for seed in dict.fromkeys(seeds)}


def finish(plan: ComparisonPlan, as_json: bool) -> None:
    """Train the runs of a comparison that have no result, write its report, and show it."""
    path, record = plan.path, plan.record
    first = min(plan.tasks)
    with lock_folder(path), Bars() as bars:
        if not plan.runs and (path / "compare.json").exists():
            say(f"{path} had finished already.")
        wait_for_workers(plan)
        enter_runs(plan)
        failed = record.refused | train_all(plan, bars)
        require_finished(plan, failed)
        copy_duplicates(plan)
        measured = heterogeneity(plan.tasks[first], first)
        compared = compare_runs(finished_runs(path, record), measured, record.axes)
        report = write_comparison(compared, path, shape(plan.data[first]), measured, failed, record.axes)
    show(compared, report, failed, as_json)


def enter_runs(plan: ComparisonPlan) -> None:
    """Create the folders of the runs that have none, and enter private runs into their ledger: all of the same data at
    once, so that the total is the same in their results."""
    ledger = Path(plan.record.ledger) if plan.record.ledger else None
    of_data: dict[str, dict[RunFolder, Prepared]] = {}
    for label, prepared in plan.trained.items():
        folder = plan.folder(label)
        if not (folder.path / "settings.json").exists():
            create_folder(folder.path, prepared, plan.data[prepared.settings.seed], ledger)
            remember_tracking(folder, plan.record.track, plan.record.track_to)
        of_data.setdefault(plan.record.runs[label].data_hash, {})[folder] = prepared
    for runs in of_data.values():
        LedgerFolder.default().enter(runs, say)


def train_all(plan: ComparisonPlan, bars: Bars) -> dict[str, str]:
    """Train the runs of a comparison. Returns why runs have no result, by label."""
    at_once = choose_jobs(len(plan.trained), plan.record.jobs)
    if at_once > 1:
        return train_in_parallel(plan, WORKER, at_once, bars, say)
    write_missing_reports(plan)

    def train(label: str, folder: RunFolder, prepared: Prepared) -> object:
        bars.label = f"{label}: "
        return train_folder(folder, prepared, plan.data[prepared.settings.seed], bars, whole=plan.path)

    return train_in_turn(plan, train, say)


def write_missing_reports(plan: ComparisonPlan) -> None:
    """Write the reports of runs that were interrupted between their result and their report."""
    for label in plan.record.runs:
        folder = plan.folder(label)
        if folder.finished and not (folder.path / "report.html").exists():
            data = plan.data[folder.settings().seed]
            write_report([folder.result()], folder.path, data=shape(data), runs=[folder.path])


def compare_finished(settings: Settings, options: CompareOptions, axes: tuple[str, ...]) -> None:
    """Compare finished runs of the same data and split; nothing is trained."""
    typed = [*settings.model_fields_set, *(n for n in options.model_fields_set if n not in READ_WITH_RUNS)]
    if typed:
        raise SettingError(f"--runs compares finished runs, so --{typed[0].replace('_', '-')} would change nothing.")
    runs = alike_runs(options.runs)
    compared = compare_runs(runs, None, axes, sweeps=False)
    path = options.out or new_folder(runs[0].result.data, "compare")
    require_new(path)
    show(compared, compared.write_report(path, None), {}, options.as_json)


READ_WITH_RUNS = ("runs", "out", "axes", "as_json")


def show(compared: Compared, report: Path, left_out: dict[str, str], as_json: bool) -> None:
    """Print what a comparison found."""
    if as_json:
        emit(compared.result(report, left_out).dump())
    else:
        show_results(compared.rows, report, compared.tradeoff, compared.study)


def requested_variants(options: CompareOptions) -> list[Variant]:
    """The methods of --methods, and those of --method with every combination of the values of --sweep."""
    if options.sweep:
        swept = _sweep(options.method, options.sweep)
        return swept + _variants(options.methods)
    if options.method or not options.methods:
        raise SettingError(
            "Say what to compare: --methods popularity,fedals, or --methods all, or --method NAME --sweep k=8,32."
        )
    return _variants(options.methods)


def _sweep(method: str | None, sweeps: Sequence[str]) -> list[Variant]:
    """Every combination of the values of all keys."""
    values: dict[str, list[str]] = {}
    for sweep in sweeps:
        name, equals, text = (part.strip() for part in sweep.partition("="))
        parts = [value.strip() for value in text.split(",") if value.strip()]
        if not (name and equals and parts and method):
            raise SettingError("A sweep needs one method and values: --method fedals --sweep lam=0.003,0.01,0.03.")
        if name in values:
            raise SettingError(f"--sweep {name} stands twice. Give all of its values at once: {name}=v1,v2.")
        values[name] = list(dict.fromkeys(parts))
    return [Variant(method or "", dict(zip(values, combination))) for combination in product(*values.values())]


def _variants(methods: Sequence[str]) -> list[Variant]:
    names = list(METHODS) if tuple(methods) == ("all",) else list(methods)
    for name in dict.fromkeys(name for name in names if names.count(name) > 1):
        say(f"{name} was named {names.count(name)} times; it is trained once.")
    return [Variant(name, {}) for name in dict.fromkeys(names)]
