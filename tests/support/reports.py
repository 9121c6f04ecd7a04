"""Build results like those of runs, and parse report pages, for the tests of reports."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

from fedtaste.experiment.result import RunResult
from fedtaste.report.html import write_report

EVIL = "<script>alert(1)</script>"
VOID = {"meta", "link", "img", "source", "br"}


def make_result(**fields) -> RunResult:
    """A RunResult with these fields; all other fields get neutral values."""
    defaults = {
        "data": "toy", "task": "ranking", "method": "fedals", "settings": {}, "protocol": "clean", "wire": "",
        "seed": 0, "rounds": 1, "people": 100, "members": 80, "items": 60, "feature_count": 0, "interactions": 2000,
        "new": None, "leak": None, "gradients": None, "privacy": None, "peak_rss_mb": 600.1, "rejected_updates": {},
        "notes": [], "run": "runs/toy-1", "scale": [0.0, 1.0],
    }  # fmt: skip
    parts = {
        "seen": {"people": 80}, "intervals": {"seen": {}, "new": None},
        "stopped": {"round": fields.get("rounds", 1), "reason": "all rounds were run"},
        "traffic": {"up_bytes": 0, "down_bytes": 0, "up_bytes_per_person_round": 0},
        "seconds": {"setup": 1.2, "train": 3.4, "evaluate": 0.9, "train_cpu": 3.3, "round": None},
    }  # fmt: skip
    curve_point = {
        "change": None, "loss": None, "answered": None, "zeros": None, "valid": None, "up_bytes": 0, "down_bytes": 0,
        "gradients": None,
    }  # fmt: skip
    fields = {"best_round": fields.get("rounds", 1), **fields}
    fields["curve"] = [curve_point | values for values in fields.get("curve", ())]
    return RunResult.model_validate(
        defaults | fields | {name: part | fields.get(name, {}) for name, part in parts.items()}
    )


def changed(result: RunResult, **fields) -> RunResult:
    """The same result with other values of some fields; of a field that is a dict, only the named keys change."""
    dump = result.dump()
    for name, value in fields.items():
        part = isinstance(value, dict) and isinstance(dump.get(name), dict) and name != "settings"
        dump[name] = dump[name] | value if part else value
    return RunResult.model_validate(dump)


def ranking(method: str = "fedals", level: float = 0.74, rounds: int = 4, up: int = 3_800_000, **changes) -> RunResult:
    def both(part: float) -> dict:
        return {"sampled": {"hr@10": part, "ndcg@10": part / 2}, "full": {"hr@10": part / 4, "ndcg@10": part / 8}}

    def spread(scores: dict) -> dict:
        return {kind: {key: [x - 0.02, x + 0.02] for key, x in part.items()} for kind, part in scores.items()}

    seen, new = both(level), both(level - 0.01)
    curve = [
        {
            "round": i,
            "up_bytes": up * 80 * i,
            "down_bytes": up * 80 * i,
            "valid": {"hr@10": level - 0.1 / i, "ndcg@10": level / 2 - 0.01 * rounds / i},
        }
        for i in range(1, rounds + 1)
    ]
    fields = {
        "method": method, "settings": {"k": 32, "lam": 0.01}, "rounds": rounds,
        "seen": {"people": 80, **seen}, "new": {"people": 20, **new},
        "intervals": {"seen": spread(seen), "new": spread(new)},
        "leak": {"memoriser_hr@10": 0.09, "popularity_hr@10": 0.41, "leaks": False},
        "traffic": {"up_bytes": up * 80 * rounds, "down_bytes": up * 80 * rounds, "up_bytes_per_person_round": up},
        "rejected_updates": {"norm above bound": 3}, "notes": ["Ties are broken by a hash."], "curve": curve,
    }  # fmt: skip
    return make_result(**(fields | changes))


RATINGS = make_result(
    method="fedrecon", rounds=20, seen={"people": 80, "rmse": 0.93, "accuracy": 0.42},
    intervals={"seen": {"rmse": [0.91, 0.95]}},
    curve=[{"round": i, "up_bytes": i * 10, "down_bytes": 0, "valid": {"rmse": 1 + 1 / i}} for i in (1, 2)],
)  # fmt: skip


class Page(HTMLParser):
    """Tags with attributes, the text, and the cells of the result table by row."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str]]] = []
        self.open: list[str] = []
        self.words: list[str] = []
        self.rows: list[dict[str, dict]] = []
        self.cell: dict = {}
        self.feed(text)
        self.close()
        self.text = re.sub(r"\s+", " ", " ".join(self.words))

    def handle_starttag(self, tag: str, attrs: list) -> None:
        attributes = {key: value or "" for key, value in attrs}
        self.tags.append((tag, attributes))
        if tag not in VOID:
            self.open.append(tag)
        if tag == "tr":
            self.rows.append({})
        if tag == "td" and "data-key" in attributes:
            self.cell = self.rows[-1][attributes["data-key"]] = {
                "value": None,
                "ends": None,
                "best": False,
                "shown": "",
            }
        if self.cell and tag == "data":
            self.cell["value"] = float(attributes["value"])
        if self.cell and attributes.get("class") == "ci":
            self.cell["ends"] = [float(attributes["data-low"]), float(attributes["data-high"])]
        if self.cell and attributes.get("class") == "best":
            self.cell["best"] = True

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag, f"{tag} is closed out of order"
        if tag == "td":
            self.cell = {}

    def handle_data(self, data: str) -> None:
        if "style" not in self.open:
            self.words.append(data.strip())
        if self.open and self.open[-1] == "data":
            self.cell["shown"] = data


def page_of(results: list[RunResult], folder: Path, **more) -> tuple[Page, str]:
    text = write_report(results, folder, **more).read_text("utf-8")
    page = Page(text)
    assert not page.open
    return page, text
