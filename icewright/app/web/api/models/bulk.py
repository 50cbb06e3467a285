"""Bodies of changes to many tables, of the pause of the whole fleet, and of draining."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from pydantic import BaseModel, Field

from icewright.app.web.api.models.common import RequestBody, Settings, Text
from icewright.core.policy import Operation
from icewright.core.selection import TableSelection

_MOST_NAMES = 1000


class BulkRequest(RequestBody):
    """A selection of tables: by names and patterns, by catalog, or all."""

    tables: Annotated[list[Text], Field(max_length=_MOST_NAMES)] = Field(
        default_factory=list, description="names, and patterns such as lake.sales.*"
    )
    catalog: Text | None = Field(None, description="all tables of this catalog")
    all: bool = Field(False, description="all tables that are yours to change")
    expected: int | None = Field(
        None, description="the count of an earlier response; without it nothing is changed, and the response counts"
    )

    def selection(self) -> TableSelection:
        """Return the selection. Raises `UsageError` unless tables are selected in exactly one way."""
        return TableSelection(tuple(self.tables), self.catalog, self.all)


class BulkPauseRequest(BulkRequest):
    """A request to pause many tables, with the reason."""

    reason: Annotated[Text, Field(min_length=1)] = "by hand"


class BulkRunRequest(BulkRequest):
    """A request to start operations on many tables."""

    operations: Annotated[list[Operation], Field(min_length=1, max_length=len(Operation))]
    set: Settings = Field(default_factory=dict, description="knobs for these runs alone; guardrails hold")
    force: bool = Field(False, description="start although a table is paused")


class Bulk(BaseModel):
    """The tables of a selection, and what was changed."""

    count: int = Field(description="tables that are selected; for a cancellation, those with an open job")
    changed: bool = Field(description="false: only counted")
    tables: list[str] = Field(description="the selected tables, by name")
    jobs: list[str] = Field(description="ids of the jobs that were started or cancelled")
    refused: dict[str, str] = Field(description="tables on which no job could start, with the reason")


class FleetPauseRequest(RequestBody):
    """A request to pause everything, with the reason."""

    reason: Annotated[Text, Field(min_length=1)] = "by hand"
    cancel_running: bool = Field(False, description="ask running jobs to stop; without it they finish")


class FleetPauseModel(BaseModel):
    """The pause of the whole fleet."""

    reason: str
    author: str
    since: datetime


class Fleet(BaseModel):
    """The pause of the whole fleet, or null while jobs may begin."""

    paused: FleetPauseModel | None
    cancelled: list[str] = Field(description="ids of the running jobs that this request asked to stop")
