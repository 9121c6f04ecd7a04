"""`tacit privacy`, and the privacy ledger of `run`, `compare`, `federate` and `resume`: parses, calls, prints."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from .cli_options import DeltaOption, JsonOption, SeedOption
from .errors import RunError, SettingError
from .terminal import cache, emit, ledgers, out, say

privacy_app = typer.Typer(help="Privacy: what private runs released about the same people.", no_args_is_help=True)
LIMITS = (
    "The total is for somebody who sees everything that these runs released. Runs without noise, or with noise and no "
    "clip, have no epsilon and are not in a ledger."
)
UNCOUNTED = "Repeatable noise promises nothing: whoever knows the seed can remove it. Such runs are not counted."


@privacy_app.callback()
def privacy() -> None:
    """Privacy: what private runs released about the same people."""


@privacy_app.command("ledger")
def show_ledger(
    data: Annotated[str | None, typer.Option("--data", help="The data set, or its path.")] = None,
    ledger: Annotated[Path | None, typer.Option("--ledger", help="A ledger that a run wrote with --ledger.")] = None,
    delta: DeltaOption = None, seed: SeedOption = 0, json_: JsonOption = False,
) -> None:  # fmt: skip
    """Show the private runs on the same people and their epsilon in all; without --data and --ledger, every ledger.

    --delta is the smallest one of the runs when left out. --seed matters for data that are made from it.
    """
    from .wire.accounting import check

    check(None, delta)
    if data is None and ledger is None:
        return _show_all(delta, json_)
    fingerprint = None
    if data is not None:
        from .data.sources import load
        from .runs import fingerprint as hash_of

        fingerprint = hash_of(load(data, seed=seed, cache=cache(), say=say))
    found = open_ledger(ledger, fingerprint)
    return emit(_summary(found, delta)) if json_ else _show_one(found, delta)


def open_ledger(file: Path | None, fingerprint: str | None) -> Any:
    """The ledger in this file, or the one of these data in the folder of ledgers, which share a key."""
    from .privacy_ledger import SHARED_KEY, PrivacyLedger

    if file is None:
        file = ledgers() / f"{(fingerprint or '')[:16]}.json"
    shared = file.resolve().parent == ledgers().resolve()
    return PrivacyLedger.open(file, fingerprint, file.with_name(SHARED_KEY) if shared else None)


def check_ledger(file: Path | None, wanted: list[Any], task: Any, data: Any) -> None:
    """Verify the ledger before a run folder is made. A ledger that nothing would be written to is refused."""
    from .runs import fingerprint
    from .settings import plan

    if any(plan(settings, task.facts).wire.mechanism for settings in wanted if settings.wire or settings.epsilon):
        open_ledger(file, fingerprint(data))
    elif file is not None:
        raise SettingError(
            "--ledger would change nothing: no run has noise and a bound. Add --epsilon, or leave it out."
        )


def name_ledger(folder: Any, file: Path | None) -> None:
    """Keep the name of a ledger other than the default with the run, for `tacit resume`."""
    from .privacy_ledger import write_note

    if file is not None:
        write_note(folder, file=str(file.resolve()))


def enter_runs(folders: list[Any], data: Any, task: Any = None) -> None:
    """Write the private ones of these runs into the ledger, before anything is released, and say what they add up to.

    A run that is entered already, or has finished, stays as it is. All folders are of the same data and ledger.
    """
    from .experiment import make_task
    from .privacy_ledger import entry_of, note_of, write_note
    from .settings import plan

    entries: dict[Any, Any] = {}
    for folder in folders:
        settings = folder.settings()
        if folder.finished or not (settings.wire or settings.epsilon):
            continue
        if task is None:
            task = make_task(settings, data)
        entry = entry_of(settings, plan(settings, task.facts), folder, data.name)
        if entry is not None:
            entries[folder] = entry
    if not entries:
        return
    first, *_ = entries
    file = note_of(first).get("file")
    ledger = open_ledger(Path(file) if file else None, first.read("settings.json").get("data_hash"))
    added = ledger.add(*entries.values())
    unannounced = [folder for folder in entries if "runs" not in note_of(folder)]
    if not unannounced:
        return
    total = ledger.total(min(entry.delta for entry in entries.values()))
    for folder in unannounced:
        write_note(folder, **asdict(total))
    say(announcement(list(entries.values()), added, total))


def announcement(entries: list[Any], added: int, total: Any) -> str:
    """What the runs that begin add up to with all earlier ones."""
    one = len(entries) == 1
    counted = len({entry.run for entry in entries if not entry.repeatable})
    earlier, sentences = total.runs - counted, []
    if any(entry.repeatable for entry in entries):
        uncounted = "This run is" if one else f"{sum(entry.repeatable for entry in entries)} of these runs are"
        sentences.append(f"{uncounted} not counted: repeatable noise promises nothing to whoever knows the seed.")
    if not added:
        sentences.append(f"The privacy ledger had {'this run' if one else 'these runs'} already.")
    if total.runs:
        before = f"{earlier} earlier private run{'s' * (earlier != 1)} on these people"
        if not counted:
            subject = before
        elif counted == 1:
            subject = f"With {before}" if earlier else "No earlier private run on these people"
        else:
            subject = f"{counted} private runs" + (f", with {before}" if earlier else " on these people")
        sentences.append(f"{subject}: epsilon {total.epsilon:.3g} in all (delta {total.delta:.2g}).")
    return " ".join(sentences)


def _summary(ledger: Any, delta: float | None) -> dict[str, Any]:
    total = ledger.total(delta)
    return {
        "fingerprint": ledger.fingerprint,
        "runs": [asdict(entry) | {"epsilon": entry.epsilon} for entry in ledger.entries],
        "epsilon": total.epsilon,
        "delta": total.delta,
        "repeatable_runs": total.repeatable_runs,
    }


def _total_line(total: Any) -> str:
    if total.epsilon is None or not total.runs:
        return "No run is counted."
    many = f"{total.runs} run{'s' * (total.runs != 1)}"
    return f"{many} in all: epsilon {total.epsilon:.3g} (delta {total.delta:.2g})."


def _show_one(ledger: Any, delta: float | None) -> None:
    from rich.table import Table
    from rich.text import Text

    total = ledger.total(delta)
    if not ledger.entries:
        out.print(f"No private run on these people is in {ledger.path}.", markup=False, soft_wrap=True)
        return
    table = Table(title=Text(", ".join(_names(ledger))), title_justify="left", box=None, padding=(0, 1))
    for name in ("date", "run", "method", "epsilon", "rounds", "against", "noise"):
        width = 12 if name == "run" else None
        table.add_column(name, no_wrap=name not in ("run", "against"), overflow="fold", min_width=width)
    for entry in ledger.entries:
        table.add_row(
            entry.date, Text(entry.folder), entry.method, "none" if entry.repeatable else f"{entry.epsilon:.3g}",
            str(entry.rounds), entry.against,
            "repeatable" if entry.repeatable else "secret",
        )  # fmt: skip
    out.print(table)
    deltas = " or ".join(f"{delta:.2g}" for delta in sorted({entry.delta for entry in ledger.entries}))
    out.print(f"Epsilon of a run alone is at its own delta: {deltas}.", style="dim", markup=False, soft_wrap=True)
    out.print(_total_line(total), style="bold", markup=False, soft_wrap=True)
    if total.repeatable_runs:
        out.print(UNCOUNTED, style="dim", markup=False, soft_wrap=True)
    out.print(LIMITS, style="dim", markup=False, soft_wrap=True)


def _names(ledger: Any) -> list[str]:
    return list(dict.fromkeys(entry.data for entry in ledger.entries))


def _show_all(delta: float | None, json_: bool) -> None:
    """Every ledger of the folder. One that cannot be trusted does not hide the others, and is an error at the end."""
    found, refused = [], []
    for file in sorted(ledgers().glob("*.json")):
        try:
            found.append(open_ledger(file, None))
        except RunError as error:
            refused.append(str(error))
    if json_ and not refused:
        emit({"ledgers": [_summary(ledger, delta) for ledger in found]})
    elif not json_:
        for ledger in found:
            names, total = ", ".join(_names(ledger)), ledger.total(delta)
            aside = f" Not counted, as repeatable: {total.repeatable_runs}." if total.repeatable_runs else ""
            out.print(f"{ledger.path.stem}  {names}: {_total_line(total)}{aside}", markup=False, soft_wrap=True)
        if not found and not refused:
            out.print(f"There is no privacy ledger in {ledgers()}.", markup=False, soft_wrap=True)
        elif found:
            out.print(LIMITS, style="dim", markup=False, soft_wrap=True)
    if refused:
        raise RunError(" ".join(refused))
