"""LensKit's ImplicitMF, one epoch; its objective is that of implicit, solved exactly by compiled Rust."""

from __future__ import annotations

from importlib.metadata import version
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from lenskit.als import ImplicitMFScorer
from lenskit.data import Dataset, from_interactions_df
from lenskit.training import ModelTrainer, TrainingOptions

if TYPE_CHECKING:
    from fedtaste.bench.programs.runner import Measurement, Task


def trainer_of(task: Task, data: Dataset, regularization: float) -> ModelTrainer:
    """A trainer before its first epoch, with the item table of the task."""
    scorer = ImplicitMFScorer(
        embedding_size=task["item"].shape[1], epochs=1, regularization=regularization, weight=1 / task.number("alpha0")
    )
    trainer = scorer.create_trainer(data, TrainingOptions(rng=0))
    scorer.item_embeddings[:] = task["item"][data.items.ids()]
    return trainer


def measure(task: Task) -> Measurement:
    people = np.repeat(np.arange(len(task["starts"]) - 1), np.diff(task["starts"]))
    data = from_interactions_df(pd.DataFrame({"user_id": people, "item_id": task["inputs"]}))
    regularization = task.number("regularization")
    seconds = task.fastest(lambda: trainer_of(task, data, regularization), lambda trainer: trainer.train_epoch())
    trainer = trainer_of(task, data, 1e-30)  # it must be positive; this changes nothing
    trainer.train_epoch()
    table = np.zeros_like(task["item"])
    table[data.items.ids()] = trainer.scorer.item_embeddings
    return task.measurement(version("lenskit"), {"exact": seconds}, tables={"exact": table})
