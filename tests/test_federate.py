"""`fedtaste federate` as a user runs it: two real federations, and what is refused before anything starts.

The first one has two nodes, of which one is killed, and so is the SuperLink; its result is compared with the simulator.
The second one is private, with secure sums, which need three nodes. Every message to a node starts a process that takes
about three seconds of CPU time, so both have as few nodes and rounds as show what they are for.
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

from fedtaste.flower.processes import MARK
from support.command import CommandOutput, fedtaste

BENCHMARKS = str(Path(__file__).parents[1] / "benchmarks")
DATA = "synthetic:60x40x900"
# fedrap keeps a table, a vector and two numbers with each person. There is no noise, as nodes draw theirs from secrets of
# their own and the simulator could not compute the same numbers.
RUN = f"--data {DATA} --method fedrap --rounds 2 --wire clip=1 --set k=8 --threads 1".split()
PRIVATE = f"--data {DATA} --method fedmf --rounds 1 --wire clip=1,noise=1,secure --set k=8 --threads 1".split()


@pytest.fixture(scope="module")
def watch():
    sys.path.insert(0, BENCHMARKS)
    try:
        yield importlib.import_module("federation_watch")
    finally:
        sys.path.remove(BENCHMARKS)


def left_over(token: str) -> list[str]:
    """Commands of processes that still carry a federation's mark."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if f"{MARK}={token}".encode() in (entry / "environ").read_bytes():
                    found.append((entry / "cmdline").read_bytes().decode(errors="replace"))
            except OSError:
                continue
    return found


def test_a_federation_survives_two_deaths_and_is_the_run_of_the_simulator(watch, tmp_path):
    run = tmp_path / "run"
    process = watch.started("federate", "--nodes", 2, *RUN, "--out", run, "--json")
    said: list[str] = []
    reader = threading.Thread(target=lambda: said.extend(process.stderr), daemon=True)
    reader.start()
    alive = lambda: process.poll() is None
    try:
        first = watch.kill_when(run, "node-1", "flower-supernode", watch.at_work(run, "search", 2, "node-1"), alive)
        everything = watch.family(run)
        ports = watch.listening([one.pid for one in everything])
        token = (Path(f"/proc/{everything[0].pid}/environ").read_bytes().split(f"{MARK}=".encode())[1])[:32].decode()
        second = watch.kill_when(run, "superlink", "flower-superlink", watch.at_work(run, "final", 1, "node-0"), alive)
        ports |= watch.listening([one.pid for one in watch.family(run)])  # with the one of node-1 after its restart
        told = process.stdout.read()
        assert process.wait() == 0, "".join(said)
    finally:
        if alive():
            process.terminate()
        process.wait()
        reader.join(10)
        process.stdout.close()
        process.stderr.close()
    result = json.loads(told)
    assert (first["phase"], first["while_in_round"]) == ("search", 2)
    assert (second["phase"], second["while_in_round"]) == ("final", 1)
    text = "".join(said)
    assert "node-1 ended (code -9) and is started again." in text
    assert "superlink ended (code -9) and is started again." in text
    assert "continues from its last round" in text

    # Nothing is left, and nothing could be reached from another machine while it ran.
    assert {address for address, _ in ports} == {"0100007F"} and len(ports) >= 3
    assert left_over(token) == [] and watch.family(run) == []
    for _, port in ports:
        with socket.socket() as trial:
            assert trial.connect_ex(("127.0.0.1", port)) != 0

    # Every round is counted once, and what was learnt is what the same people learn on the simulator.
    history = result["federation"]["history"]
    rounds = [("search", 1), ("search", 2), *(("final", number + 1) for number in range(result["rounds"]))]
    assert [(entry["phase"], entry["round"]) for entry in history] == rounds
    assert history[0]["nodes"] == ["node-0", "node-1"]
    simulated = watch.again(run, tmp_path / "simulated")
    found = watch.compared(run, tmp_path / "simulated")
    assert found["shared_parameters_differ_by"] < 1e-6
    assert found["private_parameters_differ_by"] < 1e-5 and found["private_numbers"] == 60 * (40 * 8 + 8 + 2)
    assert found["metrics_differ_by"] < 5e-5 and found["metrics_of_one_alone"] == []
    assert set(result) == set(simulated.dump()) | {"federation"}
    assert result["privacy"] is None and result["rejected_updates"] == {}


def test_nodes_of_a_private_federation_draw_from_secrets_of_their_own(watch, tmp_path):
    run = tmp_path / "run"
    result = watch.fedtaste("federate", "--nodes", 3, *PRIVATE, "--out", run)
    assert "the server too" in result["privacy"]["against"] and result["privacy"]["epsilon"] > 0
    assert result["privacy"]["ledger"]["epsilon"] >= result["privacy"]["epsilon"]
    secrets = sorted(run.glob("federation/nodes/*/store/secret"))
    assert len(secrets) == 3 and {path.stat().st_mode & 0o777 for path in secrets} == {0o600}
    keys = {path.read_bytes() for path in [*secrets, run / "noise.key"]}
    assert len(keys) == 4 and {len(key) for key in keys} == {32}
    assert (run / "noise.key").stat().st_mode & 0o777 == 0o600 and run.stat().st_mode & 0o777 == 0o700
    assert {name for entry in result["federation"]["history"] for name in entry} == {"phase", "round", "seconds"}


# Refused before anything starts


def federate(path: Path, *words: object) -> CommandOutput:
    """The command, which must not start a process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fedtaste.flower.processes.Process.start", lambda *_: pytest.fail("a process was started"))
        return fedtaste("federate", "--data", DATA, "--out", path, *words)


@pytest.mark.parametrize(
    "words, expected",
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
def test_what_cannot_be_is_refused_before_anything_is_made(words, expected, tmp_path):
    federate(tmp_path / "run", *words).refused(*expected)
    assert not (tmp_path / "run").exists()


def test_a_taken_port_is_named(tmp_path):
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        federate(tmp_path / "run", "--port", port).refused(f"Port {port}", "Address already in use", "--port")


def test_a_folder_that_is_there_is_not_written_over(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    federate(tmp_path).refused("is not empty")
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_without_flower_the_extra_is_named_and_nothing_is_made(tmp_path, monkeypatch):
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *a: None if name == "flwr" else real(name, *a))
    federate(tmp_path / "run").refused("pip install 'fedtaste[flower]'")
    assert not (tmp_path / "run").exists()
