"""Validate what a federation is run with and what nodes reply: settings, counts, metric sums, shapes of uploads."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray

from fedtaste.core import Download, StageContext, Upload
from fedtaste.engine.backends import one_of, stacked, staged
from fedtaste.errors import SettingError
from fedtaste.evaluation.list_metrics import BAND_NAMES, GROUP_METRICS, TOP
from fedtaste.experiment.plan import Plan
from fedtaste.experiment.privacy import adds_noise
from fedtaste.experiment.settings import ReadSettings, Settings
from fedtaste.flower.messages import MetricReport, MetricSums, TrainReport, parse_message
from fedtaste.result_part import JsonObject
from fedtaste.tasks.base import Facts
from fedtaste.wire.messages import decode
from fedtaste.wire.parse import parse, upload_of
from fedtaste.wire.rng import KEY_BYTES
from fedtaste.wire.robust_sums import RULES
from fedtaste.wire.secure_sums import FEWEST
from fedtaste.wire.validation import REASONS

ItemCounts = dict[str, NDArray[np.int64]]  # by name (seen, new, taken): a number for every item


def refuse_unfit(settings: Settings, nodes: int | None = None) -> None:
    """Refuse settings that `fedtaste run` accepts and a federation of so many nodes cannot, or must not, follow."""
    if problem := _unfit(settings, nodes):
        raise SettingError(problem)


def _unfit(settings: Settings, nodes: int | None) -> str:
    wire = dict(parse(settings.wire))
    if rule := next((name for name in wire if name in RULES), ""):
        return f"{rule} needs single people's uploads, and a node sends the sum of its people's. Leave it out."
    if "turns" in wire:
        return "With turns everybody sends other rows, and a node sends the sum of its people's. Use common_turns."
    if "quantise" in wire and "secure" in wire:
        return "Between nodes secure sums carry 64 bits whatever is in them: quantise would save nothing. Leave it out."
    if wire.get("secure"):
        return f"secure={wire['secure']:g} forms groups of people; between nodes there is one sum. Use secure alone."
    if "secure" in wire and nodes is not None and nodes < FEWEST:
        return f"A secure sum needs at least {FEWEST} nodes, got {nodes}. Use --nodes {FEWEST} or more."
    if settings.noise_seed is not None and adds_noise(settings):
        study = "Leave it out, or use `fedtaste run` for a study."
        return f"--noise-seed makes noise repeatable, but nodes draw noise from keys of their own. {study}"
    if settings.method == "centralised":
        return "centralised holds everybody's data in one place, so no federation can run it."
    if settings.folds:
        return "--new-people folds trains ten more times. Use `fedtaste run` for it, or a share such as 0.1."
    if settings.new_items:
        return "--new-items is measured where everybody's data are. Use `fedtaste run` for it."
    if "group" in settings.columns:
        return "--columns group=... would change nothing: labels of people stay on their nodes. Leave group out."
    if settings.protocol != "clean":
        return f"--protocol {settings.protocol} reads the test items while it trains. Use `fedtaste run` for it."
    return ""


def common_fields(settings: Settings, run: int, catalogue: str) -> dict[str, object]:
    """The fields of every Order of a run. They hold no key or seed of noise: nodes draw from keys of their own."""
    unsent = {"noise_seed", *ReadSettings.model_fields}  # nodes read files of their own
    name = settings.data_name
    data = name if name == settings.data else f"./{name}"  # no path of this machine, and no name of another data set
    shown = settings.model_dump(exclude=unsent) | {"data": data}
    return {"run": run, "settings": shown, "catalogue": catalogue}


def expected_upload(plan: Plan, facts: Facts, down: Download) -> Upload:
    """An upload with the names, shapes and types of any valid reply to this download, after the clients' stages."""
    shape = facts.shape or ((facts.width,) if facts.width else ())
    inputs = torch.zeros(1, 1, *shape) if shape else torch.zeros(1, 1, dtype=torch.int64)
    upload = Upload(upload_of(plan.method, plan.model, inputs, down), torch.ones(()))
    context = StageContext(b"", int(down.round), 1.0)
    upload = one_of(staged(plan.wire.stage, context, stacked([upload]), [bytes(KEY_BYTES)], np.zeros(1, np.int64)))
    return plan.wire.stage.turns.cut(upload, 0, context.round) if plan.wire.stage.turns else upload


def valid_counts(report: TrainReport, people: int) -> bool:
    """Whether a node's counts are possible for so many people."""
    return report.answered + sum(report.refused.values()) <= people and set(report.refused) <= set(REASONS)


def report_in_clear(values: Mapping[str, object]) -> TrainReport:
    """The counts that a node of a secure sum sent in clear; zero if they cannot be parsed."""
    try:
        report = parse_message(TrainReport, str(values.get("json", "")))
    except ValueError:
        return TrainReport(answered=0)
    return report if valid_counts(report, 2**31) else TrainReport(answered=0)


