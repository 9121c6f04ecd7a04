"""1, 2 and 4 nodes with the same people: what a round costs, where it is spent, and what a thousand nodes would need. A
part of benchmarks/federation.py.

CPU is read from /proc while the run lasts, by part of the federation and by program, children that have ended included.
Every message starts a process of its own at the node, so most of what is measured is the start of Python and torch.
"""

from __future__ import annotations

import time
from collections import defaultdict
from pathlib import Path
from typing import Any

from federation_lab import Lab, Proxy, held
from federation_watch import family

PROGRAMS = ("flower-superlink", "flwr-serverapp", "flower-superexec", "flower-supernode", "flwr-clientapp")
WORLDS = {
    "ml-100k, fedals": ({"data": "ml-100k", "method": "fedals", "rounds": 3, "new_people": 0.0}, (1, 2, 4)),
    "20,000 people, fedrap": (
        {"data": "synthetic:20000x2000x1000000", "method": "fedrap", "rounds": 2, "new_people": 0.0},
        (1, 2, 4),
    ),
}  # fmt: skip
IDLE = 40  # seconds that a federation is watched doing nothing
NODES = 1000


class Meter:
    """CPU and memory of a federation's programs, and when rounds were done."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.cpu: dict[tuple[str, str], float] = {}  # by part and program: seconds, now
        self.memory: dict[tuple[str, str], int] = defaultdict(int)  # the most at any time
        self.ended: dict[int, tuple[tuple[str, str], float]] = {}  # by process: the last that was seen of it

    def look(self, _: Lab | None = None) -> None:
        """Read all of it. A process that ended without its parent asking for it is counted as it was last seen."""
        for one in family(self.home):
            name = next((program for program in PROGRAMS if f"/{program} " in f"{one.command} "), "")
            if name:
                self.ended[one.pid] = (one.part, name), one.cpu
                self.memory[one.part, name] = max(self.memory[one.part, name], one.memory)
        self.cpu = {}
        for key, cpu in self.ended.values():
            if key[1] != "flwr-clientapp":  # those are in their parent's count, to the last moment
                self.cpu[key] = self.cpu.get(key, 0.0) + cpu

    def seconds(self, part: str, *programs: str) -> float:
        """CPU of parts whose name begins so."""
        return sum(cpu for (of, name), cpu in self.cpu.items() if of.startswith(part) and name in programs)

    def most(self, part: str, program: str) -> float:
        """MB."""
        return (
            max(
                (size for (of, name), size in self.memory.items() if of.startswith(part) and name == program), default=0
            )
            / 1e6
        )


def scale(place: Path) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for world, (words, sizes) in WORLDS.items():
        rows = []
        for nodes in sizes:
            print(f"  {world}: {nodes} nodes", flush=True)
            rows.append(measured(place / f"{world.split(',')[0].replace(' ', '-')}-{nodes}", words, nodes))
        out[world] = {"settings": words, "nodes": rows}
    out["idle"] = idle(place / "idle", 4)
    first = out["ml-100k, fedals"]["nodes"]
    out["a_thousand_nodes"] = thousand(first, out["idle"])
    return out


def measured(run: Path, words: dict[str, Any], nodes: int) -> dict[str, Any]:
    meter, began = Meter(run), time.perf_counter()
    with Proxy() as proxy:
        result = held(
            run, words, nodes, proxy=proxy, via=tuple(f"node-{n}" for n in range(nodes)), deadline=600, tick=meter.look
        )
        passed = proxy.up_bytes, proxy.down_bytes
    history, people = result["federation"]["history"], result["members"]
    validations = sum(entry["phase"] == "search" for entry in history)
    messages = nodes * (1 + len(history) + validations + 1)  # hello, rounds, validations, the judgement
    seconds = [entry["seconds"] for entry in history]
    at_nodes = meter.seconds("node-", "flower-superexec", "flower-supernode")
    return {
        "nodes": nodes, "people": people, "rounds": len(history), "messages": messages,
        "took_seconds": round(time.perf_counter() - began, 1),
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
            "on_the_line_up_in_all": passed[0], "on_the_line_down_in_all": passed[1],
            "on_the_line_a_message": round(sum(passed) / messages),
        },
        "memory_mb": {
            "superlink": round(meter.most("superlink", "flower-superlink")),
            "server_app": round(meter.most("superlink", "flwr-serverapp")),
            "node_idle": round(meter.most("node-", "flower-supernode") + meter.most("node-", "flower-superexec")),
            "node_while_it_computes": round(meter.most("node-", "flwr-clientapp")),
        },
    }  # fmt: skip


def idle(place: Path, nodes: int) -> dict[str, Any]:
    """What nodes that wait for work cost the SuperLink and their machine."""
    meter = Meter(place)
    with Proxy() as proxy, Lab(
        place / "flower", [{"name": f"node-{number}"} for number in range(nodes)], proxy=proxy,
        via=tuple(f"node-{number}" for number in range(nodes)), log=print,
    ):  # fmt: skip
        time.sleep(5)
        meter.look()
        before = (
            meter.seconds("superlink", "flower-superlink"),
            meter.seconds("node-", *PROGRAMS),
            proxy.up_bytes + proxy.down_bytes,
        )
        began = time.monotonic()
        time.sleep(IDLE)
        meter.look()
        spent = time.monotonic() - began
        after = (
            meter.seconds("superlink", "flower-superlink"),
            meter.seconds("node-", *PROGRAMS),
            proxy.up_bytes + proxy.down_bytes,
        )
    share = [(b - a) / spent / nodes for a, b in zip(before, after)]
    return {
        "nodes": nodes, "seconds": round(spent),
        "superlink_cpu_share_for_a_node": round(share[0], 5),
        "node_cpu_share": round(share[1], 5),
        "bytes_a_second_for_a_node": round(share[2]),
    }  # fmt: skip


def thousand(rows: list[dict[str, Any]], waiting: dict[str, Any]) -> dict[str, Any]:
    """From the measurements with the most nodes; the SuperLink and the server app are one process each."""
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
