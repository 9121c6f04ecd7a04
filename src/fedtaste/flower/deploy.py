"""Write the files of a federation: its Flower app, and a folder with everything that several machines need.

`write_app` writes the app, also for `fedtaste federate` on one machine. `write_deployment` writes the folder and starts
nothing:
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

import json
import os
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict

import numpy as np

from fedtaste import __version__
from fedtaste.data.columns import read_table
from fedtaste.data.formats import stem
from fedtaste.data.interactions import Interactions
from fedtaste.data.read_options import DEFAULTS, ReadOptions
from fedtaste.data.sources import SOURCES
from fedtaste.data.supervised import Supervised
from fedtaste.data.vocabulary import labels, vocabulary
from fedtaste.errors import RunError, SettingError
from fedtaste.experiment.folder import Data
from fedtaste.experiment.plan import plan
from fedtaste.experiment.settings import FederationSettings, ReadSettings, Settings
from fedtaste.flower import certificates
from fedtaste.flower.certificates import private_folder
from fedtaste.flower.processes import Config, to_toml
from fedtaste.flower.validation import refuse_unfit
from fedtaste.tasks.base import Facts
from fedtaste.wire.parse import parse

TEMPLATES = Path(__file__).parent / "templates"
PROXY_PORT = 8443  # where nodes connect
LINK_PORT = 9092  # of the SuperLink, on the server's loopback
NODE_PORT = 9100  # of the first node's own processes, on its loopback
TRIAL_PEOPLE = 10_000  # to check the settings; the real number is not known yet
ONLY_SECURE = "secure = true                              # take part in secure sums only, whatever the server asks"


def write_app(folder: Path, config: Config) -> Path:
    """Write the Flower app of a federation; `config` is its run-config unless the run overrides it."""
    values = {"VERSION": __version__, "CONFIG": to_toml(config).rstrip()}
    for template in sorted((TEMPLATES / "app").iterdir()):
        write_text(folder / template.name.removesuffix(".txt"), render(f"app/{template.name}", values))
    return folder


def render(template: str, values: Mapping[str, object]) -> str:
    """The text of a file of templates/ with these values for the names between @ signs."""
    text = (TEMPLATES / template).read_text("utf-8")
    for name, value in values.items():
        text = text.replace(f"@{name}@", str(value))
    return text


def write_text(path: Path, text: str) -> None:
    """Write a public file; one that begins with #! is executable."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.write_text(text, "utf-8")
    path.chmod(0o755 if text.startswith("#!") else 0o644)


class DeploymentReport(TypedDict):
    """What `fedtaste federate --write-app --json` prints."""

    folder: str
    files: list[str]
    next: str  # the steps to take, as in README.txt


