"""Compaction and delete rewriting through Spark: rows are kept, the dry run tells the truth, and it comes to rest."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import Row

from icewright.app.demo import tables
from icewright.core.policy import Operation
from icewright.core.runs import OperationState
from icewright.core.steps import Due
from tests.integration.bench import Bench, paths
from tests.integration.compacting import KNOBS, at_rest, compacted
from tests.integration.tables import backdate_all, create, insert

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("quick_spark")]

MERGE_ON_READ = {f"write.{verb}.mode": "merge-on-read" for verb in ("delete", "update", "merge")}


def lineage(bench: Bench, name: str) -> list[Row]:
    """Row lineage of a v3 table."""
    return bench.sql(
        f"SELECT *, _row_id, _last_updated_sequence_number FROM {bench.lake.quoted(name)} ORDER BY _row_id"  # noqa: S608 - quoted
    )


def deletes(live: frozenset[tuple[int, str]]) -> int:
    """How many delete files are live."""
    return sum(content != 0 for content, _ in live)


def _orders(bench: Bench, name: str) -> None:
    tables.orders(bench.lake, name, commits=3, rows_per_file=60)


def _payments(bench: Bench, name: str) -> None:
    tables.payments(bench.lake, name, checkpoints=9, rows_per_file=40)


def _customers(bench: Bench, name: str) -> None:
    tables.customers(bench.lake, name, commits=4, rows_per_file=8)


def _clicks(bench: Bench, name: str) -> None:
    tables.clicks(bench.lake, name, commits=20, rows_per_file=5)


@pytest.mark.cases(20, 24, 27, 30, 41)
@pytest.mark.parametrize(
    "build", [_orders, _payments, _customers, _clicks], ids=["positions", "equality", "two specs", "stream"]
)
def test_rows_are_kept_and_it_comes_to_rest(
    build: Callable[[Bench, str], None], bench: Bench, new_name: Callable[[str], str]
) -> None:
    """Every row stays, the deletes that were applied are gone, and the next evaluation finds nothing due."""
    name = new_name("compact")
    build(bench, name)
    found = compacted(bench, name)
    assert found.removed
    at_rest(bench, name)
    assert deletes(bench.live(name)) <= deletes(found.before) // 2


@pytest.mark.cases(31, 35, 38)
def test_deletion_vectors_go_with_their_files(bench: Bench, new_name: Callable[[str], str]) -> None:
    """Compacted v3 files lose their deletion vectors, rows keep their ids, and an emptied group leaves no file."""
    name = new_name("vectors")
    tables.returns(bench.lake, name, size=300)
    quoted = bench.lake.quoted(name)
    bench.sql(f"DELETE FROM {quoted} WHERE reason = 'wrong' AND return_id % 2 = 0")  # noqa: S608 - quoted
    bench.sql(f"DELETE FROM {quoted} WHERE reason = 'wrong' AND return_id % 2 = 1")  # noqa: S608 - quoted
    backdate_all(bench, name, 50, 5)
    before = lineage(bench, name)
    found = compacted(bench, name)
    assert lineage(bench, name) == before
    assert deletes(found.after) == 0
    at_rest(bench, name)
    assert bench.sql(f"SELECT count(*) FROM {quoted} WHERE reason = 'wrong'")[0][0] == 0  # noqa: S608 - quoted


@pytest.mark.cases(23)
def test_equality_deletes_beyond_the_partition(bench: Bench, new_name: Callable[[str], str]) -> None:
    """A global equality delete outlives the rewriting of the old spec's files alone."""
    name = new_name("global")
    tables.payments(bench.lake, name, checkpoints=9, rows_per_file=40)
    with bench.lake.catalog.load_table(name).update_spec() as spec:
        spec.add_identity("method")
    insert(
        bench,
        bench.lake.quoted(name),
        "(90001, 1, 'card', 1.00, NULL)",
        "(90002, 2, 'card', 1.00, NULL), (90003, 3, 'cash', 2.00, NULL)",
    )
    knobs = {**KNOBS, "compact.where": "method = 'card'"}
    read = bench.read(name)
    bench.run(name, Operation.COMPACT, knobs)
    assert bench.read(name) == read
    compacted(bench, name, {**KNOBS, "compact.hot_partitions": "include"})


@pytest.mark.parametrize("version", [2, 3])
def test_position_deletes_are_merged(version: int, bench: Bench, new_name: Callable[[str], str]) -> None:
    """Many position delete files become few, equality deletes stay, and what v2 wrote is read in v3 too."""
    name = new_name("deletes")
    partitioned = {**MERGE_ON_READ, "write.delete.granularity": "partition"}
    quoted = create(bench, name, "id int, part string", "part", partitioned)
    insert(
        bench,
        quoted,
        ", ".join(f"({n}, 'ab'[{n % 2}])".replace("'ab'[0]", "'a'").replace("'ab'[1]", "'b'") for n in range(40)),
    )
    for remainder in range(4):
        bench.sql(f"DELETE FROM {quoted} WHERE id % 10 = {remainder}")  # noqa: S608 - quoted
    if version == 3:
        bench.sql(f"ALTER TABLE {quoted} SET TBLPROPERTIES ('format-version' = '3')")
    read, before = bench.read(name), bench.live(name)
    knobs = {**KNOBS, "compact.delete_file_threshold": 99, "compact.delete_ratio_threshold": 1.0}
    result = bench.run(name, Operation.REWRITE_DELETES, knobs, dry_run=True)
    done = bench.run(name, Operation.REWRITE_DELETES, knobs)
    assert done.state is OperationState.COMMITTED, done
    after = bench.live(name)
    assert bench.read(name) == read
    gone = paths(p for content, p in before - after if content == 1)
    assert paths(f.path for f in result.files) == paths(f.path for f in done.files) == gone
    assert deletes(after) < deletes(before)
    assert not isinstance(bench.evaluate(name, knobs).verdicts[Operation.REWRITE_DELETES], Due)


