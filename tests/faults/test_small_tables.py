"""Compaction that plans and commits by itself: beside writers, in bad weather, and after any history."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.sorting import NullOrder
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import BinaryType, LongType, NestedField
from pyspark.errors import PySparkException

from icewright.adapters.engines.arrow.rewriting import GROUPS_LEFT, ArrowRewrite
from icewright.core.errors import Cancelled, CommitConflict, CommitStateUnknown, StorageUnavailable, TableReplaced
from icewright.core.runs import JOB_ID
from tests.faults.interceptors import Call
from tests.faults.lakehouse import delete_keys, delete_rows, drop_delete_files
from tests.faults.small import NAME, SCHEMA, SPEC, Here, Rows, Small, counted, made, read, rows, table_of

pytestmark = pytest.mark.external  # makes a lakehouse or a store for each test


class Far:
    """A session on a Connect server whose executors cannot read the table's files."""

    def range(self, *_: int) -> Far:
        """Return rows of numbers."""
        return self

    def mapInArrow(self, *_: object) -> Far:  # noqa: N802 - as PySpark has it
        """Fail as Spark does."""
        raise PySparkException("Access Denied")


Far.__module__ = "pyspark.sql.connect.session"
IDS = (range(6), range(6, 12), range(12, 18))
ALL = counted(rows(range(18)))
APPLIED: Mapping[str, Any] = {"compact.delete_file_threshold": 1}  # deletes, however few


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Small]:
    """A table of three commits to three partitions, one of them of no value and one that a path must escape."""
    with made(tmp_path / "home", *IDS) as found:
        yield found


def totals(table: Table) -> dict[str, int]:
    """What the summary of the current snapshot says of the whole table."""
    snapshot = table.current_snapshot()
    assert snapshot is not None
    assert snapshot.summary is not None
    said = snapshot.summary.additional_properties
    names = ("total-data-files", "total-delete-files", "total-records", "total-files-size")
    return {name: int(said[name]) for name in names}


def check(small: Small, expected: Rows) -> None:
    """The rows are these, and the summary says of them what is so."""
    assert read(small.home) == expected
    with table_of(small.home) as table:
        found, deletes = table.inspect.data_files().to_pylist(), table.inspect.delete_files().to_pylist()
        assert totals(table) == {
            "total-data-files": len(found),
            "total-delete-files": len(deletes),
            "total-records": sum(file["record_count"] for file in found),
            "total-files-size": sum(file["file_size_in_bytes"] for file in (*found, *deletes)),
        }


def test_a_file_for_each_partition(small: Small) -> None:
    """Nine files become three in the folders of their partitions; outputs are as new as the commit."""
    done = small.compact()
    assert done == {"rewritten_data_files_count": 9, "added_data_files_count": 3, "failed_data_files_count": 0}
    check(small, ALL)
    with table_of(small.home) as table:
        snapshot = table.current_snapshot()
        assert snapshot is not None
        entries = [e for m in snapshot.manifests(table.io) for e in m.fetch_manifest_entry(table.io)]
        assert [e.sequence_number for e in entries] == [snapshot.sequence_number] * 3
        assert sorted(e.data_file.file_path.split("/")[-2] for e in entries) == ["p1=a", "p1=b%2Fc", "p1=null"]
        assert snapshot.summary is not None
        assert snapshot.summary[JOB_ID] == "job-1"
        assert snapshot.summary["changed-partition-count"] == "3"
        assert len(snapshot.manifests(table.io)) == 2, "one of what is there, one of what went"
        table.append(rows([18]))
    assert len(small.runtime.files.manifests(small.base.current_snapshot)) <= 3
    check(small, ALL + counted(rows([18])))


def test_chosen_partitions_alone(small: Small) -> None:
    """Files of a partition that needs nothing stay, with the snapshot and the sequence numbers that they had."""
    with table_of(small.home) as table:
        table.delete("region = 'a'")
        table.append(rows([21, 24]))
    rest = read(small.home)
    with table_of(small.home) as table:
        before = {e["data_file"]["file_path"]: e for e in table.inspect.entries().to_pylist() if e["status"] != 2}
    done = small.compact()
    assert done["rewritten_data_files_count"] == 6
    check(small, rest)
    with table_of(small.home) as table:
        after = {e["data_file"]["file_path"]: e for e in table.inspect.entries().to_pylist() if e["status"] != 2}
    (kept,) = before.keys() & after.keys()
    names = ("snapshot_id", "sequence_number", "file_sequence_number")
    assert [after[kept][name] for name in names] == [before[kept][name] for name in names]


