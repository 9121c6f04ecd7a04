"""`fedtaste bench`: CPU time of one round."""

from __future__ import annotations

from fedtaste.bench import growth
from fedtaste.bench.people import measure, table
from fedtaste.cli.options import BenchOptions
from fedtaste.cli.output import cache, emit, out, say


def bench(options: BenchOptions) -> None:
    """Measure the CPU time of one round for all people."""
    if options.growth:
        grown = growth.measure_growth(options.largest, seed=options.seed, log=say)
        if options.as_json:
            emit(grown.dump())
        else:
            out.print(growth.table(grown))
        return
    measured = measure(options.method, quick=options.quick, seed=options.seed, log=say, cache=cache())
    if options.as_json:
        emit(measured.dump())
    else:
        out.print(table(measured))
