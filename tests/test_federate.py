"""`fedtaste federate` as a user runs it: a real federation, a private one, and refusals before any process starts.

The real federation has two nodes. One of them and the SuperLink are killed, and the result is compared with the
simulator. Every message to a node starts a process that takes several seconds of CPU time, so it has as few nodes and
rounds as possible, and the nodes of the private federation answer in this process.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import socket
import sys
import threading
from pathlib import Path

import pytest

from fedtaste.errors import RunError
from fedtaste.flower.processes import MARK
from support.command import CommandOutput, fedtaste
from support.flower_worlds import federation_in_process, serve_to_the_end

BENCHMARKS = str(Path(__file__).parents[1] / "benchmarks")
DATA = "synthetic:60x40x900"
# fedrap stores a table, a vector and two numbers for each person. There is no noise, because nodes draw it from their
# own secrets and the simulator could not compute the same numbers.
RUN = f"--data {DATA} --method fedrap --rounds 2 --wire clip=1 --set k=8 --threads 1".split()


@pytest.fixture(scope="module")
def watch():
    """The module benchmarks/federation_watch.py, which starts federations and kills their processes."""
    sys.path.insert(0, BENCHMARKS)
    try:
        yield importlib.import_module("federation_watch")
    finally:
        sys.path.remove(BENCHMARKS)


def left_over(token: str) -> list[str]:
    """Commands of running processes that carry a federation's mark."""
    commands = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if f"{MARK}={token}".encode() in (entry / "environ").read_bytes():
                    commands.append((entry / "cmdline").read_bytes().decode(errors="replace"))
            except OSError:
                continue
    return commands


def test_a_federation_with_two_killed_processes_equals_the_simulation(watch, tmp_path):
    run = tmp_path / "run"
    process = watch.started("federate", "--nodes", 2, *RUN, "--out", run, "--json")
    log_lines: list[str] = []
    reader = threading.Thread(target=lambda: log_lines.extend(process.stderr), daemon=True)
    reader.start()
    alive = lambda: process.poll() is None
    try:
        first = watch.kill_when(run, "node-1", "flower-supernode", watch.at_work(run, "search", 2, "node-1"), alive)
        processes = watch.family(run)
        ports = watch.listening([member.pid for member in processes])
        token = (Path(f"/proc/{processes[0].pid}/environ").read_bytes().split(f"{MARK}=".encode())[1])[:32].decode()
        second = watch.kill_when(run, "superlink", "flower-superlink", watch.at_work(run, "final", 1, "node-0"), alive)
        ports |= watch.listening([member.pid for member in watch.family(run)])  # with that of the restarted node-1
        output = process.stdout.read()
        assert process.wait() == 0, "".join(log_lines)
    finally:
        if alive():
            process.terminate()
        process.wait()
        reader.join(10)
        process.stdout.close()
        process.stderr.close()
    result = json.loads(output)
    assert (first["phase"], first["while_in_round"]) == ("search", 2)
    assert (second["phase"], second["while_in_round"]) == ("final", 1)
    text = "".join(log_lines)
    assert "node-1 ended (code -9)" in text
    assert "superlink ended (code -9)" in text
    assert "continues from its last round" in text

    # All processes have ended, and no port was reachable from another machine.
    assert {address for address, _ in ports} == {"0100007F"} and len(ports) >= 3
    assert left_over(token) == [] and watch.family(run) == []
    for _, port in ports:
        with socket.socket() as trial:
            assert trial.connect_ex(("127.0.0.1", port)) != 0

    # Every round is counted once, and parameters and metrics equal those of the simulator.
    history = result["federation"]["history"]
    rounds = [("search", 1), ("search", 2), *(("final", number + 1) for number in range(result["rounds"]))]
    assert [(entry["phase"], entry["round"]) for entry in history] == rounds
    assert history[0]["nodes"] == ["node-0", "node-1"]
    simulated = watch.again(run, tmp_path / "simulated")
    differences = watch.compared(run, tmp_path / "simulated")
    assert differences["shared_parameters_differ_by"] < 1e-6
    assert differences["private_parameters_differ_by"] < 1e-5
    assert differences["private_numbers"] == 60 * (40 * 8 + 8 + 2)
    assert differences["metrics_differ_by"] < 5e-5 and differences["metrics_of_one_alone"] == []
    assert set(result) == set(simulated.dump()) | {"federation"}
    assert result["privacy"] is None and result["rejected_updates"] == {}


