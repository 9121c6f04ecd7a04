"""Requests that schemathesis generates from the description of the API, for the tests and for benchmarks/page_api.py."""

from __future__ import annotations

from collections import Counter
from typing import Any


def explore(url: str, cases: int) -> dict[str, Any]:
    """At least so many requests, right and wrong ones, that schemathesis makes up from the description; what came."""
    import schemathesis
    from schemathesis.engine import events, from_schema

    config = schemathesis.Config.from_dict(
        {
            "generation": {"max-examples": cases // 2, "deterministic": True, "database": "none"},
            "checks": {  # 422: a title that is not in the catalogue
                "positive_data_acceptance": {"expected-statuses": [200, 422]},
                "negative_data_rejection": {"expected-statuses": [400, 405, 411, 413, 415, 422]},
            },
        }
    )
    schema = schemathesis.openapi.from_url(f"{url}v1/openapi.json", config=config)
    statuses: Counter[int] = Counter()
    wrong: list[str] = []
    for event in from_schema(schema).execute():
        if isinstance(event, events.NonFatalError | events.FatalError):
            wrong.append(str(event))
        if isinstance(event, events.ScenarioFinished):
            told = event.recorder
            statuses.update(seen.response.status_code if seen.response else 0 for seen in told.interactions.values())
            found = [check.failure_info for checks in told.checks.values() for check in checks if check.failure_info]
            wrong += [f"{told.label}: {info.failure}\n{info.code_sample}" for info in found]
    return {"cases": statuses.total(), "statuses": dict(sorted(statuses.items())), "wrong": wrong}
