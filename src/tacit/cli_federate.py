"""`tacit federate`: parses, calls, prints."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from .cli_options import (
    BackendOption,
    CohortOption,
    DataOption,
    DeltaOption,
    DownloadOption,
    DropoutOption,
    EpsilonOption,
    JsonOption,
    LedgerOption,
    NewOption,
    NoiseSeedOption,
    OutOption,
    PatienceOption,
    RoundsOption,
    SeedOption,
    SetOption,
    SplitOption,
    TaskOption,
    ThreadsOption,
    ToleranceOption,
    WireOption,
    check,
    foretell,
    make_settings,
    refuse_idle,
)
from .cli_privacy import check_ledger, enter_runs, name_ledger
from .errors import RunError, SettingError
from .terminal import Bars, cache, emit, err, out, say, show

NodesOption = Annotated[int, typer.Option("--nodes", help="SuperNodes; everybody's data are dealt out to them.")]
DeadlineOption = Annotated[
    float, typer.Option("--deadline", help="Seconds that a node has to answer; a round goes on without the others.")
]
LeastOption = Annotated[float, typer.Option("--least", help="Share of the people asked that a round needs.")]
PortOption = Annotated[
    int | None,
    typer.Option("--port", help="Of the SuperLink; a free one when left out. With --write-app: of its proxy (8443)."),
]
HostOption = Annotated[
    str, typer.Option("--host", help="Where the SuperLink listens. With --write-app: the name that nodes reach it by.")
]
CatalogueOption = Annotated[
    Path | None,
    typer.Option(
        "--catalogue", help="With --write-app, in place of --data: a file of items, with columns item, title, genres."
    ),
]
AppOption = Annotated[
    Path | None,
    typer.Option("--write-app", help="Run nothing: write the Flower app, keys and commands for real machines here."),
]


def federate(
    data: DataOption = "ml-100k", task: TaskOption = None,
    method: Annotated[str, typer.Option("--method", help="A method; a wrong name lists them all.")] = "fedals",
    set_: SetOption = None, nodes: NodesOption = 4, rounds: RoundsOption = None, cohort: CohortOption = None,
    dropout: DropoutOption = 0.0, split: SplitOption = "leave-one-out", new_people: NewOption = None,
    tolerance: ToleranceOption = None, patience: PatienceOption = None, seed: SeedOption = 0, out_: OutOption = None,
    backend: BackendOption = "auto", download: DownloadOption = "dense", wire: WireOption = "",
    epsilon: EpsilonOption = None, delta: DeltaOption = None, noise_seed: NoiseSeedOption = None,
    ledger: LedgerOption = None, deadline: DeadlineOption = 120.0, least: LeastOption = 0.5,
    host: HostOption = "127.0.0.1", port: PortOption = None, write_app: AppOption = None,
    catalogue: CatalogueOption = None, threads: ThreadsOption = None, json_: JsonOption = False,
) -> None:  # fmt: skip
    """The same run as `tacit run` as a real federation over Flower: one SuperLink, N SuperNodes, TLS, node keys."""
    from .data.sources import load
    from .experiment import make_task
    from .flower.processes import require_flower
    from .methods import find_method
    from .runs import next_folder

    if catalogue is not None and write_app is None:
        raise SettingError("--catalogue names items without anybody, so nothing can be run on it. Add --write-app DIR.")
    if ledger is not None and write_app is not None:
        raise SettingError("--ledger would change nothing: --write-app runs nothing. Leave it out.")
    settings = make_settings(
        data=data if catalogue is None else str(catalogue), task=task, method=method, set=set_, rounds=rounds,
        cohort=cohort, dropout=dropout, protocol="clean", split=split, new_people=new_people,
        tolerance=tolerance, patience=patience, seed=seed, backend=backend, store="memory", download=download,
        threads=threads, wire=wire, epsilon=epsilon, delta=delta, noise_seed=noise_seed,
    )  # fmt: skip
    require_flower()
    from .flower.checks import refuse_unfit
    from .flower.federate import Federation, prepare

    asked = _asked(Federation, nodes=nodes, deadline=deadline, least=least, host=host, port=port)
    refuse_unfit(settings)
    find_method(method)
    if write_app is not None:
        from .flower.deploy import read_catalogue, write_deployment

        items = load(data, seed=seed, cache=cache(), say=say) if catalogue is None else read_catalogue(catalogue)
        emit_or_say(write_deployment(write_app, settings, items, asked), json_)
        return
    loaded = load(data, seed=seed, cache=cache(), say=say)
    path = out_ or next_folder(Path("runs"), f"{loaded.name.replace('/', '-').replace(':', '-')}-{method}")
    made = make_task(settings, loaded)
    check(settings, made)
    refuse_idle(settings, made)
    check_ledger(ledger, [settings], made, loaded)
    foretell(settings, made)
    folder = prepare(path, settings, loaded, asked)
    name_ledger(folder, ledger)
    del made
    finish(folder, loaded, json_)


def finish(folder: Any, loaded: Any, json_: bool) -> None:
    """Run, or go on with, the federation of a run folder, and show its result."""
    from .flower.processes import require_flower

    require_flower()
    from .flower.federate import federate as run
    from .report import shape, write_report

    path = folder.path
    enter_runs([folder], loaded)
    try:
        with Bars() as bars:
            result = run(folder, bars, say, lines=not err.is_terminal)
    except KeyboardInterrupt:
        raise RunError(f"Stopped. Nothing is lost: go on with `tacit resume {path}`.") from None
    write_report([result], path, data=shape(loaded), runs=[path])
    if json_:
        emit(result)
    else:
        show([result], path / "report.html")
        if result["items"]:
            out.print(f"Next: tacit recommend {path} --likes TITLE", markup=False, soft_wrap=True)


def emit_or_say(told: dict[str, Any], json_: bool) -> None:
    if json_:
        emit(told)
    else:
        out.print(told["next"], markup=False, soft_wrap=True)


def _asked(kind: Any, **values: Any) -> Any:
    from pydantic import ValidationError

    try:
        return kind(**values)
    except ValidationError as error:
        first = error.errors()[0]
        name = str(first["loc"][0])
        raise SettingError(f"--{name} {values[name]} was got: {first['msg'].lower()}.") from None
