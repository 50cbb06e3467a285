"""Expiry in-service against Spark's procedure, on the very same table: snapshots, refs and files by their paths."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from icewright.app.demo import tables
from icewright.core.policy import Operation
from icewright.core.runs import OperationState, Outcome
from icewright.core.table import SnapshotRef
from tests.integration.bench import Bench, hours_ago, make_old, paths, snapshot_ids, spark_time
from tests.integration.javacore import JavaTable
from tests.integration.planting import DELETE, plant, remove
from tests.integration.tables import backdate_all, create, insert, statistics, tangle, version_one
from tests.nightly import nightly

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("quick_spark")]

Builder = Callable[[Bench, str], None]


@dataclass(frozen=True)
class Left:
    """What an expiry left of a table, and which files it took."""

    snapshots: frozenset[int]
    refs: frozenset[SnapshotRef]
    statistics: frozenset[str]
    gone: frozenset[str]


def left(bench: Bench, name: str, before: frozenset[str]) -> Left:
    """The table as it is now, against the files that it had."""
    metadata = bench.metadata(name)
    named = paths(s.path for s in (*metadata.statistics, *metadata.partition_statistics))
    return Left(snapshot_ids(metadata), frozenset(metadata.refs), named, before - bench.files(name))


def by_spark(bench: Bench, name: str, hours: float, keep: int) -> Left:
    """What Spark's procedure does, undone at once."""
    before = bench.files(name)
    cutoff = spark_time(datetime.now(UTC) - timedelta(hours=hours))
    with bench.aside(name):
        bench.call("expire_snapshots", name, f"older_than => {cutoff}, retain_last => {keep}")
        return left(bench, name, before)


def by_us(bench: Bench, name: str, hours: float, keep: int, *, dry_run: bool = False) -> Outcome:
    """Expiry in-service."""
    knobs = {
        "deletion.delay_hours": 0,
        "expire_snapshots.retention_hours": hours,
        "expire_snapshots.min_snapshots_to_keep": keep,
    }
    return bench.run(name, Operation.EXPIRE_SNAPSHOTS, knobs, dry_run=dry_run)


def check(bench: Bench, name: str, hours: float, keep: int) -> Left:
    """Both expire the same, the dry run says so before, and everything that is kept reads as it did."""
    before = bench.files(name)
    read = bench.read(name, bench.versions(name))
    theirs = by_spark(bench, name, hours, keep)
    said = by_us(bench, name, hours, keep, dry_run=True)
    assert bench.files(name) == before, "a dry run changes nothing"
    done = by_us(bench, name, hours, keep)
    ours = left(bench, name, before)
    assert ours == theirs
    assert done.state is OperationState.COMMITTED, done
    assert paths(f.path for f in done.files) == ours.gone
    assert paths(f.path for f in said.files) == ours.gone
    assert said.metrics["bytes_deleted"] == done.metrics["bytes_deleted"]
    kept = bench.versions(name)
    assert bench.read(name, kept) == {version: read[version] for version in kept}
    return ours


def pyiceberg_reads(bench: Bench, name: str) -> None:
    """PyIceberg reads as many rows as Spark of each snapshot left; equality deletes it cannot apply."""
    table = bench.lake.catalog.load_table(name)
    if "write.upsert.enabled" in table.properties:
        return
    read = bench.read(name, [str(s.snapshot_id) for s in table.metadata.snapshots])
    for snapshot in table.metadata.snapshots:
        rows = read[str(snapshot.snapshot_id)][0]
        assert len(table.scan(snapshot_id=snapshot.snapshot_id).to_arrow()) == rows


def _clicks(bench: Bench, name: str) -> None:
    tables.clicks(bench.lake, name, commits=16, rows_per_file=5)


def _orders(bench: Bench, name: str) -> None:
    tables.orders(bench.lake, name, commits=3, rows_per_file=60)
    bench.call("rewrite_data_files", name, "options => map('rewrite-all', 'true')")


def _returns(bench: Bench, name: str) -> None:
    tables.returns(bench.lake, name, size=400)
    bench.call("rewrite_data_files", name, "options => map('rewrite-all', 'true'), where => 'reason = \"late\"'")


def _customers(bench: Bench, name: str) -> None:
    tables.customers(bench.lake, name, commits=4, rows_per_file=8)


def _payments(bench: Bench, name: str) -> None:
    tables.payments(bench.lake, name, checkpoints=9, rows_per_file=40)
    bench.call("rewrite_data_files", name, "options => map('rewrite-all', 'true', 'remove-dangling-deletes', 'true')")


