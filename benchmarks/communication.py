"""Accuracy against bytes: train every method with and without ways to send less, and draw the front.

    python benchmarks/communication.py [--worlds ml-100k movietweetings] [--again] [--page] [--only TEXT]
                                       [--out docs/evidence/communication.json]

A configuration trains on the training part of a data set. After some rounds validation is read (NDCG@10 and HR@10 among
99 others, seed 0) with the bytes up and down a person until then, as the ledger counted them. Budgets are answered from
these figures; for the answers alone test is read once, after training on training and validation data. Figures are
written after every configuration, and a script that was stopped continues there. docs/communication.md has the tables
and docs/communication.png the plot. Data sets that are not here are left out.
"""

from __future__ import annotations

import argparse
import datetime
import json
import shlex
import time
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from fedtaste.data.sources import load
from fedtaste.engine.run import State, run
from fedtaste.experiment.plan import plan
from fedtaste.experiment.resources import set_threads
from fedtaste.experiment.settings import Settings
from fedtaste.experiment.train import make_task
from fedtaste.report.numbers import human_bytes
from fedtaste.report.pareto import undominated
from fedtaste.report.style import COLOURS, MARKERS, MUTED, blank, legend, log_axis, quiet_style, short_bytes
from fedtaste.tasks.base import Served, Task
from fedtaste.wire.packing import pack

ROOT = Path(__file__).parents[1]
PAGE, PLOT = ROOT / "docs" / "communication.md", ROOT / "docs" / "communication.png"
WORLDS = {"ml-100k": "ml-100k", "movietweetings": "../shared/data/movietweetings.csv.gz"}
BUDGETS = (20e3, 100e3, 300e3, 1e6, 3e6, 10e6, 30e6, 1e12)  # bytes up a person, in all
READ = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 40, 48, 60)  # rounds after which validation is read
STEPWISE = (  # what `run` is called with, on both data sets; on ML-100K with more rounds
    "--method fedmf", "--method fedmf --wire quantise=8", "--method fedmf --wire turns=0.2",
    "--method fedmf --download int8",
    "--method fedrecon", "--method fedrecon --wire quantise=8", "--method fcf", "--method fedrap",
)  # fmt: skip
SOLVED = (
    "--method popularity",
    "--method fedals --rounds 8",
    "--method fedals --rounds 8 --download int8",
    "--method fedals --rounds 8 --wire turns=0.2",
    "--method fedals --rounds 12 --wire common_turns=0.2",
    "--method fedals --rounds 24 --wire turns=0.04 --download int8",
    "--method fedals --rounds 32 --set block=8",
    "--method fedals --rounds 24 --set block=8 --wire quantise=8 --download int8",
    "--method fedals --rounds 24 --set block=8 --wire quantise=4 --download int8",
    "--method fedeigen",
    "--method fedeigen --download int8",
    "--method fedeigen --download int8 --set k=16",
    "--method fedtrail",
    "--method fedtrail --download int8",
)
CONFIGURATIONS = {
    "ml-100k": (
        *SOLVED,
        "--method fedals --rounds 8 --wire quantise=8",
        "--method fedals --rounds 8 --wire quantise=4",
        "--method fedtrail --wire quantise=8",
        *(f"{words} --rounds 24" for words in STEPWISE),
        *(f"--method {name} --rounds 8" for name in ("fedrep", "ditto", "pfedrec", "pfedme", "apfl", "lgmix")),
        "--method fedncf --rounds 24",
        "--method fedveil",
        "--method fedseq",
        "--method fedseq --set trail=false --set start=eigen",
    ),
    "movietweetings": (*SOLVED, "--method fedveil", "--method fedseq", *(f"{words} --rounds 8" for words in STEPWISE)),
}


class Trial(NamedTuple):
    """A configuration and its figures, by round: (round, HR@10, NDCG@10, bytes up, bytes down) a person."""

    words: str
    curve: list[list[float]]

    @property
    def method(self) -> str:
        return self.words.split()[1]

    @property
    def best(self) -> list[float]:
        return max(self.curve, key=lambda point: point[2])


