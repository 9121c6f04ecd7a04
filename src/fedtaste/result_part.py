"""The base class of typed results: frozen pydantic models whose dump is the JSON that `--json` prints.

`JsonObject` is the type of JSON that was parsed and not yet checked, such as files of a run folder.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

JsonObject = dict[str, Any]
Count = Annotated[int, Field(ge=0, lt=2**63)]
Interval = tuple[float, float]  # the ends of a 95 % interval


class ResultPart(BaseModel):
    """A frozen part of a result; unknown keys and numbers that are not finite are refused."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", allow_inf_nan=False, validate_by_name=True, serialize_by_alias=True
    )

    def dump(self) -> dict[str, object]:
        """The JSON object; fields that were never set are left out."""
        return self.model_dump(mode="json", exclude_unset=True)
