"""Bundle format and its reader: a static folder of shared parameters, catalogue and page, pinned by hashes.

manifest.json    what it is, the recipe, and a hash of every other file (index.html and sw.js hold the manifest's hash)
items.json       names, titles, genres            popularity.u8, map.i16    a byte, and a place in the plane, per item
item.i8 + scale.f32, or item.f32; offset.f32      the tables, little-endian, row by row
trail.u16, trail.i8 + trail-scale.f32 or trail.f32  the largest entries of every row of a trail table: columns, values
network.i8 + network-scale.f32 or network.f32     matrices of a sequence network, one after the other, and
network-vectors.f32                               its vectors (biases, norms, relative positions): sequence_state.py
vectors.json     people and their lists, as Python computes them: the page checks itself against these
index.html, *.js, style.css, sw.js, icon.svg      the page            MODEL_CARD.md, LICENCES.md

A bundle may come from elsewhere, so everything in it is checked when it is read. This module needs no torch.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
import stat
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fedtaste.errors import RunError
from fedtaste.recipe import Recipe
from fedtaste.serving.rebuild import Floats, Tables, TrailTable
from fedtaste.serving.recommendation import Json
from fedtaste.serving.sequence_state import Weights, network_shapes

FORMAT = "fedtaste-bundle-1"
OLD_NAME = "tacit"  # of this project until 0.7.0: its bundles have the format tacit-bundle-1 and name their version so
UNPINNED = ("manifest.json", "index.html", "sw.js")  # the other two hold the hash of manifest.json
MAX_FILE = 2**30  # bytes
Bound = Annotated[float, Field(ge=-1000, le=1000)]
Precision = Literal["int8", "float32"]


class Entry(BaseModel):
    """Size and hash of a file of the bundle."""

    model_config = ConfigDict(extra="forbid", strict=True)
    bytes: int = Field(ge=0, le=MAX_FILE)
    sha256: str = Field(pattern="^[0-9a-f]{64}$")


class About(BaseModel):
    """What the page shows about the model."""

    model_config = ConfigDict(extra="forbid")
    title: str
    lines: list[str]
    licence: list[str]
    measured: list[tuple[str, str]]


class Manifest(BaseModel):
    """The contents of manifest.json."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)
    format: str
    fedtaste: str
    name: str
    task: Literal["ranking", "ratings"]
    method: str
    precision: Precision
    items: int = Field(ge=1, le=10_000_000)
    k: int = Field(ge=1, le=10_000)
    ones: bool
    scale: tuple[Bound, Bound]
    integer_steps: bool
    tables: dict[Literal["offset"], bool]
    trail: int = Field(0, ge=0, le=65_536)  # entries that are kept of every row of the trail table; 0: there is none
    recipe: Recipe
    people: int = Field(ge=0)
    about: About
    files: dict[str, Entry]
    entrance: dict[str, str]  # hashes of index.html and sw.js with the place of the manifest's own hash left open


class Items(BaseModel):
    """The contents of items.json."""

    model_config = ConfigDict(strict=True)
    names: list[str]
    titles: list[str]
    genres: list[list[Annotated[int, Field(ge=0)]]]  # numbers of genre names
    genre_names: list[str]


@dataclass(frozen=True, eq=False)
class Bundle:
    """The contents of a bundle, without the page."""

    manifest: Manifest
    items: Items
    tables: Tables
    popularity: NDArray[np.uint8]  # [m]
    places: Floats  # [m, 2] on the map

    @property
    def names(self) -> list[str]:
        return self.items.names

    @property
    def titles(self) -> list[str]:
        return self.items.titles


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def read_bundle(path: Path) -> tuple[Bundle, dict[str, bytes]]:
    """(contents, the bytes of every file that may be served). Refuses changed, incomplete and foreign bundles."""
    contents = {name: _read_file(path, name) for name in UNPINNED}
    manifest = _read_manifest(path, contents["manifest.json"])
    pin = sha256(contents["manifest.json"])
    for name in ("index.html", "sw.js"):
        if sha256(_without_pin(contents[name], pin)) != manifest.entrance.get(name):
            raise _changed(path, name, "it was edited, or belongs to another manifest.json")
    for name, entry in manifest.files.items():
        if name != Path(name).name or name in UNPINNED or name.startswith("."):
            raise RunError(f"{path}/manifest.json names {name!r}, which is not a plain file name. Export again.")
        contents[name] = _read_file(path, name)
        if len(contents[name]) != entry.bytes or sha256(contents[name]) != entry.sha256:
            raise _changed(path, name, "its hash is not the one in manifest.json")
    return parse(manifest, contents, path), contents


