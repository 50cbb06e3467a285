"""Simulated tables: what writers and maintenance do to them, and what is never lost."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from icewright.core.policy import MEGABYTE, Operation
from icewright.core.runs import History
from icewright.core.simulation.partition import outputs
from icewright.core.simulation.table import SimulatedTable
from icewright.core.simulation.work import Done, begin
from icewright.core.simulation.writes import OPERATIONS, Layout, Write
from icewright.core.steps import Due, Kernel
from icewright.core.verdicts import thresholds, verdict
from icewright.testing import NOW, REF, knobs
from tests.examples import examples

DAY: Layout = (("day", "day"),)
HOUR = timedelta(hours=1)
KNOBS = knobs({"compact.hot_partitions": "include", "remove_orphans.mode": "delete"})
SIZES = thresholds(KNOBS)


def written(*writes: Write) -> SimulatedTable:
    """A table after these commits."""
    table = SimulatedTable(REF)
    for write in writes:
        table.write(write)
    return table


def small(files: int = 10, mb: int = 1, at: datetime = NOW, **more: Any) -> Write:
    """Small files."""
    return replace(Write(at, files, files * mb * MEGABYTE, files * 1000), **more)


def run(
    table: SimulatedTable, operation: Operation, now: datetime = NOW, history: History | None = None
) -> Done | None:
    """Do what is due; the last step's result."""
    done = None
    found = verdict(operation, table.facts(SIZES), KNOBS, history or {}, now)
    for step in found.work.steps if isinstance(found, Due) else ():
        done = begin(table, step, now).end(now)
    return done


def live_rows(table: SimulatedTable) -> int:
    """What a reader sees."""
    return sum(p.rows - p.deleted_rows for p in table.partitions.values())


def test_facts_are_as_written() -> None:
    """Commits become snapshots, partitions, manifests."""
    days = [(NOW - timedelta(days=n)).date() for n in (0, 1, 1)]
    table = written(*(small(at=NOW + n * HOUR, layout=DAY, values=(day,)) for n, day in enumerate(days)))
    facts = table.facts(SIZES)
    assert [(p.values, p.data_files, p.candidate_files, p.writes) for p in facts.partitions] == [
        ((days[0],), 10, 10, 1),
        ((days[1],), 20, 20, 2),
    ]
    assert (facts.data_bytes, facts.records, facts.manifest_count) == (30 * MEGABYTE, 30_000, 3)
    metadata = facts.metadata
    assert [s.timestamp for s in metadata.snapshots] == [NOW, NOW + HOUR, NOW + 2 * HOUR]
    assert (metadata.is_straight, metadata.last_updated) == (True, NOW + 2 * HOUR)
    assert metadata.specs[0].fields[0].transform == "day"


def test_a_table_that_was_never_written_is_empty() -> None:
    """It has no snapshot, and nothing is due but the scan for orphans."""
    table = SimulatedTable(REF)
    assert table.facts(SIZES).metadata.current_snapshot is None
    assert not table.facts(SIZES).metadata.is_straight
    assert [op for op in Operation if isinstance(verdict(op, table.facts(SIZES), KNOBS, {}, NOW), Due)] == [
        Operation.REMOVE_ORPHANS
    ]


def test_compaction_merges_and_buries() -> None:
    """Ten files become one; the ten are still stored until the snapshots before have expired."""
    table = written(small(), small(at=NOW + HOUR))
    assert run(table, Operation.COMPACT, NOW + 2 * HOUR) is not None
    assert (table.files, table.bytes, table.dead_files) == (1, 20 * MEGABYTE, 22)  # with their manifests
    assert table.snapshots[-1].operation == "replace"
    assert run(table, Operation.COMPACT, NOW + 3 * HOUR) is None  # a fixed point
    for n in range(5):
        table.write(small(1, at=NOW + (4 + n) * HOUR))
    done = run(table, Operation.EXPIRE_SNAPSHOTS, NOW + timedelta(days=30))
    assert done is not None
    assert (done.metrics["snapshots_expired"], done.deleted.files, table.dead_files) == (3, 25, 0)


def test_files_that_came_while_it_ran_are_kept() -> None:
    """A rewrite takes what was there when it began."""
    table = written(small())
    found = verdict(Operation.COMPACT, table.facts(SIZES), KNOBS, {}, NOW)
    assert isinstance(found, Due)
    begun = begin(table, found.work.steps[0], NOW)
    table.write(small(3, at=NOW + HOUR))
    begun.end(NOW + 2 * HOUR)
    (partition,) = table.partitions.values()
    assert (table.files, partition.last_write, partition.writes) == (4, NOW + HOUR, 1)


def test_a_rewrite_whose_files_are_gone_is_lost() -> None:
    """Somebody replaced the partition meanwhile: nothing is committed."""
    table = written(small())
    found = verdict(Operation.COMPACT, table.facts(SIZES), KNOBS, {}, NOW)
    assert isinstance(found, Due)
    begun = begin(table, found.work.steps[0], NOW)
    table.write(small(2, at=NOW + HOUR, operation="overwrite"))
    before = table.version
    assert begun.end(NOW + 2 * HOUR).metrics["files_merged"] == 0
    assert (table.files, table.version) == (2, before)


def test_deletes_are_applied() -> None:
    """Rows that deletes name are gone with the deletes, and the bytes in proportion."""
    table = written(small(delete_files=10, deleted_rows=5000))
    assert (table.deletes, table.facts(SIZES).deleted_rows) == (10, 5000)
    done = run(table, Operation.COMPACT)
    assert done is not None
    assert done.metrics["delete_files_removed"] == 10
    assert (table.files, table.deletes, table.delete_manifests, live_rows(table)) == (1, 0, 0, 5000)
    assert table.bytes == 5 * MEGABYTE


