"""FactsJson: parse and validate a task's Facts (tasks/base.py) from facts.json or from messages of a federation."""

from __future__ import annotations

import math
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from fedtaste.tasks.base import Facts

Count = Annotated[int, Field(ge=0, lt=2**31)]
Finite = Annotated[float, Field(ge=-1e12, le=1e12, allow_inf_nan=False)]


class FactsJson(BaseModel):
    """The fields of `Facts` except its features, within limits that real data do not exceed."""

    model_config = ConfigDict(extra="forbid", strict=True)

    kind: Literal["ranking", "ratings", "regression", "labels"]
    items: Count = 0
    timed: bool = False
    scale: Annotated[list[Finite], Field(min_length=2, max_length=2)]
    width: int = Field(0, ge=0, le=10**7)
    shape: Annotated[list[Annotated[int, Field(ge=1, le=10**7)]], Field(max_length=4)]
    classes: int = Field(0, ge=0, le=10**6)
    people: Count = 0
    feature_count: int = Field(0, ge=0, le=10**4)

    @model_validator(mode="after")
    def check_size(self) -> FactsJson:
        if math.prod(self.shape) > 10**7 or self.scale[0] > self.scale[1]:
            raise ValueError("the shape is too large or the scale is reversed")
        return self

    def facts(self) -> Facts:
        """The facts; features are derived from the catalogue by whoever has it."""
        low, high = self.scale
        return Facts(**(self.model_dump() | {"scale": (low, high), "shape": tuple(self.shape)}))
