"""A ledger of private runs: what was released about the same people over several runs, composed into one epsilon.

Each ledger is one JSON file for one data set, which its fingerprint (runs.fingerprint) names. A private run writes an
entry when it begins, before anything is released, and counts from then on whether it ends or not. Entries are told
apart by run id: a resumed run, or the same run again, draws the same noise, releases the same numbers and counts once.

The total is for somebody who sees everything that the runs released: models, sums and, of runs with local noise,
single uploads. Entries with repeatable noise are kept, but not counted: whoever knows the seed can remove such noise.
Runs without noise, or with noise but no bound (clip), have no epsilon and are not in a ledger.

An HMAC (SHA-256, with a random key in a file beside the ledger) finds edits, truncation and copies from elsewhere. It
does not find an older copy that was put back, nor ledger and key deleted together, and it does not stop somebody who
may read the key. A data set that gained or lost a single interaction has another fingerprint, and another ledger.

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
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .errors import RunError
from .lock import wait_for
from .wholefile import write_atomically
from .wire.accounting import MEANINGLESS, Mechanism, check, epsilons, statement

if TYPE_CHECKING:
    from .runs import RunFolder
    from .settings import Plan, Settings

FORMAT = "tacit-privacy-ledger-1"
KEY_BYTES = 32
SHARED_KEY = "ledger.key"  # of all ledgers in one folder
NOTE = "ledger.json"  # in a run folder: which ledger the run is in, and the total when it was entered


@dataclass(frozen=True)
class Entry:
    """One private run. It holds no path of a machine and no seed."""

    run: str  # the run id
    folder: str  # the name of the run folder
    date: str  # the day in UTC, as 2025-01-31
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
        return epsilons(self.mechanism, self.rounds, self.delta)["epsilon"]


@dataclass(frozen=True)
class Total:
    """Several runs composed. `epsilon` is 0 without entries, and None where repeatable runs are the only ones."""

    runs: int  # those that are counted
    epsilon: float | None
    delta: float | None
    repeatable_runs: int  # those that promise nothing and are not counted


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
        """Write entries whose run ids are new, all at once; how many there were. Safe beside other processes."""
        with _writing(self.path):
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            if self.key.name == SHARED_KEY:  # the folder is for ledgers alone
                self.path.parent.chmod(0o700)
            with wait_for(self.key.with_name(f".{self.key.name}.lock")):
                self._read()
                new = self._new(entries)
                if new:
                    self._write((*self.entries, *new))
        return len(new)

    def total(self, delta: float | None = None) -> Total:
        """All entries with secret noise, composed. `delta` is the smallest one of the entries when left out."""
        check(None, delta)
        counted = [entry for entry in self.entries if not entry.repeatable]
        repeatable = len(self.entries) - len(counted)
        if delta is None:
            delta = min((entry.delta for entry in counted or self.entries), default=None)
        if not counted or delta is None:
            return Total(0, None if repeatable else 0.0, delta, repeatable)
        releases = Counter((entry.mechanism, entry.rounds) for entry in counted)
        return Total(len(counted), composed_epsilon(frozenset(releases.items()), delta), delta, repeatable)

    def _new(self, entries: Iterable[Entry]) -> list[Entry]:
        """Entries that are not in the ledger. The same noise at two strengths would cancel, so it is refused."""
        known = {entry.run: entry for entry in self.entries}
        new = []
        for entry in entries:
            before = known.setdefault(entry.run, entry)
            if before is entry:
                new.append(entry)
            elif (before.mechanism, before.rounds) != (entry.mechanism, entry.rounds) and not (
                before.repeatable and entry.repeatable
            ):
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

    def _verified(self) -> dict[str, Any]:
        """The content of the file, if it is what was written for these data with this key."""
        try:
            content = json.loads(self.path.read_text("utf-8"))
        except OSError as error:
            raise self._untrusted(f"cannot be read ({error.strerror})") from None
        except (ValueError, RecursionError):
            raise self._untrusted("is not whole JSON: it was cut off or edited") from None
        if not isinstance(content, dict) or "mac" not in content:
            raise self._untrusted("is not a privacy ledger, or was edited")
        if content.get("format") != FORMAT:
            raise self._untrusted(f"has the format {content.get('format')!r} and this tacit reads {FORMAT!r}")
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

    def _entry(self, values: dict[str, Any]) -> Entry:
        """Fields that this version does not know could change the total, so they are refused. A field that Mechanism
        gained later has its default in older entries."""
        own, known = {field.name for field in fields(Entry)}, {field.name for field in fields(Mechanism)}
        unknown = sorted((values.keys() ^ own) | (values.get("mechanism", {}).keys() - known))
        if unknown:
            raise self._untrusted(f"has entries of another version of tacit (they differ in {', '.join(unknown)})")
        parameters: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in values["mechanism"].items()
        }
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
    the total means nothing anyway, by Renyi divergences, which need less memory."""
    import dp_accounting
    from dp_accounting import pld, rdp

    if len(releases) == 1:
        (((mechanism, rounds), times),) = releases
        if times == 1:  # the same figure as the run prints
            return epsilons(mechanism, rounds, delta)["epsilon"]
    ordered = sorted(releases, key=repr)
    event = dp_accounting.ComposedDpEvent(
        [dp_accounting.SelfComposedDpEvent(mechanism.event(rounds), times) for (mechanism, rounds), times in ordered]
    )
    logger = logging.getLogger("absl")  # orders of the divergence that do not converge are left out, which is sound
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        loose = float(rdp.RdpAccountant().compose(event).get_epsilon(delta))
        return loose if loose > 2 * MEANINGLESS else float(pld.PLDAccountant().compose(event).get_epsilon(delta))
    finally:
        logger.setLevel(level)


