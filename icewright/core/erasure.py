"""Find the places of rows that must be erased, and the steps until they are gone everywhere."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from icewright.core.policy import Operation
from icewright.core.table import TableRef


class RowPlace(StrEnum):
    """The owner of a file with matching rows, or with their keys."""

    LIVE = "live"  # main shows the rows
    MASKED = "masked"  # main has the file, and deletes hide the rows
    DELETE_KEYS = "delete_keys"  # an equality delete file names the rows by their keys
    BOUNDS = "bounds"  # a manifest of main keeps their values as bounds of a file that is gone
    BRANCH = "branch"
    TAG = "tag"
    RECOVERY_POINT = "recovery_point"
    SNAPSHOT = "snapshot"  # one that is the head of no branch, and that no tag names
    WAITING_DELETION = "waiting_deletion"  # a job deletes the file later, or an undo restores it
    ORPHAN = "orphan"  # nothing names the file


# what removes the rows from a place by itself; elsewhere a person decides
REMOVED_BY: Mapping[RowPlace, Operation] = {
    RowPlace.MASKED: Operation.COMPACT,
    RowPlace.DELETE_KEYS: Operation.COMPACT,
    RowPlace.BOUNDS: Operation.REWRITE_MANIFESTS,
    RowPlace.SNAPSHOT: Operation.EXPIRE_SNAPSHOTS,
    RowPlace.ORPHAN: Operation.REMOVE_ORPHANS,
}
# where a writer, a reader or a property may keep what is old enough
_KEPT_LONGER = (RowPlace.SNAPSHOT, RowPlace.ORPHAN)
# The settings of an erasure's runs: those by which rows are gone soonest, and no guardrail is passed.
SETTINGS: Mapping[str, str] = {"preset": "compliance", "expire_snapshots.retention_hours": "1"}
# what no search of a table's files can see, as its certificate says
NOT_SEARCHED = (
    "other tables, and copies of this one",
    "versions and backups of the object store",
    "names of files and folders, and partitions that summaries of snapshots name",
    "statistics in Puffin files, and bounds that writers cut short",
    "other spellings of a text, such as capital letters or decomposed accents",
)
SNAPSHOT_AGE, ORPHAN_AGE = timedelta(hours=1), timedelta(hours=24)  # by these settings


@dataclass(frozen=True, slots=True)
class FoundRows:
    """Matching rows in one file, and who keeps the file."""

    path: str
    file: str  # what the file is: data, equality deletes, manifest
    rows: int  # that match, deleted ones included; of a manifest, the entries whose bounds match
    live_rows: int  # of these that main shows
    places: tuple[RowPlace, ...]
    keepers: tuple[str, ...]  # refs, snapshots and jobs by name
    until: datetime | None = None  # when the file may go, where age alone keeps it
    retained_by: str = ""  # what keeps it beyond its age


@dataclass(frozen=True, slots=True)
class SearchedFile:
    """A file that was read from its first row to its last."""

    path: str
    bytes: int
    rows: int


@dataclass(frozen=True, slots=True)
class RowSearchReport:
    """Every file that may hold rows of a table, read for those that match a predicate."""

    ref: TableRef
    table_uuid: str
    metadata_location: str
    predicate: str
    columns: Mapping[str, int]  # field ids of the columns that the predicate names
    earlier_columns: tuple[Mapping[str, int], ...]  # the same where dropped columns had these names
    roots: tuple[str, ...]  # folders that were listed
    searched: tuple[SearchedFile, ...]
    found: tuple[FoundRows, ...]
    unread: Mapping[str, str]  # why a file was not read, by path

    @property
    def is_clean(self) -> bool:
        """Return whether every file was read and none holds a matching row."""
        return not self.found and not self.unread


@dataclass(frozen=True, slots=True)
class ErasureStep:
    """The way in which the matching rows of one place go: an operation, a person or time."""

    place: RowPlace
    files: int
    rows: int
    operation: Operation | None  # None: a person, or time
    remedy: str
    until: datetime | None  # when the last of the files may go, where age alone keeps them

    @staticmethod
    def of(document: Mapping[str, Any]) -> ErasureStep:
        """Return a step by its document, in which a time may be text."""
        operation, until = document["operation"], document["until"]
        return ErasureStep(
            RowPlace(document["place"]),
            document["files"],
            document["rows"],
            None if operation is None else Operation(operation),
            document["remedy"],
            datetime.fromisoformat(until) if isinstance(until, str) else until,
        )

    def is_late(self, by: datetime) -> bool:
        """Return whether the rows stay after this time unless a person does something."""
        if self.operation is None and self.place is not RowPlace.WAITING_DELETION:
            return True
        return self.until is not None and self.until > by


def erasure_steps(report: RowSearchReport) -> tuple[ErasureStep, ...]:
    """Return what has to happen, place by place: first what a person does, as the rest depends on it."""
    return tuple(_steps(report))


def _steps(report: RowSearchReport) -> Iterator[ErasureStep]:
    for place in RowPlace:
        found = [file for file in report.found if place in file.places]
        retained = [file for file in found if file.retained_by] if place in _KEPT_LONGER else []
        if in_place := [file for file in found if file not in retained]:
            live = place is RowPlace.LIVE
            rows = sum(file.live_rows if live else file.rows for file in in_place)
            operation = REMOVED_BY.get(place)
            until = max((file.until for file in in_place if file.until is not None), default=None)
            yield ErasureStep(place, len(in_place), rows, operation, _remedy(report, place, in_place), until)
        if retained:
            keepers = "; ".join(sorted({file.retained_by for file in retained}))
            remedy = f"end what keeps them, or wait for its end: {keepers}"
            yield ErasureStep(place, len(retained), sum(file.rows for file in retained), None, remedy, None)


def _remedy(report: RowSearchReport, place: RowPlace, in_place: Sequence[FoundRows]) -> str:
    keepers = ", ".join(sorted({name for file in in_place for name in file.keepers if _keeps(place, name)}))
    match place:
        case RowPlace.LIVE:
            return f"delete them from the table where {report.predicate}"
        case RowPlace.BRANCH:
            return f"delete the rows there, or drop: {keepers}"
        case RowPlace.TAG | RowPlace.RECOVERY_POINT:
            return f"drop: {keepers}"
        case RowPlace.WAITING_DELETION:
            return f"wait until the files are deleted: {keepers}"
        case RowPlace.MASKED | RowPlace.DELETE_KEYS | RowPlace.BOUNDS | RowPlace.SNAPSHOT | RowPlace.ORPHAN:
            return f"run {REMOVED_BY[place]}"


def _keeps(place: RowPlace, name: str) -> bool:
    kind = {RowPlace.BRANCH: "branch", RowPlace.WAITING_DELETION: "job"}.get(place, "tag")
    return name.startswith(kind)
