"""The processes of a federation on one machine: certificates, keys, ports, and what is done when a process ends. The
real SuperLink with real nodes is in test_federate.py."""

from __future__ import annotations

import importlib.util
import os
import socket
import ssl
import stat
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_public_key

import fedtaste.flower.cluster as cluster_module
from fedtaste.errors import RunError, SettingError
from fedtaste.flower.certificates import (
    LOOPBACK,
    issue_server,
    load_node_key,
    make_authority,
    make_node_key,
    public_key_path,
)
from fedtaste.flower.cluster import Cluster
from fedtaste.flower.processes import MARK, find_marked, kill_marked, require_flower, to_toml
from fedtaste.flower.superlink_client import SuperLinkClient, Unreachable
from support.tls import handshake

# --------------------------------------------------------------------------------------------- certificates


def expiry(certificate: Path) -> datetime:
    return x509.load_pem_x509_certificate(certificate.read_bytes()).not_valid_after_utc


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
