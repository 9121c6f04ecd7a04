"""`tacit data`: list, fetch, import, describe."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from .cli_options import JsonOption, SeedOption
from .terminal import cache, emit, out, say

data_app = typer.Typer(help="Data sets: list, fetch, import, describe.", no_args_is_help=True)


@data_app.command("list")
def data_list(json_: JsonOption = False) -> None:
    """Data sets that have a name."""
    from rich.table import Column, Table

    from .data.sources import SOURCES

    if json_:
        emit(
            [
                {
                    "name": s.name,
                    "about": s.about,
                    "how": s.how,
                    "people": s.people,
                    "items": s.items,
                    "interactions": s.interactions,
                    "terms": s.terms,
                }
                for s in SOURCES.values()
            ]
        )
        return
    table = Table("name", "how", "people", "items", "interactions", Column("what", overflow="fold"))
    for s in SOURCES.values():
        counts = ("?" if n is None else f"{n:,}" for n in (s.people, s.items, s.interactions))
        table.add_row(s.name, s.how, *counts, s.about)
    out.print(table)
    out.print("Of least-squares, logistic, digits and the like: clients, features and examples.", soft_wrap=True)
    out.print("By hand: `tacit data fetch NAME` says where to get the file and where to put it.", soft_wrap=True)


@data_app.command("fetch")
def data_fetch(name: Annotated[str, typer.Argument(help="A name of `tacit data list`.")]) -> None:
    """Fetch a data set into the cache, and check it; or say where to get one that tacit may not fetch."""
    from .data.archives import default_cache
    from .data.sources import load

    loaded = load(name, cache=cache(), say=say)
    for note in loaded.notes:
        say(note)
    out.print(f"{loaded.name} is ready. The cache is {cache() or default_cache()}.", markup=False, soft_wrap=True)


@data_app.command("import")
def data_import(
    source: Annotated[
        Path,
        typer.Argument(help="A CSV, TSV or Parquet with columns user, item and optionally rating, timestamp, title."),
    ],
    target: Annotated[Path, typer.Argument(help="The file to write: .parquet, .csv or .csv.gz.")],
) -> None:
    """Check a file of one's own, and write it in the form that tacit reads fastest."""
    from .data.importing import read_interactions, save
    from .errors import DataError

    if source.exists() and target.exists() and source.samefile(target):
        raise DataError(f"{source} would be written over itself; nothing was changed. Name another file to write.")
    loaded = read_interactions(source)
    save(loaded, target)
    describe(loaded, False)
    out.print(f"Written to {target}. Use it: tacit run --data {target}", markup=False, soft_wrap=True)


@data_app.command("describe")
def data_describe(
    name: Annotated[str, typer.Argument(help="A name or a path.")], seed: SeedOption = 0, json_: JsonOption = False
) -> None:
    """How many people, items and interactions; how active, how popular. Of examples: clients, features, classes."""
    from .data.sources import load

    describe(load(name, seed=seed, cache=cache(), say=say), json_)


def describe(loaded: Any, json_: bool) -> None:
    from .data.describe import facts

    found = facts(loaded)
    if json_:
        emit(found)
        return
    for key, value in found.items():
        if isinstance(value, dict):
            out.print(key, markup=False)
            for name, counts in value.items():
                out.print(f"  {name:22} {' '.join(f'{n:5,}' for n in counts)}", markup=False, soft_wrap=True)
            continue
        out.print(f"{key:24} {value:,}" if isinstance(value, int) else f"{key:24} {value}", markup=False)
