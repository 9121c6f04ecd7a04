"""Measure additive personalisation (item = common + own) under the clean protocol; write docs/evidence/additive.json.

python benchmarks/additive.py [--quick] [--study fedrap] [--amazon FILE] [--tweetings FILE] [--out FILE] [--table]

--study runs one of the three studies (fedrap, released, factors) and leaves the figures of the others; --quick is a
smoke test and writes only to --out; --table prints the first two as the tables of docs/additive.md, without a run.

The studies compare FedRAP with common + own tables and with the common table alone, with its clean defaults and with
the released settings, and try private additions to FedALS's shared factors. Every choice is made on validation; the
test of each choice is read once. docs/additive.md has the results.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import time
from pathlib import Path

from additive_factors import study_factors
from additive_fedrap import BASE, FIXED, LABELS, SEEDS, STRENGTHS, study_fedrap, study_released

import fedtaste
from fedtaste.experiment.resources import set_threads

STUDIES = ("fedrap", "released", "factors")
ROOT = Path(__file__).parents[1]
SHARED = ROOT.parent / "shared" / "data"
AMAZON = os.environ.get("FEDTASTE_AMAZON", str(SHARED / "amazon-video.csv.gz"))
TWEETINGS = os.environ.get("FEDTASTE_TWEETINGS", str(SHARED / "movietweetings.csv.gz"))


def signed(value: float) -> str:
    return f"{value:+.3f}".replace("0.", ".")


def print_tables(page: dict) -> None:
    """The studies of FedRAP: test levels, both - common with intervals, and validation by strength of the own part."""
    print("| data | settings | NDCG common, both | both - common: HR | NDCG | HR full |\n|---|---|---|---|---|---|")
    for name, data in page["data"].items():
        results = {**data.get("released", {}).get("results", {}), **data.get("fedrap", {}).get("results", {})}
        for label, words in LABELS.items():
            if f"{label} both - common" not in results:
                continue
            levels = [f"{results[f'{label} {parts}']['test']['ndcg']:.3f}"[1:] for parts in ("common", "both")]
            gaps = results[f"{label} both - common"]["difference"]
            cells = [gap_cell(gaps[n]["all"]) if n in gaps else "" for n in ("hr", "ndcg", "hr_full")]
            print("|", " | ".join([name, words, ", ".join(levels), *cells]), "|")
    for name, data in page["data"].items():
        for parts, trials in data.get("fedrap", {}).get("validation", {}).items():
            for trial in trials:
                rate = trial["settings"]["own_rate"] if parts == "both" else 0
                print(f"{name}: own_rate {rate}, validation NDCG@10 {trial['ndcg']:.4f} in round {trial['round']}")


def gap_cell(gap: dict) -> str:
    """A difference with its interval; bold where the interval is without 0."""
    low, high = gap["ci"]
    mean = f"**{signed(gap['mean'])}**" if low > 0 or high < 0 else signed(gap["mean"])
    return f"{mean} [{signed(low)}, {signed(high)}]"


def paths(arguments: argparse.Namespace, study: str) -> dict[str, str]:
    """The data sets of a study that are there, by name."""
    wanted = {"ml-100k": "ml-100k", "amazon-video": arguments.amazon}
    wanted |= {"movietweetings": arguments.tweetings} if study != "factors" else {}
    missing = [name for name, path in wanted.items() if name != path and not Path(path).exists()]
    for name in missing:
        print(f"SKIPPED: {name} was not found; name its file with --amazon or --tweetings.", flush=True)
    return {name: path for name, path in wanted.items() if name not in missing}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--study", choices=STUDIES)
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--amazon", default=AMAZON)
    parser.add_argument("--tweetings", default=TWEETINGS)
    parser.add_argument("--out")
    arguments = parser.parse_args()
    evidence = ROOT / "docs" / "evidence" / "additive.json"
    out = Path(arguments.out or evidence) if arguments.out or not arguments.quick else None
    page = json.loads(out.read_text()) if out and out.exists() else {"data": {}}
    studies = () if arguments.table else (arguments.study,) if arguments.study else STUDIES
    for study in studies:
        start, names = time.perf_counter(), paths(arguments, study)
        facts, figures = run_study(study, names, arguments.quick)
        page[study] = {"date": datetime.date.today().isoformat(), **facts}
        page[study]["minutes"] = round((time.perf_counter() - start) / 60, 1)
        for name in names:
            page["data"].setdefault(name, {}).update(figures[name])
        if out:
            out.write_text(json.dumps(page, indent=1) + "\n")
    print_tables(page)


def run_study(study: str, names: dict[str, str], quick: bool) -> tuple[dict, dict[str, dict]]:
    """(how the study was made, its figures by data set)."""
    set_threads(1)
    command = f"python benchmarks/additive.py --study {study}" + " --quick" * quick
    if study == "fedrap":
        rounds = 2 if quick else 80
        results = study_fedrap(list(names.values()), rounds)
        facts: dict = {"settings": FIXED | BASE, "strengths": STRENGTHS, "rounds": rounds, "seeds": SEEDS}
        figures = {name: {"fedrap": results[path]} for name, path in names.items()}
    elif study == "released":
        rounds = 2 if quick else 80
        results = study_released(list(names.values()), rounds)
        facts = {"rounds": rounds, "seeds": SEEDS}
        figures = {name: {"released": results[path]} for name, path in names.items()}
    else:
        seeds = {"ml-100k": 1, "amazon-video": 1} if quick else {"ml-100k": 3, "amazon-video": 2}
        facts = {"seeds": seeds}
        figures = {name: {"factors": study_factors(fedtaste.load(p), p, seeds[name])} for name, p in names.items()}
    for name, path in names.items():
        data = fedtaste.load(path)
        figures[name] |= {"people": len(data.people), "items": len(data.items), "interactions": len(data)}
    return {"command": command, **facts}, figures


if __name__ == "__main__":
    main()
