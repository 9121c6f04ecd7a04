"""The command line: parses, calls, prints; nothing else. Only this file reads arguments and the environment."""

from __future__ import annotations

import os
import sys
import time
import traceback
from pathlib import Path
from typing import Annotated, Any, NoReturn

import click
import typer

from . import __version__
from .cli_audit import audit
from .cli_bench import bench
from .cli_data import data_app
from .cli_export import export
from .cli_federate import federate
from .cli_federate import finish as resume_federation
from .cli_options import (
    BackendOption,
    CohortOption,
    DataOption,
    DeltaOption,
    DownloadOption,
    DropoutOption,
    EpsilonOption,
    JobsOption,
    JsonOption,
    LedgerOption,
    NewOption,
    NoiseSeedOption,
    OutOption,
    PatienceOption,
    PromiseOption,
    ProtocolOption,
    RoundsOption,
    SeedOption,
    SetOption,
    SplitOption,
    StoreOption,
    TaskOption,
    ThreadsOption,
    ToleranceOption,
    WireOption,
    check,
    foretell,
    make_settings,
    parse_budgets,
    refuse_idle,
    wanted_runs,
)
from .cli_poison import poison
from .cli_privacy import check_ledger, enter_runs, name_ledger, privacy_app
from .cli_recommend import recommend
from .cli_report import report
from .cli_serve import serve
from .errors import RunError, SettingError, TacitError
from .terminal import Bars, cache, emit, err, out, say, show

STOPPED = "Stopped while no run was being trained; nothing is lost."
app = typer.Typer(
    help="tacit: personalised federated recommendation. `tacit run` is the main job.",
    no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)  # fmt: skip
app.add_typer(data_app, name="data")
app.add_typer(privacy_app, name="privacy")


def start(settings: Any, data: Any, path: Path, ledger: Path | None) -> Any:
    """Make the run folder, which remembers the privacy ledger that was named."""
    from .runs import RunFolder

    folder = RunFolder.create(path, settings.model_dump(), data, __version__)
    name_ledger(folder, ledger)
    return folder


