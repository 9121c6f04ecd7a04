"""JSON schemas: the committed files equal those of the models, and the output of commands validates."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

from fedtaste.experiment.result import ComparisonResult, RunResult
from fedtaste.experiment.tune_result import TuneResult
from fedtaste.result_part import ResultPart
from support.command import fedtaste

ROOT = Path(__file__).parents[1]
sys.path.append(str(ROOT / "benchmarks"))
from schemas import FOLDER, SCHEMAS, schema_text  # noqa: E402

TINY = ("--data", "synthetic:30x24x300", "--rounds", "2", "--threads", "1", "--json")
NAMES = {"string": str, "integer": int, "number": (int, float), "object": dict, "array": list, "boolean": bool}


@pytest.mark.parametrize("name", SCHEMAS)
def test_the_committed_schema_equals_that_of_the_model(name):
    assert (FOLDER / f"{name}.json").read_text("utf-8") == schema_text(SCHEMAS[name]), "run benchmarks/schemas.py"
    assert {path.stem for path in FOLDER.iterdir()} == set(SCHEMAS)


def fits(value: object, schema: dict, definitions: dict) -> bool:
    """Whether a JSON value fits the schema: types, required and unknown keys. This covers what our schemas use."""
    if "$ref" in schema:
        return fits(value, definitions[schema["$ref"].rpartition("/")[2]], definitions)
    if "anyOf" in schema:
        return any(fits(value, part, definitions) for part in schema["anyOf"])
    if schema.get("type") == "null" or "type" not in schema:
        return value is None or "type" not in schema
    if not isinstance(value, NAMES[schema["type"]]) or isinstance(value, bool) != (schema["type"] == "boolean"):
        return False
    if isinstance(value, dict):
        known, others = schema.get("properties", {}), schema.get("additionalProperties", True)
        return set(schema.get("required", ())) <= set(value) and all(
            fits(part, known[key], definitions) if key in known
            else others if isinstance(others, bool) else fits(part, others, definitions)
            for key, part in value.items()
        )  # fmt: skip
    if isinstance(value, list):
        items = schema.get("prefixItems") or [schema.get("items", {})] * len(value)
        return len(items) == len(value) and all(fits(v, s, definitions) for v, s in zip(value, items))
    return True


def validates(text: str, model: type[ResultPart], name: str) -> None:
    """The output is a dump of the model, key for key, and fits the committed schema."""
    value = json.loads(text)
    assert model.model_validate_json(text, strict=True).dump() == value
    schema = json.loads((FOLDER / f"{name}.json").read_text("utf-8"))
    assert fits(value, schema, schema["$defs"]) and not fits(value | {"unknown": 1}, schema, schema["$defs"])
    assert not fits({key: part for key, part in value.items() if key != next(iter(value))}, schema, schema["$defs"])


@pytest.mark.parametrize(
    "options", ["", "--wire secure=10", "--wire clip=1,noise=1", "--task ratings", "--protocol published"]
)
def test_the_output_of_run_validates(options, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    method = "fedmf" if "noise" in options else "fedals"
    output = fedtaste("run", *TINY, "--method", method, *options.split(), "--out", "run")
    validates(output.out, RunResult, "run")
    assert json.loads(Path("run/result.json").read_text()) == json.loads(output.out)
    present = set(json.loads(output.out)) & {"secure", "federation", "by_client", "weights", "true_weights"}
    assert present == ({"secure"} if "secure" in options else set())


def test_the_output_of_tune_validates(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    output = fedtaste("tune", *TINY, "--trials", "2", "--final", "--out", "study")
    validates(output.out, TuneResult, "tune")
    assert json.loads(Path("study/result.json").read_text()) == json.loads(output.out)
    validates(Path("study/final/result.json").read_text(), RunResult, "run")


def test_the_output_of_compare_validates(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    output = fedtaste("compare", *TINY, "--methods", "popularity,fedals", "--axes", "accuracy,bytes", "--out", "both")
    validates(output.out, ComparisonResult, "compare")
    assert re.search(r'"bytes": \d+[,}]', output.out)  # integers are printed as integers
