"""Fuzzing of decoders: mutate valid bytes and check what each decoder does with them.

A target has valid bytes to start from (`seeds`), a mutation that knows the format, and `feed`, which passes the bytes
to the decoder. A decoder may return a valid value or raise a FedtasteError (for messages also a ValueError); any other
exception that leaves `feed` is a finding. `tests/test_decoders.py` runs each target for a moment, and
`benchmarks/faults.py` for ten minutes.
"""

from __future__ import annotations

import contextlib
import copy
import gzip
import io
import json
import random
import shutil
import struct
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import polars as pl
import torch
from safetensors.torch import load as load_bytes

from fedtaste import __version__, load
from fedtaste.cli.options import ReportOptions
from fedtaste.cli.report import report
from fedtaste.core import Upload
from fedtaste.data import formats
from fedtaste.data.user_files import read_likes, save
from fedtaste.engine.checkpoint import checksum, load_params, load_state, save_state
from fedtaste.engine.run import begin, run
from fedtaste.errors import FedtasteError
from fedtaste.experiment.folder import RunFolder
from fedtaste.experiment.plan import plan
from fedtaste.experiment.progress import Progress
from fedtaste.experiment.result import RunResult
from fedtaste.experiment.settings import Settings
from fedtaste.experiment.train import execute, make_task, prepare
from fedtaste.serving.recommend import recommend
from fedtaste.wire.messages import Head, decode, encode
from fedtaste.wire.validation import LIMIT, MAX_WEIGHT, UploadValidator
from support.worlds import world

SMALL = "synthetic:12x10x50"
NUMBERS = (0, -1, 1, 2, 2**31, 2**63 - 1, 2**63, 2**64, -(2**63), 10**30, 10**400, 1e308, 1e-320, -0.0, 0.5)
VALUES = (None, True, False, "", "x", "\x00", "\ud800", "../..", "=1+1", [], {}, [[]], {"a": None}, [1, "x"], *NUMBERS)
TOKENS = (
    b"\x00", b"\xff", b"\xff\xfe", b"\xef\xbb\xbf", b'"', b"''", b",", b"\n", b"\r\n", b"\r", b"\t", b";", b"nan",
    b"inf", b"-inf", b"1e999", b"-0", b"NaN", b"null", b"{", b"}", b"[" * 50, b"]", b":", b"\\u0000", b"\x1f\x8b",
    b"PAR1", b"9" * 400, b"a" * 3000, b"\xf0\x9f\x98\x80", b"\xc3\x28", b"2024-02-30", b"9999-12-31T23:59:60Z",
    b"\x80\x80\x80\x80\x08", b"\xff\xff\xff\xff\x0f", b"\x7f\xff\xff\xff", b"user", b"item", b"rating",
)  # fmt: skip
DTYPES = ("F32", "F64", "F16", "BF16", "I64", "I32", "I16", "I8", "U8", "U16", "U32", "U64", "BOOL", "F8_E4M3",
          "F8_E5M2", "F8_E8M0", "F4", "F6_E2M3", "F6_E3M2", "C64", "X", "", 7, None)  # fmt: skip


WIDTHS = (("F64", 8), ("I64", 8), ("F32", 4), ("I32", 4), ("BF16", 2), ("F16", 2), ("BOOL", 1), ("U8", 1),
          ("F8_E4M3", 1), ("F8_E5M2", 1), ("C64", 8), ("U64", 8))  # fmt: skip
SHAPES = ([], [0], [-1], [2**62, 4], [2**32, 2**32], [2**40], [True], "x", [1.5], None, [1] * 70)


def mutate_bytes(draw: random.Random, blob: bytes) -> bytes:
    """Flip, cut, repeat, move or insert bytes (also TOKENS that often break parsers), 1 to 16 times."""
    out = bytearray(blob)
    for _ in range(draw.choice((1, 1, 1, 2, 4, 16))):
        at = draw.randrange(len(out) + 1)
        length = draw.choice((1, 2, 4, 8, 64))
        kind = draw.randrange(8)
        if kind == 0 and out:
            out[at % len(out)] ^= 1 << draw.randrange(8)
        elif kind == 1 and out:
            out[at % len(out)] = draw.randrange(256)
        elif kind == 2:
            del out[at : at + length]
        elif kind == 3:
            out[at:at] = draw.choice(TOKENS)
        elif kind == 4:
            out[at : at + length] = draw.choice(TOKENS)
        elif kind == 5:
            out = out[:at] if draw.random() < 0.3 else out[:at] + out[at : at + length] + out[at:]
        elif kind == 6:
            out[at : at + 8] = struct.pack("<q", draw.choice((0, 1, -1, 2**31, 2**40, 2**62, draw.getrandbits(62))))
        else:
            other = draw.randrange(len(out) + 1)
            out[at : at + length] = out[other : other + length]
    return bytes(out)


