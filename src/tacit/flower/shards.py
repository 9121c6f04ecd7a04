"""What a node holds: the data of its own people, and nobody else's.

A shard is one safetensors file: the histories (or the arrays) of some people, cut out of a whole data set by
`tacit federate`, with the people's numbers in the whole, so that a federation is to the last draw what `tacit run` is.
Where the data really are somewhere else, a node has a file of its own (CSV, Parquet, a folder with a split): its items
are looked up in the federation's catalogue, and it becomes a shard in the node's store.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..client_tasks import supervised
from ..core import Params
from ..data.importing import BroughtSplit
from ..data.interactions import Histories, Interactions, count
from ..data.sources import load
from ..data.supervised import Supervised
from ..engine.checkpoint import load_params, save_params
from ..errors import DataError, SettingError
from ..experiment import Data, make_task
from ..rating_tasks import ratings_of, ratings_parts
from ..settings import Settings
from ..tasks import Facts, Parts, People, Task, ranking_of, ranking_parts

CUT_BY = ("task", "protocol", "split", "seed")  # settings that a shard was cut under
FIELDS = ("features", "targets", "test_features", "test_targets")


@dataclass(frozen=True, eq=False)
class Shard:
    """Some people of a data set. `own`: their numbers in it."""

    held: Parts | Supervised
    own: People
    names: tuple[str, ...]  # of these people, for their marks
    catalogue: str
    cut_by: dict[str, Any]
    numbered: bool  # by a whole data set; otherwise by the node that holds them

    def task(self, settings: Settings, scale: tuple[float, float] | None = None) -> Task:
        """What these people learn, and are judged by."""
        wrong = [n for n, v in self.cut_by.items() if getattr(settings, n) != v and n != "task"]
        if wrong:
            raise SettingError(
                f"This node's data were cut with {wrong[0]}={self.cut_by[wrong[0]]}; the federation asks for "
                f"{wrong[0]}={getattr(settings, wrong[0])}. Cut them again, or begin another run."
            )
        if isinstance(self.held, Supervised):
            return supervised(self.held, seed=settings.seed)
        if self.held.kind == "ratings":
            held = self.held if scale is None else replace(self.held, scale=scale)  # everybody's, where it is known
            return ratings_of(held, new_people=settings.new_share, seed=settings.seed)
        return ranking_of(self.held, protocol_name=settings.protocol, new_people=settings.new_share, seed=settings.seed)

    def marks(self, run: int) -> People:
        """A number for every person's name, of this run only: who claims the same person can be told, and two runs
        cannot be joined by them. A name that can be guessed can be checked against its mark."""
        key = run.to_bytes(8, "big")
        digests = [hashlib.blake2b(name.encode(), key=key, digest_size=8).digest() for name in self.names]
        return np.array([int.from_bytes(digest, "big") >> 1 for digest in digests], np.int64)

    def save(self, path: Path) -> None:
        tensors: Params = {"own": torch.from_numpy(self.own)}
        about: dict[str, Any] = {
            "format": "tacit-shard-1", "names": self.names, "catalogue": self.catalogue, "cut_by": self.cut_by,
            "numbered": self.numbered,
        }  # fmt: skip
        if isinstance(self.held, Supervised):
            about["supervised"] = {"name": self.held.name, "task": self.held.task, "classes": self.held.classes}
            about["supervised"]["clients"] = len(self.held.targets)
            for field in FIELDS:
                for place, array in enumerate(getattr(self.held, field)):
                    tensors[f"{field}.{place}"] = torch.from_numpy(np.ascontiguousarray(array))
        else:
            kept = {n: v for n, v in asdict(replace(self.held, histories={})).items() if n != "histories"}
            about["parts"] = kept
            for name, held in self.held.histories.items():
                for part in ("starts", "items", "values"):
                    tensors[f"{name}.{part}"] = torch.from_numpy(getattr(held, part))
        save_params(path, tensors, about)
        path.chmod(0o600)


def load_shard(path: Path) -> Shard:
    tensors, about = load_params(path)
    try:
        if about["format"] != "tacit-shard-1":
            raise ValueError(f"its format is {about['format']!r}")
        held: Parts | Supervised
        if "supervised" in about:
            words = about["supervised"]
            a, b, c, d = (tuple(tensors[f"{f}.{n}"].numpy() for n in range(words["clients"])) for f in FIELDS)
            held = Supervised(words["name"], words["task"], a, b, c, d, classes=words["classes"])
        else:
            words = about["parts"]
            names = sorted({name.rsplit(".", 1)[0] for name in tensors} - {"own"})
            found = {n: Histories(*(tensors[f"{n}.{p}"].numpy() for p in ("starts", "items", "values"))) for n in names}
            words |= {"scale": tuple(words["scale"]), "notes": tuple(words["notes"])}
            held = Parts(**words, histories=found)
        return Shard(
            held, tensors["own"].numpy(), tuple(about["names"]), about["catalogue"], about["cut_by"], about["numbered"]
        )
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise DataError(f"{path} is not a shard of this tacit ({error}). Cut the data again.") from error


def catalogue_hash(items: Iterable[str]) -> str:
    return hashlib.sha256(json.dumps(list(items)).encode()).hexdigest()[:32]


def items_of(data: Data) -> tuple[str, ...]:
    if isinstance(data, Supervised):
        return ()
    return (data.train if isinstance(data, BroughtSplit) else data).items


def whole(data: Data, settings: Settings, numbered: bool = True) -> Shard:
    """Everybody of a data set, as one shard."""
    cut_by = {name: getattr(settings, name) for name in CUT_BY}
    if isinstance(data, Supervised):
        names = data.clients or tuple(f"{data.name}/{n}" for n in range(len(data.targets)))
        return Shard(data, np.arange(len(names)), names, catalogue_hash(()), cut_by, numbered)
    task = settings.task or "ranking"
    held = (
        ratings_parts(data, settings.seed)
        if task == "ratings"
        else ranking_parts(data, settings.protocol, settings.split, settings.seed)
    )
    people = (data.train if isinstance(data, BroughtSplit) else data).people
    return Shard(held, np.arange(len(people)), people, catalogue_hash(items_of(data)), cut_by, numbered)


def cut(data: Data, settings: Settings, nodes: int) -> list[Shard]:
    """The people of a data set dealt out to so many nodes, in order, as evenly as can be."""
    make_task(settings, data)  # refuses what does not go together
    everybody = whole(data, settings)
    if not 1 <= nodes <= len(everybody.own):
        raise SettingError(
            f"--nodes {nodes} was asked for; {data.name} has {count(len(everybody.own), 'person', 'people')}, so 1 to "
            f"{len(everybody.own):,} nodes can hold some."
        )
    parts = []
    for own in np.array_split(everybody.own, nodes):
        names = tuple(everybody.names[person] for person in own)
        parts.append(replace(everybody, held=_only(everybody.held, own), own=own, names=names))
    return parts


def _only(held: Parts | Supervised, own: People) -> Parts | Supervised:
    if isinstance(held, Parts):
        return held.of(own)
    mine = set(own.tolist())
    a, b, c, d = (tuple(x if n in mine else x[:0] for n, x in enumerate(getattr(held, f))) for f in FIELDS)
    return Supervised(held.name, held.task, a, b, c, d, classes=held.classes)


def bring(path: Path, settings: Settings, items: tuple[str, ...]) -> Shard:
    """A node's own file as a shard: its people, numbered by the node, and items by the federation's catalogue."""
    data = load(str(path), seed=settings.seed)
    if not isinstance(data, Interactions):
        raise DataError(f"{path} is not one table of interactions. Give this node a CSV or Parquet file, or a shard.")
    place = {name: number for number, name in enumerate(items)}
    strange = [name for name in data.items if name not in place]
    if strange:
        shown = ", ".join(f'"{name}"' for name in strange[:3])
        raise DataError(
            f"{count(len(strange), 'item')} of this node's {path.name} ({shown}{', ...' * (len(strange) > 3)}) are not "
            f"in the federation's catalogue of {len(items):,}. Leave them out of the file, or have the catalogue "
            "extended where the federation is run."
        )
    number = np.array([place[name] for name in data.items], np.int32)
    return whole(replace(data, item=number[data.item], items=items, titles=items, genres=()), settings, numbered=False)


def merged(facts: list[Facts]) -> Facts:
    """What a federation knows of its task, from what its nodes know of theirs; refused where they do not agree."""
    first = facts[0]
    for other in facts[1:]:
        for name in ("kind", "items", "width", "shape", "classes"):
            if getattr(other, name) != getattr(first, name):
                raise DataError(
                    f"Nodes do not agree on {name}: {getattr(first, name)} and {getattr(other, name)} were got. "
                    "They must hold data of one kind."
                )
    low, high = min(f.scale[0] for f in facts), max(f.scale[1] for f in facts)
    return replace(
        first, timed=all(f.timed for f in facts), scale=(low, high), people=sum(f.people for f in facts),
        feature_count=0, features=None,
    )  # fmt: skip
