"""Readers of old snapshots that nobody pinned, as the scan reports of engines tell.

A query that reads a snapshot after newer ones have come travels in time, or goes on from where it began. It fails once
the snapshot has expired, and nothing but its reports tells of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from icewright.core.retention import held_snapshots
from icewright.core.table import Snapshot, SnapshotHold, TableMetadata

REMEMBERED = timedelta(days=14)  # a read counts for so long
_PLANNING = timedelta(hours=1)  # a query that began on the head may report so much later


@dataclass(frozen=True, slots=True)
class UnpinnedRead:
    """The last read of a snapshot that was not a head any more, and that neither a ref nor a hold keeps."""

    snapshot: Snapshot
    at: datetime

    def __str__(self) -> str:
        """Return the read in words."""
        return f"a query read it on {self.at:%Y-%m-%d}, when it was not the newest any more, and nobody pinned it"


def unpinned_reads(
    metadata: TableMetadata, reads: Mapping[int, datetime], holds: Sequence[SnapshotHold], now: datetime
) -> list[UnpinnedRead]:
    """Return the reads that expiry may take the snapshot from, the oldest snapshot first."""
    recent = {id_: at for id_, at in reads.items() if id_ in metadata.by_id and now - at < REMEMBERED}
    if not recent:
        return []
    kept = {ref.snapshot_id for ref in metadata.refs} | held_snapshots(metadata, holds, now)
    followed: dict[int | None, datetime] = {}
    for snapshot in metadata.snapshots:
        followed[snapshot.parent_id] = min(snapshot.timestamp, followed.get(snapshot.parent_id, snapshot.timestamp))
    old = (metadata.by_id[id_] for id_ in recent if id_ not in kept)
    return [
        UnpinnedRead(snapshot, recent[snapshot.snapshot_id])
        for snapshot in sorted(old, key=lambda s: (s.timestamp, s.snapshot_id))
        if recent[snapshot.snapshot_id] - followed.get(snapshot.snapshot_id, snapshot.timestamp) > _PLANNING
    ]
