"""Types that request bodies share."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field


def _clean(text: str) -> str:
    if "\0" in text:
        raise ValueError("no text holds a null character")
    return text


Text = Annotated[str, Field(max_length=1000), AfterValidator(_clean)]
Settings = Annotated[
    dict[Annotated[str, Field(max_length=200)], Any], Field(max_length=200, description="knobs and their values")
]


class RequestBody(BaseModel):
    """A request body; unknown keys are errors."""

    model_config = ConfigDict(extra="forbid")
