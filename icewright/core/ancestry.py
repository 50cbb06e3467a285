"""The line of snapshots that a snapshot comes from."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from icewright.core.table import Snapshot, TableMetadata


def ancestors(metadata: TableMetadata, snapshot_id: int) -> Iterator[Snapshot]:
    """Yield the snapshot and its parents, newest first, as far as the metadata still has them."""
    by_id, seen = metadata.by_id, set[int]()
    next_id: int | None = snapshot_id
    while next_id is not None and next_id not in seen and (snapshot := by_id.get(next_id)) is not None:
        seen.add(next_id)
        yield snapshot
        next_id = snapshot.parent_id


def newer_than(
    metadata: TableMetadata, snapshot_id: int, known: Collection[int]
) -> tuple[Snapshot, tuple[Snapshot, ...]] | None:
    """Return the nearest ancestor among the known ones, and the snapshots that came after it, newest first.

    A snapshot is the nearest to itself. None when no known ancestor is left in the metadata.
    """
    newer: list[Snapshot] = []
    for snapshot in ancestors(metadata, snapshot_id):
        if snapshot.snapshot_id in known:
            return snapshot, tuple(newer)
        newer.append(snapshot)
    return None
