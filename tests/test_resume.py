"""Interrupted and killed runs: after `resume` they end with the same bytes as uninterrupted runs."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from fedtaste import __version__
from fedtaste.data.sources import load
from fedtaste.data.synthetic import synthetic
from fedtaste.data.user_files import save
from fedtaste.engine.checkpoint import save_params
from fedtaste.errors import DataError, DivergedError, RunError
from fedtaste.experiment import train as experiment
from fedtaste.experiment.folder import RunFolder
from fedtaste.experiment.progress import Progress
from fedtaste.experiment.progress_bars import Bars
from fedtaste.experiment.result import RunResult
from fedtaste.experiment.settings import Settings
from fedtaste.experiment.train import Phase, execute, prepare
from fedtaste.files.atomic import write_atomically
from support.command import fedtaste, without_times

WEIGHTS = ("model.safetensors", "final.safetensors")


# In this process: interrupted at chosen rounds


@dataclass
class Watch:
    """Progress callbacks that count rounds, advance a fake clock, and raise KeyboardInterrupt once at each stop."""

    step: float
    stops: set[tuple[str, int]] = field(default_factory=set)
    seen: list[tuple[str, int]] = field(default_factory=list)
    begun: list[tuple[str, int]] = field(default_factory=list)
    now: float = 0.0

    def phase(self, name: str, rounds: int, done: int) -> None:
        self.begun.append((name, done))

    def round(self, number: int, metrics: dict[str, float] | None) -> None:
        self.now += self.step
        place = (self.begun[-1][0], number)
        self.seen.append(place)
        if place in self.stops:
            self.stops.remove(place)
            raise KeyboardInterrupt


def comparable_result(path: Path, result: RunResult) -> dict:
    """The parts of a run that must be equal: its result without times, and its weights."""
    return without_times(result.dump()) | {name: (path / name).read_bytes() for name in WEIGHTS}


def run_to_the_end(path: Path, settings: Settings, data, watch: Watch, monkeypatch) -> tuple[dict, int]:
    """Run and resume until the end: (outcome, number of resumptions). The clock advances by `watch.step` per round."""
    clock = SimpleNamespace(perf_counter=lambda: watch.now, process_time=lambda: watch.now)
    monkeypatch.setattr(experiment, "time", clock)
    folder, resumptions = RunFolder.create(path, settings.model_dump(), data, __version__), 0
    prepared = prepare(settings, data)
    while True:
        try:
            return comparable_result(path, execute(prepared, folder, watch)), resumptions
        except KeyboardInterrupt:
            folder, resumptions = RunFolder.open(path), resumptions + 1
            assert folder.settings() == settings  # another process would prepare the same run
            folder.require_same_data(data)


WORLD = "synthetic:30x24x240"
MIDDLE_FOLDS = {f"fold-{number}" for number in range(2, 9)}  # interrupted after their last rounds only
CASES = {
    "fedals": (WORLD, {"k": "4"}),  # with folds, as fedrap: twelve phases
    "fedavg": (WORLD, {"k": "4", "server": "adam", "server_lr": "0.05"}),
    "fedrep": (WORLD, {"k": "4", "lr": "0.5"}),
    "fedrecon": (WORLD, {"k": "4", "server": "yogi", "server_lr": "0.05"}),
    "local": (WORLD, {"k": "4", "lr": "0.2"}),
    "fedtrail": (WORLD, {"k": "4"}),
    "fedrap": (WORLD, {"k": "4", "table_lr": "10", "passes": "2"}),
    "fedsgd": ("linear", {"lr": "0.2", "momentum": "0.5"}),
}


@pytest.mark.parametrize("method", CASES)
def test_run_interrupted_at_many_rounds_ends_with_the_same_bytes(method, tmp_path, monkeypatch):
    source, method_settings = CASES[method]
    folds = method in ("fedals", "fedrap")
    settings = Settings(
        data=source, method=method, set=method_settings, rounds=4, cohort=0.5, dropout=0.1, threads=1,
        new_people="folds" if folds else None,
    )  # fmt: skip
    data = load(source)
    uninterrupted = Watch(1.5)
    expected, _ = run_to_the_end(tmp_path / "whole", settings, data, uninterrupted, monkeypatch)
    phases = list(dict.fromkeys(name for name, _ in uninterrupted.seen))
    assert phases == [*(["search"] if source == WORLD else []), "final", *(f"fold-{n}" for n in range(10 * folds))]
    last_rounds = dict(uninterrupted.seen)
    assert last_rounds[phases[0]] == 4
    for name, step, stops in (  # a checkpoint after every round, or after every third
        ("every", 1.5, {(name, number) for name, number in uninterrupted.seen if name not in MIDDLE_FOLDS}),
        ("last and every fifth", 0.4, set(last_rounds.items()) | set(uninterrupted.seen[2::5])),
    ):
        watch = Watch(step, set(stops))
        result, resumed = run_to_the_end(tmp_path / name, settings, data, watch, monkeypatch)
        assert resumed == len(stops) and not watch.stops
        assert result == expected, (step, stops)
        if step > 1:  # only interrupted rounds are repeated
            assert len(watch.seen) == len(uninterrupted.seen) + len(stops)


def test_checkpoint_stores_the_phase_and_the_round(tmp_path, monkeypatch):
    settings = Settings(data=WORLD, method="fedavg", set={"k": "4"}, rounds=6, threads=1)
    watch = Watch(1.5, {("search", 4)})
    run_to_the_end(tmp_path / "run", settings, load(WORLD), watch, monkeypatch)
    assert watch.begun[:2] == [("search", 0), ("search", 3)] and watch.begun[2][0] == "final"


def test_runs_of_an_interrupted_comparison_can_be_resumed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Bars, "round", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    args = ("--methods", "fedals,fedavg", "--data", WORLD, "--set", "k=3", "--rounds", "2", "--out", "both")
    output = fedtaste("compare", *args)
    assert output.code == 2 and "fedtaste resume both`" in output.err and "Traceback" not in output.err
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    assert json.loads(fedtaste("resume", "both/fedals", "--json").out)["method"] == "fedals"
    fedtaste("report", "both", "--json")  # of the run that has finished
    assert "FedALS" in Path("both/report.html").read_text()
    assert [result["method"] for result in fedtaste("resume", "both", "--json").json["results"]] == ["fedals", "fedavg"]


def test_an_interruption_before_training_leaves_no_files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for error in (KeyboardInterrupt(), interrupted_kernel_error()):
        monkeypatch.setattr(experiment, "make_task", lambda *_, error=error: (_ for _ in ()).throw(error))
        output = fedtaste("run", "--data", WORLD, "--json")
        assert (output.code, output.out) == (2, "") and "nothing is lost" in output.err and not list(tmp_path.iterdir())


@pytest.mark.parametrize("by_hand", [True, False])
def test_ctrl_c_inside_a_compiled_kernel_is_not_reported_as_a_bug(tmp_path, monkeypatch, by_hand):
    monkeypatch.chdir(tmp_path)
    error = interrupted_kernel_error() if by_hand else SystemError("another")
    monkeypatch.setattr(Bars, "round", lambda *_: (_ for _ in ()).throw(error))
    output = fedtaste("run", "--data", WORLD, "--set", "k=3", "--json", "--out", "run")
    assert (output.code, output.out) == ((2, "") if by_hand else (1, ""))
    assert ("fedtaste resume run" if by_hand else "bug in fedtaste: SystemError: another") in output.err


def interrupted_kernel_error() -> SystemError:
    """The error that Numba raises when Ctrl-C interrupts a compiled function."""
    error = SystemError("CPUDispatcher returned a result with an exception set")
    error.__cause__ = SystemError("_numba_unpickle returned a result with an exception set")
    error.__cause__.__cause__ = KeyboardInterrupt()
    return error


# Killed and interrupted processes

RUN = (
    "--data", "synthetic:200x150x3000", "--method", "fedals", "--rounds", "200", "--patience", "0", "--threads", "1",
    "--set=k=16", "--set=spread=0.1", "--json",
)  # fmt: skip


def test_runs_killed_six_times_end_with_the_same_bytes(tmp_path):
    """kill -9 at random moments, also of resumed runs; 500 times in benchmarks/faults.py."""
    killing = Path(__file__).parent / "support" / "killing.py"
    command = [sys.executable, str(killing), "runs", "6", "2024", str(tmp_path)]
    report = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
    assert report["kills"] >= 6 and not report["not_resumed"] and not report["not_the_same_bytes"]
    assert len(report["where"]) >= 2, "in more than one phase"


def test_ctrl_c_names_the_resume_command(tmp_path):
    path, reference = tmp_path / "run", tmp_path / "whole"
    command = [sys.executable, "-m", "fedtaste", "run", *RUN, "--out", str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        while process.poll() is None and not (path / "settings.json").exists():
            time.sleep(0.01)
        time.sleep(0.5)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate()
    assert (process.returncode, out) == (2, ""), err
    assert f"fedtaste resume {path}" in err.replace("\n", "") and "Traceback" not in err
    resumed, uninterrupted = fedtaste("resume", path, "--json").json, fedtaste("run", *RUN, "--out", reference).json
    for name in WEIGHTS:
        assert (path / name).read_bytes() == (reference / name).read_bytes()
    assert without_times(resumed) == without_times(uninterrupted)
    assert {file.name for file in path.iterdir()} == {file.name for file in reference.iterdir()}


# Failed writes


def raise_full_disk(*_: object, **__: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


WRITERS = {
    "bytes": (lambda folder, value: write_atomically(folder / "file", bytes([value])), RunError),
    "weights": (lambda folder, value: save_params(folder / "file", {"w": torch.full((9,), value)}, {}), RunError),
    "JSON": (lambda folder, value: RunFolder(folder).write("file", {"n": value}), RunError),
    "checkpoint": (lambda folder, value: RunFolder(folder).save(None, Progress(best_round=value)), RunError),
    "data": (lambda folder, value: save(synthetic(4, 4, 4 + value), folder / "file.csv"), DataError),
}


@pytest.mark.parametrize("function", ["replace", "fsync"])
@pytest.mark.parametrize("writer", WRITERS)
def test_failed_write_keeps_the_old_file_and_leaves_no_other(tmp_path, monkeypatch, writer, function):
    write, error = WRITERS[writer]
    write(tmp_path, 1)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert len(before) == 1
    monkeypatch.setattr(os, function, raise_full_disk)
    with pytest.raises(error, match="cannot be written .*No space left"):
        write(tmp_path, 2)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    monkeypatch.undo()
    write(tmp_path, 2)
    after = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert after.keys() == before.keys() and after != before


@hypothesis_settings(max_examples=50, deadline=None)
@given(st.binary(max_size=300), st.binary(max_size=300), st.integers(0, 4))
def test_a_failed_write_leaves_the_old_or_the_new_file(tmp_path_factory, old, new, failing):
    """This holds for a failure of any of the system calls."""
    path = tmp_path_factory.mktemp("atomic") / "file"
    write_atomically(path, old)
    calls = []

    def counted(function):
        def call(*args, **options):
            calls.append(function.__name__)
            return raise_full_disk() if len(calls) == failing else function(*args, **options)

        return call

    with pytest.MonkeyPatch.context() as patch:
        for name in ("fsync", "replace"):
            patch.setattr(os, name, counted(getattr(os, name)))
        with contextlib.nullcontext() if failing not in (1, 2, 3) else pytest.raises(RunError):
            write_atomically(path, new)
    assert calls[:2] == ["fsync", "replace"][: len(calls)]  # flushed to the disk before it is renamed
    assert path.read_bytes() == (old if failing in (1, 2) else new) and len(list(path.parent.iterdir())) == 1


def test_run_on_a_full_disk_can_be_resumed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    args = ("run", "--data", WORLD, "--set", "k=4", "--rounds", "3", "--threads", "1", "--json", "--out")
    assert fedtaste(*args, "whole").code == 0
    monkeypatch.setattr(RunFolder, "save_final", raise_full_disk)
    output = fedtaste(*args, "run")
    assert (output.code, output.out) == (2, "") and "No space left" in output.err and "Traceback" not in output.err
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    assert fedtaste("resume", "run", "--json").code == 0
    for name in WEIGHTS:
        assert Path("run", name).read_bytes() == Path("whole", name).read_bytes()


@pytest.mark.parametrize(
    ("rejected", "kind", "advice"),
    [
        ({"non-finite": 3}, DivergedError, "learning rate"),
        ({"shape": 2, "too large": 1}, DivergedError, "learning rate"),
        ({"shape": 3}, RunError, "parameters of another shape.*same version"),
    ],
)
def test_advice_after_refused_uploads_follows_the_reasons(rejected, kind, advice):
    saved = []
    phase = Phase.__new__(Phase)
    phase.training = SimpleNamespace(folder=SimpleNamespace(save=lambda *checkpoint: saved.append(checkpoint)))
    phase.progress, phase.state, phase.first_refused = Progress(phase="final", rejected=rejected), None, ""
    with pytest.raises(kind, match=advice) as error:
        phase._require_uploads()
    assert len(saved) == 1 and ("learning rate" in str(error.value)) == (kind is DivergedError)
