"""`fedtaste privacy ledger`: show what private runs released about the same people."""

from __future__ import annotations

from dataclasses import asdict

from rich.table import Table
from rich.text import Text

from fedtaste.cli.options import LedgerOptions
from fedtaste.cli.output import cache, emit, out, put, say
from fedtaste.data.sources import load
from fedtaste.errors import RunError
from fedtaste.experiment.folder import fingerprint
from fedtaste.experiment.privacy_ledger import LedgerFolder, PrivacyLedger
from fedtaste.experiment.result import LedgerTotal
from fedtaste.text import count
from fedtaste.wire.accounting import check_budget

LIMITS = (
    "The total holds against somebody who sees everything that these runs released. Runs without noise, or with noise "
    "and no clip, have no epsilon and are not in a ledger."
)
UNCOUNTED = "Repeatable noise promises nothing: whoever knows the seed can remove it. Such runs are not counted."


def show_ledger(options: LedgerOptions) -> None:
    """Show one ledger, or a line for each of them."""
    check_budget(None, options.delta)
    folder = LedgerFolder.default()
    if options.data is None and options.ledger is None:
        show_all(folder, options)
        return
    data_hash = None
    if options.data is not None:
        data = load(options.data, seed=options.seed, cache=cache(), log=say, options=options.read_options)
        data_hash = fingerprint(data)
    ledger = folder.open(options.ledger, data_hash)
    if options.as_json:
        emit(summary(ledger, options.delta))
    else:
        show_one(ledger, options.delta)


def summary(ledger: PrivacyLedger, delta: float | None) -> dict[str, object]:
    """What --json prints of a ledger."""
    total = ledger.total(delta)
    return {
        "fingerprint": ledger.fingerprint,
        "runs": [asdict(entry) | {"epsilon": entry.epsilon} for entry in ledger.entries],
        "epsilon": total.epsilon,
        "delta": total.delta,
        "repeatable_runs": total.repeatable_runs,
    }


def show_one(ledger: PrivacyLedger, delta: float | None) -> None:
    """Print the runs of a ledger and their total."""
    total = ledger.total(delta)
    if not ledger.entries:
        put(f"No private run on these people is in {ledger.path}.")
        return
    table = Table(title=Text(_data_names(ledger)), title_justify="left", box=None, padding=(0, 1))
    for name in ("date", "run", "method", "epsilon", "rounds", "against", "noise"):
        width = 12 if name == "run" else None
        table.add_column(name, no_wrap=name not in ("run", "against"), overflow="fold", min_width=width)
    for entry in ledger.entries:
        epsilon, noise = ("none", "repeatable") if entry.repeatable else (f"{entry.epsilon:.3g}", "secret")
        row = (entry.date, Text(entry.folder), entry.method, epsilon, str(entry.rounds), entry.against, noise)
        table.add_row(*row)
    out.print(table)
    deltas = " or ".join(f"{delta:.2g}" for delta in sorted({entry.delta for entry in ledger.entries}))
    put(f"Epsilon of a run alone is at its own delta: {deltas}.", "dim")
    put(_total_line(total), "bold")
    if total.repeatable_runs:
        put(UNCOUNTED, "dim")
    put(LIMITS, "dim")


def show_all(folder: LedgerFolder, options: LedgerOptions) -> None:
    """Show every ledger of the folder. Those that cannot be trusted are named in an error at the end."""
    ledgers, refused = [], []
    for file in folder.files():
        try:
            ledgers.append(folder.open(file, None))
        except RunError as error:
            refused.append(str(error))
    if options.as_json:
        if not refused:
            emit({"ledgers": [summary(ledger, options.delta) for ledger in ledgers]})
    else:
        for ledger in ledgers:
            total = ledger.total(options.delta)
            aside = f" Not counted, as repeatable: {total.repeatable_runs}." if total.repeatable_runs else ""
            put(f"{ledger.path.stem}  {_data_names(ledger)}: {_total_line(total)}{aside}")
        if ledgers:
            put(LIMITS, "dim")
        elif not refused:
            put(f"There is no privacy ledger in {folder.path}.")
    if refused:
        raise RunError(" ".join(refused))


def _data_names(ledger: PrivacyLedger) -> str:
    return ", ".join(dict.fromkeys(entry.data for entry in ledger.entries))


def _total_line(total: LedgerTotal) -> str:
    if total.epsilon is None or not total.runs:
        return "No run is counted."
    return f"{count(total.runs, 'run')} in all: epsilon {total.epsilon:.3g} (delta {total.delta:.2g})."
