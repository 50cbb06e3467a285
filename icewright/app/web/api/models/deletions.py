"""Bodies of planned deletions, removed snapshots and undone jobs."""

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
    undone_at: datetime | None = Field(description="when an undo restored it; null: it was not restored")
    metadata_location: str = Field(description="metadata file of the table before the commit")
    snapshots: list[RemovedSnapshot]
    refs: list[RemovedRef]


class WaitingFiles(BaseModel):
    """Files of a job that are still to be deleted."""

    job_id: str
    table: str
    operations: list[Operation] = Field(description="operations that planned the deletion")
    files: int
    bytes: int = Field(description="sum of the known sizes")
    failed: int = Field(description="files whose deletion failed so far")
    planned_at: datetime
    delete_after: datetime | None = Field(
        description="when the first deletion is due; null: at the next reconciliation"
    )
    reason: str = Field(description="why the last deletion failed")


class Deletions(BaseModel):
    """A page of planned deletions, oldest job first."""

    items: list[WaitingFiles]
    next: str | None


class UndoRequest(RequestBody):
    """A request to undo a job."""

    dry_run: bool = Field(False, description="report what an undo would restore, and change nothing")


class Undone(BaseModel):
    """What an undo brought back, or would bring back."""

    job_id: str
    table: str
    dry_run: bool
    already: bool = Field(description="an earlier undo restored everything")
    undone_by: str | None = Field(description="the job that restored it; null when nothing was restored")
    snapshots: list[RemovedSnapshot]
    refs: list[str]
    files: int = Field(description="planned deletions that are dropped")
    bytes: int
    not_restored: list[str] = Field(description="what cannot be restored, and why")
    notes: list[str]
    summary: str


class GivenUp(BaseModel):
    """Planned deletions that were dropped for good."""

    job_id: str
    table: str
    files: int = Field(description="files that stay")
