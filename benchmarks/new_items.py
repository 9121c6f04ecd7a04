"""New items: choose the ridge of the map on validation items, then measure recall@10 on items that were held out first.

    python benchmarks/new_items.py [--method fedals] [--data ml-100k ...] [--out docs/evidence/new_items.json]

A tenth of the items (seed 0) are the test items. Of the others a tenth is held out three times (seeds 1 to 3), and the
ridge with the best mean recall@10 on these validation items is chosen for each data set. Then one training without the
test items is evaluated on them, with that ridge. The test items are in no training and not in the choice of the ridge.
The form of the map (lengths, weights, LENGTH_RIDGE, no words) was chosen by hand on earlier draws of held-out items of
the same data, which share some items with these test items: that part of the choice is not independent of them.
"""

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

import fedtaste
from fedtaste.data.interactions import Interactions
from fedtaste.experiment.folder import RunFolder
from fedtaste.experiment.progress import Silent
from fedtaste.experiment.settings import Settings
from fedtaste.experiment.train import Training, prepare
from fedtaste.result_part import JsonObject
from fedtaste.tasks.new_items import hold_out_items

SHARE = 0.1
RIDGES = (30.0, 300.0, 3000.0, 10_000.0)
VALIDATION_SEEDS = (1, 2, 3)
DATA = ("ml-100k", "../shared/data/movietweetings.csv.gz")


def without_items(data: Interactions, items: np.ndarray) -> Interactions:
    """The data with a catalogue that does not have these items."""
    keep = np.setdiff1d(np.arange(len(data.items)), items)
    rows = np.isin(data.item, keep)
    columns = {name: tuple(np.array(getattr(data, name))[keep].tolist()) for name in ("items", "titles", "genres")}
    value, moment = (None if x is None else x[rows] for x in (data.value, data.time))
    item = np.searchsorted(keep, data.item[rows]).astype(data.item.dtype)
    return replace(data, person=data.person[rows], item=item, value=value, time=moment, **columns)


def measure(data: Interactions, method: str, seed: int, ridges: Sequence[float]) -> dict[float, JsonObject]:
    """The metrics of new items by ridge, after one training."""
    prepared = prepare(Settings(data=data.name, method=method, new_items=SHARE, seed=seed, threads=1), data)
    with tempfile.TemporaryDirectory() as path:
        folder = RunFolder.create(Path(path), prepared.settings.model_dump(), data, fedtaste.__version__)
        training = Training(prepared, folder, Silent(), None)
        served = training.served(training.run())
        results = {}
        for ridge in ridges:
            prepared.task.new_items = replace(prepared.task.new_items, ridge=ridge)
            results[ridge] = prepared.task.new_item_metrics(served)
    return results


def study(name: str, method: str) -> JsonObject:
    """Choose the ridge on validation items, and measure once on the test items."""
    data, began = fedtaste.load(name, seed=0), time.perf_counter()
    test = hold_out_items(data, SHARE, 1.0, seed=0)[1].items
    rest = without_items(data, test)
    folds = [measure(rest, method, seed, RIDGES) for seed in VALIDATION_SEEDS]
    validation = {f"{r:g}": round(float(np.mean([f[r]["metrics"]["recall@10"] for f in folds])), 4) for r in RIDGES}
    times = {ridge: round(recall / folds[0][RIDGES[0]]["random_recall"], 2) for ridge, recall in validation.items()}
    chosen = max(validation, key=lambda ridge: validation[ridge])
    final = measure(data, method, 0, [float(chosen)])[float(chosen)]
    low, high = final["intervals"]["recall@10"]
    random = final["random_recall"]
    return {
        "data": data.name,
        "method": method,
        "validation_recall@10": validation,
        "validation_times_random": times,
        "chosen_ridge": float(chosen),
        "test": final,
        "times_random": round(final["metrics"]["recall@10"] / random, 2),
        "times_random_interval": [round(low / random, 2), round(high / random, 2)],
        "seconds": round(time.perf_counter() - began, 1),
    }


def main() -> None:
    """Run the study on every data set, and write the evidence."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--method", default="fedals")
    parser.add_argument("--data", nargs="+", default=DATA)
    parser.add_argument("--out", type=Path, default=Path("docs/evidence/new_items.json"))
    options = parser.parse_args()
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip()
    evidence: JsonObject = {
        "command": shlex.join(["python", *sys.argv]),
        "commit": commit,
        "date": time.strftime("%Y-%m-%d"),
        "studies": [],
    }
    for name in options.data:
        evidence["studies"].append(study(name, options.method))
        print(json.dumps(evidence["studies"][-1], indent=1), flush=True)
    options.out.write_text(json.dumps(evidence, indent=1) + "\n")


if __name__ == "__main__":
    main()
