"""`fedtaste recommend`: the best items for one person, or for everybody in the data into a file."""

from __future__ import annotations

import gzip
import io
from collections.abc import Iterable
from pathlib import Path

import polars as pl
from rich.table import Table
from rich.text import Text

from fedtaste.cli.options import RecommendOptions
from fedtaste.cli.output import cache, emit, out, put
from fedtaste.cli.own_methods import allow_method_of
from fedtaste.data.spreadsheets import guarded
from fedtaste.errors import DataError, SettingError
from fedtaste.experiment.folder import RunFolder
from fedtaste.files.atomic import check_target, write_atomically
from fedtaste.serving.folder_recommender import recommend_table
from fedtaste.serving.item_lists import FileLine, Filter
from fedtaste.serving.open_model import OpenModel
from fedtaste.serving.recommend import recommend as recommend_items
from fedtaste.text import unreadable

FORMATS = (".parquet", ".csv", ".csv.gz", ".jsonl")


def recommend(options: RecommendOptions) -> None:
    """Recommend items to a person of the data, to a new one, or to everybody."""
    allow_method_of(RunFolder.open(options.path), options.method)
    filter = Filter(read_lists(options.only) or None, read_lists(options.exclude))
    if options.all or options.out is not None or options.force:
        recommend_to_all(options, filter)
        return
    answer = recommend_items(
        options.path, likes=list(options.likes), person=options.person, file=options.file, n=options.n, cache=cache(),
        filter=filter,
    )  # fmt: skip
    if options.as_json:
        emit(answer.dump())
        return
    history = answer.history
    titles = history if len(history) <= 5 else [*history[-5:], f"{len(history) - 5} more"]
    because = Text(f"Because of {', '.join(titles)}")  # a Text, as a title may hold [brackets]
    table = Table("", "title", "score", title=because, title_justify="left", box=None)
    for place, item in enumerate(answer.items, 1):
        table.add_row(str(place), Text(item.title), f"{item.score:.3f}")
    out.print(table)
    if answer.rating_rule:
        more = f" and {len(answer.disliked) - 5} more" if len(answer.disliked) > 5 else ""
        listed = f" Disliked, and so not listed: {', '.join(answer.disliked[:5])}{more}." if answer.disliked else ""
        out.print(Text(answer.rating_rule + listed))


def recommend_to_all(options: RecommendOptions, filter: Filter) -> None:
    """Write everybody's recommendations into a file."""
    if not options.all or options.out is None:
        raise SettingError("--all and --out FILE go together: recommendations for everybody go into a file.")
    if options.likes or options.person is not None or options.file is not None:
        raise SettingError("--all is for everybody in the data. Leave out --likes, --person and --from.")
    if not options.out.name.lower().endswith(FORMATS):
        raise SettingError(f"--out must end in {', '.join(FORMATS)}, got {options.out.name}.")
    check_target(options.out, "--out", options.force, data_files(options.path))
    model = OpenModel.open(options.path, cache())
    table = recommend_table(model, None, options.n, filter)
    write_atomically(options.out, encode(table, options.out.name.lower()))
    people = table["user"].n_unique()
    if options.as_json:
        emit({"file": str(options.out), "people": people, "rows": len(table)})
        return
    put(f"{options.out}: {len(table):,} rows for {people:,} people, with user, item, rank and score.")


def data_files(model: Path) -> list[Path]:
    """The files or folders of the data of a model, and of the models that it continues."""
    files: dict[Path, Path] = {}  # by model
    before: Path | None = model
    while before is not None and before not in files and (before / "settings.json").exists():
        folder = RunFolder(before)
        files[before], before = Path(folder.settings().data), folder.continues
    return list(files.values())


def encode(frame: pl.DataFrame, name: str) -> bytes:
    """The frame in the format that the name ends in."""
    if name.endswith((".csv", ".csv.gz")):
        text = guarded(frame).write_csv().encode()
        return gzip.compress(text, 6, mtime=0) if name.endswith(".gz") else text
    content = io.BytesIO()
    if name.endswith(".jsonl"):
        frame.write_ndjson(content)
    else:
        frame.write_parquet(content)
    return content.getvalue()


def read_lists(texts: Iterable[str]) -> list[str]:
    """Items of --only or --exclude; @FILE stands for the lines of a file. Errors repeat little of a file."""
    names: list[str] = []
    for text in texts:
        if not text.startswith("@"):
            names.append(text)
            continue
        try:
            lines = Path(text[1:]).read_text("utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise DataError(
                f"{text[1:]} cannot be read: {unreadable(error)}. Give a text file with one item in each line."
            ) from None
        places = ((line.strip(), f"line {number} of {text[1:]}") for number, line in enumerate(lines, 1))
        names += [FileLine.read(name, place) for name, place in places if name]
    return names
