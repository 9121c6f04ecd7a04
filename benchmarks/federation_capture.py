"""Record all bytes of a run without TLS and search them for data that must not be sent (for benchmarks/federation.py).

People, ratings and items are generated with values that cannot occur by chance. Every byte between nodes and the
SuperLink is recorded, by connection and direction. The search looks for people's names, the ratings as text and as
numbers of 4 and 8 bytes, each person's items as numbers (in order, and sorted) and as names, and every two neighbouring
numbers (8 bytes, at any offset) of the nodes' stores after any round. As a control, data that are sent must be found.
"""

from __future__ import annotations

import csv
import json
import random
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from federation_lab import Lab, Proxy, run_lab

from fedtaste.engine.checkpoint import load_params
from fedtaste.experiment.folder import RunFolder
from fedtaste.flower.shards import load_shard

PEOPLE, ITEMS, NODES = 48, 40, 4
RATING, HIGHEST = 3.1415927, 5.4321
TRIVIAL = (0.0, 1.0)


def world(path: Path) -> tuple[list[str], list[str]]:
    """Write a CSV of people with unusual names and one rating that occurs once; return people and items. Only the last
    person has the items with low numbers, because nodes send numbers of people, which must not be taken for items."""
    draw = random.Random(7)
    people = [f"Zebedee-Quillfeather-{number:03d}" for number in range(PEOPLE)]
    common = [f"a-common-item-{number:03d}" for number in range(PEOPLE + 2)]
    items = [f"the-unlikely-item-{draw.randrange(10**9):09d}" for _ in range(ITEMS)]
    planted = {(5, 0): RATING, (9, 0): HIGHEST}
    with open(path, "w", newline="") as file:
        out = csv.writer(file)
        out.writerow(["user", "item", "rating"])
        for number, name in enumerate(people):
            own = draw.sample(common, len(common)) if number == PEOPLE - 1 else draw.sample(items, 16)
            for place, item in enumerate(own):
                out.writerow([name, item, planted.get((number, place), 1 + draw.randrange(5))])
    return people, items


class Store:
    """Private parameters on the nodes' disks, read after every round that can be observed."""

    def __init__(self, run: Path) -> None:
        self.run, self.read, self.windows = run, set(), [np.zeros(0, np.uint64)]
        self.rows = 0

    def look(self, _: Lab) -> None:
        for path in (self.run / "federation" / "nodes").glob("node-*/store/*/*-*.safetensors"):
            if path in self.read:
                continue
            params, _about = load_params(path)
            self.read.add(path)
            for value in params.values():
                if value.dtype.is_floating_point and value.numel() > 1:
                    flat = value.float().reshape(-1).numpy()
                    pairs = np.stack([flat[:-1], flat[1:]], 1)
                    pairs = pairs[~np.isin(pairs, TRIVIAL).any(1)]
                    self.windows.append(np.ascontiguousarray(pairs).view(np.uint64).reshape(-1))
                    self.rows += len(value)

    def everything(self) -> np.ndarray:
        return np.unique(np.concatenate(self.windows))