def _read_manifest(path: Path, content: bytes) -> Manifest:
    fields = _parse_json(path, "manifest.json", content)
    if fields.get("format") != FORMAT:
        raise RunError(f"{path} was written by {writer(fields)}; this fedtaste reads {FORMAT!r}. Export the run again.")
    try:
        return Manifest.model_validate(fields)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise RunError(f"{path}/manifest.json is not as exported: {where}: {first['msg']}. Export again.") from None


def writer(manifest: Json) -> str:
    """The program and the format of a manifest of another format: `tacit 0.7.0 in format 'tacit-bundle-1'`."""
    version = next((f"{name} {manifest[name]}"[:40] for name in ("fedtaste", OLD_NAME) if name in manifest), "")
    return f"{version or 'an unknown program'} in format {str(manifest.get('format'))[:40]!r}"


def parse(manifest: Manifest, contents: dict[str, bytes], path: Path) -> Bundle:
    """The bundle out of its files' bytes."""
    m, k, (low, high) = manifest.items, manifest.k, manifest.scale
    if low >= high:
        raise RunError(f"{path}/manifest.json has a scale from {low:g} to {high:g}. Export again.")
    if manifest.recipe.solver == "descent" and len(manifest.recipe.start) != k + manifest.ones:
        raise RunError(f"{path}/manifest.json has a start of {len(manifest.recipe.start)} numbers. Export again.")
    if bool(manifest.trail) != (manifest.recipe.trail is not None):
        raise RunError(f"{path}/manifest.json has a trail table without its recipe, or the reverse. Export again.")
    _check_sequence(manifest, path)

    def read(name: str, dtype: str, *shape: int) -> NDArray[np.generic]:
        if name not in contents:
            raise RunError(f"{path} has no {name}, which its manifest needs. Export again.")
        return _parse_array(f"{path}/{name}", contents[name], np.dtype(dtype), shape)

    def read_table(name: str, scale: str, width: int) -> Floats:
        if manifest.precision == "float32":
            return read(f"{name}.f32", "<f4", m, width).astype(np.float64)
        rows = read(f"{name}.i8", "i1", m, width).astype(np.float32) * read(scale, "<f4", m).astype(np.float32)[:, None]
        return rows.astype(np.float64)

    trail = None
    if manifest.trail:
        trail = TrailTable(
            read("trail.u16", "<u2", m, manifest.trail).astype(np.int64),
            read_table("trail", "trail-scale.f32", manifest.trail),
        )
        if trail.at.max() >= m:
            raise RunError(f"{path}/trail.u16 names an item beyond the {m:,} of the catalogue. Export again.")
    offset = read("offset.f32", "<f4", m).astype(np.float64) if manifest.tables.get("offset") else None
    return Bundle(
        manifest,
        _parse_items(path, contents.get("items.json", b""), m),
        Tables(read_table("item", "scale.f32", k), offset, manifest.ones, trail, _network(manifest, read)),
        read("popularity.u8", "u1", m).astype(np.uint8),
        read("map.i16", "<i2", m, 2).astype(np.float64),
    )


def _check_sequence(manifest: Manifest, path: Path) -> None:
    """Refuse a recipe whose sequence network is missing, unwanted or of a shape that does not exist."""
    sequence = manifest.recipe.sequence
    if (manifest.recipe.solver == "sequence") != (sequence is not None):
        raise RunError(f"{path}/manifest.json has a sequence network without its recipe, or the reverse. Export again.")
    if sequence is None:
        return
    split = sequence.network == "gru" or manifest.k % sequence.heads == 0
    if not split or manifest.ones or not manifest.tables.get("offset"):
        raise RunError(f"{path}/manifest.json has a sequence network that does not fit its tables. Export again.")


