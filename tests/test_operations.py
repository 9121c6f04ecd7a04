"""What operators see of `fedtaste serve` and `fedtaste monitor`: /health, /metrics, logs, a new model, addresses."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from fedtaste import __version__
from fedtaste.cli import serve
from fedtaste.errors import RunError, SettingError
from fedtaste.event_log import Event
from fedtaste.flower.counters import Counters, add_counters, read_counters
from fedtaste.flower.monitor import open_monitor
from fedtaste.flower.status import StatusWriter
from fedtaste.serving import server as server_module
from fedtaste.serving.bundle import sha256
from fedtaste.serving.bundle_recommender import BundleRecommender
from fedtaste.serving.http import RequestReader
from fedtaste.serving.metrics import exposition
from fedtaste.serving.server import Listener, Server
from fedtaste.serving.site import PageSite, bundle_date
from support.bundles import TITLES, small_bundle
from support.command import fedtaste
from support.servers import running


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return small_bundle(tmp_path_factory.mktemp("site") / "bundle")


@pytest.fixture(scope="module")
def server(folder) -> Iterator[Server]:
    site = PageSite(BundleRecommender.load(folder), api=True, date=bundle_date(folder))
    with running(site, hosts=("films.example",)) as server:
        yield server


def get(server: Server, target: str, method: str = "GET", body: Any = None, **headers: str) -> tuple[int, bytes]:
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)) as link:
        link.request(method, target, body, {name.replace("_", "-"): value for name, value in headers.items()})
        reply = link.getresponse()
        return reply.status, reply.read()


def samples(content: bytes) -> dict[tuple[str, ...], float]:
    """The samples of an exposition by name and values of labels."""
    families = text_string_to_metric_families(content.decode())
    return {(s.name, *s.labels.values()): s.value for family in families for s in family.samples}


# Health and metrics of serve


def test_health_names_the_model_its_date_and_its_build(server, folder):
    status, content = get(server, "/health")
    health = json.loads(content)
    written = datetime.fromtimestamp((folder / "manifest.json").stat().st_mtime, UTC)
    assert (status, health["model"]) == (200, sha256((folder / "manifest.json").read_bytes())[:16])
    assert health["date"] == f"{written:%Y-%m-%dT%H:%M:%SZ}"
    assert (health["build"], health["fedtaste"], health["items"], health["status"]) == ("0", __version__, 60, "ok")
    assert health == json.loads(get(server, "/v1/health")[1])
    assert get(server, "/health", "POST", b"{}")[0] == 405


def test_metrics_count_replies_by_address_and_status(folder):
    with running(PageSite(BundleRecommender.load(folder), api=True)) as server:
        body = json.dumps({"likes": [TITLES[0]], "n": 3})
        for _ in range(3):
            assert get(server, "/v1/recommend", "POST", body, Content_Type="application/json")[0] == 200
        assert get(server, "/v1/recommend", "POST", "{", Content_Type="application/json")[0] == 400
        page = get(server, "/main.js")[1]
        assert get(server, f"/{TITLES[5].replace(' ', '-')}")[0] == 404
        status, content = get(server, "/metrics")
    found = samples(content)
    assert status == 200
    assert found["fedtaste_replies_total", "/v1/recommend", "200"] == 3
    assert found["fedtaste_replies_total", "/v1/recommend", "400"] == 1
    assert found["fedtaste_replies_total", "other", "404"] == 1
    assert found["fedtaste_reply_bytes_total", "file"] == len(page)
    assert found["fedtaste_reply_seconds_count", "/v1/recommend"] == 4
    assert found["fedtaste_reply_seconds_bucket", "/v1/recommend", "+Inf"] == 4
    assert found["fedtaste_requests_in_work",] == 0
    assert TITLES[0].encode() not in content and b"Film" not in content


def test_metrics_are_for_programs_of_this_machine(server):
    assert get(server, "/metrics")[0] == 200
    for headers in (
        {"Host": "films.example"}, {"X_Forwarded_For": "10.0.0.1"}, {"Forwarded": "for=10.0.0.1"}, {"Via": "1.1 proxy"},
    ):  # fmt: skip
        status, content = get(server, "/metrics", **headers)
        assert (status, b"--allow-metrics" in content) == (403, True), headers
    assert get(server, "/health", Host="films.example")[0] == 200


@pytest.mark.parametrize(
    ("peer", "allowed", "status"),
    [("10.1.2.3", (), 403), ("10.1.2.3", ("10.0.0.0/8",), 200), ("::ffff:10.1.2.3", ("10.0.0.0/8",), 200),
     ("192.168.1.9", ("10.0.0.0/8",), 403), ("::1", (), 200), ("fe80::1%eth0", (), 403), ("127.0.0.9", (), 200)],
)  # fmt: skip
def test_metrics_from_elsewhere_need_allow_metrics(folder, peer, allowed, status):
    reader = RequestReader()
    with Server(PageSite(BundleRecommender.load(folder)), Listener(metrics_from=allowed)) as server:
        reader.feed(f"GET /metrics HTTP/1.1\r\nHost: localhost:{server.port}\r\n\r\n".encode())
        request = reader.next()
        assert request is not None
        assert server.reply(request, peer).status == status


@pytest.mark.parametrize("network", ["10.0.0.0/40", "example.org", "", "10.0.0.1/8"])
def test_networks_that_are_none_are_refused(folder, network):
    with pytest.raises(SettingError, match="--allow-metrics"):
        Server(PageSite(BundleRecommender.load(folder)), Listener(metrics_from=(network,)))


# Addresses


def test_all_addresses_need_a_host_name_to_answer_for(folder):
    site = PageSite(BundleRecommender.load(folder))
    with pytest.raises(SettingError, match="--allow-host NAME"):
        Server(site, Listener(host="0.0.0.0"))
    for host in ("films.example", "1.2.3", "localhost:80"):
        with pytest.raises(SettingError, match="--host must be an address"):
            Server(site, Listener(host=host))
    with running(site, host="127.0.0.2") as server:
        with contextlib.closing(http.client.HTTPConnection("127.0.0.2", server.port, timeout=20)) as link:
            link.request("GET", "/health")
            assert link.getresponse().status == 200
        assert server.url == f"http://127.0.0.2:{server.port}/"
    with running(site, host="0.0.0.0", hosts=("localhost",)) as server:
        assert get(server, "/health", Host="localhost:1")[0] == 200
        assert get(server, "/health", Host="10.0.0.1")[0] == 421


def test_a_port_in_use_exits_with_2(folder):
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        fedtaste("serve", folder, "--port", port).refused(f"Port {port}", "another program listens there")
    fedtaste("serve", folder, "--port", 0, "--host", "0.0.0.0").refused("--allow-host")


@pytest.mark.parametrize(
    ("options", "said"),
    [(("--allow-host", "a b"), "--allow-host must be"), (("--host", "0.0.0.0"), "--allow-host NAME"),
     (("--allow-metrics", "x"), "--allow-metrics must be"), ((), "another program listens there")],
)  # fmt: skip
def test_options_and_the_port_are_checked_before_a_run_is_exported(tmp_path, monkeypatch, options, said):
    monkeypatch.setattr(serve, "load_recommender", lambda *_: pytest.fail("the run was exported"))
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = 0 if options else other.getsockname()[1]
        fedtaste("serve", tmp_path, "--port", port, *options).refused(said)


# A new model


def test_a_new_bundle_is_taken_without_a_restart_and_a_broken_one_is_not(tmp_path, monkeypatch):
    monkeypatch.setattr(server_module, "WATCH_SECONDS", 0.05)
    events: list[Event] = []
    folder = small_bundle(tmp_path / "bundle")
    site = PageSite(BundleRecommender.load(folder), api=True, folder=folder)
    with running(site, events.append) as server:
        first = json.loads(get(server, "/health")[1])
        shutil.copytree(folder, tmp_path / "broken")
        (folder / "item.f32").write_bytes(b"")
        os.utime(folder / "manifest.json", ns=(1, 1))
        wait_for(lambda: [event.kind for event in events] == ["model_refused"])
        time.sleep(0.2)
        assert len(events) == 1 and "item.f32" in events[0].text  # said once
        assert json.loads(get(server, "/health")[1]) == first
        shutil.rmtree(folder)
        small_bundle(tmp_path / "next", "ratings").rename(folder)
        wait_for(lambda: events[-1].kind == "model")
        second = json.loads(get(server, "/health")[1])
        assert (first["task"], second["task"]) == ("ranking", "ratings") and first["model"] != second["model"]
        assert events[-1].facts == {"model": second["model"]}
        assert get(server, "/")[1] == (folder / "index.html").read_bytes()


def wait_for(condition: Any) -> None:
    end = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


# Logs and processes


def test_events_are_lines_of_json_and_processes_share_their_counts(folder):
    line = [sys.executable, "-m", "fedtaste", "serve", folder, "--port", "0", "--api", "--log", "json"]
    process = subprocess.Popen(
        [*map(str, line), "--processes", "3"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        started = json.loads(process.stderr.readline())
        assert (started["event"], started["processes"]) == ("started", 3)
        assert datetime.fromisoformat(started["time"]).tzinfo is not None
        address = started["url"].removeprefix("http://").rstrip("/")
        children = [int(pid) for pid in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()]
        assert len(children) == 2
        for _ in range(30):
            with contextlib.closing(http.client.HTTPConnection(address, timeout=20)) as link:
                link.request("GET", "/v1/items?limit=1")
                assert link.getresponse().status == 200
        with contextlib.closing(http.client.HTTPConnection(address, timeout=20)) as link:
            link.request("GET", "/metrics")
            found = samples(link.getresponse().read())
        assert found["fedtaste_replies_total", "/v1/items", "200"] == 30
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=20)
        assert (process.returncode, out) == (0, "") and json.loads(err)["event"] == "stopped"
        assert not any(Path(f"/proc/{pid}").exists() for pid in children)
    finally:
        process.kill()
        process.communicate()


# Federations


def test_the_monitor_of_a_server_shows_its_rounds_and_refusals(tmp_path):
    folder = tmp_path / "run" / "federation"
    folder.mkdir(parents=True)
    with running(open_monitor(tmp_path / "run")) as server:
        assert json.loads(get(server, "/health")[1])["state"] == "waiting"
        status = StatusWriter()
        status.open(folder)
        status.phase("search", 8, 0)
        status.round(2, {"ndcg@10": 0.3})
        add_counters(folder, Counters(rounds=1, people=40, refused={"late": 1}, up_bytes=70, down_bytes=9, seconds=1.5))
        add_counters(folder, Counters(rounds=1, people=41, refused={"late": 2, "not a message": 1}, seconds=2))
        health = json.loads(get(server, "/health")[1])
        found = samples(get(server, "/metrics")[1])
        assert (health["status"], health["state"], health["round"], health["rounds"]) == ("ok", "running", 2, 8)
        assert found["fedtaste_server_rounds_total",] == 2 and found["fedtaste_server_people_total",] == 81
        assert found["fedtaste_server_refused_total", "late"] == 3
        assert found["fedtaste_server_refused_total", "not a message"] == 1
        assert found["fedtaste_server_up_bytes_total",] == 70 and found["fedtaste_server_work_seconds_total",] == 3.5
        assert found["fedtaste_server_state", "running"] == 1 and found["fedtaste_server_state", "waiting"] == 0
        assert found["fedtaste_server_round", "search"] == 2
        status.end("error", "Nobody answered.")
        health = json.loads(get(server, "/health")[1])
        assert (health["status"], health["state"]) == ("error", "error")
        assert get(server, "/")[0] == 404


def test_the_monitor_of_a_node_shows_its_orders(tmp_path):
    add_counters(tmp_path, Counters(orders={"hello": 1}, refused={"data": 1}, seconds=0.5))
    add_counters(tmp_path, Counters(orders={"hello": 1, "train": 3}, rounds=3, people=12))
    assert read_counters(tmp_path).orders == {"hello": 2, "train": 3}
    assert (tmp_path / "counters.json").stat().st_mode & 0o777 == 0o600
    with running(open_monitor(tmp_path)) as server:
        found = samples(get(server, "/metrics")[1])
        assert json.loads(get(server, "/health")[1])["kind"] == "node"
    assert found["fedtaste_node_orders_total", "train"] == 3 and found["fedtaste_node_people_total",] == 12
    assert found["fedtaste_node_refused_total", "data"] == 1


def test_counts_that_cannot_be_read_or_written_stop_nothing(tmp_path):
    (tmp_path / "counters.json").write_text("{")
    assert read_counters(tmp_path) == Counters()
    add_counters(tmp_path, Counters(rounds=1))
    assert read_counters(tmp_path).rounds == 1
    add_counters(tmp_path / "nowhere", Counters(rounds=1))


def test_the_monitor_refuses_other_folders(tmp_path, folder):
    with pytest.raises(RunError, match="node's store"):
        open_monitor(folder)
    with pytest.raises(RunError, match="node's store"):
        open_monitor(tmp_path / "nothing")
    fedtaste("monitor", folder, "--port", 0).refused("neither the run folder of a federation")


# Files of deploy/

DEPLOY = Path(__file__).parents[1] / "deploy"


def test_the_dashboard_and_the_scrapes_name_metrics_and_services_that_exist(folder, tmp_path):
    add_counters(tmp_path, Counters(orders={"train": 1}, refused={"data": 1}))
    node = open_monitor(tmp_path)
    (tmp_path / "run" / "federation").mkdir(parents=True)
    status = StatusWriter()
    status.open(tmp_path / "run" / "federation")
    status.phase("search", 8, 0)
    add_counters(tmp_path / "run" / "federation", Counters(rounds=1, refused={"late": 1}))
    with running(PageSite(BundleRecommender.load(folder), api=True)) as server:
        get(server, "/v1/recommend", "POST", "{}", Content_Type="application/json")
        names = {name[0] for name in samples(get(server, "/metrics")[1])}
    for site in (node, open_monitor(tmp_path / "run")):
        names |= {name[0] for name in samples(exposition(site.metrics()))}
    dashboard = (DEPLOY / "grafana" / "fedtaste.json").read_text()
    queries = [target["expr"] for panel in json.loads(dashboard)["panels"] for target in panel.get("targets", ())]
    assert len(queries) > 15
    assert {name for query in queries for name in re.findall(r"fedtaste_\w+", query)} <= names
    compose = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]
    scrapes = yaml.safe_load((DEPLOY / "prometheus.yml").read_text())["scrape_configs"]
    targets = [target for job in scrapes for group in job["static_configs"] for target in group["targets"]]
    for target in targets:
        name, port = target.split(":")
        words = compose[name]["command"]
        assert name in words and port == ("8700" if "serve" in words else "8800")
        assert fedtaste(*[str(word) for word in words if word != "fedtaste"], "--help").code == 0
