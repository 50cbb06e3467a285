"""Deletions that wait, what expiries removed, and undone jobs."""

from __future__ import annotations

from datetime import datetime

from pydantic import BaseModel, Field

from icewright.app.web.api.models.common import RequestBody
from icewright.core.policy import Operation


class RemovedSnapshot(BaseModel):
    """A snapshot that an expiry removed from the metadata."""

    snapshot_id: int
    parent_id: int | None
    at: datetime = Field(description="when it was committed")
    operation: str | None
    summary: dict[str, str]


class RemovedRef(BaseModel):
    """A tag or branch that an expiry removed from the metadata."""

    name: str
    type: str | None
    snapshot_id: int


class Removed(BaseModel):
    """What one commit of an expiry removed from the metadata."""

    at: datetime
    undone_at: datetime | None = Field(description="when it was put back; null: it is not")
    metadata_location: str = Field(description="of the table before")
    snapshots: list[RemovedSnapshot]
    refs: list[RemovedRef]


class WaitingFiles(BaseModel):
    """Files of a job that are still to be deleted."""

    job_id: str
    table: str
    operations: list[Operation] = Field(description="that planned it; all of the job where an earlier release did")
    files: int
    bytes: int = Field(description="as far as they are known")
    failed: int = Field(description="of the files: how many could not be deleted so far")
    planned_at: datetime
    delete_after: datetime | None = Field(description="when the first of them is tried; null: at the next settling")
    reason: str = Field(description="why one of them is still there")


class Deletions(BaseModel):
    """A page of deletions that wait, those of the oldest job first."""

    items: list[WaitingFiles]
    next: str | None


class UndoRequest(RequestBody):
    """A request to undo a job."""

    dry_run: bool = Field(False, description="say what would come back; change nothing")


class Undone(BaseModel):
    """What an undo brought back, or would bring back."""

    job_id: str
    table: str
    dry_run: bool
    already: bool = Field(description="an earlier undo brought it back: there was nothing to do")
    undone_by: str | None = Field(description="the job that did it; null when nothing was done")
    snapshots: list[RemovedSnapshot]
    refs: list[str]
    files: int = Field(description="that are not deleted any more")
    bytes: int
    not_restored: list[str] = Field(description="what does not come back, and why")
    notes: list[str]
    summary: str


class GivenUp(BaseModel):
    """Deletions that nobody tries any more."""

    job_id: str
    table: str
    files: int = Field(description="that stay where they are")
