"""What is known of tables, jobs and deletions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol

from icewright.core.layering import Rule
from icewright.core.policy import Operation
from icewright.core.runs import FileFate, History, JobState, Outcome
from icewright.core.table import Hold, TableRef
from icewright.core.verdicts import Evaluation
from icewright.ports.engine import Unfinished
from icewright.ports.lake import Pointer


@dataclass(frozen=True, slots=True)
class TableRow:
    """What the store knows of a table."""

    ref: TableRef
    table_uuid: str | None
    location: str | None
    write_paths: tuple[str, ...] | None  # where writers put files outside the location; None: not known
    metadata_location: str  # as the catalog last said
    evaluated_location: str | None  # as last evaluated; another than the former means: changed
    evaluated_at: datetime | None
    revisit_at: datetime | None
    due_since: datetime | None
    held_by: str | None  # the job that holds the table
    policy: str | None  # fingerprint of the policy of the last evaluation
    dropped: bool
    paused: str | None
    error: str | None
    health: int | None


@dataclass(frozen=True, slots=True)
class Trigger:
    """Who or what started a job, and the process that holds it."""

    kind: str  # "cycle" or "manual"
    actor: str
    holder: str


@dataclass(frozen=True, slots=True)
class JobRow:
    """A job as the store has it."""

    job_id: str
    ref: TableRef
    table_uuid: str
    operations: tuple[Operation, ...]
    state: JobState
    trigger: str
    actor: str
    created: datetime
    started: datetime | None
    finished: datetime | None
    summary: str
    cancel_requested: bool


@dataclass(frozen=True)
class RunRow:
    """One operation of a job, with the table before and after it."""

    job_id: str
    outcome: Outcome
    started: datetime
    finished: datetime
    metadata_location: str  # as the operation left the table
    policy: str  # fingerprint of the knobs
    before: Mapping[str, Any]
    after: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class PinRow:
    """A snapshot that somebody holds, as the store has it."""

    reader: str  # or the job whose rewrite began on the snapshot
    snapshot_id: int
    pinned_at: datetime
    until: datetime
    author: str

    def hold(self) -> Hold:
        """The same for the rules of retention."""
        return Hold(self.snapshot_id, self.reader, self.until)


class LedgerState:
    """States of a deletion in the ledger."""

    PLANNED = "planned"
    FOUND = "found"  # by a scan that must be confirmed, or that only reports
    DELETED = "deleted"
    FAILED = "failed"
    KEPT = "kept"  # the proof after the commit found it live
    LEFT = "left"  # written by a rewrite that failed: removing orphans takes it once it is old enough


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


class StoreReader(Protocol):
    """What is known; the planner gets this and cannot write."""

    def tables(self) -> Sequence[TableRow]:
        """Every table, dropped ones too."""
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

    def rules(self) -> Sequence[Rule]:
        """Policy rules that were set through the command line or API."""
        ...


class Store(StoreReader, Ledger, Protocol):
    """The state store. Claims are compare-and-set: of two that claim one table, one gets it."""

    def detected(self, catalog: str, pointers: Sequence[Pointer], now: datetime) -> int:
        """Write down what a catalog lists: new, moved and dropped tables. Returns how many moved or are new."""
        ...

    def evaluated(self, evaluation: Evaluation, now: datetime, policy: str = "") -> None:
        """Write down an evaluation, and the fingerprint of the policy, without table properties, behind it."""
        ...

    def unreadable(self, ref: TableRef, error: str, now: datetime) -> None:
        """A table whose evaluation failed whole, with the reason."""
        ...

    def claim(
        self, ref: TableRef, table_uuid: str, operations: Sequence[Operation], trigger: Trigger, now: datetime
    ) -> str | None:
        """Start a job: its id, or None when another job holds the table."""
        ...

    def heartbeat(self, job_id: str, now: datetime) -> bool:
        """Renew the job's lease; False when the job does not hold its table any more."""
        ...

    def run_recorded(self, run: RunRow, ref: TableRef) -> None:
        """Write down one operation's outcome."""
        ...

    def finish(self, job_id: str, state: JobState, summary: str, now: datetime) -> None:
        """End a job and free its table."""
        ...

    def interrupted(self, now: datetime, dead: Callable[[str], bool]) -> Sequence[JobRow]:
        """Running jobs whose lease ran out, or whose holder is `dead`: ended, their tables freed, for settling."""
        ...

    def request_cancel(self, job_id: str) -> bool:
        """Ask a job to stop; False when it does not run any more."""
        ...

    def cancel_requested(self, job_id: str) -> bool:
        """Whether somebody asked."""
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

    def failures(self, ref: TableRef) -> int:
        """Failed jobs in a row, up to now."""
        ...

    def event(self, kind: str, now: datetime, ref: TableRef | None = None, **details: Any) -> None:  # noqa: ANN401
        """Write down an activity."""
        ...

    def set_rule(self, rule: Rule, author: str, now: datetime) -> None:
        """Store a policy rule; earlier versions are kept."""
        ...
