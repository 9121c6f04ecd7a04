"""The processes of a federation on one machine: certificates, keys, ports, and a real SuperLink with one real node."""

from __future__ import annotations

import http.client
import importlib.util
import json
import os
import re
import signal
import socket
import ssl
import stat
import subprocess
import sys
import threading
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_public_key

import fedtaste.flower.cluster as cluster_module
from fedtaste.errors import RunError, SettingError
from fedtaste.flower.certificates import (
    LOOPBACK,
    expiry,
    issue_server,
    load_node_key,
    make_authority,
    make_node_key,
    public_key_path,
)
from fedtaste.flower.cluster import Cluster
from fedtaste.flower.processes import MARK, environment, find_marked, kill_marked, program, require_flower, to_toml
from fedtaste.flower.superlink_client import SuperLinkClient, Unreachable
from support.tls import handshake

# --------------------------------------------------------------------------------------------- certificates


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_server_certificate_is_accepted_with_its_own_authority_only(tmp_path):
    old = os.umask(0)  # modes must not depend on it
    try:
        authority = make_authority(tmp_path / "authority")
        server = issue_server(tmp_path / "authority", tmp_path / "server", ["127.0.0.1", "server.example.org"])
    finally:
        os.umask(old)
    handshake(server.certificate, server.key, server.authority)
    handshake(server.certificate, server.key, authority, "server.example.org")
    with pytest.raises(ssl.SSLCertVerificationError, match="mismatch|doesn't match"):
        handshake(server.certificate, server.key, authority, "other.example.org")
    other = make_authority(tmp_path / "other")
    with pytest.raises(ssl.SSLCertVerificationError, match="verify failed"):
        handshake(server.certificate, server.key, other)

    assert [mode(tmp_path / name) for name in ("authority", "server")] == [0o700, 0o700]
    assert [mode(path) for path in (tmp_path / "authority/ca.key", server.key)] == [0o600, 0o600]
    assert sorted(path.name for path in server.key.parent.iterdir()) == ["ca.crt", "server.crt", "server.key"]
    days = expiry(server.certificate) - datetime.now(UTC)
    assert timedelta(days=823) < days <= timedelta(days=825)
    with pytest.raises(SettingError, match="neither a host name nor an address"):
        issue_server(tmp_path / "authority", tmp_path / "server", ["a b"])


def test_a_new_server_certificate_needs_no_change_on_nodes(tmp_path):
    trusted = make_authority(tmp_path / "authority").read_bytes()
    contents = []
    for names in (LOOPBACK, LOOPBACK, ("127.0.0.1", "10.1.2.3")):
        server = issue_server(tmp_path / "authority", tmp_path / "server", names)
        contents += [server.certificate.read_bytes(), server.key.read_bytes()]
        handshake(server.certificate, server.key, tmp_path / "authority" / "ca.crt", names[-1])
        assert make_authority(tmp_path / "authority").read_bytes() == trusted == server.authority.read_bytes()
    assert len(set(contents)) == 6
    assert expiry(server.certificate) > datetime.now(UTC) + timedelta(days=800)

    (tmp_path / "authority" / "ca.key").unlink()
    with pytest.raises(SettingError, match=r"ca\.key does not"):
        make_authority(tmp_path / "authority")
    with pytest.raises(SettingError, match="cannot be read"):
        issue_server(tmp_path / "authority", tmp_path / "server")


def test_a_node_key_is_created_once_and_stays_private(tmp_path):
    path = make_node_key(tmp_path / "nodes", "node-0")
    content = path.read_bytes()
    assert mode(path) == 0o600 and mode(path.parent) == 0o700
    assert isinstance(load_node_key(path).curve, ec.SECP384R1)
    public = load_ssh_public_key(public_key_path(path).read_bytes())
    assert public == load_node_key(path).public_key()
    path.chmod(0o644)
    public_key_path(path).unlink()
    assert make_node_key(tmp_path / "nodes", "node-0").read_bytes() == content
    assert mode(path) == 0o600 and public_key_path(path).exists()
    with pytest.raises(SettingError, match="not a valid name"):
        make_node_key(tmp_path / "nodes", "../node")
    path.write_text("no key")
    with pytest.raises(SettingError, match="cannot be read as a node's private key"):
        make_node_key(tmp_path / "nodes", "node-0")


