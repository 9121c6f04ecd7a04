"""Central SASRec (RecTools) and GRU4Rec (Cornac) on the split of `fedtaste run`: the figures beside fedseq's.

    python benchmarks/central_sequences.py --install         once: an environment of its own for both libraries
    python benchmarks/central_sequences.py                   what has no figures in docs/evidence/central_sequences.json
    python benchmarks/central_sequences.py --data ml-100k    only this data set
    python benchmarks/central_sequences.py --table           print the figures that are there

A model trains on the histories of all people who learn in `fedtaste run`, in one process (central_sequences_worker.py,
which runs in the other environment and does not import fedtaste) and gives scores of all items for everybody who is
judged. They are ranked here, with the functions and the negatives of `fedtaste run`. The number of epochs with the best
NDCG@10 among the 99 of validation is chosen; while that is the largest one, twice as many are tried. The chosen model
is trained again on training and validation data, and the test data are read. What was stopped continues with the next
model and data set. `--data` and `--model` can be started in several processes at once.
"""

from __future__ import annotations

import argparse
import datetime
import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray

from fedtaste.bench.peer_programs import ENVIRONMENT, Peer, environment_of, install
from fedtaste.data.archives import default_cache
from fedtaste.data.interactions import Histories
from fedtaste.data.sources import load
from fedtaste.evaluation.protocol import HeldOut, RankingMetrics, rank_full, rank_sampled
from fedtaste.evaluation.scoring import Personalised
from fedtaste.experiment.settings import settings_from
from fedtaste.experiment.train import prepare
from fedtaste.tasks.ranking import Ranking

ROOT = Path(__file__).parents[1]
OUT = ROOT / "docs" / "evidence" / "central_sequences.json"
WORKER = Path(__file__).with_name("central_sequences_worker.py")
NAME = "central-sequences"  # of the environment
PEER = Peer("als", WORKER.stem, "rectools", {}, ("rectools[torch]==0.19.0", "cornac==2.2.1"))
DATA = ("ml-100k", "../shared/data/amazon-video.csv.gz", "../shared/data/movietweetings.csv.gz")
MODELS: dict[str, dict[str, Any]] = {
    "SASRec": {"n_factors": 64, "n_blocks": 2, "n_heads": 2, "dropout_rate": 0.2, "lr": 1e-3, "batch_size": 32},
    "GRU4Rec": {"layers": [128], "dropout_p_embed": 0.2, "learning_rate": 0.05, "batch_size": 32, "n_sample": 768},
}
EPOCHS = {"SASRec": [10, 20, 40], "GRU4Rec": [5, 10, 20]}
LENGTH = 128  # newest items that a model sees
LENGTHS = {DATA[2]: 64}  # 95 % of its people have no more items, and SASRec takes half the time
MOST_EPOCHS = 80  # the largest number is doubled until here while it is the best one


@dataclass(frozen=True, eq=False)
class Scored:
    """People with the scores of another library, in the form that `rank_sampled` and `rank_full` read."""

    all_items: NDArray[np.float32]  # [people, items]

    def scores(self, candidates: torch.Tensor) -> list[tuple[NDArray[np.int64], torch.Tensor]]:
        everyone = np.arange(len(self.all_items))
        columns = candidates.numpy() if candidates.ndim == 2 else candidates.numpy()[None]
        return [(everyone, torch.from_numpy(self.all_items[everyone[:, None], columns]))]


def rank(scores: NDArray[np.float32], history: Histories, held_out: HeldOut, people: NDArray[np.int64]) -> Any:
    """HR@10 and NDCG@10 of these people with their 95 % intervals, among 99 and among all items."""
    ready = cast(Personalised, Scored(scores))
    positives = held_out.positives.take(people)
    sampled = rank_sampled(ready, positives, held_out.negatives.take(people))
    full, _ = rank_full(ready, history.take(people), positives, scores.shape[1])
    metrics = RankingMetrics.of_ranks(sampled, full)
    names, kinds = ("hr@10", "ndcg@10"), ("sampled", "full")
    figures = {kind: [round(metrics.values[kind][name], 4) for name in names] for kind in kinds}
    intervals = {kind: [metrics.intervals[kind][name] for name in names] for kind in kinds}
    return {"people": len(people), **figures, "intervals": intervals}


