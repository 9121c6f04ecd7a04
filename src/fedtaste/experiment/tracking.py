"""Tracking: write a run's settings, metrics by round and final metrics for TensorBoard or MLflow (`--track`).

A tracker listens to the rounds beside the progress bars and reads the result at the end. It writes into the run folder
(RUN/tensorboard, RUN/mlruns) unless the user gives MLflow another address. It writes nothing that the run's own result
does not hold, so a private run has no validation metrics here either. Both packages are extras: they are imported only
where a run is tracked.
"""

from __future__ import annotations

import importlib
import json
import logging
import os
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

from fedtaste.errors import SettingError
from fedtaste.experiment.folder import RunFolder
from fedtaste.experiment.progress import ProgressListener
from fedtaste.experiment.result import FitResult, RunResult
from fedtaste.experiment.settings import TrackerName
from fedtaste.result_part import JsonObject

PACKAGES: dict[str, str] = {"tensorboard": "tensorboardX", "mlflow": "mlflow"}  # the modules that the extras install
NOTE = "tracking.json"  # in a run folder that is tracked
EXPERIMENT = "fedtaste"  # the MLflow experiment that runs are entered into
ARTIFACTS = ("report.html", "result.json")
Result = RunResult | FitResult


class Tracker(Protocol):
    """Where a tracked run is written to."""

    def scalars(self, values: Mapping[str, float], step: int) -> None: ...
    def finish(self, result: Result, files: list[Path]) -> None: ...


def require_tracker(name: TrackerName | None, address: str | None, private: bool = False) -> None:
    """Raise SettingError, before anything is trained, where the package of a tracker is missing, or where a private run
    would be sent to an address."""
    if address is not None and name != "mlflow":
        raise SettingError("--track-to is an address for MLflow. Add --track mlflow, or leave it out.")
    if name is None:
        return
    if address is not None and private:
        raise SettingError(
            "--track-to would send figures of a run with noise that its epsilon does not cover. Leave it out: the "
            "figures stay in the run folder."
        )
    try:
        package = _import(name)
    except ImportError:
        raise SettingError(
            f"--track {name} needs a package that is not installed. Run: pip install 'fedtaste[{name}]'"
        ) from None
    if address is not None:
        try:
            package.MlflowClient(tracking_uri=address).get_experiment_by_name(EXPERIMENT)
        except package.MlflowException as error:
            reason = str(error).splitlines()[0][:200]
            raise SettingError(
                f"--track-to {address} cannot be used by MLflow ({reason}). Give the address of a server that runs, as "
                "in http://localhost:5000, or leave it out."
            ) from None


def _import(name: TrackerName) -> Any:
    """The package of a tracker. MLflow reports its own use over the network unless it is told not to, and tries a
    server that does not answer for minutes."""
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")
    return importlib.import_module(PACKAGES[name])


def remember_tracking(folder: RunFolder, name: TrackerName | None, address: str | None = None) -> None:
    """Note in the run folder that it is tracked, so that a resumed run and the workers of a comparison track it too."""
    if name is not None:
        folder.write(NOTE, {"tracker": name, "address": address})


def copy_tracking(study: RunFolder, folder: RunFolder) -> None:
    """Track the final run of a study where the study's folder has a note that says so."""
    if (study.path / NOTE).exists():
        folder.write(NOTE, study.read(NOTE))


class TrackedRun:
    """A ProgressListener that passes everything on to another one, and to the tracker that the folder names, if any."""

    def __init__(self, folder: RunFolder, listener: ProgressListener, settings: Mapping[str, object]) -> None:
        self.folder, self.listener, self.name = folder, listener, ""
        note = folder.read(NOTE) if (folder.path / NOTE).exists() else None
        self.tracker = open_tracker(folder.path, note, settings) if note else None

    def phase(self, name: str, rounds: int, done: int) -> None:
        """Begin a phase."""
        self.name = name
        self.listener.phase(name, rounds, done)

    def round(self, number: int, metrics: dict[str, float] | None) -> None:
        """Write the validation metrics of a round of the search, where there are any."""
        if self.tracker and metrics and self.name == "search":
            self.tracker.scalars({f"valid/{_plain(name)}": value for name, value in metrics.items()}, number)
        self.listener.round(number, metrics)

    def finish(self, result: Result) -> None:
        """Write what only the result holds: curves of costs, final metrics, and the report as an artifact."""
        if self.tracker is None:
            return
        for point in result.curve:
            values = {"up_bytes": point.up_bytes, "down_bytes": point.down_bytes, "change": point.change}
            values |= {"loss": point.loss, "zeros": point.zeros}
            self.tracker.scalars({f"round/{n}": float(v) for n, v in values.items() if v is not None}, point.round)
        files = [self.folder.path / name for name in ARTIFACTS if (self.folder.path / name).exists()]
        self.tracker.finish(result, files)


