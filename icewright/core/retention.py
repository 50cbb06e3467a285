"""Which snapshots and refs a policy removes: Iceberg's rules (core `RemoveSnapshots`), and who pins what stays."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import takewhile

from icewright.core.table import MAIN, RefKind, RetainedSnapshot, Snapshot, SnapshotHold, SnapshotRef, TableMetadata

_YOUNG = "in no branch or tag, but younger than the retention"


@dataclass(frozen=True, slots=True)
class Expiry:
    """What goes, and what stays though it is old."""

    snapshot_ids: tuple[int, ...]
    remove_refs: tuple[str, ...]
    pins: tuple[RetainedSnapshot, ...]
    next_expiry: datetime | None  # when time alone lets the next snapshot go

    @property
    def empty(self) -> bool:
        """Return whether there is nothing to commit."""
        return not self.snapshot_ids and not self.remove_refs


def plan_expiry(
    metadata: TableMetadata,
    *,
    now: datetime,
    older_than: datetime,
    retain_last: int,
    max_ref_age: timedelta | None = None,
    holds: Sequence[SnapshotHold] = (),
) -> Expiry:
    """Iceberg's retention rules, and what is held beside them.

    A branch keeps its head, its own or `retain_last` newest ancestors, and those younger than its own
    `max_snapshot_age` or `older_than`; walking stops at the first that is neither. A tag keeps its snapshot. A ref
    other than main goes when its head is older than its own `max_ref_age` or the given one. Snapshots that no
    ref leads to go when they are older than `older_than`. Of what is held until later than `now` nothing goes.
    """
    if metadata.straight and not holds and _main_alone(metadata):
        return _straight(metadata, now, older_than, retain_last)
    kept: dict[int, str] = {}
    goes_at: list[datetime] = []  # when those that are kept for their age alone may go
    removed = tuple(r.name for r in metadata.refs if _outlived(r, metadata, now, max_ref_age))
    refs = sorted((r for r in metadata.refs if r.name not in removed), key=lambda r: r.name != MAIN)

    def keep(snapshot_id: int, by: str, until: datetime | None = None) -> None:
        if snapshot_id not in kept:
            kept[snapshot_id] = by
            goes_at.extend(() if until is None else (until,))

    if metadata.current_snapshot_id is not None:
        keep(metadata.current_snapshot_id, "current snapshot")
    for ref in refs:
        keep(ref.snapshot_id, f"head of {ref.kind} {ref.name}")
    led_to = {ref.snapshot_id for ref in refs}
    for ref in (r for r in refs if r.kind is RefKind.BRANCH):
        lineage = list(ancestors(metadata, ref.snapshot_id))
        led_to.update(s.snapshot_id for s in lineage)
        goes_at += _keep_branch(ref, lineage, now, older_than, retain_last, kept)
    staged = _staged(metadata)
    for snapshot in metadata.snapshots:
        if snapshot.snapshot_id not in led_to and snapshot.timestamp >= older_than:
            later = _later(snapshot.timestamp, now - older_than)
            keep(snapshot.snapshot_id, staged.get(snapshot.snapshot_id, _YOUNG), later)
    for hold in holds:
        for snapshot_id in held_by(metadata, [hold], now):
            behind = "" if snapshot_id == hold.snapshot_id else ", which is behind it"
            keep(snapshot_id, f"{hold.by}{behind}", hold.until)
    expired = tuple(s.snapshot_id for s in metadata.snapshots if s.snapshot_id not in kept)
    waiting = set(staged.values())
    pins = tuple(
        RetainedSnapshot(s.snapshot_id, kept[s.snapshot_id])
        for s in metadata.snapshots
        if (s.timestamp < older_than or waiting) and s.snapshot_id in kept
        if s.timestamp < older_than or kept[s.snapshot_id] in waiting
    )
    return Expiry(expired, removed, pins, min(goes_at, default=None))


def _main_alone(metadata: TableMetadata) -> bool:
    led = [(ref.name, ref.kind, ref.snapshot_id) for ref in metadata.refs]
    return led == [(MAIN, RefKind.BRANCH, metadata.current_snapshot_id)]


def _straight(metadata: TableMetadata, now: datetime, older_than: datetime, retain_last: int) -> Expiry:
    """Return the same for main alone that leads to all snapshots, where only the oldest can go: most tables are so."""
    (main,), snapshots = metadata.refs, metadata.snapshots
    age = main.max_snapshot_age if main.max_snapshot_age is not None else now - older_than
    least = main.min_snapshots_to_keep if main.min_snapshots_to_keep is not None else retain_last
    newest = len(snapshots) - max(1, least)  # from here on the count keeps them
    young = bisect_left(snapshots, True, key=lambda s: now - s.timestamp <= age)  # from here on their age does
    gone = max(0, min(newest, young))
    names = {len(snapshots) - 1: "current snapshot"}
    count, by_age = f"one of the {least} newest of branch {MAIN}", f"younger than the retention of branch {MAIN}"
    old = takewhile(lambda n: snapshots[n].timestamp < older_than, range(gone, len(snapshots)))
    pins = tuple(
        RetainedSnapshot(snapshots[n].snapshot_id, names.get(n) or (count if n >= newest else by_age)) for n in old
    )
    until = _later(snapshots[young].timestamp, age) if young < newest else None
    return Expiry(tuple(s.snapshot_id for s in snapshots[:gone]), (), pins, until)


def _staged(metadata: TableMetadata) -> dict[int, str]:
    """Return snapshots that wait for their publication (write-audit-publish), with who keeps them."""
    ids = {s.snapshot_id: s.summary["wap.id"] for s in metadata.snapshots if "wap.id" in s.summary}
    published = {s.summary.get("published-wap-id") for s in metadata.snapshots} if ids else set()
    return {
        snapshot_id: f"staged as {wap_id}, not published yet, younger than the retention"
        for snapshot_id, wap_id in ids.items()
        if wap_id not in published
    }


def _keep_branch(
    ref: SnapshotRef,
    lineage: Sequence[Snapshot],
    now: datetime,
    older_than: datetime,
    retain_last: int,
    kept: dict[int, str],
) -> list[datetime]:
    """Keep what a branch keeps of its lineage, newest first; when the first of those kept for their age may go.

    Histories have thousands of snapshots, and are gone through at each evaluation: no text is made for each of them.
    """
    age = ref.max_snapshot_age if ref.max_snapshot_age is not None else now - older_than
    least = ref.min_snapshots_to_keep if ref.min_snapshots_to_keep is not None else retain_last
    newest = f"one of the {least} newest of branch {ref.name}"
    for snapshot in lineage[:least]:
        kept.setdefault(snapshot.snapshot_id, newest)
    young = [s for s in takewhile(lambda s: now - s.timestamp <= age, lineage[least:]) if s.snapshot_id not in kept]
    kept.update(dict.fromkeys((s.snapshot_id for s in young), f"younger than the retention of branch {ref.name}"))
    return [_later(min(s.timestamp for s in young), age)] if young else []


def held_by(metadata: TableMetadata, holds: Sequence[SnapshotHold], now: datetime) -> frozenset[int]:
    """Return the held snapshots and all their descendants.

    A reader that goes on from a snapshot walks back to it from a head, and so does a rewrite that looks for what was
    committed since: without any one in between they fail.
    """
    held = {h.snapshot_id for h in holds if h.until > now} & metadata.by_id.keys()
    for snapshot in sorted(metadata.snapshots, key=lambda s: (s.sequence_number, s.timestamp)) if held else ():
        if snapshot.parent_id in held:
            held.add(snapshot.snapshot_id)
    return frozenset(held)


def _later(moment: datetime, age: timedelta) -> datetime:
    """Just after the moment is older than the age; an endless age ends with the calendar."""
    try:
        return moment + age + timedelta(seconds=1)
    except OverflowError:
        return datetime.max.replace(tzinfo=moment.tzinfo)


def ancestors(metadata: TableMetadata, snapshot_id: int) -> Iterator[Snapshot]:
    """Yield the snapshot and its parents, newest first, as far as the metadata still has them."""
    by_id, seen = metadata.by_id, set[int]()
    found: int | None = snapshot_id
    while found is not None and found not in seen and (snapshot := by_id.get(found)) is not None:
        seen.add(found)
        yield snapshot
        found = snapshot.parent_id


def _outlived(ref: SnapshotRef, metadata: TableMetadata, now: datetime, default: timedelta | None) -> bool:
    if ref.name == MAIN:
        return False
    head = metadata.by_id.get(ref.snapshot_id)
    limit = ref.max_ref_age if ref.max_ref_age is not None else default
    return head is not None and limit is not None and now - head.timestamp > limit
