"""`tacit audit`: parses, calls, prints."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated, Any

import typer

from .cli_options import (
    CohortOption,
    DataOption,
    DeltaOption,
    DropoutOption,
    EpsilonOption,
    JsonOption,
    NoiseSeedOption,
    OutOption,
    SeedOption,
    SetOption,
    TaskOption,
    ThreadsOption,
    WireOption,
    make_settings,
)
from .errors import RunError, SettingError
from .terminal import Bars, cache, emit, out, say

FEWEST, MOST = 20, 2000  # canaries (evaluation/canary_run.py, which is imported when it is needed)

RoundOption = Annotated[
    int | None, typer.Option("--rounds", help="Lists are guessed from rounds 1 to this one (default: 1).")
]
RunRoundsOption = Annotated[
    int | None,
    typer.Option("--run-rounds", help="Rounds of the run that is audited, as in `run --rounds` (default: the usual)."),
]
CanariesOption = Annotated[
    int | None,
    typer.Option("--canaries", help="People added for the membership test, at most 2000; 0: no such test."),
]
PeopleOption = Annotated[int, typer.Option("--people", help="People who are audited, at most.")]
UploadsOption = Annotated[
    Path | None, typer.Option("--uploads", help="Attack saved uploads: a folder with one message a person, or a file.")
]
TruthOption = Annotated[
    Path | None,
    typer.Option("--truth", help="With --uploads: the truth, a CSV user,item (default: truth.csv there)."),
]
SaveOption = Annotated[
    Path | None, typer.Option("--save", help="Write the uploads that are attacked into this folder, with the truth.")
]


def audit(
    data: DataOption = "ml-100k", task: TaskOption = None,
    method: Annotated[str, typer.Option("--method", help="A method; a wrong name lists them all.")] = "fedals",
    set_: SetOption = None, rounds: RoundOption = None, cohort: CohortOption = None, dropout: DropoutOption = 0.0,
    wire: WireOption = "", epsilon: EpsilonOption = None, delta: DeltaOption = None,
    noise_seed: NoiseSeedOption = None, run_rounds: RunRoundsOption = None, people: PeopleOption = 300,
    canaries: CanariesOption = None, uploads: UploadsOption = None,
    truth: TruthOption = None, save: SaveOption = None, seed: SeedOption = 0, out_: OutOption = None,
    threads: ThreadsOption = None, json_: JsonOption = False,
) -> None:  # fmt: skip
    """Attack the uploads that a configuration really produces: what a server learns about people, and a page of it."""
    from .audit_report import write_audit
    from .runs import next_folder

    check(people, rounds, canaries, uploads, truth, save, wire, epsilon)
    values = {
        "data": data, "task": task, "method": method, "set": set_, "rounds": rounds, "cohort": cohort,
        "dropout": dropout, "wire": wire, "epsilon": epsilon, "delta": delta, "noise_seed": noise_seed, "seed": seed,
        "threads": threads, "run_rounds": run_rounds,
    }  # fmt: skip
    name = uploads.name if uploads else f"{data.replace('/', '-').replace(':', '-')}-{method}"
    path = out_ or next_folder(Path("runs"), f"{name}-audit")
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise RunError(f"{path} is there already, and not empty. Choose another --out.")
    result = saved(uploads, truth) if uploads else live(values, people, canaries, save)
    result["command"] = command(values, people, canaries, uploads, truth)
    result["report"] = str(path / "audit.html")
    write_audit(result, path)
    emit(result) if json_ else show(result)


def check(
    people: int, rounds: int | None, canaries: int | None, uploads: Path | None, truth: Path | None, save: Path | None,
    wire: str, epsilon: float | None,
) -> None:  # fmt: skip
    """Options that cannot be, or would change nothing."""
    if people < 2:
        raise SettingError(f"--people {people} was got; at least 2 are needed: an attack is chosen on other people.")
    if rounds is not None and rounds < 1:
        raise SettingError(f"--rounds {rounds} was got; at least 1 is expected.")
    if canaries is not None and (canaries < 0 or 0 < canaries < FEWEST or canaries > MOST):
        raise SettingError(f"--canaries must be from {FEWEST} to {MOST}, or 0 for no membership test; got {canaries}.")
    if truth and not uploads:
        raise SettingError("--truth is of saved uploads, and there are none. Add --uploads, or leave it out.")
    if uploads and (save or wire or epsilon is not None or rounds is not None or canaries is not None):
        raise SettingError(
            "Saved uploads are attacked as they are: --save, --wire, --epsilon, --rounds and --canaries would change "
            "nothing. Leave them out."
        )


def live(values: dict[str, Any], people: int, canaries: int | None, save: Path | None) -> dict[str, Any]:
    from .audits import audit as attack
    from .costs import threads
    from .data.sources import load
    from .experiment import make_task
    from .methods import find_method

    find_method(values["method"])
    asked = {name: value for name, value in values.items() if name != "run_rounds"}
    settings = make_settings(
        **(asked | {"rounds": values["run_rounds"]}), protocol="clean", split="leave-one-out", new_people=None,
        tolerance=None, patience=None, backend="auto", store="memory", download="dense",
    )  # fmt: skip
    loaded = load(values["data"], seed=values["seed"], cache=cache(), say=say)
    threads(values["threads"])
    titles = getattr(getattr(loaded, "train", loaded), "titles", ())
    with Bars() as bars:
        return attack(
            settings, make_task(settings, loaded), titles, rounds=values["rounds"], people=people, canaries=canaries,
            save=save, watch=bars,
        )  # fmt: skip


def saved(uploads: Path, truth: Path | None) -> dict[str, Any]:
    from .audits import audit_saved
    from .saved_uploads import read_uploads

    with Bars() as bars:
        return audit_saved(read_uploads(uploads, truth), bars)


def command(values: dict[str, Any], people: int, canaries: int | None, uploads: Path | None, truth: Path | None) -> str:
    """What makes this audit again."""
    parts = ["tacit", "audit"]
    if uploads:
        return shlex.join([*parts, "--uploads", str(uploads), *(["--truth", str(truth)] if truth else [])])
    usual = {"dropout": 0.0, "wire": "", "seed": 0}
    for name, value in values.items():
        option = f"--{name.replace('_', '-')}"
        for each in (value or []) if name == "set" else [value]:
            if each is not None and usual.get(name) != each:
                parts += [option, str(each)]
    parts += ["--people", str(people)] if people != 300 else []
    return shlex.join([*parts, *(["--canaries", str(canaries)] if canaries is not None else [])])


def show(result: dict[str, Any]) -> None:
    from rich.table import Table
    from rich.text import Text

    from .audit_report import grid, headline, members, ratings, verdict

    found = grid(result, "f1")
    title = "F1 by people in a sum: the mean, and the most exposed person"
    table = Table("stages", *found["sizes"], title=title, title_justify="left", box=None)
    for stage, cells in found["rows"]:
        row = [Text("–") if c is None else Text(f"{c['text']} {c['worst']}", _look(c)) for c in cells]
        table.add_row(Text(stage), *row)
    out.print(table)
    popular, blind = result["popularity_f1"], result["random_f1"]
    out.print(
        f"baselines: popularity {popular:.3f}, a blind guess {blind:.3f}; dim: never seen by the server", style="dim"
    )
    if result["membership"]:
        printed = "none" if result["epsilon"] is None else f"{result['epsilon']:.3g}"
        out.print(f"epsilon printed {printed}, measured at least {result['epsilon_lower']:.3g}", style="bold")
    out.print(headline(result), style="bold", markup=False)
    for good, text in verdict(result):
        out.print(text, style="green" if good else "bold red", markup=False)
    for text in (*filter(None, [members(result), ratings(result)]), f"Attack: {result['attack']}.", *result["notes"]):
        out.print(text, style="dim", markup=False)
    out.print(f"Report: {result['report']}", markup=False, soft_wrap=True)


def _look(cell: dict[str, Any]) -> str:
    return "bold" if cell["main"] else "" if cell["seen"] else "dim"
