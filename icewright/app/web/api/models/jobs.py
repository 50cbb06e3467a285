"""Bodies of jobs, runs, files, the queue and the plan; of changes to many tables; of planned and undone deletions."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

from pydantic import BaseModel, Field

from icewright.app.web.api.models.requests import RequestBody, Settings, Text
from icewright.core.policy import Operation
from icewright.core.runs import JobState
from icewright.core.selection import TableSelection

_MOST_NAMES = 1000


class RemovedSnapshot(BaseModel):
    """A snapshot that an expiry removed from the metadata."""

    snapshot_id: int
    parent_id: int | None
    at: datetime = Field(description="when it was committed")
    operation: str | None
    summary: dict[str, str]


class ExpiredSnapshot(RemovedSnapshot):
    """A snapshot that an expiry removed, with its last read."""

    read_at: datetime | None = Field(description="when a query last read it, by scan reports of the last 14 days")


class RemovedRef(BaseModel):
    """A tag or branch that an expiry removed from the metadata."""

    name: str
    type: str | None
    snapshot_id: int


class Removed(BaseModel):
    """Snapshots and refs that one commit of an expiry removed from the metadata."""

    at: datetime
    undone_at: datetime | None = Field(description="when an undo restored it; null: it was not restored")
    metadata_location: str = Field(description="metadata file of the table before the commit")
    snapshots: list[ExpiredSnapshot]
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
    """Snapshots, refs and files that an undo brought back, or would bring back."""

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

    reason: Annotated[Text, Field(min_length=1)] = "manually"


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

    reason: Annotated[Text, Field(min_length=1)] = "manually"
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
    work: str | None = Field(description="of a job without operations: undo, restore, repair, erase, copy or layouts")
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
    gb_hours: float = Field(description="what its runs took, as budgets count it")
    gb_hours_driver: float = Field(description="of these what the driver of Spark reserved")
    money: float | None = Field(description="what these GB-hours cost; null: no price was configured")


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
        description="options of a manual job; `undo`: the job that it undid; `restore`: the snapshot it returns to; "
        "`repair`: whether main goes on without lost files; `erase`: the predicate; `copy`: the place; "
        "`filters`: those for which layouts are tried, for who may start it"
    )
    has_result: bool = Field(description="what it found or made can be read at `/jobs/{job_id}/result`")
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
