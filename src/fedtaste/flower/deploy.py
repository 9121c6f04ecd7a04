"""Write a folder with everything that the machines of a federation need; nothing is started.

    authority/           signs the server's certificate; keep it offline         renew-server.sh
    server/              for the server: the Flower app, the catalogue, certificate and key, scripts, settings of nginx,
                         a systemd unit, the nodes' public keys
    nodes/node-0/ ...    one for every machine with people: its key, the authority's certificate, settings, script, unit
    README.txt           the next steps (docs/deploy.md explains them)

The app is sent to every node, so it contains no secret: the server draws its key of noise when the run begins and keeps
it in the run folder, and every node draws one of its own. The folder names no path of this machine and no person: only
the items of the data are used. Scripts are POSIX sh (templates/), find everything beside themselves and write into
state/ there. Units and nginx.conf name /opt/fedtaste, as docs/deploy.md does.
"""

from __future__ import annotations

import ipaddress
import json
import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict

import numpy as np

from fedtaste.data.columns import read_table
from fedtaste.data.interactions import Interactions
from fedtaste.data.sources import SOURCES
from fedtaste.data.supervised import Supervised
from fedtaste.data.user_files import labels, stem, vocabulary
from fedtaste.errors import RunError, SettingError
from fedtaste.experiment.plan import plan
from fedtaste.experiment.settings import FederationSettings, Settings
from fedtaste.experiment.train import Data
from fedtaste.flower.app_files import write_app, write_template, write_text
from fedtaste.flower.certificates import (
    LOOPBACK,
    issue_server,
    make_authority,
    make_node_key,
    private_folder,
    public_key_path,
)
from fedtaste.flower.validation import refuse_unfit
from fedtaste.tasks.base import Facts
from fedtaste.wire.parse import parse

PROXY_PORT = 8443  # where nodes connect
LINK_PORT = 9092  # of the SuperLink, on the server's loopback
NODE_PORT = 9100  # of the first node's own processes, on its loopback
TRIAL_PEOPLE = 10_000  # to check the settings; the real number is not known yet
SERVER_SCRIPTS = ("start-superlink.sh", "register-nodes.sh", "run.sh", "flwr.sh", "fedtaste.sh", "flower-config.toml")
SERVER_ENVIRONMENT = "link_port={link}                         # of the SuperLink, which listens on this machine only"
NODE_ENVIRONMENT = """server={address}    # where nodes connect to the server's proxy
port={port}                              # between this node's own processes, on this machine only"""
NODE_UNIT = """StateDirectory=fedtaste/{name}
StateDirectoryMode=0700
# Code that the server sends runs here. Insert the server's address to allow connections to it only:
#IPAddressDeny=any
#IPAddressAllow=localhost 203.0.113.5
"""
ONLY_SECURE = "secure = true                              # take part in secure sums only, whatever the server asks"


class DeploymentReport(TypedDict):
    """What `fedtaste federate --write-app --json` prints."""

    folder: str
    files: list[str]
    next: str  # the steps to take, as in README.txt


def read_catalogue(path: Path) -> Interactions:
    """The items of a file with a column item and optionally title and genres, without any interactions."""
    table = read_table(path, ("item",), ("title", "genres"))
    items = vocabulary([table.frame["item"]])
    titles, genres = (labels([table], role, items) for role in ("title", "genres"))
    nobody = np.zeros(0, np.int32)
    return Interactions(stem(path), nobody, nobody, (), tuple(items.to_list()), titles=titles, genres=genres)


def write_deployment(folder: Path, settings: Settings, data: Data, options: FederationSettings) -> DeploymentReport:
    """Write the folder. Only the catalogue of items of `data` is used."""
    if isinstance(data, Supervised):
        raise SettingError(
            f"{data.name} has no items, and nodes bring tables of people and items. Use `fedtaste federate` without "
            "--write-app for it."
        )
    items = data.table
    _check(folder, settings, items, options)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        part = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", suffix=".part", dir=folder.parent))  # mode 0700
    except OSError as error:
        raise RunError(f"{folder} cannot be created ({error.strerror}). Choose another folder.") from error
    deployment = _Deployment(part, settings, options)
    try:
        deployment.write_authority()
        deployment.write_server(items)
        for number in range(options.nodes):
            deployment.write_node(number)
        steps = deployment.next_steps()
        write_text(part / "README.txt", steps)
        os.replace(part, folder)
    except OSError as error:
        raise RunError(f"{folder} cannot be written ({error.strerror}). Choose another folder.") from error
    finally:
        shutil.rmtree(part, ignore_errors=True)
    files = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
    return {"folder": str(folder), "files": files, "next": steps}


def _check(folder: Path, settings: Settings, items: Interactions, options: FederationSettings) -> None:
    """Refuse everything that can be wrong before anything is written."""
    refuse_unfit(settings, options.nodes)
    items.require(people=0)
    facts = Facts(settings.task or "ranking", len(items.items), True, (1.0, 5.0), people=TRIAL_PEOPLE)
    plan(settings, facts, elsewhere=True)
    if options.host in ("0.0.0.0", "::") or "*" in options.host:
        raise SettingError(
            "--host must be the name or address that nodes reach the server by, such as superlink.example.org, got "
            f"{options.host}."
        )
    try:
        occupied = (folder.exists() or folder.is_symlink()) and (not folder.is_dir() or any(folder.iterdir()))
    except OSError as error:
        raise RunError(f"{folder} cannot be read ({error.strerror}). Choose another folder.") from error
    if occupied:
        raise RunError(
            f"{folder} is not an empty folder, and may contain keys that are in use. Give a new one to --write-app."
        )


