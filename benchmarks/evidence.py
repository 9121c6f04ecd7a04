"""`make evidence`: run the slow commands and scripts, and write their figures with command, commit and date.

    python benchmarks/evidence.py                  everything that has no figures of the present source yet
    python benchmarks/evidence.py main privacy     only these jobs
    python benchmarks/evidence.py --matching fold  only the steps whose command contains this text
    python benchmarks/evidence.py --list           the jobs, when and at which commit they ran, and their CPU time
    python benchmarks/evidence.py --again main     run it again although its figures are of the present source
    python benchmarks/evidence.py --side-by-side 2 two jobs at a time, and after them, alone, those that measure time

A job is a list of steps: commands of fedtaste that print one JSON object, or programs of this folder that write
their own file. A step is finished when its figures are in docs/evidence/. docs/evidence/index.json records it with the
newest commit that changed its source, so an interrupted `make evidence` continues with the first step that is missing.
A step that fails ends its job; the other jobs go on, and the exit status is 1.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import shlex
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
OUT = ROOT / "docs" / "evidence"
INDEX = OUT / "index.json"
SOURCE = ("src", "constraints.txt")  # a change of these, or of a step's own program, makes figures outdated
AMAZON = "../shared/data/amazon-video.csv.gz"  # from the project's root; steps are skipped if it is missing
TWEETINGS = "../shared/data/movietweetings.csv.gz"
PROTOCOLS = ("published", "clean")
STUDY = "popularity,fedmf,fedncf,fcf,pfedrec,fedrap,fedrecon,fedals,fedtrail,centralised"
COMPARE = "popularity,local,fedavg,fedrecon,fedals,centralised"
JOBS = {  # name -> commands, each of which prints one JSON object
    "main": ["run", "run --set recency=1"],
    "folds": ["run --new-people folds"],
    "seeds": [
        "compare --methods fedals,fedtrail --seeds 5 --threads 1 --jobs 1",
        "compare --method fedals --sweep lam=0.003,0.01,0.03 --sweep k=16,32 --threads 1 --jobs 1",
    ],
    "ratings": [
        "run --task ratings --method fedrecon --set solver=exact",
        "run --task ratings --method fedrecon",
        "run --task ratings --method fedals",
        *(f"run --task ratings --method fedrecon --set solver=exact --seed {seed}" for seed in range(1, 6)),
    ],
    "linear": ["run --data linear --method fedsgd"],
    "published": ["run --protocol published", "run --protocol published --method fedavg"],
    "compare": [f"compare --methods {COMPARE}"],
    "honest-ml-100k": [f"compare --methods {STUDY} --data ml-100k --protocol {p} --threads 1" for p in PROTOCOLS],
    "honest-amazon": [f"compare --methods {STUDY} --data {AMAZON} --protocol {p} --threads 1" for p in PROTOCOLS],
    "fedrap": [
        "run --method fedrap --protocol published --rounds 100",
        "run --method fedrap --set released=true --rounds 100",
        "run --method fedrap",
        "run --method pfedrec --protocol published --rounds 60",
    ],
    "fedtrail": [
        "run --method fedtrail",
        "run --method fedtrail --new-people folds",
        *(f"run --method fedtrail --set parts={parts}" for parts in ("trail", "factors", "trail+als")),
        "run --method fedtrail --set keep=300 --set bits=8",
    ],
    "fedseq": [
        *(
            f"compare --methods popularity,fedals,fedtrail,fedseq --data {data} --seeds 3 --threads 1 --jobs 1"
            for data in ("ml-100k", AMAZON, TWEETINGS)
        ),
        *(
            f"run --method fedtrail --set parts=trail+als --data {data} --seeds 3 --threads 1"
            for data in ("ml-100k", AMAZON, TWEETINGS)
        ),
        "run --method fedseq --data ml-100k --new-people folds --threads 1",
        "run --method fedseq --data ml-100k --set bits=8 --wire secure --threads 1",
        *(
            "run --method fedseq --data ml-100k --set start=features --set trail=false --set server_lr=0.01 "
            f"--set warmup=10 --set hidden_dropout=0 --wire clip=1 --cohort 128 --epsilon {epsilon} --threads 1"
            for epsilon in (3, 10)
        ),
        *(
            f"run --method {name} --data ml-100k --wire clip=1 --epsilon {epsilon} --threads 1"
            for name in ("fedveil", "popularity")
            for epsilon in (3, 10)
        ),
    ],
    "sparsity": [
        f"run --method fedrap --protocol published --rounds {rounds} {form}"
        for rounds in (30, 100)
        for form in (
            "--download dense",
            "--set prox=0.003 --download sparse",
            "--set prox=0.003 --download rows",
            "--download int8",
        )
    ],
    "memory": [
        "run --data synthetic:6040x3706x1000000 --method fedrap --rounds 30 --threads 1",
        "run --data synthetic:24516x7455x266356 --method fedrap --rounds 20 --threads 1",
        "run --data synthetic:200000x60000x30000000 --method fedrap --rounds 1 --cohort 0.01 --threads 1",
    ],
    "bench": ["bench --method fedals", "bench --method fedrecon"],
    "bench-fedrap": ["bench --method fedrap"],
    "bench-clients": [f"bench --method {network}" for network in ("logistic", "cnn", "cnn-16")],
    "peers": ["bench --peers"],  # needs the extra `bench`, and once `fedtaste bench --peers --install`
    "all": ["compare --methods all --data ml-100k"],
    "audit": [
        f"audit --data ml-100k {words} --canaries 0"
        for words in (
            *(f"--method {name}" for name in ("fedrap", "fedmf", "fedals", "fedrecon", "fedtrail")),
            "--method fedals --wire secure=10",
            "--method fedals --wire secure=10 --rounds 6",
            "--method fedmf --wire secure=10 --rounds 6",
            "--method fedrap --wire clip=1,secure=10 --epsilon 10",
            "--method fedrap --wire clip=1,secure --epsilon 10",
            "--method fedmf --wire clip=1,local=1",
            "--method fedmf --wire sparsify=0.1,quantise=8",
            "--task ratings --method fedals",
        )
    ],
    "three-way": [
        "compare --methods popularity,fedveil --wire clip=1 --epsilon 1,3,10,none "
        "--axes accuracy,bytes,epsilon --data ml-100k"
    ],
}
FUZZED = tuple(f"fuzz-{decoder}" for decoder in ("message", "checkpoint", "run-folder", "text", "parquet"))
POISONED = (
    *(f"crude-{seed}" for seed in (1, 2, 3)), "adaptive", "profiles", "random", "flip", "crude-others",
    "adaptive-others", "fedals-crude", "fedals-adaptive",
)  # fmt: skip
SCRIPTS = {  # name -> programs that write their own evidence, one step each
    "sequences": ["sequences.py study"],
    "central_sequences": ["central_sequences.py"],  # needs once `python benchmarks/central_sequences.py --install`
    "degree": ["degree.py"],
    "shift": ["shift.py"],
    "privacy": [f"privacy.py {part}" for part in ("choose", "strength", "ml-100k", "integers", "fedavg", "synthetic")],
    "membership": ["membership.py"],
    "poisoning": [f"poisoning.py {part}" for part in POISONED],
    "faults": [f"faults.py {part}" for part in ("runs", "saving", "machine", *FUZZED)],
    "federation": [
        f"federation.py {part}" for part in ("parity", "tls", "deaths", "hostile", "secure", "capture", "scale")
    ],
    "page": ["page.py"],
    "communication": ["communication.py"],
    "api_load": ["api_load.py"],
    "additive": [f"additive.py --amazon {AMAZON}"],
    "new_items": ["new_items.py"],
    "defaults": ["defaults.py", "defaults.py --methods fedeigen --out docs/evidence/defaults_fedeigen.json"],
    "update": ["update.py --methods fedals,fedtrail --out docs/evidence/update.json"],
    "tables": ["honest.py"],  # the tables of README and docs/honest.md, from the files of the other jobs
}
TIMED = ("all", "bench", "bench-fedrap", "bench-clients", "peers", "page", "api_load")  # run alone
LAST = "tables"  # reads the figures of the other jobs
RECORDING = threading.Lock()  # of the files of docs/evidence/ that `record` writes
DROPPED = ("run", "runs", "report", "scale")  # fields that depend on the machine or are not needed
THIN = 10  # of a curve, every tenth round and the first two are kept


@dataclass(frozen=True)
class Step:
    """One command of a job."""

    job: str
    command: str  # as a user would type it

    @property
    def is_script(self) -> bool:
        return self.command.startswith("python ")

    @property
    def missing_data(self) -> str | None:
        """The file that this step needs and that does not exist here."""
        files = [data for data in (AMAZON, TWEETINGS) if data in self.command]
        return next((data for data in files if not (ROOT / data).exists()), None)

    @property
    def commit(self) -> str:
        """The newest commit that changed the source of these figures. Uncommitted changes are refused, since no commit
        would name them."""
        source = [*SOURCE, *(shlex.split(self.command)[1:2] if self.is_script else ())]
        if git("status", "--porcelain", "--", *source):
            raise SystemExit(f"There are uncommitted changes in {', '.join(source)}. Commit them first.")
        return git("log", "-1", "--format=%h", "--", *source)

    @property
    def is_done(self) -> bool:
        """Whether there are figures of the present source. The tables are always written again."""
        return self.job != LAST and read_index().get(self.command, {}).get("commit") == self.commit

    def run(self) -> tuple[dict[str, Any] | None, float]:
        """Run the command. Returns its CPU seconds, and what it printed, or None where it writes its own file."""
        words = shlex.split(self.command)[1:]
        if self.is_script:
            return None, run_process([sys.executable, *words])[1]
        with tempfile.TemporaryDirectory() as folder:
            out = [] if self.command.startswith("fedtaste bench") else ["--out", f"{folder}/run"]
            text, cpu = run_process([sys.executable, "-m", "fedtaste", *words, *out], read=True)
        figures: dict[str, Any] = slim(json.loads(text))
        return figures, cpu


def run_process(words: list[str], read: bool = False) -> tuple[str, float]:
    """Run a program from the project's root. Returns what it printed, if `read`, and the CPU seconds of it and of its
    children."""
    with tempfile.TemporaryFile("w+") as errors, tempfile.TemporaryFile("w+") as output:
        process = subprocess.Popen(words, cwd=ROOT, stdout=output if read else None, stderr=errors if read else None)
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        errors.seek(0)
        output.seek(0)
        if process.returncode:
            raise StepFailed(f"exit status {process.returncode}: {errors.read()}")
        return output.read(), used.ru_utime + used.ru_stime


class StepFailed(Exception):
    """A command of a step did not succeed."""


def steps() -> list[Step]:
    """The steps of all jobs, in the order in which they run."""
    commands = [Step(job, f"fedtaste {command} --json") for job, lines in JOBS.items() for command in lines]
    return commands + [Step(job, f"python benchmarks/{line}") for job, lines in SCRIPTS.items() for line in lines]


def slim(value: Any, name: str = "") -> Any:
    """A result without the dropped fields and with short curves."""
    if isinstance(value, dict):
        fields = {k: v for k, v in value.items() if k not in DROPPED or not isinstance(v, str | list)}
        return {k: slim(v, k) for k, v in fields.items()}
    if isinstance(value, list) and name == "curve":
        value = [point for point in value if point["round"] <= 2 or point["round"] % THIN == 0]
    if isinstance(value, list) and name == "results":  # of a comparison: only the plotted part of its many curves
        for result in value:
            result["curve"] = [{"round": p["round"], "valid": p["valid"]} for p in result["curve"]]
    return [slim(v) for v in value] if isinstance(value, list) else value


def git(*words: str) -> str:
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


def read_index() -> dict[str, Any]:
    """What has run, by command."""
    index: dict[str, Any] = json.loads(INDEX.read_text()) if INDEX.exists() else {}
    return index


def record(step: Step, figures: dict[str, Any] | None, about: dict[str, Any]) -> None:
    """Write the figures of a finished step, then its entry in the index."""
    if figures is not None:
        path = OUT / f"{step.job}.json"
        old = json.loads(path.read_text())["evidence"] if path.exists() else []
        kept = {entry["command"]: entry for entry in old} | {step.command: about | {"result": figures}}
        order = [other.command for other in steps() if other.job == step.job]
        path.write_text(json.dumps({"evidence": [kept[c] for c in order if c in kept]}, indent=1) + "\n")
    INDEX.write_text(json.dumps(read_index() | {step.command: about}, indent=1) + "\n")


def run_step(step: Step) -> None:
    print(f"{step.job}: {step.command}", flush=True)
    began = time.perf_counter()
    figures, cpu = step.run()
    seconds = {"cpu_seconds": round(cpu), "seconds": round(time.perf_counter() - began)}
    about = {"command": step.command, "commit": step.commit, "date": datetime.date.today().isoformat()} | seconds
    with RECORDING:
        record(step, figures, about)


def run_job(chosen: list[Step]) -> str | None:
    """Run the steps of a job one after the other. Returns the error that ended it."""
    for step in chosen:
        try:
            run_step(step)
        except StepFailed as error:
            print(f"{step.job}: FAILED: {step.command}: {error}", flush=True)
            return step.command
    return None


def show(chosen: list[Step]) -> None:
    """Print when each step ran, and the CPU time and the duration of all."""
    index, total, duration = read_index(), 0, 0
    for step in chosen:
        entry = index.get(step.command)
        total += entry["cpu_seconds"] if entry else 0
        duration += entry.get("seconds", entry["cpu_seconds"]) if entry else 0
        state = f"{entry['date']} {entry['commit']} {entry['cpu_seconds']:>6,} CPU s" if entry else "not yet"
        print(f"{step.job:<16} {state:<34} {step.command}")
    print(f"{total / 60:.0f} CPU minutes in all; {duration / 60:.0f} minutes, if one step runs after the other")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("jobs", nargs="*", help=f"of {', '.join([*JOBS, *SCRIPTS])}; all when left out")
    parser.add_argument("--list", action="store_true", help="print the steps and when they ran")
    parser.add_argument("--again", action="store_true", help="also run steps that have figures of the present source")
    parser.add_argument("--matching", default="", metavar="TEXT", help="only steps whose command contains this text")
    parser.add_argument("--side-by-side", type=int, default=1, metavar="N", help="jobs at a time; default 1")
    options = parser.parse_args()
    if unknown := set(options.jobs) - {*JOBS, *SCRIPTS}:
        parser.error(f"unknown jobs: {', '.join(sorted(unknown))}")
    chosen = [s for s in steps() if (not options.jobs or s.job in options.jobs) and options.matching in s.command]
    if options.list:
        show(chosen)
        return
    OUT.mkdir(parents=True, exist_ok=True)
    jobs: dict[str, list[Step]] = {}
    for step in chosen:
        if step.missing_data:
            print(f"{step.job}: skipped, because {step.missing_data} does not exist: {step.command}", flush=True)
        elif not step.is_done or options.again:
            jobs.setdefault(step.job, []).append(step)
    alone = [jobs.pop(name) for name in (*TIMED, LAST) if name in jobs]
    with ThreadPoolExecutor(options.side_by_side) as pool:
        failed = [error for error in pool.map(run_job, jobs.values()) if error]
    failed += [error for error in map(run_job, alone) if error]
    show(chosen)
    if failed:
        raise SystemExit("These steps failed:\n" + "\n".join(failed))


if __name__ == "__main__":
    main()
