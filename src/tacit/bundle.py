"""The bundle: a static folder with shared parameters, a catalogue and the page, every file pinned by its hash.

manifest.json    what it is, the recipe, and a hash of every other file (index.html and sw.js carry its own)
items.json       names, titles, genres            popularity.u8, map.i16    a byte, and a place in the plane, an item
item.i8 + scale.f32, or item.f32; offset.f32      the tables, little-endian, row by row
vectors.json     people and their lists, as Python computes them: the page checks itself against these
index.html, *.js, style.css, sw.js, icon.svg      the page            MODEL_CARD.md, LICENCES.md

A bundle may come from elsewhere, so all of it is checked where it is read. No torch is needed here.
"""

from __future__ import annotations

import base64
import hashlib
import json
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from .errors import RunError
from .recipes import Floats, Recipe, Tables

FORMAT = "tacit-bundle-1"
UNPINNED = ("manifest.json", "index.html", "sw.js")  # the other two name the hash of manifest.json
LARGEST = 2**30  # bytes of one file


Bound = Annotated[float, Field(ge=-1000, le=1000)]


class Entry(BaseModel):
    """A file of the bundle."""

    model_config = ConfigDict(extra="forbid", strict=True)
    bytes: int = Field(ge=0, le=LARGEST)
    sha256: str = Field(pattern="^[0-9a-f]{64}$")


class About(BaseModel):
    """What the page tells about the model."""

    model_config = ConfigDict(extra="forbid")
    title: str
    lines: list[str]
    licence: list[str]
    measured: list[tuple[str, str]]


class Manifest(BaseModel):
    """manifest.json."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)
    format: str
    tacit: str
    name: str
    task: Literal["ranking", "ratings"]
    method: str
    precision: Literal["int8", "float32"]
    items: int = Field(ge=1, le=10_000_000)
    k: int = Field(ge=1, le=10_000)
    ones: bool
    scale: tuple[Bound, Bound]
    integer_steps: bool
    tables: dict[Literal["offset"], bool]
    recipe: Recipe
    people: int = Field(ge=0)
    about: About
    files: dict[str, Entry]
    entrance: dict[str, str]  # hashes of index.html and sw.js with the place of the manifest's own hash left open


@dataclass(frozen=True, eq=False)
class Bundle:
    """What a bundle holds beside the page."""

    manifest: Manifest
    names: list[str]
    titles: list[str]
    genres: list[list[int]]
    genre_names: list[str]
    tables: Tables
    popularity: NDArray[np.uint8]  # [m]
    plane: NDArray[np.int16]  # [m, 2]

    @property
    def places(self) -> Floats:
        return self.plane.astype(np.float64)


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def read_bundle(path: Path) -> tuple[Bundle, dict[str, bytes]]:
    """(what it holds, the bytes of every file that may be served). Refuses what was changed, torn or is foreign."""
    contents = {name: _bytes(path, name) for name in UNPINNED}
    found = _json(path, "manifest.json", contents["manifest.json"])
    if found.get("format") != FORMAT:
        raise RunError(
            f"{path} is a bundle of format {str(found.get('format'))[:40]!r}, written by tacit "
            f"{str(found.get('tacit'))[:40]}; this tacit reads {FORMAT!r}. Export it again with this version."
        )
    try:
        manifest = Manifest.model_validate(found)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise RunError(f"{path}/manifest.json is not as exported: {where}: {first['msg']}. Export again.") from None
    pin = sha256(contents["manifest.json"])
    for name in ("index.html", "sw.js"):
        if sha256(_emptied(contents[name], pin)) != manifest.entrance.get(name):
            raise RunError(_changed(path, name, "it was edited, or belongs to another manifest.json"))
    for name, entry in manifest.files.items():
        if name != Path(name).name or name in UNPINNED or name.startswith("."):
            raise RunError(f"{path}/manifest.json names {name!r}, which is not a plain file name. Export again.")
        contents[name] = _bytes(path, name)
        if len(contents[name]) != entry.bytes or sha256(contents[name]) != entry.sha256:
            raise RunError(_changed(path, name, "its hash is not the one in manifest.json"))
    return parse(manifest, contents, path), contents


def parse(manifest: Manifest, contents: dict[str, bytes], path: Path) -> Bundle:
    """The bundle out of its files' bytes."""
    m, k, (low, high) = manifest.items, manifest.k, manifest.scale
    if low >= high:
        raise RunError(f"{path}/manifest.json has a scale from {low:g} to {high:g}. Export again.")

    def array(name: str, kind: str, *shape: int) -> NDArray[Any]:
        dtype = np.dtype(kind)
        if name not in contents:
            raise RunError(f"{path} has no {name}, which its manifest needs. Export again.")
        if len(contents[name]) != int(np.prod(shape)) * dtype.itemsize:
            raise RunError(
                f"{path}/{name} holds {len(contents[name]):,} bytes; {' x '.join(map(str, shape))} numbers of "
                f"{dtype.itemsize} were expected. Export again."
            )
        out = np.frombuffer(contents[name], dtype).reshape(shape)
        if dtype.kind == "f" and not np.isfinite(out).all():
            raise RunError(f"{path}/{name} holds numbers that are not finite. Export a model that has not diverged.")
        return out

    if manifest.precision == "int8":
        item = array("item.i8", "i1", m, k).astype(np.float32) * array("scale.f32", "<f4", m)[:, None]
    else:
        item = array("item.f32", "<f4", m, k)
    offset = array("offset.f32", "<f4", m).astype(np.float64) if manifest.tables.get("offset") else None
    tables = Tables(item.astype(np.float64), offset, manifest.ones)
    if manifest.recipe.solver == "descent" and len(manifest.recipe.start) != k + manifest.ones:
        raise RunError(f"{path}/manifest.json has a start of {len(manifest.recipe.start)} numbers. Export again.")
    listed = _json(path, "items.json", contents.get("items.json", b""))
    columns: dict[str, Any] = {name: listed.get(name) for name in ("names", "titles", "genres", "genre_names")}
    for name in ("names", "titles", "genres"):
        if not isinstance(columns[name], list) or len(columns[name]) != m:
            raise RunError(f"{path}/items.json does not hold {m:,} {name}. Export again.")
    words = columns["genre_names"] if isinstance(columns["genre_names"], list) else [None]
    fine = all(isinstance(text, str) for text in [*columns["names"], *columns["titles"], *words]) and all(
        isinstance(of, list) and all(type(g) is int and 0 <= g < len(words) for g in of) for of in columns["genres"]
    )
    if not fine:
        raise RunError(f"{path}/items.json holds something that is no title, name or genre. Export again.")
    popularity, plane = array("popularity.u8", "u1", m), array("map.i16", "<i2", m, 2)
    return Bundle(manifest, **columns, tables=tables, popularity=popularity, plane=plane)