def train(
    task: Ranking, phase: str, model: str, epochs: list[int], length: int, python: str
) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """(figures after each number of epochs, versions of the libraries): of validation after training on the training
    part ("search"), of test after training on both ("final")."""
    search = phase == "search"
    history, people = (task.train, task.choosers) if search else (task.final_train, task.seen)
    held_out = task.choosing if search else task.test
    members = np.setdiff1d(np.arange(task.people), task.left_out)
    histories, settings = history.take(members), MODELS[model] | {"model": model, "epochs": epochs, "length": length}
    with tempfile.TemporaryDirectory() as folder:
        paths = [f"{folder}/task.npz", f"{folder}/scores.npz"]
        np.savez(
            paths[0], starts=histories.starts, items=histories.items, judged=np.searchsorted(members, people),
            catalogue=task.catalogue, settings=json.dumps(settings),
        )  # fmt: skip
        environment = [f"{name}={value}" for name, value in ENVIRONMENT.items()]
        subprocess.run(["env", *environment, python, str(WORKER), *paths], check=True)
        with np.load(paths[1]) as file:
            scores, facts = file["scores"], json.loads(str(file["facts"]))
    figures = [
        {"epochs": number, **rank(found, history, held_out, people), "cpu_seconds": seconds}
        for number, found, seconds in zip(epochs, scores, facts["cpu_seconds"])
    ]
    return figures, facts["versions"]


def chosen_epochs(trials: list[dict[str, Any]]) -> int:
    """The number of epochs with the best NDCG@10 among 99 on validation."""
    return int(max(trials, key=lambda trial: trial["sampled"][1])["epochs"])


def epochs_to_try(model: str, trials: list[dict[str, Any]]) -> list[int]:
    """The numbers of epochs of the next training on the training part; none where the choice is made."""
    if not trials:
        return EPOCHS[model]
    best, largest = chosen_epochs(trials), max(int(trial["epochs"]) for trial in trials)
    return [2 * best] if best == largest < MOST_EPOCHS else []


def measure(data: str, models: list[str], python: str) -> None:
    """Train and judge models on one data set, and write each result as soon as it is there."""
    source = str(ROOT / data) if data.startswith("..") else data
    task = prepare(settings_from("fedseq", source, {"seed": 0, "threads": 1}), load(source, seed=0)).task
    assert isinstance(task, Ranking)
    commit = subprocess.run(
        ["git", "log", "-1", "--format=%h", "--", "src", "benchmarks/central_sequences.py", str(WORKER)],
        cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True,
    ).stdout.strip()  # fmt: skip
    length = LENGTHS.get(data, LENGTH)
    for model in models:
        key = f"{data} {model}"
        entry: dict[str, Any] = read().get(key, {})
        while wanted := epochs_to_try(model, entry.get("validation", [])):
            print(f"{key}: validation after {wanted} epochs", flush=True)
            figures, _ = train(task, "search", model, wanted, length, python)
            entry["validation"] = entry.get("validation", []) + figures
            write(key, entry)
        epochs = chosen_epochs(entry["validation"])
        if "test" not in entry or entry["test"]["epochs"] != epochs:
            print(f"{key}: test after {epochs} epochs", flush=True)
            (test,), versions = train(task, "final", model, [epochs], length, python)
            about = {"command": f"python benchmarks/central_sequences.py --data {data} --model {model}"}
            about |= {"commit": commit, "date": datetime.date.today().isoformat()}
            write(
                key,
                entry | {"test": test} | about | {"versions": versions, "settings": MODELS[model] | {"length": length}},
            )


def read() -> dict[str, Any]:
    """The figures that are there, by data set and model."""
    figures: dict[str, Any] = json.loads(OUT.read_text()) if OUT.exists() else {}
    return figures


def write(key: str, entry: dict[str, Any]) -> None:
    OUT.write_text(json.dumps(read() | {key: entry}, indent=1) + "\n")


def print_table() -> None:
    """Print HR@10 / NDCG@10 of everything that was measured."""
    print(f"{'data and model':<52} {'part':<11} epochs  among 99       among all      CPU s")
    for key, entry in read().items():
        parts = [("validation", trial) for trial in entry.get("validation", ())]
        for part, row in parts + ([("test", entry["test"])] if "test" in entry else []):
            pairs = [" / ".join(f"{value:.3f}" for value in row[kind]) for kind in ("sampled", "full")]
            print(f"{key:<52} {part:<11} {row['epochs']:>6}  {pairs[0]:<14} {pairs[1]:<14} {row['cpu_seconds']:>5}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", choices=DATA, help="only this data set")
    parser.add_argument("--model", choices=list(MODELS), help="only this model")
    parser.add_argument("--install", action="store_true", help="make the environment of RecTools and Cornac, and end")
    parser.add_argument("--python", help="an interpreter that has both libraries; by default that of --install")
    parser.add_argument("--table", action="store_true", help="print the figures that are there, and end")
    options = parser.parse_args()
    python = options.python or str(environment_of(NAME, default_cache()))
    if options.install:
        install(NAME, PEER, default_cache())
        return
    if not options.table:
        if not Path(python).is_file():
            sys.exit(f"{python} does not exist. Run `python benchmarks/central_sequences.py --install` first.")
        for data in [options.data] if options.data else DATA:
            if data.startswith("..") and not (ROOT / data).exists():
                print(f"skipped, because {data} does not exist", flush=True)
            else:
                measure(data, [options.model] if options.model else list(MODELS), python)
    print_table()


if __name__ == "__main__":
    main()
