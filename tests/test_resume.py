"""What is interrupted, and how ever, ends with the same bytes as what is not."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from command import cli, tacit
from tacit import __version__, experiment
from tacit.data.importing import write_atomically as write_data
from tacit.data.sources import load
from tacit.engine.checkpoint import load_params, save_params
from tacit.errors import DataError, RunError
from tacit.experiment import Progress, execute
from tacit.runs import RunFolder
from tacit.settings import Settings
from tacit.wholefile import write_atomically

WEIGHTS = ("model.safetensors", "final.safetensors")


# In this process: interrupted at chosen rounds


@dataclass
class Watch:
    """Counts the rounds of every phase, moves the clock, and interrupts where it is told to, once."""

    step: float
    stops: set[tuple[str, int]] = field(default_factory=set)
    seen: list[tuple[str, int]] = field(default_factory=list)
    begun: list[tuple[str, int]] = field(default_factory=list)
    now: float = 0.0

    def phase(self, name: str, rounds: int, done: int) -> None:
        self.begun.append((name, done))

    def round(self, number: int, metrics: dict[str, float] | None) -> None:
        self.now += self.step
        at = (self.begun[-1][0], number)
        self.seen.append(at)
        if at in self.stops:
            self.stops.remove(at)
            raise KeyboardInterrupt


def outcome(path: Path, result: dict) -> dict:
    """All that must be equal."""
    same = {name: value for name, value in result.items() if name not in ("seconds", "peak_rss_mb", "run")}
    return same | {name: (path / name).read_bytes() for name in WEIGHTS}


def go(path: Path, settings: Settings, data, watch: Watch, monkeypatch) -> tuple[dict, int]:
    """(outcome, how often it was resumed). A second passes with every round, or less; a checkpoint costs no time."""
    clock = SimpleNamespace(perf_counter=lambda: watch.now, process_time=lambda: watch.now)
    monkeypatch.setattr(experiment, "time", clock)
    folder, resumed = RunFolder.create(path, settings.model_dump(), data, __version__), 0
    while True:
        try:
            return outcome(path, execute(settings, data, folder, watch)), resumed
        except KeyboardInterrupt:
            folder, resumed = RunFolder.open(path), resumed + 1
            settings = folder.settings()
            folder.same_data(data)


WORLD = "synthetic:30x24x240"
CASES = {
    "fedals": (WORLD, {"k": "4"}),
    "fedavg": (WORLD, {"k": "4", "server": "adam", "server_lr": "0.05"}),
    "fedrep": (WORLD, {"k": "4", "lr": "0.5"}),
    "fedrecon": (WORLD, {"k": "4", "server": "yogi", "server_lr": "0.05"}),
    "local": (WORLD, {"k": "4", "lr": "0.2"}),
    "fedtrail": (WORLD, {"k": "4"}),
    "fedrap": (WORLD, {"k": "4", "table_lr": "10", "passes": "2"}),
    "fedsgd": ("linear", {"lr": "0.2", "momentum": "0.5"}),
}


@pytest.mark.parametrize("method", CASES)
def test_interrupted_and_resumed_is_uninterrupted(method, tmp_path, monkeypatch):
    source, given_settings = CASES[method]
    ranks = source != "linear"
    settings = Settings(
        data=source, method=method, set=given_settings, rounds=6, cohort=0.5, dropout=0.1, threads=1,
        new_people="folds" if ranks else None,
    )  # fmt: skip
    data = load(source)
    whole = Watch(1.5)
    expected, _ = go(tmp_path / "whole", settings, data, whole, monkeypatch)
    phases = list(dict.fromkeys(name for name, _ in whole.seen))
    assert phases == (["search", "final", *(f"fold-{n}" for n in range(10))] if ranks else ["final"])
    last = dict(whole.seen)
    assert last[phases[0]] == 6
    for name, step, where in (  # a checkpoint after every round, or after every third
        ("every", 1.5, set(whole.seen)),
        ("last", 0.4, set(last.items())),
        ("fifth", 0.4, set(whole.seen[2::5])),
    ):
        watch = Watch(step, set(where))
        got, resumed = go(tmp_path / name, settings, data, watch, monkeypatch)
        assert resumed == len(where) and not watch.stops
        assert got == expected, (step, where)
        if step > 1:  # nothing but the interrupted round is done again
            assert len(watch.seen) == len(whole.seen) + len(where)


def test_a_checkpoint_holds_a_phase_and_its_place(tmp_path, monkeypatch):
    settings = Settings(data=WORLD, method="fedavg", set={"k": "4"}, rounds=6, threads=1)
    watch = Watch(1.5, {("search", 4)})
    go(tmp_path / "run", settings, load(WORLD), watch, monkeypatch)
    assert watch.begun[:2] == [("search", 0), ("search", 3)] and watch.begun[2][0] == "final"


def test_a_comparison_can_go_on_run_by_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(cli.Bars, "round", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    said = tacit(
        "compare", "--methods", "fedals,fedavg", "--data", WORLD, "--set", "k=3", "--rounds", "2", "--out", "both"
    )
    assert said.code == 2 and "tacit resume both/fedals" in said.err and "Traceback" not in said.err
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    assert json.loads(tacit("resume", "both/fedals", "--json").out)["method"] == "fedals"


def test_stopped_before_anything_was_begun(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for error in (KeyboardInterrupt(), numba_s_word_for_it()):
        monkeypatch.setattr(experiment, "make_task", lambda *_, error=error: (_ for _ in ()).throw(error))
        said = tacit("run", "--data", WORLD, "--json")
        assert (said.code, said.out) == (2, "") and "nothing is lost" in said.err and not list(tmp_path.iterdir())


@pytest.mark.parametrize("by_hand", [True, False])
def test_stopped_in_a_compiled_kernel(tmp_path, monkeypatch, by_hand):
    monkeypatch.chdir(tmp_path)
    error = numba_s_word_for_it() if by_hand else SystemError("another")
    monkeypatch.setattr(cli.Bars, "round", lambda *_: (_ for _ in ()).throw(error))
    said = tacit("run", "--data", WORLD, "--set", "k=3", "--json", "--out", "run")
    assert (said.code, said.out) == ((2, "") if by_hand else (1, ""))
    assert ("tacit resume run" if by_hand else "bug in tacit: SystemError: another") in said.err


def numba_s_word_for_it() -> SystemError:
    error = SystemError("CPUDispatcher returned a result with an exception set")
    error.__cause__ = SystemError("_numba_unpickle returned a result with an exception set")
    error.__cause__.__cause__ = KeyboardInterrupt()
    return error


# In a process of its own: killed

VALUES = ("k=16", "lam=0.1", "alpha0=0.3", "recency=0.75", "floor=0.02", "spread=0.1")
RUN = (
    "--data", "synthetic:200x150x3000", "--method", "fedals", "--rounds", "300", "--patience", "0", "--threads", "1",
    "--new-people", "folds", *(f"--set={value}" for value in VALUES), "--json",
)  # fmt: skip
PHASES = ("", "created", "search", "final", "fold")
PLACES = [("created", 0.9)] * 9 + [("search", 0.3)] * 2 + [("final", 0.2)] * 4 + [("fold", 1.5)] * 5  # seconds at most


def begin(path: Path) -> subprocess.Popen:
    command = [sys.executable, "-m", "tacit.cli", "run", *RUN, "--out", str(path)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def phase(path: Path) -> str:
    """How far a run has come, from its folder alone."""
    if not (path / "settings.json").exists():
        return ""
    if not (path / "state.safetensors").exists():
        return "created"
    return load_params(path / "state.safetensors")[1]["progress"]["phase"].split("-")[0]


def reached(process: subprocess.Popen, path: Path, wanted: str) -> bool:
    """Wait for a phase, or a later one where it was over in a blink; False when the run is over."""
    while process.poll() is None:
        with contextlib.suppress(RunError):  # the process at work put a new checkpoint there while this one was opened
            if PHASES.index(phase(path)) >= PHASES.index(wanted):
                return True
        time.sleep(0.01)
    return False


def killed(path: Path, wanted: str, delay: float) -> Path:
    """A run folder whose run was killed in the middle. A run that was over too soon is begun again."""
    for attempt in range(20):
        trial = path.with_name(f"{path.name}-{attempt}")
        with begin(trial) as process:
            if reached(process, trial, wanted):
                time.sleep(delay / (attempt + 1))
            process.kill()
            process.communicate()
        if process.returncode == -signal.SIGKILL and phase(trial):
            return trial
    raise AssertionError(f"no run could be killed in {wanted}")


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("uninterrupted") / "run"
    with begin(path) as process:
        err = process.communicate()[1]
    assert process.returncode == 0, err
    return path


def test_killed_twenty_times(tmp_path, uninterrupted):
    """kill -9 at random moments: before the first checkpoint, while the round is chosen, in training, in the folds."""
    draw = random.Random(2024)
    moments = [(place, draw.uniform(0, longest)) for place, longest in PLACES]
    slots = threading.Semaphore(2)  # processes at work at a time, this one included

    def trial(number: int) -> Path:
        with slots:
            return killed(tmp_path / str(number), *moments[number])

    wrong, phases = [], []
    with ThreadPoolExecutor(2) as pool:
        for done in as_completed(pool.submit(trial, number) for number in range(len(PLACES))):
            path = done.result()
            phases.append(phase(path))
            with slots:
                said = tacit("resume", path, "--json")
            assert said.code == 0, said.err
            if any((path / name).read_bytes() != (uninterrupted / name).read_bytes() for name in WEIGHTS):
                wrong.append(path.name)
            left = {file.name for file in path.iterdir() if not file.name.endswith(".part")}
            assert left == {file.name for file in uninterrupted.iterdir()}
    assert len(phases) == 20 and not wrong
    assert {"created", "fold"} <= set(phases), phases


def test_ctrl_c_says_how_to_go_on(tmp_path, uninterrupted):
    path = tmp_path / "run"
    with begin(path) as process:
        assert reached(process, path, "created")
        time.sleep(0.5)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate()
    assert (process.returncode, out) == (2, ""), err
    assert f"tacit resume {path}" in err.replace("\n", "") and "Traceback" not in err
    again = [sys.executable, "-m", "tacit.cli", "resume", str(path), "--json"]
    said = subprocess.run(again, capture_output=True, text=True)
    assert said.returncode == 0, said.stderr
    for name in WEIGHTS:
        assert (path / name).read_bytes() == (uninterrupted / name).read_bytes()
    one, two = json.loads(said.stdout), json.loads((uninterrupted / "result.json").read_text())
    for key in ("seconds", "peak_rss_mb", "run"):
        del one[key], two[key]
    assert one == two


# Writing


def full(*_: object, **__: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


WRITERS = {
    "bytes": (lambda folder, value: write_atomically(folder / "file", bytes([value])), RunError),
    "weights": (lambda folder, value: save_params(folder / "file", {"w": torch.full((9,), value)}, {}), RunError),
    "JSON": (lambda folder, value: RunFolder(folder).write("file", {"n": value}), RunError),
    "checkpoint": (lambda folder, value: RunFolder(folder).save(None, Progress(best_round=value)), RunError),
    "data": (lambda folder, value: write_data(folder / "file", lambda p: p.write_bytes(bytes([value]))), DataError),
}


@pytest.mark.parametrize("function", ["replace", "fsync"])
@pytest.mark.parametrize("writer", WRITERS)
def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch, writer, function):
    write, error = WRITERS[writer]
    if writer == "data" and function == "fsync":
        pytest.skip("an imported file can be made again, so it is not flushed")
    write(tmp_path, 1)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert len(before) == 1
    monkeypatch.setattr(os, function, full)
    with pytest.raises(error, match="cannot be written .*No space left"):
        write(tmp_path, 2)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    monkeypatch.undo()
    write(tmp_path, 2)
    after = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert after.keys() == before.keys() and after != before


@hypothesis_settings(max_examples=50, deadline=None)
@given(st.binary(max_size=300), st.binary(max_size=300), st.integers(0, 4))
def test_a_file_is_the_old_one_or_the_new_one(tmp_path_factory, old, new, failing):
    """Whichever call to the system fails, and so wherever a crash falls."""
    path = tmp_path_factory.mktemp("atomic") / "file"
    write_atomically(path, old)
    calls = []

    def counted(function):
        def call(*args, **options):
            calls.append(function.__name__)
            return full() if len(calls) == failing else function(*args, **options)

        return call

    with pytest.MonkeyPatch.context() as patch:
        for name in ("fsync", "replace"):
            patch.setattr(os, name, counted(getattr(os, name)))
        with contextlib.nullcontext() if failing not in (1, 2, 3) else pytest.raises(RunError):
            write_atomically(path, new)
    assert calls[:2] == ["fsync", "replace"][: len(calls)]  # on the disk before it has the name
    assert path.read_bytes() == (old if failing in (1, 2) else new) and len(list(path.parent.iterdir())) == 1


def test_a_full_disk_in_the_middle_of_a_run_loses_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    args = ("run", "--data", WORLD, "--set", "k=4", "--rounds", "3", "--threads", "1", "--json", "--out")
    assert tacit(*args, "whole").code == 0
    monkeypatch.setattr(RunFolder, "save_final", full)
    said = tacit(*args, "run")
    assert (said.code, said.out) == (2, "") and "No space left" in said.err and "Traceback" not in said.err
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    assert tacit("resume", "run", "--json").code == 0
    for name in WEIGHTS:
        assert Path("run", name).read_bytes() == Path("whole", name).read_bytes()
