"""What a data set is like, in a few numbers."""

from __future__ import annotations

from typing import Any

import numpy as np

from .importing import BroughtSplit
from .interactions import Floats, Interactions
from .supervised import Supervised, by

FEW = 20  # clients or classes that fit a screen


def facts(data: Interactions | BroughtSplit | Supervised) -> dict[str, Any]:
    if isinstance(data, Supervised):
        return held(data)
    whole = data.train if isinstance(data, BroughtSplit) else data
    activity = np.bincount(whole.person, minlength=len(whole.people))
    popularity = np.sort(np.bincount(whole.item, minlength=len(whole.items)))[::-1]
    tenth = popularity[: max(1, len(popularity) // 10)].sum() / max(len(whole), 1)
    found: dict[str, Any] = {
        "name": data.name, "people": len(whole.people), "items": len(whole.items), "interactions": len(whole),
        "density_percent": round(100 * len(whole) / max(len(whole.people) * len(whole.items), 1), 3),
        "median_per_person": float(np.median(activity)),
        "least_per_person": int(activity.min()), "most_per_person": int(activity.max()),
        "top_tenth_of_items_percent": round(100 * float(tenth), 1),
        "ratings": _span(whole.value) if whole.value is not None else "none",
        "time": "none" if whole.time is None else f"{whole.time.min():.0f} to {whole.time.max():.0f} (seconds)",
    }  # fmt: skip
    if isinstance(data, BroughtSplit):
        found |= {
            "valid": 0 if data.valid is None else len(data.valid),
            "test": len(data.test),
            "negatives": 0 if data.negatives is None else len(data.negatives),
        }
    notes = data.notes if isinstance(data, BroughtSplit) else whole.notes
    return found | ({"notes": " ".join(notes)} if notes else {})


def held(data: Supervised) -> dict[str, Any]:
    """What clients hold; of labels also how many of each class, while there are few clients to show."""
    sizes, tests = ([len(y) for y in targets] for targets in (data.targets, data.test_targets))
    found: dict[str, Any] = {"name": data.name, "task": data.task, "clients": len(sizes), "features": data.width}
    if len(data.shape) > 1:
        found["shape"] = by(data.shape)
    if data.classes:
        found["classes"] = data.classes
    found |= {
        "examples": sum(sizes),
        "test_examples": sum(tests),
        "least_per_client": min(sizes),
        "most_per_client": max(sizes),
    }
    if data.task == "labels" and len(sizes) <= FEW and data.classes <= FEW:
        names = data.clients or tuple(str(client) for client in range(len(sizes)))
        found["examples_of_each_class"] = {
            name: np.bincount(y.astype(int), minlength=data.classes).tolist() for name, y in zip(names, data.targets)
        }
    return found | ({"notes": " ".join(data.notes)} if data.notes else {})


def _span(values: Floats) -> str:
    return f"{values.min():g} to {values.max():g}, mean {values.mean():.3f}"
