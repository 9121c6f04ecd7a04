"""Read and write folders of saved uploads, to attack them later or elsewhere, with people's real lists.

    NAME.safetensors        a message as wire/messages.py writes it; its header names the person
    truth.csv               user, item (the item's row in the tables, from 0), perhaps rating and title: of everybody
    download.safetensors    the download that the devices had received, where it is known
    about.json              {"items": how many, "audited": how many of the people}, where that is known
Reading such a folder runs no code from it, and errors name the file.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.torch import load

from fedtaste.attacks.uploads import Holdings, Targets, make_targets, shuffle
from fedtaste.core import Download, Params, Upload
from fedtaste.data.interactions import Interactions
from fedtaste.data.spreadsheets import guard
from fedtaste.data.user_files import read_interactions
from fedtaste.errors import DataError, RunError
from fedtaste.files.atomic import write_atomically
from fedtaste.wire.messages import Head, decode, encode
from fedtaste.wire.validation import REASONS, refusal

TRUTH, DOWNLOAD, ABOUT = "truth.csv", "download.safetensors", "about.json"


@dataclass(frozen=True, eq=False)
class SavedUploads:
    """Uploads in a folder, with the real lists of their people."""

    targets: Targets
    files: dict[int, Path]  # by person
    titles: tuple[str, ...]
    seed: int  # of the order in which they are added up

    def uploads(self) -> Iterator[tuple[int, Upload]]:
        """(person, upload) in the order in which they are added up."""
        expected: Params | None = None
        for who in shuffle(np.array(sorted(self.files)), self.seed).tolist():
            upload, _ = read_message(self.files[who])
            expected = upload.total if expected is None else expected
            reason = refusal(upload, expected)
            if reason:
                raise DataError(f"{self.files[who].name} is refused: {REASONS[reason]}. Remove it from the folder.")
            yield who, upload


def read_message(path: Path) -> tuple[Upload, Head]:
    """The upload in a file, and the header that names its person."""
    try:
        return decode(path.read_bytes())
    except (ValueError, OSError) as error:
        raise DataError(
            f"{path} is not an upload: {error}. It must be a message as fedtaste writes it (safetensors with "
            "params/..., weight and head)."
        ) from error


def read_uploads(path: Path, truth: Path | None = None) -> SavedUploads:
    """Read a folder of uploads, or one upload."""
    if not path.exists():
        raise DataError(f"{path} does not exist. Give a folder with uploads, or one file.")
    folder = path if path.is_dir() else path.parent
    files = sorted(folder.glob("*.safetensors")) if path.is_dir() else [path]
    files = [file for file in files if file.name != DOWNLOAD]
    if not files:
        raise DataError(f"{path} holds no upload: there must be files that end in .safetensors, one per person.")
    truth = truth or folder / TRUTH
    if not truth.exists():
        raise DataError(
            f"{truth} does not exist. An audit needs the truth: a CSV with user,item. Name it with --truth."
        )
    table, about = read_interactions(truth), _about(folder / ABOUT)
    plain = all(name.isdecimal() for name in table.people)
    numbers = {name: int(name) if plain else place for place, name in enumerate(table.people)}
    owners, upload = _owners(files, numbers, truth)
    rows, seed = _rows(table, truth), about.get("seed", 0)
    items = about.get("items") or _items(upload, int(rows.max()))
    if rows.max() >= items:
        raise DataError(f"Items of {truth.name} must be rows from 0 to {items - 1}, got {rows.max()}.")
    titles = dict(zip(rows.tolist(), table.titles))
    person = np.array(list(numbers.values()))[table.person]
    ratings = None if table.value is None else table.value.astype(np.float64)
    people = shuffle(np.array(sorted(owners)), seed)[: about.get("audited")]
    holdings = Holdings(person, rows[table.item], ratings)
    targets = make_targets(holdings, people, items, _download(folder / DOWNLOAD))
    return SavedUploads(targets, owners, tuple(titles.get(row, str(row)) for row in range(items)), seed)


def _owners(files: list[Path], numbers: dict[str, int], truth: Path) -> tuple[dict[int, Path], Upload]:
    """The file of every person, and one of the uploads."""
    owners: dict[int, Path] = {}
    for file in files:
        upload, head = read_message(file)
        who = next((name for name in (str(head.person), file.stem) if name in numbers), None)
        if who is None:
            raise DataError(f"{file.name} is of person {head.person}, who is not in {truth.name}. Add their items.")
        if numbers[who] in owners:
            raise DataError(f"{file.name} and {owners[numbers[who]].name} are of the same person. Remove one.")
        owners[numbers[who]] = file
    return owners, upload


def _rows(table: Interactions, truth: Path) -> NDArray[np.int64]:
    wrong = next((name for name in table.items if not name.isdecimal()), None)
    if wrong is not None:
        raise DataError(f'Items of {truth.name} must be rows of the tables, counted from 0; got "{wrong}".')
    return np.array([int(name) for name in table.items], np.int64)


def _items(upload: Upload, last: int) -> int:
    """The number of items, where about.json does not say it: the length of the shortest table that has them all."""
    lengths = [len(value) for value in upload.total.values() if value.ndim and len(value) > last]
    if not lengths:
        raise DataError(f"No table in the uploads has a row {last}, which truth.csv names. Do they belong together?")
    return min(lengths)


def _about(path: Path) -> dict[str, int]:
    if not path.exists():
        return {}
    try:
        about = json.loads(path.read_text("utf-8"))
        return {name: int(about[name]) for name in ("items", "audited", "seed") if name in about}
    except (ValueError, TypeError, OSError) as error:
        raise DataError(f'{path} must hold {{"items": N}}, or not exist: {error}.') from error


def _download(path: Path) -> Params:
    if not path.exists():
        return {}
    try:
        parts = load(path.read_bytes())
    except (SafetensorError, ValueError, TypeError, RuntimeError, OverflowError, KeyError, OSError) as error:
        raise DataError(f"{path} is not a download: {error}. Remove it, or replace it by the real one.") from error
    return {name.removeprefix("params/"): value for name, value in parts.items() if name.startswith("params/")}


class UploadWriter:
    """Writes a folder of uploads, one upload at a time."""

    def __init__(
        self, folder: Path, holdings: Holdings, targets: Targets, titles: Sequence[str], *, round: int, seed: int
    ) -> None:
        self.folder, self.round = folder, round
        if folder.exists() and any(folder.glob("*.safetensors")):
            raise RunError(f"{folder} already holds uploads. Choose another folder for --save.")
        about = {"items": targets.knowledge.items, "audited": len(targets.people), "seed": seed}
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self.write_download({})
            write_atomically(folder / ABOUT, json.dumps(about).encode())
            write_atomically(folder / TRUTH, _table(holdings, titles).encode())
        except OSError as error:
            raise RunError(f"Uploads cannot be written to {folder}: {error}. Choose another folder.") from error

    def write_download(self, shared: Params) -> None:
        """Write the download that devices received before these uploads."""
        write_atomically(self.folder / DOWNLOAD, encode(Download(shared, torch.tensor(float(self.round)))))

    def write_upload(self, who: int, upload: Upload) -> None:
        """Write one person's upload."""
        write_atomically(self.folder / f"{who}.safetensors", encode(upload, Head(0, self.round, who)))


def _table(holdings: Holdings, titles: Sequence[str]) -> str:
    """The text of truth.csv."""
    text = io.StringIO()
    lines = csv.writer(text, lineterminator="\n")
    lines.writerow(["user", "item", "title", *([] if holdings.rating is None else ["rating"])])
    for row, (who, item) in enumerate(zip(holdings.person.tolist(), holdings.item.tolist())):
        lines.writerow([who, item, guard(titles[item]), *([] if holdings.rating is None else [holdings.rating[row]])])
    return text.getvalue()
