"""Values for the rows of the state store."""

from __future__ import annotations

import enum
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from itertools import accumulate
from typing import Any

from icewright.core.places import Spelling
from icewright.core.policy import Operation
from icewright.core.runs import JobState, Outcome
from icewright.core.table import Snapshot, SnapshotHold, TableMetadata, TableRef


@dataclass(frozen=True, slots=True)
class TableRow:
    """A table with the result of its last evaluation."""

    ref: TableRef
    table_uuid: str | None
    location: str | None
    write_paths: tuple[str, ...] | None  # where writers put files outside the location; None: not known
    metadata_location: str  # of the last listing
    evaluated_location: str | None  # of the last evaluation; differs where the table has changed since
    evaluated_at: datetime | None
    evaluate_at: datetime | None  # when it is evaluated next, if its metadata does not move before
    due_since: datetime | None
    job_id: str | None  # of its queued or running job
    policy: str | None  # fingerprint of the policy of the last evaluation
    dropped: bool
    paused: str | None
    error: str | None
    health: int | None


ABANDONED_AFTER = timedelta(days=1)  # a catalog whose listing is overdue for longer is configured in no process
# options of jobs that name what no operation does
WITHOUT_OPERATIONS = ("undo", "restore", "repair", "erase", "copy", "layouts")
MANUAL = "manual"  # the kind of trigger of jobs that a person or another system asked for


@dataclass(frozen=True, slots=True)
class Trigger:
    """The origin of a job: the kind of trigger, the actor, and the process that runs it."""

    kind: str  # "cycle" or "manual"
    actor: str
    holder: str


@dataclass(frozen=True, slots=True)
class JobRow:
    """A job with its state and its lease."""

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
    options: Mapping[str, Any]  # of a manual job: its own settings, and whether cooldowns are ignored
    holder: str  # the process that runs it; blank while it is queued

    @property
    def work(self) -> str | None:
        """Return what the job does where it has no operations: the option that says so."""
        return next((name for name in WITHOUT_OPERATIONS if name in self.options), None)


@dataclass(frozen=True, slots=True)
class CatalogSettings:
    """Settings of a catalog in the place of its configuration; None: as the configuration says."""

    enabled: bool | None = None
    namespaces: str | None = None
    tables: str | None = None
    interval_seconds: int | None = None  # between listings


@dataclass(frozen=True, slots=True)
class CatalogRow:
    """A catalog with its schedule of listings."""

    name: str
    detect_at: datetime
    detected_at: datetime | None  # of the last complete listing
    failures: int  # in a row
    error: str | None
    policy: str | None  # fingerprint of the policy that was last applied to its tables
    vacuumed: str | None  # the cut-off instant that vacuum applied last
    vacuumed_at: datetime | None = None  # the end of the last vacuum
    settings: CatalogSettings | None = None

    def is_abandoned(self, configured: Container[str], now: datetime) -> bool:
        """Return whether no process maintains the catalog: it is not configured here, and its listing is overdue."""
        return self.name not in configured and now - self.detect_at >= ABANDONED_AFTER


@dataclass(frozen=True, slots=True)
class ProcessRow:
    """A service or a worker, by its last heartbeat."""

    holder: str
    kind: str
    started: datetime
    heartbeat: datetime
    slots: int
    details: Mapping[str, Any]  # reports of its pools, loops and configuration
    drain_since: datetime | None = None  # when it was asked to take no more jobs; heartbeats do not change it


@dataclass(frozen=True, slots=True)
class FleetPause:
    """The pause of the whole fleet: while it lasts no job begins on any table."""

    reason: str
    author: str
    since: datetime

    def __str__(self) -> str:
        return f"everything is paused by {self.author}: {self.reason}"


class LeaseStatus(enum.Enum):
    """The result of renewing the lease of a job."""

    HELD = enum.auto()
    CANCELLED = enum.auto()  # held, and cancellation of the job is requested
    LOST = enum.auto()


@dataclass(frozen=True)
class RunRow:
    """A run of one operation of a job, with the table before and after it."""

    job_id: str
    outcome: Outcome
    started: datetime
    finished: datetime
    metadata_location: str  # of the table after the operation
    policy: str  # fingerprint of the settings
    before: Mapping[str, Any]
    after: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class StoredLimits:
    """Limits that are set in the place of the configuration's, by their key paths there."""

    settings: Mapping[str, Any]
    author: str
    at: datetime
    version: int


@dataclass(frozen=True, slots=True)
class SnapshotPin:
    """A snapshot that a reader or a rewrite needs until a time."""

    reader: str  # or the job whose rewrite began on the snapshot
    snapshot_id: int
    pinned_at: datetime
    until: datetime
    author: str

    @staticmethod
    def rewriter(job_id: str | None) -> str:
        """Return the reader that a running rewrite is; the end of its job ends the pin."""
        return f"the running rewrite of job {job_id}"

    def hold(self) -> SnapshotHold:
        """Return the pin as the retention rules take it."""
        return SnapshotHold(self.snapshot_id, self.reader, self.until, self.pinned_at)


class LedgerState:
    """States of a deletion in the ledger."""

    PLANNED = "planned"
    FOUND = "found"  # by a scan that a second one must confirm, or that only reports
    DELETING = "deleting"  # an attempt has begun; after a crash the file may or may not exist
    DELETED = "deleted"
    FAILED = "failed"  # tried again after `delete_after`
    KEPT = "kept"  # the proof before the deletion found the file live, or another table's
    LEFT = "left"  # written by a rewrite that failed; orphan removal deletes it once it is old enough
    UNDOING = "undoing"  # an undo of the job has begun
    UNDONE = "undone"  # a person undid the job
    GIVEN_UP = "given up"  # a person abandoned the deletion


