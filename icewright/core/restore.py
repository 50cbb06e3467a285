"""Restoring a table to an earlier state: which state a person means, and what comes of returning to it."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from icewright.core.ancestry import ancestors
from icewright.core.cadence import Cadence
from icewright.core.errors import UsageError
from icewright.core.recovery import LATE_COMMITS, PREFIX, points
from icewright.core.schemas import columns
from icewright.core.table import MAIN, RefKind, Snapshot, SnapshotRef, TableMetadata
from icewright.core.words import some
from icewright.core.writer_state import newest_states, stated_number

TAG_DAYS = 30  # how long the state before a restore has its tag
_SHOWN = 5
_ID_DIGITS = 19  # of the longest id of a snapshot


@dataclass(frozen=True, slots=True)
class TableHistory:
    """The past as a metadata file records it: when main came to which snapshot, as its log has it, and all schemas.

    By the clocks of writers a later commit may have an earlier time, or the same.
    """

    entries: tuple[tuple[datetime, int], ...]
    schemas: Mapping[int, Mapping[str, Any]]


@dataclass(frozen=True)
class RestorePlan:
    """The change that a restore makes: main leads to `target`, and `tag` to where main led before."""

    metadata: TableMetadata
    target: Snapshot
    head: Snapshot
    leaving: tuple[Snapshot, ...]  # commits that main has now and will not have, the newest first
    returning: tuple[Snapshot, ...]  # commits that main gets back, the newest first
    notes: tuple[str, ...]  # on columns that differ, and on streaming writers whose commits leave
    tag: SnapshotRef

    @property
    def already(self) -> bool:
        """Return whether the target is the current snapshot already."""
        return self.target.snapshot_id == self.head.snapshot_id

    @property
    def refs(self) -> tuple[SnapshotRef, ...]:
        """Return main as it will be, and the tag of the state before."""
        main = next((ref for ref in self.metadata.refs if ref.name == MAIN), SnapshotRef(MAIN, RefKind.BRANCH, 0))
        return replace(main, snapshot_id=self.target.snapshot_id), self.tag


def resolve(metadata: TableMetadata, history: TableHistory, text: str, now: datetime) -> Snapshot:
    """Return the snapshot that a text means: a snapshot id, a tag or branch, a recovery point, or a time.

    A name of a point, such as `hourly-2026-11-25T10`, means the state at that time, whether or not it has a tag of its
    own. A time without a zone is in UTC, and a tag that is called as another snapshot's id is found by its own id.
    Raises `UsageError` for a state that is not known.
    """
    refs = {ref.name: ref.snapshot_id for ref in metadata.refs}
    snapshot_id = int(text) if text.isdecimal() and len(text) <= _ID_DIGITS else None
    if snapshot_id not in metadata.by_id:
        snapshot_id = refs.get(text, refs.get(f"{PREFIX}-{text}", snapshot_id))
    if snapshot_id is None:
        moment = _moment(text)
        if moment is None:
            raise UsageError(
                f"{metadata.ref} has no snapshot, tag or branch {text!r}, and it is no time such as 2026-11-25T10:30 "
                f"and no point such as hourly-2026-11-25T10; {_known(metadata)}"
            )
        if moment > now:
            raise UsageError(f"{text} is not yet past")
        snapshot_id = state_at(metadata, history, moment, now)
        if snapshot_id is None:
            begins = (
                f", and its history begins at {min(history.entries)[0]:%Y-%m-%dT%H:%M:%SZ}" if history.entries else ""
            )
            raise UsageError(f"the state of {metadata.ref} at {text} is not known any more; {_known(metadata)}{begins}")
    if (snapshot := metadata.by_id.get(snapshot_id)) is None:
        raise UsageError(f"{metadata.ref} has no snapshot {snapshot_id} any more; {_known(metadata)}")
    return snapshot


def state_at(metadata: TableMetadata, history: TableHistory, moment: datetime, now: datetime) -> int | None:
    """Return the snapshot to which main led at a moment, by its log; further back, by the recovery points.

    As Iceberg reads it, the last entry of the log that is no younger counts, whatever the times before it are.
    A point that is followed by another of its kind was the state at each full hour, day, week or month until then.
    """
    logged = next((number for time, number in reversed(history.entries) if time <= moment), None)
    if logged is not None:
        return logged
    for cadence in Cadence:
        of_cadence = [p for p in points(metadata) if p.cadence is cadence]
        index = bisect_right(of_cadence, moment, key=lambda point: point.time)
        settled = moment <= now - LATE_COMMITS and cadence.start(moment) == moment
        if settled and index > 0 and (index < len(of_cadence) or of_cadence[index - 1].time == moment):
            return of_cadence[index - 1].snapshot_id
    return None


def plan_restore(metadata: TableMetadata, history: TableHistory, target: Snapshot, now: datetime) -> RestorePlan:
    """Return what returning to the target changes. Raises `UsageError` for a table without a current snapshot."""
    head = metadata.current_snapshot
    if head is None:
        raise UsageError(f"{metadata.ref} has no current snapshot: there is nothing to return from")
    now_in, then_in = (list(ancestors(metadata, each.snapshot_id)) for each in (head, target))
    leaving = tuple(_without(now_in, then_in))
    return RestorePlan(
        metadata,
        target,
        head,
        leaving=leaving,
        returning=tuple(_without(then_in, now_in)),
        notes=(
            *_schema_notes(metadata.schema, history.schemas.get(target.schema_id or 0)),
            *_writer_notes(now_in, leaving),
        ),
        tag=tag_before("restore", metadata, head, now),
    )


def tag_before(what: str, metadata: TableMetadata, head: Snapshot, now: datetime) -> SnapshotRef:
    """Return a tag of a free name that keeps the state before a restore or a repair for `TAG_DAYS` days.

    Its age counts from the head's time, and so for longer where a clock that ran ahead made the head: Iceberg's library
    loads no table with an age below zero.
    """
    age = timedelta(days=TAG_DAYS, seconds=max(0, (now - head.timestamp) // timedelta(seconds=1)))
    taken, name = {ref.name for ref in metadata.refs}, f"{PREFIX}-before-{what}-{now.astimezone(UTC):%Y-%m-%dT%H%M%S}"
    free = next(each for each in (name, *(f"{name}-{n}" for n in range(2, len(taken) + 2))) if each not in taken)
    return SnapshotRef(free, RefKind.TAG, head.snapshot_id, max_ref_age=age)


def total_rows(snapshot: Snapshot) -> int | None:
    """Return the rows in the snapshot's data files, deleted ones included; None when its writer did not count."""
    return stated_number(snapshot, "total-records")


