"""Statistics that Icewright computes are those of Spark's procedures, and Spark goes on from them."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from icewright.core.paths import local_path
from icewright.core.policy import Operation
from icewright.core.runs import OperationState, Outcome
from tests.integration.bench import Bench
from tests.integration.javacore import JavaTable
from tests.integration.tables import create, insert
from tests.trino import trino

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("quick_spark")]

Name = Callable[[str], str]
STATISTICS = Operation.COMPUTE_STATISTICS
ALWAYS: Mapping[str, object] = {"compute_statistics.min_change": 0}
COLUMNS = (
    "id int, big bigint, s string, day date, ts timestamp, local timestamp_ntz, flag boolean, f float, d double, "
    "price decimal(12, 2), large decimal(38, 4), raw binary, part string"
)
MERGE_ON_READ = {f"write.{verb}.mode": "merge-on-read" for verb in ("delete", "update", "merge")}


def document(bench: Bench, name: str) -> Mapping[str, Any]:
    """The current metadata file as it stands."""
    path = local_path(bench.metadata(name).metadata_location)
    assert path
    found: Mapping[str, Any] = json.loads(Path(path).read_text(encoding="utf-8"))
    return found


def distinct(bench: Bench, name: str) -> dict[int, int]:
    """The number of distinct values by column, as the statistics of the current snapshot say it."""
    found = document(bench, name)
    (file,) = [f for f in found["statistics"] if f["snapshot-id"] == found["current-snapshot-id"]]
    return {blob["fields"][0]: int(blob["properties"]["ndv"]) for blob in file["blob-metadata"]}


def partitions(bench: Bench, name: str) -> list[dict[str, Any]]:
    """The rows of the current snapshot's partition statistics; equal tuples of several specs have no order."""
    found = document(bench, name)
    files = [f for f in found["partition-statistics"] if f["snapshot-id"] == found["current-snapshot-id"]]
    path = local_path(files[0]["statistics-path"])
    rows: list[dict[str, Any]] = pq.ParquetFile(path).read().to_pylist()
    assert [row["partition"] for row in rows] == sorted((row["partition"] for row in rows), key=_nulls_first)
    return sorted(rows, key=lambda row: (_nulls_first(row["partition"]), row["spec_id"]))


def _nulls_first(partition: Mapping[str, Any]) -> list[tuple[bool, Any]]:
    return [(value is not None, str(value)) for value in partition.values()]


def cells(chance: random.Random, count: int) -> str:
    """SQL of rows with nulls, empty texts and repeated values."""

    def value(text: str) -> str:
        return "null" if chance.random() < 0.1 else text

    def row() -> str:
        n = chance.randrange(60)
        cells = (
            f"{n - 5}",
            f"{n << 33}L",
            f"'{'é' * (n % 25)}'",
            f"date '20{n % 80 + 10}-01-02'",
            f"timestamp '2026-01-{n % 28 + 1:02d} 01:02:03.00{n % 10}'",
            f"timestamp_ntz '1969-12-{n % 28 + 1:02d} 00:00:00'",
            "true" if n % 2 else "false",
            f"float({n - 30}.5)",
            f"double({n - 30} / 7)",
            f"cast({n - 30}.25 as decimal(12, 2))",
            f"cast('{n - 30}{'7' * 20}.5' as decimal(38, 4))",
            f"X'{n:02x}00'",
            f"'p{n % 3}'",
        )
        return "(" + ", ".join(value(cell) for cell in cells) + ")"

    return ", ".join(row() for _ in range(count))


def compute(bench: Bench, name: str, **knobs: object) -> Outcome:
    """Run the operation by hand; the dry run before it writes nothing and reads as much."""
    said = {**ALWAYS, **{k.replace("__", "."): v for k, v in knobs.items()}}
    files = bench.files(name)
    planned = bench.run(name, STATISTICS, said, dry_run=True)
    assert bench.files(name) == files
    done = bench.run(name, STATISTICS, said)
    assert done.state is OperationState.COMMITTED, done
    for metric in ("columns_counted", "partitions_counted", "files_read", "bytes_read", "rows_read"):
        assert planned.metrics[metric] == done.metrics[metric], metric
    return done


