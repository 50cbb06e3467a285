"""The port of engines, which run the steps of operations."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Protocol

from icewright.core.copying import CopyResult
from icewright.core.erasure import RowSearchReport
from icewright.core.integrity import CheckLevel, FileFault, IntegrityReport
from icewright.core.layout import FileSizes, LayoutReport
from icewright.core.paths import key
from icewright.core.policy import Operation
from icewright.core.recovery import PointCosts
from icewright.core.repair import RepairPlan
from icewright.core.runs import FileAction, Outcome
from icewright.core.steps import Step
from icewright.core.table import TableMetadata, TableRef


@dataclass(frozen=True, slots=True)
class StepRequest:
    """A request to an engine: one step on one table, in the state for which it was planned."""

    job_id: str
    operation: Operation
    step: Step
    base: TableMetadata
    dry_run: bool = False
    automatic: bool = False  # not requested by a person: doubtful deletions are refused
    planned_at: datetime | None = None  # by the clock as it was then
    # raises `LeaseLost` or `Cancelled`; called before each commit
    check: Callable[[], None] = field(default=lambda: None)
    # called with the commits of a step that then raises
    on_partial_result: Callable[[Outcome], None] = field(default=lambda _: None)
    # called with the progress in numbers
    on_progress: Callable[[Mapping[str, int]], None] = field(default=lambda _: None)


@dataclass(frozen=True, slots=True)
class Intent:
    """A removal about to be committed to a server that may drop another writer's ref together with it."""

    metadata_location: str  # what it was planned on
    snapshot_ids: frozenset[int]
    refs: frozenset[str]  # that the commit itself removes


@dataclass(frozen=True, slots=True)
class Unfinished:
    """Planned deletions that an ended job left unfinished, and its commit whose result is unchecked."""

    job_id: str
    ref: TableRef
    table_uuid: str
    operations: tuple[Operation, ...]
    files: tuple[FileAction, ...]
    planned_at: datetime  # when the first of the files was planned
    intent: Intent | None = None
    due_at: datetime | None = None  # when the last of the files became due


@dataclass(frozen=True, slots=True)
class Adoptable:
    """Tables, files and places that stop deletions in a table's places and that no catalog's table owns."""

    table_uuid: str
    tables: tuple[str, ...]  # uuids of earlier tables in these places, and tables of other formats there
    files: tuple[str, ...]  # metadata files of dead versions by other writers, and what is left of other formats
    places: tuple[str, ...]  # the location and write paths that no person has confirmed

    @property
    def everything(self) -> tuple[str, ...]:
        """Return all uuids, files and places, in the form in which the store records adoptions."""
        return (*self.tables, *map(key, self.files), *self.places)

    def among(self, other: Adoptable) -> Adoptable:
        """Return what this and the other have in common, of the same table."""
        same = other.table_uuid == self.table_uuid
        tables, files, places = (
            tuple(item for item in mine if same and item in theirs)
            for mine, theirs in ((self.tables, other.tables), (self.files, other.files), (self.places, other.places))
        )
        return Adoptable(self.table_uuid, tables, files, places)


@dataclass(frozen=True, slots=True)
class Probe:
    """A query that measures how fast snapshots of a table are read; its rows are discarded."""

    job_id: str
    table: TableMetadata
    query: str  # one SELECT over `{table}`
    snapshot_ids: tuple[int, ...]
    limit: timedelta  # for each time that the query runs
    check: Callable[[], None] = field(default=lambda: None)  # raises `LeaseLost` or `Cancelled`; called often


@dataclass(frozen=True, slots=True)
class RepairRequest:
    """A request to repair faults of a table, in the state for which they are planned."""

    base: TableMetadata
    faults: Sequence[FileFault]
    drop_lost: bool = False  # a person lets main go on without what is lost
    dry_run: bool = False
    job_id: str = ""
    check: Callable[[], None] = field(default=lambda: None)  # raises `LeaseLost` or `Cancelled`; called before writes
    main_is_known: bool = True  # the check could read main's manifest list


@dataclass(frozen=True, slots=True)
class CopyRequest:
    """A request to copy a table, in the state in which it was loaded, to another place."""

    base: TableMetadata
    place: str
    dry_run: bool = False
    snapshot_id: int | None = None  # the only one that is copied, as main's, in place of all
    check: Callable[[], None] = field(default=lambda: None)  # raises `LeaseLost` or `Cancelled`; called before writes