@pytest.mark.cases(11, 17, 19)
@pytest.mark.parametrize(
    ("build", "hours", "keep"),
    [
        nightly(_clicks, 72, 1, id="clicks"),
        pytest.param(_orders, 1, 1, id="orders compacted"),
        pytest.param(_returns, 7, 1, id="deletion vectors"),
        pytest.param(_customers, 24, 2, id="evolved"),
        pytest.param(_payments, 1, 1, id="equality deletes"),
        pytest.param(version_one, 10, 2, id="v1"),
    ],
)
def test_expires_as_spark_does(
    build: Builder, hours: float, keep: int, bench: Bench, new_name: Callable[[str], str]
) -> None:
    """Of each rotten table the same snapshots, refs and files go, and what is kept reads the same."""
    name = new_name("expired")
    build(bench, name)
    assert check(bench, name, hours, keep).gone
    pyiceberg_reads(bench, name)


@pytest.mark.cases(1, 2, 19)
def test_tag_and_branch_hold_what_they_need(bench: Bench, new_name: Callable[[str], str]) -> None:
    """A tag keeps its snapshot, a branch as many of its own as it asks for, and all their files."""
    name = new_name("metrics")
    tables.metrics(bench.lake, name, commits=24, rows_per_file=4)
    kept = check(bench, name, 2, 1)
    assert len(kept.snapshots) == 1 + 1 + 3
    assert {r.name for r in kept.refs} == {"main", "quarter-end", "backtest"}
    pyiceberg_reads(bench, name)


@pytest.mark.cases(7, 51)
def test_work_that_waits_for_its_publication(bench: Bench, new_name: Callable[[str], str]) -> None:
    """Staged snapshots younger than the retention, and files of a commit that is still to come, are there for it."""
    name, conf = new_name("staged"), bench.lake.spark().conf
    quoted = create(bench, name, "id int", properties={"write.wap.enabled": "true"})
    insert(bench, quoted, "(1)", "(2)", "(3)")
    for row, (way, value) in enumerate((("id", "old"), ("id", "young"), ("branch", "audit"))):
        conf.set(f"spark.wap.{way}", value)
        insert(bench, quoted, f"({10 + row})")
        conf.unset(f"spark.wap.{way}")
    backdate_all(bench, name, 600, 100)
    snapshots = {s.summary.get("wap.id"): s for s in bench.metadata(name).snapshots}
    java = JavaTable.load(bench, name)
    append = java.table.newAppend().appendFile(java.data({"id": [20]}))
    append.apply()  # writes all files of the commit
    folder = bench.folder(name)
    make_old(folder, days=4)
    orphans = plant(folder, "data/orphan.parquet", days=6)
    hours = (datetime.now(UTC) - snapshots["young"].timestamp).total_seconds() / 3600 + 1
    gone = check(bench, name, hours, 1).gone
    assert snapshots["old"].snapshot_id not in snapshot_ids(bench.metadata(name))
    done = remove(bench, name, {**DELETE, "remove_orphans.older_than_hours": 5 * 24})
    assert paths(f.path for f in done.files) == paths(map(str, orphans))
    bench.call("cherrypick_snapshot", name, f"snapshot_id => {snapshots['young'].snapshot_id}")
    append.commit()
    assert sorted(row["id"] for row in bench.sql(f"SELECT id FROM {quoted}")) == [1, 2, 3, 11, 20]  # noqa: S608 - quoted
    assert sorted(row["id"] for row in bench.sql(f"SELECT id FROM {quoted}.branch_audit")) == [1, 2, 3, 12]  # noqa: S608
    assert gone


@pytest.mark.cases(3, 4, 7, 9, 10, 19)
@pytest.mark.parametrize(("hours", "keep"), [(26, 1), nightly(200, 2), (1, 1)])
def test_tangled_refs(hours: float, keep: int, bench: Bench, tangled: str) -> None:
    """Branches with ages and counts, refs that outlived theirs, staged, published and rolled-back snapshots."""
    with bench.aside(tangled):
        kept = check(bench, tangled, hours, keep)
        assert {"outlived-tag", "outlived-branch"}.isdisjoint(r.name for r in kept.refs)
        assert {"main", "keeps-age", "keeps-count", "plain-tag"} <= {r.name for r in kept.refs}


@pytest.fixture(scope="module")
def tangled(bench: Bench) -> str:
    """A table with every kind of ref."""
    tangle(bench, "test.tangle")
    return "test.tangle"


@pytest.mark.cases(52, 51)
def test_statistics_go_with_their_snapshot(bench: Bench, new_name: Callable[[str], str]) -> None:
    """Statistics and partition statistics of expired snapshots go, those of the kept one stay."""
    name = new_name("statistics")
    statistics(bench, name)
    before = bench.metadata(name)
    kept = check(bench, name, 10, 1)
    old = [s.path for s in (*before.statistics, *before.partition_statistics) if s.snapshot_id not in kept.snapshots]
    new = [s.path for s in (*before.statistics, *before.partition_statistics) if s.snapshot_id in kept.snapshots]
    assert len(old) == len(new) == 2
    assert paths(old) <= paths(kept.gone)
    assert kept.statistics == paths(new)


