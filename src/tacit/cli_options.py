"""The options that `run` and `compare` share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

DataOption = Annotated[
    str,
    typer.Option(
        "--data", help="A name of `tacit data list`, a CSV or Parquet file, or a folder with train.csv and test.csv."
    ),
]
TaskOption = Annotated[
    str | None, typer.Option("--task", help="ranking, ratings or regression; told from the data when left out.")
]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", help="key=value, repeatable: a setting of the method, model or server, e.g. --set k=64."),
]
RoundsOption = Annotated[int | None, typer.Option("--rounds", help="Rounds at most.")]
CohortOption = Annotated[
    str | None,
    typer.Option(
        "--cohort", help="People asked in a round: a number, or a share such as 0.1. Everybody when left out."
    ),
]
DropoutOption = Annotated[
    float, typer.Option("--dropout", min=0.0, max=1.0, help="Share of those asked who do not answer.")
]
ProtocolOption = Annotated[
    str, typer.Option("--protocol", help="clean, or published (the papers' rules; it leaks, and says so).")
]
SplitOption = Annotated[str, typer.Option("--split", help="leave-one-out, temporal or random.")]
NewOption = Annotated[
    str | None,
    typer.Option(
        "--new-people",
        help="Share of people kept out of training and judged as new (default 0.1), or `folds`: everybody is new once.",
    ),
]
ToleranceOption = Annotated[
    float | None,
    typer.Option("--tolerance", help="Stop when a round changes the shared parameters by less than this share."),
]
PatienceOption = Annotated[
    int | None, typer.Option("--patience", help="Stop when validation has not gained for so many rounds; 0: never.")
]
OutOption = Annotated[Path | None, typer.Option("--out", help="The run folder (default: a new one under runs/).")]
BackendOption = Annotated[str, typer.Option("--backend", help="auto, loop, vmap or kernel.")]
ThreadsOption = Annotated[int | None, typer.Option("--threads", help="Threads to use.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else on standard output.")]
SeedOption = Annotated[int, typer.Option("--seed", min=0, help="Everything random follows from it.")]
