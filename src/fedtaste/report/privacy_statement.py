"""The privacy statement of a run in words, for reports and model cards."""

from __future__ import annotations

from fedtaste.experiment.result import PrivacyStatement

Rows = list[tuple[str, list[str]]]


def statement_rows(privacy: PrivacyStatement | None) -> Rows:
    """The statement as (name, lines): epsilon, delta, adjacency, against whom, planned rounds, what is covered and what
    is not; no rows where there is no noise."""
    if privacy is None:
        return []
    rows: Rows = [
        ("epsilon", [_number(privacy.epsilon) or "none"]),
        ("why there is none", _lines(privacy.why)),
        ("epsilon with secret noise", _lines(_number(privacy.repeatable_epsilon))),
        ("delta", _lines(_number(privacy.delta))),
        ("neighbouring data sets", _lines(privacy.adjacency)),
        ("against", _lines(privacy.against)),
        ("epsilon against the server", _lines(_number(privacy.server_epsilon))),
        ("planned rounds", _lines(_number(privacy.rounds))),
        ("covered", list(privacy.covered or ())),
        ("not covered", list(privacy.not_covered or ())),
    ]
    return [(name, lines) for name, lines in rows if lines]


def _number(value: float | None) -> str | None:
    return None if value is None else f"{value}" if isinstance(value, int) else f"{value:.4g}"


def _lines(text: str | None) -> list[str]:
    return [text] if text else []