def same_as_spark(bench: Bench, name: str) -> None:
    """Spark's procedures, on the table without our statistics, find the same numbers; no row of the table changed."""
    ours, ours_of_partitions = distinct(bench, name), partitions(bench, name)
    table = JavaTable.load(bench, name).table
    snapshot = table.currentSnapshot().snapshotId()
    table.updatePartitionStatistics().removePartitionStatistics(snapshot).commit()
    table.updateStatistics().removeStatistics(snapshot).commit()
    bench.call("compute_table_stats", name)
    bench.call("compute_partition_stats", name)
    assert ours == distinct(bench, name)
    assert ours_of_partitions == partitions(bench, name)


@pytest.mark.parametrize("version", [2, 3])
def test_random_tables(bench: Bench, new_name: Name, version: int) -> None:
    """Over all types, specs and kinds of deletes, both kinds of statistics are those of Spark's procedures."""
    chance, name = random.Random(version), new_name("statistics")
    quoted = create(bench, name, COLUMNS, partition="part", properties=MERGE_ON_READ, version=version)
    insert(bench, quoted, *(cells(chance, 40) for _ in range(3)))
    bench.sql(f"ALTER TABLE {quoted} ADD PARTITION FIELD days(ts)")
    insert(bench, quoted, cells(chance, 40))
    bench.sql(f"ALTER TABLE {quoted} DROP PARTITION FIELD part")
    insert(bench, quoted, cells(chance, 10))
    bench.sql(f"DELETE FROM {quoted} WHERE id < 10")  # noqa: S608 - quoted
    bench.sql(f"UPDATE {quoted} SET s = 'new' WHERE id = 20")  # noqa: S608 - quoted
    compute(bench, name)
    same_as_spark(bench, name)


def test_new_files_alone_are_read(bench: Bench, new_name: Name) -> None:
    """After appends the sketches of before and the new files make the numbers; a rewrite is not read at all."""
    name = new_name("statistics")
    quoted = create(bench, name, "id bigint, s string, part string", partition="part")
    numbers = "SELECT id, cast(id % 5000 AS string), cast(id % 2 AS string) FROM range({}, {})"
    bench.sql(f"INSERT INTO {quoted} {numbers.format(0, 20_000)}")
    first = compute(bench, name)
    assert first.metrics["rows_read"] == 20_000
    for start in (20_000, 30_000):
        bench.sql(f"INSERT INTO {quoted} {numbers.format(start, start + 3_000)}")
    bench.call("rewrite_data_files", name, "options => map('rewrite-all', 'true')")
    second = compute(bench, name)
    assert second.metrics["rows_read"] == 6_000
    merged = distinct(bench, name)
    document_before = document(bench, name)
    bench.call("compute_table_stats", name)
    spark = distinct(bench, name)
    assert spark[3] == merged[3] == 2
    for column, true in ((1, 26_000), (2, 5_000)):
        assert abs(merged[column] - true) < 0.05 * true
        assert abs(spark[column] - true) < 0.05 * true
    assert document_before["current-snapshot-id"] == document(bench, name)["current-snapshot-id"]
    bench.sql(f"INSERT INTO {quoted} {numbers.format(40_000, 40_100)}")
    theirs = compute(bench, name, compute_statistics__columns="id")
    assert theirs.metrics["rows_read"] == 26_100  # sketches of others are not gone on from
    bench.sql(f"DELETE FROM {quoted} WHERE id < 20000")  # noqa: S608 - quoted
    deleted = compute(bench, name, compute_statistics__columns="id")
    assert deleted.metrics["rows_read"] < 10_000
    assert abs(distinct(bench, name)[1] - 6_100) < 400
    java = JavaTable.load(bench, name)
    stats = java.table.newPartitionStatisticsScan().scan().iterator()
    read = []
    while stats.hasNext():
        one = stats.next()
        read.append((one.dataFileCount(), one.dataRecordCount()))
    assert sum(records for _, records in read) == sum(row["data_record_count"] for row in partitions(bench, name))


