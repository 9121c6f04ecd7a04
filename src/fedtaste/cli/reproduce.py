"""`fedtaste reproduce`: the main table and figure of a paper, our figures beside the published ones."""

from __future__ import annotations

from pathlib import Path

from rich.table import Table

from fedtaste.cli.options import ReproduceOptions
from fedtaste.cli.output import emit, out, put
from fedtaste.cli.parser import option_words
from fedtaste.cli.run import create_folder, load_data, new_folder, require_new, train_folder
from fedtaste.errors import SettingError
from fedtaste.experiment.folder import RunFolder
from fedtaste.experiment.papers import PAPERS, Case, Paper, ReproducedRow, Reproduction, read_figure
from fedtaste.experiment.progress_bars import Bars
from fedtaste.experiment.settings import Settings
from fedtaste.experiment.train import prepare
from fedtaste.report.paper_plot import draw_reproduction
from fedtaste.text import command_text, did_you_mean


def reproduce(options: ReproduceOptions) -> None:
    """Train the cases of one paper, and show our figures beside the published ones."""
    if options.paper not in PAPERS:
        raise SettingError(did_you_mean(options.paper, PAPERS, "paper"))
    paper, path = PAPERS[options.paper], options.out or new_folder("reproduce", options.paper)
    require_new(path)
    with Bars() as bars:
        rows = [_train(case, number, paper, path, bars, options.seed) for number, case in enumerate(paper.cases, 1)]
    found = Reproduction(
        paper=options.paper,
        title=paper.title,
        reading=paper.reading,
        rows=tuple(rows),
        differences=paper.differences,
    )
    RunFolder(path).write("reproduction.json", found.dump())
    plot = draw_reproduction(found, paper.axis)
    (path / f"{plot.name}.png").write_bytes(plot.png)
    if options.as_json:
        emit(found.dump())
    else:
        show(found, path / f"{plot.name}.png")


def _train(case: Case, number: int, paper: Paper, path: Path, bars: Bars, seed: int) -> ReproducedRow:
    settings = Settings(**{"seed": seed, **case.settings})  # type: ignore[arg-type]
    data = load_data(settings)
    prepared = prepare(settings, data)
    bars.label = f"{number} of {len(paper.cases)}, {case.label}: "
    name = f"{number:02}-{settings.method}"
    result = train_folder(create_folder(path / name, prepared, data, None), prepared, data, bars, report=False)
    ours = {column: read_figure(result, where) for column, where in paper.figures.items()}
    return ReproducedRow(label=case.label, command=_command(settings), ours=ours, published=dict(case.published))


def _command(settings: Settings) -> str:
    """The command that trains the same."""
    return command_text("run", *option_words(settings, Settings.model_fields, ("data", "method")))


def show(found: Reproduction, plot: Path) -> None:
    """Print what the figures mean, the table, the reasons for differences, and where the plot is."""
    columns = list(found.rows[0].ours)
    table = Table("", *columns)
    for row in found.rows:
        table.add_row(row.label, *(_pair(row.ours[name], row.published.get(name)) for name in columns))
    put(found.title, "bold")
    put(found.reading)
    put("Every cell is ours / theirs; - is a figure that is not measured or not published.")
    out.print(table)
    for reason in found.differences:
        put(f"- {reason}", "dim")
    put(f"Plot: {plot}")


def _pair(ours: float | None, published: float | None) -> str:
    return " / ".join("-" if value is None else f"{value:#.3g}".rstrip(".") for value in (ours, published))
