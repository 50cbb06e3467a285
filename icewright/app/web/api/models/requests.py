"""Types that request bodies share."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any

from pydantic import AfterValidator, AwareDatetime, BaseModel, ConfigDict, Field


def _clean(text: str) -> str:
    if "\0" in text:
        raise ValueError("no text holds a null character")
    return text


def _in_utc(at: datetime) -> datetime:
    try:
        return at.astimezone(UTC)
    except OverflowError:
        raise ValueError("no such time in UTC: its year is before 1 or after 9999") from None


Instant = Annotated[AwareDatetime, AfterValidator(_in_utc)]
Text = Annotated[str, Field(max_length=1000), AfterValidator(_clean)]
Settings = Annotated[
    dict[Annotated[str, Field(max_length=200)], Any], Field(max_length=200, description="knobs and their values")
]


class RequestBody(BaseModel):
    """A request body; unknown keys are errors."""

    model_config = ConfigDict(extra="forbid")
