"""`fedtaste compare --methods auto`: try the methods that suit the data within a time budget, and advise one."""

from __future__ import annotations

import time
from pathlib import Path

from rich.table import Table

from fedtaste import __version__
from fedtaste.cli.options import COMMANDS, CompareOptions
from fedtaste.cli.output import emit, out, put, say
from fedtaste.cli.parser import option_words
from fedtaste.cli.run import create_folder, load_data, new_folder, require_new, train_folder
from fedtaste.errors import DivergedError, RunError, SettingError
from fedtaste.experiment.compare import finished_runs
from fedtaste.experiment.comparison_record import ComparisonRecord, RecordedRun, recorded_settings
from fedtaste.experiment.folder import Data, RunFolder, fingerprint
from fedtaste.experiment.heterogeneity import heterogeneity
from fedtaste.experiment.method_choice import ChoicePlan, choose, estimate_seconds, plan_choice, require_budget
from fedtaste.experiment.progress_bars import Bars
from fedtaste.experiment.result import MethodChoice, RunResult
from fedtaste.experiment.settings import Settings
from fedtaste.experiment.tracking import remember_tracking
from fedtaste.experiment.train import make_task
from fedtaste.files.lock import lock_folder
from fedtaste.report.comparison import compare_runs, write_comparison
from fedtaste.report.html import shape
from fedtaste.report.numbers import human_bytes, human_seconds
from fedtaste.text import command_text

MINUTES = 5.0


def compare_auto(settings: Settings, options: CompareOptions) -> None:
    """Try the candidates, print what each is worth and which one to take."""
    _refuse_other_options(settings, options)
    data = load_data(settings)
    path, minutes = options.out or new_folder(data.name, "auto"), options.minutes or MINUTES
    require_new(path)
    plan = plan_choice(settings, data, make_task(settings, data))
    require_budget({method: estimate_seconds(plan.runs[method]) for method in plan.required}, minutes)
    recorded = {
        method: RecordedRun(
            folder=method, configuration=method, settings=recorded_settings(prepared.settings),
            data_hash=fingerprint(data),
        )
        for method, prepared in plan.runs.items()
    }  # fmt: skip
    record = ComparisonRecord(
        version=__version__, runs=recorded, duplicates={}, refused=plan.left_out, axes=(), ledger=None, jobs=None,
        minutes=minutes, track=options.track, track_to=options.track_to,
    )  # fmt: skip
    record.begin(path)
    finish_auto(path, record, plan, data, settings, options.as_json)


def resume_auto(path: Path, record: ComparisonRecord, as_json: bool) -> None:
    """Try the candidates that an interrupted comparison has not tried, or show one that has finished."""
    method = next(iter(record.runs))
    settings = record.settings(method)
    data = load_data(settings)
    record.require_same_data(path, method, fingerprint(data))
    if not finished(path):
        record.require_same_version(path, __version__)
    plan = plan_choice(settings, data, make_task(settings, data))
    finish_auto(path, record, plan, data, settings, as_json)


def finished(path: Path) -> bool:
    """Whether the choice was made, and its report was written."""
    return (path / "compare.json").exists()


def finish_auto(
    path: Path, record: ComparisonRecord, plan: ChoicePlan, data: Data, settings: Settings, as_json: bool
) -> None:
    """Try the candidates that have no result, choose, and show the choice."""
    with lock_folder(path), Bars() as bars:
        if finished(path):
            say(f"{path} had finished already.")
            choice = RunFolder(path).validated("choice.json", MethodChoice)
        else:
            results = try_methods(path, record, plan, data, bars)
            choice = choose(plan, results, record.minutes or MINUTES)
            RunFolder(path).write("choice.json", choice.dump())
        tried = [trial.method for trial in choice.trials]
        runs = [run for run in finished_runs(path, record) if run.result.method in tried]
        measured = heterogeneity(plan.task, runs[0].result.seed)
        compared = compare_runs(runs, measured).advised(choice)
        report = write_comparison(compared, path, shape(data), measured, choice.left_out)
    if as_json:
        emit(compared.result(report, choice.left_out).model_copy(update={"choice": choice}).dump())
    else:
        show_choice(choice, report)
        put(f"Next: {command_of_fit(settings, choice.take)}")


