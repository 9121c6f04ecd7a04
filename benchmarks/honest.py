"""docs/honest.md's tables and figures out of docs/evidence/*.json: no figure there is typed by hand.

python benchmarks/honest.py      after `make evidence`
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

DOCS = Path(__file__).parents[1] / "docs"
NAMES = {"ml-100k": "ML-100K", "../shared/data/amazon-video.csv.gz": "Amazon Video"}
FOUR = {"fedrap": "#c44e52", "pfedrec": "#4c72b0", "fedmf": "#55a868", "fedncf": "#8172b2"}


def evidence(name: str) -> list[dict[str, Any]]:
    path = DOCS / "evidence" / f"{name}.json"
    return json.loads(path.read_text())["evidence"] if path.exists() else []


def short(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}".removeprefix("0") if value < 1 else f"{value:.3f}"


def pair(part: dict[str, float]) -> str:
    return f"{short(part['hr@10'])} / {short(part['ndcg@10'])}"


def size(count: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB"


def study() -> dict[str, dict[str, dict[str, dict[str, Any]]]]:
    """data -> protocol -> method -> result."""
    found: dict[str, dict[str, dict[str, dict[str, Any]]]] = {}
    for entry in evidence("honest-ml-100k") + evidence("honest-amazon"):
        for result in entry["result"]["results"]:
            found.setdefault(result["data"], {}).setdefault(result["protocol"], {})[result["method"]] = result
    return found


def table(data: dict[str, dict[str, dict[str, Any]]]) -> str:
    lines = [
        "| method | published: 99 | published: all | clean: 99 | 95 % of HR | clean: all | new people: 99 | round "
        "| up, a person in all | CPU seconds |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for name, clean in data["clean"].items():
        leaky = data.get("published", {}).get(name)
        low, high = clean["intervals"]["seen"]["sampled"]["hr@10"]
        cells = [
            f"`{name}`",
            pair(leaky["seen"]["sampled"]) if leaky else "-",
            pair(leaky["seen"]["full"]) if leaky else "-",
            pair(clean["seen"]["sampled"]),
            f"{short(low)} to {short(high)}",
            pair(clean["seen"]["full"]),
            pair(clean["new"]["sampled"]) if clean["new"] else "-",
            str(clean["best_round"]),
            size(clean["traffic"]["up_bytes"] / clean["people"]),
            f"{clean['seconds']['train_cpu']:.1f}",
        ]
        lines.append("| " + " | ".join(cells) + " |")
    leak = next(iter(data["published"].values()))["leak"] if data.get("published") else None
    honest = next(iter(data["clean"].values()))["leak"]
    if leak:
        lines.append("")
        lines.append(
            f"The memoriser, which learns nothing: HR@10 {short(leak['memoriser_hr@10'])} under the published rules, "
            f"{short(honest['memoriser_hr@10'])} under the clean ones."
        )
    return "\n".join(lines)


def markdown(heads: str, rows: list[list[Any]]) -> str:
    """A table; `heads` with | between."""
    lines = [f"| {heads} |", "|" + "---|" * (heads.count("|") + 1)]
    return "\n".join(lines + ["| " + " | ".join(map(str, row)) + " |" for row in rows])


def in_short(data: dict[str, dict[str, dict[str, Any]]]) -> str:
    """README's table."""
    lines = [
        "| method | clean: 99 sampled | clean: all items | new people, 99 | rounds | up, person and round "
        "| CPU seconds | published: 99 |",
        "|" + "---|" * 8,
    ]
    for name, clean in data["clean"].items():
        leaky = data.get("published", {}).get(name)
        cells = [
            f"`{name}`",
            pair(clean["seen"]["sampled"]),
            pair(clean["seen"]["full"]),
            pair(clean["new"]["sampled"]),
            str(clean["best_round"]),
            size(clean["traffic"]["up_bytes_per_person_round"]),
            f"{clean['seconds']['train_cpu']:.1f}",
            pair(leaky["seen"]["sampled"]) if leaky else "-",
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def sparsity() -> str:
    rows = []
    for entry in evidence("sparsity"):
        result = entry["result"]
        what = entry["command"].split("--rounds ")[1].split(" ", 1)[1].removesuffix(" --json")
        zeros = f"{100 * result['curve'][-1]['zeros']:.0f} %"
        down = size(result["traffic"]["down_bytes"] / result["people"])
        rows.append([result["rounds"], f"`{what}`", zeros, pair(result["seen"]["sampled"]), down])
    heads = "rounds | setting | zeros in the common table | HR / NDCG@10 (published) | down, a person in all"
    return markdown(heads, rows)


def trail() -> str:
    rows = []
    for entry in evidence("fedtrail"):
        result = entry["result"]
        what = (
            entry["command"].removeprefix("fedtaste run --method fedtrail").removesuffix(" --json").strip() or "default"
        )
        traffic = [size(result["traffic"][way] / result["people"]) for way in ("up_bytes", "down_bytes")]
        seen, new = result["seen"], result["new"]["sampled"]
        rows.append([f"`{what}`", pair(seen["sampled"]), pair(seen["full"]), pair(new), *traffic])
    return markdown("setting | seen: 99 | seen: all | new: 99 | up, a person | down, a person", rows)


def curve(result: dict[str, Any]) -> tuple[list[int], list[float]]:
    taken = [(p["round"], p["valid"]["hr@10"]) for p in result["curve"] if p["valid"]]
    return [r for r, _ in taken], [v for _, v in taken]


def figures(found: dict[str, dict[str, dict[str, dict[str, Any]]]]) -> None:
    figure = Figure((11, 3.4 * len(found)), layout="constrained")
    axes = figure.subplots(len(found), 2, squeeze=False, sharey=True)
    for row, (data, protocols) in zip(axes, found.items()):
        for axis, protocol in zip(row, ("published", "clean")):
            results = protocols.get(protocol, {})
            for name, colour in FOUR.items():
                if name in results:
                    axis.plot(*curve(results[name]), color=colour, marker=".", label=name)
            if results:
                leak = next(iter(results.values()))["leak"]
                axis.axhline(leak["popularity_hr@10"], color="black", lw=1, ls=":", label="popularity")
                if protocol == "published":
                    axis.axhline(leak["memoriser_hr@10"], color="grey", ls="--", label="memoriser, 50 rounds")
            axis.set(title=f"{NAMES.get(data, data)}, {protocol}", xlabel="round", ylabel="HR@10 (chooses the round)")
            axis.legend(frameon=False, fontsize=8)
    figure.savefig(DOCS / "honest-convergence.png", dpi=110)
    runs = {
        entry["result"]["protocol"]: entry["result"] for entry in evidence("fedrap") if "fedrap" in entry["command"]
    }
    if "published" in runs:
        figure = Figure((6.5, 3.6), layout="constrained")
        axis = figure.subplots()
        axis.plot(*curve(runs["published"]), color=FOUR["fedrap"], marker=".", label="FedRAP, published")
        axis.plot(*curve(runs["clean"]), color=FOUR["fedrap"], ls=":", marker=".", label="FedRAP, clean")
        axis.plot(
            *zip(*runs["published"]["leak"]["memoriser_curve"]), color="grey", ls="--", label="memoriser, published"
        )
        axis.axhline(runs["published"]["leak"]["popularity_hr@10"], color="black", lw=1, label="popularity")
        axis.set(xlabel="round", ylabel="HR@10", title="ML-100K: FedRAP beside a memory of drawn negatives")
        axis.legend(frameon=False)
        figure.savefig(DOCS / "honest-memoriser.png", dpi=110)


def main() -> None:
    found = study()
    parts = {f"study {NAMES[data]}": table(protocols) for data, protocols in found.items() if "clean" in protocols}
    parts |= {"sparsity": sparsity(), "fedtrail": trail()}
    if "clean" in found.get("ml-100k", {}):
        parts["study README"] = in_short(found["ml-100k"])
    for page in (DOCS / "honest.md", DOCS.parent / "README.md"):
        text = page.read_text()
        for name, body in parts.items():
            place = re.compile(rf"(<!-- {name} -->\n).*?(<!-- end -->)", re.S)
            text = place.sub(lambda m, b=body: m[1] + b + "\n" + m[2], text)
        page.write_text(text)
    figures(found)


if __name__ == "__main__":
    main()
