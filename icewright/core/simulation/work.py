"""The effect and the duration of steps on a simulated table."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import assert_never

from icewright.core.cost import (
    REWRITES,
    RUNS_LEARNED,
    SERVICE_MEMORY_GB,
    gb_hours,
    predicted,
    service_cost,
    spark_gb_hours,
)
from icewright.core.effective import Knobs
from icewright.core.partitions import PartitionKey
from icewright.core.policy import Operation
from icewright.core.runs import LastRun, OperationState
from icewright.core.simulation.partition import Chosen, SimulatedPartition
from icewright.core.simulation.table import FilesDeleted, SimulatedTable
from icewright.core.steps import (
    CheckFiles,
    ComputeStatistics,
    ConvertEqualityDeletes,
    Due,
    ExpireRows,
    ExpireSnapshots,
    Kernel,
    RemoveOrphans,
    RewriteDataFiles,
    RewriteManifests,
    RewritePositionDeletes,
    Step,
    TagRecoveryPoints,
)
from icewright.core.table import StatisticsFile

# Seconds of Spark's procedures that find nothing to do, on two cores, as `benchmarks/` measures them with everything
# warm: the four together take a second a table.
IDLE_SECONDS = {
    Operation.COMPACT: 0.03,
    Operation.REWRITE_MANIFESTS: 0.02,
    Operation.EXPIRE_SNAPSHOTS: 0.4,
    Operation.REMOVE_ORPHANS: 0.55,
}
_LISTED_PER_SECOND = 20_000  # files that remove_orphan_files compares
_DELETE_FILE_BYTES = 64 * 1024
_Chosen = list[tuple[SimulatedPartition, Chosen]]


def spark_manifests(manifests: int) -> float:
    """Return the seconds in which Spark merges manifests: 1,000 take 3 s."""
    return 0.5 + 0.0025 * manifests


def spark_expiry(snapshots: int) -> float:
    """Return the seconds in which Spark expires snapshots: 190 take 3 s, 1,950 take 14 s."""
    return 1 + 0.007 * snapshots


def spark_orphans(files: int) -> float:
    """Return the seconds in which Spark compares stored with reachable files: 100,000 files take 6 s."""
    return IDLE_SECONDS[Operation.REMOVE_ORPHANS] + files / _LISTED_PER_SECOND


@dataclass(frozen=True, slots=True)
class Done:
    """The result of a finished step."""

    metrics: Mapping[str, float] = field(default_factory=dict)
    deleted: FilesDeleted = field(default_factory=FilesDeleted)
    mended: tuple[PartitionKey, ...] = ()  # partitions rewritten for their sizes


@dataclass(frozen=True, slots=True)
class Begun:
    """A step in progress: its duration, its cost, and the function that finishes it. `idle`: there is nothing to do."""

    seconds: float
    gb_hours: float
    end: Callable[[datetime], Done]
    idle: bool = False


@dataclass(frozen=True, slots=True)
class SimulatedRun:
    """A finished operation: its verdict, the results of its steps, and their cost."""

    due: Due
    done: Sequence[Done]
    cost: float
    ended: datetime


def begin(table: SimulatedTable, step: Step, now: datetime) -> Begun:
    """Begin a step on the files that are there now, whatever writers add meanwhile."""
    match step:
        case RewriteDataFiles():
            chosen = _chosen(table, step, now)
            files, size = sum(c.files for _, c in chosen), sum(c.bytes for _, c in chosen)
            seconds = REWRITES[step.kernel].seconds(files, size)
            return _on_spark(seconds, partial(_rewrite_files, table, step, chosen), idle=not chosen)
        case RewritePositionDeletes():
            seconds = REWRITES[Kernel.SPARK].seconds(step.files, step.files * _DELETE_FILE_BYTES)
            return _on_spark(seconds, partial(_rewrite_deletes, table, step))
        case ConvertEqualityDeletes():  # simulated writers make none
            return _in_service(step.files, lambda _: Done({}))
        case RewriteManifests():
            end = partial(_rewrite_manifests, table, step)
            if step.by_spark:
                return _on_spark(spark_manifests(table.manifests), end)
            return _in_service(table.files + table.manifests, end)
        case ExpireSnapshots():
            end = partial(_expire, table, step)
            count = len(step.snapshot_ids)
            return _on_spark(spark_expiry(count), end) if step.by_spark else _in_service(10 * count, end)
        case ComputeStatistics():
            return _in_service(table.files, partial(_compute_statistics, table, step))
        case CheckFiles():
            done = Done(
                {
                    "level": step.level.depth,
                    "sequence_number": table.snapshots[-1].sequence_number,
                    "full_hours": step.full_hours,
                }
            )
            return _in_service(table.files + table.manifests, lambda _: done)
        case TagRecoveryPoints():
            return _in_service(1, partial(_tag, table, step))
        case RemoveOrphans():
            files = table.files + table.deletes + table.manifests + table.delete_manifests
            return _in_service(2 * files, partial(_remove_orphans, table, step, files))
        case ExpireRows():
            partitions = [table.partitions[key] for key in step.partitions if key in table.partitions]
            seconds = REWRITES[Kernel.SPARK].seconds(0, 0)  # from the metadata alone
            return _on_spark(seconds, partial(_expire_rows, table, partitions))
    assert_never(step)


def last_run(
    operation: Operation, table: SimulatedTable, knobs: Knobs, ran: SimulatedRun, before: LastRun | None
) -> LastRun:
    """Return the history's record of an operation that has just ended."""
    metrics: defaultdict[str, float] = defaultdict(float)
    for name, value in (pair for done in ran.done for pair in done.metrics.items()):
        metrics[name] += value
    metrics |= {"gb_hours": ran.cost, **predicted(ran.due)}
    rewritten = dict(before.rewritten) if before is not None else {}
    rewritten |= {key: ran.ended for done in ran.done for key in done.mended}
    return LastRun(
        operation,
        ran.ended,
        OperationState.COMMITTED,
        table.location,
        metrics=metrics,
        policy=knobs.fingerprint,
        rewritten=rewritten,
        worked=ran.ended,
        recent=(metrics, *(before.recent if before is not None else ()))[:RUNS_LEARNED],
    )