def _bytes(path: Path, name: str) -> bytes:
    try:
        found = (path / name).stat()
        if not stat.S_ISREG(found.st_mode) or found.st_size > LARGEST:
            raise RunError(f"{path}/{name} is no regular file of at most {LARGEST:,} bytes. Export again.")
        return (path / name).read_bytes()
    except OSError as error:
        if name == "manifest.json":
            raise RunError(
                f"{path} is not a bundle: it has no manifest.json. Make one: `tacit export RUN DIR`."
            ) from error
        raise RunError(f"{path} lacks {name} ({error.strerror}). Restore it from a copy, or export again.") from error


def _json(path: Path, name: str, content: bytes) -> dict[str, Any]:
    try:
        found = json.loads(content)
        if not isinstance(found, dict):
            raise ValueError("it is not a JSON object")
        return found
    except (ValueError, RecursionError) as error:
        raise RunError(f"{path}/{name} cannot be read ({error}). Restore it from a copy, or export again.") from error


def integrity(pin: str) -> str:
    """A SHA-256 as HTML writes it."""
    return "sha256-" + base64.b64encode(bytes.fromhex(pin)).decode()


def filled(content: bytes, pin: str) -> bytes:
    """index.html or sw.js with the manifest's hash in its place."""
    return content.replace(b"{{manifest}}", integrity(pin).encode()).replace(b"{{version}}", pin.encode())


def _emptied(content: bytes, pin: str) -> bytes:
    """The inverse of `filled`."""
    return content.replace(integrity(pin).encode(), b"{{manifest}}").replace(pin.encode(), b"{{version}}")


def _changed(path: Path, name: str, why: str) -> str:
    return (
        f"{path}/{name} is not the file that was exported: {why}. Nothing was computed with it. Restore it from a "
        "copy, or export again with `tacit export`."
    )
