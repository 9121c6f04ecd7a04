"""`fedtaste bench --peers`: CPU time of one round beside other libraries with the same work, on one core.

Two comparisons, each on one data set: alternating least squares (FedALS beside implicit and LensKit), and FedAvg of a
factorisation (beside Flower's simulation, FedJAX, pfl and a plain torch loop). Item tables after one iteration from the
same start are compared, which shows that all do the same work. FedALS regularises by the number of observations and
the others by a constant, so their tables are compared without regularisation, where both formulas agree: the right side
of theirs is (1 + alpha0) times ours, which scales people's vectors and cancels in items'.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from rich.table import Table

from fedtaste.bench.peer_programs import INSTALL_EXTRA, OWN, Peer, Program, choose, install, start
from fedtaste.bench.peers_result import MachineBounds, MissingPeer, Part, PeerData, PeerLine, PeersResult
from fedtaste.data.archives import default_cache
from fedtaste.data.interactions import Histories, Interactions
from fedtaste.data.sources import load
from fedtaste.errors import DataError, RunError, SettingError
from fedtaste.federation import of_histories
from fedtaste.models import factorization

Log = Callable[[str], None]
K_ALS, K = 64, 32
ALPHA0, LAM = 0.1, 0.01  # FedALS's defaults for a catalogue of this size
NEGATIVES, BATCH, LR = 4, 64, 64.0  # of FedAvg; the rate makes a change that is as large as the start
DATA: dict[Part, str] = {"als": "synthetic:6040x3706x1000000", "fedavg": "synthetic:943x1682x100000"}
SMALL: dict[Part, str] = {"als": "synthetic:600x400x20000", "fedavg": "synthetic:60x100x1500"}
LINES: dict[Part, tuple[str, ...]] = {
    "als": ("fedals", "fedmf", "fedrecon", "fedrap"),
    "fedavg": ("fedavg", "fedrap", "pfedrec"),
}
REPEATS: dict[Part, int] = {"als": 5, "fedavg": 2}


@dataclass(frozen=True, eq=False)
class Comparison:
    """The data of one comparison, as programs read them."""

    about: PeerData
    histories: Histories

    @staticmethod
    def of(part: Part, data: Interactions) -> Comparison:
        people, items = len(data.people), len(data.items)
        k = min(K_ALS, people // 4, items // 4) if part == "als" else K
        if k < 1:
            raise DataError(f"bench --peers needs at least 4 people and 4 items, got {people} and {items}.")
        about = PeerData(part=part, data=data.name, people=people, items=items, interactions=len(data), k=k)
        return Comparison(about, data.histories())

    @property
    def start(self) -> dict[str, NDArray[np.float32]]:
        """The parameters that everybody starts from."""
        params = factorization(self.about.items, k=self.about.k).init(torch.Generator().manual_seed(0))
        return {name: value.numpy() for name, value in params.items()}

    def arrays(self) -> dict[str, object]:
        """Examples, start and settings of all programs of this comparison."""
        about, histories = self.about, self.histories
        examples = histories.starts, histories.items, histories.values
        if about.part == "fedavg":
            federation = of_histories(histories, about.items, negatives=NEGATIVES, batch=BATCH)
            drawn = federation.examples(federation.members, 0, "samples")
            examples = drawn.starts, drawn.inputs.astype(np.int32), drawn.targets
        density = about.interactions / about.people + ALPHA0 * about.items
        density += about.interactions / about.items + ALPHA0 * about.people
        return {
            **dict(zip(("starts", "inputs", "targets"), examples)), **self.start,
            "history_starts": histories.starts, "history_items": histories.items, "lines": LINES[about.part],
            "alpha0": ALPHA0, "lam": LAM, "regularization": LAM * density / 2 / ALPHA0, "negatives": NEGATIVES,
            "batch": BATCH, "lr": LR, "k": K, "repeats": REPEATS[about.part],
        }  # fmt: skip

    def difference(self, table: NDArray[np.float32], ours: NDArray[np.float32]) -> float:
        """The largest difference from our table, relative to our largest value (als) or change (fedavg)."""
        size = np.abs(ours - self.start["item"] if self.about.part == "fedavg" else ours).max()
        return float(np.abs(table - ours).max() / size)


def measure_peers(
    names: tuple[str, ...], *, data: str | None, quick: bool, new: bool, seed: int, log: Log, cache: Path | None
) -> PeersResult:
    """Measure these peers and our own rounds; `data` in place of the data of the ALS comparison, `new`: install what
    needs an environment of its own first."""
    peers, cache = choose(names), cache or default_cache()
    missing = dict(_absent(peers, cache, new, log))
    present = {name: peer for name, peer in peers.items() if name not in missing}
    if not present.keys() - {"torch"} and "torch" not in names:
        raise SettingError(
            f"None of these peers is installed: {', '.join(missing)}. Install them: {INSTALL_EXTRA}; those with an "
            "environment of their own: fedtaste bench --peers --install."
        )
    sources = (SMALL if quick else DATA) | ({"als": data} if data else {})
    lines: list[PeerLine] = []
    compared: list[PeerData] = []
    with tempfile.TemporaryDirectory() as folder:
        log("arithmetic and memory bandwidth of one core")
        bounds = start("machine_bounds", sys.executable, {"repeats": 5}, Path(folder))
        for part, source in sources.items():
            chosen = {name: peer for name, peer in present.items() if peer.part == part}
            if chosen:
                world = load(source, seed=seed, cache=cache, log=log)
                if not isinstance(world, Interactions):
                    raise DataError(f"bench --peers needs interactions of people with items; {source} is other data.")
                comparison = Comparison.of(part, world)
                compared.append(comparison.about)
                found = _measure_part(comparison, chosen, Path(folder), log, cache)
                lines += [line for line in found if isinstance(line, PeerLine)]
                missing |= {gap.name: gap.reason for gap in found if isinstance(gap, MissingPeer)}
    return PeersResult(
        threads=1, data=tuple(compared), lines=tuple(lines),
        missing=tuple(MissingPeer(name=name, reason=reason) for name, reason in missing.items()),
        bounds=_bounds(bounds, compared),
    )  # fmt: skip


def _absent(peers: dict[str, Peer], cache: Path, new: bool, log: Log) -> Iterator[tuple[str, str]]:
    """(name, what to do) of every peer that is not installed; installs what it may."""
    for name, peer in peers.items():
        if new and peer.requirements and peer.python(name, cache) is None:
            log(f"installing {', '.join(peer.requirements)} into an environment of its own")
            install(name, peer, cache)
        if peer.python(name, cache) is None:
            log(f"{name} is not installed; the others are measured. Install it: {peer.advice}")
            yield name, f"not installed. Install it: {peer.advice}"


def _measure_part(
    comparison: Comparison, peers: dict[str, Peer], folder: Path, log: Log, cache: Path
) -> list[PeerLine | MissingPeer]:
    """Our lines, then those of every peer, or why there is none."""
    part, arrays = comparison.about.part, comparison.arrays()
    main = LINES[part][0]
    log(f"{part}: our own rounds ({', '.join(LINES[part])})")
    own = start("own_rounds", sys.executable, arrays, folder)
    ours = own.cpu_seconds[main]
    lines: list[PeerLine | MissingPeer] = [_line(part, OWN[n], own, s) for n, s in own.cpu_seconds.items()]
    for name, peer in peers.items():
        log(f"{part}: {name}")
        try:
            python = peer.python(name, cache)
            assert python is not None
            program = start(peer.program, python, arrays, folder)
        except RunError as error:
            log(str(error))
            lines.append(MissingPeer(name=name, reason=str(error)))
            continue
        for key, seconds in program.cpu_seconds.items():
            gap = comparison.difference(program.tables[key], own.tables[main])
            lines.append(
                _line(part, peer.lines[key], program, seconds).model_copy(
                    update={"ours": False, "times_ours": round(seconds / ours, 2), "difference": float(f"{gap:.2g}")}
                )
            )
    return lines


def _line(part: Part, name: str, program: Program, seconds: float) -> PeerLine:
    return PeerLine(part=part, name=name, ours=True, version=program.version, cpu_seconds=round(seconds, 5))


def _bounds(program: Program, compared: list[PeerData]) -> MachineBounds:
    """The machine's speed, and what an exact ALS round needs at that speed."""
    gflops, gigabytes = program.figures["gflops"], program.figures["gigabytes"]
    bounds = MachineBounds(gflops=round(gflops, 1), gigabytes_per_second=round(gigabytes, 1))
    for about in compared:
        if about.part == "als":
            operations, gathered = als_work(about)
            needs = {"als_gflop": operations / 1e9, "als_arithmetic_seconds": operations / 1e9 / gflops}
            needs["als_memory_seconds"] = gathered / 1e9 / gigabytes
            bounds = bounds.model_copy(update={name: round(value, 4) for name, value in needs.items()})
    return bounds