def appended(table: Table, _: Small) -> None:
    """Rows in two more files."""
    table.append(rows([30, 31]))


def other_branch(table: Table, _: Small) -> None:
    """A branch with a commit of its own."""
    snapshot = table.current_snapshot()
    assert snapshot is not None
    table.manage_snapshots().create_branch(snapshot.snapshot_id, "dev").commit()
    table.append(rows([40]), branch="dev")


def column_added(table: Table, _: Small) -> None:
    """A column that no file has."""
    with table.update_schema() as update:
        update.add_column("more", SCHEMA.find_type("region"))


def partition_removed(table: Table, _: Small) -> None:
    """A whole partition is gone."""
    table.delete("region = 'a'")


def overwritten(table: Table, _: Small) -> None:
    """Other files for all."""
    table.overwrite(rows([50]))


def rolled_back(table: Table, _: Small) -> None:
    """The first snapshot is the current one again."""
    table.manage_snapshots().rollback_to_snapshot(table.metadata.snapshots[0].snapshot_id).commit()


def spec_changed(table: Table, _: Small) -> None:
    """The table is partitioned by more, and has a file of that."""
    with table.update_spec() as update:
        update.add_identity("id")
    table.append(rows([60]))


Writer = Callable[[Table, Small], None]


@pytest.mark.parametrize(("writer", "more"), [(appended, [30, 31]), (other_branch, []), (column_added, [])])
def test_writers_that_do_not_disturb(small: Small, writer: Writer, more: list[int]) -> None:
    """What was appended, branched or evolved between plan and commit is there, and the rewrite too."""

    def meanwhile() -> None:
        with table_of(small.home) as table:
            writer(table, small)

    done = small.compact(meanwhile)
    assert done["added_data_files_count"] == 3
    with table_of(small.home) as table:
        assert counted(table.scan(selected_fields=("id", "region")).to_arrow()) == ALL + counted(rows(more))
        assert totals(table)["total-data-files"] == 3 + len(more)


@pytest.mark.cases(20, 25, 33)
@pytest.mark.parametrize("writer", [overwritten, rolled_back, spec_changed])
def test_writers_that_come_first(small: Small, writer: Writer) -> None:
    """After anything but an append between plan and commit nothing is committed, and no output stays."""
    seen: list[set[str]] = []
    found: list[Rows] = []

    def meanwhile() -> None:
        outputs = small.data_files()
        with table_of(small.home) as table:
            writer(table, small)
        seen.append(small.data_files() - outputs)
        found.append(read(small.home))

    before = small.data_files()
    with pytest.raises(CommitConflict):
        small.compact(meanwhile)
    assert read(small.home) == found[0]
    assert small.data_files() == before | seen[0]


def deleted_beside(table: Table, small: Small) -> None:
    """A delete file for the first partition."""
    delete_rows(table, small.folder, "late", [0])


@pytest.mark.cases(25, 32, 33, 75)
@pytest.mark.parametrize("writer", [partition_removed, deleted_beside])
def test_groups_that_no_writer_touched_are_committed(small: Small, writer: Writer) -> None:
    """One partition changes between plan and commit: the two others are compacted, and its outputs are gone."""
    steps = small.steps(small.base)
    with table_of(small.home) as table:
        delete_rows(table, small.folder, "early", [1])
    found: list[Rows] = []
    before: list[set[str]] = []

    def meanwhile() -> None:
        with table_of(small.home) as table:
            writer(table, small)
        found.append(read(small.home))
        before.append(small.data_files())

    done = small.compact(meanwhile, steps=steps)
    assert done == {"rewritten_data_files_count": 6, "added_data_files_count": 2, "failed_data_files_count": 3}
    assert read(small.home) == found[0]
    assert len(before[0] - small.data_files()) == 1, "the output of the partition that was changed"


def deletes_dropped(table: Table, small: Small) -> None:
    """The delete files are gone though the snapshot of the plan stays in the history."""
    drop_delete_files(table)