@dataclass(frozen=True)
class _Deployment:
    """The folder that is being written."""

    folder: Path
    settings: Settings
    options: FederationSettings

    @property
    def server_names(self) -> tuple[str, ...]:
        """The names of the server's certificate; the proxy and Flower's own command use those of the loopback."""
        return tuple(dict.fromkeys((self.options.host, *LOOPBACK)))

    @property
    def proxy_port(self) -> int:
        return self.options.port or PROXY_PORT

    @property
    def link_port(self) -> int:
        return LINK_PORT if self.options.port != LINK_PORT else LINK_PORT + 1

    def write_authority(self) -> None:
        authority = self.folder / "authority"
        make_authority(authority)
        issue_server(authority, self.folder / "server", self.server_names)
        names = {"NAMES": " ".join(self.server_names)}
        write_template("authority/renew-server.sh", authority / "renew-server.sh", names)

    def write_server(self, items: Interactions) -> None:
        server, options = self.folder / "server", self.options
        private_folder(server / "state")
        config = options.model_dump(include={"nodes", "deadline", "least"})
        config |= {"folder": "", "settings": json.dumps(self._public_settings(items)), "catalogue": ""}
        write_app(server / "app", config)
        catalogue = {"names": items.items, "titles": items.titles, "genres": items.genres}
        write_text(server / "catalogue.json", json.dumps(catalogue, ensure_ascii=False))
        for name in SERVER_SCRIPTS:
            write_template(f"server/{name}", server / name, {})
        own = SERVER_ENVIRONMENT.format(link=self.link_port)
        write_template("common/environment.sh", server / "environment.sh", {"OWN": own})
        proxy = {"LINK_PORT": self.link_port, "PORT": self.proxy_port, "HOST": options.host}
        write_template("server/nginx.conf", server / "nginx.conf", proxy)
        unit = {"ABOUT": "SuperLink of a fedtaste federation", "PLACE": "server", "SCRIPT": "start-superlink.sh"}
        write_template("common/unit.service", server / "fedtaste-superlink.service", unit | {"OWN": ""})

    def write_node(self, number: int) -> None:
        name = f"node-{number}"
        node = self.folder / "nodes" / name
        private_folder(node / "state")  # must exist before a unit restricts writing to it
        key = make_node_key(node, "node.key")
        public = public_key_path(key).read_text("ascii").replace(" node.key", f" {name}")
        write_text(public_key_path(key), public)
        write_text(private_folder(self.folder / "server" / "nodes") / f"{name}.pub", public)
        shutil.copyfile(self.folder / "authority" / "ca.crt", node / "ca.crt")
        host = f"[{self.options.host}]" if ":" in self.options.host else self.options.host
        own = NODE_ENVIRONMENT.format(address=f"{host}:{self.proxy_port}", port=NODE_PORT + number)
        write_template("common/environment.sh", node / "environment.sh", {"OWN": own})
        write_template("node/start-node.sh", node / "start-node.sh", {})
        secure = ONLY_SECURE if "secure" in dict(parse(self.settings.wire)) else ""
        write_template("node/node.toml", node / "node.toml", {"NAME": name, "SECURE": secure})
        unit = {"ABOUT": f"{name} of a fedtaste federation", "PLACE": name, "SCRIPT": "start-node.sh"}
        unit |= {"OWN": NODE_UNIT.format(name=name)}
        write_template("common/unit.service", node / f"fedtaste-{name}.service", unit)

    def _public_settings(self, items: Interactions) -> dict[str, object]:
        """The settings without a path of this machine."""
        values: dict[str, object] = self.settings.model_dump()
        if self.settings.data.partition(":")[0].lower() not in SOURCES:
            values["data"] = items.name.partition("/")[0]
        return values

    def next_steps(self) -> str:
        host, last = self.options.host, f"node-{self.options.nodes - 1}"
        nodes = "nodes/node-0" if self.options.nodes == 1 else f"nodes/node-0 to {last}"
        trial = (
            "\nThe certificate is valid for this machine only (--host): good for a trial." if _is_loopback(host) else ""
        )
        return f"""The folder is written; nothing was started. It contains keys, so only you can read it.{trial}

authority/    Keep it offline. Whoever has ca.key can pretend to be the server.
server/       Copy to /opt/fedtaste/server on {host}. nginx.conf is for its proxy, which listens on {self.proxy_port} and
              passes nodes on to the SuperLink on 127.0.0.1:{self.link_port}. Never open that port to other machines.
{nodes}    Copy each to its own machine, as /opt/fedtaste/NAME; set data in its node.toml; remove it here.

1. on the server      nginx.conf -> /etc/nginx/conf.d/fedtaste.conf    sh start-superlink.sh (or the unit)
2. on the server      sh register-nodes.sh
3. on every node      sh start-node.sh (or the unit)
4. on the server      sh run.sh      The result is in state/run. After a crash, run.sh continues the run.

docs/deploy.md has the details: firewall, backup, rotation, troubleshooting.
"""


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
