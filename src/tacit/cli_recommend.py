"""`tacit recommend`: parses, calls, prints."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .cli_options import JsonOption
from .terminal import cache, emit, out


def recommend(
    path: Annotated[Path, typer.Argument(help="A run folder.")],
    likes: Annotated[list[str] | None, typer.Option("--likes", help="A title that somebody new likes.")] = None,
    person: Annotated[str | None, typer.Option("--person", help="Somebody of the data, by name.")] = None,
    from_: Annotated[Path | None, typer.Option("--from", help="Somebody new's CSV: title, rating, timestamp.")] = None,
    n: Annotated[int, typer.Option("-n", "--n", help="How many.")] = 10, json_: JsonOption = False,
) -> None:  # fmt: skip
    """The best items for somebody: of the data, or new, from what they like. Computed here; nothing is sent."""
    from rich.table import Table
    from rich.text import Text

    from .recommend import recommend as top

    answer = top(path, likes=likes or [], person=person, file=from_, n=n, cache=cache())
    if json_:
        emit(answer)
        return
    shown = answer["from"] if len(answer["from"]) <= 5 else [*answer["from"][-5:], f"{len(answer['from']) - 5} more"]
    because = Text(f"Because of {', '.join(shown)}")  # a Text, as a title may hold [brackets]
    table = Table("", "title", "score", title=because, title_justify="left", box=None)
    for place, item in enumerate(answer["items"], 1):
        table.add_row(str(place), Text(item["title"]), f"{item['score']:.3f}")
    out.print(table)
