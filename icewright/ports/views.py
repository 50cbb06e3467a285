"""Lists for people: filtered, sorted and paged by the store, restricted to what the caller may see."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from typing import Any, Generic, Protocol, TypeVar

from icewright.core.layering import PolicyRule
from icewright.core.permissions import VisibilityFilter
from icewright.core.policy import Operation
from icewright.core.table import TableRef
from icewright.ports.rows import JobRow, TableRow, WaitingDeletions

T = TypeVar("T")
After = tuple[Any, ...]  # the sorting values of the last item of a page

PAGE = 500  # items of a page for readers of whole lists
STATES = ("healthy", "due", "blocked", "changed", "new", "busy", "paused", "unreadable", "dropped")


class TableSort(enum.StrEnum):
    """The columns by which tables are sorted; tables without a value come last."""

    NAME = "name"
    HEALTH = "health"
    FILES = "files"
    BYTES = "bytes"
    QUERIES = "queries_per_day"
    EVALUATED = "evaluated_at"
    SUCCEEDED = "succeeded_at"
    DUE_SINCE = "due_since"
    NEXT = "evaluate_at"


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    """A page of a list; `after` is the cursor of the next page, None on the last. `total` counts the whole list."""

    items: Sequence[T]
    after: After | None = None
    total: int | None = None


def every_item(read_page: Callable[[After | None], Page[T]], limit: int | None = None) -> Iterator[T]:
    """Yield the items of all pages, at most `limit`; `read_page` returns the page after a cursor."""
    after, count = None, 0
    while True:
        page = read_page(after)
        for item in page.items:
            if count == limit:
                return
            yield item
            count += 1
        after = page.after
        if after is None:
            return


@dataclass(frozen=True, slots=True)
class TableQuery:
    """The filters of a list of tables."""

    catalog: str | None = None
    namespace: tuple[str, ...] | None = None
    search: str | None = None  # part of the name or namespace, case-insensitive
    states: tuple[str, ...] = ()
    due: Operation | None = None
    health_below: int | None = None
    sort: TableSort = TableSort.NAME
    descending: bool = False


@dataclass(frozen=True, slots=True)
class TableItem:
    """A table as lists show it."""

    row: TableRow
    state: str
    importance: str
    queries_per_day: float
    files: int | None
    bytes: int | None
    succeeded_at: datetime | None
    due: tuple[Operation, ...] = ()
    blocked: str | None = None  # in the state `blocked`: which operations, and why


@dataclass(frozen=True, slots=True)
class JobQuery:
    """The filters of a list of jobs."""

    job_id: str | None = None
    ref: TableRef | None = None
    catalog: str | None = None
    states: tuple[str, ...] = ()
    operation: Operation | None = None
    trigger: str | None = None
    search: str | None = None  # part of the table's name or namespace, case-insensitive
    since: datetime | None = None  # created then or later


@dataclass(frozen=True, slots=True)
class JobItem:
    """A job as lists show it."""

    job: JobRow
    pool: str
    on_pool: bool
    score: float
    cost: float  # GB-hours, as predicted
    gb_hours: float  # of its runs, which budgets count
    gb_hours_driver: float  # of these, what the driver of Spark reserved
    money: float | None  # None: no price was configured


@dataclass(frozen=True, slots=True)
class RunQuery:
    """The filters of a list of runs."""

    ref: TableRef | None = None
    catalog: str | None = None
    operation: Operation | None = None
    states: tuple[str, ...] = ()
    since: datetime | None = None


@dataclass(frozen=True, slots=True)
class DeletionQuery:
    """The filters of a list of waiting deletions."""

    job_id: str | None = None
    ref: TableRef | None = None
    catalog: str | None = None


@dataclass(frozen=True, slots=True)
class WaitingQuery:
    """The filters of a list of due operations without a job."""

    ref: TableRef | None = None
    catalog: str | None = None
    operation: Operation | None = None
    search: str | None = None  # part of the table's name or namespace, case-insensitive


@dataclass(frozen=True, slots=True)
class WaitingItem:
    """A due operation that the last plan did not start."""

    ref: TableRef
    operation: Operation
    why: str  # why it is due
    reason: str | None  # why it waits; None: it became due after the last plan
    position: int | None
    score: float | None
    benefit: float
    cost: float
    due_since: datetime | None


@dataclass(frozen=True, slots=True)
class RuleVersion:
    """A version of a policy rule, with author and time; empty settings end the rule."""

    match: tuple[str, ...]
    settings: Mapping[str, Any]
    author: str
    at: datetime
    version: int


@dataclass(frozen=True, slots=True)
class Spend:
    """GB-hours of one catalog and pool on one day."""

    day: date
    catalog: str
    pool: str
    gb_hours: float
    runs: int


@dataclass(frozen=True, slots=True)
class Savings:
    """The sums of what runs removed since a time."""

    runs: int = 0
    gb_hours: float = 0.0
    money: float = 0.0  # 0 where no price was configured
    data_files: int = 0  # by which their number fell
    manifests: int = 0  # likewise
    snapshots: int = 0  # expired
    deleted_files: int = 0
    deleted_bytes: int = 0


class TrendStep(enum.StrEnum):
    """The length of the steps of a trend."""

    MINUTE = "minute"
    HOUR = "hour"
    DAY = "day"

    @property
    def length(self) -> timedelta:
        """Return the time from one step to the next."""
        return timedelta(**{f"{self}s": 1})


@dataclass(frozen=True, slots=True)
class TrendPoint:
    """Cost and removals of the runs of one pool in one step."""

    at: datetime  # the beginning of the step
    pool: str
    saved: Savings


@dataclass(frozen=True, slots=True)
class HealthPoint:
    """Health and size of tables as they were known at the end of a day."""

    day: date
    tables: int
    health: float  # the mean, from 0 to 100
    files: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Trend:
    """Runs by step and pool, and health by day, oldest first; what had no run or no evaluation has no point."""

    points: Sequence[TrendPoint]
    health: Sequence[HealthPoint]  # the first has what was known before it


@dataclass(frozen=True, slots=True)
class FleetOverview:
    """The counts and sums of the overview. Each part of the funnel is in the one before."""

    tables: int = 0
    changed: int = 0
    due: int = 0
    running: int = 0
    states: Mapping[str, int] = field(default_factory=dict)
    health: Sequence[int] = ()  # tables by tens: 0-9, 10-19 ... 90-100
    unknown: int = 0  # tables without a health score
    verdicts: Mapping[tuple[str, str], int] = field(default_factory=dict)  # by operation and verdict
    jobs: Mapping[str, int] = field(default_factory=dict)  # queued and running, by state
    spend: Sequence[Spend] = ()
    saved: Savings = Savings()


class Views(Protocol):
    """Lists for people, page by page. A cursor `after` of another list raises `UsageError`."""

    def list_tables(
        self, query: TableQuery, visibility: VisibilityFilter, after: After | None, limit: int
    ) -> Page[TableItem]:
        """Return a page of tables; dropped ones only where their state is asked for."""

    def table_item(self, ref: TableRef) -> TableItem | None:
        """Return one table as lists show it, or None."""

    def list_jobs(
        self, query: JobQuery, visibility: VisibilityFilter, after: After | None, limit: int
    ) -> Page[JobItem]:
        """Return a page of jobs that match the query, newest first."""

    def list_runs(
        self, query: RunQuery, visibility: VisibilityFilter, after: After | None, limit: int
    ) -> Page[Mapping[str, Any]]:
        """Return a page of the operations of jobs, newest first."""

    def list_queue(self, query: JobQuery, visibility: VisibilityFilter, limit: int) -> Sequence[JobItem]:
        """Return the jobs that run, then those that wait for a worker, best first."""

    def list_waiting(
        self, query: WaitingQuery, visibility: VisibilityFilter, after: After | None, limit: int
    ) -> Page[WaitingItem]:
        """Return a page of due operations that no job has, by their position in the queue.

        The operations of a table at one position stay together: a page ends before those that it cannot hold.
        """

    def list_files(self, job_id: str, after: After | None, limit: int) -> Page[Mapping[str, Any]]:
        """Return a page of the files of a job in the ledger."""

    def list_deletions(
        self, query: DeletionQuery, visibility: VisibilityFilter, after: After | None, limit: int
    ) -> Page[WaitingDeletions]:
        """Return a page of the files that wait to be deleted, those of the oldest job first."""

    def list_events(self, job_id: str, after: After | None, limit: int) -> Page[Mapping[str, Any]]:
        """Return a page of the events of a job, oldest first."""

    def list_activity(
        self,
        kind: str | None,
        visibility: VisibilityFilter,
        after: After | None,
        limit: int,
        *,
        search: str | None = None,
        since: datetime | None = None,
        steps: bool = True,
    ) -> Page[Mapping[str, Any]]:
        """Return a page of events with their table as `ref`, newest first; those without a table need full visibility.

        `search` is a part of the table's name or namespace. Without `steps` a job has one event: its end, or until then
        its beginning.
        """

    def overview(self, visibility: VisibilityFilter, since: datetime) -> FleetOverview:
        """Return the overview; what was spent and saved counts from `since` on."""

    def trend(self, visibility: VisibilityFilter, since: datetime, step: TrendStep, query: RunQuery) -> Trend:
        """Return what runs cost and removed since then, and health and size of tables that are not dropped.

        The query names a table or a catalog, else all visible tables count.
        """


class PolicyRules(Protocol):
    """Policy rules that were set through the command line or the API. Every version of a rule is kept."""

    def list(self) -> Sequence[PolicyRule]:
        """Return the newest version of each rule, in the order in which the rules were first set."""

    def put(
        self, match: tuple[str, ...], settings: Mapping[str, Any], author: str, now: datetime, expected: int | None
    ) -> int | None:
        """Store a new version of the rule with this pattern; empty settings end it. Return the new version.

        A compare-and-set: return None when the newest version is not `expected`, unless that is None.
        """

    def versions(self, match: tuple[str, ...] | None = None) -> Sequence[RuleVersion]:
        """Return all versions of the rule with this pattern, or of all rules, newest first."""
