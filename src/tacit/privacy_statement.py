"""The privacy statement of a run in words, for reports and model cards."""

from __future__ import annotations

from typing import Any

Rows = list[tuple[str, list[str]]]


def statement_rows(privacy: Any) -> Rows:
    """`privacy` of a result as (name, lines): epsilon, delta, adjacency, against whom, planned rounds, what is covered
    and what is not; nothing where there is no noise."""
    if not isinstance(privacy, dict) or not privacy:
        return []
    rows: Rows = [
        ("epsilon", [_number(privacy.get("epsilon")) or "none"]),
        ("why there is none", _text(privacy.get("why"))),
        ("epsilon with secret noise", _text(_number(privacy.get("repeatable_epsilon")))),
        ("delta", _text(_number(privacy.get("delta")))),
        ("neighbouring data sets", _text(privacy.get("adjacency"))),
        ("against", _text(privacy.get("against"))),
        ("epsilon against the server", _text(_number(privacy.get("server_epsilon")))),
        ("planned rounds", _text(privacy.get("rounds"))),
        ("covered", [str(line) for line in privacy.get("covered") or ()]),
        ("not covered", [str(line) for line in privacy.get("not_covered") or ()]),
    ]
    return [(name, lines) for name, lines in rows if lines]


def _number(value: Any) -> str | None:
    return f"{value:.4g}" if isinstance(value, int | float) else None


def _text(value: Any) -> list[str]:
    return [] if value is None or value == "" else [str(value)]
