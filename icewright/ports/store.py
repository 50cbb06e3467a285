"""What is known of tables, jobs and deletions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Protocol

from icewright.core.layering import Rule
from icewright.core.plan import Candidate, Deferred, PlannedJob, Usage
from icewright.core.policy import Operation
from icewright.core.runs import FileFate, History, JobState
from icewright.core.table import TableRef
from icewright.core.verdicts import Evaluation
from icewright.ports.access import AccessStore
from icewright.ports.alerts import AlertReader, AlertStore
from icewright.ports.engine import Unfinished
from icewright.ports.events import Events
from icewright.ports.lake import Pointer
from icewright.ports.measures import MeasureReader
from icewright.ports.rows import Beat, CatalogRow, JobRow, PinRow, ProcessRow, RunRow, TableRow, Trigger
from icewright.ports.views import Views


class Ledger(Protocol):
    """Deletions, written down before they happen."""

    def plan(self, job_id: str, ref: TableRef, files: Iterable[FileFate], state: str, now: datetime) -> None:
        """Write down files; durable when the call returns."""
        ...

    def settle(self, job_id: str, paths: Mapping[str, str], now: datetime) -> None:
        """Set the state of files by path."""
        ...

    def found(self, ref: TableRef, table_uuid: str) -> Mapping[str, datetime]:
        """Orphans that scans of the table of this uuid have found and not deleted, with the time of the first."""
        ...

    def forget(self, ref: TableRef, paths: Iterable[str]) -> None:
        """Findings that a later scan did not repeat."""
        ...

    def export(self, job_id: str) -> str:
        """Write what the ledger says of a job as a Parquet file; says where it is, or why there is none."""
        ...

    def unfinished(self) -> Sequence[Unfinished]:
        """Planned deletions of jobs that do not run any more."""
        ...


class StoreReader(AlertReader, MeasureReader, Views, Protocol):
    """What is known; the planner gets this and cannot write."""

    def tables(self, catalog: str | None = None) -> Sequence[TableRow]:
        """Every table, or those of one catalog; dropped ones too."""
        ...

    def table(self, ref: TableRef) -> TableRow | None:
        """One table."""
        ...

    def history(self, ref: TableRef, table_uuid: str) -> History:
        """The last run of each operation on the table of this uuid; of an earlier one of the name nothing counts."""
        ...

    def evaluation(self, ref: TableRef) -> Mapping[str, Any] | None:
        """The last evaluation as JSON, for people."""
        ...

    def jobs(self, ref: TableRef | None = None, limit: int = 50) -> Sequence[JobRow]:
        """Jobs, newest first."""
        ...

    def job(self, job_id: str) -> JobRow | None:
        """One job by its id or a unique beginning of it."""
        ...

    def runs(self, job_id: str) -> Sequence[Mapping[str, Any]]:
        """The operations of a job with metrics, statements, before and after."""
        ...

    def deleted_files(self, job_id: str) -> Sequence[Mapping[str, Any]]:
        """What the ledger says of a job."""
        ...

    def pins(self, ref: TableRef, table_uuid: str) -> Sequence[PinRow]:
        """Held snapshots of the table of this uuid, aged-out pins too."""
        ...

    def events(self, job_id: str | None = None, limit: int = 100) -> Sequence[Mapping[str, Any]]:
        """Activities, newest first; of one job all of them, in their order."""
        ...

    def candidates(self, catalogs: Sequence[str]) -> Sequence[Candidate]:
        """Tables with something due, by their last evaluation; the flow adds what only configuration knows."""
        ...

    def usage(self, day: datetime) -> Usage:
        """What is queued or runs, and the GB-hours spent since the day began."""
        ...

    def catalogs(self) -> Sequence[CatalogRow]:
        """Every catalog that was ever asked."""
        ...

    def processes(self) -> Sequence[ProcessRow]:
        """Services and workers, those too whose heartbeat has stopped."""
        ...

    def pool_limits(self) -> Mapping[str, int]:
        """How many jobs each pool is given now, where that was adapted."""
        ...

    def rules(self) -> Sequence[Rule]:
        """Policy rules that were set through the command line or API."""
        ...


class Queue(Protocol):
    """Jobs. Each change is a compare-and-set: of two that want a table or a job, one gets it.

    A table has one job at a time, from the moment that it is queued.
    """

    def enqueue(
        self, planned: PlannedJob, trigger: Trigger, now: datetime, options: Mapping[str, Any] | None = None
    ) -> str | None:
        """Let a job wait for a worker: its id, or None when the table has a job already."""
        ...

    def waits(self, deferred: Sequence[Deferred]) -> None:
        """Write down what the plan did not start, with reasons and places."""
        ...

    def take(self, holder: str, catalogs: Sequence[str], now: datetime, limit: int) -> Sequence[JobRow]:
        """The best jobs that wait, begun by this process."""
        ...

    def claim(
        self,
        ref: TableRef,
        table_uuid: str,
        operations: Sequence[Operation],
        trigger: Trigger,
        now: datetime,
        pool: str = "default",
    ) -> str | None:
        """Start a job at once: its id, or None when another runs on the table. One that waits there gives way."""
        ...

    def heartbeat(self, job_id: str, now: datetime) -> Beat:
        """Renew the job's lease."""
        ...

    def finish(self, job_id: str, state: JobState, summary: str, now: datetime) -> None:
        """End a job and free its table."""
        ...

    def interrupted(self, now: datetime, dead: Callable[[str], bool]) -> Sequence[JobRow]:
        """Running jobs whose lease ran out, or whose holder is `dead`: ended, their tables freed, for settling."""
        ...

    def request_cancel(self, job_id: str, now: datetime) -> bool:
        """Ask a job to stop; one that waits ends at once. False when it has ended already."""
        ...

    def ended_in_a_row(self, ref: TableRef, state: JobState) -> int:
        """How many of the table's last jobs ended so, up to now."""
        ...


