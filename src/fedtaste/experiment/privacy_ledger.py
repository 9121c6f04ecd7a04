"""The privacy ledger: a signed file of all private runs on the same people, and their total epsilon.

Each ledger is one JSON file for one data set, named by the data's fingerprint (folder.fingerprint). A private run
writes an entry when it begins, before anything is released, and counts from then on whether it ends or not. Entries
are identified by run id: a resumed run, or the same run again, draws the same noise, releases the same numbers and
counts once.

The total holds against somebody who sees everything that the runs released: models, sums and, of runs with local noise,
single uploads. Entries with repeatable noise are listed but not counted: whoever knows the seed can remove such noise.
Runs without noise, or with noise but no bound (clip), have no epsilon and are not in a ledger.

An HMAC (SHA-256, with a random key in a file beside the ledger) detects edits, truncation and copies from elsewhere. It
does not detect an older copy that was put back, nor ledger and key deleted together, and it does not stop somebody who
can read the key. A data set that gained or lost a single interaction has another fingerprint, and another ledger.

    ledger = PrivacyLedger.open(Path("people.json"), fingerprint(data))
    ledger.add(entry)
    ledger.total(1e-6).epsilon
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import logging
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from fedtaste.data.archives import ledger_folder
from fedtaste.errors import RunError, SettingError
from fedtaste.experiment.result import LedgerTotal
from fedtaste.files.atomic import write_atomically
from fedtaste.files.lock import lock_file
from fedtaste.result_part import JsonObject
from fedtaste.text import count
from fedtaste.wire.accounting import MEANINGLESS, Mechanism, against, check_budget, epsilons
from fedtaste.wire.loss_accountant import loss_accountant

if TYPE_CHECKING:
    from fedtaste.experiment.folder import RunFolder
    from fedtaste.experiment.train import Prepared

LedgerChoice = Path | str | bool | None  # a file; None: that of the data; False: none
FORMAT = "fedtaste-privacy-ledger-1"
KEY_BYTES = 32
SHARED_KEY = "ledger.key"  # of all ledgers in one folder
NOTE = "ledger.json"  # in a run folder: which ledger the run is in, and the total when it was entered


@dataclass(frozen=True)
class Entry:
    """One private run. It holds no path of a machine and no seed."""

    run: str  # the run id
    folder: str  # the name of the run folder
    date: str  # the day in UTC, such as 2025-01-31
    method: str
    data: str
    rounds: int  # as planned
    delta: float
    mechanism: Mechanism
    against: str  # whom the run's own epsilon is promised against
    repeatable: bool  # the noise follows from a known seed, so the run promises nothing

    @property
    def epsilon(self) -> float:
        """Epsilon of this run alone, at its own delta."""
        return epsilons(self.mechanism, self.rounds, self.delta).epsilon


class PrivacyLedger:
    """The private runs on one data set, kept in a file that only its owner can read."""

    def __init__(self, path: Path, key: Path, fingerprint: str, entries: tuple[Entry, ...]) -> None:
        self.path, self.key, self.fingerprint, self.entries = path, key, fingerprint, entries

    @staticmethod
    def open(path: Path, fingerprint: str | None = None, key: Path | None = None) -> PrivacyLedger:
        """Read and verify a ledger; one that does not exist yet is empty. Nothing is written.

        Without a fingerprint the file must exist, and may be of any data. `key` is PATH.key when left out.
        """
        key = key or path.with_name(path.name + ".key")
        if fingerprint is None and not path.exists():
            raise RunError(f"There is no privacy ledger at {path}. Check the path.")
        ledger = PrivacyLedger(path, key, fingerprint or "", ())
        ledger._read()
        return ledger

    def add(self, *entries: Entry) -> int:
        """Write entries whose run ids are new, all at once; return their number. Safe beside other processes."""
        with _writing(self.path):
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            if self.key.name == SHARED_KEY:  # the folder is for ledgers alone
                self.path.parent.chmod(0o700)
            with lock_file(self.key.with_name(f".{self.key.name}.lock")):
                self._read()
                new = self._new(entries)
                if new:
                    self._write((*self.entries, *new))
        return len(new)

    def total(self, delta: float | None = None) -> LedgerTotal:
        """Compose all entries with secret noise. `delta` is the smallest one of the entries when left out. Epsilon is 0
        without entries, and None where all of them are repeatable."""
        check_budget(None, delta)
        counted = [entry for entry in self.entries if not entry.repeatable]
        repeatable = len(self.entries) - len(counted)
        if delta is None:
            delta = min((entry.delta for entry in counted or self.entries), default=None)
        epsilon = None if repeatable else 0.0
        if counted and delta is not None:
            releases = Counter((entry.mechanism, entry.rounds) for entry in counted)
            epsilon = composed_epsilon(frozenset(releases.items()), delta)
        return LedgerTotal(runs=len(counted), epsilon=epsilon, delta=delta, repeatable_runs=repeatable)

    def _new(self, entries: Iterable[Entry]) -> list[Entry]:
        """Entries that are not in the ledger. The same noise at two strengths would cancel, so it is refused."""
        by_run = {entry.run: entry for entry in self.entries}
        new = []
        for entry in entries:
            before = by_run.setdefault(entry.run, entry)
            same_release = (before.mechanism, before.rounds) == (entry.mechanism, entry.rounds)
            if before is entry:
                new.append(entry)
            elif not same_release and not (before.repeatable and entry.repeatable):
                raise RunError(
                    f"Run {entry.run} is in the privacy ledger {self.path} with other noise or rounds. Both runs would "
                    "draw the same random numbers, and their difference would reveal them: use another --noise-seed."
                )
        return new

    def _read(self) -> None:
        if self.path.exists():
            content = self._verified()
            self.fingerprint = content["fingerprint"]
            self.entries = tuple(self._entry(values) for values in content["entries"])
            return
        self.entries = ()
        if not self.key.exists() and self.key.name == SHARED_KEY and any(self.path.parent.glob("*.json")):
            raise self._untrusted(f"needs the key {self.key} of the other ledgers beside it, which does not exist")
        self._read_key()

    def _verified(self) -> JsonObject:
        """The content of the file, if it is what was written for these data with this key."""
        try:
            content = json.loads(self.path.read_text("utf-8"))
        except OSError as error:
            raise self._untrusted(f"cannot be read ({error.strerror})") from None
        except (ValueError, RecursionError):
            raise self._untrusted("is not complete JSON: it was cut off or edited") from None
        if not isinstance(content, dict) or "mac" not in content:
            raise self._untrusted("is not a privacy ledger, or was edited")
        if content.get("format") != FORMAT:
            raise self._untrusted(f"has the format {content.get('format')!r} and this fedtaste reads {FORMAT!r}")
        mac, key = content.pop("mac"), self._read_key()
        if key is None:
            raise self._untrusted(f"needs its key {self.key}, which does not exist")
        if not isinstance(mac, str) or not hmac.compare_digest(mac.encode(), _mac(key, content).encode()):
            raise self._untrusted(f"was edited, or {self.key} is not its key")
        if self.fingerprint not in ("", content["fingerprint"]):
            theirs, ours = content["fingerprint"][:16], self.fingerprint[:16]
            raise self._untrusted(
                f"is of other data: their fingerprint begins with {theirs}, that of these with {ours}"
            )
        return content

    def _read_key(self) -> bytes | None:
        try:
            key = self.key.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self._untrusted(f"needs its key {self.key}, which cannot be read ({error.strerror})") from None
        if len(key) != KEY_BYTES:
            raise self._untrusted(f"needs a key of {KEY_BYTES} bytes, and {self.key} has {len(key)}")
        return key

    def _entry(self, values: JsonObject) -> Entry:
        """Read one entry. Fields that this version does not have could change the total, so they are refused. A field
        that Mechanism gained later has its default in older entries."""
        names, parameter_names = ({field.name for field in fields(kind)} for kind in (Entry, Mechanism))
        unknown = sorted((values.keys() ^ names) | (values.get("mechanism", {}).keys() - parameter_names))
        if unknown:
            raise self._untrusted(f"has entries of another version of fedtaste (they differ in {', '.join(unknown)})")
        parameters: JsonObject = {n: tuple(v) if isinstance(v, list) else v for n, v in values["mechanism"].items()}
        return Entry(**values | {"mechanism": Mechanism(**parameters)})

    def _write(self, entries: tuple[Entry, ...]) -> None:
        key = self._read_key()
        if key is None:
            key = os.urandom(KEY_BYTES)
            _write_private(self.key, key)
        content = {"format": FORMAT, "fingerprint": self.fingerprint, "entries": [asdict(entry) for entry in entries]}
        text = json.dumps(content | {"mac": _mac(key, content)}, indent=1, allow_nan=False)
        _write_private(self.path, text.encode())
        self.entries = entries

    def _untrusted(self, problem: str) -> RunError:
        return RunError(
            f"The privacy ledger {self.path} {problem}. Private runs on these people are refused until ledger and key "
            "are restored from a copy, or another file is named with --ledger."
        )


@lru_cache(64)
def composed_epsilon(releases: frozenset[tuple[tuple[Mechanism, int], int]], delta: float) -> float:
    """Epsilon of ((mechanism, rounds), how often) together: by privacy loss distributions, which are exact, or, where
    the total is too large to mean anything, by Renyi divergences, which need less memory."""
    import dp_accounting
    from dp_accounting import rdp

    if len(releases) == 1:
        (((mechanism, rounds), times),) = releases
        if times == 1:  # the same figure as the run prints
            return epsilons(mechanism, rounds, delta).epsilon
    ordered = sorted(releases, key=repr)
    event = dp_accounting.ComposedDpEvent(
        [dp_accounting.SelfComposedDpEvent(mechanism.event(rounds), times) for (mechanism, rounds), times in ordered]
    )
    logger = logging.getLogger("absl")  # orders of the divergence that do not converge are left out, which is sound
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        loose = float(rdp.RdpAccountant().compose(event).get_epsilon(delta))
        return loose if loose > 2 * MEANINGLESS else float(loss_accountant()().compose(event).get_epsilon(delta))
    finally:
        logger.setLevel(level)


@dataclass(frozen=True)
class LedgerFolder:
    """The folder with one ledger per data set. They share a key."""

    path: Path

    @staticmethod
    def default() -> LedgerFolder:
        return LedgerFolder(ledger_folder())

    def open(self, file: Path | None, fingerprint: str | None) -> PrivacyLedger:
        """The ledger in this file, which may be elsewhere, or the one of the data with this fingerprint."""
        if file is None:
            file = self.path / f"{(fingerprint or '')[:16]}.json"
        shared = file.resolve().parent == self.path.resolve()
        return PrivacyLedger.open(file, fingerprint, file.with_name(SHARED_KEY) if shared else None)

    def files(self) -> list[Path]:
        """The files of all ledgers of the folder."""
        return sorted(self.path.glob("*.json"))

    def enter(self, runs: Mapping[RunFolder, Prepared], log: Callable[[str], None]) -> None:
        """Write the private ones of these runs into their ledger before anything is released, and log the new total.

        A run that is entered already, or has finished, stays as it is. All runs are of the same data and ledger.
        """
        unfinished = {folder: make_entry(folder, prepared) for folder, prepared in runs.items() if not folder.finished}
        entries = {folder: entry for folder, entry in unfinished.items() if entry is not None}
        if not entries:
            return
        first, *_ = entries
        file, _ = read_note(first)
        ledger = self.open(Path(file) if file else None, first.read("settings.json").get("data_hash"))
        added = ledger.add(*entries.values())
        unannounced = [folder for folder in entries if read_note(folder)[1] is None]
        if not unannounced:
            return
        total = ledger.total(min(entry.delta for entry in entries.values()))
        for folder in unannounced:
            write_note(folder, read_note(folder)[0], total)
        log(announce_total(list(entries.values()), added, total))


def enter_run(folder: RunFolder, prepared: Prepared, ledger: LedgerChoice) -> None:
    """Enter a private run that Python begins: into the ledger of its data, or into the file `ledger`; with False into
    none, and then no total holds it."""
    if ledger is False:
        return
    if ledger is True or not isinstance(ledger, str | Path | None):
        raise SettingError(f"ledger must be a file, or False for none, got {ledger!r}.")
    if ledger is not None and prepared.plan.wire.mechanism is None:
        raise SettingError("ledger would change nothing: the training has no noise and bound. Leave it out.")
    if ledger is not None:
        write_note(folder, str(Path(ledger).resolve()))
    LedgerFolder.default().enter({folder: prepared}, lambda total: None)


def make_entry(folder: RunFolder, prepared: Prepared) -> Entry | None:
    """The entry of a run that begins today; None where the run has no epsilon that could be composed."""
    plan, settings = prepared.plan, prepared.settings
    mechanism, repeatable = plan.wire.mechanism, settings.noise_seed is not None
    if mechanism is None:
        return None
    run = folder.repeatable_run_id if repeatable else folder.run_id  # repeated noise releases nothing new
    return Entry(
        run=str(run),
        folder=folder.path.resolve().name,
        date=f"{datetime.now(UTC):%Y-%m-%d}",
        method=settings.method,
        data=settings.data_name if prepared.data is None else prepared.data.name,
        rounds=plan.rounds,
        delta=plan.delta,
        mechanism=mechanism,
        against=against(mechanism),
        repeatable=repeatable,
    )


def announce_total(entries: list[Entry], added: int, total: LedgerTotal) -> str:
    """The total of the runs that begin and all earlier ones, in sentences."""
    single = len(entries) == 1
    repeatable = sum(entry.repeatable for entry in entries)
    sentences = []
    if repeatable:
        subject = "This run is" if single else f"{repeatable} of these runs are"
        sentences.append(f"{subject} not counted: repeatable noise promises nothing to whoever knows the seed.")
    if not added:
        sentences.append(f"The privacy ledger had {'this run' if single else 'these runs'} already.")
    if total.runs:
        counted = len({entry.run for entry in entries if not entry.repeatable})
        sentences.append(
            f"{_subject(counted, total.runs - counted)}: epsilon {total.epsilon:.3g} in all (delta {total.delta:.2g})."
        )
    return " ".join(sentences)


def _subject(counted: int, earlier: int) -> str:
    """The runs that a total is of: those that begin, and earlier ones."""
    before = f"{count(earlier, 'earlier private run')} on these people"
    if not counted:
        return before
    if counted == 1:
        return f"With {before}" if earlier else "No earlier private run on these people"
    return f"{counted} private runs" + (f", with {before}" if earlier else " on these people")


def read_note(folder: RunFolder) -> tuple[str | None, LedgerTotal | None]:
    """What a run folder remembers of its ledger: the file, where one was named, and the total, once it was entered."""
    if not (folder.path / NOTE).exists():
        return None, None
    note = folder.read(NOTE)
    file = note.pop("file", None)
    try:
        if not isinstance(file, str | None):
            raise ValueError("file must be text")
        return file, LedgerTotal.model_validate(note, strict=True) if note else None
    except ValueError as error:
        raise RunError(
            f"{folder.path / NOTE} is not what fedtaste wrote. Restore it from a copy, or run again."
        ) from error


def write_note(folder: RunFolder, file: str | None, total: LedgerTotal | None = None) -> None:
    """Write what a run folder remembers of its ledger."""
    note = ({} if file is None else {"file": file}) | (total.dump() if total else {})
    _write_private(folder.path / NOTE, json.dumps(note, indent=1, allow_nan=False).encode())


def _mac(key: bytes, content: JsonObject) -> str:
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":")).encode()
    return hmac.new(key, canonical, hashlib.sha256).hexdigest()


def _write_private(path: Path, content: bytes) -> None:
    """Replace a file atomically; only its owner may read it."""
    for left_over in path.parent.glob(f".{path.name}.*.part"):  # by a process that was killed
        with contextlib.suppress(OSError):
            left_over.unlink()
    write_atomically(path, content, 0o600)


@contextlib.contextmanager
def _writing(path: Path) -> Iterator[None]:
    """Turn errors of the disk into errors that name the ledger."""
    try:
        yield
    except (OSError, RunError) as error:
        cause = error if isinstance(error, OSError) else error.__cause__
        if not isinstance(cause, OSError):  # the ledger was refused
            raise
        raise RunError(
            f"The privacy ledger {path} cannot be written ({cause.strerror or cause}), so the run was not begun. Free "
            "some space, check permissions, or name another file with --ledger."
        ) from error
