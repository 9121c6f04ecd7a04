"""The run folder: everything that a run leaves behind, and everything that is needed to resume it.

settings.json         the settings, the version that began the run, a hash of the data
facts.json            the task's Facts             plan.json           every setting in force
state.safetensors     the last checkpoint: phase, parameters, private parameters, curve
final.safetensors     the trained state            model.safetensors   its shared part alone
items.json            the catalogue: names, titles, genres, and counts (not in a private run)
noise.key             32 secret bytes from which a private run draws noise and coins; needed to resume
result.json           the RunResult that `--json` prints               report.html, plots/
scores.safetensors    the test scores of every person (experiment/scores.py); not in a private run
interactions.safetensors   of a fit: everybody's history, so that people of the data are served without the file
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal, TypeVar

import numpy as np
from pydantic import BaseModel, ValidationError

from fedtaste.core import Params
from fedtaste.data.interactions import Interactions
from fedtaste.data.ragged import count_numbers
from fedtaste.data.sources import absolute_source
from fedtaste.data.supervised import Supervised
from fedtaste.data.user_files import UserSplit
from fedtaste.engine.checkpoint import load_params, load_state, save_params, save_state
from fedtaste.engine.run import State
from fedtaste.errors import RunError
from fedtaste.experiment.facts import FactsJson
from fedtaste.experiment.plan import UNTIMED
from fedtaste.experiment.privacy import adds_noise
from fedtaste.experiment.progress import Progress
from fedtaste.experiment.result import Comparison, FitResult, RunResult
from fedtaste.experiment.settings import ReadSettings, Settings
from fedtaste.experiment.tune_result import StudyHeader, TuneResult, Tuning
from fedtaste.files.atomic import write_atomically
from fedtaste.files.lock import lock_folder
from fedtaste.result_part import JsonObject
from fedtaste.tasks.base import Facts
from fedtaste.text import command_text
from fedtaste.wire.rng import KEY_BYTES, fresh_key

FORMAT = "fedtaste-run-1"
# settings that change no number, and those that the fingerprint of the data covers
NOT_IN_RUN_ID = {"backend", "threads", "store", "data", "tuned_on", *ReadSettings.model_fields}
RESTORE = "Restore it from a copy, or run again."
Data = Interactions | UserSplit | Supervised
Kind = Literal["run", "fit", "tune"]
KINDS: dict[object, Kind] = {"fit": "fit", "tune": "tune"}  # what settings.json says; nothing for a run
Content = TypeVar("Content", bound=BaseModel)


@dataclass(frozen=True)
class RunFolder:
    """One run's folder; `create` begins a run, `open` checks that there is one."""

    path: Path

    @staticmethod
    def create(
        path: Path, settings: JsonObject, data: Data, version: str, kind: Kind = "run", more: JsonObject | None = None
    ) -> RunFolder:
        """Begin a run, a fit or a study in a new or empty folder. What a private one writes is readable by its owner
        only. The path of the data is stored as an absolute one, so that the folder can be used from any working
        directory. `more` stands in settings.json, too."""
        folder, private = RunFolder(path), adds_noise(Settings(**settings))
        if "data" in settings:
            settings = settings | {"data": absolute_source(str(settings["data"]))}
        if path.is_symlink():
            raise RunError(f"{path} is a symbolic link, and nothing is written through it. Give the folder itself.")
        try:
            path.mkdir(mode=0o700 if private else 0o777, parents=True, exist_ok=True)
        except OSError as error:
            problem = f"The run folder {path} cannot be made ({error.strerror})."
            raise RunError(f"{problem} Choose another with --out.") from error
        with lock_folder(path):
            if (path / "settings.json").exists():
                raise RunError(
                    f"{path} holds a run already. `{folder.command('resume')}` continues an interrupted one. Or "
                    "choose another --out."
                )
            if any(entry.name != "noise.key" for entry in path.iterdir()):  # a key alone: killed before the run began
                raise RunError(f"{path} is not empty, and what is in it is not a run. Choose another --out.")
            if private:
                path.chmod(0o700)
                write_atomically(path / "noise.key", fresh_key(), 0o600)
            folder.write(  # before everything else: from now on this is a run and can be resumed
                "settings.json",
                {"format": FORMAT, "version": version, "settings": settings, "data_hash": fingerprint(data),
                 "nonce": secrets.token_hex(16), "private": private, **({} if kind == "run" else {"kind": kind}),
                 **(more or {})},
            )  # fmt: skip
            folder.write("items.json", catalogue(data, counts=not private))
        return folder

    @staticmethod
    def open(path: Path) -> RunFolder:
        """The folder of a run that this version can read."""
        folder = RunFolder(path)
        if not (path / "settings.json").is_file():
            if inner := next(path.glob("*/settings.json"), None) if path.is_dir() else None:
                plan = "" if (path / "comparison.json").exists() else (
                    " It has no comparison.json: an earlier version of fedtaste made it, and it cannot be resumed as a "
                    "whole."
                )  # fmt: skip
                raise RunError(
                    f"{path} is a comparison, or what is left of one.{plan} Its runs are the folders in it: give one, "
                    f"as in `{RunFolder(inner.parent).command('resume')}`."
                )
            raise RunError(
                f"{path} is not a run folder: it has no settings.json. Give a folder that `fedtaste run` made."
            )
        header = folder.read("settings.json")
        if header.get("format") != FORMAT:  # versions up to 0.7.0 were called tacit
            program = "tacit" if str(header.get("format")).startswith("tacit-") else "fedtaste"
            writer = f"{program} {header.get('version')}"
            raise RunError(f"{path} was written by {writer}, which fedtaste does not read. Use {writer}, or run again.")
        return folder

    # Identity

    @property
    def private(self) -> bool:
        """Whether the run has noise: then its files are readable by their owner only."""
        try:
            return bool(json.loads((self.path / "settings.json").read_text("utf-8")).get("private"))
        except (OSError, ValueError, AttributeError):
            return False

    @property
    def kind(self) -> Kind:
        """Whether the folder holds an evaluated run, a model for production that was fitted to all data, or a study of
        settings."""
        return KINDS.get(self.read("settings.json").get("kind"), "run")

    @property
    def continues(self) -> Path | None:
        """The model whose state the training began with, where it did not begin from nothing."""
        path = self.read("settings.json").get("continues")
        return Path(path) if isinstance(path, str) else None

    def continue_model(self, path: Path) -> None:
        """Remember the model whose state the training begins with."""
        self.write("settings.json", self.read("settings.json") | {"continues": str(path.resolve())})

    @property
    def federated(self) -> bool:
        """Whether clients were on other machines, so that nobody's private parameters are here."""
        return (self.path / "federation").is_dir()

    @property
    def finished(self) -> bool:
        """Whether the run has a result."""
        return (self.path / "result.json").exists()

    @property
    def run_id(self) -> int:
        """Stable run id: hash of the settings, the data fingerprint and a nonce of the folder. It tells the messages of
        this run from another's."""
        return self._id(with_nonce=True)

    @property
    def repeatable_run_id(self) -> int:
        """The same without the nonce: equal for two runs with equal settings and data, for repeatable studies."""
        return self._id(with_nonce=False)

    def _id(self, with_nonce: bool) -> int:
        if not (self.path / "settings.json").exists():  # checkpoints without a run have no other run's messages
            return 0
        header = self.read("settings.json")
        settings = {n: v for n, v in dict(header.get("settings") or {}).items() if n not in NOT_IN_RUN_ID}
        nonce = header.get("nonce") if with_nonce else None
        text = json.dumps([settings, header.get("data_hash"), nonce], sort_keys=True)
        return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1

    def noise_key(self) -> bytes:
        """The secret from which this run's noise is drawn."""
        path = self.path / "noise.key"
        try:
            key = path.read_bytes()
        except OSError as error:
            raise RunError(
                f"{path} cannot be read ({error.strerror}). A resumed run must draw the same noise: restore the file "
                "from a copy, or run again."
            ) from error
        if len(key) != KEY_BYTES:
            raise RunError(f"{path} must hold {KEY_BYTES} bytes, got {len(key)}. {RESTORE}")
        return key

    # JSON files

    def write(self, name: str, content: Mapping[str, object]) -> None:
        """Write a file's JSON object."""
        text = json.dumps(content, indent=1, allow_nan=False, default=str).encode()
        mode = 0o600 if name == "settings.json" else self._mode  # settings may hold the seed of the noise
        write_atomically(self.path / name, text, mode)

    def read(self, name: str) -> JsonObject:
        """Read a file's JSON object."""
        try:
            content = json.loads((self.path / name).read_text("utf-8"), parse_int=_integer, parse_constant=_integer)
            if not isinstance(content, dict):
                raise ValueError("it is not a JSON object")
            return content
        except FileNotFoundError:
            raise RunError(
                f"{self.path} has no {name}. The run may not have finished: `{command_text('resume', self.path)}`."
            ) from None
        except (OSError, ValueError, RecursionError) as error:
            raise RunError(f"{self.path / name} cannot be read ({error}). {RESTORE}") from error

    @property
    def _mode(self) -> int | None:
        return 0o600 if self.private else None

    def settings(self) -> Settings:
        """The settings with which the run was begun."""
        try:
            return Settings(**self.read("settings.json")["settings"])
        except (KeyError, TypeError, ValueError) as error:
            reason = str(error).splitlines()[0]
            if isinstance(error, ValidationError):
                first = error.errors()[0]
                reason = f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
            raise RunError(
                f"{self.path / 'settings.json'} holds no settings of this fedtaste ({reason}). {RESTORE}"
            ) from error

    def command(self, name: str, *words: object) -> str:
        """A command for this folder that the user may type. A method of the user's own is named again, because
        commands import it only then."""
        try:
            method = self.settings().method
        except RunError:  # the command itself will say what is wrong
            method = ""
        return command_text(name, self.path, *words, *(["--method", method] if ":" in method else []))

    def facts(self) -> Facts:
        """The facts of the run's task, without item features."""
        return self.validated("facts.json", FactsJson).facts()

    def result(self) -> RunResult:
        """The result of a finished run."""
        self.refuse_study()
        if self.kind == "fit":
            raise RunError(
                f"{self.path} is a model for production: it learnt from all data, so nothing was left to evaluate it "
                "on. `fedtaste run` with the same options evaluates it."
            )
        return self.validated("result.json", RunResult)

    def refuse_study(self) -> None:
        """Raise RunError where the folder is a study of `fedtaste tune`, which holds no model."""
        if self.kind == "tune":
            raise RunError(
                f"{self.path} is a study of settings and holds no model. Train one with the best settings: "
                f"`{command_text('run', '--config', self.path / 'run.toml')}`, or `fedtaste fit` with the same option."
            )

    def tune_result(self) -> TuneResult:
        """The result of a study."""
        return self.validated("result.json", TuneResult)

    def tuning(self) -> Tuning | None:
        """What chose the settings of the run, where a study did."""
        if not (self.path / "settings.json").exists() or "tuning" not in (header := self.read("settings.json")):
            return None
        return self._checked("settings.json", Tuning, header["tuning"])

    def study(self) -> StudyHeader:
        """What a study searches, and how long."""
        return self._checked("settings.json", StudyHeader, self.read("settings.json").get("study"))

    def fit_result(self) -> FitResult:
        """The result of a finished fit."""
        return self.validated("result.json", FitResult)

    def comparison(self) -> Comparison:
        """compare.json of a folder of several runs."""
        return self.validated("compare.json", Comparison)

    def validated(self, name: str, model: type[Content]) -> Content:
        """A file of the folder, checked by its model."""
        return self._checked(name, model, self.read(name))

    def _checked(self, name: str, model: type[Content], content: object) -> Content:
        try:
            return model.model_validate_json(json.dumps(content), strict=True)
        except ValidationError as error:
            places = dict.fromkeys(str(place["loc"][0]) if place["loc"] else "content" for place in error.errors())
            raise RunError(f"{self.path / name} has no usable {', '.join(places)}. {RESTORE}") from error

    def items(self, number: int) -> JsonObject:
        """items.json, which must have `number` names, titles and counts; counts are 0 in a private run."""
        items = self.read("items.json")
        if self.private:
            items = items | {"counts": [0] * number}
        for name, kind in (("names", str), ("titles", str), ("counts", int)):
            column = items.get(name)
            if not isinstance(column, list) or len(column) != number or not all(isinstance(x, kind) for x in column):
                raise RunError(f"{self.path}/items.json does not hold {number:,} {name}. Restore it, or run again.")
        genres = items.get("genres", [])
        if not isinstance(genres, list) or len(genres) not in (0, number) or not all(type(x) is str for x in genres):
            raise RunError(f"{self.path}/items.json does not hold {number:,} genres. Restore it, or run again.")
        return items

    # What a resumed run must agree with

    def require_same_data(self, data: Data) -> None:
        """Refuse to resume with other data than the run began with. Write the catalogue where a crash prevented it."""
        if self.read("settings.json").get("data_hash") != fingerprint(data):
            raise RunError(
                f"The data have changed since {self.path} was begun; a resumed run would mix the two. "
                "Restore the data, or run again."
            )
        if not (self.path / "items.json").exists():
            self.write("items.json", catalogue(data, counts=not self.private))

    def require_same_version(self, version: str) -> None:
        """Refuse to resume with another version than the run began with: its defaults and arithmetic may differ."""
        writer = self.read("settings.json").get("version")
        if writer != version:
            raise RunError(
                f"{self.path} was begun by fedtaste {writer}; this is {version}, and a resumed run would mix the two. "
                "Use that version, or run again."
            )

    def require_same_plan(self, settings: JsonObject, facts: Facts | None = None) -> None:
        """Write plan.json and facts.json where they are missing, and refuse settings in force that differ from those of
        plan.json. Weights by age may differ: they are off where a new person's history has no order."""
        if facts is not None and not (self.path / "facts.json").exists():
            self.write("facts.json", facts.words())
        if not (self.path / "plan.json").exists():
            self.write("plan.json", json.loads(json.dumps(settings)))
            return
        if changed := self.changed_settings(settings):
            raise RunError(
                f"{self.path} was begun with other values of {', '.join(changed)} than this fedtaste's defaults. "
                "Use the fedtaste that began it, or run again."
            )

    def changed_settings(self, settings: JsonObject) -> JsonObject:
        """The settings of plan.json that differ from these, with their values there (None for those it does not have).
        Weights by age are left out."""
        now, then = json.loads(json.dumps(settings)), self.read("plan.json")
        names = [n for n in sorted({*then, *now}) if then.get(n) != now.get(n) and n not in UNTIMED]
        return {name: then.get(name) for name in names}

    # Checkpoints and trained parameters

    def save(self, state: State | None, progress: Progress) -> None:
        """Write a checkpoint; without a state, one between two phases."""
        header = {"progress": asdict(progress), "run": self.run_id}
        path = self.path / "state.safetensors"
        if state is None:
            save_params(path, {}, header)
        else:
            save_state(path, state, header)

    def restore(self, fresh: Callable[[], State]) -> tuple[State | None, Progress | None]:
        """(state, progress) of the last checkpoint; None where there is none."""
        path = self.path / "state.safetensors"
        if not path.exists():
            return None, None
        params, header = load_params(path)
        if header.get("run", 0) != self.run_id:  # with other noise, or other people, its epsilon would be wrong
            raise RunError(
                f"{path} was not written with the settings and the data that {self.path / 'settings.json'} names now. "
                "Restore the folder from a copy, or run again."
            )
        try:
            progress = Progress(**header["progress"])
            for field, usual in asdict(Progress()).items():
                if usual is not None and type(getattr(progress, field)) is not type(usual):
                    raise TypeError(f"{field} must be a {type(usual).__name__}")
        except (KeyError, TypeError) as error:
            raise RunError(f"{path} is not a checkpoint of this fedtaste ({error}). Run again.") from error
        return (load_state(path, fresh())[0] if params else None), progress

    def save_final(self, state: State) -> None:
        """Write the trained state, and its shared parameters alone."""
        save_params(self.path / "model.safetensors", state.shared, {"round": state.round})
        save_state(self.path / "final.safetensors", state, {})

    def final(self, fresh: State) -> State:
        """The trained state; `fresh` is one of the same method and people."""
        return load_state(self.path / "final.safetensors", fresh)[0]

    def model(self, like: Params) -> Params:
        """The shared parameters, which must have the names and shapes of `like`."""
        params = load_params(self.path / "model.safetensors")[0]
        if {n: v.shape for n, v in params.items()} != {n: v.shape for n, v in like.items()}:
            raise RunError(f"{self.path}/model.safetensors belongs to another run. {RESTORE}")
        return params


