"""Download published archives of data sets, verify their checksums, and store them in a cache.

The cache holds the archive itself, whose published checksum is checked every time it is read; so a damaged cache is
noticed, and an archive put there by hand is as good as a downloaded one. Files that a program may not download are only
looked for in the cache.
"""

from __future__ import annotations

import hashlib
import http.client
import io
import os
import subprocess
import sys
import tempfile
import urllib.request
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from fedtaste.data.interactions import Interactions
from fedtaste.errors import ChecksumError, DataError, RunError
from fedtaste.files.atomic import write_atomically

Log = Callable[[str], None]


@dataclass(frozen=True)
class Archive:
    """A published zip file that holds a data set."""

    file: str
    sha256: str
    origin: str
    fetch: Callable[[], bytes]  # raises OSError with a short reason
    parse: Callable[[zipfile.ZipFile], Interactions]


@dataclass(frozen=True)
class ByHand:
    """A file that a person must download: behind an account, a form or a licence, or without a lasting address."""

    files: tuple[str, ...]  # its names in the cache, also with .gz; the publisher's first
    where: str
    parse: Callable[[str, bytes], Interactions]  # file name, content
    variants: Mapping[str, Callable[[str, bytes], Interactions]] = field(default_factory=dict)  # other readings of it


def ledger_folder() -> Path:
    """The folder of privacy ledgers: FEDTASTE_LEDGERS, or `privacy` in the cache folder. The command line and Python
    have the same one, so that no run is left out of a total."""
    cache = Path(os.environ.get("FEDTASTE_CACHE") or default_cache())
    return Path(os.environ.get("FEDTASTE_LEDGERS") or cache / "privacy")


def default_cache() -> Path:
    """`fedtaste` in the user's cache folder."""
    if folder := os.environ.get("XDG_CACHE_HOME"):
        return Path(folder) / "fedtaste"
    try:
        return Path.home() / ".cache" / "fedtaste"
    except RuntimeError:  # a user without a home, as in some containers
        return Path(tempfile.gettempdir()) / "fedtaste"


def obtain(name: str, archives: tuple[Archive, ...], terms: str, cache: Path, log: Log) -> Interactions:
    """Load the data set from the cache, or download it from the first origin that answers.

    `log` receives messages for the user: downloads, terms and damaged files.
    """
    broken = []
    for archive in archives:
        path = cache / archive.file
        if path.is_file():
            try:
                return read_archive(archive, path.read_bytes())
            except (OSError, ChecksumError) as error:
                log(f"{path} is damaged and is not used: {error}")
                broken.append(path)
    reasons = [f"{path} is damaged" for path in broken]
    for archive in archives:
        log(f"Fetching {name} from {archive.origin}.")
        try:
            content = archive.fetch()
        except OSError as error:
            reasons.append(f"{archive.origin}: {error}")
            continue
        try:
            data = read_archive(archive, content)
        except ChecksumError as error:
            todo = f"Nothing was kept. Try again, or put the right {archive.file} into {cache} by hand."
            raise ChecksumError(f"{archive.origin} sent another file: {error} {todo}") from error
        log(terms)
        _keep(content, cache / archive.file, broken, log)
        return data
    raise DataError(
        f"{name} cannot be fetched. {'; '.join(reasons)}. Put {archives[0].file} into {cache} by hand, or use "
        "generated data: --data synthetic."
    )


def read_by_hand(name: str, by_hand: ByHand, variant: str, cache: Path) -> Interactions:
    """Read the file that a person has put into the cache, or say where to get it; `variant` may be empty."""
    names = [name + ending for name in by_hand.files for ending in ("", ".gz")]
    path = next((cache / name for name in names if (cache / name).is_file()), None)
    if path is None:
        raise DataError(
            f"{name} must be downloaded by hand, and is not in the cache. Get {by_hand.files[0]} from {by_hand.where} "
            f"and put it into {cache} as {', '.join(names[:-1])} or {names[-1]}; or use generated data: "
            "--data synthetic."
        )
    try:
        content = path.read_bytes()
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror or error}). Check its permissions.") from error
    return by_hand.variants.get(variant, by_hand.parse)(str(path), content)


def read_archive(archive: Archive, content: bytes) -> Interactions:
    """Verify the checksum of an archive and parse it."""
    verify(archive.file, content, archive.sha256)
    with zipfile.ZipFile(io.BytesIO(content)) as opened:
        return archive.parse(opened)


def verify(what: str, content: bytes, expected: str) -> bytes:
    """Return the content; raise ChecksumError where it is not the published one."""
    actual = hashlib.sha256(content).hexdigest()
    if actual != expected:
        raise ChecksumError(f"{what} has sha256 {actual}, expected {expected}.")
    return content


def _keep(content: bytes, path: Path, broken: list[Path], log: Log) -> None:
    """Store a verified archive and delete damaged ones; a cache that cannot be written is not an error."""
    try:
        write_atomically(path, content)
        for old in broken:
            if old != path:
                old.unlink(missing_ok=True)
    except (RunError, OSError) as error:
        log(f"Not kept for next time: {error}")


def fetch_url(url: str) -> bytes:
    """Download a zip file."""
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            content: bytes = answer.read()
    except http.client.HTTPException as error:
        raise OSError(f"broken answer ({type(error).__name__})") from error
    except OSError as error:  # URLError and TimeoutError are such
        raise OSError(f"no answer ({getattr(error, 'reason', error)})") from error
    if not content.startswith(b"PK"):  # a sign-in page or a proxy's note, not a wrong file
        raise OSError("the answer is not a zip file")
    return content


def fetch_wheel(requirement: str, file: str) -> bytes:
    """Download one wheel through pip, which knows the user's package index; nothing is installed."""
    with tempfile.TemporaryDirectory() as folder:
        options = "--no-deps --no-cache-dir --no-input --only-binary=:all: --ignore-requires-python --retries 1 -q -d"
        command = [sys.executable, "-m", "pip", "download", *options.split(), folder, requirement]
        try:
            done = subprocess.run(
                command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", timeout=180
            )
        except subprocess.TimeoutExpired as error:
            raise OSError("pip did not finish within 180 seconds") from error
        path = Path(folder) / file
        if done.returncode or not path.is_file():
            lines = done.stderr.strip().splitlines() or ["no message"]
            raise OSError("pip: " + next((line for line in lines if line.startswith("ERROR")), lines[-1])[:200])
        return path.read_bytes()
