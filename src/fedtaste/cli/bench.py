"""`fedtaste bench`: CPU time of one round."""

from __future__ import annotations

from fedtaste.bench import growth
from fedtaste.bench.peers import measure_peers, table_of_peers
from fedtaste.bench.peers_plot import check_plot_path, draw
from fedtaste.bench.people import measure, table
from fedtaste.cli.options import BenchOptions
from fedtaste.cli.output import cache, emit, out, say
from fedtaste.errors import SettingError


def bench(options: BenchOptions) -> None:
    """Measure the CPU time of one round for all people."""
    if options.growth:
        grown = growth.measure_growth(options.largest, seed=options.seed, log=say)
        if options.as_json:
            emit(grown.dump())
        else:
            out.print(growth.table(grown))
        return None
    if options.peers:
        return bench_peers(options)
    if options.data or options.out or options.install:
        raise SettingError("--data, --out and --install of bench are for --peers. Add --peers, or leave them out.")
    measured = measure(options.method, quick=options.quick, seed=options.seed, log=say, cache=cache())
    if options.as_json:
        emit(measured.dump())
    else:
        out.print(table(measured))
    return None


def bench_peers(options: BenchOptions) -> None:
    """Measure other libraries and our rounds with the same work; print a table or JSON, and draw a plot with --out."""
    if options.method:
        raise SettingError("bench --peers measures fixed methods. Leave --method out.")
    if options.out:
        check_plot_path(options.out)
    measured = measure_peers(
        options.peers, data=options.data, quick=options.quick, new=options.install, seed=options.seed, log=say,
        cache=cache(),
    )  # fmt: skip
    if options.out:
        draw(measured, options.out)
        say(f"plot: {options.out}")
    if options.as_json:
        emit(measured.dump())
    else:
        out.print(table_of_peers(measured))
