"""Everything that real machines need for a federation, written into one folder; nothing is started.

    authority/           signs the server's certificate; to be kept offline      renew-server.sh
    server/              for the machine that adds: the Flower app, the catalogue, certificate and key, scripts, a
                         proxy's settings, a unit, the nodes' public keys
    nodes/node-0/ ...    one for every machine with people: its key, the authority's certificate, settings, script, unit
    README.txt           what to do next (docs/deploy.md says it at length)

The app goes to every node, so nothing secret is in it: the server draws its key of noise when it begins the run, and
keeps it in the run folder; every node draws one of its own. Nothing in the folder names a path of this machine, and
nothing is about people: of the data only the items are taken.
"""

from __future__ import annotations

import ipaddress
import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from ..data.importing import BroughtSplit, labels, stem, vocabulary
from ..data.interactions import Interactions
from ..data.sources import SOURCES
from ..data.supervised import Supervised
from ..data.tables import read_table
from ..errors import RunError, SettingError
from ..experiment import Data
from ..settings import Settings, plan
from ..tasks import Facts
from ..wire.plan import parse
from . import scripts
from .appfiles import write_app
from .certificates import LOOPBACK, issue_server, make_authority, make_node_key, private_folder, public_of
from .checks import refuse_unfit
from .federate import Federation

PORT = 8443  # of the proxy, where nodes come in
LINK = 9092  # of the SuperLink, on the server's loopback
NODE_PORT = 9100  # of the first node's own processes, on its loopback
MANY = 10_000  # people, for a trial of the settings: how many there will be nobody knows yet


def read_catalogue(path: Path) -> Interactions:
    """Items without anybody: a file with a column item and, if there are such, title and genres."""
    table = read_table(path, ("item",), ("title", "genres"))
    items = vocabulary([table.frame["item"]])
    titles, genres = (labels([table], role, items) for role in ("title", "genres"))
    nobody = np.zeros(0, np.int32)
    return Interactions(stem(path), nobody, nobody, (), tuple(items.to_list()), titles=titles, genres=genres)


def write_deployment(folder: Path, settings: Settings, data: Data, asked: Federation) -> dict[str, Any]:
    """Write the folder; {"folder", "files", "next"}. `data` gives the catalogue of items and nothing else."""
    if isinstance(data, Supervised):
        raise SettingError(
            f"{data.name} has no items, and nodes bring tables of who took which item. Use `tacit federate` without "
            "--write-app for it."
        )
    items = data.train if isinstance(data, BroughtSplit) else data
    _refuse(folder, settings, items, asked)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        part = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", suffix=".part", dir=folder.parent))  # mode 0700
    except OSError as error:
        raise RunError(f"{folder} cannot be made ({error.strerror}). Choose another folder.") from error
    try:
        _authority(part, asked)
        _server(part, settings, items, asked)
        for number in range(asked.nodes):
            _node(part, number, asked, "secure" in dict(parse(settings.wire)))
        told = _next(folder, asked)
        _write(part / "README.txt", told)
        os.replace(part, folder)
    except OSError as error:
        raise RunError(f"{folder} cannot be written ({error.strerror}). Choose another folder.") from error
    finally:
        shutil.rmtree(part, ignore_errors=True)
    files = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
    return {"folder": str(folder), "files": files, "next": told}


def _refuse(folder: Path, settings: Settings, items: Interactions, asked: Federation) -> None:
    """Everything that can be wrong is found before anything is written."""
    refuse_unfit(settings, asked.nodes)
    items.require(people=0)
    plan(settings, Facts(settings.task or "ranking", len(items.items), True, (1.0, 5.0), people=MANY), elsewhere=True)
    if asked.host in ("0.0.0.0", "::") or "*" in asked.host:
        raise SettingError(
            f"--host {asked.host} was got; expected the name or address that nodes reach the server by, such as "
            "superlink.example.org."
        )
    try:
        taken = (folder.exists() or folder.is_symlink()) and (not folder.is_dir() or any(folder.iterdir()))
    except OSError as error:
        raise RunError(f"{folder} cannot be read ({error.strerror}). Choose another folder.") from error
    if taken:
        raise RunError(
            f"{folder} is not an empty folder, and keys that are in use may be in it. Give a new one to --write-app."
        )


def _authority(part: Path, asked: Federation) -> None:
    authority = part / "authority"
    make_authority(authority)
    issue_server(authority, part / "server", _names(asked))
    _write(authority / "renew-server.sh", scripts.RENEW, NAMES=" ".join(_names(asked)))