def _on_spark(seconds: float, end: Callable[[datetime], Done], *, idle: bool = False) -> Begun:
    return Begun(seconds, spark_gb_hours(seconds), end, idle)


def _in_service(files: int, end: Callable[[datetime], Done]) -> Begun:
    cost = service_cost(files)
    return Begun(cost / gb_hours(1, SERVICE_MEMORY_GB), cost, end)


def _chosen(table: SimulatedTable, step: RewriteDataFiles, now: datetime) -> _Chosen:
    """Return the files that the planner takes from each partition of the step, or of the table."""
    known = table.partitions
    within = [known[key] for key in step.partitions if key in known] if step.partitions else known.values()
    return [(p, planned) for p in within if (planned := p.planned(step, now)) is not None]


def _rewrite_files(table: SimulatedTable, step: RewriteDataFiles, chosen: _Chosen, now: datetime) -> Done:
    merged = written = deletes = 0
    mended: list[PartitionKey] = []
    for partition, taken in chosen:
        size, applying = partition.bytes, partition.deletes
        result = partition.rewritten(taken, step)
        if result is None:
            continue
        table.thin_manifests(taken.files)
        table.bury(taken.files + result[1], taken.bytes)
        table.files += result[0] - taken.files
        table.bytes += partition.bytes - size
        table.deletes += partition.deletes - applying
        merged, written, deletes = merged + taken.files, written + result[0], deletes + result[1]
        if not step.by_deletes:
            mended.append(partition.key)
    if merged:
        table.manifests += bool(written)
        table.fit_delete_manifests()
        table.commit(now, "replace")
    metrics = {"files_merged": merged, "files_written": written, "delete_files_removed": deletes}
    return Done(metrics, mended=tuple(mended))


def _rewrite_deletes(table: SimulatedTable, step: RewritePositionDeletes, now: datetime) -> Done:
    gone = applying = 0
    for key in step.partitions:
        if (partition := table.partitions.get(key)) is not None:
            before = partition.deletes
            gone += partition.merge_deletes()
            applying += before - partition.deletes
    if gone:
        table.deletes -= applying
        table.bury(gone, gone * _DELETE_FILE_BYTES)
        table.fit_delete_manifests()
        table.commit(now, "replace")
    return Done({"files_rewritten": gone})


def _rewrite_manifests(table: SimulatedTable, step: RewriteManifests, now: datetime) -> Done:
    before = table.manifests + table.delete_manifests
    if table.files:
        table.merge_manifests(step.target_bytes)
        table.merge_delete_manifests()
        table.commit(now, "replace")
    return Done({"manifests_rewritten": before, "manifests_written": table.manifests + table.delete_manifests})


def _compute_statistics(table: SimulatedTable, step: ComputeStatistics, now: datetime) -> Done:
    table.statistics = (StatisticsFile(step.snapshot_id, "", 0),)
    table.touched(now)
    return Done({"columns_counted": len(step.columns), "partitions_counted": len(table.partitions)})


def _tag(table: SimulatedTable, step: TagRecoveryPoints, now: datetime) -> Done:
    retired, there = {p.name for p in step.retire}, {s.snapshot_id for s in table.snapshots}
    tags = [*table.tags, *(p.tag for p in step.make)]
    table.tags = [tag for tag in tags if tag.name not in retired and tag.snapshot_id in there]
    table.touched(now)
    return Done({"points_made": len(step.make), "points_retired": len(step.retire)})


def _expire(table: SimulatedTable, step: ExpireSnapshots, now: datetime) -> Done:
    deleted = table.expire(step.snapshot_ids, now, delete_files=step.delete_files)
    metrics = {"snapshots_expired": len(step.snapshot_ids), "files_deleted": deleted.files}
    return Done(metrics, deleted)


def _remove_orphans(table: SimulatedTable, step: RemoveOrphans, scanned: int, now: datetime) -> Done:
    """Delete old orphans as the mode allows, and remember those that were found."""
    old = [batch for batch in table.orphans if batch.at < step.older_than]
    confirmed = [batch for batch in old if batch.found is not None and batch.found <= step.confirm_before]
    gone = {"delete": old, "confirm": confirmed}.get(step.mode, [])
    for batch in old:
        batch.found = batch.found or now
    orphan_files = sum(batch.files for batch in old)
    deleted = FilesDeleted(sum(batch.files for batch in gone), sum(batch.bytes for batch in gone))
    if gone:
        table.orphans = [batch for batch in table.orphans if batch not in gone]
        table.dead_files -= deleted.files
        table.dead_bytes -= deleted.bytes
    files = scanned + orphan_files
    return Done(
        {"orphans_found": orphan_files, "orphans_removed": deleted.files, "files_scanned": files, **_cadence(step)},
        deleted,
    )


def _cadence(step: RemoveOrphans) -> dict[str, float]:
    return {"every_hours": step.every_hours} if step.every_hours else {}


def _expire_rows(table: SimulatedTable, partitions: list[SimulatedPartition], now: datetime) -> Done:
    """Drop whole partitions by time: they hold no row younger than their own day or hour."""
    files = sum(p.files for p in partitions)
    for partition in partitions:
        table.clear(partition)
    if files:
        table.commit(now, "delete")
    return Done({"files_deleted": files})
