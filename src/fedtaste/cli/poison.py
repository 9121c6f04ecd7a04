"""`fedtaste poison`: simulate hostile clients, with and without a robust sum."""

from __future__ import annotations

from rich.table import Table
from rich.text import Text

from fedtaste.cli.options import PoisonOptions
from fedtaste.cli.output import emit, out, put
from fedtaste.cli.own_methods import allow_method
from fedtaste.cli.run import load_data
from fedtaste.data.supervised import Supervised
from fedtaste.errors import SettingError
from fedtaste.experiment.progress_bars import Bars
from fedtaste.experiment.resources import set_threads
from fedtaste.experiment.settings import Settings
from fedtaste.poisoning.result import PoisonResult
from fedtaste.poisoning.simulate import AttackSettings, simulate


def poison(settings: Settings, options: PoisonOptions) -> None:
    """Let some of the people turn hostile, and measure what they achieve."""
    allow_method(options.method)
    set_threads(settings.threads)
    settings = settings.model_copy(update={"method": options.method, "new_people": 0.0, "threads": None})
    data = load_data(settings)
    if isinstance(data, Supervised):
        raise SettingError(f"{settings.data} has no items to promote. Use data of people and items, such as ml-100k.")
    attack = AttackSettings(options.hostile, options.attack, options.wire, options.targets, options.top, options.size)
    with Bars() as bars:
        result = simulate(settings, data, attack, bars)
    if options.as_json:
        emit(result.dump())
    else:
        show_simulation(result)


def show_simulation(result: PoisonResult) -> None:
    """Print one row for every rule of the server, with honest people only and with hostile ones."""
    hostile = result.hostile.people
    title = f"{result.attack}: {hostile:,} of {hostile + result.honest:,} people are hostile"
    table = Table("", "server's rule", f"ER@{result.k}", "HR@10", "NDCG@10", "NDCG lost", title=Text(title))
    for row in result.rows:
        table.add_row(
            row.row, row.wire or "plain sum", f"{row.exposure:.4f}", f"{row.hr:.3f}", f"{row.ndcg:.3f}",
            f"{row.ndcg_loss:.1%}",
        )  # fmt: skip
    out.print(table)
    targets = ", ".join(f"{target.title} ({target.count})" for target in result.targets)
    put(f"Targets, and how many people have them: {targets}.", "dim")
    if len(result.rows) == 2:
        put("See what a robust sum does: --wire bound", "dim")