class Loops(Protocol):
    """What loops of many processes share."""

    def claim_catalogs(self, names: Sequence[str], holder: str, now: datetime, until: datetime) -> Sequence[CatalogRow]:
        """Those of the catalogs whose turn it is to be asked, for this process until then."""
        ...

    def catalog_read(self, name: str, now: datetime, detect_at: datetime) -> None:
        """The catalog answered, and is asked again then."""
        ...

    def catalog_failed(self, name: str, error: str, detect_at: datetime) -> None:
        """The catalog could not be read, and is tried again then."""
        ...

    def detect_soon(self, names: Sequence[str], now: datetime) -> None:
        """Ask these catalogs at the next opportunity."""
        ...

    def policy_held(self, name: str, fingerprint: str, now: datetime) -> None:
        """The catalog's tables have been held against the policy of this fingerprint."""
        ...

    def claim_evaluations(
        self, catalogs: Sequence[str], holder: str, now: datetime, until: datetime, limit: int
    ) -> Sequence[TableRow]:
        """Tables that are to be evaluated now, for this process until then."""
        ...

    def look_again(self, refs: Sequence[TableRef], at: datetime | None) -> None:
        """When tables are to be evaluated next; None: not before they move."""
        ...

    def lease(self, name: str, holder: str, now: datetime, until: datetime) -> str:
        """Take or renew what one process alone does at a time; says who holds it now, blank: nobody any more."""
        ...

    def release(self, name: str, holder: str) -> None:
        """Give it back."""
        ...

    def alive(self, row: ProcessRow) -> None:
        """This process is there."""
        ...

    def abandon(self, dead: Callable[[str], bool]) -> None:
        """Free the catalogs and tables that ended processes had claimed to read."""
        ...

    def gone(self, holders: Sequence[str]) -> None:
        """These processes have ended."""
        ...

    def set_pool_limit(self, name: str, limit: int, now: datetime) -> None:
        """Adapt how many jobs a pool is given."""
        ...


class Store(StoreReader, Ledger, Queue, Loops, Events, AlertStore, AccessStore, Protocol):
    """The state store."""

    def detected(self, catalog: str, pointers: Sequence[Pointer], now: datetime) -> int:
        """Write down what a catalog lists: new, moved and dropped tables. Returns how many moved or are new."""
        ...

    def evaluated(self, evaluation: Evaluation, now: datetime, policy: str = "") -> None:
        """Write down an evaluation that began `now`, and the fingerprint of the policy, without table properties.

        One that began later and was done sooner stays.
        """
        ...

    def unreadable(self, ref: TableRef, error: str, now: datetime) -> None:
        """A table whose evaluation failed whole, with the reason."""
        ...

    def run_recorded(self, run: RunRow, ref: TableRef) -> None:
        """Write down one operation's outcome."""
        ...

    def pause(self, ref: TableRef, reason: str | None) -> bool:
        """Pause a table with a reason, or resume it with None; False when the table is unknown."""
        ...

    def pin(self, ref: TableRef, table_uuid: str, pin: PinRow, *, job_id: str | None = None) -> bool:
        """Hold a snapshot; a reader's earlier pin moves.

        False when the table is unknown, or another job than `job_id` works on it: an expiry may be about to commit.
        """
        ...

    def unpin(self, ref: TableRef, reader: str) -> bool:
        """Release a reader's pin; False when it has none."""
        ...

    def event(self, kind: str, now: datetime, ref: TableRef | None = None, **details: Any) -> None:  # noqa: ANN401
        """Write down an activity."""
        ...

    def set_rule(self, rule: Rule, author: str, now: datetime) -> None:
        """Store a policy rule; earlier versions are kept."""
        ...

    def put_rule(
        self, match: tuple[str, ...], settings: Mapping[str, Any], author: str, now: datetime, expected: int | None
    ) -> int | None:
        """A new version of a rule; nothing set takes it back. None when the newest is not the one `expected`."""
        ...