def open_tracker(path: Path, note: JsonObject, settings: Mapping[str, object]) -> Tracker:
    """The tracker of a run folder by its note; `settings` are written at once."""
    require_tracker(note["tracker"], note["address"])
    store = path / ("tensorboard" if note["tracker"] == "tensorboard" else "mlruns")
    if note["address"] is None:
        store.mkdir(mode=0o700, exist_ok=True)  # figures of a private run are for its owner
    if note["tracker"] == "tensorboard":
        return TensorBoard(store, settings)
    address = note["address"] or f"sqlite:///{store.resolve() / 'mlflow.db'}"
    artifacts = None if note["address"] else (store.resolve() / "artifacts").as_uri()
    return MLflow(address, artifacts, path.name, settings)


def final_metrics(result: Result) -> dict[str, float]:
    """The figures of a result by name, as in `seen/sampled/ndcg@10`: metrics, bytes, epsilon and rounds."""
    dump = result.dump()
    parts = {name: dump.get(name) for name in ("seen", "new", "valid", "traffic", "new_items", "rounds")}
    epsilon = result.privacy.epsilon if result.privacy else None
    return dict(_leaves("", parts | ({} if epsilon is None else {"epsilon": epsilon})))


def _leaves(prefix: str, value: object) -> Iterator[tuple[str, float]]:
    """The numbers inside nested objects, by the path to each."""
    if isinstance(value, dict):
        for name, part in value.items():
            yield from _leaves(f"{prefix}/{name}" if prefix else name, part)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield _plain(prefix), float(value)


def _plain(name: str) -> str:
    """The name without @, which MLflow refuses: ndcg@10 is ndcg_at_10."""
    return name.replace("@", "_at_")


def _texts(settings: Mapping[str, object]) -> dict[str, str]:
    return {name: value if isinstance(value, str) else json.dumps(value) for name, value in settings.items()}


class TensorBoard:
    """Event files: scalars by round, the settings and the result as text, final metrics as scalars under `final/`."""

    def __init__(self, folder: Path, settings: Mapping[str, object]) -> None:
        self.writer: Any = _import("tensorboard").SummaryWriter(str(folder))
        rows = "\n".join(f"| {name} | {value} |" for name, value in _texts(settings).items())
        self.writer.add_text("settings", f"| setting | value |\n|---|---|\n{rows}")

    def scalars(self, values: Mapping[str, float], step: int) -> None:
        """Write numbers of one round."""
        for name, value in values.items():
            self.writer.add_scalar(name, value, step)
        self.writer.flush()

    def finish(self, result: Result, files: list[Path]) -> None:
        """Write the final metrics and the result, and close the file. The report stays beside it in the run folder."""
        for name, value in final_metrics(result).items():
            self.writer.add_scalar(f"final/{name}", value, result.rounds)
        self.writer.add_text("result", f"```json\n{json.dumps(result.dump(), indent=1)}\n```")
        for file in files:
            self.writer.add_text(f"artifact/{file.name}", str(Path("..") / file.name))
        self.writer.close()


class MLflow:
    """One MLflow run in the experiment `fedtaste`: parameters, metrics by step, final metrics, report and result."""

    def __init__(self, address: str, artifacts: str | None, name: str, settings: Mapping[str, object]) -> None:
        logging.getLogger("mlflow").setLevel(logging.WARNING)  # it tells about every table that it creates
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # MLflow's own use of SQLAlchemy
            self.client: Any = _import("mlflow").MlflowClient(tracking_uri=address)
            experiment = self.client.get_experiment_by_name(EXPERIMENT)
            number = experiment.experiment_id if experiment else self.client.create_experiment(EXPERIMENT, artifacts)
        self.run = self.client.create_run(number, run_name=name).info.run_id
        for key, text in _texts(settings).items():
            self.client.log_param(self.run, key, text[:500])  # the longest that every store of MLflow takes

    def scalars(self, values: Mapping[str, float], step: int) -> None:
        """Write numbers of one round."""
        for name, value in values.items():
            self.client.log_metric(self.run, name, value, step=step)

    def finish(self, result: Result, files: list[Path]) -> None:
        """Write the final metrics and the artifacts, and end the run."""
        for name, value in final_metrics(result).items():
            self.client.log_metric(self.run, f"final/{name}", value, step=result.rounds)
        for file in files:
            self.client.log_artifact(self.run, str(file))
        self.client.set_terminated(self.run)
