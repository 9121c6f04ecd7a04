"""Cost of a round with 1, 2 and 4 nodes, and an estimate for a thousand: a part of benchmarks/federation.py.

CPU is read from /proc during the run, by part of the federation and by program, including children that have ended.
Every message starts a process at the node, so most of the cost is the start of Python and torch.
"""

from __future__ import annotations

import time
from collections import defaultdict
from pathlib import Path
from typing import Any

from federation_lab import Lab, Proxy, run_lab
from federation_watch import family

PROGRAMS = ("flower-superlink", "flwr-serverapp", "flower-superexec", "flower-supernode", "flwr-clientapp")
WORLDS = {
    "ml-100k, fedals": ({"data": "ml-100k", "method": "fedals", "rounds": 3, "new_people": 0.0}, (1, 2, 4)),
    "20,000 people, fedrap": (
        {"data": "synthetic:20000x2000x1000000", "method": "fedrap", "rounds": 2, "new_people": 0.0},
        (1, 2, 4),
    ),
}  # fmt: skip
IDLE = 40  # seconds for which an idle federation is measured
NODES = 1000


class Meter:
    """CPU and memory of a federation's programs."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.cpu: dict[tuple[str, str], float] = {}  # seconds, by part and program
        self.memory: dict[tuple[str, str], int] = defaultdict(int)  # peak, by part and program
        self.ended: dict[int, tuple[tuple[str, str], float]] = {}  # last reading, by process

    def look(self, _: Lab | None = None) -> None:
        """Read all processes. A process that has ended counts with its last reading."""
        for process in family(self.home):
            name = next((program for program in PROGRAMS if f"/{program} " in f"{process.command} "), "")
            if name:
                self.ended[process.pid] = (process.part, name), process.cpu
                self.memory[process.part, name] = max(self.memory[process.part, name], process.memory)
        self.cpu = {}
        for key, cpu in self.ended.values():
            if key[1] != "flwr-clientapp":  # counted with their parents
                self.cpu[key] = self.cpu.get(key, 0.0) + cpu

    def seconds(self, part: str, *programs: str) -> float:
        """CPU seconds of these programs in parts whose names start with `part`."""
        return sum(cpu for (of, name), cpu in self.cpu.items() if of.startswith(part) and name in programs)

    def peak(self, part: str, program: str) -> float:
        """Peak memory in MB of a program in parts whose names start with `part`."""
        sizes = [size for (of, name), size in self.memory.items() if of.startswith(part) and name == program]
        return max(sizes, default=0) / 1e6


def scale(place: Path) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for world, (options, sizes) in WORLDS.items():
        rows = []
        for nodes in sizes:
            print(f"  {world}: {nodes} nodes", flush=True)
            rows.append(measure(place / f"{world.split(',')[0].replace(' ', '-')}-{nodes}", options, nodes))
        out[world] = {"settings": options, "nodes": rows}
    out["idle"] = idle(place / "idle", 4)
    first = out["ml-100k, fedals"]["nodes"]
    out["a_thousand_nodes"] = thousand(first, out["idle"])
    return out


def measure(run: Path, options: dict[str, Any], nodes: int) -> dict[str, Any]:
    meter, start = Meter(run), time.perf_counter()
    with Proxy() as proxy:
        result = run_lab(
            run,
            options,
            nodes,
            proxy=proxy,
            via=tuple(f"node-{n}" for n in range(nodes)),
            deadline=600,
            tick=meter.look,
        )
        proxy_bytes = proxy.up_bytes, proxy.down_bytes
    history, people = result["federation"]["history"], result["members"]
    validations = sum(entry["phase"] == "search" for entry in history)
    messages = nodes * (1 + len(history) + validations + 1)  # hello, rounds, validations, evaluation
    seconds = [entry["seconds"] for entry in history]
    at_nodes = meter.seconds("node-", "flower-superexec", "flower-supernode")
    return {
        "nodes": nodes, "people": people, "rounds": len(history), "messages": messages,
        "took_seconds": round(time.perf_counter() - start, 1),
        "seconds_of_a_round": {"median": sorted(seconds)[len(seconds) // 2], "all": seconds},
        "cpu_seconds": {
            "a_message_at_its_node": round(at_nodes / messages, 3),
            "a_round_at_a_node": round(at_nodes / messages, 3),
            "a_round_for_a_person": round(at_nodes / messages * nodes / people, 6),
            "superlink_a_message": round(meter.seconds("superlink", "flower-superlink") / messages, 4),
            "server_app_in_all": round(meter.seconds("superlink", "flwr-serverapp"), 2),
            "superlink_in_all": round(meter.seconds("superlink", "flower-superlink"), 2),
            "nodes_in_all": round(at_nodes, 1),
        },
        "bytes": {
            "a_round_up_at_a_node": round(result["traffic"]["up_bytes"] / max(result["rounds"], 1) / nodes),
            "a_round_down_at_a_node": round(result["traffic"]["down_bytes"] / max(result["rounds"], 1) / nodes),
            "on_the_line_up_in_all": proxy_bytes[0], "on_the_line_down_in_all": proxy_bytes[1],
            "on_the_line_a_message": round(sum(proxy_bytes) / messages),
        },
        "memory_mb": {
            "superlink": round(meter.peak("superlink", "flower-superlink")),
            "server_app": round(meter.peak("superlink", "flwr-serverapp")),
            "node_idle": round(meter.peak("node-", "flower-supernode") + meter.peak("node-", "flower-superexec")),
            "node_while_it_computes": round(meter.peak("node-", "flwr-clientapp")),
        },
    }  # fmt: skip


def readings(meter: Meter, proxy: Proxy) -> tuple[float, float, int]:
    """CPU seconds of the SuperLink and of the nodes, and bytes, until now."""
    superlink, nodes = meter.seconds("superlink", "flower-superlink"), meter.seconds("node-", *PROGRAMS)
    return superlink, nodes, proxy.up_bytes + proxy.down_bytes


def idle(place: Path, nodes: int) -> dict[str, Any]:
    """CPU and traffic of nodes that wait for work."""
    meter = Meter(place)
    with Proxy() as proxy, Lab(
        place / "flower", [{"name": f"node-{number}"} for number in range(nodes)], proxy=proxy,
        via=tuple(f"node-{number}" for number in range(nodes)), log=print,
    ):  # fmt: skip
        time.sleep(5)
        meter.look()
        before, start = readings(meter, proxy), time.monotonic()
        time.sleep(IDLE)
        meter.look()
        seconds = time.monotonic() - start
        after = readings(meter, proxy)
    share = [(b - a) / seconds / nodes for a, b in zip(before, after)]
    return {
        "nodes": nodes, "seconds": round(seconds),
        "superlink_cpu_share_for_a_node": round(share[0], 5),
        "node_cpu_share": round(share[1], 5),
        "bytes_a_second_for_a_node": round(share[2]),
    }  # fmt: skip


def thousand(rows: list[dict[str, Any]], waiting: dict[str, Any]) -> dict[str, Any]:
    """Estimate a thousand nodes from the measurement with the most; SuperLink and server app are one process each."""
    last, first = rows[-1], rows[0]
    message = last["cpu_seconds"]["superlink_a_message"]
    up, down = last["bytes"]["a_round_up_at_a_node"], last["bytes"]["a_round_down_at_a_node"]
    server = (last["cpu_seconds"]["server_app_in_all"] - first["cpu_seconds"]["server_app_in_all"]) / (
        last["messages"] - first["messages"]
    )
    grows = (last["memory_mb"]["superlink"] - first["memory_mb"]["superlink"]) / (last["nodes"] - first["nodes"])
    return {
        "computed_from": "ml-100k, fedals, 4 nodes; a shared table of 1,682 items with the sums of an exact solve",
        "superlink_cpu_seconds_a_round": round(NODES * message, 1),
        "superlink_cores_while_nodes_wait": round(NODES * waiting["superlink_cpu_share_for_a_node"], 2),
        "server_app_cpu_seconds_a_round": round(NODES * max(server, 0.0), 1),
        "gigabytes_up_a_round": round(NODES * up / 1e9, 2),
        "gigabytes_down_a_round": round(NODES * down / 1e9, 2),
        "seconds_of_a_round_on_a_line_of_1_gbit": round(NODES * max(up, down) * 8 / 1e9, 1),
        "superlink_memory_mb_more_a_node": round(grows, 1),
    }
