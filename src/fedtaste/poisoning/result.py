"""The typed result of `fedtaste poison`: its dump is what `--json` prints."""

from __future__ import annotations

from pydantic import Field

from fedtaste.result_part import Count, ResultPart


class HostilePeople(ResultPart):
    """The people who turned hostile."""

    share: float
    people: Count


class Target(ResultPart):
    """An item that attackers promote, and how many people really have it."""

    item: str
    title: str
    count: Count


class Unpopular(ResultPart):
    """The items that targets are drawn from, and their mean exposure when nobody attacks."""

    items: Count
    exposure: float


class Metrics(ResultPart):
    """Accuracy of honest people under the clean protocol."""

    hr: float = Field(serialization_alias="hr@10")
    ndcg: float = Field(serialization_alias="ndcg@10")


class PoisonRow(Metrics):
    """One rule of the server (`wire`, empty for the plain sum), honest or attacked; means over the targets."""

    row: str
    wire: str
    exposure: float
    """ER@k: the share of honest people without the target who get it among their top k."""
    exposures: tuple[float, ...]
    ndcg_loss: float = 0.0
    """The share of NDCG@10 that is lost against `clean`."""


class PoisonResult(ResultPart):
    """What hostile people achieve against the plain sum and against robust ones."""

    data: str
    method: str
    settings: dict[str, object]
    rounds: Count
    seed: Count
    attack: str
    size: float | None
    k: Count
    hostile: HostilePeople
    honest: Count
    rows: tuple[PoisonRow, ...]
    target: Target
    targets: tuple[Target, ...]
    unpopular: Unpopular
