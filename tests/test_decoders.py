"""Fuzzing of decoders: damaged bytes give a valid value or an error that says what is wrong.

A few cases of each decoder run here, and ten minutes of each in benchmarks/faults.py. Every past finding has a test.
"""

from __future__ import annotations

import base64
import gzip
import json
import resource
import struct
import subprocess
import sys
import zlib
from pathlib import Path

import polars as pl
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from fedtaste import load
from fedtaste.core import Upload
from fedtaste.data import formats
from fedtaste.engine.checkpoint import checksum, load_params
from fedtaste.errors import DataError, RunError
from fedtaste.wire.messages import Head, decode, encode
from fedtaste.wire.validation import UploadValidator
from support.fuzzing import FILES, TARGETS, TOTAL, checkpoints, feed_checkpoint, feed_folder, folder_files

# benchmarks/faults.py runs ten minutes of cases for each. A Parquet file is first read by a process of its own.
CASES = {"message": 1500, "checkpoint": 30, "run folder": 100, "text": 150, "parquet": 16}
CORPUS = json.loads((Path(__file__).parent / "support" / "fuzz_corpus.json").read_text())
HEAD = Head(7, 3, 0)


@pytest.mark.filterwarnings("ignore")  # a warning about the content is not a failure to read it
@pytest.mark.parametrize("name", CASES)
def test_damaged_bytes_give_a_value_or_an_error(name, tmp_path):
    target = TARGETS[name]
    for case in range(CASES[name]):
        try:
            target.feed(target.case(case), tmp_path)
        except Exception as error:
            raise AssertionError(f"case {case} of {name}: {error!r}") from error


def test_undamaged_bytes_are_accepted(tmp_path):
    """Otherwise the fuzzing tests above would prove nothing."""
    assert sum(UploadValidator(7, 3, [0, 5], TOTAL).admit(blob) is not None for blob in TARGETS["message"].seeds()) == 2
    for blob in checkpoints():
        (tmp_path / "state").write_bytes(blob)
        assert load_params(tmp_path / "state")[1]["round"] == 2
    for name, content in (("a.csv", TARGETS["text"].seeds()[0][1:]), ("a.parquet", TARGETS["parquet"].seeds()[0])):
        (tmp_path / name).write_bytes(content)
        assert len(load(str(tmp_path / name))) == 3


# Past findings: messages


@pytest.mark.parametrize(
    "dtype", ["uint16", "uint32", "uint64", "float8_e4m3fn", "float8_e5m2", "complex64", "bfloat16"]
)
def test_upload_weight_of_an_unusual_dtype_is_rejected(dtype):
    """Its comparison with zero once raised an exception in the middle of a round."""
    validator = UploadValidator(7, 3, [0], TOTAL)
    try:
        blob = encode(Upload(TOTAL, torch.tensor(2.0).to(getattr(torch, dtype))), HEAD)
    except (KeyError, ValueError, RuntimeError):
        pytest.skip("safetensors does not write it")
    assert validator.admit(blob) is None and validator.refused == {"dtype": 1}


# Past findings: checkpoints


def test_checkpoint_of_float8_is_refused(tmp_path):
    value = {"shared.item": torch.ones(4).to(torch.float8_e4m3fn)}
    save_file(value, tmp_path / "state.safetensors", {"about": f"{checksum(value, '{}')} {{}}"})
    with pytest.raises(RunError, match="cannot be read as weights"):
        load_params(tmp_path / "state.safetensors")


@pytest.mark.parametrize("about", ["{", "[" * 100_000, '{"round": ' + "9" * 5000 + "}", "", "[]", "3", '"x"'])
def test_checkpoint_with_an_invalid_description_is_refused(tmp_path, about):
    for mark in (checksum({}, about), "", "0" * 32):
        save_file({}, tmp_path / "state.safetensors", {"about": f"{mark} {about}"})
        with pytest.raises(RunError, match="cannot be read as weights|no description"):
            load_params(tmp_path / "state.safetensors")
    save_file({"w": torch.ones(1)}, tmp_path / "state.safetensors")
    with pytest.raises(RunError, match="checksum"):
        load_params(tmp_path / "state.safetensors")


@pytest.mark.parametrize("number", ["[1]", "null", '"2"', "true", "-1", "1.5", "1e400"])
def test_checkpoint_with_an_invalid_round_is_restored_or_refused(tmp_path, number):
    blob = checkpoints()[0]
    size = struct.unpack("<Q", blob[:8])[0]
    header = json.loads(blob[8 : 8 + size])
    (tmp_path / "whole").write_bytes(blob)
    text = header["__metadata__"]["about"].partition(" ")[2].replace('"round": 2, ', "").replace(', "round": 2', "")
    text = text[:-1] + f', "round": {number}}}'
    header["__metadata__"]["about"] = f"{checksum(load_params(tmp_path / 'whole')[0], text)} {text}"
    encoded_header = json.dumps(header).encode()
    feed_checkpoint(struct.pack("<Q", len(encoded_header)) + encoded_header + blob[8 + size :], tmp_path)


