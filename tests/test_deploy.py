"""What `fedtaste federate --write-app` writes: files, certificates, scripts, the proxy's rule. Nothing of Flower is
started; where a script calls `flwr`, a stand-in answers."""

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
from fedtaste.flower.messages import unpack_content
from fedtaste.flower.server import open_run
from fedtaste.flower.validation import common_fields
from support.command import fedtaste
from support.flower_worlds import dealt, served

ITEMS = "item,title,genres\n10,Ten,Drama\n9,Nine,\n11,,Comedy\n"
HOST = "superlink.example.org"


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """(the folder, what was told of it), for two nodes."""
    place = tmp_path_factory.mktemp("machine-of-the-operator")
    (place / "items.csv").write_text(ITEMS)
    words = ["federate", "--write-app", place / "out", "--catalogue", place / "items.csv", "--host", HOST]
    words += ["--nodes", 2, "--rounds", 3, "--wire", "clip=1", "--method", "fedmf", "--epsilon", 5]
    return place / "out", fedtaste(*words, "--json").json


def texts(folder: Path) -> dict[Path, str]:
    return {path: path.read_text("utf-8") for path in folder.rglob("*") if path.is_file()}


def config_of(folder: Path) -> dict[str, object]:
    return tomllib.loads((folder / "server/app/pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]


def test_everything_that_is_told_is_there(written):
    folder, told = written
    assert told["folder"] == str(folder)
    assert told["files"] == sorted(str(path.relative_to(folder)) for path in texts(folder))
    node = ("ca.crt", "environment.sh", "node.key", "node.key.pub", "node.toml", "start-node.sh")
    server = (
        "ca.crt", "server.crt", "server.key", "catalogue.json", "start-superlink.sh", "register-nodes.sh", "run.sh",
        "flwr.sh", "fedtaste.sh", "environment.sh", "flower-config.toml", "nginx.conf", "fedtaste-superlink.service",
        "app/federation.py", "app/pyproject.toml", "app/LICENSE", "nodes/node-0.pub", "nodes/node-1.pub",
    )  # fmt: skip
    wanted = [f"server/{name}" for name in server] + ["authority/ca.key", "authority/renew-server.sh", "README.txt"]
    wanted += [f"nodes/node-{n}/{name}" for n in (0, 1) for name in (*node, f"fedtaste-node-{n}.service")]
    assert set(wanted) <= set(told["files"])
    assert (folder / "README.txt").read_text() == told["next"]
    assert HOST in told["next"] and "127.0.0.1:9092" in told["next"]
    for place in ("server", "nodes/node-0", "nodes/node-1"):  # units allow writing there, and nowhere else
        assert stat.S_IMODE((folder / place / "state").stat().st_mode) == 0o700
    left = [(path.name, name) for path, text in texts(folder).items() for name in re.findall(r"@[A-Z]+@", text)]
    assert {path for path, _ in left} == {"flower-config.toml", "flwr.sh", "register-nodes.sh", "run.sh"}
    assert {name for _, name in left} == {"@HERE@", "@LINK@"}  # which the scripts fill in


def test_secrets_are_their_owners_alone(written):
    folder, _ = written
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


def test_no_path_of_this_machine_is_in_it(written):
    folder, _ = written
    here = {str(folder.parent), str(Path.home()), os.getcwd(), sys.prefix, str(Path(__file__).parent)} - {"/"}
    for path, text in texts(folder).items():
        assert not [word for word in here if word in text], path


def handshake(folder: Path, name: str) -> None:
    """A node meets the server, without a network."""
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(folder / "server/server.crt", folder / "server/server.key")
    client = ssl.create_default_context(cafile=str(folder / "nodes/node-0/ca.crt"))
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [client.wrap_bio(back, there, server_hostname=name), server.wrap_bio(there, back, server_side=True)]
    for _ in range(6):
        for end in ends:
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
    assert ends[0].version() and ends[0].getpeercert()


@pytest.mark.parametrize("name", [HOST, "127.0.0.1", "localhost"])  # nodes; the proxy and Flower's command
def test_nodes_trust_the_server_under_its_name(written, name):
    handshake(written[0], name)


def test_nodes_do_not_trust_it_under_another(written):
    with pytest.raises(ssl.SSLCertVerificationError, match="other.example.org"):
        handshake(written[0], "other.example.org")


def test_scripts_are_posix_sh(written):
    found = sorted(written[0].rglob("*.sh"))
    assert len(found) == 11
    for path in found:
        subprocess.run(["sh", "-n", str(path)], check=True, timeout=20)
        if path.name != "environment.sh":
            assert os.access(path, os.X_OK) and "set -eu" in path.read_text()
    if check := shutil.which("shellcheck"):
        subprocess.run([check, "-x", "-P", "SCRIPTDIR", *map(str, found)], check=True, timeout=60)


@pytest.mark.filterwarnings("ignore:GitWildMatchPattern:DeprecationWarning")  # flwr's
def test_the_app_can_be_bundled_and_tells_no_secret(written):
    from flwr.cli.build import build_fab_from_disk

    folder, _ = written
    bundle = zipfile.ZipFile(io.BytesIO(build_fab_from_disk(folder / "server/app")))  # this goes to every node
    assert {"federation.py", "pyproject.toml", "LICENSE"} <= set(bundle.namelist())
    words = json.loads(str(config_of(folder)["settings"]))
    assert words["noise_seed"] is None and "key" not in "".join(words)
    assert words["method"] == "fedmf" and words["epsilon"] == 5 and words["data"] == "items"
    Settings(**words)


def test_the_server_draws_its_secret_key_itself(written, tmp_path):
    folder, _ = written
    config = config_of(folder) | {"catalogue": str(folder / "server/catalogue.json")}
    made = [open_run(tmp_path / name, config) for name in "ab"]
    keys = [run.noise_key() for run in made]
    assert keys[0] != keys[1] and made[0].run_id != made[1].run_id
    for name in ("settings.json", "noise.key"):
        assert stat.S_IMODE((made[0].path / name).stat().st_mode) == 0o600
    assert stat.S_IMODE(made[0].path.stat().st_mode) == 0o700
    again = open_run(tmp_path / "a", config)
    assert again.noise_key() == keys[0] and again.run_id == made[0].run_id
    told = common_fields(again.settings(), again.run_id, "x")  # what stands in every order
    assert "noise_seed" not in told["settings"] and keys[0].hex() not in json.dumps(told)
    items = again.read("items.json")
    assert items["names"] == ["9", "10", "11"] and items["titles"] == ["Nine", "Ten", "11"]
    assert "counts" not in items


@pytest.mark.parametrize(("wire", "keys"), [("clip=1,noise=1", 0), ("quantise=8", 2)])
def test_nodes_get_no_key_where_there_is_noise(tmp_path, wire, keys):
    """Without noise they get a key for random rounding in each round, so that a federation equals the simulator."""
    words = {"data": "synthetic:60x40x900", "method": "fedmf", "wire": wire, "rounds": 2}
    folder, grid = dealt(tmp_path / "run", 2, **words)
    result = served(folder, grid, 2)
    orders = [json.loads(unpack_content(ask)[0]) for ask in grid.asks]
    asked = [order for order in orders if (order["action"], order["phase"]) == ("train", "final")]
    assert len(asked) == 2 * result["rounds"]
    assert len({order["key"] for order in asked} - {""}) == min(keys, result["rounds"])
    secrets = sorted(folder.path.glob("federation/nodes/*/store/secret"))
    assert len(secrets) == (0 if keys else 2) and len({path.read_bytes() for path in secrets}) == len(secrets)


def test_a_seed_for_noise_is_not_written_into_a_deployment(tmp_path):
    (tmp_path / "items.csv").write_text(ITEMS)
    words = ["federate", "--write-app", tmp_path / "out", "--catalogue", tmp_path / "items.csv", "--host", HOST]
    words += ["--nodes", 2, "--wire", "clip=1", "--method", "fedmf", "--epsilon", 5, "--noise-seed"]
    for seed, told in (("secret", "--noise-seed"), ("7", "keys of their own")):
        fedtaste(*words, seed).refused(told)
    assert not (tmp_path / "out").exists()


def test_data_give_the_items_and_nobody(tmp_path):
    (tmp_path / "private.csv").write_text("user,item,rating\nanna-secret,1,5\nbert-secret,2,3\nanna-secret,2,1\n")
    path = tmp_path / "private.csv"
    settings = Settings(data=str(path), method="popularity")
    write_deployment(
        tmp_path / "out", settings, load(str(path)), FederationSettings(nodes=1, host="10.0.0.5", port=9092)
    )
    found = texts(tmp_path / "out")
    assert not [p for p, text in found.items() if "anna-secret" in text or str(tmp_path) in text]
    assert json.loads(found[tmp_path / "out/server/catalogue.json"]) == {
        "names": ["1", "2"], "titles": ["1", "2"], "genres": [],
    }  # fmt: skip
    assert json.loads(str(config_of(tmp_path / "out")["settings"]))["data"] == "private"
    assert "listen 9092 ssl" in found[tmp_path / "out/server/nginx.conf"]  # so the SuperLink is at another one
    assert "127.0.0.1:9093" in found[tmp_path / "out/server/nginx.conf"]
    assert "link_port=9093 " in found[tmp_path / "out/server/environment.sh"]
    assert "server=10.0.0.5:9092 " in found[tmp_path / "out/nodes/node-0/environment.sh"]
    handshake(tmp_path / "out", "10.0.0.5")


def test_node_settings_are_what_a_node_reads(written, tmp_path):
    words = tomllib.loads((written[0] / "nodes/node-1/node.toml").read_text())
    assert words["name"] == "node-1" and words["store"] == "/var/lib/fedtaste/node-1" and words["data"].endswith(".csv")
    assert not words.get("secure") and "least_noise" not in words and "fewest" not in words
    text = (written[0] / "nodes/node-1/node.toml").read_text()
    asked = tomllib.loads(text.replace("#fewest", "fewest").replace("#least_noise", "least_noise"))
    assert (asked["fewest"], asked["least_noise"]) == (10, 0.5)  # examples that an operator can switch on
    (tmp_path / "items.csv").write_text(ITEMS)
    asked = FederationSettings(nodes=3, host=HOST)
    write_deployment(
        tmp_path / "s", Settings(method="fedmf", wire="secure"), read_catalogue(tmp_path / "items.csv"), asked
    )
    for n in range(3):
        assert tomllib.loads((tmp_path / f"s/nodes/node-{n}/node.toml").read_text())["secure"] is True


# The proxy


def rule_of(folder: Path) -> re.Pattern[str]:
    (rule,) = re.findall(r'location ~ "(.*)" \{', (folder / "server/nginx.conf").read_text())
    return re.compile(rule)


def test_nodes_reach_all_that_they_call_and_nothing_else(written):
    import flwr.supercore.protobuf.translation as flower

    rule, (called, others) = rule_of(written[0]), (set(), set())
    source = Path(sys.modules["flwr"].__file__).parent
    for path in re.findall(r'"(/v1/[a-z/-]+)"', (source / "supernode/fleet_http_client.py").read_text()):
        (others if re.search("(un)?register-node$", path) else called).add(path)  # who is in, the operator says
    everything = set(re.findall(r'"(/v1/[a-z/-]+)"', Path(flower.__file__).read_text()))
    assert len(called) == 10 and len(everything) > 40 and called < everything
    assert {path for path in everything if rule.search(path)} == called
    beside = ("/", "/x/v1/fleet/get-run", "/get-run/x", "/pull-messages/../../control/start-run", "/get-run?x")
    for path in (*others, "/health", "/docs", "/v1/control/start-run", *(f"/v1/fleet{path}" for path in beside)):
        assert not rule.search(path), path


def test_what_passes_the_proxy_is_spelt_by_it_and_the_rest_is_refused(written):
    text = (written[0] / "server/nginx.conf").read_text()
    assert "proxy_pass https://fedtaste_superlink/v1/fleet/$1;" in text  # not what the caller wrote
    assert re.search(r"location / \{\s+return 403;\s+\}", text)
    assert text.count("proxy_pass") == 1 and "proxy_ssl_verify on;" in text
    assert "--host 127.0.0.1" in (written[0] / "server/start-superlink.sh").read_text()
    assert "--enable-supernode-auth" in (written[0] / "server/start-superlink.sh").read_text()


# Scripts, with a stand-in for Flower's command


@pytest.fixture
def server(written, tmp_path):
    """A copy of the server's folder, and how to run a script of it while `flwr` does what it is told to."""
    place, tools = tmp_path / "a place" / "server", tmp_path / "bin"
    shutil.copytree(written[0] / "server", place)
    tools.mkdir()
    for name in ("flower-superlink", "flwr", "sleep"):
        (tools / name).write_text("#!/bin/sh\n")
        (tools / name).chmod(0o755)

    def run(script: str, flwr: str = "", *words: object) -> subprocess.CompletedProcess[str]:
        (tools / "flwr").write_text(f'#!/bin/sh\necho "$*" >>"{tmp_path}/calls"\n{flwr}\n')
        env = {
            "PATH": f"{tools}:/usr/bin:/bin",
            "FEDTASTE_VENV": str(tmp_path / "none"),
            "RUN": str(place / "state/run"),
        }
        return subprocess.run(
            ["sh", str(place / script), *map(str, words)], capture_output=True, text=True, timeout=30, env=env, cwd="/"
        )

    return place, run


def test_scripts_point_flower_to_their_own_folder(server):
    place, run = server
    assert run("flwr.sh", 'cat "$FLWR_HOME/config.toml"').returncode == 0
    words = tomllib.loads((place / "state/flower/config.toml").read_text())["superlink"]["fedtaste"]
    assert words == {"address": "127.0.0.1:9092", "root-certificates": f"{place}/ca.crt"}
    done = run("flwr.sh", 'echo "$FLWR_TELEMETRY_ENABLED $FLWR_HOME $NUMBA_CACHE_DIR"; umask')
    assert done.stdout == f"0 {place}/state/flower {place}/state/numba\n0077\n"


def test_registering_again_is_no_error_and_a_failure_is(server, tmp_path):
    place, run = server
    answer = 'case $* in *node-0*) echo "SuperNode 123 registered successfully.";; *) {};; esac'
    done = run("register-nodes.sh", answer.format('echo "Error: Public key already in use."; exit 1'))
    assert done.returncode == 0, done.stderr
    assert done.stdout == "node-0: registered as 123\nnode-1: was registered before\n"
    assert (place / "state/ids/node-0").read_text() == "123\n"
    assert f"supernode register {place}/nodes/node-1.pub fedtaste --name node-1" in (tmp_path / "calls").read_text()
    done = run("register-nodes.sh", answer.format("echo nobody is there; exit 1"))
    assert done.returncode == 1 and "node-1: not registered. Flower says: nobody is there" in done.stderr


SAY = 'mkdir -p "$RUN/federation"; echo "2026-01-01T00:00:00 {}" >>"$RUN/federation/server.log"'
END = "echo '{}' >\"$RUN/federation/status.json\""
SUBMITTED = 'echo \'{"success": true, "run-id": "77"}\''
STATUS = """echo '{{"runs": [{{"run-id": "77", "status": "{}"}}]}}'"""


def test_a_run_is_shown_to_its_end(server):
    place, run = server
    done = run("run.sh", f"{SAY.format('round 1')}; {END.format(json.dumps({'state': 'done'}))}; {SUBMITTED}")
    assert done.returncode == 0, done.stderr
    assert "round 1" in done.stdout and f"Done: {place}/state/run/result.json" in done.stdout
    words = tomllib.loads((place / "state/run.toml").read_text())
    assert words == {"folder": f"{place}/state/run", "catalogue": f"{place}/catalogue.json"}
    assert set(words) <= set(config_of(place.parent))  # Flower refuses others


def test_an_error_of_the_run_is_one_of_the_script(server):
    _, run = server
    done = run(
        "run.sh",
        f"{SAY.format('error: no')}; {END.format(json.dumps({'state': 'error', 'reason': 'no'}))}; {SUBMITTED}",
    )
    assert done.returncode == 1 and "error: no" in done.stdout and "status.json" in done.stderr
    done = run("run.sh", "echo The SuperLink is away; exit 1")
    assert done.returncode == 1 and "could not be submitted" in done.stderr and "is away" in done.stderr


def test_a_run_whose_server_died_is_submitted_again(server, tmp_path):
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
    done = run("run.sh", twice)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("Run 77 of Flower") == 2 and "continues from its last round" in done.stdout
    assert (tmp_path / "calls").read_text().count("--run-config") == 2


def test_a_run_that_was_stopped_or_had_no_folder_is_not(server, tmp_path):
    _, run = server
    for status, told in (("finished:stopped", "Stopped."), ("finished:completed", "not empty")):
        cases = f"run) {SUBMITTED} ;; list) {STATUS.format(status)} ;; log) echo error: it is not empty ;;"
        done = run("run.sh", f"case $1 in {cases} esac")
        assert done.returncode == 1 and told in done.stderr
    assert (tmp_path / "calls").read_text().count("--run-config") == 2


def test_a_run_under_way_is_shown_and_not_started_again(server, tmp_path):
    place, run = server
    (place / "state/run.last").write_text(f"77 {place}/state/run\n")
    ended = f"{SAY.format('round 9')}; {END.format(json.dumps({'state': 'done'}))}"
    done = run("run.sh", f"case $1 in list) {STATUS.format('running')}; {ended} ;; esac")
    assert done.returncode == 0 and "round 9" in done.stdout
    assert "--run-config" not in (tmp_path / "calls").read_text()


def test_what_is_missing_is_said(server, tmp_path):
    place, run = server
    (tmp_path / "bin/flower-superlink").unlink()
    done = run("start-superlink.sh")
    assert done.returncode == 2 and "Install fedtaste[flower], or set FEDTASTE_VENV." in done.stderr
    odd = tmp_path / 'a"b'
    shutil.copytree(place, odd)
    done = subprocess.run(["sh", str(odd / "run.sh")], capture_output=True, text=True, timeout=20)
    assert done.returncode == 2 and "Move the folder." in done.stderr


# What is refused, before anything is written


@pytest.mark.parametrize(
    ("settings", "asked", "match"),
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
def test_what_cannot_be_is_refused(tmp_path, settings, asked, match):
    (tmp_path / "items.csv").write_text(ITEMS)
    items = read_catalogue(tmp_path / "items.csv")
    with pytest.raises(SettingError, match=re.escape(match)):
        write_deployment(tmp_path / "out", Settings(**settings), items, FederationSettings(**{"nodes": 1, **asked}))
    assert [path.name for path in tmp_path.iterdir()] == ["items.csv"]


def test_keys_are_never_written_over(written):
    folder, _ = written
    before = texts(folder)
    with pytest.raises(RunError, match="not an empty folder"):
        write_deployment(folder, Settings(), read_catalogue(folder.parent / "items.csv"), FederationSettings(nodes=1))
    assert texts(folder) == before
    assert sorted(path.name for path in folder.parent.iterdir()) == ["items.csv", "out"]


def test_an_empty_folder_will_do(tmp_path):
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
