"""`fedtaste audit`: attack the uploads of a configuration, or saved ones, and show what a server would learn."""

from __future__ import annotations

from rich.table import Table
from rich.text import Text

from fedtaste.attacks.membership import FEWEST, MOST
from fedtaste.audit.page import Cell, grid, headline, membership_text, ratings_text, verdict, write_audit
from fedtaste.audit.result import AuditResult
from fedtaste.audit.run import AuditScope, audit_saved
from fedtaste.audit.run import audit as audit_uploads
from fedtaste.audit.saved import read_uploads
from fedtaste.cli.options import AuditOptions
from fedtaste.cli.output import emit, out, put
from fedtaste.cli.own_methods import allow_method
from fedtaste.cli.parser import option_words
from fedtaste.cli.run import load_data, new_folder
from fedtaste.errors import RunError, SettingError
from fedtaste.experiment.progress_bars import Bars
from fedtaste.experiment.resources import set_threads
from fedtaste.experiment.settings import Settings
from fedtaste.experiment.train import make_task
from fedtaste.text import command_text


def audit(settings: Settings, options: AuditOptions) -> None:
    """Attack uploads, write the page, and print the result."""
    check_options(settings, options)
    names = [options.uploads.name] if options.uploads else [settings.data, settings.method]
    path = options.out or new_folder(*names, "audit")
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise RunError(f"{path} exists already and is not empty. Choose another --out.")
    with Bars() as bars:
        if options.uploads:
            result = audit_saved(read_uploads(options.uploads, options.truth), bars)
        else:
            result = audit_configuration(settings, options, bars)
    origin = {"command": command_line(settings, options), "report": str(path / "audit.html")}
    result = result.model_copy(update=origin)
    write_audit(result, path)
    if options.as_json:
        emit(result.dump())
    else:
        show_audit(result)


def check_options(settings: Settings, options: AuditOptions) -> None:
    """Refuse options that are impossible together, or would change nothing."""
    canaries = options.canaries
    if canaries and not FEWEST <= canaries <= MOST:
        raise SettingError(f"--canaries must be from {FEWEST} to {MOST}, or 0 for no membership test; got {canaries}.")
    if options.truth and not options.uploads:
        raise SettingError("--truth belongs to saved uploads, and there are none. Add --uploads, or leave it out.")
    unread = (settings.epsilon, options.rounds, canaries)
    if options.uploads and (options.save or settings.wire or any(value is not None for value in unread)):
        raise SettingError(
            "Saved uploads are attacked as they are: --save, --wire, --epsilon, --rounds and --canaries would change "
            "nothing. Leave them out."
        )


def audit_configuration(settings: Settings, options: AuditOptions, bars: Bars) -> AuditResult:
    """Attack the uploads that these settings produce."""
    allow_method(settings.method)
    settings = settings.model_copy(update={"rounds": options.run_rounds})
    data = load_data(settings)
    set_threads(settings.threads)
    titles = getattr(getattr(data, "train", data), "titles", ())
    scope = AuditScope(options.rounds, options.people, options.canaries, options.save)
    return audit_uploads(settings, make_task(settings, data), titles, scope, bars)


def command_line(settings: Settings, options: AuditOptions) -> str:
    """The command that makes this audit again: what differs from the defaults, with data and method."""
    if options.uploads:
        return command_text("audit", *option_words(options, ("uploads", "truth")))
    trained = option_words(settings, Settings.model_fields, ("data", "method"))
    return command_text("audit", *trained, *option_words(options, ("rounds", "run_rounds", "people", "canaries")))


def show_audit(result: AuditResult) -> None:
    """Print the table of attacks and the verdict."""
    cells = grid(result, "f1")
    title = "F1 by people in a sum: the mean, and the most exposed person"
    table = Table("stages", *cells.sizes, title=title, title_justify="left", box=None)
    for stage, row in cells.rows:
        table.add_row(Text(stage), *(Text("–") if c is None else _cell(c) for c in row))
    out.print(table)
    popular, blind = result.popularity_f1, result.random_f1
    out.print(
        f"baselines: popularity {popular:.3f}, a blind guess {blind:.3f}; dim: never seen by the server", style="dim"
    )
    if result.membership:
        printed = "none" if result.epsilon is None else f"{result.epsilon:.3g}"
        out.print(f"epsilon printed {printed}, measured at least {result.epsilon_lower:.3g}", style="bold")
    out.print(headline(result), style="bold", markup=False)
    for good, text in verdict(result):
        out.print(text, style="green" if good else "bold red", markup=False)
    texts = [membership_text(result), ratings_text(result), f"Attack: {result.attack}.", *result.notes]
    for text in filter(None, texts):
        out.print(text, style="dim", markup=False)
    put(f"Report: {result.report}")


def _cell(cell: Cell) -> Text:
    style = "bold" if cell.main else "" if cell.seen else "dim"
    return Text(f"{cell.text} {cell.worst}", style)
