"""Write the tables and figures of docs/honest.md, and the README's table, from docs/evidence/*.json.

Run `python benchmarks/honest.py` after `make evidence`.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

DOCS = Path(__file__).parents[1] / "docs"
NAMES = {"ml-100k": "ML-100K", "amazon-video.csv.gz": "Amazon Video"}
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
    results: dict[str, dict[str, dict[str, dict[str, Any]]]] = {}
    for entry in evidence("honest-ml-100k") + evidence("honest-amazon"):
        for result in entry["result"]["results"]:
            results.setdefault(result["data"], {}).setdefault(result["protocol"], {})[result["method"]] = result
    return results


def table(data: dict[str, dict[str, dict[str, Any]]]) -> str:
    lines = [
        "| method | published: 99 | published: all | clean: 99 | 95 % of HR | clean: all | new people: 99 | round "
        "| up, a person in all | CPU seconds |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for name, clean in data["clean"].items():
        published = data.get("published", {}).get(name)
        low, high = clean["intervals"]["seen"]["sampled"]["hr@10"]
        cells = [
            f"`{name}`",
            pair(published["seen"]["sampled"]) if published else "-",
            pair(published["seen"]["full"]) if published else "-",
            pair(clean["seen"]["sampled"]),
            f"{short(low)} to {short(high)}",
            pair(clean["seen"]["full"]),
            pair(clean["new"]["sampled"]) if clean["new"] else "-",
            str(clean["best_round"]),
            size(clean["traffic"]["up_bytes"] / clean["members"]),
            f"{clean['seconds']['train_cpu']:.1f}",
        ]
        lines.append("| " + " | ".join(cells) + " |")
    leak = next(iter(data["published"].values()))["leak"] if data.get("published") else None
    clean_leak = next(iter(data["clean"].values()))["leak"]
    if leak:
        lines.append("")
        lines.append(
            f"The memoriser, which learns nothing: HR@10 {short(leak['memoriser_hr@10'])} under the published rules, "
            f"{short(clean_leak['memoriser_hr@10'])} under the clean ones."
        )
    return "\n".join(lines)


def markdown(heads: str, rows: list[list[Any]]) -> str:
    """A Markdown table; `heads` are separated by |."""
    lines = [f"| {heads} |", "|" + "---|" * (heads.count("|") + 1)]
    return "\n".join(lines + ["| " + " | ".join(map(str, row)) + " |" for row in rows])


SHOWN = (
    "popularity", "fedmf", "fedncf", "fcf", "pfedrec", "fedrap", "fedrecon", "fedveil", "fedeigen", "fedals",
    "fedtrail", "fedseq", "centralised",
)  # fmt: skip


def short_table() -> str:
    """The table of the README, of the comparison of all methods."""
    (entry,) = evidence("all")
    results = {result["method"]: result for result in entry["result"]["results"]}
    rows = []
    for name in SHOWN:
        clean = results[name]
        sent = size(clean["traffic"]["up_bytes"] / clean["members"])
        cpu = f"{clean['seconds']['train_cpu']:.1f}"
        cells = [pair(clean["seen"]["sampled"]), pair(clean["seen"]["full"]), pair(clean["new"]["sampled"])]
        rows.append([f"`{name}`", *cells, clean["best_round"], sent, cpu])
    return markdown(
        "method | 99 sampled | all items | new people, 99 | rounds | up, a person in all | CPU seconds", rows
    )


def sparsity() -> str:
    rows = []
    for entry in evidence("sparsity"):
        result = entry["result"]
        setting = entry["command"].split("--rounds ")[1].split(" ", 1)[1].removesuffix(" --json")
        zeros = f"{100 * result['curve'][-1]['zeros']:.0f} %"
        down = size(result["traffic"]["down_bytes"] / result["members"])
        rows.append([result["rounds"], f"`{setting}`", zeros, pair(result["seen"]["sampled"]), down])
    heads = "rounds | setting | zeros in the common table | HR / NDCG@10 (published) | down, a person in all"
    return markdown(heads, rows)


def trail() -> str:
    rows = []
    for entry in evidence("fedtrail"):
        result = entry["result"]
        options = entry["command"].removeprefix("fedtaste run --method fedtrail").removesuffix(" --json").strip()
        traffic = [size(result["traffic"][way] / result["members"]) for way in ("up_bytes", "down_bytes")]
        seen, new = result["seen"], result["new"]["sampled"]
        rows.append([f"`{options or 'default'}`", pair(seen["sampled"]), pair(seen["full"]), pair(new), *traffic])
    return markdown("setting | seen: 99 | seen: all | new: 99 | up, a person | down, a person", rows)


def curve(result: dict[str, Any]) -> tuple[list[int], list[float]]:
    points = [(p["round"], p["valid"]["hr@10"]) for p in result["curve"] if p["valid"]]
    return [r for r, _ in points], [v for _, v in points]


def figures(studies: dict[str, dict[str, dict[str, dict[str, Any]]]]) -> None:
    figure = Figure((11, 3.4 * len(studies)), layout="constrained")
    axes = figure.subplots(len(studies), 2, squeeze=False, sharey=True)
    for row, (data, protocols) in zip(axes, studies.items()):
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
    studies = study()
    parts = {f"study {NAMES[data]}": table(protocols) for data, protocols in studies.items() if "clean" in protocols}
    parts |= {"sparsity": sparsity(), "fedtrail": trail()}
    parts["study README"] = short_table()
    for page in (DOCS / "honest.md", DOCS.parent / "README.md"):
        text = page.read_text()
        for name, body in parts.items():
            place = re.compile(rf"(<!-- {name} -->\n).*?(<!-- end -->)", re.S)
            text = place.sub(lambda m, b=body: m[1] + b + "\n" + m[2], text)
        page.write_text(text)
    figures(studies)


if __name__ == "__main__":
    main()
