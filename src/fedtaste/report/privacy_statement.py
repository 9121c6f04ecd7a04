"""Format a run's PrivacyStatement (wire/accounting.py) as rows of text, for reports and model cards."""

from __future__ import annotations

from fedtaste.experiment.result import PrivacyStatement


def statement_rows(privacy: PrivacyStatement | None) -> list[tuple[str, list[str]]]:
    """The statement as (name, lines): epsilon, delta, adjacency, against whom, planned rounds, what is covered and what
    is not; no rows where there is no noise."""
    if privacy is None:
        return []
    facts: dict[str, object] = {
        "epsilon": "none" if privacy.epsilon is None else privacy.epsilon,
        "why there is none": privacy.why,
        "epsilon with secret noise": privacy.repeatable_epsilon,
        "delta": privacy.delta,
        "neighbouring data sets": privacy.adjacency,
        "against": privacy.against,
        "epsilon against the server": privacy.server_epsilon,
        "planned rounds": privacy.rounds,
        "covered": privacy.covered,
        "not covered": privacy.not_covered,
    }
    return [(name, _lines(value)) for name, value in facts.items() if value not in (None, "", ())]


def _lines(value: object) -> list[str]:
    if isinstance(value, tuple):
        return [str(line) for line in value]
    return [f"{value:.4g}" if isinstance(value, float) else str(value)]
