"""Uploads in a folder, to be attacked later or elsewhere: one message a person, and the truth beside them.

    NAME.safetensors        a message as wire/ledger.py writes it; its head says whose it is
    truth.csv               user, item (the item's row in the tables, from 0), perhaps rating and title: of everybody
    download.safetensors    what was sent down, where that is known
    about.json              {"items": how many, "audited": how many of the people}, where that is known
Nothing in such a folder runs, and what cannot be read is named.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.torch import load

from .core import Download, Params, Upload
from .data.importing import read_interactions
from .data.interactions import Interactions
from .errors import DataError, RunError
from .evaluation.audit import Pairs, World, order, world
from .wholefile import write_atomically
from .wire.admission import REASONS, refusal
from .wire.ledger import Head, decode, encode

TRUTH, DOWNLOAD, ABOUT = "truth.csv", "download.safetensors", "about.json"


@dataclass(frozen=True, eq=False)
class Saved:
    """What a folder holds."""

    world: World
    files: dict[int, Path]  # by person
    titles: tuple[str, ...]
    seed: int  # of the order

    def uploads(self) -> Iterator[tuple[int, Upload]]:
        """In the order in which they are added up."""
        expected: Params | None = None
        for who in order(np.array(sorted(self.files)), self.seed).tolist():
            upload, _ = read_message(self.files[who])
            expected = upload.total if expected is None else expected
            reason = refusal(upload, expected)
            if reason:
                raise DataError(f"{self.files[who].name} is refused: {REASONS[reason]}. Take it out of the folder.")
            yield who, upload


def read_message(path: Path) -> tuple[Upload, Head]:
    try:
        return decode(path.read_bytes())
    except (ValueError, OSError) as error:
        raise DataError(
            f"{path} is not an upload: {error}. Expected a message as wire/ledger.py writes it (safetensors with "
            "params/..., weight and head)."
        ) from error


def read_uploads(path: Path, truth: Path | None = None) -> Saved:
    """The folder, or the one upload, at this path."""
    if not path.exists():
        raise DataError(f"{path} is not there. Give a folder with uploads, or one file.")
    folder = path if path.is_dir() else path.parent
    files = sorted(folder.glob("*.safetensors")) if path.is_dir() else [path]
    files = [file for file in files if file.name != DOWNLOAD]
    if not files:
        raise DataError(f"{path} holds no upload. Expected files that end in .safetensors, one a person.")
    told = truth or folder / TRUTH
    if not told.exists():
        raise DataError(f"{told} is not there. An audit needs the truth: a CSV with user,item. Name it with --truth.")
    table, about = read_interactions(told), _about(folder / ABOUT)
    plain = all(name.isdecimal() for name in table.people)
    numbers = {name: int(name) if plain else place for place, name in enumerate(table.people)}
    owners, upload = _owners(files, numbers, told)
    rows, seed = _rows(table, told), about.get("seed", 0)
    items = about.get("items") or _items(upload, int(rows.max()))
    if rows.max() >= items:
        raise DataError(f"{told.name} names item {rows.max()}, and there are {items}. Items are rows, counted from 0.")
    titles = dict(zip(rows.tolist(), table.titles))
    who = np.array(list(numbers.values()))[table.person]
    truth_of = Pairs(who, rows[table.item], None if table.value is None else table.value.astype(np.float64))
    people = order(np.array(sorted(owners)), seed)[: about.get("audited")]
    made = world(truth_of, people, items, _download(folder / DOWNLOAD))
    return Saved(made, owners, tuple(titles.get(row, str(row)) for row in range(items)), seed)


def _owners(files: list[Path], numbers: dict[str, int], told: Path) -> tuple[dict[int, Path], Upload]:
    """The file of every person, and one of the uploads."""
    owners: dict[int, Path] = {}
    for file in files:
        upload, head = read_message(file)
        who = next((name for name in (str(head.person), file.stem) if name in numbers), None)
        if who is None:
            raise DataError(f"{file.name} is of person {head.person}, who is not in {told.name}. Add their items.")
        if numbers[who] in owners:
            raise DataError(f"{file.name} and {owners[numbers[who]].name} are of the same person. Take one away.")
        owners[numbers[who]] = file
    return owners, upload


def _rows(table: Interactions, told: Path) -> NDArray[np.int64]:
    wrong = next((name for name in table.items if not name.isdecimal()), None)
    if wrong is not None:
        raise DataError(f'{told.name} has an item "{wrong}"; expected the row of an item in the tables, from 0.')
    return np.array([int(name) for name in table.items], np.int64)


def _items(upload: Upload, last: int) -> int:
    """How many items there are, where nobody says: as many as the shortest table that has them all."""
    lengths = [len(value) for value in upload.total.values() if value.ndim and len(value) > last]
    if not lengths:
        raise DataError(f"No table in the uploads has a row {last}, which truth.csv names. Do they belong together?")
    return min(lengths)


def _about(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    try:
        told = json.loads(path.read_text("utf-8"))
        return {name: int(told[name]) for name in ("items", "audited", "seed") if name in told}
    except (ValueError, TypeError, OSError) as error:
        raise DataError(f'{path} cannot be read: {error}. Expected {{"items": N}}, or no such file.') from error


def _download(path: Path) -> Params:
    if not path.exists():
        return {}
    try:
        parts = load(path.read_bytes())
    except (SafetensorError, ValueError, TypeError, RuntimeError, OverflowError, KeyError, OSError) as error:
        raise DataError(f"{path} is not a download: {error}. Take it away, or bring what was sent down.") from error
    return {name.removeprefix("params/"): value for name, value in parts.items() if name.startswith("params/")}


class Shelf:
    """Writes such a folder, one upload at a time."""

    def __init__(
        self, folder: Path, truth: Pairs, world: World, shared: Params, number: int, titles: Sequence[str], seed: int
    ) -> None:
        self.folder, self.number = folder, number
        if folder.exists() and any(folder.glob("*.safetensors")):
            raise RunError(f"{folder} holds uploads already. Choose another folder for --save.")
        about = {"items": world.known.items, "audited": len(world.people), "seed": seed}
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self.sent_down(shared)
            write_atomically(folder / ABOUT, json.dumps(about).encode())
            write_atomically(folder / TRUTH, _table(truth, titles).encode())
        except OSError as error:
            raise RunError(f"Uploads cannot be written to {folder}: {error}. Choose another folder.") from error

    def sent_down(self, shared: Params) -> None:
        """Write what devices received before these uploads."""
        write_atomically(self.folder / DOWNLOAD, encode(Download(shared, torch.tensor(float(self.number)))))

    def keep(self, who: int, upload: Upload) -> None:
        write_atomically(self.folder / f"{who}.safetensors", encode(upload, Head(0, self.number, who)))


def _table(truth: Pairs, titles: Sequence[str]) -> str:
    text = io.StringIO()
    lines = csv.writer(text, lineterminator="\n")
    lines.writerow(["user", "item", "title", *(["rating"] if truth.said is not None else [])])
    for at, (who, item) in enumerate(zip(truth.who.tolist(), truth.item.tolist())):
        lines.writerow([who, item, titles[item], *([truth.said[at]] if truth.said is not None else [])])
    return text.getvalue()