# Past findings: run folders


def changed(name: str, **values: object) -> bytes:
    place = FILES.index(name)
    return bytes([place]) + json.dumps(json.loads(folder_files()[place][1:]) | values).encode()


PAST_FINDINGS = {
    "no hash": lambda: changed("settings.json", data_hash=None),
    "deep": lambda: bytes([FILES.index("plan.json")]) + b"[" * 100_000,
    "runs that are numbers": lambda: changed("compare.json", runs=[1, 2]),
    "no runs": lambda: changed("compare.json", runs=None),
    "half a character": lambda: changed("result.json", data="\ud800", notes=["\udfff"]),
    "a number of 400 digits": lambda: changed("result.json", people=10**400, seen={"rmse": -(10**400)}),
    "members that are a list": lambda: changed("result.json", members=[11]),
    "a curve that is a number": lambda: changed("result.json", curve=3),
    "weights that are no array": lambda: changed("result.json", weights=[[1], 2], true_weights=[1]),
    "a scale of words": lambda: changed("result.json", scale=["a", "b"]),
}


@pytest.mark.parametrize("case", PAST_FINDINGS)
def test_changed_file_of_a_run_folder_is_read_or_refused(case, tmp_path):
    feed_folder(PAST_FINDINGS[case](), tmp_path)


# Past findings: Parquet files on which polars ends the process, or panics


@pytest.mark.parametrize("case", CORPUS)
def test_parquet_file_that_crashes_polars_is_refused(case, tmp_path):
    (tmp_path / "a.parquet").write_bytes(base64.b64decode(CORPUS[case]))
    with pytest.raises(DataError, match="damaged Parquet"):
        load(str(tmp_path / "a.parquet"))


def test_polars_still_crashes_on_damaged_parquet(tmp_path):
    """If this fails, polars reports damaged files properly, and the trial reading (data/formats.py) can be removed."""
    (tmp_path / "a.parquet").write_bytes(base64.b64decode(CORPUS["asks for exabytes"]))
    code = "import polars, sys; polars.read_parquet(sys.argv[1])"
    command = [sys.executable, "-c", code, str(tmp_path / "a.parquet")]
    assert subprocess.run(command, capture_output=True).returncode < 0


def test_trial_reading_of_parquet_has_a_time_limit(tmp_path, monkeypatch):
    pl.DataFrame({"user": ["a"], "item": ["b"]}).write_parquet(tmp_path / "a.parquet")
    assert len(load(str(tmp_path / "a.parquet"))) == 1
    monkeypatch.setattr(formats, "TRIAL", "import time; time.sleep(600)")
    real = subprocess.run
    monkeypatch.setattr(formats.subprocess, "run", lambda *args, **more: real(*args, **more | {"timeout": 0.5}))
    with pytest.raises(DataError, match="damaged Parquet"):
        load(str(tmp_path / "a.parquet"))


# Memory


def peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1000


def test_claimed_sizes_are_not_allocated(tmp_path):
    before = peak()
    for claim in (2**20, 2**31, 2**40, 2**62, 2**64 - 1):
        with pytest.raises(ValueError, match="not a message"):
            decode(struct.pack("<Q", claim) + b"{}")
        header = {"weight": {"dtype": "F32", "shape": [claim // 4], "data_offsets": [0, claim]}}
        text = json.dumps(header).encode()
        with pytest.raises(ValueError, match="not a message"):
            decode(struct.pack("<Q", len(text)) + text + bytes(64))
        (tmp_path / "state").write_bytes(struct.pack("<Q", len(text)) + text + bytes(64))
        with pytest.raises(RunError, match="cannot be read as weights"):
            load_params(tmp_path / "state")
    assert peak() - before < 100


def test_gzip_bomb_is_refused(tmp_path, monkeypatch):
    """Unpacking stops at 200 times the size of the file."""
    monkeypatch.setattr(formats, "FREE_BYTES", 1 << 22)
    part = zlib.compressobj(9, zlib.DEFLATED, 31)
    zeros = bytes(1 << 24)
    packed = b"".join(part.compress(zeros) for _ in range(20)) + part.flush()
    (tmp_path / "a.csv.gz").write_bytes(packed)
    before = peak()
    with pytest.raises(DataError, match="unpacks to more than"):
        load(str(tmp_path / "a.csv.gz"))
    assert peak() - before < 200
    text = "user,item\n" + "".join(f"{n % 50},{n % 7}\n" for n in range(9000))
    (tmp_path / "b.csv.gz").write_bytes(gzip.compress(text.encode()))
    assert len(load(str(tmp_path / "b.csv.gz"))) == 350


def test_weights_files_have_one_metadata_entry(tmp_path):
    """Two entries were written in any order, so that the same run did not give the same bytes."""
    with safe_open(_saved(tmp_path), "pt") as file:
        assert list(file.metadata()) == ["about"]


def _saved(folder: Path) -> Path:
    (folder / "state").write_bytes(checkpoints()[0])
    return folder / "state"
