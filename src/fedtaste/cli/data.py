"""`fedtaste data`: list, fetch, import and describe data sets."""

from __future__ import annotations

from rich.table import Column, Table

from fedtaste.cli.options import DescribeOptions, FetchOptions, ImportOptions, SourceListOptions
from fedtaste.cli.output import cache, emit, out, put, say
from fedtaste.data.archives import default_cache
from fedtaste.data.describe import facts
from fedtaste.data.interactions import Interactions
from fedtaste.data.sources import SOURCES, load
from fedtaste.data.supervised import Supervised
from fedtaste.data.user_files import UserSplit, read_interactions, save
from fedtaste.data.worlds import ENDING, import_world
from fedtaste.experiment.progress_bars import Bars
from fedtaste.files.atomic import check_target
from fedtaste.text import command_text

SHOWN = ("name", "about", "how", "people", "items", "interactions", "terms")


def list_sources(options: SourceListOptions) -> None:
    """List the data sets that have a name."""
    if options.as_json:
        emit([{name: getattr(source, name) for name in SHOWN} for source in SOURCES.values()])
        return
    table = Table("name", "how", "people", "items", "interactions", Column("what", overflow="fold"))
    for source in SOURCES.values():
        counts = ("?" if n is None else f"{n:,}" for n in (source.people, source.items, source.interactions))
        table.add_row(source.name, source.how, *counts, source.about)
    out.print(table)
    put("Of least-squares, logistic, digits and the like: clients, features and examples.")
    put("By hand: `fedtaste data fetch NAME` says where to get the file and where to put it.")


def fetch(options: FetchOptions) -> None:
    """Fetch a data set into the cache, and check it."""
    data = load(options.name, cache=cache(), log=say)
    for note in data.notes:
        say(note)
    put(f"{data.name} is ready. The cache is {cache() or default_cache()}.")


def import_file(options: ImportOptions) -> None:
    """Check a file of the user, and write it in the form that is read fastest."""
    source, target = options.source, options.target
    world = target.name.lower().endswith(ENDING)
    if not world:  # a folder is never replaced
        check_target(target, "TARGET", options.force, [source])
    with Bars():
        if world:
            data = import_world(source, target, options.read_options)
        else:
            data = read_interactions(source, options.read_options)
            save(data, target)
    show_facts(data)
    put(f"Written to {target}. Use it: {command_text('run', '--data', target)}")


def describe(options: DescribeOptions) -> None:
    """Count people, items and interactions."""
    data = load(options.name, seed=options.seed, cache=cache(), log=say, options=options.read_options)
    if options.as_json:
        emit(facts(data))
    else:
        show_facts(data)


def show_facts(data: Interactions | UserSplit | Supervised) -> None:
    """Print the facts of a data set, one per line."""
    for key, value in facts(data).items():
        if isinstance(value, dict):
            put(key)
            for name, counts in value.items():
                put(f"  {name:22} {' '.join(f'{n:5,}' for n in counts)}")
            continue
        out.print(f"{key:24} {value:,}" if isinstance(value, int) else f"{key:24} {value}", markup=False)
