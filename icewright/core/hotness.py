"""Partitions that somebody is writing to: rewriting them would fight the writer, and be for nothing soon."""

from __future__ import annotations

from datetime import datetime, timedelta

from icewright.core.effective import Knobs
from icewright.core.policy import HOT_MAX_HOURS, HOT_MINUTES, HOT_PARTITIONS
from icewright.core.table import PartitionFacts, TableMetadata

_A_RHYTHM = 3  # commits that make one
_BEATS = 2  # of silence, after which the writer is taken to have gone on
_SLOWEST = 4  # times `hot_minutes`: a silence that is longer is no writing, however regular


def hot_until(partition: PartitionFacts, metadata: TableMetadata, knobs: Knobs) -> datetime | None:
    """When the partition will have cooled, if nobody writes to it any more; None when it is never hot.

    It is hot for `hot_minutes` after a write, or for two beats of its own rhythm, up to four times as long. A partition
    that has been written for longer than `hot_max_hours`, or that is the whole table, would never cool: it is not hot.
    """
    if knobs[HOT_PARTITIONS] == "include" or partition.last_write is None:
        return None
    if all(field.transform == "void" for field in metadata.spec(partition.spec_id).fields):
        return None
    first = partition.first_write or partition.last_write
    written_for = partition.last_write - first
    if written_for > timedelta(hours=knobs[HOT_MAX_HOURS]):
        return None
    quiet = timedelta(minutes=knobs[HOT_MINUTES])
    if partition.writes >= _A_RHYTHM:
        quiet = max(quiet, min(_BEATS * written_for / (partition.writes - 1), _SLOWEST * quiet))
    return partition.last_write + quiet
