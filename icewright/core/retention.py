"""Which snapshots and refs a policy removes: Iceberg's rules (core `RemoveSnapshots`), and who pins what stays."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta

from icewright.core.table import MAIN, Ref, RefKind, Snapshot, TableMetadata


@dataclass(frozen=True, slots=True)
class Pin:
    """A snapshot older than the cutoff that stays, and who keeps it."""

    snapshot_id: int
    by: str


@dataclass(frozen=True, slots=True)
class Expiry:
    """What goes, and what stays though it is old."""

    snapshot_ids: tuple[int, ...]
    remove_refs: tuple[str, ...]
    pins: tuple[Pin, ...]
    next_expiry: datetime | None  # when time alone lets the next snapshot go

    @property
    def empty(self) -> bool:
        """Whether there is nothing to commit."""
        return not self.snapshot_ids and not self.remove_refs


def plan_expiry(
    metadata: TableMetadata,
    *,
    now: datetime,
    older_than: datetime,
    retain_last: int,
    max_ref_age: timedelta | None = None,
) -> Expiry:
    """Iceberg's retention rules.

    A branch keeps its head, its own or `retain_last` newest ancestors, and those younger than its own
    `max_snapshot_age` or `older_than`; walking stops at the first that is neither. A tag keeps its snapshot. A ref
    other than main goes when its head is older than its own `max_ref_age` or the given one. Snapshots that no
    ref leads to go when they are older than `older_than`.
    """
    kept: dict[int, str] = {}
    goes_at: list[datetime] = []  # when those that are kept for their age alone may go
    led_to: set[int] = set()
    removed = tuple(r.name for r in metadata.refs if _outlived(r, metadata, now, max_ref_age))
    refs = [r for r in metadata.refs if r.name not in removed]
    if metadata.current_snapshot_id is not None:
        kept[metadata.current_snapshot_id] = "current snapshot"
    for ref in sorted(refs, key=lambda r: r.name != MAIN):
        kept.setdefault(ref.snapshot_id, f"head of {ref.kind} {ref.name}")
        led_to.add(ref.snapshot_id)
    for ref in sorted((r for r in refs if r.kind is RefKind.BRANCH), key=lambda r: r.name != MAIN):
        age = ref.max_snapshot_age if ref.max_snapshot_age is not None else now - older_than
        least = ref.min_snapshots_to_keep if ref.min_snapshots_to_keep is not None else retain_last
        lineage = list(ancestors(metadata, ref.snapshot_id))
        led_to.update(s.snapshot_id for s in lineage)
        for number, snapshot in enumerate(lineage):
            if number < least:
                kept.setdefault(snapshot.snapshot_id, f"one of the {least} newest of branch {ref.name}")
            elif now - snapshot.timestamp <= age:
                if snapshot.snapshot_id not in kept:
                    goes_at.append(_later(snapshot.timestamp, age))
                kept.setdefault(snapshot.snapshot_id, f"younger than the retention of branch {ref.name}")
            else:
                break
    for snapshot in metadata.snapshots:
        if snapshot.snapshot_id not in led_to and snapshot.timestamp >= older_than:
            goes_at.append(_later(snapshot.timestamp, now - older_than))
            kept.setdefault(snapshot.snapshot_id, "in no branch or tag, but younger than the retention")
    expired = tuple(s.snapshot_id for s in metadata.snapshots if s.snapshot_id not in kept)
    pins = tuple(
        Pin(s.snapshot_id, kept[s.snapshot_id])
        for s in metadata.snapshots
        if s.snapshot_id in kept and s.timestamp < older_than
    )
    return Expiry(expired, removed, pins, min(goes_at, default=None))


def _later(moment: datetime, age: timedelta) -> datetime:
    """Just after the moment is older than the age; an endless age ends with the calendar."""
    try:
        return moment + age + timedelta(seconds=1)
    except OverflowError:
        return datetime.max.replace(tzinfo=moment.tzinfo)


def ancestors(metadata: TableMetadata, snapshot_id: int) -> Iterator[Snapshot]:
    """The snapshot and its parents, newest first, as far as the metadata still has them."""
    seen: set[int] = set()
    snapshot = metadata.by_id.get(snapshot_id)
    while snapshot is not None and snapshot.snapshot_id not in seen:
        seen.add(snapshot.snapshot_id)
        yield snapshot
        snapshot = metadata.by_id.get(snapshot.parent_id) if snapshot.parent_id is not None else None


def _outlived(ref: Ref, metadata: TableMetadata, now: datetime, default: timedelta | None) -> bool:
    if ref.name == MAIN:
        return False
    head = metadata.by_id.get(ref.snapshot_id)
    limit = ref.max_ref_age if ref.max_ref_age is not None else default
    return head is not None and limit is not None and now - head.timestamp > limit