# --------------------------------------------------------------------------------------------- processes


def test_without_flower_the_error_names_the_extra_to_install(monkeypatch, tmp_path):
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *a: None if name == "flwr" else real(name, *a))
    with pytest.raises(SettingError, match=r"fedtaste\[flower\]"):
        require_flower()
    with pytest.raises(SettingError, match="needs Flower"), Cluster(tmp_path, [{}], log=print):
        pass
    monkeypatch.undo()
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SettingError, match="flower-superlink"):
        require_flower()


def test_a_port_in_use_is_refused_before_a_process_starts(tmp_path):
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        cluster = Cluster(tmp_path / "c", [{}], port=port, log=print)
        with pytest.raises(SettingError, match=f"Port {port} .*in use"):
            cluster.__enter__()
    assert cluster.processes == {} and find_marked(cluster.token) == []


def test_flower_reads_the_settings_that_were_written():
    from flwr.common.config import parse_config_args

    values = {"name": "a \"b\" 'c' = ü 😀 \\ \x7f\n\t", "n": -3, "x": 0.1, "yes": True, "no": False, "empty": ""}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Path, "open", lambda *a, **k: __import__("io").BytesIO(to_toml(values).encode()))
        assert parse_config_args(["any.toml"]) == values


def test_a_guard_ends_all_processes_when_its_owner_is_killed(tmp_path):
    """The owner of the guard is killed. A grandchild in another session must end, too."""
    script = f"""
import os, subprocess, sys, time
from pathlib import Path
from fedtaste.flower.processes import Guard, environment
guard = Guard("{tmp_path.name}-mark")
inner = "import subprocess; subprocess.run(['sleep', '300'], start_new_session=True)"
subprocess.Popen([sys.executable, "-c", inner], env=environment(Path("."), "{tmp_path.name}-mark:one"))
print(guard.pid, flush=True)
time.sleep(300)
"""
    holder = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, cwd=tmp_path)
    try:
        assert holder.stdout is not None
        guard = int(holder.stdout.readline())
        wait_for(lambda: len(find_marked(f"{tmp_path.name}-mark")) == 2, 20)
        assert all(MARK.encode() not in word for word in Path(f"/proc/{guard}/environ").read_bytes().split(b"\0"))
    finally:
        holder.kill()
        holder.wait()
        holder.stdout.close()
    try:
        wait_for(lambda: not find_marked(f"{tmp_path.name}-mark"), 10)
    finally:
        kill_marked(f"{tmp_path.name}-mark")


def test_a_process_that_keeps_ending_is_given_up(tmp_path, monkeypatch):
    monkeypatch.setattr(cluster_module, "TRIES", 1)
    log_lines: list[str] = []
    cluster = Cluster(tmp_path / "c", [{}], log=log_lines.append)
    node = cluster._nodes[0]

    def start(process):
        process.start([sys.executable, "-c", "print('no such people'); raise SystemExit(3)"], dict(os.environ))
        process.wait(10)

    monkeypatch.setattr(cluster, "_start_node", start)
    start(node)
    cluster._restart([node])
    assert node.restarts == 1 and log_lines == ["node-0 ended (code 3) and is started again."]
    with pytest.raises(RunError, match=r"(?s)node-0 ended 2 times.*code 3.*no such people"):
        cluster._restart([node])