def delete_rolled_back(table: Table, _: Small) -> None:
    """The snapshot before the delete is the current one again."""
    table.manage_snapshots().rollback_to_snapshot(table.metadata.snapshots[-2].snapshot_id).commit()


def files_added_again(table: Table, _: Small) -> None:
    """The same files are removed and come back: the delete is older than they are now."""
    files = [task.file for task in table.scan().plan_files()]
    with table.transaction() as transaction, transaction.update_snapshot().overwrite() as removal:
        for file in files:
            removal.delete_data_file(file)
    with table.transaction() as transaction, transaction.update_snapshot().fast_append() as addition:
        for file in files:
            addition.append_data_file(file)


@pytest.mark.cases(121)
@pytest.mark.parametrize("writer", [deletes_dropped, delete_rolled_back, files_added_again])
def test_rows_that_are_restored_during_compaction_stay(small: Small, writer: Writer) -> None:
    """Compaction has applied a delete that is undone before its commit: a conflict, and all rows are there."""
    with table_of(small.home) as table:
        delete_rows(table, small.folder, "mistake", [0])
    assert read(small.home).total() == 17

    def meanwhile() -> None:
        with table_of(small.home) as table:
            writer(table, small)

    with pytest.raises(CommitConflict):
        small.compact(meanwhile, steps=small.steps(small.base, **APPLIED)[-1:])
    assert read(small.home) == ALL


@pytest.mark.cases(127)
def test_an_expiry_of_the_planned_snapshot_is_a_conflict(small: Small) -> None:
    """A writer appends and expires the snapshot of the plan, its manifest list too: the table is not called broken."""
    planned = small.base.current_snapshot
    assert planned is not None
    assert planned.manifest_list is not None
    manifest_list = Path(planned.manifest_list.removeprefix("file://"))

    def meanwhile() -> None:
        with table_of(small.home) as table:
            table.append(rows([30]))
            table.maintenance.expire_snapshots().by_id(planned.snapshot_id).commit()
        manifest_list.unlink()

    with pytest.raises(CommitConflict, match="not in main's history"):
        small.compact(meanwhile)
    check(small, ALL + counted(rows([30])))


@pytest.mark.cases(126)
def test_a_task_process_that_dies_leaves_its_groups_to_spark(small: Small) -> None:
    """Workers that the system kills for their memory blame no file and change nothing."""

    def died() -> None:
        raise PySparkException("Job aborted: Python worker exited unexpectedly (crashed)")

    (step,) = small.steps(small.base)
    table = small.opened(small.base, step)
    assert table is not None
    session: Any = Here(died)
    result = ArrowRewrite(session, table, step, "job-1", lambda: None, lambda _: None).run()
    assert "spark.executor.memoryOverhead" in result.unsupported[0]
    assert result.failures == []
    assert result.row[GROUPS_LEFT] == 3
    check(small, ALL)


def test_a_cancelled_job_on_a_connect_server_is_not_left_to_spark(small: Small) -> None:
    """Tasks that fail on a Connect server leave their groups to Spark, unless they failed as the job was cancelled."""
    (step,) = small.steps(small.base)
    table = small.opened(small.base, step)
    assert table is not None

    def cancelled() -> None:
        raise Cancelled("the job was cancelled")

    session: Any = Far()
    result = ArrowRewrite(session, table, step, "job-1", lambda: None, lambda _: None).run()
    assert result.unsupported == ["tasks failed on the Spark Connect server: Access Denied"]
    assert result.row[GROUPS_LEFT] == 3
    with pytest.raises(Cancelled):
        ArrowRewrite(session, table, step, "job-1", cancelled, lambda _: None).run()
    check(small, ALL)


def test_a_table_of_the_same_name(small: Small) -> None:
    """A table that was dropped and made anew is not touched."""

    def meanwhile() -> None:
        with table_of(small.home) as table:
            place = table.location()
            table.catalog.drop_table(NAME)
            table.catalog.create_table(NAME, SCHEMA, location=f"{place}2", partition_spec=SPEC).append(rows([1]))

    with pytest.raises(TableReplaced):
        small.compact(meanwhile)
    assert read(small.home) == counted(rows([1]))