def entry_of(settings: Settings, plan: Plan, folder: RunFolder, data: str) -> Entry | None:
    """The entry of a run that begins today; None where the run promises nothing that could be composed."""
    mechanism = plan.wire.mechanism
    if mechanism is None:
        return None
    number = folder.stable_number if repeatable(settings) else folder.number  # repeated noise releases nothing new
    return Entry(
        run=str(number), folder=folder.path.resolve().name, date=f"{datetime.now(UTC):%Y-%m-%d}",
        method=settings.method, data=data, rounds=plan.rounds, delta=plan.delta, mechanism=mechanism,
        against=statement(mechanism, plan.rounds, plan.delta)["against"], repeatable=repeatable(settings),
    )  # fmt: skip


def repeatable(settings: Settings) -> bool:
    """Whether the noise follows from a number that somebody chose, and not from a secret key."""
    return settings.noise_seed is not None


def note_of(folder: RunFolder) -> dict[str, Any]:
    """What a run folder remembers of its ledger: the file, where one was named, and the total, once it was entered."""
    if not (folder.path / NOTE).exists():
        return {}
    note = folder.read(NOTE)
    kinds: dict[str, Any] = {"file": str, "runs": int, "epsilon": (int, float), "delta": float, "repeatable_runs": int}
    if any(name not in kinds or not isinstance(value, (kinds[name], type(None))) for name, value in note.items()):
        raise RunError(f"{folder.path / NOTE} is not what tacit wrote. Restore it from a copy, or run again.")
    return note


def write_note(folder: RunFolder, **values: Any) -> None:
    _write_private(folder.path / NOTE, json.dumps(note_of(folder) | values, indent=1, allow_nan=False).encode())


def noted_total(folder: RunFolder) -> dict[str, Any] | None:
    """`privacy.ledger` of a result: {"runs", "epsilon", "delta", "repeatable_runs"} when the run was entered."""
    note = note_of(folder)
    return {name: value for name, value in note.items() if name != "file"} if "runs" in note else None


def _mac(key: bytes, content: dict[str, Any]) -> str:
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":")).encode()
    return hmac.new(key, canonical, hashlib.sha256).hexdigest()


def _write_private(path: Path, content: bytes) -> None:
    """Replace a file atomically; only its owner may read it."""
    for left_over in path.parent.glob(f".{path.name}.*.part"):  # of a process that was killed
        with contextlib.suppress(OSError):
            left_over.unlink()
    write_atomically(path, content, 0o600)


@contextlib.contextmanager
def _writing(path: Path) -> Any:
    """Errors of the disk in words that fit a ledger."""
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
