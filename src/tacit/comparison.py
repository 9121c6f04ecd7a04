"""Several runs on the same data under the same protocol: run one after the other, weighed, and put into one report."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from .errors import DivergedError
from .heterogeneity import heterogeneity
from .report import write_report
from .runs import RunFolder
from .tasks import Task
from .tradeoff import Tradeoff, weigh

Run = Callable[[str, Any, Path], dict[str, Any]]


def compare(
    wanted: dict[str, Any], task: Task, path: Path, seed: int, shape: dict[str, Any] | None, run: Run,
    say: Callable[[str], None],
) -> tuple[list[dict[str, Any]], Path, Tradeoff | None]:  # fmt: skip
    """(results, the report's path, what they weigh). A run whose numbers are lost is left out, with the reason; the
    others are not lost with it."""
    results, lost = [], None
    for label, settings in wanted.items():
        try:
            results.append(run(label, settings, path / label.replace("/", "-")))
        except DivergedError as error:
            lost = error
            say(f"{label} is left out: {error}")
    if lost is not None and not results:
        raise lost
    measured = heterogeneity(task, seed)
    weighed, folders = weigh(results, measured), [Path(result["run"]) for result in results]
    report = write_report(results, path, data=shape, runs=folders, weighed=weighed)
    RunFolder(path).write("compare.json", {"runs": [folder.name for folder in folders], "heterogeneity": measured})
    return results, report, weighed