def test_writers_that_are_always_quicker(small: Small) -> None:
    """After some attempts it gives up, and leaves nothing."""
    numbers = itertools.count(100)

    def hook(call: Call) -> Any:
        if str(call) == "catalog.commit":
            with table_of(small.home) as table:
                table.append(rows([next(numbers)]))
        return call.go()

    before = {path for path in small.files() if path.suffix == ".parquet"}
    with pytest.raises(CommitConflict):
        small.compact(hook=hook)
    appended = next(numbers) - 100
    assert appended == 5
    assert len({path for path in small.files() if path.suffix == ".parquet"} - before) == appended
    check(small, ALL + counted(rows(range(100, 100 + appended))))


class Killed(BaseException):
    """The process ends here."""


def _fails(call: Call) -> None:
    raise StorageUnavailable(f"{call} does not answer")


def _killed(_: Call) -> None:
    raise Killed


def _killed_after(call: Call) -> None:
    call.go()
    raise Killed


def _reply_lost(call: Call) -> None:
    call.go()
    raise CommitStateUnknown("the reply was lost")


@pytest.mark.cases(75, 79)
@pytest.mark.parametrize("fault", [_fails, _killed, _killed_after, _reply_lost])
def test_any_step_may_fail(tmp_path: Path, fault: Callable[[Call], None]) -> None:
    """Whichever write or commit fails or is the last one, the rows are all there; a failure leaves no file behind."""
    for moment in itertools.count():
        with made(tmp_path / f"home{moment}", *IDS) as small:
            steps = itertools.count()

            def hook(call: Call, *, at: int = moment, steps: Iterator[int] = steps) -> Any:
                if str(call) not in ("files.write", "catalog.commit"):
                    return call.go()
                if fault is _reply_lost and str(call) != "catalog.commit":
                    return call.go()
                return fault(call) if next(steps) == at else call.go()

            before = small.files()
            try:
                small.compact(hook=hook)
            except (StorageUnavailable, Killed, CommitStateUnknown):
                check(small, ALL)
                if fault is _fails:
                    assert small.files() == before
            else:
                check(small, ALL)
                break
    assert moment == (1 if fault is _reply_lost else 4), "two manifests, their list and the commit"


@pytest.mark.parametrize(
    "properties",
    [
        {"format-version": "1"},
        {"write.object-storage.enabled": "true"},
        pytest.param({"write.object-storage.enabled": "TRUE"}, marks=pytest.mark.cases(128)),
        {"write.location-provider.impl": "com.example.Places"},
    ],
    ids=str,
)
def test_other_tables_are_left_to_iceberg(tmp_path: Path, properties: dict[str, str]) -> None:
    """Tables that need more than is done here are not opened."""
    with made(tmp_path / "home", *IDS, **properties) as small:
        base = small.base
        assert small.opened(base, small.steps(base)[0]) is None


def live_deletes(small: Small) -> list[str]:
    """The delete files of the current snapshot."""
    with table_of(small.home) as table:
        return [file["file_path"].rpartition("/")[2] for file in table.inspect.delete_files().to_pylist()]


@pytest.mark.cases(20, 23)
def test_position_deletes(small: Small) -> None:
    """Rows that delete files name are gone, and in the same commit the delete files too."""
    with table_of(small.home) as table:
        delete_rows(table, small.folder, "one", [0])
        delete_rows(table, small.folder, "two", [1])
    rest = read(small.home)
    assert rest.total() == 16
    assert len(live_deletes(small)) == 2
    before = len(small.base.snapshots)
    small.compact(**APPLIED)
    check(small, rest)
    assert live_deletes(small) == []
    assert len(small.base.snapshots) == before + 2, "a step for the sizes, and one for the deletes"
    with table_of(small.home) as table:
        snapshot = table.current_snapshot()
        assert snapshot is not None
        assert snapshot.summary is not None
        found = {name: snapshot.summary[name] for name in ("removed-delete-files", "total-delete-files")}
        assert found == {"removed-delete-files": "2", "total-delete-files": "0"}
        table.append(rows([18]))
    check(small, rest + counted(rows([18])))