def within(stream: bytes, windows: np.ndarray) -> int:
    """How many of these 8-byte words occur in the stream, at any offset."""
    words: set[int] = set()
    for offset in range(8):
        part = np.frombuffer(stream[offset : offset + (len(stream) - offset) // 8 * 8], np.uint64)
        words |= set(part[np.isin(part, windows)].tolist())
    return len(words)


def times(streams: Iterable[bytes], needle: bytes) -> int:
    return sum(stream.count(needle) for stream in streams)


def numbers(value: float) -> list[bytes]:
    """The bytes of a number in all forms in which a message could contain it."""
    forms = [struct.pack(f"{order}{kind}", value) for order in "<>" for kind in "fd"]
    rounded = struct.unpack("<f", struct.pack("<f", value))[0]
    return [*forms, struct.pack("<d", rounded), struct.pack(">d", rounded), f"{value}".encode(), f"{rounded}".encode()]


def forms(items: np.ndarray) -> list[bytes]:
    """The bytes of four items in all forms in which a message could contain them: as integers or as text."""
    out = [np.ascontiguousarray(items, kind).tobytes() for kind in ("<i2", "<i4", "<i8", ">i4", ">i8")]
    return [*out, ", ".join(map(str, items)).encode(), ",".join(map(str, items)).encode()]


def capture(place: Path) -> dict[str, Any]:
    people, items = world(place / "people.csv")
    run = place / "run"
    store = Store(run)
    options = {
        "data": str(place / "people.csv"), "task": "ratings", "method": "ditto", "rounds": 3, "set": {"k": "8"},
        "threads": 1,
    }  # fmt: skip
    with Proxy(keep=True) as proxy:
        run_lab(run, options, NODES, tls=False, proxy=proxy, tick=store.look)
        store.look(None)  # type: ignore[arg-type]
        up, down = ([bytes(getattr(stream, direction)) for stream in proxy.streams] for direction in ("up", "down"))
    streams, secret = up + down, store.everything()
    for direction, parts in (("up", up), ("down", down)):
        for number, part in enumerate(parts):
            (place / f"{number:04d}.{direction}").write_bytes(part)
    folder = RunFolder.open(run)
    shards = [load_shard(path) for path in sorted((run / "federation/nodes").glob("*/shard.safetensors"))]
    everyone = [(shard, person) for shard in shards for person in shard.own]
    found_items, searched, runs = [], 0, 0
    for shard, person in everyone:
        for name, part in shard.data.histories.items():  # type: ignore[union-attr]
            own = part.items[part.starts[person] : part.starts[person + 1]]
            for four in (own[:4], np.sort(own)[:4]):
                if len(four) < 4:
                    continue
                if (np.diff(four) == 1).all():  # consecutive numbers could be the numbers of a node's people
                    runs += 1
                    continue
                searched += 1
                if count := sum(times(streams, needle) for needle in forms(four)):
                    found_items.append({"person": int(person), "part": name, "items": four.tolist(), "times": count})
    items_by_person = order_of(place / "people.csv")
    in_order = [
        json.dumps(a)[:-1].encode() + b'", "' + b.encode()
        for own in items_by_person.values()
        for a, b in zip(own, own[1:])
    ]
    catalogue = json.dumps(folder.read("items.json")["names"]).encode()
    neighbours = [needle for needle in in_order if needle not in catalogue]  # the catalogue is sent to all
    shared = load_params(run / "model.safetensors")[0]["item"].numpy().reshape(-1, 2)
    highest = str(float(np.float32(HIGHEST))).encode()
    marks = np.concatenate([shard.person_hashes(folder.run_id) for shard in shards]).view(np.uint64)
    return {
        "run": "ditto on ratings of 48 made-up people, 4 nodes, 3 rounds; TLS off, so that bytes are what they are",
        "connections": len(proxy.streams),
        "bytes_to_the_superlink": sum(map(len, up)),
        "bytes_from_it": sum(map(len, down)),
        "must_not_be_there": {
            "names of people, looked for": len(people),
            "names of people, found": sum(times(streams, name.encode()) for name in people),
            "a rating of 3.1415927 as text or number, found": sum(times(streams, needle) for needle in numbers(RATING)),
            "lists of four of a person's items as numbers, looked for": searched,
            "lists that could be numbers of people, left out": runs,
            "lists of four of a person's items as numbers, found": found_items,
            "neighbouring items of a person by name, looked for": len(neighbours),
            "neighbouring items of a person by name, found": sum(times(streams, needle) for needle in neighbours),
            "names of items, sent by nodes": sum(times(up, name.encode()) for name in items),
            "private rows of all rounds, looked for": store.rows,
            "pairs of neighbouring private numbers, looked for": len(secret),
            "pairs of neighbouring private numbers, found": sum(within(stream, secret) for stream in streams),
        },
        "must_be_there": {
            "pairs of numbers of the shared table, looked for": len(shared),
            "pairs of numbers of the shared table, found on the way to nodes": max(
                within(stream, np.unique(np.ascontiguousarray(shared).view(np.uint64))) for stream in down
            ),
            "marks of people (keyed hashes), looked for": len(marks),
            "marks of people, found on the way to the server": sum(within(stream, marks) for stream in up),
            "names of items, found on the way to nodes": sum(min(1, times(down, name.encode())) for name in items),
            "names of tensors in uploads": times(up, b"params/item"),
        },
        "known_to_be_sent": {
            "the highest rating of all, as the scale of ratings (5.4321 was one person's)": times(up, highest),
        },
    }


def order_of(path: Path) -> dict[str, list[str]]:
    """Items in the order of the file, by person."""
    out: dict[str, list[str]] = {}
    with open(path, newline="") as file:
        for row in csv.DictReader(file):
            out.setdefault(row["user"], []).append(row["item"])
    return out
