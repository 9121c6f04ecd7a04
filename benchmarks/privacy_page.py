"""Fill the tables of docs/privacy.md, of FedVeil in docs/defaults.md and of README from docs/evidence/.

Run `python benchmarks/privacy_page.py`. It measures nothing.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
EVIDENCE = ROOT / "docs" / "evidence"
PAGES = (ROOT / "docs" / "privacy.md", ROOT / "docs" / "defaults.md", ROOT / "README.md")
SIZES = ("1", "2", "5", "10", "100")
LEVELS = (1.0, 3.0, 10.0, None)


def read(name: str) -> dict[str, Any]:
    return json.loads((EVIDENCE / f"{name}.json").read_text())


def short(value: float | None) -> str:
    """A number as .612."""
    return "–" if value is None else f"{value:.3f}".lstrip("0") if value < 1 else f"{value:.3f}"


def row(*cells: str) -> str:
    return "| " + " | ".join(cells) + " |"


def audit() -> list[str]:
    """F1 by the number of uploads in a sum, and for what the server sees: mean, most exposed person, rounds."""
    sizes = SIZES[:-1]
    heads = (*(f"{n} added" for n in sizes), "the server sees", "worst person", "epsilon of the whole run")
    lines = [row("command", *heads), row(*["---"] * (len(heads) + 1))]
    popularity = []
    for entry in read("audit")["evidence"]:
        result, command = entry["result"], entry["command"].removesuffix(" --json").removeprefix("fedtaste ")
        if result["task"] != "ranking":
            continue
        popularity.append(result["popularity_f1"])
        summed = result["in_sum"]
        figures = [
            short(result["sums"][n]["f1"]) if n in result["sums"] and int(n) >= summed else "not seen" for n in sizes
        ]
        view = "single uploads" if summed == 1 else f"sums of {summed}"
        rounds = f" of {result['rounds']} rounds" if result["rounds"] > 1 else ""
        epsilon = "none" if result["epsilon"] is None else f"{result['epsilon']:.3g}"
        shown = f"`{command.removesuffix(' --canaries 0')}`"
        lines.append(
            row(shown, *figures, f"{view}{rounds}: **{short(result['f1'])}**", short(result["worst_f1"]), epsilon)
        )
    lines.append(
        f"\nKnowing only what is popular gives {short(popularity[0])}; a figure at or below it means that no attack"
    )
    lines.append("of ours helped, and not that there is none.")
    return lines


def membership() -> list[str]:
    """Printed epsilon, and the lower bound that the audit reaches, with all of the noise and with a quarter of it."""
    heads = ("command", "epsilon", "at least", "TPR at FPR .001", "at least, with a quarter of the noise")
    lines = [row(*heads), row(*["---"] * len(heads))]
    for entry in read("membership")["rows"]:
        stated, quarter = entry["honest"], entry["quarter"]
        ratio = f"noise {quarter['noise_ratio'][0]:.2f} x as stated"
        above = quarter["epsilon_lower"] > stated["epsilon"]
        bound = f"**{quarter['epsilon_lower']:.2f}**" if above else f"{quarter['epsilon_lower']:.2f}"
        lines.append(
            row(
                f"`{entry['command'].removesuffix(' --json').removeprefix('fedtaste ')}`",
                f"{stated['epsilon']:.3f}",
                f"{stated['epsilon_lower']:.2f}",
                short(stated["tpr_at_fpr_0.001"]),
                f"{bound} ({ratio})",
            )  # fmt: skip
        )
    return lines


def accuracy() -> list[str]:
    parts = read("privacy")["parts"]
    rows = [r for part in ("ml-100k", "fedavg") for r in parts.get(part, {}).get("rows", [])]
    lines = [row("method", *("no noise" if e is None else f"epsilon {e:g}" for e in LEVELS)), row(*["---"] * 5)]
    for method in dict.fromkeys(r["method"] for r in rows):
        by_epsilon = {r["epsilon"]: r["seen sampled"] for r in rows if r["method"] == method}
        cells = [
            f"{short(by_epsilon[e]['hr@10'])} / {short(by_epsilon[e]['ndcg@10'])}" if e in by_epsilon else "–"
            for e in LEVELS
        ]
        lines.append(row(method, *cells))
    return lines


def strength() -> list[str]:
    """FedVeil's NDCG@10 on validation by its strength."""
    rows = read("privacy")["parts"]["strength"]["rows"]
    heads = ("data", "people x items", "noise", *rows[0]["ndcg@10"])
    lines = [row(*heads), row(*["---"] * len(heads))]
    for each in rows:
        noise = "none" if each["epsilon"] is None else f"epsilon {each['epsilon']:g}"
        name = Path(each["data"]).name.removesuffix(".csv.gz")
        figures = map(short, each["ndcg@10"].values())
        lines.append(row(name, f"{each['people']:,} x {each['items']:,}", noise, *figures))
    return lines


def poisoning() -> list[str]:
    """Exposure of unpopular targets and NDCG, by attack and rule."""
    heads = ("attack", "method", "server's rule", "ER@10", "NDCG@10", "NDCG lost")
    lines, seen = [row(*heads), row(*["---"] * len(heads))], set()
    for name, entry in read("poisoning").items():
        result = entry["result"]
        for each in result["rows"]:
            quiet = each["row"] in ("clean", "at peace")
            key = (each["row"] if quiet else name, result["method"], each["wire"] or "plain sum")
            if key not in seen:
                figures = (f"{each['exposure']:.4f}", short(each["ndcg@10"]), f"{each['ndcg_loss']:.1%}")
                lines.append(row(*key, *figures))
            seen.add(key)
    return lines


def main() -> None:
    tables = {
        "audit": audit,
        "membership": membership,
        "accuracy": accuracy,
        "strength": strength,
        "poisoning": poisoning,
    }
    for page in PAGES:
        text = page.read_text()
        for name, lines in tables.items():
            pattern = rf"<!-- {name} -->\n.*?<!-- end -->"
            if re.search(pattern, text, re.S):
                filled = "\n".join([f"<!-- {name} -->", *lines(), "<!-- end -->"])
                text = re.sub(pattern, lambda _, filled=filled: filled, text, flags=re.S)
        page.write_text(text)


if __name__ == "__main__":
    main()
