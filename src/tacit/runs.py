"""The run folder: all that a run leaves, and all that is needed to go on with it.

settings.json         what was asked for, by which version, on which data (a hash)
state.safetensors     the last checkpoint: phase, parameters, private parameters, curve
final.safetensors     the trained state           model.safetensors   its shared part alone
items.json            the catalogue: names, titles, genres, and counts (not in a private run)
noise.key             32 secret bytes that a private run draws noise and coins from; without it nothing can be resumed
result.json           what `--json` printed        report.html, plots/
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from .core import Params
from .data.importing import BroughtSplit
from .data.interactions import Interactions
from .data.supervised import Supervised
from .engine.checkpoint import load_params, load_state, save_params, save_state
from .engine.run import State
from .errors import RunError
from .lock import alone
from .wholefile import write_atomically
from .wire.rng import KEY_BYTES, fresh_key

if TYPE_CHECKING:
    from .progress import Progress
    from .settings import Settings

FORMAT = "tacit-run-1"


@dataclass(frozen=True)
class RunFolder:
    path: Path

    @staticmethod
    def create(
        path: Path, settings: dict[str, Any], data: Interactions | BroughtSplit | Supervised, version: str
    ) -> RunFolder:
        folder = RunFolder(path)
        try:
            path.mkdir(mode=0o700 if _private(settings) else 0o777, parents=True, exist_ok=True)
        except OSError as error:
            raise RunError(
                f"The run folder {path} cannot be made ({error.strerror}). Choose another with --out."
            ) from error
        with alone(path):
            return folder._begin(settings, data, version)

    def _begin(
        self, settings: dict[str, Any], data: Interactions | BroughtSplit | Supervised, version: str
    ) -> RunFolder:
        path = self.path
        if (path / "settings.json").exists():
            raise RunError(
                f"{path} holds a run already. Go on with it by `tacit resume {path}`, or choose another --out."
            )
        if any(entry.name != "noise.key" for entry in path.iterdir()):  # a key alone: killed before the run began
            raise RunError(f"{path} is not empty, and what is in it is not a run. Choose another --out.")
        private = _private(settings)
        if private:
            path.chmod(0o700)  # all that a private run leaves is its owner's
            write_atomically(path / "noise.key", fresh_key(), 0o600)
        self.write(  # first: from now on it is a run, and can be resumed
            "settings.json",
            {"format": FORMAT, "version": version, "settings": settings, "data_hash": fingerprint(data),
             "nonce": secrets.token_hex(16), "private": private},
        )  # fmt: skip
        self.write("items.json", catalogue(data, counts=not private))
        return self

    @staticmethod
    def open(path: Path) -> RunFolder:
        folder = RunFolder(path)
        if path.is_dir() and not (path / "settings.json").exists() and any(path.glob("*/settings.json")):
            raise RunError(
                f"{path} is a comparison, or what is left of one. Its runs are the folders in it: give one, as in "
                f"`tacit resume {next(path.glob('*/settings.json')).parent}`."
            )
        if not path.is_dir() or not (path / "settings.json").exists():
            raise RunError(f"{path} is not a run folder: it has no settings.json. Give a folder that `tacit run` made.")
        found = folder.read("settings.json")
        if found.get("format") != FORMAT:
            raise RunError(
                f"{path} was written in format {found.get('format')!r} by tacit {found.get('version')}; "
                f"this tacit reads {FORMAT!r}. Use that version, or run again."
            )
        return folder

    @property
    def private(self) -> bool:
        """Whether the run has noise: then its files are readable by their owner only."""
        try:
            return bool(json.loads((self.path / "settings.json").read_text("utf-8")).get("private"))
        except (OSError, ValueError, AttributeError):
            return False

    @property
    def number(self) -> int:
        """Stable run id: hash of the settings, the data fingerprint and a nonce of the folder. It tells the messages of
        this run from another's."""
        return self._number(with_nonce=True)

    @property
    def stable_number(self) -> int:
        """The same without the nonce: equal for two runs with equal settings and data, for repeatable studies."""
        return self._number(with_nonce=False)

    def _number(self, with_nonce: bool) -> int:
        if not (self.path / "settings.json").exists():  # states without a run: nothing could be mixed up
            return 0
        found = self.read("settings.json")
        asked = {n: v for n, v in dict(found.get("settings") or {}).items() if n not in ("backend", "threads", "store")}
        mark = json.dumps([asked, found.get("data_hash"), found.get("nonce") if with_nonce else None], sort_keys=True)
        return int.from_bytes(hashlib.sha256(mark.encode()).digest()[:8], "big") >> 1

    def noise_key(self) -> bytes:
        """The secret that this run's noise is drawn from."""
        path = self.path / "noise.key"
        try:
            found = path.read_bytes()
        except OSError as error:
            raise RunError(
                f"{path} cannot be read ({error.strerror}). A resumed run must draw the same noise: restore the file "
                "from a copy, or run again."
            ) from error
        if len(found) != KEY_BYTES:
            raise RunError(f"{path} holds {len(found)} bytes, not {KEY_BYTES}. Restore it from a copy, or run again.")
        return found

    def write(self, name: str, content: Any) -> None:
        text = json.dumps(content, indent=1, allow_nan=False, default=str).encode()
        mode = 0o600 if name == "settings.json" else self._mode  # settings may hold the seed of the noise
        write_atomically(self.path / name, text, mode)

    def read(self, name: str) -> dict[str, Any]:
        try:
            text = (self.path / name).read_text("utf-8")
            found = json.loads(text, parse_int=_whole, parse_constant=_whole)
            if not isinstance(found, dict):
                raise ValueError("it is not a JSON object")
            return found
        except FileNotFoundError:
            raise RunError(
                f"{self.path} has no {name}. The run may not have finished: `tacit resume {self.path}`."
            ) from None
        except (OSError, ValueError, RecursionError) as error:
            raise RunError(
                f"{self.path / name} cannot be read ({error}). Restore it from a copy, or run again."
            ) from error

    def settings(self) -> Settings:
        """What was asked for when the run was begun."""
        from .settings import Settings

        try:
            return Settings(**self.read("settings.json")["settings"])
        except (KeyError, TypeError, ValueError) as error:
            raise RunError(
                f"{self.path / 'settings.json'} holds no settings of this tacit ({str(error).splitlines()[0]}). "
                "Restore it from a copy, or run again."
            ) from error

    @property
    def federated(self) -> bool:
        """Whether its devices were elsewhere: then nobody's private parameters are here."""
        return (self.path / "federation").is_dir()

    @property
    def finished(self) -> bool:
        return (self.path / "result.json").exists()

    def same_data(self, data: Interactions | BroughtSplit | Supervised) -> None:
        """Refuse to go on with other data than the run began with; and write the catalogue, if a crash came before."""
        if self.read("settings.json").get("data_hash") != fingerprint(data):
            raise RunError(
                f"The data have changed since {self.path} was begun; a resumed run would mix the two. "
                "Restore the data, or run again."
            )
        if not (self.path / "items.json").exists():
            self.write("items.json", catalogue(data, counts=not self.private))

    def same_version(self, version: str) -> None:
        """Refuse to go on with another tacit than the run began with: its defaults and its arithmetic may differ."""
        begun = self.read("settings.json").get("version")
        if begun != version:
            raise RunError(
                f"{self.path} was begun by tacit {begun}; this is {version}, and a resumed run would mix the two. "
                "Use that version, or run again."
            )

    def same_plan(self, shown: dict[str, Any]) -> None:
        """Keep every setting in force with the run, and refuse to go on under others: a tacit with other defaults would
        end elsewhere. Weights by age may be off where somebody new brings no order."""
        from .settings import UNTIMED

        now = json.loads(json.dumps(shown))
        if not (self.path / "plan.json").exists():
            self.write("plan.json", now)
            return
        then = self.read("plan.json")
        changed = [n for n in sorted({*then, *now}) if then.get(n) != now.get(n) and n not in UNTIMED]
        if changed:
            raise RunError(
                f"{self.path} was begun with other values of {', '.join(changed)} than this tacit's defaults. "
                "Use the tacit that began it, or run again."
            )

    def save(self, state: State | None, progress: Progress) -> None:
        about = {"progress": asdict(progress), "run": self.number}
        path = self.path / "state.safetensors"
        if state is None:
            save_params(path, {}, about, self._mode)
        else:
            save_state(path, state, about, self._mode)

    @property
    def _mode(self) -> int | None:
        return 0o600 if self.private else None

    def restore(self, fresh: Callable[[], State]) -> tuple[State | None, Progress | None]:
        """(state, progress) of the last checkpoint; None where there is none."""
        from .progress import Progress

        path = self.path / "state.safetensors"
        if not path.exists():
            return None, None
        params, about = load_params(path)
        if about.get("run", 0) != self.number:  # other noise, or other people, would make its epsilon untrue
            raise RunError(
                f"{path} was not written with the settings and the data that {self.path / 'settings.json'} names now. "
                "Restore the folder from a copy, or run again."
            )
        try:
            progress = Progress(**about["progress"])
            for field, usual in asdict(Progress()).items():
                if usual is not None and type(getattr(progress, field)) is not type(usual):
                    raise TypeError(f"{field} is not what it should be")
        except (KeyError, TypeError) as error:
            raise RunError(f"{path} is not a checkpoint of this tacit ({error}). Run again.") from error
        return (load_state(path, fresh())[0] if params else None), progress

    def save_final(self, state: State) -> None:
        save_params(self.path / "model.safetensors", state.shared, {"round": state.round}, self._mode)
        save_state(self.path / "final.safetensors", state, {}, self._mode)

    def final(self, fresh: State) -> State:
        return load_state(self.path / "final.safetensors", fresh)[0]

    def model(self, like: Params) -> Params:
        """The shared parameters, which must have the names and shapes of `like`."""
        found = load_params(self.path / "model.safetensors")[0]
        if {n: v.shape for n, v in found.items()} != {n: v.shape for n, v in like.items()}:
            raise RunError(f"{self.path}/model.safetensors is of another run. Restore it from a copy, or run again.")
        return found

    def runs(self) -> list[Path]:
        """The run folders of a comparison."""
        names = self.read("compare.json").get("runs")
        if not isinstance(names, list) or not names or not all(isinstance(n, str) and Path(n).name == n for n in names):
            raise RunError(f"{self.path}/compare.json does not name the runs in it. Restore it, or compare again.")
        return [self.path / name for name in names]

    def result(self) -> dict[str, Any]:
        """result.json, with everything that a reader of it needs."""
        found = self.read("result.json")
        needed = {"task": str, "method": str, "items": int, "rounds": int, "scale": list, "seen": dict, "notes": list}
        parts: dict[str, type | tuple[type, ...]] = {"scale": (int, float), "notes": str, "curve": dict}
        # Results of earlier versions may lack these.
        older = {"curve": list, "settings": dict, "members": int, "wire": str, "feature_count": int}
        needed |= {name: kind for name, kind in older.items() if name in found}
        wrong = [n for n, kind in needed.items() if not isinstance(found.get(n), kind)]
        wrong = wrong or [n for n, kind in parts.items() if not all(isinstance(x, kind) for x in found.get(n, ()))]
        if wrong or len(found["scale"]) != 2:
            wrong = wrong or ["scale"]
            raise RunError(f"{self.path}/result.json has no usable {', '.join(wrong)}. Restore it, or run again.")
        return dict(found)

    def items(self, number: int) -> dict[str, Any]:
        """items.json, with a name, a title and a count for each of so many items; counts are 0 in a private run."""
        found = self.read("items.json")
        if self.private:
            found = found | {"counts": [0] * number}
        for name, kind in (("names", str), ("titles", str), ("counts", int)):
            column = found.get(name) if isinstance(found, dict) else None
            if not isinstance(column, list) or len(column) != number or not all(isinstance(x, kind) for x in column):
                raise RunError(f"{self.path}/items.json does not hold {number:,} {name}. Restore it, or run again.")
        return dict(found)


