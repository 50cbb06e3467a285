"""Bodies of jobs, runs, files, the queue and the plan."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

from pydantic import BaseModel, Field

from icewright.app.web.api.models.common import RequestBody, Settings
from icewright.app.web.api.models.deletions import Removed, WaitingFiles
from icewright.core.policy import Operation
from icewright.core.runs import JobState


class JobRequest(RequestBody):
    """Start operations on a table."""

    operations: Annotated[list[Operation], Field(min_length=1, max_length=len(Operation))]
    set: Settings = Field(default_factory=dict, description="knobs for this run alone; guardrails hold")
    dry_run: bool = Field(False, description="report what would be done, and change nothing")
    force: bool = Field(False, description="start although the table is paused")


class Started(BaseModel):
    """The job that was started, or the report of a dry run."""

    table: str
    job_id: str | None = Field(description="null for a dry run")
    state: str
    dry_run: bool
    operations: list[dict[str, Any]] = Field(description="of a dry run: what each operation would do")
    summary: str


class Job(BaseModel):
    """A job in a list."""

    job_id: str
    table: str
    state: JobState
    operations: list[Operation]
    trigger: str
    actor: str
    created: datetime
    started: datetime | None
    finished: datetime | None
    summary: str
    cancel_requested: bool
    pool: str
    on_pool: bool = Field(description="whether Spark runs the job")
    score: float
    cost: float = Field(description="GB-hours, as predicted")


class Jobs(BaseModel):
    """A page of jobs, newest first."""

    items: list[Job]
    next: str | None


class Run(BaseModel):
    """One operation of a job."""

    id: int
    job_id: str
    table: str
    operation: Operation
    state: str
    reason: str
    summary: str
    metrics: dict[str, Any]
    statements: list[str]
    notes: list[str]
    started: datetime
    finished: datetime
    before: dict[str, Any]
    after: dict[str, Any]
    partitions: list[dict[str, Any]] | None
    gb_hours: float
    metadata_location: str
    undone: bool = Field(False, description="whether an undo put back the snapshots that it expired")


class Runs(BaseModel):
    """A page of runs, newest first."""

    items: list[Run]
    next: str | None


class JobDetail(Job):
    """One job with its runs."""

    options: dict[str, Any] = Field(
        description="options of a manual job; `undo`: the job that it undid; `restore`: the snapshot it returned to"
    )
    runs: list[Run]
    removed: list[Removed] = Field(description="what its expiry removed from the metadata")
    waiting: list[WaitingFiles] = Field(description="its files that are still to be deleted")


class File(BaseModel):
    """A file in the deletion ledger."""

    path: str
    bytes: int | None
    kind: str
    state: str
    planned_at: datetime
    settled_at: datetime | None
    delete_after: datetime | None = Field(description="earliest time of deletion; null: no delay")
    reason: str | None = Field(description="why the file was not deleted")


class Files(BaseModel):
    """A page of files of a job."""

    items: list[File]
    next: str | None


class Event(BaseModel):
    """An event in the record of a job."""

    id: int
    at: datetime
    kind: str
    details: dict[str, Any]


class Events(BaseModel):
    """A page of events in order."""

    items: list[Event]
    next: str | None


class Waiting(BaseModel):
    """A due operation without a job, and the reason."""

    table: str
    operation: Operation
    why: str
    reason: str | None = Field(description="null: it became due after the last plan")
    position: int | None
    score: float | None
    benefit_mb: float
    cost_gb_hours: float
    due_since: datetime | None


class Queue(BaseModel):
    """Open jobs, and a page of due operations without a job."""

    jobs: list[Job]
    waiting: list[Waiting]
    total: int
    next: str | None


class Planned(BaseModel):
    """A job that the plan would start."""

    table: str
    operations: list[Operation]
    score: float
    benefit_mb: float
    cost_gb_hours: float
    why: str
    pool: str


class Plan(BaseModel):
    """Jobs that would start now, best first, and deferred operations."""

    jobs: list[Planned]
    deferred: list[dict[str, Any]]
    deferred_total: int
