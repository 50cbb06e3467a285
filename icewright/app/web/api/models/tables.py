"""Bodies of tables, snapshots, pins and knobs."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from icewright.app.web.api.models.requests import RequestBody, Text
from icewright.core.policy import Operation
from icewright.core.runs import OperationState


class Table(BaseModel):
    """A table in a list."""

    table: str = Field(description="catalog.namespace.table; parts with dots are quoted by backticks")
    catalog: str
    namespace: list[str]
    name: str
    state: Literal["healthy", "due", "blocked", "changed", "new", "busy", "paused", "unreadable", "dropped"]
    health: int | None = Field(description="0 to 100; null when it is not known")
    files: int | None
    bytes: int | None
    importance: str
    queries_per_day: float
    due: list[Operation] = Field(description="operations that are worth doing now")
    due_since: datetime | None
    evaluated_at: datetime | None
    evaluate_at: datetime | None = Field(description="next scheduled evaluation; a commit brings it forward")
    succeeded_at: datetime | None = Field(description="end of the last successful operation")
    job: str | None = Field(description="the queued or running job of the table")
    paused: str | None = Field(description="why automatic maintenance is paused")
    error: str | None = Field(description="why the table cannot be read")
    blocked: str | None = Field(description="in the state `blocked`: which operations, and why")


class Tables(BaseModel):
    """A page of tables and the cursor of the next."""

    items: list[Table]
    total: int = Field(description="how many there are on all pages")
    next: str | None = Field(description="cursor of the next page; null at the end")


class Maintenance(BaseModel):
    """Status of an operation, with the values of Amazon S3 Tables."""

    status: Literal["Disabled", "Not_Yet_Run", "Successful", "Failed"]
    last_run: datetime | None
    message: str = Field(description="why the last run failed; else empty")
    state: OperationState | None = Field(description="of the last run, as its job has it")


class Verdict(BaseModel):
    """The verdict of the last evaluation on an operation."""

    model_config = ConfigDict(extra="allow")

    operation: Operation
    verdict: Literal["due", "not_due", "blocked", "unsupported"]
    reason: str


class Pin(BaseModel):
    """A snapshot that a reader protects from expiry."""

    reader: str
    snapshot_id: str = Field(description="as text: it does not fit JavaScript's numbers")
    pinned_at: datetime
    until: datetime
    author: str


class IgnoredProperty(BaseModel):
    """A table property that is ignored because policy does not allow it to set the knob."""

    property: str
    value: str
    knob: str = Field(description="the knob, or the preset's knob, that the property would set")
    reason: str = Field(description="with the remedy")


class TableDetail(Table):
    """Everything the store knows about a table."""

    goes_first_from: datetime | None = Field(
        description="from when what is due goes before all others, by limits.max_wait_hours; null: nothing is due"
    )
    table_uuid: str | None
    location: str | None
    metadata_location: str
    snapshot_id: str | None
    parts: dict[str, Any] = Field(description="parts of the health, each with its score and what is behind it")
    facts: dict[str, Any] = Field(description="counts of the last evaluation, file sizes, the worst partitions")
    verdicts: list[Verdict]
    ignored_properties: list[IgnoredProperty] = Field(description="as the last evaluation saw them")
    maintenance: dict[Operation, Maintenance]
    pins: list[Pin]


class Knob(BaseModel):
    """A knob of a table, and who set it."""

    knob: str
    value: Any
    unit: str
    level: str
    rule: str
    note: str
    overrides: list[dict[str, Any]]


class Knobs(BaseModel):
    """Every knob of a table."""

    table: str
    knobs: list[Knob]
    ignored_properties: list[IgnoredProperty]


class Snapshot(BaseModel):
    """A snapshot of a table."""

    snapshot_id: str
    parent_id: str | None
    timestamp: datetime
    operation: str | None
    summary: dict[str, str]
    expires: datetime | None = Field(description="when its age alone lets it expire; null while something keeps it")
    kept_by: str | None = Field(description="who keeps it, whatever its age; null where nobody does")


class Ref(BaseModel):
    """A branch or tag of a table."""

    name: str
    kind: Literal["branch", "tag"]
    snapshot_id: str


class WriterState(BaseModel):
    """The newest snapshot in which a streaming writer recorded its progress, and until when expiry keeps it."""

    snapshot_id: str
    writer: str


class UnpinnedRead(BaseModel):
    """The last reported read of a snapshot that was not the newest any more, and that nobody pinned."""

    snapshot_id: str
    read_at: datetime


class Snapshots(BaseModel):
    """A page of snapshots, newest first, and all refs, as the table's metadata has them now."""

    table: str
    current_snapshot_id: str | None
    total: int
    items: list[Snapshot]
    refs: list[Ref]
    pins: list[Pin]
    writers: list[WriterState]
    unpinned_reads: list[UnpinnedRead] = Field(description="of the last 14 days")
    next: str | None = Field(description="of the page with older snapshots")


class PinRequest(RequestBody):
    """A request to pin a snapshot."""

    snapshot_id: int | Annotated[str, Field(pattern="^[0-9]{1,19}$")]
    hours: Annotated[int, Field(ge=1, le=24 * 366)] | None = Field(
        None, description="how long; at most and by default expire_snapshots.max_pin_age_hours"
    )


class PauseRequest(RequestBody):
    """A request to pause a table, with the reason."""

    reason: Annotated[Text, Field(min_length=1)] = "manually"