@pytest.mark.parametrize(("strategy", "target"), [("binpack", 0.1), ("sort", 0.004)])
def test_compaction_counts_what_it_reads(bench: Bench, new_name: Name, strategy: str, target: float) -> None:
    """Appended rows that compaction has merged are not read again, and the numbers are those of Spark."""
    name = new_name("statistics")
    quoted = create(bench, name, COLUMNS, partition="part")
    chance = random.Random(strategy)
    insert(bench, quoted, cells(chance, 40))
    compute(bench, name)
    insert(bench, quoted, *(cells(chance, 40) for _ in range(3)))
    merging = {
        "compact.min_input_files": 2,
        "compact.hot_partitions": "include",
        "compact.strategy": strategy,
        "compact.sort_order": "id",
        "compact.target_file_size_mb": target,
        "compute_statistics.enabled": True,
    }
    merged = bench.run(name, Operation.COMPACT, merging)
    assert (merged.state, "kernel arrow" in merged.notes[0]) == (OperationState.COMMITTED, True), merged
    done = compute(bench, name)
    assert done.metrics["rows_read"] < 20, done  # of 120: of a partition that was not worth merging
    same_as_spark(bench, name)


def test_spark_plans_by_them(bench: Bench, new_name: Name) -> None:
    """Spark's planner takes the distinct values of columns from the statistics of the snapshot that it reads."""
    name = new_name("statistics")
    quoted = create(bench, name, "id bigint, s string")
    bench.sql(f"INSERT INTO {quoted} SELECT id, cast(id % 7 AS string) FROM range(100)")  # noqa: S608 - quoted
    compute(bench, name)
    session: Any = bench.lake.spark()
    session.conf.set("spark.sql.cbo.enabled", "true")
    try:
        frame = session.sql(f"SELECT id, s FROM {quoted}")  # noqa: S608 - quoted
        found = frame._jdf.queryExecution().optimizedPlan().stats().attributeStats().toString()
    finally:
        session.conf.unset("spark.sql.cbo.enabled")
    assert [int(number) for number in re.findall(r"ColumnStat\(Some\((\d+)\)", found)] == [100, 7], found


@pytest.mark.nightly
def test_trino_plans_by_them(bench: Bench, new_name: Name, tmp_path: Path) -> None:
    """Trino shows the numbers of the statistics, and after appends those of the newest snapshot that has some."""
    name = new_name("statistics")
    quoted = create(bench, name, "id bigint, s string")
    bench.sql(f"INSERT INTO {quoted} SELECT id, cast(id % 7 AS string) FROM range(100)")  # noqa: S608 - quoted
    compute(bench, name)
    with trino(bench.catalog, bench.lake.warehouse, tmp_path) as server:
        for rows in (100, 120):
            shown = {row[0]: row[2] for row in server.rows(f"SHOW STATS FOR lake.{name}")}
            assert (shown["id"], shown["s"]) == (100, 7)
            assert len(server.rows(f"SELECT id FROM lake.{name}")) == rows  # noqa: S608
            bench.sql(f"INSERT INTO {quoted} SELECT id, 's' FROM range(20)")  # noqa: S608 - quoted
        compute(bench, name)
        assert {row[0]: row[2] for row in server.rows(f"SHOW STATS FOR lake.{name}")}["s"] == 8


def test_equality_deletes(bench: Bench, new_name: Name) -> None:
    """Rows that equality deletes name do not count, also where the key is none of the counted columns."""
    name = new_name("statistics")
    create(bench, name, "id int, s string, part string", partition="part")
    java = JavaTable.load(bench, name)
    data: dict[str, list[Any]] = {"id": [1, 2, 3, 4], "s": ["a", "b", "c", "c"], "part": ["x"] * 4}
    java.append(java.data(data))
    keys = java.equality_deletes({"id": [1, 2], "part": ["x", "x"]}, ["id"])
    java.row_delta([java.data({"id": [1], "s": ["z"], "part": ["x"]})], [keys])
    compute(bench, name, compute_statistics__columns="s")
    assert distinct(bench, name) == {2: 2}  # c and z
    same = partitions(bench, name)
    assert [(row["equality_delete_file_count"], row["data_record_count"]) for row in same] == [(1, 5)]