def settings_of(words: str, data: str) -> Settings:
    """The settings of a command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--method")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--wire", default="")
    parser.add_argument("--download", default="dense")
    parser.add_argument("--set", action="append", default=[])
    given = vars(parser.parse_args(shlex.split(words)))
    return Settings(**given | {"data": data, "set": dict(text.split("=") for text in given["set"])})


@cache
def task_of(data: str) -> Task:
    return make_task(settings_of("--method fedals", data), load(data))


def train(words: str, data: str, phase: str, rounds: int | None = None) -> tuple[Trial, Served]:
    """Train a configuration on the data of a phase; in "search" validation is read."""
    settings, task = settings_of(words, data), task_of(data)
    the_plan = plan(settings, task.facts)
    federation = task.federation(phase, the_plan.method, the_plan.sampling, None)
    people, up, down, curve, last = len(federation.members), 0, 0, [], rounds or the_plan.rounds
    served: Served | None = None
    for done in run(
        the_plan.method, the_plan.model, federation, rounds=last, wire=the_plan.wire.stage, download=settings.download
    ):
        up, down = up + done.up_bytes, down + done.down_bytes
        if done.number == last or (done.number in READ and not the_plan.method.schedule):  # good only at its end
            state: State = replace(done.state, shared=pack(done.state.shared, settings.download)[1])
            served = Served(the_plan.method, the_plan.model, state, the_plan.sampling)
            if phase == "search":
                metrics = task.validation(served).exact()
                if not metrics["ndcg@10"]:  # fedeigen counts in its first round, and has no model yet
                    continue
                figures = [metrics["hr@10"], metrics["ndcg@10"]]
                curve.append([done.number, *(round(x, 4) for x in figures), round(up / people), round(down / people)])
    assert served is not None
    return Trial(words, curve), served


def answers(trials: list[Trial]) -> list[dict[str, Any]]:
    """For every budget the configuration and number of rounds with the best validation NDCG@10 within it."""
    found: list[dict[str, Any]] = []
    for budget in BUDGETS:
        points = [(trial, point) for trial in trials for point in trial.curve if point[3] <= budget]
        if points:
            trial, point = max(points, key=lambda pair: (pair[1][2], -pair[1][3], -pair[1][4]))
            answer = {"budget": budget, "words": trial.words, "point": point}
            if not found or found[-1]["point"] != point:
                found.append(answer)
    return found


def front(trials: list[Trial]) -> list[tuple[float, float]]:
    """(bytes up, NDCG@10) of the configurations and rounds that nothing beats."""
    points = [(point[3], -point[2]) for trial in trials for point in trial.curve]
    return sorted((points[i][0], -points[i][1]) for i in undominated(points))


def draw(worlds: dict[str, list[Trial]]) -> None:
    """Every configuration's curve over its rounds, coloured by method, with the front; one panel a data set."""
    with quiet_style():
        drawing = blank()
        drawing.set_size_inches(11, 5.2)
        panels = drawing.subplots(1, len(worlds), squeeze=False)[0]
        methods = list(dict.fromkeys(trial.method for trials in worlds.values() for trial in trials))
        for axes, (name, trials) in zip(panels, worlds.items()):
            axes.set(title=name, xlabel="bytes up a person, all rounds", ylabel="validation NDCG@10", facecolor="none")
            sent = [point[3] for trial in trials for point in trial.curve]
            log_axis(axes, "x", min(sent), max(sent), short_bytes)
            best = front(trials)
            axes.step(*zip(*best, (max(sent), best[-1][1])), where="post", color=MUTED, lw=6, alpha=0.25, label="front")
            for method in methods:
                i = methods.index(method)
                for label, trial in zip((method, *[None] * 99), (t for t in trials if t.method == method)):
                    look = {"color": COLOURS[i % 7], "marker": MARKERS[(i + i // 7) % 7], "label": label}
                    axes.plot(*zip(*((p[3], p[2]) for p in trial.curve)), ms=4, lw=1, alpha=0.8, **look)
        legend(drawing, panels[0])
        drawing.set_layout_engine("constrained")
        drawing.savefig(PLOT, dpi=110, metadata={"Software": None})


def rows(name: str, entry: dict[str, Any]) -> str:
    """The tables of one data set: the answers to budgets, and the best round of every configuration."""
    data = "ml-100k" if name == "ml-100k" else "movietweetings.csv.gz"
    heads = f"up to | `fedtaste run --data {data} ...` | rounds | up | down | validation HR / NDCG | test HR / NDCG"
    lines = [f"### {name}", "", f"| {heads} |"]
    lines.append("|---|---|---|---|---|---|---|")
    for answer in entry["answers"]:
        number, hr, ndcg, up, down = answer["point"]
        budget = "any" if answer["budget"] > 1e9 else human_bytes(answer["budget"])
        test = f"{answer['test'][0]:.3f} / {answer['test'][1]:.3f}" if answer["test"] else "not read yet"
        figures = f"{human_bytes(up)} | {human_bytes(down)} | {hr:.3f} / {ndcg:.3f} | {test}"
        lines.append(f"| {budget} | `{answer['words']}` | {number:.0f} | {figures} |")
    lines += ["", "| configuration | best round | up | down | validation HR / NDCG |", "|---|---|---|---|---|"]
    for words, curve in entry["curves"].items():
        number, hr, ndcg, up, down = Trial(words, curve).best
        lines.append(f"| `{words}` | {number:.0f} | {human_bytes(up)} | {human_bytes(down)} | {hr:.3f} / {ndcg:.3f} |")
    return "\n".join(lines)


def write_page(evidence: dict[str, Any]) -> None:
    """Replace the tables of the page and draw the plot."""
    before, rest = PAGE.read_text().split("<!-- tables -->")[:2]
    after = rest.split("<!-- end of tables -->")[1]
    worlds = {name: evidence["worlds"][name] for name in WORLDS if name in evidence["worlds"]}
    tables = "\n\n".join(rows(name, entry) for name, entry in worlds.items())
    PAGE.write_text(f"{before}<!-- tables -->\n{tables}\n<!-- end of tables -->{after}")
    draw({name: [Trial(*item) for item in entry["curves"].items()] for name, entry in worlds.items()})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--worlds", nargs="*", default=list(WORLDS))
    parser.add_argument("--page", action="store_true", help="train nothing, write the page from the figures that exist")
    parser.add_argument("--only", default="", help="train configurations that contain this text, and read no test data")
    parser.add_argument("--again", action="store_true", help="train configurations that have figures already")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "evidence" / "communication.json")
    options = parser.parse_args()
    set_threads(1)
    evidence = {"worlds": {}} if options.again or not options.out.exists() else json.loads(options.out.read_text())
    began = time.process_time()
    for name in options.worlds:
        data = WORLDS[name] if name == "ml-100k" else str(ROOT / WORLDS[name])
        if name != "ml-100k" and not Path(data).exists():
            print(f"{name}: skipped, because {WORLDS[name]} does not exist", flush=True)
            continue
        entry = evidence["worlds"].setdefault(name, {"curves": {}, "answers": []})
        for words in CONFIGURATIONS[name]:
            if words not in entry["curves"] and options.only in words and not options.page:
                trial, _ = train(words, data, "search")
                entry["curves"][words] = trial.curve
                options.out.write_text(json.dumps(evidence, indent=1) + "\n")
                print(name, words, trial.best, f"{time.process_time() - began:.0f} CPU s", flush=True)
        known = {(old["words"], *old["point"]): old["test"] for old in entry["answers"]}
        entry["answers"] = answers([Trial(*item) for item in entry["curves"].items()])
        for answer in entry["answers"]:
            answer["test"] = known.get((answer["words"], *answer["point"]))
            if answer["test"] or options.page or options.only:
                continue
            _, served = train(answer["words"], data, "final", int(answer["point"][0]))
            metrics = task_of(data).evaluate(served, task_of(data).seen, None).exact()
            answer["test"] = [round(metrics["hr@10"], 4), round(metrics["ndcg@10"], 4)]
    evidence |= {"date": datetime.date.today().isoformat(), "cpu_seconds": round(time.process_time() - began)}
    options.out.write_text(json.dumps(evidence, indent=1) + "\n")
    write_page(evidence)


if __name__ == "__main__":
    main()
