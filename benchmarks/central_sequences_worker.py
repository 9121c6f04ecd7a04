"""Train SASRec (RecTools) or GRU4Rec (Cornac) on the histories of a file, and write the scores of all items.

    python central_sequences_worker.py TASK.npz SCORES.npz

central_sequences.py starts it in the environment of these libraries, so it does not import fedtaste. TASK.npz holds
    starts, items   the histories of the people to train on, oldest item first: items[starts[i]:starts[i + 1]]
    judged          numbers of the people whose scores are wanted, after their whole history
    catalogue       the number of items
    settings        JSON: model, epochs (a list: scores are wanted after each of these), length (newest items that a
                    model sees) and the library's settings
SCORES.npz holds scores [epochs, judged, items], float32 with -inf for an item that the model does not know, and facts.
"""

from __future__ import annotations

import importlib.metadata
import json
import logging
import sys
import time
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

SEED = 0
PEOPLE = 200  # that RecTools scores at once, as rows of a data frame
Scores = NDArray[np.float32]  # [judged, items]


class Task:
    """The arrays of TASK.npz."""

    def __init__(self, path: str) -> None:
        with np.load(path) as file:
            self.starts, self.items, self.judged = file["starts"], file["items"], file["judged"]
            self.catalogue = int(file["catalogue"])
            self.settings: dict[str, Any] = json.loads(str(file["settings"]))
            self.length = int(self.settings.pop("length"))

    @property
    def owners(self) -> NDArray[np.int64]:
        """The person of every item."""
        return np.repeat(np.arange(len(self.starts) - 1), np.diff(self.starts))

    def unknown(self) -> Scores:
        """Scores in which nothing is known yet."""
        return np.full((len(self.judged), self.catalogue), -np.inf, np.float32)


def sasrec(task: Task, epochs: list[int], settings: dict[str, Any]) -> Iterator[tuple[float, Scores]]:
    """Yields (CPU seconds of training, scores) after each number of epochs of one training."""
    import pandas as pd
    from rectools.dataset import Dataset
    from rectools.models import SASRecModel

    logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)
    order = pd.to_datetime(np.arange(len(task.items)), unit="s")  # RecTools sorts by time
    rows = {"user_id": task.owners, "item_id": task.items.astype(np.int64), "weight": 1.0, "datetime": order}
    dataset = Dataset.construct(pd.DataFrame(rows))
    model = SASRecModel(session_max_len=task.length, epochs=epochs[-1], deterministic=True, **settings)
    began, done = time.process_time(), 0
    for wanted in epochs:
        model.fit_partial(dataset, wanted - done, wanted - done)
        done, scores, trained = wanted, task.unknown(), time.process_time()
        for part in np.array_split(np.arange(len(task.judged)), -(-len(task.judged) // PEOPLE)):
            lists = model.recommend(
                task.judged[part], dataset, k=task.catalogue, filter_viewed=False, on_unsupported_targets="ignore"
            )
            place = np.searchsorted(task.judged, lists["user_id"])
            scores[place, lists["item_id"].to_numpy(np.int64)] = lists["score"]
        yield trained - began, scores
        began += time.process_time() - trained  # scoring is no training


def gru4rec(task: Task, epochs: list[int], settings: dict[str, Any]) -> Iterator[tuple[float, Scores]]:
    """Yields (CPU seconds of training, scores) of one training for each number of epochs."""
    from cornac.data import SequentialDataset
    from cornac.models import GRU4Rec

    events = list(zip(task.owners.tolist(), task.items.tolist(), range(len(task.items))))
    known = {item: item for item in range(task.catalogue)}
    for wanted in epochs:
        began = time.process_time()
        dataset = SequentialDataset.build(events, fmt="SIT", global_iid_map=dict(known), seed=SEED)
        model = GRU4Rec(n_epochs=wanted, seed=SEED, **settings)
        model.fit(dataset)
        seconds, scores = time.process_time() - began, task.unknown()
        with torch.no_grad():
            for place, person in enumerate(task.judged):
                history = task.items[task.starts[person] : task.starts[person + 1]][-task.length :]
                scores[place] = model.score(None, history.tolist())[: task.catalogue]
        taken = np.bincount(task.items, minlength=task.catalogue) > 0
        scores[:, ~taken] = -np.inf
        yield seconds, scores


def main(task_path: str, scores_path: str) -> None:
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    torch.manual_seed(SEED)
    task = Task(task_path)
    settings = dict(task.settings)
    name, epochs = settings.pop("model"), settings.pop("epochs")
    train, libraries = {"SASRec": (sasrec, "rectools"), "GRU4Rec": (gru4rec, "cornac")}[name]
    seconds, scores = [], []
    for wanted, (spent, found) in zip(epochs, train(task, epochs, settings)):
        print(f"  {name}: {wanted} epochs, {spent:.0f} CPU s of training", flush=True)
        seconds.append(round(spent))
        scores.append(found)
    versions = {library: importlib.metadata.version(library) for library in (libraries, "torch")}
    facts = json.dumps({"cpu_seconds": seconds, "versions": versions})
    np.savez(scores_path, scores=np.stack(scores), facts=np.array(facts))


if __name__ == "__main__":
    main(*sys.argv[1:])
