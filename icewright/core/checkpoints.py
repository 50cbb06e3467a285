"""Which snapshots a Spark stream goes on from, as its checkpoint says.

Iceberg keeps a source's first offset in `sources/N/offsets/0`. Spark logs the offsets of each batch in `offsets/BATCH`,
a line for each source, and names the batches that are done in `commits/BATCH`. A stream that starts again reads from
the offsets of the newest batch that is done. With `Trigger.AvailableNow` Iceberg plans each run from the first offset,
however far the stream came.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from icewright.core.ancestry import ancestors
from icewright.core.errors import UsageError
from icewright.core.table import TableMetadata

_VERSION = "v1"
_BEFORE_ALL = -1  # the snapshot of an offset that was taken while the table was empty
_FAILED = "such a stream needs a new checkpoint"


@dataclass(frozen=True, slots=True)
class SourceOffsets:
    """The snapshots at which one source of a stream began, and at which it goes on."""

    first: int
    reached: int

    def needed(self, *, available_now: bool) -> frozenset[int]:
        """Return the snapshots that the next run looks up."""
        return frozenset((self.reached, self.first) if available_now and self.first != _BEFORE_ALL else (self.reached,))


def offset_snapshot(text: str) -> int | None:
    """Return the snapshot of Iceberg's streaming offset; None when the text is the offset of another source."""
    try:
        offset = json.loads(text)
    except ValueError:
        return None
    snapshot = offset.get("snapshot_id") if isinstance(offset, Mapping) and "scan_all_files" in offset else None
    return snapshot if isinstance(snapshot, int) else None


def source_offsets(first: Mapping[int, str], path: str, batch: str | None) -> list[SourceOffsets]:
    """Return the offsets of the Iceberg sources from their first offsets and the log of the newest batch that is done.

    `path` is that of the log, for people. Raises `UsageError` when the log has a version that nobody here knows.
    """
    version, *rest = batch.split("\n") if batch else (_VERSION,)  # sources may have other ends of lines in theirs
    reached = rest[1:]  # after the metadata of the batch; none where the log is cut off
    if version != _VERSION:
        raise UsageError(f"{path} has the version {version[:20]!r} and not {_VERSION!r}: pin the snapshot by its id")
    sources = []
    for number, text in first.items():
        begun = offset_snapshot(text)
        if begun is not None:
            gone_on = offset_snapshot(reached[number]) if number < len(reached) else None
            sources.append(SourceOffsets(begun, begun if gone_on is None else gone_on))
    return sources


def snapshot_to_pin(metadata: TableMetadata, sources: Iterable[SourceOffsets], *, available_now: bool) -> int:
    """Return the snapshot to pin for a stream: the oldest that it needs, from which all the others come.

    Raises `UsageError` when the table has not what the stream needs.
    """
    own = [source for source in sources if source.reached == _BEFORE_ALL or source.reached in metadata.by_id]
    if not own:
        names = ", ".join(sorted(str(source.reached) for source in sources)) or "of no Iceberg table"
        raise UsageError(
            f"{metadata.ref} has no snapshot that the stream goes on from ({names}): it has expired, and {_FAILED}, or "
            "the checkpoint is of another table"
        )
    needed = {snapshot for source in own for snapshot in source.needed(available_now=available_now)}
    if _BEFORE_ALL in needed:  # such a run begins with the oldest snapshot that the table has
        needed = needed - {_BEFORE_ALL} | set(_ids(metadata, metadata.current_snapshot_id)[-1:])
    if gone := sorted(needed - metadata.by_id.keys()):
        raise UsageError(
            f"{metadata.ref} has no snapshot {gone[0]} any more, from which Trigger.AvailableNow plans each run: "
            f"{_FAILED}; for another trigger add --trigger processing-time"
        )
    if not needed:
        raise UsageError(f"{metadata.ref} has no snapshot yet: there is nothing to pin")
    return _oldest(metadata, sorted(needed))


def _oldest(metadata: TableMetadata, needed: Sequence[int]) -> int:
    """Return the snapshot from which all the others come. Raises `UsageError` when there is none."""
    for snapshot in needed:
        if all(snapshot in _ids(metadata, other) for other in needed):
            return snapshot
    names = ", ".join(map(str, needed))
    raise UsageError(f"{metadata.ref}: of the snapshots {names} none is before all others: pin each by its id")


def _ids(metadata: TableMetadata, snapshot_id: int | None) -> list[int]:
    """Return the snapshot and its ancestors, newest first."""
    return [] if snapshot_id is None else [snapshot.snapshot_id for snapshot in ancestors(metadata, snapshot_id)]