def test_a_run_without_its_server_app_has_failed(tmp_path, monkeypatch):
    """Flower would report "running" for a minute."""
    cluster = Cluster(tmp_path / "c", [{}], log=print)
    stopped: list[int] = []
    monkeypatch.setattr(SuperLinkClient, "stop_run", lambda link, run: stopped.append(run))
    monkeypatch.setattr(SuperLinkClient, "run_state", lambda link, run: "running")
    monkeypatch.setattr("fedtaste.flower.processes.find_marked", lambda mark: [(1, "python flwr-serverapp --token x")])
    assert cluster.state(7) == "running"

    def away(link, run):
        raise Unreachable("away")

    monkeypatch.setattr(SuperLinkClient, "run_state", away)
    assert (cluster.state(7), cluster.state(8)) == ("running", "pending")  # the last known state
    monkeypatch.setattr(SuperLinkClient, "run_state", lambda link, run: "running")
    monkeypatch.setattr("fedtaste.flower.processes.find_marked", lambda mark: [(1, "python flower-superexec")])
    assert (cluster.state(7), stopped) == ("failed", [7])
    monkeypatch.setattr(SuperLinkClient, "run_state", lambda link, run: "stopped" if run == 7 else "completed")
    assert (cluster.state(7), cluster.state(9)) == ("failed", "completed")


