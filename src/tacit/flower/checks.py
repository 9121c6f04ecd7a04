"""What is looked at before it is believed: settings that nodes elsewhere cannot follow, and what nodes say."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from ..errors import SettingError
from ..promises import is_private
from ..settings import Settings
from ..wire.admission import REASONS
from ..wire.ledger import decode
from ..wire.plan import parse
from ..wire.robust import RULES
from ..wire.secure import FEWEST
from .messages import Told, Trained, read


def refuse_unfit(settings: Settings, nodes: int | None = None) -> None:
    """What `tacit run` can do and nodes elsewhere, or so few of them, cannot, or must not."""
    wire = dict(parse(settings.wire))
    rule = next((name for name in wire if name in RULES), None)
    if rule:
        raise SettingError(
            f"{rule} looks at single people's uploads, and a node sends the sum of its people's. Leave it out."
        )
    if wire.get("secure"):
        raise SettingError(
            f"secure={wire['secure']:g} makes groups of people; between nodes it is one sum. Say secure alone."
        )
    if "secure" in wire and nodes is not None and nodes < FEWEST:
        raise SettingError(f"A secure sum of {nodes} nodes would hide little. Use --nodes {FEWEST} or more.")
    if settings.noise_seed is not None and is_private(settings):
        raise SettingError(
            "--noise-seed makes noise repeatable, and nodes draw theirs from keys of their own. Leave it out, or use "
            "`tacit run` for a study."
        )
    if settings.method == "centralised":
        raise SettingError("centralised holds everybody's data in one place, so no federation can run it.")
    if settings.folds:
        raise SettingError("--new-people folds trains ten more times. Use `tacit run` for it, or a share such as 0.1.")
    if settings.protocol != "clean":
        raise SettingError(
            f"--protocol {settings.protocol} reads the test items while it trains. Use `tacit run` for it."
        )


def common(settings: Settings, run: int, catalogue: str) -> dict[str, Any]:
    """What stands in every order. No key or seed of noise is in it: nodes draw from keys of their own."""
    return {"run": run, "settings": settings.model_dump(exclude={"noise_seed"}), "catalogue": catalogue}


def sound(told: Trained, most: int) -> bool:
    """Whether a node's counts can be true of so many people."""
    counts = [told.answered, *told.refused.values()]
    return all(0 <= n <= most for n in counts) and sum(counts) <= most and set(told.refused) <= set(REASONS)


def aux_of(aux: dict[str, Any]) -> Trained:
    """What a node of a secure sum said in clear; nobody is counted where that cannot be read."""
    try:
        told = read(Trained, str(aux.get("words", "")))
    except ValueError:
        return Trained(answered=0)
    return told if isinstance(told, Trained) and sound(told, 2**31) else Trained(answered=0)


def bears(blob: bytes, place: int) -> bool:
    """Whether a blob bears the place of the node that it came from; what cannot be read is for the door."""
    try:
        return decode(blob)[1].person == place
    except ValueError:
        return True


RANKS = {f"{group}.{name}@10" for group in ("sampled", "full") for name in ("hr", "ndcg", "recall", "mrr")}
SUMS: dict[str, tuple[set[str], tuple[int, ...]]]
SUMS = {"ranking": (RANKS, (2,)), "ratings": ({"rmse", "accuracy"}, (5,)), "numbers": ({"rmse", "accuracy"}, (5,))}
SUMS |= {"clients": ({"accuracy", "loss", "global_accuracy", "global_loss"}, (2, 3))}
KINDS = {"ranking": "ranking", "ratings": "ratings", "regression": "numbers", "labels": "clients"}


def tallies(told: Told, task: str, seen: int, new: int) -> bool:
    """Whether what a node says of its people's metrics can be true: the sums that this task has, of no more people than
    it said hello with, and none larger than so many people could have."""

    def fine(part: dict[str, Any] | None, most: int) -> bool:
        if part is None:
            return True
        people, sums = part["people"], part["sums"]
        names, widths = SUMS[part["kind"]]
        right = part["kind"] == KINDS[task] and type(people) is int and 0 < people <= most and len(sums) > 0
        for name, values in sums.items():
            right &= name in names and len(values) in widths and all(isinstance(x, float | int) for x in values)
            right &= all(math.isfinite(x) and abs(x) < 1e15 for x in values)
            if part["kind"] == "ranking" or name.endswith("accuracy"):  # shares
                right &= 0 <= values[0] <= (people if len(values) < 5 else values[1]) * (1 + 1e-9)
        return right

    try:
        return fine(told.seen, seen) and fine(told.new, new)
    except (KeyError, TypeError, AttributeError, OverflowError, ValueError, IndexError):
        return False


def left_out(names: Mapping[str, str], told: Mapping[str, Told], refused: set[str]) -> list[str]:
    """Notes for the result: the nodes (`names` by key) whose metrics are not in it, and why."""
    silent = [name for key, name in names.items() if key not in told and key not in refused]
    unwilling = [name for key, name in names.items() if key not in told and key in refused]
    notes = [f"Judged without {', '.join(silent)}, who did not answer at the end."] if silent else []
    if unwilling:
        notes.append(f"Judged without {', '.join(unwilling)}, who refused to tell metrics of their people.")
    for part, people in (("seen", "people who took part"), ("new", "new people")):
        few = [names[key] for key in sorted(told) if part in told[key].too_few]
        if few:
            notes.append(
                f"The metrics of {people} are without those of {', '.join(few)}: too few of them are there (fewest in "
                "node.toml)."
            )
    return notes
