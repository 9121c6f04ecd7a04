"""Send requests that schemathesis generates from the OpenAPI description; used by tests and benchmarks/page_api.py."""

from __future__ import annotations

from collections import Counter
from typing import Any


def explore(url: str, cases: int) -> dict[str, Any]:
    """Send at least `cases` valid and invalid requests; return the counts of statuses and the failed checks."""
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
            recorder = event.recorder
            responses = [interaction.response for interaction in recorder.interactions.values()]
            statuses.update(response.status_code if response else 0 for response in responses)
            failures = [check.failure_info for checks in recorder.checks.values() for check in checks]
            wrong += [f"{recorder.label}: {info.failure}\n{info.code_sample}" for info in failures if info]
    return {"cases": statuses.total(), "statuses": dict(sorted(statuses.items())), "wrong": wrong}