WAITING = (LedgerState.PLANNED, LedgerState.DELETING, LedgerState.FAILED)


@dataclass(frozen=True, slots=True)
class WaitingDeletions:
    """Files of one job, planned by one operation of it, that are still to be deleted."""

    job_id: str
    ref: TableRef
    operations: tuple[Operation, ...]  # several where an earlier release did not record which
    files: int
    bytes: int  # of files whose size is known
    failed: int  # number of files that could not be deleted so far
    planned_at: datetime
    delete_after: datetime | None  # when the first of them is due; None: at the next reconciliation
    reason: str = ""  # why a file is still there


@dataclass(frozen=True, slots=True)
class Removal:
    """The objects that one commit of an expiry removed from a table's metadata."""

    job_id: str
    table_uuid: str
    metadata_location: str  # of the table before the commit
    at: datetime
    document: Mapping[str, Any]  # snapshots, refs and statistics, as the JSON of that metadata
    undone_at: datetime | None = None


FIRST_LOOK = 100  # newest snapshots whose files are read of a table that is seen for the first time
_SPELLING = Spelling()
_NEVER = datetime(1970, 1, 1, tzinfo=UTC)
_SKEW = timedelta(hours=1)  # how much the clocks of a table's writers may differ
_BEHIND = timedelta(minutes=1)  # how far Iceberg's library lets a snapshot be behind those before it


def unseen_snapshots(metadata: TableMetadata, seen: datetime | None) -> Sequence[Snapshot]:
    """Return the snapshots whose files may lie in folders that are not registered yet.

    These are the snapshots that the table and its refs name, and those since the version that was last `seen`. The time
    of a snapshot that is behind an earlier one, as its writer's clock was wrong, does not tell: it counts as unseen.
    """
    ids = {metadata.current_snapshot_id, *(ref.snapshot_id for ref in metadata.refs)}
    recent = {s.snapshot_id for s in metadata.snapshots[-FIRST_LOOK:]}
    if seen is not None:
        newest = accumulate((s.timestamp for s in metadata.snapshots), max)
        recent = {
            s.snapshot_id
            for s, latest in zip(metadata.snapshots, newest, strict=True)
            if s.timestamp >= seen - _SKEW or latest - s.timestamp > _BEHIND
        }
    return [s for s in metadata.snapshots if s.snapshot_id in ids | recent]


def table_folder(metadata_location: str) -> str:
    """Return the folder that holds a table's metadata folder: its location, unless its properties say otherwise."""
    folder, metadata, _ = metadata_location.rpartition("/metadata/")
    return folder if metadata else metadata_location.rpartition("/")[0]


@dataclass(frozen=True, slots=True)
class Registration:
    """A table under a name that a catalog gives or gave it, and the places of its files."""

    ref: TableRef
    table_uuid: str
    metadata_location: str  # as last read
    places: tuple[str, ...]  # locations and write paths, former ones too; a metadata folder ends with a slash
    folders: tuple[str, ...] = ()  # outside of the places, with files that are or were live
    first_places: tuple[str, ...] = ()  # the places of the version that was seen first
    # the time of the newest snapshot in the version that was read last
    seen: datetime | None = field(default=None, compare=False)

    @classmethod
    def of(cls, metadata: TableMetadata, folders: Sequence[str]) -> Registration:
        """Return the registration of a table that has just been read."""
        at, places = _SPELLING.place(metadata.metadata_folder), metadata.roots
        # the table was moved, and its metadata was not
        if not any(at.may_lie_in(_SPELLING.place(place)) for place in places):
            places = (*places, table_folder(metadata.metadata_location))
        if at not in {_SPELLING.place(f"{place}/metadata") for place in places}:
            places = (*places, f"{metadata.metadata_folder}/")
        unique = tuple(dict.fromkeys(places))
        newest = max((s.timestamp for s in metadata.snapshots), default=_NEVER)
        seen = min(newest, metadata.last_updated)
        return cls(metadata.ref, metadata.table_uuid, metadata.metadata_location, unique, tuple(folders), seen=seen)

    @property
    def key(self) -> tuple[TableRef, str]:
        """Return the identity of the registration: name and uuid of the table."""
        return self.ref, self.table_uuid

    def is_of(self, ref: TableRef, table_uuid: str) -> bool:
        """Return whether the table is registered under this name, or has this uuid under whatever name."""
        return self.ref == ref or bool(table_uuid and self.table_uuid == table_uuid)

    @property
    def metadata_folders(self) -> tuple[str, ...]:
        """Return the folders in which the table's metadata lies or lay."""
        return tuple(place if place.endswith("/") else f"{place}/metadata" for place in self.places)

    def on_top_of(self, earlier: Registration | None) -> Registration:
        """Return this reading of the table, with the places and folders that were known before."""
        if earlier is None:
            return replace(self, first_places=self.places)
        places = tuple(dict.fromkeys((*earlier.places, *self.places)))
        folders = tuple(f for f in dict.fromkeys((*earlier.folders, *self.folders)) if f not in places)
        return replace(self, places=places, folders=folders, first_places=earlier.first_places)