def _server(part: Path, settings: Settings, items: Interactions, asked: Federation) -> None:
    server, own = part / "server", {"LINK": _link(asked), "PORT": asked.port or PORT, "HOST": asked.host}
    private_folder(server / "state")
    config = {
        "folder": "", "settings": json.dumps(_told(settings, items)), "catalogue": "", "nodes": asked.nodes,
        "deadline": asked.deadline, "least": asked.least,
    }  # fmt: skip
    write_app(server / "app", config)
    names = {"names": items.items, "titles": items.titles, "genres": items.genres}
    _write(server / "catalogue.json", json.dumps(names, ensure_ascii=False))
    _write(server / "environment.sh", scripts.ENVIRONMENT.replace("@OWN@", scripts.SERVER_OWN.rstrip()), **own)
    _write(server / "flower-config.toml", scripts.CONNECTION)
    for name, text in {
        "start-superlink.sh": scripts.START_LINK, "register-nodes.sh": scripts.REGISTER, "run.sh": scripts.RUN,
        "flwr.sh": scripts.FLWR, "tacit.sh": scripts.TACIT,
    }.items():  # fmt: skip
        _write(server / name, text)
    _write(server / "nginx.conf", scripts.PROXY, CALLS="|".join(scripts.CALLS), **own)
    unit = {"ABOUT": "SuperLink of a tacit federation", "PLACE": "server", "SCRIPT": "start-superlink.sh"}
    _write(server / "tacit-superlink.service", scripts.UNIT.replace("@OWN@\n", ""), **unit)


def _node(part: Path, number: int, asked: Federation, secure: bool) -> None:
    name = f"node-{number}"
    node = part / "nodes" / name
    private_folder(node / "state")  # there before a unit confines what may be written to it
    key = make_node_key(node, "node.key")
    public = public_of(key).read_text("ascii").replace(" node.key", f" {name}")
    _write(public_of(key), public)
    _write(private_folder(part / "server" / "nodes") / f"{name}.pub", public)
    shutil.copyfile(part / "authority" / "ca.crt", node / "ca.crt")
    address = f"[{asked.host}]" if ":" in asked.host else asked.host
    own = {"ADDRESS": f"{address}:{asked.port or PORT}", "PORT": NODE_PORT + number, "NAME": name}
    _write(node / "environment.sh", scripts.ENVIRONMENT.replace("@OWN@", scripts.NODE_OWN.rstrip()), **own)
    _write(node / "start-node.sh", scripts.START_NODE)
    _write(node / "node.toml", scripts.NODE + (scripts.ONLY_SECURE if secure else ""), **own)
    unit = {"ABOUT": f"{name} of a tacit federation", "PLACE": name, "SCRIPT": "start-node.sh", "NAME": name}
    _write(node / f"tacit-{name}.service", scripts.UNIT.replace("@OWN@", scripts.NODE_UNIT_OWN), **unit)


def _told(settings: Settings, items: Interactions) -> dict[str, Any]:
    """The settings as all may know them."""
    words = settings.model_dump()
    if settings.data.partition(":")[0].lower() not in SOURCES:  # a path of this machine
        words["data"] = items.name.partition("/")[0]
    return words


def _names(asked: Federation) -> tuple[str, ...]:
    """What the server's certificate is for; the proxy and Flower's own command use the loopback's."""
    return tuple(dict.fromkeys((asked.host, *LOOPBACK)))


def _link(asked: Federation) -> int:
    return LINK if asked.port != LINK else LINK + 1


def _write(path: Path, text: str, **values: object) -> None:
    """With values for the names in @...@; scripts can be run."""
    for name, value in values.items():
        text = text.replace(f"@{name}@", str(value))
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.write_text(text, "utf-8")
    path.chmod(0o755 if text.startswith("#!") else 0o644)


def _loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _next(folder: Path, asked: Federation) -> str:
    port, last = asked.port or PORT, f"node-{asked.nodes - 1}"
    nodes = "nodes/node-0" if asked.nodes == 1 else f"nodes/node-0 to {last}"
    trial = "\nThe certificate is for this machine only (--host): good for a trial." if _loopback(asked.host) else ""
    return f"""Written; nothing was started. Keys are in here: the folder is yours alone.{trial}

authority/    Keep it offline. Who has ca.key can pretend to be the server.
server/       Copy to /opt/tacit/server on {asked.host}. nginx.conf is for its proxy, which listens on {port} and lets
              nodes through to the SuperLink on 127.0.0.1:{_link(asked)}. Never open that port to others.
{nodes}    Copy each to its own machine, as /opt/tacit/NAME; set data in its node.toml; remove it here.

1. on the server      nginx.conf -> /etc/nginx/conf.d/tacit.conf    sh start-superlink.sh (or the unit)
2. on the server      sh register-nodes.sh
3. on every node      sh start-node.sh (or the unit)
4. on the server      sh run.sh      The result is in state/run; run.sh again goes on after a crash.

docs/deploy.md has all of it, with firewall, backup, rotation, and what to do when something fails.
"""