@pytest.mark.cases(44, 45, 50)
def test_evolved_values_of_every_type(bench: Bench, new_name: Callable[[str], str]) -> None:
    """Columns dropped and added again, renamed and widened, and nested ones, hold the same values."""
    name = new_name("types")
    columns = (
        "id int, f float, dec decimal(5, 2), again string, arr array<struct<x: int, y: string>>, "
        "m map<string, array<int>>, s struct<a: int, b: struct<c: string>>, ts timestamp, tn timestamp_ntz, bin binary"
    )
    nested = (
        "array(named_struct('x', 1, 'y', 'é'), NULL), map('k', array(1, NULL)), "
        "named_struct('a', NULL, 'b', named_struct('c', 'z')), timestamp'2026-01-01 01:02:03.000004', "
        "timestamp_ntz'1969-12-31 23:59:59', x'00ff'"
    )
    quoted = create(bench, name, columns)
    insert(bench, quoted, f"(1, 1.5, -1.25, 'old', {nested})", f"(2, float('nan'), NULL, 'old', {nested})")
    for change in (
        "ALTER COLUMN id TYPE bigint",
        "ALTER COLUMN f TYPE double",
        "ALTER COLUMN dec TYPE decimal(9, 2)",
        "DROP COLUMN again",
        "ADD COLUMN again string",
        "RENAME COLUMN m TO mm",
        "ADD COLUMN s.b.d int",
    ):
        bench.sql(f"ALTER TABLE {quoted} {change}")
    values = nested.replace("named_struct('c', 'z')", "named_struct('c', 'z', 'd', 7)")
    insert(bench, quoted, f"(9223372036854775807, -0.0, 1234567.89, {values}, 'new')")
    compacted(bench, name)
    rows = bench.sql(f"SELECT id, again FROM {quoted} ORDER BY id")  # noqa: S608 - quoted
    assert [row["again"] for row in rows] == [None, None, "new"]
    at_rest(bench, name)


def test_hot_partition_is_left_to_its_writer(bench: Bench, new_name: Callable[[str], str]) -> None:
    """A partition that was just updated is skipped and named; every other one is compacted, no file of it touched."""
    name = new_name("hot")
    quoted = create(bench, name, "id int, part string", "part")
    insert(bench, quoted, "(1, 'cold'), (2, 'hot'), (3, 'alone')", "(4, 'cold'), (5, 'hot')")
    backdate_all(bench, name, 20, 10)
    insert(bench, quoted, "(6, 'hot')")
    bench.sql(f"UPDATE {quoted} SET id = 7 WHERE id = 6")  # noqa: S608 - quoted; writers that only append do not conflict
    verdict = bench.evaluate(name, KNOBS).verdicts[Operation.COMPACT]
    assert isinstance(verdict, Due)
    assert "part=hot" in verdict.why
    found = compacted(bench, name)
    assert len(found.removed) == 2
    assert all("part=cold" in path for path in found.removed)
    assert any("part=hot" in note for note in found.outcome.notes)


@pytest.mark.parametrize("strategy", ["sort", "zorder"])
def test_sorting_comes_to_rest_too(strategy: str, bench: Bench, new_name: Callable[[str], str]) -> None:
    """A sorted or z-ordered table is not due again."""
    name = new_name("sorted")
    quoted = create(bench, name, "id int, part string")
    insert(bench, quoted, "(3, 'a'), (4, 'b')", "(1, 'a'), (2, 'b')")
    knobs = {**KNOBS, "compact.strategy": strategy, "compact.sort_order": "id, part"}
    compacted(bench, name, knobs)
    at_rest(bench, name, knobs)


@pytest.mark.parametrize("engine", ["auto", "spark"])
def test_no_value_is_written_that_spark_misreads(
    engine: str, bench: Bench, new_name: Callable[[str], str], tmp_path: Path
) -> None:
    """It would write 123.45 for a decimal of another scale, 1970 for milliseconds, and 0 for a null that may not be."""
    foreign = {
        "decimal(10,2)": pa.array([Decimal("1.2345")]),
        "array<decimal(10,2)>": pa.array([[Decimal("1.2345")]]),
        "timestamp": pa.array([2**62], pa.timestamp("ms", "UTC")),
        "int not null": pa.array([None], pa.int32()),
    }
    for number, (kind, values) in enumerate(foreign.items()):
        name = new_name(f"misread{number}")
        quoted = create(bench, name, f"c {kind}")
        folder = tmp_path / str(number)
        folder.mkdir()
        pq.write_table(pa.table({"c": values}), folder / "foreign.parquet")
        bench.call("add_files", name, f"source_table => '`parquet`.`{folder}`'")
        before, how = bench.live(name), {"compact.engine": engine, "compact.rewrite_all": True}
        for dry_run in (True, False) if engine == "spark" else (False,):
            done = bench.run(name, Operation.COMPACT, how, dry_run=dry_run)
            assert done.state is not OperationState.COMMITTED, (quoted, done)
            assert "reads" in done.reason, done
        assert bench.live(name) == before