def _whole(text: str) -> int:
    """A whole number that fits; JSON's others (and NaN and Infinity) no tacit has written."""
    if len(text) > 300 or not text.lstrip("-").isdigit():
        raise ValueError(f"{text[:20]} is no number that tacit writes")
    return int(text)


def _private(settings: dict[str, Any]) -> bool:
    from .promises import is_private
    from .settings import Settings

    return is_private(Settings(**settings))


def catalogue(data: Interactions | BroughtSplit | Supervised, counts: bool = True) -> dict[str, Any]:
    """Items as a reader knows them. How many people have each stands in it where nothing is promised to them."""
    if isinstance(data, Supervised):
        return {"names": [], "titles": [], "genres": [], "counts": []}
    whole = data.train if isinstance(data, BroughtSplit) else data
    found: dict[str, Any] = {"names": list(whole.items), "titles": list(whole.titles), "genres": list(whole.genres)}
    if counts:
        found["counts"] = np.bincount(whole.item, minlength=len(whole.items)).tolist()
    return found


def fingerprint(data: Interactions | BroughtSplit | Supervised) -> str:
    """A hash of everything that is learnt from or judged on, names included."""
    digest = hashlib.sha256()
    if isinstance(data, Supervised):
        parts: list[Any] = [*data.features, *data.targets, *data.test_features, *data.test_targets]
    else:
        tables = (
            [data]
            if isinstance(data, Interactions)
            else [t for t in (data.train, data.valid, data.test) if t is not None]
        )
        parts = [column for t in tables for column in (t.person, t.item, t.value, t.time)]
        digest.update(json.dumps([tables[0].people, tables[0].items]).encode())
        if isinstance(data, BroughtSplit) and data.negatives is not None:
            parts += [data.negatives.starts, data.negatives.items]
    for part in parts:
        digest.update(b"-" if part is None else np.ascontiguousarray(part).tobytes())
    return digest.hexdigest()


def next_folder(base: Path, stem: str) -> Path:
    """base/stem-N for the first N that is free."""
    taken = set(os.listdir(base)) if base.is_dir() else set()
    number = 1
    while f"{stem}-{number}" in taken:
        number += 1
    return base / f"{stem}-{number}"
