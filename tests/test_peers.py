"""`fedtaste bench --peers`: other libraries compute the same item tables, and what is missing is said."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from fedtaste.bench.peer_programs import PEERS, choose, start
from fedtaste.bench.peers import SMALL, Comparison, als_work, measure_peers, table_of_peers
from fedtaste.bench.peers_plot import check_plot_path, draw
from fedtaste.bench.peers_result import MachineBounds, MissingPeer, PeerData, PeerLine, PeersResult
from fedtaste.cli.options import BenchOptions
from fedtaste.cli.parser import Command, build_command
from fedtaste.data.archives import default_cache
from fedtaste.data.sources import load
from fedtaste.errors import RunError, SettingError

TOLERANCE = {"als": 1e-3, "fedavg": 1e-4}  # float32 solves of systems without regularisation lose more digits
MAIN = {"als": "fedals", "fedavg": "fedavg"}
WITHOUT_RAY = [name for name in PEERS if name != "flower"]


@pytest.fixture(scope="module")
def comparisons():
    return {part: Comparison.of(part, load(source)) for part, source in SMALL.items()}


@pytest.fixture(scope="module")
def own(comparisons, tmp_path_factory):
    """Our item table after one round, by comparison, from the program that is measured."""
    tables = {}
    for part, name in MAIN.items():
        arrays = comparisons[part].arrays() | {"lines": [name], "repeats": 1}
        tables[part] = start("own_rounds", sys.executable, arrays, tmp_path_factory.mktemp(part)).tables[name]
    return tables


@pytest.mark.parametrize("name", [*WITHOUT_RAY, "flower"])
def test_peer_computes_our_item_table(name, comparisons, own, tmp_path):
    peer = PEERS[name]
    python = peer.python(name, default_cache())
    if python is None:
        pytest.skip(f"{name} is not installed. Install it: {peer.advice}")
    comparison = comparisons[peer.part]
    program = start(peer.program, python, comparison.arrays() | {"repeats": 1}, tmp_path)
    assert program.cpu_seconds.keys() == peer.lines.keys()
    assert min(program.cpu_seconds.values()) > 0
    table = program.tables[next(iter(peer.lines))]  # of implicit, the exact one
    assert comparison.difference(table, own[peer.part]) < TOLERANCE[peer.part]
    assert comparison.difference(comparison.start["item"], own[peer.part]) > 0.5, "the round changes the table"


def test_difference_is_relative_to_our_change_in_fedavg(comparisons):
    comparison = comparisons["fedavg"]
    item = comparison.start["item"]
    ours = item.copy()
    ours[3, 1] += 2.0
    assert comparison.difference(ours, ours) == 0
    assert comparison.difference(item, ours) == pytest.approx(1.0)


def test_work_of_an_als_round_is_counted():
    about = PeerData(part="als", data="x", people=2, items=3, interactions=5, k=2)
    # both sides: 5 interactions x (k (k + 1) + 2 k); 5 rows x (k^3 / 3 + 2 k^2 + k (k + 1)); 2 x 5 rows of 8 bytes
    assert als_work(about) == (pytest.approx(2 * 5 * 10 + 5 * (8 / 3 + 8 + 6)), 80.0)


def test_unknown_peer_is_refused_with_the_nearest_name():
    with pytest.raises(SettingError, match='Did you mean "implicit"'):
        choose(("implicits",))
    assert list(choose(("flower", "implicit"))) == ["implicit", "flower"]
    assert choose(("all",)).keys() == PEERS.keys()


def test_no_peer_installed_is_refused_with_advice(tmp_path, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(SettingError, match=r"pip install 'fedtaste\[bench\]'"):
        measure_peers(("all",), data=None, quick=True, new=False, seed=0, log=lambda _: None, cache=tmp_path)


def test_program_that_fails_says_why(tmp_path):
    with pytest.raises(RunError, match="No module named 'no_such_program'"):
        start("no_such_program", sys.executable, {"repeats": 1}, tmp_path)


@pytest.mark.parametrize(
    ("words", "peers"), [(["--peers"], ("all",)), (["--peers", "implicit,flower"], ("implicit", "flower")), ([], ())]
)
def test_option_may_stand_alone(words, peers, monkeypatch):
    seen: list[BenchOptions] = []
    monkeypatch.setattr("fedtaste.cli.parser.load_function", lambda name: seen.append)
    build_command("bench", Command("bench:bench", BenchOptions)).main([*words, "--quick"], standalone_mode=False)
    assert (seen[0].peers, seen[0].quick) == (peers, True)


def test_plot_path_is_checked_first(tmp_path):
    check_plot_path(tmp_path / "a.svg")
    for path in (tmp_path / "a.pdf", tmp_path / "none" / "a.png"):
        with pytest.raises(SettingError, match="--out"):
            check_plot_path(path)


def test_table_and_plot_name_every_line(tmp_path):
    lines = (
        PeerLine(part="als", name="FedALS", ours=True, version="1", cpu_seconds=0.5),
        PeerLine(part="als", name="other", ours=False, version="2", cpu_seconds=1.0, times_ours=2.0, difference=1e-6),
    )
    about = PeerData(part="als", data="x", people=2, items=3, interactions=5, k=2)
    bounds = MachineBounds(
        gflops=40, gigabytes_per_second=10, als_gflop=1, als_arithmetic_seconds=0.1, als_memory_seconds=0.2
    )
    gap = MissingPeer(name="absent", reason="not installed")
    result = PeersResult(threads=1, data=(about,), lines=lines, missing=(gap,), bounds=bounds)
    first = list(table_of_peers(result).columns[0].cells)
    assert [x for x in ("FedALS", "other", "absent") if x in first] == ["FedALS", "other", "absent"]
    draw(result, Path(tmp_path / "plot.png"))
    assert (tmp_path / "plot.png").stat().st_size > 0
    assert np.isfinite(result.dump()["bounds"]["gflops"])
