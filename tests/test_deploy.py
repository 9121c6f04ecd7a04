"""`fedtaste federate --write-app` writes files, certificates, scripts and the configuration of a proxy.

No process of Flower is started; where a script calls `flwr`, a stand-in replies.
"""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import ssl
import stat
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

from fedtaste.data.sources import load
from fedtaste.errors import RunError, SettingError
from fedtaste.experiment.settings import FederationSettings, Settings
from fedtaste.flower.deploy import read_catalogue, write_deployment
from fedtaste.flower.server import open_run
from fedtaste.flower.validation import common_fields
from support.command import fedtaste
from support.flower_worlds import federation_in_process, order_of, serve_to_the_end
from support.tls import handshake

ITEMS = "item,title,genres\n10,Ten,Drama\n9,Nine,\n11,,Comedy\n"
HOST = "superlink.example.org"


@pytest.fixture(scope="module")
def deployment(tmp_path_factory):
    """(folder, JSON output) of a deployment with two nodes."""
    place = tmp_path_factory.mktemp("machine-of-the-operator")
    (place / "items.csv").write_text(ITEMS)
    args = ["federate", "--write-app", place / "out", "--catalogue", place / "items.csv", "--host", HOST]
    args += ["--nodes", 2, "--rounds", 3, "--wire", "clip=1", "--method", "fedmf", "--epsilon", 5]
    return place / "out", fedtaste(*args, "--json").json


def texts(folder: Path) -> dict[Path, str]:
    return {path: path.read_text("utf-8") for path in folder.rglob("*") if path.is_file()}


