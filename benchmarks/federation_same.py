"""Parity with the simulator, TLS and keys, and killed processes: parts of benchmarks/federation.py."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

from federation_lab import Lab, Proxy, run_lab
from federation_watch import (
    again,
    at_work,
    compared,
    family,
    fedtaste,
    kill_when,
    listening,
    numbers_of,
    rounds_done,
    started,
)

from fedtaste.experiment.folder import RunFolder
from fedtaste.flower.certificates import make_authority, make_node_key
from fedtaste.flower.processes import environment, free_port, program

SMALL = "--data synthetic:120x60x2400 --rounds 2 --threads 1"
CASES = {  # nodes, options of both commands
    "fedals on ml-100k": (4, "--data ml-100k --method fedals --rounds 5"),
    "fedavg": (4, f"{SMALL} --method fedavg"),
    "fedrecon": (4, f"{SMALL} --method fedrecon"),
    "fedrap": (4, f"{SMALL} --method fedrap"),
    "fedseq": (2, "--data synthetic:120x60x2400 --method fedseq --rounds 20 --threads 1"),
    "fedclup (labels)": (4, "--data logistic:clients=8,examples=60 --method fedclup --rounds 2 --threads 1"),
}


def parity(place: Path) -> dict[str, Any]:
    """Run both commands and compare the results."""
    rows = {}
    for name, (nodes, options) in CASES.items():
        print(f"  fedtaste federate --nodes {nodes} {options}", flush=True)
        federation, simulator = (place / f"{name.split()[0]}-{kind}" for kind in ("federation", "simulator"))
        result = fedtaste("federate", "--nodes", nodes, *options.split(), "--out", federation)
        simulated = fedtaste("run", *options.split(), "--out", simulator)
        rows[name] = {
            "command": f"fedtaste federate --nodes {nodes} {options} --json",
            "against": f"fedtaste run {options} --json",
            "federation": numbers_of(result), "simulator": numbers_of(simulated),
            **compared(federation, simulator),
            "left_running": [seen.command for seen in family(federation)],
        }  # fmt: skip
    return {"runs": rows}


# Killed processes


def deaths(place: Path) -> dict[str, Any]:
    return {"revived": revived(place), "away_for_a_round": away(place)}


def revived(place: Path) -> dict[str, Any]:
    """Kill three processes of `fedtaste federate` on ml-100k; it continues by itself."""
    run = place / "killed"
    options = "--nodes 4 --data ml-100k --method fedrap --rounds 5 --wire clip=1,noise=0.1"
    process = started("federate", *options.split(), "--out", run, "--json")
    output: list[str] = []
    readers = [
        threading.Thread(target=lambda s=s: output.extend(s), daemon=True) for s in (process.stderr, process.stdout)
    ]
    for reader in readers:
        reader.start()
    alive = lambda: process.poll() is None
    kills = []
    try:
        for part, name, ready in (
            ("node-1", "flower-supernode", at_work(run, "final", 2, "node-1")),
            ("superlink", "flower-superlink", at_work(run, "final", 3, "node-0")),
            ("superlink", "flwr-serverapp", at_work(run, "final", 4, "node-0")),
        ):
            kills.append(kill_when(run, part, name, ready, alive))
            print(f"  killed {name} of {part} in round {kills[-1]['while_in_round']}", flush=True)
        addresses = {address for address, _ in listening([seen.pid for seen in family(run)])}
        process.wait()
    finally:
        if alive():
            process.terminate()
            process.wait()
        for reader in readers:
            reader.join(10)
    if process.returncode:
        raise SystemExit("".join(output))
    again(run, place / "killed-simulated")
    return {
        "command": f"fedtaste federate {options} --json",
        "kills": kills,
        "listened_on_127.0.0.1_alone": addresses == {"0100007F"},
        "said": [line.strip() for line in output if "ended" in line or "goes on" in line],
        "left_running": [seen.command for seen in family(run)],
        **participation(run),
        "against_the_simulator_with_that_participation": compared(run, place / "killed-simulated"),
    }


def participation(run: Path) -> dict[str, Any]:
    history = [entry.dump() for entry in RunFolder.open(run).result().federation.history]
    rounds = [(entry["phase"], entry["round"]) for entry in history]
    return {
        "rounds": [{key: entry[key] for key in ("phase", "round", "nodes", "people", "seconds")} for entry in history],
        "a_round_counted_twice": len(set(rounds)) < len(rounds),
    }


class Absent(Lab):
    """A Lab that does not restart the nodes in `away`."""

    away: tuple[str, ...] = ()

    def _restart(self, processes: Any) -> None:
        super()._restart([process for process in processes if process.name not in self.away])


def away(place: Path) -> dict[str, Any]:
    """Kill a node in round 2 and restart it after that round; its people continue from their last round."""
    run, killed = place / "away", []

    def tick(cluster: Absent) -> None:
        if not killed and at_work(run, "final", 2, "node-2")():
            killed.append(time.monotonic())
            cluster.away = ("node-2",)
            os.kill(cluster.processes["node-2"], signal.SIGKILL)
        if cluster.away and rounds_done(run)[1] >= 2:
            cluster.away = ()

    words = {"data": "ml-100k", "method": "fedrap", "rounds": 4, "wire": "clip=1"}
    run_lab(run, words, 4, deadline=60, tick=tick, kind=Absent)
    again(run, place / "away-simulated")
    return {
        "killed_in_round_2_and_away_until_it_was_over": "node-2",
        "deadline_seconds": 60,
        **participation(run),
        "against_the_simulator_with_that_participation": compared(run, place / "away-simulated"),
    }


# TLS and keys


class Spoiler:
    """Changes one bit in the middle of long messages while `left` is above 0."""

    def __init__(self) -> None:
        self.left = {True: 0, False: 0}  # by direction: to the SuperLink, and from it
        self.changed = {True: 0, False: 0}

    def __call__(self, data: bytes, up: bool) -> bytes:
        if not self.left[up] or len(data) < 1000:
            return data
        self.left[up] -= 1
        self.changed[up] += 1
        middle = len(data) // 2
        return data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]


def tls(place: Path) -> dict[str, Any]:
    """Connections that must be refused, and a node whose bytes are changed in transit during a run."""
    run, spoiler, refused = place / "changed", Spoiler(), {}
    threads: list[threading.Thread] = []

    def tick(cluster: Lab) -> None:
        if not threads:
            for name, words in strangers(cluster, place).items():
                threads.append(
                    threading.Thread(target=lambda n=name, w=words: refused.update({n: stranger(cluster, n, w)}))
                )
                threads[-1].start()
        if at_work(run, "final", 2, "node-2")() and not spoiler.changed[True]:
            spoiler.left[True] = 3
        if at_work(run, "final", 3, "node-2")() and not spoiler.changed[False]:
            spoiler.left[False] = 1

    words = {"data": "synthetic:120x60x2400", "method": "fedrap", "rounds": 5, "wire": "clip=1", "threads": 1}
    with Proxy(spoil=spoiler) as proxy:
        result = run_lab(run, words, 3, proxy=proxy, via=("node-2",), deadline=60, tick=tick)
        connections = proxy.connections
    for thread in threads:
        thread.join()
    again(run, place / "changed-simulated")
    log = (run / "federation/flower/logs/node-2.log").read_text(errors="replace")
    return {
        "refused": refused,
        "all_refused": all(row["exit_code"] == 1 and not row["let_in"] for row in refused.values())
        and len(refused) == 4,
        "bits_changed_on_the_way_to_the_superlink": spoiler.changed[True],
        "bits_changed_on_the_way_from_it": spoiler.changed[False],
        "connections_of_that_node": connections,
        "its_log_says": [
            re.sub(r"\x1b\[\d*m", "", line).strip()[:240]
            for line in log.splitlines()
            if "retrying" in line or "BAD_RECORD_MAC" in line
        ][:6],
        "rejected_updates": result["rejected_updates"],
        **participation(run),
        "against_the_simulator_with_that_participation": compared(run, place / "changed-simulated"),
    }


def strangers(cluster: Lab, place: Path) -> dict[str, list[str]]:
    """Command-line options of SuperNodes that must be refused, by name."""
    root, own = str(cluster.folder / "server" / "ca.crt"), str(cluster.folder / "nodes" / "node-0")
    foreign, other = make_node_key(place / "foreign", "node"), make_authority(place / "other")
    key = "--auth-supernode-private-key"
    return {
        "plain text": ["--insecure"],
        "a key that is not registered": ["--root-certificates", root, key, str(foreign)],
        "no key": ["--root-certificates", root],
        "a certificate of another authority": ["--root-certificates", str(other), key, own],
    }


def stranger(cluster: Lab, name: str, options: list[str]) -> dict[str, Any]:
    command = [program("flower-supernode"), "--superlink", Lab.address.fget(cluster), "--max-retries", "1"]  # type: ignore[attr-defined]
    command += ["--isolation", "process", "--port", str(free_port()), *options]  # so that it starts no other process
    env = environment(cluster.folder / "flower", f"{cluster.token}:stranger")
    with contextlib.suppress(subprocess.TimeoutExpired):
        process = subprocess.run(command, env=env, capture_output=True, timeout=200, check=False)
        output = (process.stdout + process.stderr).decode(errors="replace")
        reasons = [
            line.strip() for line in output.splitlines() if "rror" in line or "ailed" in line or "enabled" in line
        ]
        return {
            "exit_code": process.returncode,
            "let_in": "SuperNode ID" in output,
            "told": reasons[-1][:160] if reasons else "",
        }
    return {"exit_code": None, "let_in": None, "told": "no answer within 200 s"}
