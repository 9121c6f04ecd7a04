"""`fedtaste federate` as a user runs it: a real federation, a private one, and refusals before any process starts.

The real federation is the only one of the whole suite: everything that needs Flower's own processes is observed in it.
It has two nodes; one of them and the SuperLink are killed, foreign nodes are refused, and the result is compared with
the simulator. Every message to a node starts a process that takes several seconds of CPU time, so there are as few as
possible: nobody's history is long enough for validation, so there is no search (tests/test_flower.py kills a server in
both phases). The nodes of the private federation answer in this process.
"""

from __future__ import annotations

import http.client
import importlib
import importlib.util
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedtaste.errors import RunError
from fedtaste.flower.certificates import make_authority, make_node_key
from fedtaste.flower.cluster import Cluster
from fedtaste.flower.counters import read_counters
from fedtaste.flower.processes import environment, find_marked, program
from support.command import CommandOutput, fedtaste
from support.flower_worlds import federation_in_process, serve_to_the_end

BENCHMARKS = str(Path(__file__).parents[1] / "benchmarks")
DATA = "synthetic:60x40x900"
PEOPLE, ITEMS = 60, 40
# fedrap stores a table, a vector and two numbers for each person. There is no noise, because nodes draw it from their
# own secrets and the simulator could not compute the same numbers.
RUN = ["--method", "fedrap", "--rounds", "2", "--wire", "clip=1", "--set", "k=8", "--threads", "1"]


@pytest.fixture(scope="module")
def watch():
    """The module benchmarks/federation_watch.py, which finds the processes of federations and kills them."""
    sys.path.insert(0, BENCHMARKS)
    try:
        yield importlib.import_module("federation_watch")
    finally:
        sys.path.remove(BENCHMARKS)


def wait_for(condition: Callable[[], bool], seconds: float = 240) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"the condition did not become true within {seconds} s"
        time.sleep(0.1)


def start_foreign_node(cluster: Cluster, name: str, *options: str) -> tuple[int, str]:
    """Exit code and output of a SuperNode that must be refused."""
    command = [program("flower-supernode"), "--superlink", cluster.address, "--max-retries", "1"]
    command += ["--isolation", "process", "--port"]  # it starts no other process that way
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    env = environment(cluster.folder / "flower", f"{cluster.token}:{name}")
    process = subprocess.run([*command, str(port), *options], env=env, capture_output=True, timeout=200, check=False)
    return process.returncode, (process.stdout + process.stderr).decode(errors="replace")


