"""What the store has, row by row."""

from __future__ import annotations

import enum
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

from icewright.core.places import Spelling
from icewright.core.policy import Operation
from icewright.core.runs import JobState, Outcome
from icewright.core.table import Snapshot, SnapshotHold, TableMetadata, TableRef


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
    evaluate_at: datetime | None  # when it is looked at next, if it does not move before
    due_since: datetime | None
    held_by: str | None  # the job that waits for the table's turn, or runs
    policy: str | None  # fingerprint of the policy of the last evaluation
    dropped: bool
    paused: str | None
    error: str | None
    health: int | None


UNWATCHED = timedelta(days=1)  # a catalog that nobody was to ask for so long is configured nowhere any more
MANUAL = "manual"  # the kind of trigger of what a person asked for


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
    options: Mapping[str, Any]  # of a job asked for by hand: its own knobs, force
    holder: str  # the process that runs it; blank while it waits


@dataclass(frozen=True, slots=True)
class CatalogRow:
    """A catalog as detection knows it."""

    name: str
    detect_at: datetime
    detected_at: datetime | None  # when it last answered
    failures: int  # in a row
    error: str | None
    policy: str | None  # fingerprint of what its tables were last held against
    vacuumed: str | None  # the instant that vacuum has acted on as its cut-off

    def left(self, configured: Container[str], now: datetime) -> bool:
        """Whether nobody looks after it any more: it is not configured here, and nobody was to ask it for a day."""
        return self.name not in configured and now - self.detect_at >= UNWATCHED


@dataclass(frozen=True, slots=True)
class ProcessRow:
    """A service or a worker."""

    holder: str
    kind: str
    started: datetime
    heartbeat: datetime
    slots: int
    details: Mapping[str, Any]  # what its pools and loops say


class LeaseStatus(enum.Enum):
    """What became of a lease that was to be renewed."""

    HELD = enum.auto()
    CANCELLED = enum.auto()  # held, but somebody asked the job to stop
    LOST = enum.auto()


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
class SnapshotPin:
    """A snapshot that somebody holds, as the store has it."""

    reader: str  # or the job whose rewrite began on the snapshot
    snapshot_id: int
    pinned_at: datetime
    until: datetime
    author: str

    def hold(self) -> SnapshotHold:
        """Return the same for the rules of retention."""
        return SnapshotHold(self.snapshot_id, self.reader, self.until, self.pinned_at)


class LedgerState:
    """States of a deletion in the ledger."""

    PLANNED = "planned"
    FOUND = "found"  # by a scan that must be confirmed, or that only reports
    DELETING = "deleting"  # an attempt has begun; after a crash nobody knows whether the file is there
    DELETED = "deleted"
    FAILED = "failed"  # it is tried again after `delete_after`
    KEPT = "kept"  # the proof before the deletion found it live, or somebody else's
    LEFT = "left"  # written by a rewrite that failed: removing orphans takes it once it is old enough
    UNDOING = "undoing"  # an undo of the job has begun
    UNDONE = "undone"  # a person took the job back
    GIVEN_UP = "given up"  # a person said that it need not be deleted


WAITING = (LedgerState.PLANNED, LedgerState.DELETING, LedgerState.FAILED)


@dataclass(frozen=True, slots=True)
class WaitingDeletions:
    """Files of one job, planned by one operation of it, that are still to be deleted."""

    job_id: str
    ref: TableRef
    operations: tuple[Operation, ...]  # more than one where an earlier release did not say which
    files: int
    bytes: int  # as far as they are known
    failed: int  # of the files: how many could not be deleted so far
    planned_at: datetime
    delete_after: datetime | None  # when the first of them is tried; None: at the next settling
    reason: str = ""  # why one of them is still there


@dataclass(frozen=True, slots=True)
class Removal:
    """What one commit of an expiry took out of a table's metadata."""

    job_id: str
    table_uuid: str
    metadata_location: str  # of the table before the commit
    at: datetime
    document: Mapping[str, Any]  # snapshots, refs and statistics as they stood there
    undone_at: datetime | None = None


FIRST_LOOK = 100  # snapshots of a table that is seen for the first time whose files are looked at
_SPELLING = Spelling()
_SKEW = timedelta(hours=1)  # by which the clocks of a table's writers may differ


def unseen_snapshots(metadata: TableMetadata, seen: datetime | None) -> Sequence[Snapshot]:
    """Return the snapshots whose files may lie in folders that are not known yet.

    Those that the table, its branches and its tags name, and those that came since the version that was last `seen`.
    """
    ids = {metadata.current_snapshot_id, *(ref.snapshot_id for ref in metadata.refs)}
    recent = {s.snapshot_id for s in metadata.snapshots[-FIRST_LOOK:]}
    if seen is not None:
        recent = {s.snapshot_id for s in metadata.snapshots if s.timestamp >= seen - _SKEW}
    return [s for s in metadata.snapshots if s.snapshot_id in ids | recent]


def beside(metadata_location: str) -> str:
    """The folder in which a table's metadata folder lies, which is its location unless its properties say otherwise."""
    folder, metadata, _ = metadata_location.rpartition("/metadata/")
    return folder if metadata else metadata_location.rpartition("/")[0]


@dataclass(frozen=True, slots=True)
class Registration:
    """A table as a catalog names it, or once named it, and where its files may lie."""

    ref: TableRef
    table_uuid: str
    metadata_location: str  # as last read
    places: tuple[str, ...]  # its location and write paths, former ones too
    folders: tuple[str, ...] = ()  # outside of these, in which live files of it lie or lay
    first_places: tuple[str, ...] = ()  # those of the places that it had when it was first seen
    seen: datetime | None = field(default=None, compare=False)  # when the version that was last read was made

    @classmethod
    def of(cls, metadata: TableMetadata, folders: Sequence[str]) -> Registration:
        """Return what is to be remembered of a table that has just been read."""
        places = (metadata.location, *metadata.write_paths)
        at = _SPELLING.place(metadata.metadata_location.rpartition("/")[0])
        if not any(at.may_lie_in(_SPELLING.place(place)) for place in places):  # a move has left it behind
            places = (*places, beside(metadata.metadata_location))
        once = tuple(dict.fromkeys(places))
        seen = metadata.last_updated
        return cls(metadata.ref, metadata.table_uuid, metadata.metadata_location, once, tuple(folders), seen=seen)

    @property
    def key(self) -> tuple[TableRef, str]:
        """By which the registrations of one table are told from all others."""
        return self.ref, self.table_uuid

    def after(self, known: Registration | None) -> Registration:
        """This reading of the table on top of what was known: places and folders only ever grow."""
        if known is None:
            return replace(self, first_places=self.places)
        places = tuple(dict.fromkeys((*known.places, *self.places)))
        folders = tuple(f for f in dict.fromkeys((*known.folders, *self.folders)) if f not in places)
        return replace(self, places=places, folders=folders, first_places=known.first_places)