def _moment(text: str) -> datetime | None:
    cadence, _, label = text.removeprefix(f"{PREFIX}-").partition("-")
    if cadence in set(Cadence):
        return Cadence(cadence).parse(label)
    try:
        moment = datetime.fromisoformat(text)
        return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
    except (ValueError, OverflowError):  # the latter for the first or last hours that there are, in another zone
        return None


def _known(metadata: TableMetadata) -> str:
    """Return a phrase that lists what a restore can return to."""
    names = [point.name for point in reversed(points(metadata))]
    return f"its recovery points are {some(names, _SHOWN)}" if names else "it has no recovery points"


def _without(line: Sequence[Snapshot], other: Iterable[Snapshot]) -> Iterator[Snapshot]:
    ids = {snapshot.snapshot_id for snapshot in other}
    return (snapshot for snapshot in line if snapshot.snapshot_id not in ids)


def _writer_notes(line: Iterable[Snapshot], leaving: Sequence[Snapshot]) -> Iterator[str]:
    """Yield a sentence on streaming writers that find an older state on main, when they start again, than their own."""
    if names := [state.writer for state in newest_states(line, ()) if state.snapshot in leaving]:
        yield (
            f"the last commit of {some(names, _SHOWN)} leaves main: stop the writer before, and start it from a state "
            "of its own that is as old as the restored one, or from none"
        )


def _schema_notes(now: Mapping[str, Any], then: Mapping[str, Any] | None) -> Iterator[str]:
    """Yield a sentence for each column that differs: a restore returns rows, and the schema stays as it is."""
    if then is None:
        return
    after, before = ({i: ".".join(path) for i, path, _ in columns(schema)} for schema in (now, then))
    for field_id in sorted(after.keys() | before.keys()):
        if field_id not in before:
            yield f"column {after[field_id]} was added since: it stays, and the restored rows have no value in it"
        elif field_id not in after:
            yield f"column {before[field_id]} was dropped since: it stays dropped"
        elif after[field_id] != before[field_id]:
            yield f"column {before[field_id]} was renamed since: it stays {after[field_id]}"