def test_position_deletes_are_merged() -> None:
    """Many delete files become one, and name the same rows."""
    table = written(small(2, 500, delete_files=7, deleted_rows=10))
    assert run(table, Operation.REWRITE_DELETES) is not None
    assert (table.deletes, live_rows(table)) == (1, 1990)


def test_manifests_are_merged() -> None:
    """By maintenance when there are some, by the writer when there are a hundred."""
    table = written(*(small(1, 500, at=NOW + n * HOUR) for n in range(10)))
    assert run(table, Operation.REWRITE_MANIFESTS) is not None
    assert table.manifests == 1
    table = written(*(small(1, 500, at=NOW + n * HOUR) for n in range(100)))
    assert table.manifests == 1


def test_overwrite_and_delete() -> None:
    """An overwrite leaves the new files alone; a delete without delete files empties the partition."""
    table = written(
        small(layout=DAY, values=(NOW.date(),)), small(4, layout=DAY, values=(NOW.date(),), operation="overwrite")
    )
    assert (table.files, table.dead_files) == (4, 11)
    table.write(Write(NOW, layout=DAY, values=(NOW.date(),), operation="delete"))
    assert (table.files, table.bytes, table.manifests, table.facts(SIZES).partitions) == (0, 0, 0, ())


def test_orphans_are_found_and_removed() -> None:
    """Those that are old enough; `confirm` waits for a second scan."""
    table = written(small(orphans=5), small(orphans=3, at=NOW + timedelta(days=9)))
    now = NOW + timedelta(days=10)
    step = verdict(Operation.REMOVE_ORPHANS, table.facts(SIZES), KNOBS, {}, now)
    assert isinstance(step, Due)
    done = begin(table, step.work.steps[0], now).end(now)
    assert (done.metrics["orphans_found"], done.deleted.files, table.dead_files) == (5, 5, 3)


def test_rows_expire_by_partition() -> None:
    """Days that are too old go whole."""
    days = [(NOW - timedelta(days=n)).date() for n in (1, 40)]
    table = written(*(small(layout=DAY, values=(day,)) for day in days))
    by = knobs({"expire_rows.enabled": True, "expire_rows.column": "ts", "expire_rows.days": 30})
    found = verdict(Operation.EXPIRE_ROWS, table.facts(thresholds(by)), by, {}, NOW)
    assert isinstance(found, Due)
    done = begin(table, found.work.steps[0], NOW).end(NOW)
    assert (done.metrics["files_deleted"], table.files) == (10, 10)


def test_kernels_cost_differently() -> None:
    """Arrow takes less time than Spark's own path for the same files, as measured."""
    table = written(small())
    costs = []
    for kernel in Kernel:
        found = verdict(Operation.COMPACT, table.facts(SIZES), knobs({"compact.engine": kernel}), {}, NOW)
        assert isinstance(found, Due)
        costs.append(begin(table, found.work.steps[0], NOW).gb_hours)
    assert 0 < costs[0] < costs[1]


@examples(30)
@given(st.integers(1, 10**12), st.integers(1, 40))
def test_file_groups_are_cut(size: int, group: int) -> None:
    """Outputs hold all bytes, and no fewer files come of smaller groups."""
    sizes = {"target-file-size-bytes": 512, "min-file-size-bytes": 384, "max-file-size-bytes": 921}
    options = {name: str(mb * MEGABYTE) for name, mb in {**sizes, "max-file-group-size-bytes": group * 512}.items()}
    assert outputs(size, options) >= size / (921 * MEGABYTE)


DELETES = st.tuples(st.integers(1, 3), st.integers(0, 1000)) | st.just((0, 0))
WRITES = st.builds(
    lambda day, deletes, made: replace(
        made, values=((NOW - timedelta(days=day)).date(),), delete_files=deletes[0], deleted_rows=deletes[1]
    ),
    st.integers(0, 1),
    DELETES,
    st.builds(
        Write,
        at=st.just(NOW),
        files=st.integers(1, 30),
        bytes=st.integers(1000, 10**9),
        rows=st.integers(1, 10**6),
        layout=st.just(DAY),
        operation=st.sampled_from(OPERATIONS),
        orphans=st.integers(0, 2),
    ),
)
WORK = st.sampled_from([op for op in Operation if op is not Operation.EXPIRE_ROWS])


@examples(60)
@given(st.lists(WRITES | WORK, min_size=1, max_size=25))
def test_maintenance_loses_nothing(events: list[Write | Operation]) -> None:
    """Whatever comes: no rows are lost, bytes only with deleted rows, and all sums are those of the partitions."""
    table, now = SimulatedTable(REF), NOW
    for event in events:
        now += 9 * HOUR
        if isinstance(event, Write):
            table.write(replace(event, at=now))
        else:
            rows, size, deletes = live_rows(table), table.bytes, table.deletes
            run(table, event, now)
            assert live_rows(table) == rows
            assert table.bytes == size if not deletes else table.bytes <= size
        held = list(table.partitions.values())
        assert (table.files, table.bytes) == (sum(p.files for p in held), sum(p.bytes for p in held))
        assert table.deletes == sum(p.deletes for p in held)
        for partition in held:
            assert partition.files == sum(partition.sizes.values())
            assert partition.bytes == sum(size * count for size, count in partition.sizes.items())
        assert min(table.dead_files, table.dead_bytes, table.manifests, table.delete_manifests) >= 0
        assert (table.manifests > 0) == (table.files > 0)
    assert table.facts(SIZES).metadata.is_straight == bool(table.snapshots)
