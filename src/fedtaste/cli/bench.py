"""`fedtaste bench`: CPU time of one round."""

from __future__ import annotations

from rich.console import RenderableType

from fedtaste.bench import growth
from fedtaste.bench.peers import measure_peers, table_of_peers
from fedtaste.bench.peers_plot import check_plot_path, draw
from fedtaste.bench.people import measure, table
from fedtaste.cli.options import BenchOptions
from fedtaste.cli.output import cache, emit, out, say
from fedtaste.errors import SettingError
from fedtaste.files.atomic import check_target
from fedtaste.result_part import JsonObject


def bench(options: BenchOptions) -> None:
    """Measure the CPU time of one round: of our backends, beside other libraries, or as the data grow."""
    _refuse_idle_options(options)
    if options.peers:
        bench_peers(options)
    elif options.growth:
        grown = growth.measure_growth(options.largest, seed=options.seed, log=say)
        _show(grown.dump(), growth.table(grown), options.as_json)
    else:
        measured = measure(options.method, quick=options.quick, seed=options.seed, log=say, cache=cache())
        _show(measured.dump(), table(measured), options.as_json)


def _refuse_idle_options(options: BenchOptions) -> None:
    """Raise SettingError for options that this measurement would not read."""
    if options.growth and (options.peers or options.method or options.quick):
        raise SettingError("bench --growth measures FedALS alone. Leave --peers, --method and --quick out.")
    if "largest" in options.model_fields_set and not options.growth:
        raise SettingError("--largest of bench is for --growth. Add --growth, or leave it out.")
    if not options.peers and (options.data or options.out or options.install):
        raise SettingError("--data, --out and --install of bench are for --peers. Add --peers, or leave them out.")
    if options.force and not options.out:
        raise SettingError("--force of bench is for --out FILE. Add --out, or leave --force out.")


def _show(result: JsonObject, printed: RenderableType, as_json: bool) -> None:
    if as_json:
        emit(result)
    else:
        out.print(printed)


def bench_peers(options: BenchOptions) -> None:
    """Measure other libraries and our rounds with the same work; print a table or JSON, and draw a plot with --out."""
    if options.method:
        raise SettingError("bench --peers measures fixed methods. Leave --method out.")
    if options.out:
        check_plot_path(options.out)
        check_target(options.out, "--out", options.force)
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
