"""comparison.json: the plan of a comparison, written before its first run, from which `fedtaste resume` finishes it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, ValidationInfo, field_validator

from fedtaste.data.sources import absolute_source
from fedtaste.errors import RunError
from fedtaste.experiment.folder import RunFolder
from fedtaste.experiment.result import Axis, FolderName
from fedtaste.experiment.settings import Settings, TrackerName
from fedtaste.files.atomic import write_atomically
from fedtaste.result_part import Count, ResultPart
from fedtaste.text import command_text

FILE: Literal["comparison.json"] = "comparison.json"


class RecordedRun(ResultPart):
    """One run of a comparison, whether it has begun or not."""

    folder: FolderName
    configuration: str
    """The label without the seed."""
    settings: dict[str, object]
    data_hash: str


class ComparisonRecord(ResultPart):
    """Everything that a comparison was asked for."""

    format: Literal["fedtaste-comparison-1"] = "fedtaste-comparison-1"
    version: str
    runs: Annotated[dict[str, RecordedRun], Field(min_length=1)]
    """By label, in the order of the tables."""
    duplicates: dict[str, str]
    """Runs that equal an earlier one, which is trained once and copied."""
    refused: dict[str, str]
    """Methods that do not fit the data, and why."""
    axes: tuple[Axis, ...]
    minutes: Annotated[float, Field(gt=0)] | None = None
    """Of `--methods auto`: the time that trying methods may take. Its runs are candidates, which may be left out."""
    ledger: str | None
    jobs: Count | None
    track: TrackerName | None = None
    track_to: str | None = None

    @field_validator("runs")
    @classmethod
    def _one_folder_each(cls, runs: dict[str, RecordedRun]) -> dict[str, RecordedRun]:
        if len({run.folder for run in runs.values()}) < len(runs):
            raise ValueError("two runs have the same folder")
        return runs

    @field_validator("duplicates")
    @classmethod
    def _of_runs_that_are_trained(cls, duplicates: dict[str, str], info: ValidationInfo) -> dict[str, str]:
        runs = info.data.get("runs", {})
        for label, original in duplicates.items():
            if label not in runs or original not in runs or original in duplicates:
                raise ValueError(f"{label} is no copy of a run that is trained")
        return duplicates

    def settings(self, label: str) -> Settings:
        """The settings of a run."""
        try:
            return Settings(**self.runs[label].settings)  # type: ignore[arg-type]
        except ValueError as error:
            reason = str(error).splitlines()[0]
            raise RunError(f"{FILE} holds no settings of this fedtaste for {label} ({reason}). Run again.") from error

    def require_own_folder(self, path: Path, label: str) -> RunFolder:
        """The folder of a run, which may be missing; RunError where it is a link, or holds a run of other settings or
        data than this comparison planned."""
        run, folder = self.runs[label], RunFolder(path / self.runs[label].folder)
        if folder.path.is_symlink():
            raise RunError(f"{folder.path} is a symbolic link; a comparison needs the folder of {label} itself.")
        if not (folder.path / "settings.json").exists():
            if folder.finished:
                raise RunError(f"{folder.path} has a result but no settings.json. Restore it, or compare again.")
            return folder
        header = folder.read("settings.json")
        if header.get("settings") != run.settings or header.get("data_hash") != run.data_hash:
            raise RunError(
                f"{folder.path} holds a run with other settings or data than {FILE} says for {label}. Restore the "
                "folder of this comparison, or remove it and train it again with `fedtaste resume`."
            )
        return folder

    @property
    def methods(self) -> list[str]:
        """The methods of the runs, each once."""
        return list(dict.fromkeys(self.settings(label).method for label in self.runs))

    def begin(self, path: Path, private: bool = False) -> None:
        """Make the folder of the comparison, readable by its owner only where a run is private, and write the plan."""
        try:
            path.mkdir(mode=0o700 if private else 0o777, parents=True)
        except OSError as error:
            raise RunError(
                f"The folder {path} cannot be made ({error.strerror}). Choose another with --out."
            ) from error
        self.write(path)

    def write(self, path: Path) -> None:
        """Write comparison.json; readable by its owner only, because settings may hold the seed of the noise."""
        write_atomically(path / FILE, self.model_dump_json(indent=1).encode(), 0o600)

    def require_same_version(self, path: Path, version: str) -> None:
        """Refuse to finish a comparison that another version began: its defaults and arithmetic may differ."""
        if self.version != version:
            raise RunError(
                f"{path} was begun by fedtaste {self.version}; this is {version}, and the comparison would mix the "
                "two. Use that version, or compare again."
            )

    def require_same_data(self, path: Path, label: str, data_hash: str) -> None:
        """Refuse to finish a comparison with other data than it began with."""
        if self.runs[label].data_hash != data_hash:
            raise RunError(
                f"The data have changed since {path} was begun; its runs would not compare. Restore the data, or "
                "compare again."
            )


def is_comparison(path: Path) -> bool:
    """Whether a folder holds a comparison with its plan."""
    return (path / FILE).is_file()


def read_record(path: Path) -> ComparisonRecord:
    """The plan of the comparison in a folder."""
    return RunFolder(path).validated(FILE, ComparisonRecord)


def resume_command(path: Path) -> str:
    """The command that finishes an interrupted run or comparison. Methods of the user's own are named again, because
    commands import them only then."""
    if not is_comparison(path):
        return RunFolder(path).command("resume")
    own = [method for method in read_record(path).methods if ":" in method]
    return command_text("resume", path, *(["--method", ",".join(own)] if own else []))


def recorded_settings(settings: Settings) -> dict[str, object]:
    """Settings as they are stored: the path of the data is absolute."""
    return settings.model_dump(mode="json") | {"data": absolute_source(settings.data)}