def by_hand(error: BaseException) -> bool:
    """Whether this is Ctrl-C. What comes while a compiled kernel is being called, Numba hands on as a SystemError."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, KeyboardInterrupt):
        cause = cause.__cause__
    return cause is not None


def finish(
    folder: Any, settings: Any, data: Any, bars: Bars, task: Any = None, began: float | None = None
) -> dict[str, Any]:
    try:
        from .comparison import WORKER
        from .experiment import execute
        from .report import shape, write_report

        enter_runs([folder], data, task)
        result = execute(settings, data, folder, bars, task, began)
        if not os.environ.get(WORKER):  # a comparison has one report of all; `tacit report RUN` writes that of a run
            write_report([result], folder.path, data=shape(data), runs=[folder.path])
    except (KeyboardInterrupt, SystemError) as error:
        if not by_hand(error):
            raise
        raise RunError(f"Stopped. Nothing is lost: go on with `tacit resume {folder.path}`.") from None
    return result


@app.command()
def run(
    data: DataOption = "ml-100k", task: TaskOption = None,
    method: Annotated[str, typer.Option("--method", help="A method; a wrong name lists them all.")] = "fedals",
    set_: SetOption = None, rounds: RoundsOption = None, cohort: CohortOption = None, dropout: DropoutOption = 0.0,
    protocol: ProtocolOption = "clean", split: SplitOption = "leave-one-out", new_people: NewOption = None,
    tolerance: ToleranceOption = None, patience: PatienceOption = None, seed: SeedOption = 0, out_: OutOption = None,
    backend: BackendOption = "auto", store: StoreOption = "memory", download: DownloadOption = "dense",
    wire: WireOption = "", epsilon: EpsilonOption = None, delta: DeltaOption = None,
    noise_seed: NoiseSeedOption = None, promise: PromiseOption = False, ledger: LedgerOption = None,
    threads: ThreadsOption = None, json_: JsonOption = False,
) -> None:  # fmt: skip
    """Train one method on one data set: a result table, and a run folder that can be resumed."""
    from .data.sources import load
    from .experiment import make_task
    from .methods import find_method
    from .runs import next_folder

    settings = make_settings(
        data=data, task=task, method=method, set=set_, rounds=rounds, cohort=cohort, dropout=dropout,
        protocol=protocol, split=split, new_people=new_people, tolerance=tolerance, patience=patience,
        seed=seed, backend=backend, store=store, download=download, threads=threads,
        wire=wire, epsilon=epsilon, delta=delta, noise_seed=noise_seed, promise=promise,
    )  # fmt: skip
    began = time.perf_counter()
    find_method(method)
    if epsilon is not None or "noise" in wire or "local" in wire:
        say("Loading the data and working out the noise.")
    loaded = load(data, seed=seed, cache=cache(), say=say)
    path = out_ or next_folder(Path("runs"), f"{loaded.name.replace('/', '-').replace(':', '-')}-{method}")
    made = make_task(settings, loaded)
    check(settings, made)
    refuse_idle(settings, made)
    check_ledger(ledger, [settings], made, loaded)
    foretell(settings, made)
    folder = start(settings, loaded, path, ledger)
    with Bars() as bars:
        result = finish(folder, settings, loaded, bars, made, began)
    if json_:
        emit(result)
    else:
        show([result], path / "report.html")
        if result["items"]:
            out.print(f"Next: tacit recommend {path} --likes TITLE", markup=False, soft_wrap=True)


@app.command()
def compare(
    methods: Annotated[str | None, typer.Option("--methods", help="Names with commas between, or all.")] = None,
    method: Annotated[str | None, typer.Option("--method", help="The one method of a sweep.")] = None,
    sweep: Annotated[
        str | None, typer.Option("--sweep", help="key=v1,v2,...: once for every value; --methods may stand beside it.")
    ] = None,
    data: DataOption = "ml-100k", task: TaskOption = None, set_: SetOption = None, rounds: RoundsOption = None,
    cohort: CohortOption = None, dropout: DropoutOption = 0.0, protocol: ProtocolOption = "clean",
    split: SplitOption = "leave-one-out", new_people: NewOption = None, tolerance: ToleranceOption = None,
    patience: PatienceOption = None, seed: SeedOption = 0, out_: OutOption = None,
    backend: BackendOption = "auto", store: StoreOption = "memory", download: DownloadOption = "dense",
    wire: WireOption = "",
    epsilon: Annotated[
        str | None, typer.Option("--epsilon", help="One or several, as in 1,3,10,none: every method with each of them.")
    ] = None,
    delta: DeltaOption = None, noise_seed: NoiseSeedOption = None, ledger: LedgerOption = None,
    axes: Annotated[
        str | None, typer.Option("--axes", help="Weigh these at once: accuracy,bytes,epsilon (rounds, gradients).")
    ] = None,
    threads: ThreadsOption = None, jobs: JobsOption = None, json_: JsonOption = False,
) -> None:  # fmt: skip
    """Several methods, or one over a sweep of a setting: same data, same protocol, one table and one report."""
    from .axes import parse_axes
    from .comparison import conclude, jobs_for, longest_first, one_by_one, side_by_side
    from .data.sources import load
    from .experiment import make_task
    from .methods import METHODS, find_method
    from .report import shape
    from .runs import RunFolder, next_folder
    from .twins import copied, twins

    chosen, budgets, asked = (
        wanted_runs(methods, method, sweep, list(METHODS)),
        parse_budgets(epsilon),
        parse_axes(axes),
    )
    for name, _ in chosen:
        find_method(name)
    loaded = load(data, seed=seed, cache=cache(), say=say)
    path = out_ or next_folder(Path("runs"), f"{loaded.name.replace('/', '-').replace(':', '-')}-compare")
    if path.exists():
        raise RunError(f"{path} is there already. Choose another --out.")
    wanted, refused = {}, {}
    for (name, extra), budget in ((run, budget) for run in chosen for budget in budgets):
        pairs = [f"{k}={v}" for k, v in extra.items()]
        mark = [f"epsilon={'none' if budget is None else f'{budget:g}'}"] if len(budgets) > 1 else []
        wanted["-".join([name, *pairs, *mark])] = make_settings(
            data=data, task=task, method=name, set=[*(set_ or ()), *pairs],
            rounds=rounds, cohort=cohort, dropout=dropout, protocol=protocol, split=split, new_people=new_people,
            tolerance=tolerance, patience=patience, seed=seed, backend=backend, store=store,
            download=download, threads=threads, wire=wire, epsilon=budget,
            delta=delta if budget is not None or "noise" in wire or "local" in wire else None, noise_seed=noise_seed,
        )  # fmt: skip
    made = make_task(next(iter(wanted.values())), loaded)  # the same for all of them
    for label, settings in list(wanted.items()):
        try:
            check(settings, made)
        except SettingError as error:
            if methods != "all":
                raise
            refused[label] = str(error)
            say(f"{label} is left out: {error}")
            del wanted[label]
    same = twins(wanted, made) if methods == "all" else {}
    folders = {label: path / label.replace("/", "-") for label in wanted}
    alone = {label: settings for label, settings in wanted.items() if label not in same}
    check_ledger(ledger, list(alone.values()), made, loaded)
    begun = [start(settings, loaded, folders[label], ledger) for label, settings in alone.items()]
    enter_runs(begun, loaded, made)  # all of them first: the total is the same in every result, in whatever order
    with Bars() as bars:

        def one(label: str, settings: Any, folder: Path) -> dict[str, Any]:
            bars.label = f"{label}: "
            return finish(RunFolder(folder), settings, loaded, bars, made)

        if (many := jobs_for(len(alone), jobs)) > 1:
            bars.phase(f"runs, {many} at a time", len(alone), 0)
            order = {label: folders[label] for label in longest_first(alone, made)}
            lost = refused | side_by_side(order, many, lambda n: bars.round(n, None), say)
        else:
            lost = refused | one_by_one(alone, folders, one, say)
        for label, first in same.items():
            if RunFolder(folders[first]).finished:
                copied(folders[first], folders[label], wanted[label], made)
        results = [RunFolder(folder).result() for folder in folders.values() if RunFolder(folder).finished]
        report_path, weighed = conclude(results, made, path, seed, shape(loaded), lost, asked)
    if json_:
        told = weighed.summary() if weighed else None
        emit({"results": results, "report": str(report_path), "tradeoff": told, "left_out": lost})
    else:
        show(results, report_path, weighed)


@app.command()
def resume(path: Annotated[Path, typer.Argument(help="A run folder.")], json_: JsonOption = False) -> None:
    """Go on with a run that was interrupted; the result is the same, byte for byte, as without the interruption."""
    from .comparison import end_with_parent
    from .data.sources import load
    from .runs import RunFolder

    end_with_parent()
    folder = RunFolder.open(path)
    settings = folder.settings()
    if folder.finished and (path / "report.html").exists():
        say(f"{path} had finished already.")
        result = folder.result()
    else:
        loaded = load(settings.data, seed=settings.seed, cache=cache(), say=say)
        folder.same_data(loaded)
        folder.same_version(__version__)
        if (path / "federation.json").exists():
            return resume_federation(folder, loaded, json_)
        with Bars() as bars:
            result = finish(folder, settings, loaded, bars)
    return emit(result) if json_ else show([result], path / "report.html")


for command in (report, federate, recommend, export, serve, audit, poison, bench):
    app.command()(command)


def version(show_it: bool) -> None:
    if show_it:
        out.print(f"tacit {__version__}")
        raise typer.Exit


@app.callback()
def top(
    version_: Annotated[bool, typer.Option("--version", callback=version, is_eager=True, help="Say which.")] = False,
) -> None:
    pass


def fail(message: str, code: int = 2) -> NoReturn:
    err.print(f"error: {message}", style="red", markup=False, soft_wrap=True)
    sys.exit(code)


def main() -> None:
    """What can be mended is said in a sentence, with exit code 2; a traceback is for bugs, and only when asked for."""
    try:
        code = app(standalone_mode=False)
        if code == 130:  # typer's word for Ctrl-C
            raise KeyboardInterrupt
        sys.exit(code if isinstance(code, int) else 0)
    except TacitError as error:
        fail(str(error))
    except (click.exceptions.Abort, KeyboardInterrupt):
        fail(STOPPED)
    except click.ClickException as error:
        if not error.format_message().strip():  # nothing was asked, and the help was shown
            sys.exit(0)
        fail(usage(error))
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except (MemoryError, OSError) as error:
        fail(f"{type(error).__name__}: {error}. Free some memory or space, or use smaller data.")
    except Exception as error:  # noqa: BLE001 (the last door)
        if by_hand(error):
            fail(STOPPED)
        if type(error).__name__ == "_LinAlgError":  # torch's; torch may not have been imported
            fail("A system of equations cannot be solved: lam or alpha0 is far too large or too small.")
        if os.environ.get("TACIT_DEBUG"):
            traceback.print_exc()
        fail(
            f"This is a bug in tacit: {type(error).__name__}: {error}. Please report it; TACIT_DEBUG=1 shows where.",
            1,
        )


def usage(error: click.ClickException) -> str:
    where = f" See `{error.ctx.command_path} --help`." if isinstance(error, click.UsageError) and error.ctx else ""
    return error.format_message() + where


if __name__ == "__main__":
    main()