def mutate_json(draw: random.Random, tree: Any) -> Any:
    """A copy of a JSON value in which 1 to 3 entries are replaced, removed, repeated or nested deeper."""
    tree = copy.deepcopy(tree)
    for _ in range(draw.choice((1, 1, 1, 2, 3))):
        spots: list[tuple[Any, Any]] = []
        heap = [tree]
        while heap and len(spots) < 5000:
            node = heap.pop()
            inside = list(node.items()) if isinstance(node, dict) else list(enumerate(node))
            spots += [(node, key) for key, _ in inside]
            heap += [value for _, value in inside if isinstance(value, dict | list)]
        if not spots:
            return draw.choice(VALUES)
        node, key = draw.choice(spots)
        kind = draw.randrange(6)
        if kind == 0:
            del node[key]
        elif kind == 1 and isinstance(node, list):
            node.insert(key, copy.deepcopy(draw.choice((node[key], *VALUES))))
        elif kind == 1:
            node[draw.choice(("", "x", "curve", "loss", "a" * 100))] = draw.choice(VALUES)
        elif kind == 2:
            node[key] = [node[key]] if draw.random() < 0.5 else {"x": node[key]}
        elif kind == 3:
            other, place = draw.choice(spots)
            with contextlib.suppress(KeyError, IndexError):
                node[key] = copy.deepcopy(other[place])
        else:
            node[key] = copy.deepcopy(draw.choice(VALUES))
    return tree


def dump_json(draw: random.Random, tree: Any) -> bytes:
    """JSON as text, sometimes invalid or hard to parse: NaN, deep nesting, huge numbers, a key twice."""
    text = json.dumps(tree, indent=draw.choice((None, 1)))
    kind = draw.randrange(30)
    if kind == 0:
        text = text.replace(draw.choice(("0", "1", "null", "true")), draw.choice(("NaN", "Infinity", "1e999", "-")))
    elif kind == 1:
        text = "[" * 100_000 + text
    elif kind == 2:
        text = text.replace("0", "1" + "0" * 400, 1)
    elif kind == 3 and isinstance(tree, dict) and tree:  # a key twice: readers use the second value
        text = text.rstrip()[:-1] + f",{json.dumps(draw.choice(list(tree)))}:{json.dumps(draw.choice(VALUES))}}}"
    return text.encode("utf-8", "surrogatepass")


