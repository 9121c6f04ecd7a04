"""Updating a model with newer data, compared with training from scratch: accuracy and bytes.

    python benchmarks/update.py [--methods fedals,fedrecon,fedtrail] [--data ml-100k] [--out docs/evidence/update.json]

The newest item of each person is the test item and is in no training. Of the rest, the last tenth by time is the new
data: a model is fitted to the first nine tenths and updated; another is fitted to all of the rest. Both rank the test
items against the same 99 items. A person or an item that only the new data have is unknown before the update.
"""

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np

import fedtaste
from fedtaste.data.interactions import Histories, Interactions
from fedtaste.data.sampling import TEST, distinct_negatives, key_of
from fedtaste.data.splits import leave_last
from fedtaste.evaluation.metrics import interval, ranking_metrics
from fedtaste.result_part import JsonObject

NEWEST = 0.1  # the share of the interactions that are new data


def compact(data: Interactions) -> Interactions:
    """The data with only those people and items that occur."""
    people, person = np.unique(data.person, return_inverse=True)
    items, item = np.unique(data.item, return_inverse=True)
    names = {
        name: tuple(np.array(column)[items].tolist())
        for name in ("items", "titles", "genres")
        if (column := getattr(data, name))
    }
    who = tuple(np.array(data.people)[people].tolist())
    return replace(data, person=person.astype(np.int32), item=item.astype(np.int32), people=who, **names)


def split(data: Interactions) -> tuple[Interactions, Histories, Histories]:
    """(the data without test items, test items by person, 99 other items by person)."""
    histories = data.histories()
    _, test = leave_last(histories)
    pairs = test.owners.astype(np.int64) * len(data.items) + test.items
    keep = ~np.isin(data.person.astype(np.int64) * len(data.items) + data.item, pairs)
    return data.rows(keep), test, distinct_negatives(histories, len(data.items), 99, key_of(0, TEST, 0))


def accuracy(model: fedtaste.Recommender, data: Interactions, test: Histories, others: Histories) -> JsonObject:
    """HR@10 and NDCG@10 of the test items, with intervals. People whom the model does not know are left out."""
    opened = model._trained("be measured")
    known = np.array([name in opened.numbers for name in data.people]) & (test.lengths > 0)
    people = np.flatnonzero(known)
    numbers = np.array([opened.numbers[data.people[person]] for person in people])
    column = np.array([opened.titles.numbers.get(name, -1) for name in data.items])
    ranks = np.zeros(len(people), np.int64)
    for places, scores in opened.scores(opened.histories.take(numbers), timed=True, members=numbers):
        for place, row in zip(places, scores):
            person = int(people[place])
            candidates = column[np.concatenate([test.of(person), others.of(person)])]
            values = np.where(candidates >= 0, row[candidates], -np.inf)
            ranks[place] = 1 + (values[1:] >= values[0]).sum()
    metrics = ranking_metrics(ranks, np.arange(len(ranks)))
    return {"people": len(people)} | {
        name: {"mean": round(float(metrics[name].mean()), 4), "interval": interval(metrics[name])}
        for name in ("hr@10", "ndcg@10")
    }


def measure(data: Interactions, method: str) -> JsonObject:
    """Accuracy and bytes of the model before the update, after it, and of one trained from scratch."""
    rest, test, others = split(data)
    assert rest.time is not None
    old = rest.time <= np.quantile(rest.time, 1 - NEWEST)
    results: JsonObject = {}
    model = fedtaste.Recommender(method).fit(compact(rest.rows(old)))
    results["before"] = accuracy(model, data, test, others) | cost(model)
    model.update(compact(rest.rows(~old)))
    results["updated"] = accuracy(model, data, test, others) | cost(model)
    scratch = fedtaste.Recommender(method).fit(compact(rest))
    results["scratch"] = accuracy(scratch, data, test, others) | cost(scratch)
    updated, whole = results["updated"], results["scratch"]
    results["hr@10_lost"] = round(whole["hr@10"]["mean"] - updated["hr@10"]["mean"], 4)
    results["share_of_bytes"] = round(updated["up_bytes"] / whole["up_bytes"], 3)
    return results


def cost(model: fedtaste.Recommender) -> JsonObject:
    return {"rounds": model.result.rounds, "up_bytes": model.result.traffic.up_bytes}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--methods", default="fedals,fedtrail,fedrecon,fedmf")
    parser.add_argument("--data", default="ml-100k")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    data = fedtaste.load(options.data)
    assert isinstance(data, Interactions)
    results = {}
    for method in options.methods.split(","):
        results[method] = measure(data, method)
        print(method, json.dumps(results[method]), flush=True)
    if options.out:
        commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip()
        about = {"command": shlex.join(["python", *sys.argv]), "commit": commit, "date": time.strftime("%Y-%m-%d")}
        options.out.write_text(json.dumps({**about, "data": options.data, "results": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
