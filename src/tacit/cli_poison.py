"""`tacit poison`: parses, calls, prints."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from .cli_options import CohortOption, DataOption, JsonOption, RoundsOption, SeedOption, SetOption, ThreadsOption
from .terminal import Bars, cache, emit, out, say

HostileOption = Annotated[float, typer.Option("--hostile", help="Share of the people who turn hostile, up to 0.5.")]
AttackOption = Annotated[str, typer.Option("--attack", help="promote, profiles, random or flip.")]
RuleOption = Annotated[
    list[str] | None,
    typer.Option("--wire", help="A rule of the server to defend with, repeatable: bound, trim=0.1, median, krum=0.1."),
]
TargetsOption = Annotated[int, typer.Option("--targets", help="Unpopular items, each attacked in a run of its own.")]
TopOption = Annotated[int, typer.Option("-k", "--top", help="The length of the list that the target wants to be in.")]
SizeOption = Annotated[
    float | None, typer.Option("--size", help="How many times larger than an honest upload a crafted one is.")
]


def poison(
    data: DataOption = "ml-100k",
    method: Annotated[str, typer.Option("--method", help="A method that shares item factors.")] = "fedmf",
    hostile: HostileOption = 0.05, attack: AttackOption = "promote", wire: RuleOption = None,
    targets: TargetsOption = 1, k: TopOption = 10, size: SizeOption = None, set_: SetOption = None,
    rounds: RoundsOption = None, cohort: CohortOption = None, seed: SeedOption = 0, threads: ThreadsOption = None,
    json_: JsonOption = False,
) -> None:  # fmt: skip
    """Let some of the people turn hostile, and see what they achieve: with a plain sum, and with a robust one."""
    from .cli_options import number, parse_set
    from .costs import threads as use
    from .data.sources import load
    from .data.supervised import Supervised
    from .errors import SettingError
    from .methods import find_method
    from .poisoning import simulate
    from .settings import Settings

    find_method(method)
    use(threads)
    asked = None if cohort is None else number(cohort, "--cohort", "a number of people, or a share such as 0.1")
    settings = Settings(
        data=data, method=method, set=parse_set(set_), rounds=rounds, cohort=asked, seed=seed, new_people=0.0,
    )  # fmt: skip
    loaded = load(data, seed=seed, cache=cache(), say=say)
    if isinstance(loaded, Supervised):
        raise SettingError(f"{data} has no items to promote. Use data of people and items, such as ml-100k.")
    with Bars() as bars:
        found = simulate(
            settings, loaded, hostile=hostile, attack=attack, wires=wire or (), targets=targets, k=k, size=size,
            watch=bars,
        )  # fmt: skip
    emit(found) if json_ else show(found)


def show(found: dict[str, Any]) -> None:
    """One row for every rule, honest and attacked."""
    from rich.table import Table
    from rich.text import Text

    people, k = found["hostile"]["people"], found["k"]
    title = f"{found['attack']}: {people:,} of {people + found['honest']:,} people are hostile"
    table = Table("", "server's rule", f"ER@{k}", "HR@10", "NDCG@10", "NDCG lost", title=Text(title))
    for row in found["rows"]:
        table.add_row(
            row["row"], row["wire"] or "plain sum", f"{row['exposure']:.4f}", f"{row['hr@10']:.3f}",
            f"{row['ndcg@10']:.3f}", f"{row['ndcg_loss']:.1%}",
        )  # fmt: skip
    out.print(table)
    wanted = ", ".join(f"{t['title']} ({t['count']})" for t in found["targets"])
    out.print(f"Targets, and how many people took them: {wanted}.", style="dim", markup=False, soft_wrap=True)
    if len(found["rows"]) == 2:
        out.print("See what a robust sum does: --wire bound", style="dim", markup=False)