def foreign_nodes(cluster: Cluster, folder: Path) -> dict[str, tuple[int, str]]:
    """Exit codes and outputs of SuperNodes without TLS, with an unregistered key, without a key, and with the
    certificate of another authority."""
    root = str(cluster.folder / "server" / "ca.crt")
    foreign, other = make_node_key(folder / "foreign", "node"), make_authority(folder / "other")
    cases = {
        "plain": ["--insecure"],
        "unregistered": ["--root-certificates", root, "--auth-supernode-private-key", str(foreign)],
        "keyless": ["--root-certificates", root],
        "misled": ["--root-certificates", str(other)]
        + ["--auth-supernode-private-key", str(cluster.folder / "nodes" / "node-0")],
    }
    refused: dict[str, tuple[int, str]] = {}
    threads = [
        threading.Thread(target=lambda n=name, o=options: refused.update({n: start_foreign_node(cluster, n, *o)}))
        for name, options in cases.items()
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return refused


class Observer(threading.Thread):
    """Observes the cluster of a federation and kills two of its processes, while another thread runs it."""

    def __init__(self, watch: Any, run: Path, folder: Path) -> None:
        super().__init__(daemon=True)
        self.watch, self.folder_of_run, self.folder = watch, run, folder
        self.ended = False
        self.problem: BaseException | None = None
        self.killed: list[dict[str, Any]] = []
        self.ports: set[tuple[str, int]] = set()

    def run(self) -> None:
        try:
            self.observe()
        except BaseException as problem:  # the test raises it
            self.problem = problem

    def kill(self, part: str, name: str, number: int, worker: str) -> None:
        """Kill -9 a program while a node computes this round."""
        ready = self.watch.at_work(self.folder_of_run, "final", number, worker)
        self.killed.append(self.watch.kill_when(self.folder_of_run, part, name, ready, lambda: not self.ended))

    def note_ports(self) -> None:
        self.ports |= self.watch.listening([process for process, _ in find_marked(self.cluster.token)])

    def meet(self, cluster: Cluster) -> None:
        """Observe a cluster whose nodes are connected, before a run is submitted."""
        self.refused = foreign_nodes(cluster, self.folder)
        with pytest.raises((http.client.HTTPException, OSError)):
            connection = http.client.HTTPConnection("127.0.0.1", cluster.port, timeout=5)
            try:
                connection.request("GET", "/health")
                connection.getresponse()
            finally:
                connection.close()
        with pytest.raises(RunError, match="could not be submitted"):
            cluster.submit(self.folder / "nowhere", {})
        self.programs, self.online = list(cluster.processes), cluster.client.count_online()
        self.cluster = cluster
        self.note_ports()  # while all programs run: the SuperLink and both SuperNodes listen
        self.start()

    def observe(self) -> None:
        self.kill("node-1", "flower-supernode", 1, "node-1")
        self.note_ports()
        self.kill("superlink", "flower-superlink", 2, "node-0")
        wait_for(lambda: len(self.cluster._states) == 2)  # the run is submitted again
        first = next(iter(self.cluster._states))
        self.state_of_first_run = self.cluster.client.run_state(first)  # from the database of the killed SuperLink
        self.note_ports()


@pytest.fixture(scope="module")
def federation(watch, tmp_path_factory):
    """The output of a real federation with two killed processes, its folder, and its observer."""
    folder = tmp_path_factory.mktemp("federation")
    run, data = folder / "run", folder / "data.csv"
    pairs = [(u, i) for u in range(PEOPLE) for i in (u % ITEMS, (7 * u + 3) % ITEMS)]
    assert len(set(pairs)) == 2 * PEOPLE and {i for _, i in pairs} == set(range(ITEMS))
    data.write_text("user,item,timestamp\n" + "".join(f"{u},{i},{n}\n" for n, (u, i) in enumerate(pairs)))
    observer = Observer(watch, run, folder)

    class ObservedCluster(Cluster):
        def __enter__(self) -> Cluster:
            super().__enter__()
            try:
                observer.meet(self)
            except BaseException:
                self.__exit__()
                raise
            return self

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fedtaste.flower.federate.Cluster", ObservedCluster)
        output = fedtaste("federate", "--data", data, "--nodes", 2, *RUN, "--out", run, "--json")
    observer.ended = True
    observer.join(60)
    assert observer.problem is None, output.err
    return output, run, observer


def test_a_federation_with_two_killed_processes_equals_the_simulation(watch, federation, tmp_path):
    output, run, observer = federation
    result = output.json
    assert [(kill["killed"], kill["phase"], kill["while_in_round"]) for kill in observer.killed] == [
        ("flower-supernode", "final", 1), ("flower-superlink", "final", 2),
    ]  # fmt: skip
    assert "node-1 ended (code -9)" in output.err
    assert "superlink ended (code -9)" in output.err
    assert "continues from its last round" in output.err
    assert observer.state_of_first_run == "stopped"

    # Every round is counted once, and parameters and metrics equal those of the simulator.
    history = result["federation"]["history"]
    assert [(entry["phase"], entry["round"]) for entry in history] == [("final", 1), ("final", 2)]
    assert history[1]["nodes"] == ["node-0", "node-1"]
    simulated = watch.again(run, tmp_path / "simulated")
    differences = watch.compared(run, tmp_path / "simulated")
    assert differences["shared_parameters_differ_by"] < 1e-6
    assert differences["private_parameters_differ_by"] < 1e-5
    assert differences["private_numbers"] == PEOPLE * (ITEMS * 8 + 8 + 2)
    assert differences["metrics_differ_by"] < 5e-5 and differences["metrics_of_one_alone"] == []
    assert set(result) == set(simulated.dump()) | {"federation"}
    assert result["privacy"] is None and result["rejected_updates"] == {}


def test_a_federation_refuses_foreign_nodes_and_keeps_the_ids_of_its_own(federation):
    _, _, observer = federation
    cluster = observer.cluster
    assert {name: code for name, (code, _) in observer.refused.items()} == dict.fromkeys(observer.refused, 1)
    for name, text in {
        "plain": "Failed to initialize the connection",
        "unregistered": "Failed to activate SuperNode",
        "keyless": "SuperNode authentication is enabled",
        "misled": "CERTIFICATE_VERIFY_FAILED",
    }.items():
        assert text in observer.refused[name][1] and "SuperNode ID" not in observer.refused[name][1]
    assert observer.online == len(cluster.node_ids) == 2
    for name, number in cluster.node_ids.items():
        log = (cluster.folder / "logs" / f"{name}.log").read_text()
        assert log.count("SuperNode ID: ") == log.count(f"SuperNode ID: {number}") >= 2  # with every restart


def test_a_federation_listens_on_this_machine_only_and_leaves_nothing_behind(watch, federation):
    _, run, observer = federation
    cluster = observer.cluster
    assert observer.programs == ["superlink", "node-0", "node-1"]
    assert {address for address, _ in observer.ports} == {"0100007F"}  # 127.0.0.1 only
    assert len(observer.ports) >= 3 and cluster.port in {port for _, port in observer.ports}

    # All processes have ended, no port is open, and the database, which contains unfinished messages, is gone.
    assert find_marked(cluster.token) == [] and watch.family(run) == [] and cluster.processes == {}
    for _, port in observer.ports:
        with socket.socket() as trial:
            assert trial.connect_ex(("127.0.0.1", port)) != 0
    assert not list(cluster.folder.glob("superlink.db*"))
    assert not [*cluster.folder.rglob("*.key"), *cluster.folder.rglob("*.crt")]  # removed when the run had finished
    assert not (cluster.folder / "nodes").exists() and (run / "federation" / "nodes" / "node-0").is_dir()
    files = [file for file in cluster.folder.rglob("*") if file.suffix == ".toml"]
    assert {stat.S_IMODE(file.stat().st_mode) for file in files if "apps" not in file.parts} == {0o600}


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


@pytest.mark.parametrize("private", [False, True])
def test_server_and_nodes_count_for_their_operators(tmp_path, private):
    """In a run with noise neither people nor refused updates are counted."""
    wire = {"wire": "clip=1,noise=1"} if private else {}
    settings = {"data": DATA, "method": "fedmf", "rounds": 2, "set": {"k": "8"}, **wire}
    folder, grid = federation_in_process(tmp_path / "run", **settings)
    history = serve_to_the_end(folder, grid)["federation"]["history"]
    server = read_counters(folder.path / "federation")
    nodes = [read_counters(store) for store in sorted(folder.path.glob("federation/nodes/*/store"))]
    assert server.rounds == len(history) and [node.rounds for node in nodes] == [len(history)] * 3
    assert [node.orders["hello"] for node in nodes] == [1, 1, 1] and {*nodes[0].orders} >= {"hello", "train", "judge"}
    people = 0 if private else sum(entry["people"] for entry in history)
    assert server.people == sum(node.people for node in nodes) == people
    assert (people > 0) != private and server.refused == nodes[0].refused == {}
    assert 0 < server.up_bytes < sum(node.up_bytes for node in nodes) and server.down_bytes > 0 < server.seconds


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
