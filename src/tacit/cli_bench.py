"""`tacit bench`: parses, calls, prints."""

from __future__ import annotations

from typing import Annotated

import typer

from .cli_options import JsonOption, SeedOption
from .terminal import cache, emit, out, say


def bench(
    quick: Annotated[bool, typer.Option("--quick", help="Smaller worlds: a minute instead of several.")] = False,
    method: Annotated[
        str | None, typer.Option("--method", help="fedals, fedrecon, fedrap, logistic, cnn or cnn-16.")
    ] = None,
    seed: SeedOption = 0,
    json_: JsonOption = False,
) -> None:
    """CPU time of one round for all people: loop against vmap against kernel, and how it grows with interactions."""
    from .bench import measure, table

    found = measure(method, quick=quick, seed=seed, say=say, cache=cache())
    emit(found) if json_ else out.print(table(found))