def _network(manifest: Manifest, read: Callable[..., NDArray[np.generic]]) -> Weights | None:
    """The parameters of the sequence network."""
    if manifest.recipe.sequence is None:
        return None
    shapes = network_shapes(manifest.recipe.sequence, manifest.k)
    matrices = [shape for shape in shapes.values() if len(shape) == 2]
    size, rows = sum(map(math.prod, matrices)), sum(shape[0] for shape in matrices)
    if manifest.precision == "float32":
        flat = read("network.f32", "<f4", size).astype(np.float32)
    else:
        values, scale = read("network.i8", "i1", size), read("network-scale.f32", "<f4", rows)
        widths = np.concatenate([np.full(*shape) for shape in matrices])
        flat = values.astype(np.float32) * np.repeat(scale.astype(np.float32), widths)
    vectors = sum(math.prod(shape) for shape in shapes.values()) - size
    left = {2: flat, 1: read("network-vectors.f32", "<f4", vectors).astype(np.float32)}
    weights = {}
    for name, shape in shapes.items():
        part, left[len(shape)] = np.split(left[len(shape)], [math.prod(shape)])
        weights[name] = part.reshape(shape).astype(np.float64)
    return weights


def _parse_array(file: str, content: bytes, dtype: np.dtype[np.generic], shape: tuple[int, ...]) -> NDArray[np.generic]:
    """The array of a file; refuses another size, and numbers that are not finite."""
    if len(content) != math.prod(shape) * dtype.itemsize:
        raise RunError(
            f"{file} holds {len(content):,} bytes; {' x '.join(map(str, shape))} numbers of {dtype.itemsize} bytes are "
            "needed. Export again."
        )
    array: NDArray[np.generic] = np.frombuffer(content, dtype).reshape(shape)
    if dtype.kind == "f" and not np.isfinite(array.astype(np.float64)).all():
        raise RunError(f"{file} holds numbers that are not finite. Export a model that has not diverged.")
    return array


def _parse_items(path: Path, content: bytes, m: int) -> Items:
    try:
        items = Items.model_validate(_parse_json(path, "items.json", content))
        if any(genre >= len(items.genre_names) for genres in items.genres for genre in genres):
            raise ValueError("a genre has no name")
    except ValueError:
        raise RunError(f"{path}/items.json holds something that is no title, name or genre. Export again.") from None
    if {len(items.names), len(items.titles), len(items.genres)} != {m}:
        raise RunError(f"{path}/items.json does not hold {m:,} names, titles and genres. Export again.")
    return items


def _read_file(path: Path, name: str) -> bytes:
    try:
        status = (path / name).stat()
        if not stat.S_ISREG(status.st_mode) or status.st_size > MAX_FILE:
            raise RunError(f"{path}/{name} is no regular file of at most {MAX_FILE:,} bytes. Export again.")
        return (path / name).read_bytes()
    except OSError as error:
        if name == "manifest.json":
            raise RunError(f"{path} is not a bundle: it has no {name}. Make one: `fedtaste export RUN DIR`.") from error
        raise RunError(f"{path} lacks {name} ({error.strerror}). Restore it from a copy, or export again.") from error


def _parse_json(path: Path, name: str, content: bytes) -> Json:
    try:
        value = json.loads(content)
        if not isinstance(value, dict):
            raise ValueError("it is not a JSON object")
        return value
    except (ValueError, RecursionError) as error:
        raise RunError(f"{path}/{name} cannot be read ({error}). Restore it from a copy, or export again.") from error


def integrity(pin: str) -> str:
    """A hex SHA-256 in the form of HTML's integrity attribute."""
    return "sha256-" + base64.b64encode(bytes.fromhex(pin)).decode()


def with_pin(content: bytes, pin: str) -> bytes:
    """index.html or sw.js with the manifest's hash in its place."""
    return content.replace(b"{{manifest}}", integrity(pin).encode()).replace(b"{{version}}", pin.encode())


def _without_pin(content: bytes, pin: str) -> bytes:
    """The inverse of `with_pin`."""
    return content.replace(integrity(pin).encode(), b"{{manifest}}").replace(pin.encode(), b"{{version}}")


def _changed(path: Path, name: str, why: str) -> RunError:
    return RunError(
        f"{path}/{name} is not the file that was exported: {why}. Nothing was computed with it. Restore it from a "
        "copy, or export again with `fedtaste export`."
    )
