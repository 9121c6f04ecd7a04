"""`--track`: what TensorBoard and MLflow read back is what the run's own result holds."""

from __future__ import annotations

import builtins
import importlib
import struct
from pathlib import Path

import pytest

from fedtaste.experiment import tracking
from support.command import QUICK, WORLD, fedtaste

PRIVATE = ("--wire", "clip=1", "--epsilon", "8", "--delta", "1e-3", "--noise-seed", "1")


def events(folder: Path) -> tuple[dict[tuple[str, int], float], dict[str, str]]:
    """(scalars by tag and step, texts by tag) of the event files of a folder."""
    pytest.importorskip("tensorboardX")
    event_type = importlib.import_module("tensorboardX.proto.event_pb2").Event
    scalars, texts = {}, {}
    for file in sorted(folder.glob("events.*")):
        blob, at = file.read_bytes(), 0
        while at < len(blob):  # a record: length, its checksum, content, its checksum
            (size,) = struct.unpack("<Q", blob[at : at + 8])
            event = event_type.FromString(blob[at + 12 : at + 12 + size])
            at += size + 16
            for value in event.summary.value:
                if value.HasField("simple_value"):
                    scalars[value.tag, event.step] = value.simple_value
                else:
                    texts[value.tag] = value.tensor.string_val[0].decode()
    return scalars, texts


def test_tensorboard_holds_the_curve_the_settings_and_the_final_metrics(tmp_path: Path):
    result = fedtaste("run", *QUICK, "--track", "tensorboard", "--out", tmp_path / "run").json
    scalars, texts = events(tmp_path / "run" / "tensorboard")
    for point in result["curve"]:
        assert scalars["valid/ndcg_at_10", point["round"]] == pytest.approx(point["valid"]["ndcg@10"], rel=1e-6)
        assert scalars["round/up_bytes", point["round"]] == pytest.approx(point["up_bytes"], rel=1e-6)
    final = scalars["final/seen/sampled/ndcg_at_10", result["rounds"]]
    assert final == pytest.approx(result["seen"]["sampled"]["ndcg@10"], rel=1e-6)
    settings = next(text for tag, text in texts.items() if tag.startswith("settings"))
    assert "| method | fedals |" in settings and f"| k | {result['settings']['k']} |" in settings


def test_a_private_run_tracks_only_what_its_result_holds(tmp_path: Path):
    result = fedtaste("run", *QUICK, *PRIVATE, "--track", "tensorboard", "--out", tmp_path / "run").json
    scalars, _ = events(tmp_path / "run" / "tensorboard")
    assert not any(tag.startswith("valid/") for tag, _ in scalars)
    assert not any(point["valid"] for point in result["curve"])
    names = {tag.split("/")[1] for tag, _ in scalars if tag.startswith("round/")}
    held = {name for point in result["curve"] for name, value in point.items() if value is not None}
    assert names <= held and "answered" not in names
    assert (tmp_path / "run" / "tensorboard").stat().st_mode & 0o077 == 0


def test_mlflow_holds_parameters_metrics_and_artifacts(tmp_path: Path):
    mlflow = pytest.importorskip("mlflow")
    result = fedtaste("run", *QUICK, "--track", "mlflow", "--out", tmp_path / "run").json
    store = tmp_path / "run" / "mlruns"
    client = mlflow.MlflowClient(tracking_uri=f"sqlite:///{store / 'mlflow.db'}")
    (run,) = client.search_runs([client.get_experiment_by_name("fedtaste").experiment_id])
    assert run.info.status == "FINISHED" and run.data.params["method"] == "fedals"
    assert run.data.params["k"] == str(result["settings"]["k"])
    history = {m.step: m.value for m in client.get_metric_history(run.info.run_id, "valid/ndcg_at_10")}
    assert history == {point["round"]: point["valid"]["ndcg@10"] for point in result["curve"]}
    assert run.data.metrics["final/seen/sampled/hr_at_10"] == result["seen"]["sampled"]["hr@10"]
    (report,) = (store / "artifacts").rglob("report.html")
    assert report.read_bytes() == (tmp_path / "run" / "report.html").read_bytes()
    assert list((store / "artifacts").rglob("result.json"))


def test_comparisons_and_fits_are_tracked(tmp_path: Path):
    compared = fedtaste(
        "compare", *QUICK, "--methods", "popularity,fedals", "--track", "tensorboard", "--out", tmp_path / "both"
    ).json
    for result in compared["results"]:
        scalars, _ = events(tmp_path / "both" / result["method"] / "tensorboard")
        assert scalars["final/rounds", result["rounds"]] == result["rounds"]
    fitted = fedtaste("fit", *WORLD, "--track", "tensorboard", "--json", "--out", tmp_path / "model").json
    scalars, _ = events(tmp_path / "model" / "tensorboard")
    assert scalars["final/valid/ndcg_at_10", fitted["rounds"]] == pytest.approx(fitted["valid"]["ndcg@10"], rel=1e-6)


@pytest.mark.parametrize(("name", "package"), tracking.PACKAGES.items())
def test_a_missing_package_is_named_before_anything_is_trained(tmp_path: Path, monkeypatch, name, package):
    real = importlib.import_module

    def import_module(module, *others):
        if module == package:
            raise ImportError(module)
        return real(module, *others)

    monkeypatch.setattr(importlib, "import_module", import_module)
    for command in (("run",), ("fit",), ("compare", "--methods", "popularity")):
        refused = fedtaste(*command, *WORLD, "--track", name, "--out", tmp_path / "run")
        refused.refused(f"--track {name} needs", f"pip install 'fedtaste[{name}]'")
    assert not (tmp_path / "run").exists()


def test_addresses_are_for_mlflow_without_noise(tmp_path: Path):
    to = ("--track-to", "http://localhost:1")
    fedtaste("run", *WORLD, *to).refused("Add --track mlflow")
    fedtaste("run", *WORLD, *PRIVATE, "--track", "mlflow", *to).refused("its epsilon does not cover")
    fedtaste("run", *WORLD, "--track", "wandb", "--out", tmp_path / "run").refused("wandb")
    assert not (tmp_path / "run").exists()


def test_the_update_of_a_private_model_is_sent_nowhere(tmp_path: Path):
    data, model = ("--data", "synthetic:60x40x900"), tmp_path / "model"
    assert fedtaste("fit", *data, "--rounds", "1", "--set", "k=2", *PRIVATE, "--out", model).code == 0
    update = ("fit", "--from", model, *data, "--out", tmp_path / "next", "--track", "mlflow")
    fedtaste(*update, "--track-to", "http://localhost:9").refused("its epsilon does not cover")


def test_an_address_that_does_not_work_is_refused_before_training(tmp_path: Path):
    pytest.importorskip("mlflow")
    to = ("--track", "mlflow", "--track-to", "foo://bar")
    fedtaste("run", *WORLD, *to, "--out", tmp_path / "run").refused("foo://bar cannot be used by MLflow")
    assert not (tmp_path / "run").exists()


def test_no_tracker_is_imported_without_the_option(tmp_path: Path, monkeypatch):
    real = builtins.__import__

    def refuse(name, *others, **more):
        assert name.split(".")[0] not in ("mlflow", "tensorboardX")
        return real(name, *others, **more)

    monkeypatch.setattr(builtins, "__import__", refuse)
    fedtaste("run", *QUICK, "--method", "popularity", "--out", tmp_path / "run")
    assert not (tmp_path / "run" / tracking.NOTE).exists()