def test_equality_deletes(small: Small) -> None:
    """Rows that keys name are gone with the keys; keys that came meanwhile stay, as outputs are older than them."""
    with table_of(small.home) as table:
        delete_keys(table, small.folder, "one", [0, 9])
    (kept,) = small.steps(small.base, **APPLIED, **{"compact.remove_dangling_deletes": False})[-1:]
    assert small.opened(small.base, kept) is None, "Iceberg's own commit decides which keys go"
    assert replace(small, has_jvm=False).opened(small.base, kept) is not None, "there is no such commit"

    def meanwhile() -> None:
        with table_of(small.home) as table:
            delete_keys(table, small.folder, "late", [3, 0])
            table.append(rows([0]))

    small.compact(meanwhile, steps=small.steps(small.base, **APPLIED)[-1:])
    assert live_deletes(small) == ["late-deletes.parquet"]
    small.compact(**APPLIED)
    assert live_deletes(small) == []
    check(small, counted(rows([n for n in range(18) if n not in (3, 9)])))


def test_groups_of_the_size_of_a_job(small: Small) -> None:
    """Without a JVM a partition above the size of a group is rewritten in several; a file alone stays as it is."""
    step = small.steps(small.base)[0]
    two_files = step.bytes // 9 * 5 // 2
    step = replace(step, options={**step.options, "max-file-group-size-bytes": str(two_files)})
    assert small.opened(small.base, step) is None, "Iceberg's planner divides them"
    done = replace(small, has_jvm=False).compact(steps=[step])
    assert (done["rewritten_data_files_count"], done["added_data_files_count"]) == (6, 3)
    check(small, ALL)


def test_rows_are_in_the_order_of_the_table(small: Small) -> None:
    """A table with a sort order is rewritten in it, and the entries of its files say so."""
    with table_of(small.home) as table, table.update_sort_order() as order:
        order.desc("id", IdentityTransform(), NullOrder.NULLS_LAST)
    small.compact()
    check(small, ALL)
    with table_of(small.home) as table:
        for file in table.inspect.data_files().to_pylist():
            ids = pq.read_table(file["file_path"].removeprefix("file://"), columns=["id"])["id"].to_pylist()
            assert ids == sorted(ids, reverse=True)
            assert file["sort_order_id"] == table.sort_order().order_id != 0


def test_delete_files_that_still_apply_stay(small: Small) -> None:
    """What names rows of a file that is left alone, or may, is kept; what was merged is not deleted from twice."""
    with table_of(small.home) as table:
        table.append(rows(range(18, 30_018, 3)))  # one large file of region `a`
        delete_rows(table, small.folder, "own", [0])
        delete_rows(table, small.folder, "any", [1], single=False)
    rest = read(small.home)
    step = small.steps(small.base)[0]
    sizes = {"target-file-size-bytes": "20000", "min-file-size-bytes": "3000", "max-file-size-bytes": "1000000"}
    options = {**step.options, **sizes, "remove-dangling-deletes": "true"}
    small.compact(steps=[replace(step, where=None, by_deletes=False, options=options)])
    check(small, rest)
    with table_of(small.home) as table:
        names = {path.rpartition("/")[2] for path in table.inspect.data_files().to_pydict()["file_path"]}
    assert len(names) == 4
    assert set(live_deletes(small)) >= {"any-deletes.parquet"}


def test_partitions_that_are_stored_otherwise_are_left_to_iceberg(small: Small) -> None:
    """Where delete files say their partition in another type nobody here tells which data they are of."""
    step = small.steps(small.base)[0]
    stored = Schema(NestedField(1, "id", LongType()), NestedField(2, "region", BinaryType()))
    with table_of(small.home) as table:
        delete_rows(table, small.folder, "other", [0], stored=stored)
    assert small.opened(small.base, step) is None


def test_older_specs_are_left_to_iceberg(small: Small) -> None:
    """Files of two specs too."""
    step = small.steps(small.base)[0]
    with table_of(small.home) as table:
        spec_changed(table, small)
    assert small.opened(small.base, step) is None