RANKING_METRICS = {f"{group}.{name}@10" for group in ("sampled", "full") for name in ("hr", "ndcg", "recall", "mrr")}
SUMS: dict[str, tuple[set[str], tuple[int, ...]]] = {  # by kind: names of metrics, how many sums each has
    "ranking": (RANKING_METRICS, (2,)),
    "ratings": ({"rmse", "accuracy"}, (5,)),
    "numbers": ({"rmse", "accuracy"}, (5,)),
    "clients": ({"accuracy", "loss", "global_accuracy", "global_loss"}, (2, 3)),
}
KINDS = {"ranking": "ranking", "ratings": "ratings", "regression": "numbers", "labels": "clients"}


def valid_metrics(report: MetricReport, task: str, seen: int, new: int) -> bool:
    """Whether a node's metric sums are possible: the sums of this task, of at most as many people as the node said it
    has, and none larger than so many people can have."""
    try:
        return _valid_sums(report.seen, task, seen) and _valid_sums(report.new, task, new)
    except (KeyError, TypeError, AttributeError, OverflowError, ValueError, IndexError):
        return False


def _valid_sums(part: MetricSums | None, task: str, most: int) -> bool:
    if part is None:
        return True
    people, sums = part["people"], part["sums"]
    names, widths = SUMS[part["kind"]]
    valid = part["kind"] == KINDS[task] and type(people) is int and 0 < people <= most and len(sums) > 0
    for name, values in sums.items():
        valid &= name in names and len(values) in widths and all(isinstance(x, float | int) for x in values)
        valid &= all(math.isfinite(x) and abs(x) < 1e15 for x in values)
        if part["kind"] == "ranking" or name.endswith("accuracy"):  # each example adds between 0 and 1
            valid &= 0 <= values[0] <= (people if len(values) < 5 else values[1]) * (1 + 1e-9)
    return valid and _valid_lists(part.get("lists", {}), people)


def _valid_lists(lists: JsonObject, people: int) -> bool:
    """Whether the sums over lists (evaluation/list_metrics.py) are possible: every list adds between 0 and 1."""
    total, number = lists.get("diversity", (0, 0))
    groups = np.array(lists.get("groups", np.zeros((len(BAND_NAMES), 1 + 2 * len(GROUP_METRICS)))), float)
    valid = set(lists) <= {"diversity", "groups"} and 0 <= total <= number * (1 + 1e-9) and number <= people
    valid &= groups.shape == (len(BAND_NAMES), 1 + 2 * len(GROUP_METRICS)) and bool((groups >= 0).all())
    return bool(valid and (groups <= groups[:, :1] * (1 + 1e-9)).all() and groups[:, 0].sum() <= people)


def read_item_counts(blob: bytes, items: int, people: Mapping[str, int]) -> ItemCounts | None:
    """The counts by item of a MetricReport, or None if they are not possible; `people`: so many at most have an item
    (`taken`), or have it in their list."""
    if not blob:
        return {}
    try:
        counts = {name: value.numpy() for name, value in decode(blob)[0].total.items()}
    except (ValueError, TypeError):
        return None
    valid = "taken" in counts and set(counts) <= set(people)
    for name, value in counts.items():
        valid = valid and value.shape == (items,) and value.dtype == np.int64 and items > 0
        valid = valid and value.min() >= 0 and value.max() <= people[name]
        valid = valid and (name == "taken" or value.sum() <= TOP * people[name])
    return counts if valid else None


def missing_counts(names: Mapping[str, str], counts: Mapping[str, ItemCounts]) -> list[str]:
    """A note for the result where some of the nodes (`names` by key) sent counts by item and others did not."""
    without = [name for key, name in names.items() if not counts.get(key)]
    if not without or len(without) == len(names):
        return []
    return [f"Coverage, Gini, popularity and novelty are without the lists of {', '.join(without)}."]


def missing_metrics(names: Mapping[str, str], reports: Mapping[str, MetricReport], refused: set[str]) -> list[str]:
    """Notes for the result: the nodes (`names` by key) whose metrics are not in it, and why."""
    silent = [name for key, name in names.items() if key not in reports and key not in refused]
    unwilling = [name for key, name in names.items() if key not in reports and key in refused]
    notes = [f"Judged without {', '.join(silent)}, who did not answer at the end."] if silent else []
    if unwilling:
        notes.append(f"Judged without {', '.join(unwilling)}, who refused to report metrics of their people.")
    for part, people in (("seen", "people who took part"), ("new", "new people")):
        few = [names[key] for key in sorted(reports) if part in reports[key].too_few]
        if few:
            notes.append(
                f"The metrics of {people} are without those of {', '.join(few)}, where there are too few of them "
                "(fewest in node.toml)."
            )
    return notes
