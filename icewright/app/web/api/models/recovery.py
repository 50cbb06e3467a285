"""Bodies of recovery points, restores, repairs, erasures, copies and registrations."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

from pydantic import BaseModel, Field

from icewright.app.web.api.models.jobs import RemovedSnapshot
from icewright.app.web.api.models.requests import RequestBody, Text


class Point(BaseModel):
    """A recovery point of a table."""

    name: str = Field(description="of the tag")
    cadence: str
    time: datetime = Field(description="at which the table was so")
    snapshot_id: str
    committed: datetime | None
    rows: int | None = Field(description="in its data files, deleted ones included")
    bytes: int | None = Field(description="of the files that stay for this point alone; null unless `costs`")


class Points(BaseModel):
    """The recovery points of a table, the newest first."""

    table: str
    items: list[Point]
    bytes: int | None = Field(description="of the files that stay for the points; null unless `costs`")
    money_per_month: float | None = Field(description="what these cost, where `limits.gb_month_price` is set")


class RestoreRequest(RequestBody):
    """A request to return a table to an earlier state."""

    to: Annotated[Text, Field(min_length=1)] = Field(
        description="a recovery point, a time, a snapshot id, a tag or a branch"
    )
    dry_run: bool = Field(False, description="report which commits and rows go, and change nothing")
    expected_snapshot_id: Annotated[str, Field(pattern="^[0-9]{1,19}$")] | None = Field(
        None, description="`from_snapshot_id` of the dry run: the restore is refused when a writer has committed since"
    )


class Restore(BaseModel):
    """A restore that was queued, or what it would change."""

    table: str
    dry_run: bool
    already: bool = Field(description="main leads there now, and nothing is to be done")
    job_id: str | None = Field(description="null for a dry run, and where nothing is to be done")
    from_snapshot_id: str
    to_snapshot_id: str
    rows_before: int | None
    rows_after: int | None
    leaving: list[RemovedSnapshot] = Field(description="commits that leave main, the newest first")
    returning: list[RemovedSnapshot] = Field(description="commits that come back")
    tag: str | None = Field(description="that will keep the state before")
    notes: list[str]
    summary: str


class RepairRequest(RequestBody):
    """A request to repair what a check to the footers finds."""

    drop_lost: bool = Field(False, description="let main go on without data files and manifests that are lost")
    approved_rows: int = Field(0, ge=0, description="`lost_rows` of the dry run: main loses no more rows than these")
    dry_run: bool = Field(False, description="report what would be repaired, and change nothing")


class Repair(BaseModel):
    """The outcome of a repair, or of its dry run."""

    table: str
    dry_run: bool
    faults: int
    actions: list[dict[str, Any]]
    unrepaired: list[dict[str, Any]] = Field(description="faults that stay, with the reason")
    lost_rows: int
    summary: str


class EraseRequest(RequestBody):
    """A request to erase rows that main does not show any more from every file that keeps them."""

    where: Annotated[Text, Field(min_length=1)] = Field(description="which rows, as in `email = 'ann@example.org'`")
    dry_run: bool = Field(False, description="find the rows, and change nothing")


class CopyRequest(RequestBody):
    """A request to copy a table to another place."""

    to: Annotated[Text, Field(min_length=1)] = Field(description="an empty folder, or one with an earlier copy")
    dry_run: bool = Field(False, description="report what would be copied, and copy nothing")


class LayoutsRequest(RequestBody):
    """A request to try layouts of a table's rows for the filters of its queries."""

    filters: list[Text] = Field([], max_length=1000, description="as in `host = 'h7'`; none: those of scan reports")
    dry_run: bool = Field(False, description="predict what they would read, and measure nothing")


class Copy(BaseModel):
    """The outcome of a copy, or of its dry run."""

    table: str
    dry_run: bool
    place: str
    metadata_location: str = Field(description="of the copy: what a catalog registers")
    table_uuid: str = Field(description="of the copy")
    snapshots: int
    files: int
    bytes: int
    present: int = Field(description="files that the place has already")
    summary: str


class RegisterRequest(RequestBody):
    """A request to register a table from its files alone."""

    place: Annotated[Text, Field(min_length=1)] = Field(description="a table's folder, or one of its metadata files")
    name: Annotated[Text, Field(min_length=1)] = Field(description="of the table in the catalog: namespace.table")
    replace_lost: bool = Field(
        False, description="let a table whose metadata file is lost go on with the newest one left"
    )
    dry_run: bool = Field(False, description="report what would be registered, and change nothing")


class Registered(BaseModel):
    """A table that was registered, or would be."""

    table: str
    dry_run: bool
    metadata_location: str
    table_uuid: str
    snapshots: int
    files: int = Field(description="that were checked, and exist")
    replaced: str | None = Field(description="the metadata file that the catalog named before, and that is lost")
    notes: list[str]


class Result(BaseModel):
    """The result of a job without operations, such as a check or a copy."""

    job_id: str
    work: str
    document: dict[str, Any] = Field(description="as the command of this name prints it with `--json`")
    certified: bool = Field(description="a certificate of erasure can be read")
