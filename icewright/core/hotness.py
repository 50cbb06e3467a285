"""Hot partitions, which a writer is writing to: a rewrite may conflict with the writer, and is obsolete soon."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import accumulate, islice

from icewright.core.effective import Knobs
from icewright.core.rewriting import HOT_MAX_HOURS, HOT_MINUTES, HOT_PARTITIONS
from icewright.core.table import PartitionFacts, Snapshot, TableFacts, TableMetadata
from icewright.core.writer_state import summary_number

MIN_WRITES_FOR_INTERVAL = 3  # writes without which the interval between them is not known
_QUIET_INTERVALS = 2  # without a write, after which the writer is taken to have moved on
_MAX_QUIET_FACTOR = 4  # times `hot_minutes`: a longer silence is no writing, however regular
_RECENT_COMMITS = 20  # the newest of writers, which are examined
_RATE_KNOWN_AFTER = timedelta(hours=4)
_ENDLESS = 3.6e9  # seconds: a century
_DELETES_ROWS = "row-level delete"


def hot_until(partition: PartitionFacts, metadata: TableMetadata, knobs: Knobs) -> datetime | None:
    """Return when the partition will be cold if nobody writes to it any more; None if it is never hot.

    It is hot for `hot_minutes` after a write, or for twice the usual interval of its writes, up to four times as long.
    A partition that has been written for longer than `hot_max_hours`, or that is the whole table, would stay hot: it
    counts as cold.
    """
    if knobs[HOT_PARTITIONS] == "include" or partition.last_write is None:
        return None
    if is_whole_table(partition, metadata):
        return None
    first = partition.first_write or partition.last_write
    written_for = partition.last_write - first
    if written_for > timedelta(hours=knobs[HOT_MAX_HOURS]):
        return None
    return partition.last_write + quiet_time(partition, knobs)


def is_whole_table(partition: PartitionFacts, metadata: TableMetadata) -> bool:
    """Return whether the partition is the whole table: its spec has no field."""
    return metadata.spec(partition.spec_id).is_unpartitioned


def last_written(metadata: TableMetadata) -> datetime | None:
    """Return when a writer, not a rewrite, committed last; None if no snapshot tells."""
    return next((s.timestamp for s in reversed(metadata.snapshots) if s.operation != "replace"), None)


def history_span(metadata: TableMetadata) -> timedelta:
    """Return the time between the first and the last commit that the snapshots tell of."""
    if not metadata.snapshots:
        return timedelta(0)
    return metadata.snapshots[-1].timestamp - metadata.snapshots[0].timestamp


def quiet_time(partition: PartitionFacts, knobs: Knobs) -> timedelta:
    """Return the time without a write after which the partition is cold."""
    quiet = timedelta(minutes=knobs[HOT_MINUTES])
    if partition.writes < MIN_WRITES_FOR_INTERVAL or partition.first_write is None or partition.last_write is None:
        return quiet
    interval = (partition.last_write - partition.first_write) / (partition.writes - 1)
    return max(quiet, min(_QUIET_INTERVALS * interval, _MAX_QUIET_FACTOR * quiet))


def is_append_stream(metadata: TableMetadata) -> bool:
    """Return whether writers only append, as far as a history of some length tells, or take away whole files.

    A rewrite of settled files does not conflict with such writers. Deletes of rows and overwrites may name the very
    files that are rewritten: of the two commits one would be lost.
    """
    if not is_rate_known(metadata):
        return False
    operations = [
        _DELETES_ROWS if "added-delete-files" in s.summary else s.operation for s in _recent_commits(metadata)
    ]
    return "append" in operations and all(operation in ("append", "delete") for operation in operations)


def is_rate_known(metadata: TableMetadata) -> bool:
    """Return whether the history tells how fast files arrive: it spans some hours or has enough commits."""
    return history_span(metadata) >= _RATE_KNOWN_AFTER or len(_recent_commits(metadata)) == _RECENT_COMMITS


def replaced_after(metadata: TableMetadata) -> timedelta | None:
    """Return after how long writers have taken away as much as the table has, at their rate; None if they do not.

    So long does a file last on average that a rewrite leaves. PyIceberg overwrites by a delete and an append.
    """
    shares = (_share_removed(s) for s in metadata.snapshots[1:] if s.operation in ("overwrite", "delete"))
    replaced = sum(shares) if is_rate_known(metadata) else 0.0
    seconds = history_span(metadata).total_seconds()
    return timedelta(seconds=min(seconds / replaced, _ENDLESS)) if replaced else None


@dataclass(frozen=True, slots=True)
class Replacement:
    """The rate at which writers replace the rows of a table."""

    table: timedelta  # in which they take away as much as all of it
    since: Mapping[datetime, timedelta]  # by a partition's last write: as much as it and what was written since


def replacement(facts: TableFacts) -> Replacement | None:
    """Return how fast writers take away what a table has; None if they do not."""
    if (table := replaced_after(facts.metadata)) is None:
        return None
    sizes: Counter[datetime] = Counter()
    for partition in facts.partitions:
        if partition.last_write is not None:
            sizes[partition.last_write] += partition.data_bytes
    newest_first = sorted(sizes, reverse=True)
    shares = (sum_ / max(1, facts.data_bytes) for sum_ in accumulate(sizes[at] for at in newest_first))
    return Replacement(table, {at: table * share for at, share in zip(newest_first, shares, strict=True)})


def _share_removed(snapshot: Snapshot) -> float:
    """Return the share of the table's bytes before the snapshot that it took away."""
    added, removed, after = (summary_number(snapshot, f"{key}-files-size") for key in ("added", "removed", "total"))
    return removed / max(1, removed, after - added + removed)


def _recent_commits(metadata: TableMetadata) -> Sequence[Snapshot]:
    """Return the newest commits of writers, the newest first."""
    writers = (s for s in reversed(metadata.snapshots) if s.operation != "replace")
    return tuple(islice(writers, _RECENT_COMMITS))