def config_of(folder: Path) -> dict[str, object]:
    return tomllib.loads((folder / "server/app/pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]


def test_all_listed_files_are_written(deployment):
    folder, output = deployment
    assert output["folder"] == str(folder)
    assert output["files"] == sorted(str(path.relative_to(folder)) for path in texts(folder))
    node = ("ca.crt", "environment.sh", "node.key", "node.key.pub", "node.toml", "start-node.sh")
    server = (
        "ca.crt", "server.crt", "server.key", "catalogue.json", "start-superlink.sh", "register-nodes.sh", "run.sh",
        "flwr.sh", "fedtaste.sh", "environment.sh", "flower-config.toml", "nginx.conf", "fedtaste-superlink.service",
        "app/federation.py", "app/pyproject.toml", "app/LICENSE", "nodes/node-0.pub", "nodes/node-1.pub",
    )  # fmt: skip
    expected = [f"server/{name}" for name in server] + ["authority/ca.key", "authority/renew-server.sh", "README.txt"]
    expected += [f"nodes/node-{n}/{name}" for n in (0, 1) for name in (*node, f"fedtaste-node-{n}.service")]
    assert set(expected) <= set(output["files"])
    assert (folder / "README.txt").read_text() == output["next"]
    assert HOST in output["next"] and "127.0.0.1:9092" in output["next"]
    for place in ("server", "nodes/node-0", "nodes/node-1"):  # units allow writing there, and nowhere else
        assert stat.S_IMODE((folder / place / "state").stat().st_mode) == 0o700
    placeholders = [(path.name, name) for path, text in texts(folder).items() for name in re.findall(r"@[A-Z]+@", text)]
    assert {path for path, _ in placeholders} == {"flower-config.toml", "flwr.sh", "register-nodes.sh", "run.sh"}
    assert {name for _, name in placeholders} == {"@HERE@", "@LINK@"}  # the scripts fill them in


def test_only_the_owner_can_read_secret_files(deployment):
    folder, _ = deployment
    secret = {path for path, text in texts(folder).items() if "PRIVATE KEY" in text}
    assert {str(path.relative_to(folder)) for path in secret} == {
        "authority/ca.key", "server/server.key", "nodes/node-0/node.key", "nodes/node-1/node.key",
    }  # fmt: skip
    for path in secret:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700, path
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    keys = [(folder / f"nodes/node-{n}/node.key").read_text() for n in (0, 1)]
    assert keys[0] != keys[1]
    for n in (0, 1):
        public = (folder / f"server/nodes/node-{n}.pub").read_text()
        assert public == (folder / f"nodes/node-{n}/node.key.pub").read_text()
        assert public.startswith("ecdsa-sha2-nistp384 ") and public.endswith(f" node-{n}\n")


def test_files_contain_no_path_of_this_machine(deployment):
    folder, _ = deployment
    paths = {str(folder.parent), str(Path.home()), os.getcwd(), sys.prefix, str(Path(__file__).parent)} - {"/"}
    for path, text in texts(folder).items():
        assert not [local_path for local_path in paths if local_path in text], path


def meet(folder: Path, name: str) -> None:
    """A TLS handshake of a node with the server under this name."""
    handshake(folder / "server/server.crt", folder / "server/server.key", folder / "nodes/node-0/ca.crt", name)


@pytest.mark.parametrize("name", [HOST, "127.0.0.1", "localhost"])  # nodes; the proxy and Flower's command
def test_nodes_accept_the_server_certificate_for_its_own_names(deployment, name):
    meet(deployment[0], name)


def test_nodes_reject_the_server_certificate_for_another_name(deployment):
    with pytest.raises(ssl.SSLCertVerificationError, match="other.example.org"):
        meet(deployment[0], "other.example.org")


def test_scripts_are_posix_sh(deployment):
    scripts = sorted(deployment[0].rglob("*.sh"))
    assert len(scripts) == 11
    for path in scripts:
        subprocess.run(["sh", "-n", str(path)], check=True, timeout=20)
        if path.name != "environment.sh":
            assert os.access(path, os.X_OK) and "set -eu" in path.read_text()
    if check := shutil.which("shellcheck"):
        subprocess.run([check, "-x", "-P", "SCRIPTDIR", *map(str, scripts)], check=True, timeout=60)


@pytest.mark.filterwarnings("ignore:GitWildMatchPattern:DeprecationWarning")  # flwr's
def test_the_flower_app_bundle_contains_no_secret(deployment):
    from flwr.cli.build import build_fab_from_disk

    folder, _ = deployment
    bundle = zipfile.ZipFile(io.BytesIO(build_fab_from_disk(folder / "server/app")))  # this goes to every node
    assert {"federation.py", "pyproject.toml", "LICENSE"} <= set(bundle.namelist())
    fields = json.loads(str(config_of(folder)["settings"]))
    assert fields["noise_seed"] is None and "key" not in "".join(fields)
    assert fields["method"] == "fedmf" and fields["epsilon"] == 5 and fields["data"] == "items"
    Settings(**fields)


def test_the_server_draws_its_secret_key_itself(deployment, tmp_path):
    folder, _ = deployment
    config = config_of(folder) | {"catalogue": str(folder / "server/catalogue.json")}
    runs = [open_run(tmp_path / name, config) for name in "ab"]
    keys = [run.noise_key() for run in runs]
    assert keys[0] != keys[1] and runs[0].run_id != runs[1].run_id
    for name in ("settings.json", "noise.key"):
        assert stat.S_IMODE((runs[0].path / name).stat().st_mode) == 0o600
    assert stat.S_IMODE(runs[0].path.stat().st_mode) == 0o700
    resumed = open_run(tmp_path / "a", config)
    assert resumed.noise_key() == keys[0] and resumed.run_id == runs[0].run_id
    fields = common_fields(resumed.settings(), resumed.run_id, "x")  # what stands in every order
    assert "noise_seed" not in fields["settings"] and keys[0].hex() not in json.dumps(fields)
    items = resumed.read("items.json")
    assert items["names"] == ["9", "10", "11"] and items["titles"] == ["Nine", "Ten", "11"]
    assert "counts" not in items


@pytest.mark.parametrize(("wire", "keys"), [("clip=1,noise=1", 0), ("quantise=8", 2)])
def test_nodes_get_no_key_where_there_is_noise(tmp_path, wire, keys):
    """Without noise they get a key for random rounding in each round, so that a federation equals the simulator."""
    folder, grid = federation_in_process(tmp_path / "run", 2, method="fedmf", wire=wire, rounds=2)
    result = serve_to_the_end(folder, grid, 2)
    orders = map(order_of, grid.asks)
    training_orders = [order for order in orders if (order["action"], order["phase"]) == ("train", "final")]
    assert len(training_orders) == 2 * result["rounds"]
    assert len({order["key"] for order in training_orders} - {""}) == min(keys, result["rounds"])
    secrets = sorted(folder.path.glob("federation/nodes/*/store/secret"))
    assert len(secrets) == (0 if keys else 2) and len({path.read_bytes() for path in secrets}) == len(secrets)


def test_a_seed_for_noise_is_not_written_into_a_deployment(tmp_path):
    (tmp_path / "items.csv").write_text(ITEMS)
    args = ["federate", "--write-app", tmp_path / "out", "--catalogue", tmp_path / "items.csv", "--host", HOST]
    args += ["--nodes", 2, "--wire", "clip=1", "--method", "fedmf", "--epsilon", 5, "--noise-seed"]
    for seed, error_text in (("secret", "--noise-seed"), ("7", "keys of their own")):
        fedtaste(*args, seed).refused(error_text)
    assert not (tmp_path / "out").exists()


def test_a_deployment_from_data_contains_the_items_and_no_people(tmp_path):
    (tmp_path / "private.csv").write_text("user,item,rating\nanna-secret,1,5\nbert-secret,2,3\nanna-secret,2,1\n")
    path = tmp_path / "private.csv"
    settings = Settings(data=str(path), method="popularity")
    write_deployment(
        tmp_path / "out", settings, load(str(path)), FederationSettings(nodes=1, host="10.0.0.5", port=9092)
    )
    contents = texts(tmp_path / "out")
    assert not [p for p, text in contents.items() if "anna-secret" in text or str(tmp_path) in text]
    assert json.loads(contents[tmp_path / "out/server/catalogue.json"]) == {
        "names": ["1", "2"], "titles": ["1", "2"], "genres": [],
    }  # fmt: skip
    assert json.loads(str(config_of(tmp_path / "out")["settings"]))["data"] == "private"
    assert "listen 9092 ssl" in contents[tmp_path / "out/server/nginx.conf"]  # so the SuperLink uses another port
    assert "127.0.0.1:9093" in contents[tmp_path / "out/server/nginx.conf"]
    assert "link_port=9093 " in contents[tmp_path / "out/server/environment.sh"]
    assert "server=10.0.0.5:9092 " in contents[tmp_path / "out/nodes/node-0/environment.sh"]
    meet(tmp_path / "out", "10.0.0.5")


def test_the_settings_file_of_a_node_has_the_fields_that_a_node_reads(deployment, tmp_path):
    node = tomllib.loads((deployment[0] / "nodes/node-1/node.toml").read_text())
    assert node["name"] == "node-1" and node["store"] == "/var/lib/fedtaste/node-1" and node["data"].endswith(".csv")
    assert not node.get("secure") and "least_noise" not in node and "fewest" not in node
    text = (deployment[0] / "nodes/node-1/node.toml").read_text()
    examples = tomllib.loads(text.replace("#fewest", "fewest").replace("#least_noise", "least_noise"))
    assert (examples["fewest"], examples["least_noise"]) == (10, 0.5)  # an operator can switch them on
    (tmp_path / "items.csv").write_text(ITEMS)
    settings, items = Settings(method="fedmf", wire="secure"), read_catalogue(tmp_path / "items.csv")
    write_deployment(tmp_path / "s", settings, items, FederationSettings(nodes=3, host=HOST))
    for n in range(3):
        assert tomllib.loads((tmp_path / f"s/nodes/node-{n}/node.toml").read_text())["secure"] is True


# The proxy


def rule_of(folder: Path) -> re.Pattern[str]:
    (rule,) = re.findall(r'location ~ "(.*)" \{', (folder / "server/nginx.conf").read_text())
    return re.compile(rule)


def test_the_proxy_lets_nodes_call_exactly_the_paths_that_they_need(deployment):
    import flwr.supercore.protobuf.translation as flower

    rule, (called, others) = rule_of(deployment[0]), (set(), set())
    source = Path(sys.modules["flwr"].__file__).parent
    for path in re.findall(r'"(/v1/[a-z/-]+)"', (source / "supernode/fleet_http_client.py").read_text()):
        (others if re.search("(un)?register-node$", path) else called).add(path)  # the operator registers nodes
    everything = set(re.findall(r'"(/v1/[a-z/-]+)"', Path(flower.__file__).read_text()))
    assert len(called) == 10 and len(everything) > 40 and called < everything
    assert {path for path in everything if rule.search(path)} == called
    beside = ("/", "/x/v1/fleet/get-run", "/get-run/x", "/pull-messages/../../control/start-run", "/get-run?x")
    for path in (*others, "/health", "/docs", "/v1/control/start-run", *(f"/v1/fleet{path}" for path in beside)):
        assert not rule.search(path), path


def test_the_proxy_rebuilds_the_paths_that_it_forwards_and_refuses_the_rest(deployment):
    text = (deployment[0] / "server/nginx.conf").read_text()
    assert "proxy_pass https://fedtaste_superlink/v1/fleet/$1;" in text  # and not the path of the caller
    assert re.search(r"location / \{\s+return 403;\s+\}", text)
    assert text.count("proxy_pass") == 1 and "proxy_ssl_verify on;" in text
    assert "--host 127.0.0.1" in (deployment[0] / "server/start-superlink.sh").read_text()
    assert "--enable-supernode-auth" in (deployment[0] / "server/start-superlink.sh").read_text()


# Scripts, with a stand-in for Flower's command


@pytest.fixture
def server(deployment, tmp_path):
    """A copy of the server's folder, and a function that runs one of its scripts with a stand-in for `flwr`."""
    place, tools = tmp_path / "a place" / "server", tmp_path / "bin"
    shutil.copytree(deployment[0] / "server", place)
    tools.mkdir()
    for name in ("flower-superlink", "flwr", "sleep"):
        (tools / name).write_text("#!/bin/sh\n")
        (tools / name).chmod(0o755)

    def run(script: str, flwr: str = "", *args: object) -> subprocess.CompletedProcess[str]:
        (tools / "flwr").write_text(f'#!/bin/sh\necho "$*" >>"{tmp_path}/calls"\n{flwr}\n')
        env = {
            "PATH": f"{tools}:/usr/bin:/bin",
            "FEDTASTE_VENV": str(tmp_path / "none"),
            "RUN": str(place / "state/run"),
        }
        return subprocess.run(
            ["sh", str(place / script), *map(str, args)], capture_output=True, text=True, timeout=30, env=env, cwd="/"
        )

    return place, run


def test_scripts_point_flower_to_their_own_folder(server):
    place, run = server
    assert run("flwr.sh", 'cat "$FLWR_HOME/config.toml"').returncode == 0
    connection = tomllib.loads((place / "state/flower/config.toml").read_text())["superlink"]["fedtaste"]
    assert connection == {"address": "127.0.0.1:9092", "root-certificates": f"{place}/ca.crt"}
    process = run("flwr.sh", 'echo "$FLWR_TELEMETRY_ENABLED $FLWR_HOME $NUMBA_CACHE_DIR"; umask')
    assert process.stdout == f"0 {place}/state/flower {place}/state/numba\n0077\n"


def test_registering_a_node_again_succeeds_and_a_failure_is_reported(server, tmp_path):
    place, run = server
    answer = 'case $* in *node-0*) echo "SuperNode 123 registered successfully.";; *) {};; esac'
    process = run("register-nodes.sh", answer.format('echo "Error: Public key already in use."; exit 1'))
    assert process.returncode == 0, process.stderr
    assert process.stdout == "node-0: registered as 123\nnode-1: was registered before\n"
    assert (place / "state/ids/node-0").read_text() == "123\n"
    assert f"supernode register {place}/nodes/node-1.pub fedtaste --name node-1" in (tmp_path / "calls").read_text()
    process = run("register-nodes.sh", answer.format("echo nobody is there; exit 1"))
    assert process.returncode == 1 and "not registered" in process.stderr and "nobody is there" in process.stderr


SAY = 'mkdir -p "$RUN/federation"; echo "2026-01-01T00:00:00 {}" >>"$RUN/federation/server.log"'
END = "echo '{}' >\"$RUN/federation/status.json\""
SUBMITTED = 'echo \'{"success": true, "run-id": "77"}\''
STATUS = """echo '{{"runs": [{{"run-id": "77", "status": "{}"}}]}}'"""


def test_run_script_prints_the_log_until_the_run_ends(server):
    place, run = server
    process = run("run.sh", f"{SAY.format('round 1')}; {END.format(json.dumps({'state': 'done'}))}; {SUBMITTED}")
    assert process.returncode == 0, process.stderr
    assert "round 1" in process.stdout and f"Done: {place}/state/run/result.json" in process.stdout
    run_config = tomllib.loads((place / "state/run.toml").read_text())
    assert run_config == {"folder": f"{place}/state/run", "catalogue": f"{place}/catalogue.json"}
    assert set(run_config) <= set(config_of(place.parent))  # Flower refuses others


def test_run_script_fails_when_the_run_fails(server):
    _, run = server
    process = run(
        "run.sh",
        f"{SAY.format('error: no')}; {END.format(json.dumps({'state': 'error', 'reason': 'no'}))}; {SUBMITTED}",
    )
    assert process.returncode == 1 and "error: no" in process.stdout and "status.json" in process.stderr
    process = run("run.sh", "echo The SuperLink is away; exit 1")
    assert process.returncode == 1 and "could not be submitted" in process.stderr and "is away" in process.stderr


def test_run_script_submits_a_run_again_whose_server_died(server, tmp_path):
    _, run = server
    ended = f"{SAY.format('back')}; {END.format(json.dumps({'state': 'done'}))}"
    twice = f"""case $1 in
    run)
        {SUBMITTED}
        if [ -f "{tmp_path}/once" ]; then {ended}; fi
        touch "{tmp_path}/once"
        ;;
    list) {STATUS.format("finished:failed")} ;;
    esac"""
    process = run("run.sh", twice)
    assert process.returncode == 0, process.stderr
    assert process.stdout.count("Run 77 of Flower") == 2 and "continues from its last round" in process.stdout
    assert (tmp_path / "calls").read_text().count("--run-config") == 2


def test_run_script_does_not_submit_a_stopped_or_refused_run_again(server, tmp_path):
    _, run = server
    for status, error_text in (("finished:stopped", "Stopped."), ("finished:completed", "not empty")):
        cases = f"run) {SUBMITTED} ;; list) {STATUS.format(status)} ;; log) echo error: it is not empty ;;"
        process = run("run.sh", f"case $1 in {cases} esac")
        assert process.returncode == 1 and error_text in process.stderr
    assert (tmp_path / "calls").read_text().count("--run-config") == 2


def test_run_script_follows_a_running_run_and_starts_no_second_one(server, tmp_path):
    place, run = server
    (place / "state/run.last").write_text(f"77 {place}/state/run\n")
    ended = f"{SAY.format('round 9')}; {END.format(json.dumps({'state': 'done'}))}"
    process = run("run.sh", f"case $1 in list) {STATUS.format('running')}; {ended} ;; esac")
    assert process.returncode == 0 and "round 9" in process.stdout
    assert "--run-config" not in (tmp_path / "calls").read_text()


def test_scripts_name_a_missing_program_and_an_unusable_folder(server, tmp_path):
    place, run = server
    (tmp_path / "bin/flower-superlink").unlink()
    process = run("start-superlink.sh")
    assert process.returncode == 2 and "fedtaste[flower]" in process.stderr
    odd = tmp_path / 'a"b'
    shutil.copytree(place, odd)
    process = subprocess.run(["sh", str(odd / "run.sh")], capture_output=True, text=True, timeout=20)
    assert process.returncode == 2 and "Move the folder." in process.stderr


# Refusals before any file is written


@pytest.mark.parametrize(
    ("settings", "options", "match"),
    [
        ({"method": "centralised"}, {}, "no federation can run it"),
        ({"method": "fedmf", "wire": "secure"}, {"nodes": 2}, "--nodes 3 or more"),
        ({"method": "fedmf", "set": {"k": "x"}}, {}, "k"),
        ({"method": "fedmf", "set": {"nothing": "1"}}, {}, "not a setting"),
        ({"method": "fedmf", "wire": "median"}, {}, "single people's uploads"),
        ({}, {"host": "0.0.0.0"}, "the name or address that nodes reach"),
        ({}, {"host": "*.example.org"}, "the name or address that nodes reach"),
        ({}, {"host": "no host"}, "neither a host name nor an address"),
        ({}, {"host": "x;reboot"}, "neither a host name nor an address"),
    ],
)
def test_settings_that_cannot_be_deployed_are_refused_and_no_file_is_written(tmp_path, settings, options, match):
    (tmp_path / "items.csv").write_text(ITEMS)
    items = read_catalogue(tmp_path / "items.csv")
    with pytest.raises(SettingError, match=re.escape(match)):
        write_deployment(tmp_path / "out", Settings(**settings), items, FederationSettings(**{"nodes": 1, **options}))
    assert [path.name for path in tmp_path.iterdir()] == ["items.csv"]


def test_an_existing_deployment_is_not_overwritten(deployment):
    folder, _ = deployment
    before = texts(folder)
    with pytest.raises(RunError, match="not an empty folder"):
        write_deployment(folder, Settings(), read_catalogue(folder.parent / "items.csv"), FederationSettings(nodes=1))
    assert texts(folder) == before
    assert sorted(path.name for path in folder.parent.iterdir()) == ["items.csv", "out"]


def test_an_empty_folder_is_used_and_closed_to_others(tmp_path):
    (tmp_path / "items.csv").write_text(ITEMS)
    (tmp_path / "out").mkdir(mode=0o755)
    write_deployment(tmp_path / "out", Settings(), read_catalogue(tmp_path / "items.csv"), FederationSettings(nodes=1))
    assert stat.S_IMODE((tmp_path / "out").stat().st_mode) == 0o700


def test_data_without_items_and_a_catalogue_without_an_app_are_refused(tmp_path):
    with pytest.raises(SettingError, match="has no items"):
        write_deployment(
            tmp_path / "out", Settings(data="linear", method="fedavg"), load("linear"), FederationSettings()
        )
    (tmp_path / "items.csv").write_text(ITEMS)
    fedtaste("federate", "--catalogue", tmp_path / "items.csv").refused("Add --write-app")