def test_nodes_of_a_private_federation_have_their_own_secrets(tmp_path):
    """The nodes answer in this process; with real processes: `python benchmarks/federation.py secure`."""
    settings = {"data": DATA, "method": "fedmf", "rounds": 1, "wire": "clip=1,noise=1,secure", "set": {"k": "8"}}
    folder, grid = federation_in_process(tmp_path / "run", **settings)
    result, run = serve_to_the_end(folder, grid), folder.path
    assert "the server too" in result["privacy"]["against"] and result["privacy"]["epsilon"] > 0
    secrets = sorted(run.glob("federation/nodes/*/store/secret"))
    assert len(secrets) == 3 and {path.stat().st_mode & 0o777 for path in secrets} == {0o600}
    keys = {path.read_bytes() for path in [*secrets, run / "noise.key"]}
    assert len(keys) == 4 and {len(key) for key in keys} == {32}
    assert (run / "noise.key").stat().st_mode & 0o777 == 0o600 and run.stat().st_mode & 0o777 == 0o700
    assert {name for entry in result["federation"]["history"] for name in entry} == {"phase", "round", "seconds"}


def test_a_private_federation_is_in_the_ledger_before_its_processes_start(tmp_path, monkeypatch):
    def fail(*_: object, **__: object) -> None:
        raise RunError("no process could be started")

    monkeypatch.setattr("fedtaste.cli.federate.run_federation", fail)
    options = ("--data", DATA, "--method", "fedmf", "--rounds", 1, "--wire", "clip=1,noise=1", "--set", "k=8")
    ledger = tmp_path / "people.json"
    output = fedtaste("federate", "--nodes", 2, *options, "--ledger", ledger, "--out", tmp_path / "run")
    assert output.code == 2 and "no process could be started" in output.err
    assert [run["method"] for run in fedtaste("privacy", "ledger", "--ledger", ledger, "--json").json["runs"]] == [
        "fedmf"
    ]


# Refusals before any process starts


def federate(path: Path, *args: object) -> CommandOutput:
    """Run the command, which must not start a process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fedtaste.flower.processes.Process.start", lambda *_: pytest.fail("a process was started"))
        return fedtaste("federate", "--data", DATA, "--out", path, *args)


@pytest.mark.parametrize(
    "args, expected",
    [
        (("--nodes", 0), ["--nodes"]),
        (("--nodes", 61), ["1 to 60", "60 people"]),
        (("--method", "centralised"), ["everybody's data in one place"]),
        (("--method", "fedrepp"), ['Did you mean "fedrep"']),
        (("--wire", "trim=0.1"), ["trim needs single people's uploads"]),
        (("--wire", "secure=10"), ["Use secure alone"]),
        (("--wire", "secure", "--nodes", 2), ["Use --nodes 3 or more"]),
        (("--new-people", "folds"), ["Use `fedtaste run` for it"]),
        (("--wire", "clip=1,noise=1", "--noise-seed", 3), ["keys of their own"]),
        (("--deadline", 0), ["--deadline"]),
        (("--least", 1.5), ["--least"]),
    ],
)
def test_wrong_options_are_refused_and_no_process_is_started(args, expected, tmp_path):
    federate(tmp_path / "run", *args).refused(*expected)
    assert not (tmp_path / "run").exists()


def test_a_port_in_use_is_refused(tmp_path):
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        federate(tmp_path / "run", "--port", port).refused(f"Port {port}", "Address already in use", "--port")


def test_a_folder_with_files_is_not_overwritten(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    federate(tmp_path).refused("is not empty")
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_without_flower_the_error_names_the_extra_to_install(tmp_path, monkeypatch):
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *a: None if name == "flwr" else real(name, *a))
    federate(tmp_path / "run").refused("pip install 'fedtaste[flower]'")
    assert not (tmp_path / "run").exists()