def command_of_fit(settings: Settings, method: str) -> str:
    """The command that trains this method on everything, with the data and the options of the comparison."""
    chosen = settings.model_copy(update={"method": method})
    return command_text("fit", *option_words(chosen, COMMANDS["fit"].settings, ("data", "method")))


def try_methods(path: Path, record: ComparisonRecord, plan: ChoicePlan, data: Data, bars: Bars) -> list[RunResult]:
    """Train the candidates that have no result in turn, as long as the budget allows; a method that does not fit it is
    left out. What an interrupted comparison spent counts."""
    began, minutes, results = time.perf_counter(), record.minutes or MINUTES, []
    spent = 0.0  # seconds, before this process
    for method, prepared in plan.runs.items():
        folder = record.require_own_folder(path, method)
        if folder.finished and (folder.path / "report.html").exists():
            results.append(folder.result())
            seconds = results[-1].seconds
            spent += seconds.setup + seconds.train + seconds.evaluate
            continue
        if not (folder.path / "settings.json").exists():
            if method not in plan.required:
                needed = estimate_seconds(prepared)
                left = 60 * minutes - spent - (time.perf_counter() - began)
                if needed > left:
                    budget = f"{human_seconds(max(left, 0.0))} of {minutes:g} minutes are left"
                    plan.left_out[method] = f"it would take up to {human_seconds(needed)}, and {budget}"
                    say(f"{method} is left out: {plan.left_out[method]}.")
                    continue
            create_folder(folder.path, prepared, data, None)
            remember_tracking(folder, record.track, record.track_to)
        bars.label = f"{method}: "
        try:
            results.append(train_folder(folder, prepared, data, bars, whole=path))
        except DivergedError as error:
            plan.left_out[method] = str(error)
            say(f"{method} is left out: {error}")
            if len(plan.runs) == 1:
                raise
    if not results:
        raise RunError("None of the methods finished; the reasons are above.")
    return results


def show_choice(choice: MethodChoice, report: Path) -> None:
    """Print the table of the methods that were tried, why others were not, and the advice."""
    table = Table("method", f"{choice.metric}\nvalidation", "bytes a\nperson", "stays with\na person", "new person",
                  "secure\nsums", "page")  # fmt: skip
    for trial in choice.trials:
        stays = "history and own parameters" if trial.private else "history"
        served = "trains first" if trial.trains_new_people else "at once"
        flags = ["yes" if flag else "no" for flag in (trial.secure, trial.page)]
        sent, style = human_bytes(trial.bytes_per_person), "bold" if trial.method == choice.take else None
        table.add_row(trial.method, f"{trial.valid:.3f}", sent, stays, served, *flags, style=style)
    out.print(table)
    for trial in choice.trials:
        out.print(f"Tried {trial.method}: {trial.why}.", style="dim", markup=False)
    reasons: dict[str, list[str]] = {}
    for method, reason in choice.left_out.items():
        reasons.setdefault(reason, []).append(method)
    for reason, methods in reasons.items():
        out.print(f"Not tried: {', '.join(methods)}: {reason.rstrip('.')}.", style="dim", markup=False)
    put(choice.sentence, "bold")
    put(f"Report: {report}")


def _refuse_other_options(settings: Settings, options: CompareOptions) -> None:
    """Raise SettingError for options that say what to compare, which auto decides itself."""
    given: dict[str, object] = {"--method": options.method, "--sweep": options.sweep, "--jobs": options.jobs}
    given |= {"--set": settings.set, "--axes": options.axes, "--ledger": options.ledger, "--epsilon": options.epsilon}
    given |= {"--seeds": options.seeds > 1}
    given |= {"--rounds": settings.rounds}
    for name, value in given.items():
        if value:
            raise SettingError(
                f"{name} does not go with --methods auto, which tries methods as they are. Leave it out."
            )
