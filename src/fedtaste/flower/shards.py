"""Shards, the data of one node: cut a data set, save, load, or convert a node's own file; merge the facts of nodes.

A shard is one safetensors file with the histories (or arrays) of some people. `fedtaste federate` cuts shards out of a
data set and keeps the people's numbers, so that a federation draws exactly what `fedtaste run` draws. Where the data
are really distributed, a node has a file of its own (CSV, Parquet); its items are looked up in the federation's
catalogue, and the shard is kept in the node's store.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from fedtaste.core import Params, People
from fedtaste.data.interactions import Histories, Interactions
from fedtaste.data.sources import load
from fedtaste.data.supervised import Supervised
from fedtaste.engine.checkpoint import load_params, save_params
from fedtaste.errors import DataError, SettingError
from fedtaste.experiment.facts import FactsJson
from fedtaste.experiment.settings import Settings
from fedtaste.flower.messages import single_line
from fedtaste.tasks.base import Facts, Task, TaskData
from fedtaste.tasks.clients import Clients
from fedtaste.tasks.ranking import Ranking, split_for_ranking
from fedtaste.tasks.ratings import Ratings, split_for_ratings
from fedtaste.text import count

if TYPE_CHECKING:
    from fedtaste.experiment.folder import Data  # imports scipy, which a node does not need

FORMAT = "fedtaste-shard-1"
CUT_SETTINGS = ("task", "protocol", "split", "seed")  # a shard is valid for one value of each
ARRAYS = ("features", "targets", "test_features", "test_targets")
HISTORY_ARRAYS = ("starts", "items", "values")


@dataclass(frozen=True, eq=False)
class Shard:
    """Some people of a data set."""

    data: TaskData | Supervised
    own: People  # the people's numbers in the whole data set
    names: tuple[str, ...]  # of these people, for `person_hashes`
    catalogue: str
    cut_settings: dict[str, object]
    numbered: bool  # by a whole data set; otherwise by the node that holds the shard

    def task(self, settings: Settings, scale: tuple[float, float] | None = None) -> Task:
        """The task on this shard; `scale` is the rating scale of the whole federation, where it is known."""
        for name, value in self.cut_settings.items():
            if name != "task" and getattr(settings, name) != value:
                raise SettingError(
                    f"This node's data were cut with {name}={value}; the federation uses "
                    f"{name}={getattr(settings, name)}. Cut them again, or start another run."
                )
        if isinstance(self.data, Supervised):
            return Clients(self.data, seed=settings.seed)
        if self.data.kind == "ratings":
            data = self.data if scale is None else replace(self.data, scale=scale)
            return Ratings(data, new_people=settings.new_share, seed=settings.seed)
        return Ranking(self.data, protocol_name=settings.protocol, new_people=settings.new_share, seed=settings.seed)

    def person_hashes(self, run: int) -> People:
        """A hash of every person's name, keyed by the run: the server sees if two nodes have the same person, and
        cannot link two runs. Whoever can guess a name can test the guess."""
        key = run.to_bytes(8, "big")
        digests = [hashlib.blake2b(name.encode(), key=key, digest_size=8).digest() for name in self.names]
        return np.array([int.from_bytes(digest, "big") >> 1 for digest in digests], np.int64)

    def save(self, path: Path) -> None:
        """Write the shard, readable by its owner only."""
        tensors: Params = {"own": torch.from_numpy(self.own)}
        about: dict[str, object] = {"format": FORMAT, "names": self.names, "catalogue": self.catalogue}
        about |= {"cut_by": self.cut_settings, "numbered": self.numbered}
        data = self.data
        if isinstance(data, Supervised):
            clients = len(data.targets)
            about["supervised"] = {"name": data.name, "task": data.task, "classes": data.classes, "clients": clients}
            for name in ARRAYS:
                for client, array in enumerate(getattr(data, name)):
                    tensors[f"{name}.{client}"] = torch.from_numpy(np.ascontiguousarray(array))
        else:
            parts = asdict(replace(data, histories={}, groups=None))  # groups are labels of everybody
            about["parts"] = {name: value for name, value in parts.items() if name not in ("histories", "groups")}
            for name, histories in data.histories.items():
                for array in HISTORY_ARRAYS:
                    tensors[f"{name}.{array}"] = torch.from_numpy(np.ascontiguousarray(getattr(histories, array)))
        save_params(path, tensors, about)
        path.chmod(0o600)


def load_shard(path: Path) -> Shard:
    """Read a shard that `Shard.save` wrote."""
    tensors, about = load_params(path)
    try:
        if about["format"] != FORMAT:
            raise ValueError(f"its format is {about['format']!r}")
        data: TaskData | Supervised
        if "supervised" in about:
            facts = about["supervised"]
            a, b, c, d = (tuple(tensors[f"{name}.{n}"].numpy() for n in range(facts["clients"])) for name in ARRAYS)
            data = Supervised(facts["name"], facts["task"], a, b, c, d, classes=facts["classes"])
        else:
            facts, names = about["parts"], sorted({name.rsplit(".", 1)[0] for name in tensors} - {"own"})
            histories = {n: Histories(*(tensors[f"{n}.{array}"].numpy() for array in HISTORY_ARRAYS)) for n in names}
            facts |= {"scale": tuple(facts["scale"]), "notes": tuple(facts["notes"])}
            facts |= {"genres": tuple(facts.get("genres", ()))}
            data = TaskData(**facts, histories=histories)
        own, people = tensors["own"].numpy(), tuple(about["names"])
        return Shard(data, own, people, about["catalogue"], about["cut_by"], about["numbered"])
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise DataError(f"{path} is not a shard of this fedtaste ({error}). Cut the data again.") from error


def catalogue_hash(items: Iterable[str]) -> str:
    """A hash of the item names, in order."""
    return hashlib.sha256(json.dumps(list(items)).encode()).hexdigest()[:32]


def whole_shard(data: Data, settings: Settings, numbered: bool = True) -> Shard:
    """Everybody of a data set as one shard."""
    cut_settings = {name: getattr(settings, name) for name in CUT_SETTINGS}
    if isinstance(data, Supervised):
        names = data.clients or tuple(f"{data.name}/{client}" for client in range(len(data.targets)))
        return Shard(data, np.arange(len(names)), names, catalogue_hash(()), cut_settings, numbered)
    if settings.task == "ratings":
        parts = split_for_ratings(data, settings.seed)
    else:
        parts = split_for_ranking(data, settings.protocol, settings.split, settings.seed)
    table = data.table
    own = np.arange(len(table.people))
    return Shard(parts, own, table.people, catalogue_hash(table.items), cut_settings, numbered)


def cut_shards(data: Data, settings: Settings, nodes: int) -> list[Shard]:
    """Deal the people of a data set out to nodes, in order and as evenly as possible."""
    everybody = whole_shard(data, settings)
    people = len(everybody.own)
    if not 1 <= nodes <= people:
        raise SettingError(
            f"--nodes must be 1 to {people:,} for {data.name}, which has {count(people, 'person', 'people')}, "
            f"got {nodes}."
        )
    shards = []
    for own in np.array_split(everybody.own, nodes):
        names = tuple(everybody.names[person] for person in own)
        shards.append(replace(everybody, data=_restrict(everybody.data, own), own=own, names=names))
    return shards


def _restrict(data: TaskData | Supervised, own: People) -> TaskData | Supervised:
    """The same data set in which everybody else has nothing."""
    if isinstance(data, TaskData):
        return data.restricted_to(own)
    mine = set(own.tolist())
    a, b, c, d = (tuple(x if n in mine else x[:0] for n, x in enumerate(getattr(data, name))) for name in ARRAYS)
    return Supervised(data.name, data.task, a, b, c, d, classes=data.classes)


def shard_from_file(path: Path, settings: Settings, items: tuple[str, ...]) -> Shard:
    """A node's own file as a shard: people numbered by the node, items numbered by the federation's catalogue."""
    data = load(str(path), seed=settings.seed)
    if not isinstance(data, Interactions):
        raise DataError(f"{path} is not one table of interactions. Give this node a CSV or Parquet file, or a shard.")
    numbers = {name: number for number, name in enumerate(items)}
    unknown = [name for name in data.items if name not in numbers]
    if unknown:
        shown = ", ".join(f'"{name}"' for name in unknown[:3]) + ", ..." * (len(unknown) > 3)
        raise DataError(
            f"{count(len(unknown), 'item')} of this node's {path.name} ({shown}) are not in the federation's catalogue "
            f"of {len(items):,}. Leave them out of the file, or ask the server's operator to extend the catalogue."
        )
    number = np.array([numbers[name] for name in data.items], np.int32)
    data = replace(data, item=number[data.item], items=items, titles=items, genres=())
    return whole_shard(data, settings, numbered=False)


def parse_facts(values: Mapping[str, object]) -> Facts:
    """The facts of a task in a message."""
    try:
        return FactsJson.model_validate_json(json.dumps(dict(values))).facts()
    except (TypeError, ValueError) as error:
        reason = single_line(str(error).splitlines()[0])
        raise SettingError(f"The facts of the task are not valid for this fedtaste ({reason}).") from error


def merge_facts(facts: list[Facts]) -> Facts:
    """The facts of a federation's task from those of its nodes; DataError if they do not agree."""
    first = facts[0]
    for other in facts[1:]:
        for name in ("kind", "items", "width", "shape", "classes"):
            if getattr(other, name) != getattr(first, name):
                raise DataError(
                    f"All nodes must hold data of one kind, but {name} is {getattr(first, name)} on one node and "
                    f"{getattr(other, name)} on another."
                )
    return replace(
        first,
        timed=all(f.timed for f in facts),
        scale=(min(f.scale[0] for f in facts), max(f.scale[1] for f in facts)),
        people=sum(f.people for f in facts),
        feature_count=0,
        features=None,
    )