def wait_for(condition, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"the condition did not become true within {seconds} s"
        time.sleep(0.1)


# --------------------------------------------------------------------------------------------- a real federation

APP = {
    "pyproject.toml": """
[project]
name = "trial"
version = "0.1.0"
description = "One question to every node."
license = {file = "LICENSE"}
dependencies = ["flwr>=1.41,<1.42"]
[tool.flwr.app]
publisher = "fedtaste"
fab-format-version = 1
flwr-version-target = "1.41.0"
[tool.flwr.app.components]
serverapp = "trial.parts:server"
clientapp = "trial.parts:client"
[tool.flwr.app.config]
out = ""
""",
    "LICENSE": "For tests.\n",
    "trial/__init__.py": "",
    "trial/parts.py": """
import json, time
from pathlib import Path
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp

client = ClientApp()
server = ServerApp()

@client.query()
def answer(message, context):
    values = {"name": context.node_config["name"], "twice": 2 * message.content["ask"]["number"]}
    return Message(RecordDict({"answer": ConfigRecord(values)}), reply_to=message)

@server.main()
def main(grid, context):
    nodes = list(grid.get_node_ids())
    messages = [Message(RecordDict({"ask": ConfigRecord({"number": 21})}), node, "query", ttl=60) for node in nodes]
    waiting, answers = set(grid.push_messages(messages)), []
    while waiting:
        for reply in grid.pull_messages(list(waiting)):
            waiting.discard(reply.metadata.reply_to_message_id)
            answers.append([reply.metadata.src_node_id, dict(reply.content["answer"])])
        time.sleep(0.1)
    Path(context.run_config["out"]).write_text(json.dumps(answers))
""",
}


def write_app(folder: Path) -> Path:
    """Write the trial app into this folder."""
    for name, text in APP.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def listening_sockets(processes: list[int]) -> set[tuple[str, int]]:
    """(address, port) of every socket that these processes listen on, from /proc: 4 or 16 bytes in hexadecimal."""
    sockets = set()
    for process in processes:
        for link in Path(f"/proc/{process}/fd").iterdir():
            try:
                match = re.fullmatch(r"socket:\[(\d+)\]", os.readlink(link))
            except OSError:
                continue
            sockets |= {match[1]} if match else set()
    listening = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            columns = line.split()
            if columns[3] == "0A" and columns[9] in sockets:
                address, port = columns[1].split(":")
                listening.add((address, int(port, 16)))
    return listening


def start_foreign_node(cluster: Cluster, name: str, *options: str) -> tuple[int, str]:
    """Exit code and output of a SuperNode that must be refused."""
    command = [program("flower-supernode"), "--superlink", cluster.address, "--max-retries", "1"]
    command += ["--isolation", "process", "--port"]  # it starts no other process that way
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    env = environment(cluster.folder / "flower", f"{cluster.token}:{name}")
    process = subprocess.run([*command, str(port), *options], env=env, capture_output=True, timeout=100, check=False)
    return process.returncode, (process.stdout + process.stderr).decode(errors="replace")


def test_a_federation_of_one_node_from_start_to_end(tmp_path):
    """One real cluster runs an app, refuses foreign nodes, survives two killed processes, and ends."""
    log_lines: list[str] = []
    with Cluster(tmp_path / "c", [{"name": 'the "first"', "partition-id": 0}], log=log_lines.append) as cluster:
        assert list(cluster.processes) == ["superlink", "node-0"]
        refused: dict[str, tuple[int, str]] = {}
        root = str(cluster.folder / "server" / "ca.crt")
        foreign = make_node_key(tmp_path / "foreign", "node")
        other = str(make_authority(tmp_path / "other"))
        node_key = str(cluster.folder / "nodes" / "node-0")
        cases = {
            "plain": ["--insecure"],
            "unregistered": ["--root-certificates", root, "--auth-supernode-private-key", str(foreign)],
            "keyless": ["--root-certificates", root],
            "misled": ["--root-certificates", other, "--auth-supernode-private-key", node_key],
        }
        run = cluster.submit(write_app(tmp_path / "app"), {"out": str(tmp_path / "out.json")})
        threads = [
            threading.Thread(target=lambda n=name, w=text: refused.update({n: start_foreign_node(cluster, n, *w)}))
            for name, text in cases.items()
        ]
        for thread in threads:
            thread.start()
        until = time.monotonic() + 120
        while (state := cluster.state(run)) in ("pending", "running") and time.monotonic() < until:
            cluster.restart_ended()
            time.sleep(0.2)
        assert state == "completed", cluster.read_log("superlink")
        number = cluster.node_ids["node-0"]
        assert json.loads((tmp_path / "out.json").read_text()) == [[number, {"name": 'the "first"', "twice": 42}]]

        processes = [process for process, _ in find_marked(cluster.token)]
        assert len(processes) >= 4  # with the SuperExecs
        listening = listening_sockets(processes)
        assert {address for address, _ in listening} == {"0100007F"}  # 127.0.0.1 only
        assert cluster.port in {port for _, port in listening}

        for thread in threads:
            thread.join()
        assert {name: code for name, (code, _) in refused.items()} == dict.fromkeys(cases, 1)
        for name, text in {
            "plain": "Failed to initialize the connection",
            "unregistered": "Failed to activate SuperNode",
            "keyless": "SuperNode authentication is enabled",
            "misled": "CERTIFICATE_VERIFY_FAILED",
        }.items():
            assert text in refused[name][1] and "SuperNode ID" not in refused[name][1], refused[name]
        with pytest.raises((http.client.HTTPException, OSError)):
            connection = http.client.HTTPConnection("127.0.0.1", cluster.port, timeout=5)
            try:
                connection.request("GET", "/health")
                connection.getresponse()
            finally:
                connection.close()
        assert cluster.client.count_online() == 1

        with pytest.raises(RunError, match="could not be submitted"):
            cluster.submit(tmp_path / "nowhere", {})

        log = cluster.folder / "logs" / "node-0.log"
        assert log.read_text().count(f"SuperNode ID: {number}") == 1
        os.kill(cluster.processes["node-0"], signal.SIGKILL)
        wait_for(lambda: "node-0" not in cluster.processes, 5)
        cluster.restart_ended()
        wait_for(lambda: log.read_text().count(f"SuperNode ID: {number}") == 2, 30)  # with the same id
        assert cluster.client.count_online() == 1
        os.kill(cluster.processes["superlink"], signal.SIGKILL)
        wait_for(lambda: "superlink" not in cluster.processes, 5)
        cluster.restart_ended()
        assert (
            cluster.client.run_state(run) == "completed" and cluster.client.count_online() == 1
        )  # its state was not lost
        assert len(log_lines) == 2

        files = [
            file for file in cluster.folder.rglob("*") if file.suffix in (".key", ".toml") or str(file) == node_key
        ]
        assert len(files) >= 5 and all(mode(file) == 0o600 for file in files if "apps" not in file.parts)
        port = cluster.port
    assert find_marked(cluster.token) == [] and cluster.processes == {}
    for _, used in listening | {("", port)}:
        with socket.socket() as trial:
            assert trial.connect_ex(("127.0.0.1", used)) != 0
    assert not list(cluster.folder.glob("superlink.db*"))  # it contains unfinished messages
