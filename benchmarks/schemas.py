"""Write the JSON schemas of `--json` outputs into docs/schemas: `python benchmarks/schemas.py`.

A command whose result is a pydantic model has an entry in SCHEMAS; tests/test_schemas.py compares the committed files
with the models. `resume` and `federate` print the same result as `run`.
"""

from __future__ import annotations

import json
from pathlib import Path

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema
from pydantic_core import core_schema

from fedtaste.audit.result import AuditResult
from fedtaste.bench.peers_result import PeersResult
from fedtaste.bench.result import BenchResult
from fedtaste.experiment.result import ComparisonResult, FitResult, RunResult
from fedtaste.experiment.tune_result import TuneResult
from fedtaste.poisoning.result import PoisonResult
from fedtaste.serving.recommendation import RecommendResult, SimilarItems

FOLDER = Path(__file__).parents[1] / "docs" / "schemas"
SCHEMAS: dict[str, type[BaseModel]] = {
    "run": RunResult,
    "fit": FitResult,
    "compare": ComparisonResult,
    "tune": TuneResult,
    "recommend": RecommendResult,
    "similar": SimilarItems,
    "audit": AuditResult,
    "poison": PoisonResult,
    "bench": BenchResult,
    "bench-peers": PeersResult,
}
Field = core_schema.ModelField | core_schema.DataclassField | core_schema.TypedDictField


class DumpSchema(GenerateJsonSchema):
    """The schema of a dump: a field with a default may be missing, because dumps leave out fields that were not set."""

    def field_is_required(self, field: Field, total: bool) -> bool:
        return field["schema"]["type"] != "default"


def schema_text(model: type[BaseModel]) -> str:
    """The schema of a model as the text of its file."""
    schema = {"$schema": "https://json-schema.org/draft/2020-12/schema"} | model.model_json_schema(
        by_alias=True, schema_generator=DumpSchema, mode="serialization"
    )
    return json.dumps(schema, indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name, model in SCHEMAS.items():
        (FOLDER / f"{name}.json").write_text(schema_text(model), "utf-8")
        print(FOLDER / f"{name}.json")
