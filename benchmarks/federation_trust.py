"""A node that sends wrong messages, and secure sums that hide single nodes: parts of benchmarks/federation.py."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from federation_lab import run_lab
from federation_watch import again, compared, gap, shared_of

from fedtaste.flower.processes import free_port
from fedtaste.flower.secagg import to_limbs

# A run with noise does not search for its best round, so every round is one message to each node.
LIES = (
    "nothing yet", "NaN", "inf", "1e9", "-1e9", "weight 0", "weight -1", "weight 1e12", "wrong shape", "other names",
    "oversized", "noise", "another node's place", "another run's", "an earlier round's", "twice", "after the deadline",
    "nothing any more",
)  # fmt: skip
EXPECTED = {
    "NaN": "non-finite", "inf": "non-finite", "1e9": "too large", "-1e9": "too large", "weight 0": "weight",
    "weight -1": "weight", "weight 1e12": "weight", "wrong shape": "shape", "other names": "names",
    "oversized": "oversized", "noise": "not a message", "another node's place": "not asked",
    "another run's": "other run", "an earlier round's": "late",
    "nothing any more": "late",  # the message of the round before; its own is valid
}  # fmt: skip
HONEST = ("nothing yet", "twice", "nothing any more")  # rounds in which the liar's correct upload counts
DEADLINE = 90.0


def hostile(place: Path) -> dict[str, Any]:
    """One of four nodes sends a different wrong message in every round, which must not change the run."""
    run, port = place / "run", free_port()
    keys = run / "federation" / "flower"
    config = {
        "lies": ",".join(LIES), "late": DEADLINE + 5, "superlink": f"127.0.0.1:{port}",
        "key": str(keys.resolve() / "nodes" / "node-3"), "root": str(keys.resolve() / "server" / "ca.crt"),
    }  # fmt: skip
    options = {
        "data": "synthetic:120x60x2400", "method": "fedavg", "rounds": len(LIES), "wire": "clip=1",
        "set": {"k": "8"}, "threads": 1,
    }  # fmt: skip
    result = run_lab(
        run, options, 4, module="federation_liar.py", extras={"node-3": config}, deadline=DEADLINE, port=port
    )  # fmt: skip
    again(run, place / "simulated")
    rows = []
    for lie, entry in zip(LIES, result["federation"]["history"], strict=True):
        counted, reasons = "node-3" in entry["nodes"], list(entry["refused"])
        expected = [EXPECTED[lie]] if lie in EXPECTED else []
        good = counted == (lie in HONEST) and reasons == expected and len(entry["nodes"]) == 3 + counted
        rows.append({
            "round": entry["round"], "the_liar_sent": lie, "counted": counted, "refused_as": reasons,
            "as_it_should": good,
        })  # fmt: skip
    lies = [line.partition(" ")[2] for line in (run / "federation/nodes/node-3/store/lies").read_text().splitlines()]
    log = (run / "federation/flower/logs/superlink.log").read_text(errors="replace")
    return {
        "rounds": rows,
        "lies_that_were_told": len(lies),
        "all_as_they_should": all(row["as_it_should"] for row in rows) and lies == list(LIES),
        "rejected_updates": result["rejected_updates"],
        "second_answers_that_the_superlink_refused": log.count("Failed to store Message reply"),
        "against_the_simulator_without_the_lies": compared(run, place / "simulated"),
    }


# Secure sums


def secure(place: Path) -> dict[str, Any]:
    """Compare secure sums with plain ones, and search what the server received."""
    options = {"data": "synthetic:120x60x2400", "method": "fedmf", "rounds": 2, "set": {"k": "8"}, "threads": 1}
    out = {}
    for name, plain, hidden in (
        ("secure", "", "secure"),
        ("clip,noise,secure", "clip=1.0,noise=0.5", "clip=1.0,noise=0.5,secure"),
    ):
        folder = place / name.replace(",", "-")
        result = run_lab(folder / "run", options | {"wire": hidden}, 4, module="federation_witness.py")
        sums = witnessed(folder / "run")
        entry: dict[str, Any] = {
            "wire": hidden, "rounds": [
                {"phase": round["phase"], "round": round["round"], "nodes": round["nodes"]}
                for round in result["federation"]["history"]
            ], "received": sums,
        }  # fmt: skip
        if name == "secure":
            copy = folder / "simulated"
            again_with(folder / "run", copy, plain)
            entry["shared_parameters_differ_from_plain_sums_by"] = gap(shared_of(folder / "run"), shared_of(copy))
        else:
            entry["privacy"] = {n: result["privacy"][n] for n in ("epsilon", "delta", "noise", "rounds")}
        out[name] = entry
    return out


def again_with(run: Path, into: Path, wire: str) -> None:
    """The same run on the simulator with another wire."""
    from fedtaste import __version__
    from fedtaste.cli.output import cache
    from fedtaste.data.sources import load
    from fedtaste.experiment.folder import RunFolder
    from fedtaste.experiment.train import execute, prepare

    settings = RunFolder.open(run).settings().model_copy(update={"wire": wire})
    data = load(settings.data, seed=settings.seed, cache=cache())
    execute(prepare(settings, data), RunFolder.create(into, settings.model_dump(), data, __version__))


def witnessed(run: Path) -> dict[str, Any]:
    """Compare what the server received in each sum with what the nodes contributed."""
    received = json.loads((run / "federation" / "witness.json").read_text())
    blob = (run / "federation" / "witness.bin").read_bytes()
    plain = {(p["run"], p["phase"], p["round"], p["node"]): Path(p["file"]) for p in _contributions(run)}
    nodes = sorted({key[3] for key in plain})
    sums = sorted({key[:3] for key in plain}, key=lambda key: [*plain].index((*key, nodes[0])))
    masked = [entry for entry in received if entry["key"] == "masked"]
    equal = positions = searched = runs_of_8 = control = 0
    correlations, tops, exact = [], [], 0
    for number, key in enumerate(sums):
        vectors = {node: np.load(plain[(*key, node)]) for node in nodes}
        by_node = {entry["node"]: blob[entry["at"] : entry["at"] + entry["long"]]
               for entry in masked[number * len(nodes) : (number + 1) * len(nodes)]}  # fmt: skip
        assert set(by_node) == set(nodes), "a sum without some node: read by hand"
        for node, vector in vectors.items():
            hidden = np.frombuffer(by_node[node], "<u4")[1:].astype(np.int64)  # the first is the weight
            limbs = to_limbs(vector).astype(np.int64) + 2**21
            equal, positions = equal + int((hidden == limbs).sum()), positions + len(limbs)
            correlations.append(abs(float(np.corrcoef(hidden, limbs)[0, 1])))
            tops.append(float((hidden >> 31).mean()))
            searched += len(_distinctive(vector))
            runs_of_8 += _windows(blob, vector)
            control += _windows(blob, np.frombuffer(by_node[node][: len(by_node[node]) // 8 * 8], "<i8"))
        total = np.sum([vector.view(np.uint64) for vector in vectors.values()], axis=0, dtype=np.uint64)
        revealed = np.load(run / "federation" / f"opened-{number}.npy").view(np.uint64)
        exact += int(np.array_equal(total, revealed))
    return {
        "sums": len(sums), "nodes_in_each": len(nodes), "sums_equal_to_the_last_bit": exact,
        "messages_the_server_received": len({entry["message"] for entry in received}), "bytes_received": len(blob),
        "numbers_of_single_nodes": positions, "of_them_received_as_they_are": equal,
        "words_of_single_nodes_looked_for": searched,
        "words_of_single_nodes_found_anywhere_in_what_was_received": runs_of_8,
        "words_of_masked_vectors_found_by_the_same_search": control,
        "largest_correlation_of_a_node's_numbers_with_what_it_sent": round(max(correlations), 4),
        "expected_by_chance_up_to": round(4 / np.sqrt(positions / (len(sums) * len(nodes))), 4),
        "share_of_set_top_bits": [round(min(tops), 4), round(max(tops), 4)],
    }  # fmt: skip


def _contributions(run: Path) -> list[dict[str, Any]]:
    out = []
    for node in sorted((run / "federation" / "nodes").iterdir()):
        out += [json.loads(line) for line in (node / "store" / "sealed.jsonl").read_text().splitlines()]
    return out


def _distinctive(words: np.ndarray) -> np.ndarray:
    """The 8-byte words that identify something; the bytes of small numbers occur everywhere."""
    unique = np.unique(words.view(np.uint64))
    return unique[(unique > 2**24) & (unique < 2**64 - 2**24)]


def _windows(blob: bytes, words: np.ndarray) -> int:
    """How often one of these words occurs in the bytes, at any offset."""
    distinctive, count = _distinctive(words), 0
    for offset in range(8):
        part = blob[offset : offset + (len(blob) - offset) // 8 * 8]
        count += int(np.isin(np.frombuffer(part, np.uint64), distinctive).sum())
    return count