def mutate_safetensors(draw: random.Random, blob: bytes) -> bytes:
    """Change sizes, offsets, shapes, types, names or metadata in the header of a safetensors file, or any bytes."""
    kind = draw.randrange(10)
    if kind < 3:
        return mutate_bytes(draw, blob)
    size = struct.unpack("<Q", blob[:8])[0]
    header, body = json.loads(blob[8 : 8 + size]), blob[8 + size :]
    names = [name for name in header if name != "__metadata__"]
    entry = header[draw.choice(names)] if names else {}
    if kind == 3 and names:
        entry["dtype"] = draw.choice(DTYPES)
    elif kind == 4 and names:
        shape = entry["shape"]
        entry["shape"] = draw.choice((*SHAPES, [*shape, 1], shape[:-1], shape[::-1]))
    elif kind == 5 and names:
        first, last = entry["data_offsets"]
        entry["data_offsets"] = draw.choice(([0, 2**60], [last, first], [first, first], [first, last + 8], [-8, last],
                                             [0, len(body)], [first], None, [first + 1, last + 1]))  # fmt: skip
    elif kind == 6 and "about" in header.get("__metadata__", {}):
        mark, _, text = header["__metadata__"]["about"].partition(" ")
        about = dump_json(draw, mutate_json(draw, json.loads(text))).decode("utf-8", "replace")
        header["__metadata__"]["about"] = f"{mark} {about}"
    elif kind == 7 and names:  # a valid file: the same bytes as another shape or type
        whole = entry["data_offsets"][1] - entry["data_offsets"][0]
        dtype, width = draw.choice(WIDTHS)
        if whole % width == 0:
            entry |= {"dtype": dtype, "shape": draw.choice(([whole // width], [1, whole // width], entry["shape"]))}
    elif kind == 8 and names:
        old = draw.choice(names)
        header[draw.choice(("x", "", "params/x", "weight", "shared.x", "memory.m.x", old + "x"))] = header.pop(old)
    else:
        header = mutate_json(draw, header)
        header = header if isinstance(header, dict) else {}
    text = dump_json(draw, header) if draw.random() < 0.2 else json.dumps(header).encode()
    claimed = draw.choice((0, 1, 2**31, 2**62, len(body) + size)) if draw.random() < 0.05 else len(text)
    return struct.pack("<Q", claimed) + text + body


def mutate_checkpoint(draw: random.Random, blob: bytes) -> bytes:
    """Damage a checkpoint; half of the time correct its checksum, so that the checks behind the checksum are tested."""
    blob = mutate_safetensors(draw, blob)
    with contextlib.suppress(Exception):
        if draw.random() < 0.5:
            size = struct.unpack("<Q", blob[:8])[0]
            header = json.loads(blob[8 : 8 + size])
            text = header["__metadata__"]["about"]
            text = text if text.startswith("{") else text.partition(" ")[2]
            header["__metadata__"]["about"] = f"{checksum(load_bytes(blob), text)} {text}"
            new_header = json.dumps(header).encode()
            return struct.pack("<Q", len(new_header)) + new_header + blob[8 + size :]
    return blob


@dataclass
class Target:
    seeds: Callable[[], list[bytes]]
    mutate: Callable[[random.Random, bytes], bytes]
    feed: Callable[[bytes, Path], None]
    outcomes: dict[str, int] = field(default_factory=dict)

    def case(self, seed: int) -> bytes:
        draw = random.Random(seed)
        return self.mutate(draw, draw.choice(self.seeds()))


# A message from a device

TOTAL = {"item": torch.arange(12.0).reshape(4, 3), "loss": torch.tensor(0.5)}


@cache
def messages() -> list[bytes]:
    empty: dict[str, torch.Tensor] = {}
    return [
        encode(Upload(total, torch.tensor(2.0)), Head(7, 3, person))
        for total in (TOTAL, empty, {"item": torch.zeros(0, 3)}, {"item": TOTAL["item"].double()})
        for person in (0, 5)
    ]


def feed_message(blob: bytes, folder: Path) -> None:
    with contextlib.suppress(ValueError):
        decode(blob)
    validator = UploadValidator(7, 3, [0, 5], TOTAL)
    admitted = validator.admit(blob)
    refusals = sum(validator.refused.values())
    assert (admitted is None) == (refusals == 1) == (not validator.answered), "either admitted or counted as refused"
    if admitted is not None:
        who, upload = admitted
        assert who in (0, 5) and upload.weight.dtype == torch.float32 and 0 < float(upload.weight) <= MAX_WEIGHT
        for name, value in upload.total.items():
            assert value.shape == TOTAL[name].shape and value.dtype == TOTAL[name].dtype
            assert torch.isfinite(value).all() and float(value.abs().max()) <= LIMIT
        (upload + upload).mean()


# A checkpoint

STATES = (("fedavg", {"lr": 0.1, "server": "adam"}), ("ditto", {"lr": 0.1, "own_lr": 0.1, "lam": 0.5}), ("fedals", {}))


@cache
def checkpoints() -> list[bytes]:
    out = []
    with tempfile.TemporaryDirectory() as folder:
        for name, settings in STATES:
            method, model, federation = world(name, settings, "ranking")
            *_, last = run(method, model, federation, rounds=2)
            progress = Progress(best_round=2, curve=[{"round": 1, "valid": {"hr@10": 0.5}, "up_bytes": 1}])
            RunFolder(Path(folder)).save(last.state, progress)
            out.append((Path(folder) / "state.safetensors").read_bytes())
    return out


@cache
def memories() -> dict[str, dict[str, Any]]:
    """Names and shapes of the server's memory, by method. A state does not describe them: a checkpoint with a forged
    checksum may have any memory, and such checkpoints are not trained further here."""
    shapes = {}
    for name, settings in STATES:
        *_, last = run(*world(name, settings, "ranking"), rounds=1)
        shapes[name] = {n: v.shape for n, v in last.state.memory.items()}
    return shapes


def feed_checkpoint(blob: bytes, folder: Path) -> None:
    (folder / "state.safetensors").write_bytes(blob)
    with contextlib.suppress(FedtasteError):
        load_params(folder / "state.safetensors")
    for name, settings in STATES:
        method, model, federation = world(name, settings, "ranking")
        fresh = begin(method, model, federation)
        with contextlib.suppress(FedtasteError):
            load_state(folder / "state.safetensors", fresh)
        with contextlib.suppress(FedtasteError):
            state, _ = RunFolder(folder).restore(lambda: begin(method, model, federation))  # noqa: B023
            shapes = {n: v.shape for n, v in state.memory.items()} if state is not None else None
            if state is not None and shapes == memories()[name]:  # a state that is accepted can be trained and saved
                next(run(method, model, federation, rounds=state.round + 1, state=state))
                save_state(folder / "again.safetensors", state, {})


# A run folder: one of its files is damaged

FILES = ("settings.json", "plan.json", "items.json", "result.json", "compare.json", "facts.json")


@cache
def run_folder() -> Path:
    """A folder with a finished run and the compare.json of a comparison of this run with itself."""
    base = Path(tempfile.mkdtemp(prefix="fedtaste-fuzz-"))
    settings, data = Settings(data=SMALL, method="fedals", set={"k": "3"}, rounds=3, threads=1), load(SMALL)
    folder = RunFolder.create(base / "run", settings.model_dump(), data, __version__)
    execute(prepare(settings, data), folder)
    RunFolder(base).write(
        "compare.json",
        {"runs": ["run", "run"], "heterogeneity": {"R": 1.0, "noise": 0.5, "n": 9.0, "clients": 3, "lam": None}},
    )
    return base


@cache
def folder_files() -> list[bytes]:
    base = run_folder()
    texts = [(base / ("" if name == "compare.json" else "run") / name).read_bytes() for name in FILES]
    return [bytes([place]) + text for place, text in enumerate(texts)]


def mutate_folder(draw: random.Random, blob: bytes) -> bytes:
    """Damage one file of a run folder; the first byte is its index in FILES."""
    if draw.random() < 0.25:
        return blob[:1] + mutate_bytes(draw, blob[1:])
    return blob[:1] + dump_json(draw, mutate_json(draw, json.loads(blob[1:])))


def feed_folder(blob: bytes, folder: Path) -> None:
    name = FILES[blob[0] % len(FILES)]
    trial = folder / "trial"
    if not trial.exists():
        shutil.copytree(run_folder(), trial)
    part = trial / ("" if name == "compare.json" else "run")
    whole = (part / name).read_bytes()
    try:
        (part / name).write_bytes(blob[1:])
        _read_folder(trial, name, sum(blob) % 40 == 0)
    finally:
        (part / name).write_bytes(whole)


def _read_folder(trial: Path, name: str, slow: bool) -> None:
    data = load(SMALL)
    with contextlib.suppress(FedtasteError):  # the first steps of `fedtaste resume`
        folder = RunFolder.open(trial / "run")
        settings = folder.settings()
        folder.require_same_data(data)
        folder.require_same_version(__version__)
        run_plan = plan(settings, make_task(settings, data).facts)
        folder.require_same_plan(run_plan.settings)
    with contextlib.suppress(FedtasteError):
        recommend(trial / "run", likes=[RunFolder(run_folder() / "run").items(10)["titles"][0]], n=3)
    if name in ("result.json", "compare.json"):
        with contextlib.suppress(FedtasteError), contextlib.redirect_stdout(io.StringIO()):
            if slow:  # with its plots
                path = trial if name == "compare.json" else trial / "run"
                report(ReportOptions(path=path, as_json=bool(len(name) % 2)))
            else:
                _page(RunFolder(trial / "run").result())


def _page(result: RunResult) -> None:
    """Render a report without its plots, which would take a second."""
    from fedtaste.report.curves import curves, downloads, memories
    from fedtaste.report.html import render
    from fedtaste.report.tables import text_table
    from fedtaste.report.trade_off import trade_off

    for results in ([result], [result, result.model_copy(update={"method": "fedavg"})]):
        tradeoff = trade_off(results, None)
        curves(results), downloads(results), memories(results)
        render(results, tradeoff=tradeoff)
        text_table(results, tradeoff)


# Interaction files: CSV and other text formats, and Parquet

TEXTS = (
    'user,item,rating,timestamp,title,genres\na,x,1,10,Ex,g|h\nb,y,2.5,20,Why,\na,z,3,30,"Z, the",g\n',
    "user\titem\n1\t2\n3\t4\n01\t2\n",
    "user_id:token;item_id:token;timestamp\n7;8;2020-01-01\n9;8;2021-02-03T04:05:06Z\n",
    "title,rating\nEx,5\nWhy,3\n",
    "user,item,date\r\na,b,2020-01-01 10:00\r\n\r\nc,d,2020-01-02 10:00:00.5+02:00\r\n",
)
FORMS = ("a.csv", "a.tsv", "a.csv.gz", "a.txt", "a.inter")


@cache
def texts() -> list[bytes]:
    plain = [bytes([form]) + text.encode() for text in TEXTS for form in (0, 1, 3)]
    return plain + [b"\x02" + gzip.compress(text.encode(), mtime=0) for text in TEXTS]


def mutate_text(draw: random.Random, blob: bytes) -> bytes:
    form, content = blob[:1], blob[1:]
    if form == b"\x02" and draw.random() < 0.5:  # damage the text and compress it again
        return form + gzip.compress(mutate_bytes(draw, gzip.decompress(content)), mtime=0)
    return form + mutate_bytes(draw, content)


def feed_text(blob: bytes, folder: Path) -> None:
    path = folder / FORMS[blob[0] % len(FORMS)]
    path.write_bytes(blob[1:])
    _load(path, folder)


def _load(path: Path, folder: Path) -> None:
    with contextlib.suppress(FedtasteError):
        data = load(str(path))
        assert len(data.person) == len(data.item) > 0 and data.person.max() < len(data.people)
        assert data.value is None or np.isfinite(data.value).all()
        assert data.time is None or np.isfinite(data.time).all()
        json.dumps([data.people, data.items, data.titles]).encode()
    with contextlib.suppress(FedtasteError):
        read_likes(path)
    split = folder / "split"
    split.mkdir(exist_ok=True)
    for old in split.iterdir():
        old.unlink()
    for part in ("train", "test", "items"):
        shutil.copyfile(path, split / path.name.replace("a.", f"{part}."))
    with contextlib.suppress(FedtasteError):
        load(str(split))


@cache
def parquets() -> list[bytes]:
    frame = pl.DataFrame({
        "user": ["a", "b", "a"], "item": [1, 2, 3], "rating": [1.0, 2.5, 3.0], "timestamp": [10, 20, 30],
        "title": ["x", "y", None], "genres": [["g", "h"], ["g"], []],
    })  # fmt: skip
    other = pl.DataFrame({"user": [1.0, 2.0], "item": [True, False], "date": ["2020-01-01", "2021-01-01"]})
    dated = other.with_columns(pl.col("date").str.to_datetime())
    out = []
    for table in (frame, other, dated):
        for packing in ("zstd", "snappy", "gzip", "lz4", "uncompressed"):
            file = io.BytesIO()
            table.write_parquet(file, compression=packing, statistics=packing == "zstd")
            out.append(file.getvalue())
    with tempfile.TemporaryDirectory() as folder:
        save(load(SMALL), Path(folder) / "a.parquet")
        out.append((Path(folder) / "a.parquet").read_bytes())
    return out


class Trials:
    """Replaces `subprocess` in data/formats.py, which reads every Parquet file in a process of its own on trial. That
    would take most of the time, so one process here reads file after file, until one of them crashes it."""

    DEVNULL, TimeoutExpired = subprocess.DEVNULL, subprocess.TimeoutExpired

    def __init__(self) -> None:
        self.process: subprocess.Popen[str] | None = None

    def run(self, command: list[str], **_: object) -> SimpleNamespace:
        if self.process is None or self.process.poll() is not None:
            if self.process is not None:
                self.process.stdin.close(), self.process.stdout.close()
            body = command[3].replace("polars.read_parquet(sys.argv[1]", "polars.read_parquet(path")
            head, _, tail = body.rpartition("try:\n")
            loop = f"for path in sys.stdin:\n  path = path.strip()\n  try:\n  {tail.replace(chr(10), chr(10) + '  ')}"
            script = f"{head}{loop}\n  print('ok', flush=True)\n"
            self.process = subprocess.Popen(
                [command[0], "-P", "-c", script, "", command[5]], text=True,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            )  # fmt: skip
        try:
            self.process.stdin.write(command[4] + "\n")
            self.process.stdin.flush()
            fine = self.process.stdout.readline() == "ok\n"
        except OSError:
            fine = False
        if not fine:
            self.process.wait()
        return SimpleNamespace(returncode=0 if fine else 1)


TRIALS = Trials()


def feed_parquet(blob: bytes, folder: Path) -> None:
    (folder / "a.parquet").write_bytes(blob)
    with mock.patch.object(formats, "subprocess", TRIALS):
        _load(folder / "a.parquet", folder)


TARGETS = {
    "message": Target(messages, mutate_safetensors, feed_message),
    "checkpoint": Target(checkpoints, mutate_checkpoint, feed_checkpoint),
    "run folder": Target(folder_files, mutate_folder, feed_folder),
    "text": Target(texts, mutate_text, feed_text),
    "parquet": Target(parquets, mutate_bytes, feed_parquet),
}