@dataclass(frozen=True, slots=True)
class MeasureRequest:
    """A request to write layouts on a branch of a sample of a table's files, and to run filters over each."""

    report: LayoutReport  # with what is predicted
    filters: Sequence[str]
    job_id: str
    sample_bytes: int
    max_gb_hours: float
    charge: Callable[[float], None]  # with all GB-hours that it took so far
    check: Callable[[], None] = field(default=lambda: None)  # raises `LeaseLost` or `Cancelled`; called often


class Engine(Protocol):
    """Runs the steps of operations on tables.

    A step that fails raises, and reports its commits through `on_partial_result` before. An `Outcome` is always the
    truth about the table.

    A dry run changes nothing, and its `files` are exactly those that the real run would rewrite or delete.
    """

    def run(self, request: StepRequest) -> Outcome:
        """Run the step, or with `dry_run` return what it would do."""

    def resume(self, unfinished: Unfinished, *, outside: bool = True) -> Outcome:
        """Finish the planned deletions of a job that has ended, after a fresh proof.

        `outside`: those in places of no table are deleted too.
        """

    def adoptable(self, ref: TableRef) -> Adoptable:
        """Return what a person may declare to be the table's own. Raises `Refused` if a live table owns part of it."""

    def check(self, ref: TableRef, level: CheckLevel, snapshot_ids: frozenset[int] | None = None) -> IntegrityReport:
        """Check that the files of all snapshots, or of those named, exist and are what their entries say, by level.

        Raises the errors of loading the table, and `StorageUnavailable`.
        """

    def check_files(self, metadata: TableMetadata, level: CheckLevel) -> IntegrityReport:
        """Check the files of a table that no catalog may name, as `check` does."""

    def repair(self, request: RepairRequest) -> RepairPlan:
        """Repair what is provably right, or with `dry_run` return what that would be; other faults stay, with reasons.

        A lost manifest list is written again; all else is one new snapshot of main, whose rows are those of `base`
        without what is dropped. Faults that are repaired already are passed over. Raises `CommitConflict` when the
        table has changed since `base`, `CommitStateUnknown`, and `UnsupportedTable`.
        """

    def point_costs(
        self, metadata: TableMetadata, of_points: AbstractSet[int], expiring: AbstractSet[int]
    ) -> PointCosts:
        """Return the bytes that stay for the snapshots `of_points` alone; those `expiring` go without the points.

        Raises `MetadataUnreadable`, and `StorageUnavailable`.
        """

    def copy(self, request: CopyRequest) -> CopyResult:
        """Copy all snapshots of a table, or one, to a place, with their files and paths there.

        A dry run returns what that would copy. Files that an earlier copy left are not copied again. The copy's
        metadata file is written last, when all else has been checked. Raises `Refused` when the place holds anything
        else or lies in the table's, `UnsupportedTable`, and `MetadataUnreadable` when a file is missing: it may have
        expired meanwhile.
        """

    def find_rows(self, ref: TableRef, predicate: str) -> RowSearchReport:
        """Read every file that may hold rows of a table for those that match a predicate; nothing is changed.

        Raises `UsageError` when the predicate cannot be understood, `Refused` when other tables share the place or
        writers never pause, `MetadataUnreadable`, and the errors of loading the table.
        """

    def draw_filters(self, ref: TableRef, templates: Mapping[str, float], now: datetime) -> Sequence[str]:
        """Return filters drawn from a table's rows: each template of `core.filters` as often as queries have it.

        Templates over columns that the table does not have give none. Raises the errors of loading the table.
        """

    def try_layouts(self, ref: TableRef, filters: Sequence[str], sizes: FileSizes) -> LayoutReport:
        """Return what filters would read if a table's rows were laid out in other ways, by a sample; change nothing.

        Raises `UsageError` for a text that is no filter over the table's columns, and the errors of loading the table.
        """

    def measure_layouts(self, request: MeasureRequest) -> LayoutReport:
        """Return the report with what Spark read, and how long it took, in the promising layouts and as the files are.

        The layouts are written on the branch `core.layout.MEASURED_ON`, which the caller removes, before and after.
        Raises `Refused` where nothing can be measured or the GB-hours are used up before, `CommitConflict` when the
        table changes before there is a branch, `EngineUnavailable`, and the errors of statements.
        """

    def probe(self, probe: Probe) -> Sequence[float]:
        """Return the seconds that the query takes on each of the snapshots, in their order.

        Raises `Refused` when the query is not one SELECT over the table alone, `Cancelled` when it takes too long, and
        the errors of the query.
        """