@pytest.mark.cases(15, 17, 18)
def test_nothing_to_expire_commits_nothing(bench: Bench, new_name: Callable[[str], str]) -> None:
    """With as many snapshots to keep as there are, with young ones, or with none at all, the table stays as it is."""
    name, empty = new_name("young"), new_name("empty")
    tables.clicks(bench.lake, name, commits=4, rows_per_file=2)
    bench.lake.identifier(empty)
    bench.sql(f"CREATE TABLE {bench.lake.quoted(empty)} (id int) USING iceberg")
    for table, hours, keep in ((name, 1, 4), (name, 1, 99), (name, 24 * 30, 1), (empty, 1, 1)):
        before, files = bench.metadata(table), bench.files(table)
        assert by_us(bench, table, hours, keep).state is OperationState.SKIPPED
        assert (bench.metadata(table), bench.files(table)) == (before, files)


@pytest.mark.cases(12)
@pytest.mark.parametrize("victim", ["manifest list", "manifest", "truncated manifest"])
def test_unreadable_history_deletes_nothing(victim: str, bench: Bench, new_name: Callable[[str], str]) -> None:
    """When a file that a kept snapshot needs is missing or cut short, the run fails and names it."""
    name = new_name("broken")
    tables.clicks(bench.lake, name, commits=6, rows_per_file=2)
    snapshot = bench.lake.catalog.load_table(name).current_snapshot()
    assert snapshot
    manifests = snapshot.manifests(bench.lake.catalog.load_table(name).io)
    path = snapshot.manifest_list if victim == "manifest list" else manifests[-1].manifest_path
    file = bench.lake.folder(name) / "metadata" / path.rpartition("/")[2]
    content = file.read_bytes()
    file.unlink()
    if victim == "truncated manifest":
        file.write_bytes(content[: len(content) // 2])
    before, files = bench.metadata(name), bench.files(name)
    done = by_us(bench, name, 72, 1)
    assert done.state is OperationState.FAILED
    assert file.name in done.reason
    assert (bench.metadata(name), bench.files(name)) == (before, files)


@pytest.mark.cases(72)
def test_gc_disabled_expires_nothing(bench: Bench, new_name: Callable[[str], str]) -> None:
    """Under gc.enabled=false nothing is expired, whatever the knobs say."""
    name = new_name("ledger")
    tables.ledger(bench.lake, name, commits=8, rows_per_file=2)
    before, files = bench.metadata(name), bench.files(name)
    done = by_us(bench, name, 1, 1)
    assert done.state is OperationState.SKIPPED
    assert "gc.enabled" in done.reason
    assert (bench.metadata(name), bench.files(name)) == (before, files)


def test_expiry_by_the_tables_own_properties(bench: Bench, new_name: Callable[[str], str]) -> None:
    """`history.expire.*` on the table mean to us what they mean to Spark's procedure without arguments."""
    name = new_name("own")
    tables.clicks(bench.lake, name, commits=12, rows_per_file=2)
    bench.sql(
        f"ALTER TABLE {bench.lake.quoted(name)} SET TBLPROPERTIES ('history.expire.max-snapshot-age-ms' = '360000000', "
        "'history.expire.min-snapshots-to-keep' = '3')"
    )
    before = bench.files(name)
    with bench.aside(name):
        bench.call("expire_snapshots", name)
        theirs = left(bench, name, before)
    done = bench.run(name, Operation.EXPIRE_SNAPSHOTS, {"deletion.delay_hours": 0})
    assert left(bench, name, before) == theirs
    assert done.metrics["files_deleted"] == len(theirs.gone) > 0
    assert min(s.timestamp for s in bench.metadata(name).snapshots) > hours_ago(100)[0]


@pytest.mark.cases(1, 19)
def test_spark_expires_what_was_planned(bench: Bench, new_name: Callable[[str], str]) -> None:
    """With `engine: spark` Spark takes the planned snapshots alone: none that a reader pinned or a tag names."""
    name = new_name("metrics")
    tables.metrics(bench.lake, name, commits=24, rows_per_file=4)
    knobs: dict[str, Any] = {
        "deletion.delay_hours": 0,
        "expire_snapshots.retention_hours": 2,
        "expire_snapshots.min_snapshots_to_keep": 1,
    }
    planned = bench.run(name, Operation.EXPIRE_SNAPSHOTS, knobs, dry_run=True)
    metadata = bench.metadata(name)
    kept = {pin.snapshot_id for pin in planned.retained}
    expired = [s.snapshot_id for s in metadata.snapshots if s.snapshot_id not in kept]
    pinned = expired[len(expired) // 2]
    knobs |= {"expire_snapshots.reader_pins": {"flink": str(pinned)}, "expire_snapshots.engine": "spark"}
    read = bench.read(name, [str(pinned), *(r.name for r in metadata.refs)])
    outcome = bench.run(name, Operation.EXPIRE_SNAPSHOTS, knobs)
    assert outcome.state is OperationState.COMMITTED, outcome
    assert set(expired[: len(expired) // 2]) == metadata.by_id.keys() - bench.metadata(name).by_id.keys()
    assert bench.read(name, [str(pinned), *(r.name for r in metadata.refs)]) == read
