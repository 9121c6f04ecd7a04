"""`fedtaste compare`: train several methods, or one over a sweep of a setting, and compare them."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from fedtaste.cli.compare_auto import compare_auto
from fedtaste.cli.options import CompareOptions
from fedtaste.cli.output import emit, ledger_folder, say
from fedtaste.cli.own_methods import allow_method
from fedtaste.cli.results import show_results
from fedtaste.cli.run import check_ledger, create_folder, load_data, new_folder, train_folder
from fedtaste.errors import RunError, SettingError
from fedtaste.experiment.compare import (
    ComparisonPlan,
    Variant,
    choose_jobs,
    copy_duplicates,
    label_runs,
    plan_comparison,
    train_in_parallel,
    train_in_turn,
)
from fedtaste.experiment.folder import Data, RunFolder
from fedtaste.experiment.privacy import adds_noise
from fedtaste.experiment.privacy_ledger import LedgerFolder
from fedtaste.experiment.progress_bars import Bars
from fedtaste.experiment.result import ComparisonResult
from fedtaste.experiment.settings import Settings
from fedtaste.experiment.tracking import remember_tracking, require_tracker
from fedtaste.experiment.train import Prepared
from fedtaste.methods import METHODS
from fedtaste.report.comparison import conclude
from fedtaste.report.html import shape
from fedtaste.report.pareto import parse_axes

WORKER = (sys.executable, "-m", "fedtaste", "resume", "--json", "--worker")


def compare(settings: Settings, options: CompareOptions) -> None:
    """Train several methods on the same data under the same protocol."""
    require_tracker(options.track, options.track_to, adds_noise(settings) or options.budgets != [None])
    if options.methods == ("auto",):
        compare_auto(settings, options)
        return
    if options.minutes is not None:
        raise SettingError("--minutes is the budget of --methods auto. Leave it out.")
    variants, axes = requested_variants(options), parse_axes(",".join(options.axes) or None)
    for variant in variants:
        allow_method(variant.method)
    data = load_data(settings)
    path = options.out or new_folder(data.name, "compare")
    if path.exists():
        raise RunError(f"{path} is there already. Choose another --out.")
    requested = label_runs(settings, variants, options.budgets)
    plan = plan_comparison(requested, data, path, all_methods=options.methods == ("all",), log=say)
    check_ledger(options.ledger, list(plan.trained.values()), data)
    folders = {create_folder(plan.folder(n).path, p, data, options.ledger): p for n, p in plan.trained.items()}
    for folder in folders:
        remember_tracking(folder, options.track, options.track_to)
    LedgerFolder(ledger_folder()).enter(folders, say)  # all at once: the total is the same in every result
    with Bars() as bars:
        failed = plan.refused | train_all(plan, data, options.jobs, bars)
        copy_duplicates(plan)
        results = plan.results()
        report, trade_off = conclude(results, plan.task, path, settings.seed, shape(data), failed, axes)
    if options.as_json:
        summary = trade_off.summary() if trade_off else None
        emit(ComparisonResult(results=tuple(results), report=str(report), tradeoff=summary, left_out=failed).dump())
    else:
        show_results(results, report, trade_off)


def train_all(plan: ComparisonPlan, data: Data, jobs: int | None, bars: Bars) -> dict[str, str]:
    """Train the runs of a comparison. Returns why runs have no result, by label."""
    at_once = choose_jobs(len(plan.trained), jobs)
    if at_once > 1:
        return train_in_parallel(plan, WORKER, at_once, bars, say)

    def train(label: str, folder: RunFolder, prepared: Prepared) -> object:
        bars.label = f"{label}: "
        return train_folder(folder, prepared, data, bars)

    return train_in_turn(plan, train, say)


def requested_variants(options: CompareOptions) -> list[Variant]:
    """The methods of --methods, and those of --method with every value of --sweep."""
    if options.sweep:
        swept = _sweep(options.method, options.sweep)
        return swept + _variants(options.methods)
    if options.method or not options.methods:
        raise SettingError(
            "Say what to compare: --methods popularity,fedals, or --methods all, or --method NAME --sweep k=8,32."
        )
    return _variants(options.methods)


def _sweep(method: str | None, sweep: str) -> list[Variant]:
    name, equals, text = sweep.partition("=")
    values = [value.strip() for value in text.split(",") if value.strip()]
    if not (name.strip() and equals and values and method):
        raise SettingError("A sweep needs one method and values: --method fedals --sweep lam=0.003,0.01,0.03.")
    return [Variant(method, {name.strip(): value}) for value in dict.fromkeys(values)]


def _variants(methods: Sequence[str]) -> list[Variant]:
    names = METHODS if tuple(methods) == ("all",) else methods
    return [Variant(name, {}) for name in dict.fromkeys(names)]