@dataclass
class Played:
    """A table to which things happen, and the rows that it must have."""

    small: Small
    expected: Rows = field(default_factory=Counter)
    numbers: Iterator[int] = field(default_factory=itertools.count)
    deletes: Iterator[int] = field(default_factory=itertools.count)
    refs: dict[str, Rows] = field(default_factory=dict)

    def append(self, count: int) -> None:
        """So many rows in a commit."""
        fresh = rows(itertools.islice(self.numbers, count))
        with table_of(self.small.home) as table:
            table.append(fresh)
        self.expected += counted(fresh)

    def remove(self, count: int) -> None:
        """A partition, if it has rows."""
        region = ("a", "b/c")[count % 2]
        kept = Counter({row: n for row, n in self.expected.items() if row[1] != region})
        if kept != self.expected:
            with table_of(self.small.home) as table:
                table.delete(f"region = '{region}'")
        self.expected = kept

    def delete(self, count: int) -> None:
        """A row, or none if it is gone already, of the first file; what PyIceberg reads then is what must be."""
        if self.expected:
            with table_of(self.small.home) as table:
                delete_rows(table, self.small.folder, f"delete {next(self.deletes)}", [count % 2], single=count % 3 > 0)
            self.expected = read(self.small.home)

    def compact(self, _: int, meanwhile: Callable[[], None] | None = None) -> None:
        """Compaction, if there is anything to do."""
        if self.small.due(**APPLIED):
            self.small.compact(meanwhile, **APPLIED)

    def beside(self, count: int) -> None:
        """Compaction while a writer does something, before which it may give way."""
        kinds = (self.append, self.delete, self.remove, self.ref, self.column, self.rollback)
        with suppress(CommitConflict):
            self.compact(count, partial(kinds[count % len(kinds)], count))

    def keys(self, count: int) -> None:
        """Rows of region `a` are deleted by their ids, every second or third of them."""
        gone = {row for row in self.expected if row[1] == "a" and row[0] % (count % 2 + 2) == 0}
        if self.expected:
            with table_of(self.small.home) as table:
                delete_keys(table, self.small.folder, f"keys {next(self.deletes)}", [row[0] for row in gone])
        self.expected = Counter({row: n for row, n in self.expected.items() if row not in gone})

    def upsert(self, count: int) -> None:
        """Compaction of what keys delete, beside a writer of rows or of more keys; PyIceberg reads no such table."""
        self.keys(count)
        meanwhile = (self.append, self.keys)[count % 2]
        self.compact(count, partial(meanwhile, count))
        self.compact(count)
        assert not any(name.startswith("keys") for name in live_deletes(self.small))

    def ref(self, count: int) -> None:
        """A tag, or a branch with a row of its own."""
        name = f"ref{next(self.deletes)}"
        with table_of(self.small.home) as table:
            head = table.current_snapshot()
            assert head is not None
            if count % 2:
                table.manage_snapshots().create_tag(head.snapshot_id, name).commit()
            else:
                table.manage_snapshots().create_branch(head.snapshot_id, name).commit()
                table.append(rows([1000 + count]), branch=name)
        self.refs[name] = self.expected + (Counter() if count % 2 else counted(rows([1000 + count])))

    def column(self, _: int) -> None:
        """A column that no file has yet."""
        with table_of(self.small.home) as table, table.update_schema() as update:
            update.add_column(f"more{next(self.deletes)}", SCHEMA.find_type("region"))

    def rollback(self, _: int) -> None:
        """The snapshot before the current one becomes the current one again."""
        with table_of(self.small.home) as table:
            head = table.current_snapshot()
            assert head is not None
            if head.parent_snapshot_id is not None:
                table.manage_snapshots().rollback_to_snapshot(head.parent_snapshot_id).commit()
        self.expected = read(self.small.home)

    def check(self) -> None:
        """Main and each branch and tag have their rows, and no file is there that no snapshot names."""
        check(self.small, self.expected)
        with table_of(self.small.home) as table:
            for name, expected in self.refs.items():
                assert counted(table.scan().use_ref(name).to_arrow()) == expected
            named = {
                entry.data_file.file_path.rsplit("/", 1)[-1]
                for snapshot in table.snapshots()
                for manifest in snapshot.manifests(table.io)
                for entry in manifest.fetch_manifest_entry(table.io)
            }
        assert self.small.data_files() <= named


KINDS = ("append", "append", "delete", "remove", "ref", "compact", "upsert", "beside", "beside", "beside")
STEPS = st.lists(st.tuples(st.sampled_from(KINDS), st.integers(1, 12)), min_size=2, max_size=7)


@settings(max_examples=300 if settings.get_current_profile_name() == "long" else 12)
@given(steps=STEPS)
def test_any_history(tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, int]]) -> None:
    """After any commits and compactions, alone and beside any commit, main, branches and tags have their rows."""
    with made(tmp_path_factory.mktemp("history") / "home") as small:
        played = Played(small)
        for kind, count in (("append", 4), ("append", 4), *steps):
            getattr(played, kind)(count)
            played.check()
