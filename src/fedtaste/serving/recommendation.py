"""Recommendations and SimilarItems: the typed answers of `fedtaste recommend`, `Recommender` and the HTTP API."""

from __future__ import annotations

from pydantic import ConfigDict, Field

from fedtaste.result_part import ResultPart

Json = dict[str, object]


class JsonModel(ResultPart):
    """Base of the JSON answers of the API. Its schema names every field as required."""

    model_config = ConfigDict(allow_inf_nan=True, json_schema_serialization_defaults_required=True)

    def encode(self) -> bytes:
        """`dump` as JSON in UTF-8."""
        return self.model_dump_json(exclude_unset=True).encode()


class Recommendation(JsonModel):
    """One recommended item. `because` names the likes that add most to its score, where the model can tell."""

    item: str
    title: str
    score: float
    because: tuple[str, ...] = ()


class Recommendations(JsonModel):
    """Recommended items, best first, and what they are based on."""

    items: tuple[Recommendation, ...]
    history: tuple[str, ...] = Field(
        validation_alias="from", serialization_alias="from", description="The titles that were understood."
    )
    popular: bool = Field(default=False, description="Whether nothing was known: what most people take.")
    unknown: tuple[str, ...] = Field(default=(), description="Titles that were skipped, as they were sent.")
    disliked: tuple[str, ...] = Field(default=(), description="The titles that count as dislikes: they are not listed.")


class RecommendResult(Recommendations):
    """The answer of `fedtaste recommend`."""

    rating_rule: str = Field(default="", description="How the ratings of --from were read as likes and dislikes.")


class SimilarItem(JsonModel):
    """One similar item. `score` is the cosine of the two items' vectors, 1 for the same direction."""

    item: str
    title: str
    score: float


class SimilarItems(JsonModel):
    """The items that are most similar to one item, most similar first; none where the model knows nothing of it."""

    item: str
    title: str
    items: tuple[SimilarItem, ...]