def als_work(about: PeerData) -> tuple[float, float]:
    """(operations, bytes of gathered rows) of an exact ALS round. On each side every interaction adds half of an outer
    product and one vector; every person and item has one Cholesky solve and a share of a Gram matrix."""
    k, rows = about.k, about.people + about.items
    sums = 2 * about.interactions * (k * (k + 1) + 2 * k)
    solves = rows * (k**3 / 3 + 2 * k**2)
    return sums + solves + rows * k * (k + 1), 2 * about.interactions * k * 4.0


def table_of_peers(result: PeersResult) -> Table:
    """The result as a table for the terminal."""
    bounds = result.bounds
    speed = f"{bounds.gflops:g} GFLOP/s, {bounds.gigabytes_per_second:g} GB/s"
    rows = Table("program", "version", "CPU s", "times ours", "difference", title=f"One core ({speed}), one round")
    for about in result.data:
        size = f"{about.people:,} x {about.items:,} x {about.interactions:,}"
        rows.add_section()
        rows.add_row(f"[bold]{about.part}[/bold], {size}, k {about.k}", "", "", "", "")
        for line in (line for line in result.lines if line.part == about.part):
            times = "" if line.times_ours is None else f"{line.times_ours:g} x"
            gap = "" if line.difference is None else f"{line.difference:g}"
            rows.add_row(line.name, line.version, f"{line.cpu_seconds:.4f}", times, gap)
        if about.part == "als" and bounds.als_arithmetic_seconds is not None:
            rows.add_row("exact ALS at the core's arithmetic", "", f"{bounds.als_arithmetic_seconds:.4f}", "", "")
            rows.add_row("its rows from memory, not cache", "", f"{bounds.als_memory_seconds:.4f}", "", "")
    for gap_in in result.missing:
        rows.add_section()
        rows.add_row(gap_in.name, "", "", "", gap_in.reason)
    return rows
