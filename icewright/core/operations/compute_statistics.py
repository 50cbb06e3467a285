"""Statistics for query planners: distinct values of columns, and files and rows of partitions. Off by default."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime

from icewright.core.ancestry import newer_than
from icewright.core.cost import statistics_gb_hours
from icewright.core.effective import Knobs
from icewright.core.kernel import countable_columns, counting
from icewright.core.numbers import whole_number
from icewright.core.policy import (
    MEGABYTE,
    STATISTICS,
    STATISTICS_CHANGE,
    STATISTICS_COLUMNS,
    STATISTICS_READ,
    Operation,
)
from icewright.core.rewriting import TASK_MEMORY
from icewright.core.runs import LastRun
from icewright.core.steps import Blocked, ComputeStatistics, Due, NotDue, Verdict, Work
from icewright.core.table import Snapshot, TableFacts
from icewright.core.writer_state import stated_number

UNCHANGING = "replace"  # the operation of a snapshot that has the rows of its parent
ADDING = "append"  # of one that has these and new ones
_BENEFIT_MB = 50.0  # what better plans of joins spare readers, which nothing measures
_CHANGES = ("added-records", "deleted-records", "added-position-deletes", "added-equality-deletes")


def evaluate(facts: TableFacts, knobs: Knobs, last: LastRun | None, now: datetime) -> Verdict:  # noqa: ARG001
    """Return Due when the current snapshot has no statistics, and enough rows changed since those that there are."""
    metadata, kinds = facts.metadata, knobs[STATISTICS]
    current = metadata.current_snapshot
    if current is None:
        return NotDue("no current snapshot")
    columns = _columns(facts, knobs[STATISTICS_COLUMNS]) if kinds != "partitions" else ()
    if isinstance(columns, Blocked):
        return columns
    partitions = kinds != "columns" and not all(spec.is_unpartitioned for spec in metadata.specs)
    wanted = ((metadata.statistics, bool(columns)), (metadata.partition_statistics, partitions))
    if not any(want for _, want in wanted):
        return NotDue("there are neither columns nor partitions to count")
    newer: tuple[Snapshot, ...] | None = ()
    for files, want in wanted:
        found = newer_than(metadata, current.snapshot_id, {file.snapshot_id for file in files}) if want else (None, ())
        newer = None if found is None or newer is None else max(newer, found[1], key=len)
    if newer == ():
        return NotDue("the statistics are those of the current snapshot")
    changed = None if newer is None else _changed(newer)
    if changed is not None and 0 < changed < knobs[STATISTICS_CHANGE] * facts.records:
        share = f"{changed / facts.records:.1%} of the rows changed since the last statistics"
        return NotDue(f"{share}, fewer than compute_statistics.min_change")
    to_count, read = _to_read(facts, newer) if columns else (0, 0)
    if read > knobs[STATISTICS_READ] * 1024 * MEGABYTE:
        return Blocked(
            f"{read / MEGABYTE / 1024:.0f} GB would be read, more than compute_statistics.max_read_gb: raise it, name "
            "the columns that queries join and filter by in compute_statistics.columns, or call Spark's "
            "compute_table_stats"
        )
    counted = _counted(newer, read) if newer and counting(facts, knobs).columns else (0, 0)
    unread = (max(0, to_count - counted[0]), max(0, read - counted[1]))
    step = ComputeStatistics(current.snapshot_id, columns, partitions, knobs[TASK_MEMORY] * MEGABYTE)
    return Due(
        Work(Operation.COMPUTE_STATISTICS, (step,)),
        benefit=_BENEFIT_MB,
        cost=statistics_gb_hours(*unread, len(columns), facts.data_files if partitions else 0),
        why=_why(newer, changed),
    )


def _why(newer: tuple[Snapshot, ...] | None, changed: int | None) -> str:
    if newer is None:
        return "no snapshot of the table's history has statistics"
    if changed == 0:
        return "rewrites changed no row since the last statistics, which the current snapshot lacks"
    return "many rows changed since the last statistics" + (f": {changed}" if changed is not None else "")


def _columns(facts: TableFacts, named: str | None) -> tuple[str, ...] | Blocked:
    """Return the top-level columns to count, or why they cannot be."""
    simple = countable_columns(facts.metadata.schema)
    if named is None:
        return simple
    names = tuple(dict.fromkeys(name.strip() for name in named.split(",") if name.strip()))
    if unknown := set(names).difference(simple):
        listed = ", ".join(sorted(unknown))
        return Blocked(f"compute_statistics.columns names {listed}, which is no top-level column of a simple type")
    return names


def _changed(newer: Collection[Snapshot]) -> int | None:
    """Return how many rows the snapshots added and deleted at most; None where a summary does not say."""
    changing = [snapshot for snapshot in newer if snapshot.operation != UNCHANGING]
    counts = [whole_number(snapshot.summary.get(name, "0")) for snapshot in changing for name in _CHANGES]
    total = 0 if None in counts else sum(filter(None, counts))
    return total or (None if changing else 0)


def _to_read(facts: TableFacts, newer: tuple[Snapshot, ...] | None) -> tuple[int, int]:
    """Return the new files and their bytes where nothing was deleted since the last statistics, else those of all."""
    if newer is None or any(snapshot.operation not in (ADDING, UNCHANGING) for snapshot in newer):
        return facts.data_files, facts.data_bytes
    added = [snapshot for snapshot in newer if snapshot.operation == ADDING]
    return _sum(added, "added-data-files", facts.data_files), _sum(added, "added-files-size", facts.data_bytes)


def _counted(newer: Collection[Snapshot], read: int) -> tuple[int, int]:
    """Return the files, and their bytes, whose values merges have counted: those that mostly read new ones do so."""
    merges = [s for s in newer if s.operation == UNCHANGING and "deleted-data-files" in s.summary]
    counting_ones = [s for s in merges if _sum([s], "removed-files-size", 0) <= 2 * read]
    return _sum(counting_ones, "deleted-data-files", 0), _sum(counting_ones, "removed-files-size", 0)


def _sum(snapshots: Collection[Snapshot], name: str, otherwise: int) -> int:
    """Return the sum of a number over the summaries of snapshots; `otherwise` if one of them lacks the number."""
    numbers = [stated_number(snapshot, name) for snapshot in snapshots]
    return otherwise if None in numbers else sum(filter(None, numbers))
