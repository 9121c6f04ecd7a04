"""Describe a data set in a few numbers, for `fedtaste data describe`."""

from __future__ import annotations

import numpy as np

from fedtaste.data.interactions import Interactions, time_span
from fedtaste.data.ragged import count_numbers
from fedtaste.data.supervised import Supervised, shape_text
from fedtaste.data.user_files import UserSplit

FEW = 20  # clients or classes that fit a screen


def facts(data: Interactions | UserSplit | Supervised) -> dict[str, object]:
    """Counts and ranges of a data set, by name."""
    if isinstance(data, Supervised):
        return _client_facts(data)
    table = data.table
    activity = count_numbers(table.person, len(table.people))
    popularity = np.sort(count_numbers(table.item, len(table.items)))[::-1]
    tenth = popularity[: max(1, len(popularity) // 10)].sum() / max(len(table), 1)
    counts: dict[str, object] = {
        "name": data.name, "people": len(table.people), "items": len(table.items), "interactions": len(table),
        "density_percent": round(100 * len(table) / max(len(table.people) * len(table.items), 1), 3),
        "median_per_person": float(np.median(activity)),
        "least_per_person": int(activity.min()), "most_per_person": int(activity.max()),
        "top_tenth_of_items_percent": round(100 * float(tenth), 1),
        "ratings": "none", "time": "none",
    }  # fmt: skip
    if table.value is not None:
        counts["ratings"] = f"{table.value.min():g} to {table.value.max():g}, mean {table.value.mean():.3f}"
    if table.time is not None:
        counts["time"] = time_span(table.time)
    if isinstance(data, UserSplit):
        counts |= {
            "valid": 0 if data.valid is None else len(data.valid),
            "test": len(data.test),
            "negatives": 0 if data.negatives is None else len(data.negatives),
        }
    return counts | ({"notes": " ".join(data.notes)} if data.notes else {})


def _client_facts(data: Supervised) -> dict[str, object]:
    """What clients hold; where there are few clients and classes, also the examples of each class."""
    sizes, tests = ([len(y) for y in targets] for targets in (data.targets, data.test_targets))
    counts: dict[str, object] = {"name": data.name, "task": data.task, "clients": len(sizes), "features": data.width}
    if len(data.shape) > 1:
        counts["shape"] = shape_text(data.shape)
    if data.classes:
        counts["classes"] = data.classes
    counts |= {
        "examples": sum(sizes),
        "test_examples": sum(tests),
        "least_per_client": min(sizes),
        "most_per_client": max(sizes),
    }
    if data.task == "labels" and len(sizes) <= FEW and data.classes <= FEW:
        names = data.clients or tuple(str(client) for client in range(len(sizes)))
        counts["examples_of_each_class"] = {
            name: np.bincount(y.astype(int), minlength=data.classes).tolist() for name, y in zip(names, data.targets)
        }
    return counts | ({"notes": " ".join(data.notes)} if data.notes else {})