def _integer(text: str) -> int:
    """An integer of at most 300 digits; longer ones, NaN and Infinity are not written by fedtaste."""
    if len(text) > 300 or not text.lstrip("-").isdigit():
        raise ValueError(f"{text[:20]} is no number that fedtaste writes")
    return int(text)


def catalogue(data: Data, counts: bool = True) -> JsonObject:
    """Names, titles and genres of the items; also how many people have each, where the run is not private."""
    if isinstance(data, Supervised):
        return {"names": [], "titles": [], "genres": [], "counts": []}
    table = data.table
    items: JsonObject = {"names": list(table.items), "titles": list(table.titles), "genres": list(table.genres)}
    if counts:
        items["counts"] = count_numbers(table.item, len(table.items)).tolist()
    return items


def fingerprint(data: Data) -> str:
    """A hash of everything that training or evaluation reads, names included."""
    digest = hashlib.sha256()
    if isinstance(data, Supervised):
        parts: list[np.ndarray | None] = [*data.features, *data.targets, *data.test_features, *data.test_targets]
    else:
        tables = [data] if isinstance(data, Interactions) else [data.train, data.valid, data.test]
        parts = [column for t in tables if t is not None for column in (t.person, t.item, t.value, t.time)]
        names = data if isinstance(data, Interactions) else data.train
        digest.update(json.dumps([names.people, names.items]).encode())
        if isinstance(data, UserSplit) and data.negatives is not None:
            parts += [data.negatives.starts, data.negatives.items]
    for part in parts:
        digest.update(b"-" if part is None else np.ascontiguousarray(part).data)
    return digest.hexdigest()


def next_folder(base: Path, stem: str) -> Path:
    """base/stem-N for the first N that is free."""
    taken = set(os.listdir(base)) if base.is_dir() else set()
    number = 1
    while f"{stem}-{number}" in taken:
        number += 1
    return base / f"{stem}-{number}"
