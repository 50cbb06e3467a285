"""The line of snapshots that a snapshot comes from."""

from __future__ import annotations

from collections.abc import Iterator

from icewright.core.table import Snapshot, TableMetadata


def ancestors(metadata: TableMetadata, snapshot_id: int) -> Iterator[Snapshot]:
    """Yield the snapshot and its parents, newest first, as far as the metadata still has them."""
    by_id, seen = metadata.by_id, set[int]()
    next_id: int | None = snapshot_id
    while next_id is not None and next_id not in seen and (snapshot := by_id.get(next_id)) is not None:
        seen.add(next_id)
        yield snapshot
        next_id = snapshot.parent_id