def read_catalogue(path: Path, options: ReadOptions = DEFAULTS) -> Interactions:
    """The items of a file with a column item and optionally title and genres, without any interactions."""
    table = read_table(path, ("item",), ("title", "genres"), options)
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
    try:
        _check(folder, settings, items, options)
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{folder.name}.", suffix=".part", dir=folder.parent) as part:
            deployment = _Deployment(Path(part), settings, options)  # readable by its owner only
            deployment.write_authority()
            deployment.write_server(items)
            for number in range(options.nodes):
                deployment.write_node(number)
            steps = deployment.next_steps()
            write_text(Path(part) / "README.txt", steps)
            os.replace(part, folder)
    except OSError as error:
        raise RunError(f"{folder} cannot be written ({error.strerror}). Choose another folder.") from error
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
    if (folder.exists() or folder.is_symlink()) and (not folder.is_dir() or any(folder.iterdir())):
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
        return tuple(dict.fromkeys((self.options.host, *certificates.LOOPBACK)))

    @property
    def addresses(self) -> dict[str, object]:
        """The server's host, the port of its proxy and that of its SuperLink, as templates name them."""
        link_port = LINK_PORT if self.options.port != LINK_PORT else LINK_PORT + 1
        return {"HOST": self.options.host, "PORT": self.options.port or PROXY_PORT, "LINK_PORT": link_port}

    def write_authority(self) -> None:
        authority = self.folder / "authority"
        certificates.make_authority(authority)
        certificates.issue_server(authority, self.folder / "server", self.server_names)
        names = {"NAMES": " ".join(self.server_names)}
        write_text(authority / "renew-server.sh", render("authority/renew-server.sh", names))

    def write_server(self, items: Interactions) -> None:
        server = self.folder / "server"
        private_folder(server / "state")
        config = self.options.model_dump(include={"nodes", "deadline", "least"})
        config |= {"folder": "", "settings": json.dumps(self._public_settings(items)), "catalogue": ""}
        config |= {"method": self.settings.method} if ":" in self.settings.method else {}
        write_app(server / "app", config)
        catalogue = {"names": items.items, "titles": items.titles, "genres": items.genres}
        write_text(server / "catalogue.json", json.dumps(catalogue, ensure_ascii=False))
        for template in (TEMPLATES / "server").iterdir():
            write_text(server / template.name, render(f"server/{template.name}", self.addresses))
        self._write_environment(server, "common/environment-of-server.txt", self.addresses)
        unit = {"ABOUT": "SuperLink of a fedtaste federation", "PLACE": "server", "SCRIPT": "start-superlink.sh"}
        write_text(server / "fedtaste-superlink.service", render("common/unit.service", unit | {"OWN": ""}))

    def write_node(self, number: int) -> None:
        name = f"node-{number}"
        node = self.folder / "nodes" / name
        private_folder(node / "state")  # must exist before a unit restricts writing to it
        public_key = certificates.public_key_path(certificates.make_node_key(node, "node.key"))
        public = public_key.read_text("ascii").replace(" node.key", f" {name}")
        write_text(public_key, public)
        write_text(private_folder(self.folder / "server" / "nodes") / f"{name}.pub", public)
        shutil.copyfile(self.folder / "authority" / "ca.crt", node / "ca.crt")
        host = f"[{self.options.host}]" if ":" in self.options.host else self.options.host
        own = {"ADDRESS": f"{host}:{self.addresses['PORT']}", "PORT": NODE_PORT + number}
        self._write_environment(node, "common/environment-of-node.txt", own)
        write_text(node / "start-node.sh", render("node/start-node.sh", {}))
        secure = ONLY_SECURE if "secure" in dict(parse(self.settings.wire)) else ""
        write_text(node / "node.toml", render("node/node.toml", {"NAME": name, "SECURE": self._own_method() + secure}))
        unit = {"ABOUT": f"{name} of a fedtaste federation", "PLACE": name, "SCRIPT": "start-node.sh"}
        unit |= {"OWN": render("common/unit-of-node.txt", {"NAME": name})}
        write_text(node / f"fedtaste-{name}.service", render("common/unit.service", unit))

    def _write_environment(self, folder: Path, template: str, values: Mapping[str, object]) -> None:
        own = render(template, values).rstrip()
        write_text(folder / "environment.sh", render("common/environment.sh", {"OWN": own}))

    def _own_method(self) -> str:
        """The line of node.toml by which a node's operator allows a method that is not in fedtaste."""
        method = self.settings.method
        return f'method = "{method}"  # imported by this node: read it first\n' if ":" in method else ""

    def _public_settings(self, items: Interactions) -> dict[str, object]:
        """The settings without a path of this machine."""
        values: dict[str, object] = self.settings.model_dump(exclude=set(ReadSettings.model_fields))
        if self.settings.data.partition(":")[0].lower() not in SOURCES:
            values["data"] = items.name.partition("/")[0]
        return values

    def next_steps(self) -> str:
        nodes = "nodes/node-0" + (f" to node-{self.options.nodes - 1}" if self.options.nodes > 1 else "")
        trial = ""
        if self.options.host in certificates.LOOPBACK_HOSTS:
            trial = "\nThe certificate is valid for this machine only (--host): good for a trial."
        return render("README.txt", self.addresses | {"NODES": nodes, "TRIAL": trial})
