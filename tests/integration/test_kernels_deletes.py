"""Compaction as Arrow applies every kind of delete as Spark's own does, and leaves the same delete files behind."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from datetime import date
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from icewright.core.policy import Operation
from icewright.core.runs import OperationState
from icewright.core.steps import Due
from tests.integration.bench import Bench
from tests.integration.compacting import compacted
from tests.integration.javacore import JavaTable
from tests.integration.pictures import KNOBS, compare, few
from tests.integration.tables import create, insert
from tests.nightly import nightly

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("quick_spark")]

Name = Callable[[str], str]
MERGE_ON_READ = {f"write.{verb}.mode": "merge-on-read" for verb in ("delete", "update", "merge")}
_FILE_PATH, _POSITION = 2_147_483_546, 2_147_483_545  # reserved field ids


def ranges(bench: Bench, quoted: str, files: int, rows: int = 20) -> None:
    """Append files of ids that follow one another, in partitions of which one is null."""
    for first in range(0, files * rows, rows):
        bench.sql(
            f"INSERT INTO {quoted} SELECT /*+ COALESCE(1) */ id, if(id % 3 = 0, NULL, 'a') "  # noqa: S608 - quoted
            f"FROM range({first}, {first + rows})"
        )


@pytest.mark.cases(27, 31, 35)
@pytest.mark.parametrize(("version", "granularity"), few(2, ((2, "partition"), (3, "file"), (2, "file"))))
def test_merge_on_read(version: int, granularity: str, bench: Bench, new_name: Name) -> None:
    """Rows deleted and updated in place are gone, a partition without rows has no file, lineage is kept."""
    name = new_name("positions")
    properties = {**MERGE_ON_READ, "write.delete.granularity": granularity}
    quoted = create(bench, name, "id int, part string", "part", properties, version=version)
    ranges(bench, quoted, 3)
    for change in (
        f"DELETE FROM {quoted} WHERE id % 5 = 1",  # noqa: S608 - quoted
        f"UPDATE {quoted} SET id = id + 1000 WHERE id % 7 = 2",  # noqa: S608 - quoted
        f"DELETE FROM {quoted} WHERE part IS NULL AND id > 2",  # noqa: S608 - quoted
        f"DELETE FROM {quoted} WHERE part IS NULL",  # noqa: S608 - quoted
    ):
        bench.sql(change)
    found = compare(bench, name)
    assert found.differences == []
    assert found.before.deletes
    assert len(found.arrow.files) == 1


def position_deletes(java: JavaTable, rows: Sequence[tuple[str, int]]) -> Any:
    """A position delete file of an unpartitioned spec with these rows as they are."""
    path = java._path()
    fields = (("file_path", pa.string(), _FILE_PATH), ("pos", pa.int64(), _POSITION))
    schema = pa.schema([pa.field(n, kind, False, {"PARQUET:field_id": str(number)}) for n, kind, number in fields])
    pq.write_table(pa.table([list(column) for column in zip(*rows, strict=True)], schema=schema), path)
    builder = java.java.FileMetadata.deleteFileBuilder(java.table.spec()).ofPositionDeletes()
    builder.withPath(f"file://{path}").withFormat("PARQUET").withFileSizeInBytes(path.stat().st_size)
    return builder.withRecordCount(len(rows)).build()


def _positions(bench: Bench, quoted: str, _: str) -> None:
    bench.sql(f"DELETE FROM {quoted} WHERE id % 5 = 1")  # noqa: S608 - quoted


def _keys(bench: Bench, _: str, name: str) -> None:
    java = JavaTable.load(bench, name)
    java.row_delta(deletes=[java.equality_deletes({"id": [1, 22], "part": ["a"]}, ["id"])])


@pytest.mark.cases(129, 137)
@pytest.mark.parametrize("knobs", [{}, {"compact.where": "id >= 0"}, {"compact.engine": "spark"}], ids=str)
@pytest.mark.parametrize(("version", "delete"), [(2, _positions), nightly(2, _keys), nightly(3, _positions)])
def test_a_second_pass_finds_nothing(
    version: int, delete: Callable[[Bench, str, str], None], knobs: Mapping[str, object], bench: Bench, new_name: Name
) -> None:
    """Whoever commits, deletes of the newest snapshot go with the files that they name, and nothing is due again."""
    name = new_name("twice")
    properties = {**MERGE_ON_READ, "write.delete.granularity": "partition"}
    quoted = create(bench, name, "id int, part string", "part", properties, version=version)
    ranges(bench, quoted, 3)
    delete(bench, quoted, name)
    compacted(bench, name, {**KNOBS, **knobs})
    assert {content for content, _ in bench.live(name)} == {0}
    verdicts = bench.evaluate(name, {**KNOBS, **knobs}).verdicts
    assert not [
        why for why in (verdicts[Operation.COMPACT], verdicts[Operation.REWRITE_DELETES]) if isinstance(why, Due)
    ]
    assert bench.run(name, Operation.COMPACT, {**KNOBS, **knobs}).state is OperationState.SKIPPED


@pytest.mark.cases(27, 29)
def test_positions_in_no_order(bench: Bench, new_name: Name) -> None:
    """Positions may be named twice, in no order, for several files and for files that there are not."""
    name = new_name("unsorted")
    ranges(bench, create(bench, name, "id bigint, part string"), 3)
    java = JavaTable.load(bench, name)
    one, other, _ = (live.path for live in java.live())
    gone = [(other, 7), (one, 3), (one, 1), (one, 3), (other, 0), ("file:/elsewhere", 1), (one, 19)]
    java.row_delta(deletes=[position_deletes(java, gone), position_deletes(java, [(one, 1), (other, 19)])])
    found = compare(bench, name)
    assert found.differences == []
    assert sum(found.arrow.rows.values()) == 60 - 6


@pytest.mark.cases(35, 36)
def test_vectors_that_share_a_file(bench: Bench, new_name: Name) -> None:
    """Of the vectors in one Puffin file those of compacted files go, and the others stay in force."""
    name = new_name("vectors")
    quoted = create(bench, name, "id int, part string", "part", MERGE_ON_READ, version=3)
    insert(bench, quoted, "(1, 'a'), (2, 'a'), (3, 'b'), (4, 'b')", "(5, 'a'), (6, 'a'), (7, 'c'), (8, 'c')")
    java = JavaTable.load(bench, name)
    java.row_delta(deletes=java.vectors({live: [1] for live in java.live()}))
    found = compare(bench, name, {"compact.where": "part = 'a'"})
    assert found.differences == []
    assert sum(found.before.deletes.values()) == 4
    assert sum(found.arrow.deletes.values()) == 2


@pytest.mark.cases(37, 39)
def test_an_upgraded_table(bench: Bench, new_name: Name) -> None:
    """Files of v2 that a commit of v3 gave ids to keep them, old position deletes and new vectors apply."""
    name = new_name("upgraded")
    quoted = create(bench, name, "id bigint, part string", "", MERGE_ON_READ)
    ranges(bench, quoted, 2)
    bench.sql(f"DELETE FROM {quoted} WHERE id % 5 = 1")  # noqa: S608 - quoted
    bench.sql(f"ALTER TABLE {quoted} SET TBLPROPERTIES ('format-version' = '3')")
    insert(bench, quoted, "(101, 'a'), (102, 'b')")
    bench.sql(f"DELETE FROM {quoted} WHERE id = 2")  # noqa: S608 - quoted
    found = compare(bench, name)
    assert found.differences == []
    assert {kind for _, kind, _ in found.before.deletes} == {"parquet", "puffin"}


@pytest.mark.cases(39)
def test_rows_without_ids(bench: Bench, new_name: Name) -> None:
    """Rows of v2 that no commit of v3 gave ids get each one of its own, as the order of their new file has it."""
    name = new_name("idless")
    quoted = create(bench, name, "id int")
    insert(bench, quoted, "(1), (2), (3)", "(4), (5)")
    bench.sql(f"ALTER TABLE {quoted} SET TBLPROPERTIES ('format-version' = '3')")
    found = compare(bench, name)
    assert [said for said in found.differences if not said.startswith("rows")] == []
    rows = bench.sql(f"SELECT id, _row_id AS row FROM {bench.lake.quoted(name)} ORDER BY id")  # noqa: S608 - quoted
    assert [row["id"] for row in rows] == [1, 2, 3, 4, 5]
    assert sorted(row["row"] for row in rows) == [0, 1, 2, 3, 4]


KEYED = (
    "id int, d double, f float, dec decimal(10, 2), bin binary, s string, dt date, b boolean, big decimal(38, 10), "
    "part string"
)
KEYED_ROWS = (
    "1, -0.0D, 1.0F, 1.25, x'00', 'a', date'2020-01-01', true, 1.5",
    "2, 0.0D, float('nan'), -1.25, x'', '', NULL, false, -1.5",
    "3, double('nan'), NULL, NULL, NULL, NULL, date'0001-01-01', NULL, NULL",
    "NULL, NULL, -0.0F, 0.00, x'ff', 'é', NULL, NULL, 0",
)
# By partition: the keys that are deleted there, and how many of the rows that leaves.
KEYS: Mapping[str, tuple[Mapping[str, list[Any]], int]] = {
    "null": ({"id": [None]}, 3),
    "minus zero": ({"d": [-0.0]}, 3),
    "zero": ({"d": [0.0]}, 3),
    "nan": ({"d": [math.nan, None]}, 2),
    "nan of a float": ({"f": [math.nan]}, 3),
    "decimal": ({"dec": [Decimal("-1.25"), Decimal("0.00")]}, 2),
    "long decimal": ({"big": [Decimal("-1.5000000000"), None]}, 2),
    "binary": ({"bin": [b"", b"\xff"]}, 2),
    "text": ({"s": ["", "é", "b"]}, 2),
    "date": ({"dt": [date(1, 1, 1), None]}, 1),
    "boolean": ({"b": [None, True]}, 1),
    "two columns": ({"id": [1, 2, 3], "s": ["a", "x", None]}, 2),
}


@pytest.mark.cases(22, 24, 25)
def test_equality_deletes_on_every_type(bench: Bench, new_name: Name) -> None:
    """Null equals null and NaN NaN, zeros of either sign differ, and keys of a partition are of that one alone."""
    name = new_name("keys")
    quoted = create(bench, name, KEYED, "part")
    for row in KEYED_ROWS:
        union = " UNION ALL ".join(f"SELECT {row}, '{part}'" for part in KEYS)
        bench.sql(f"INSERT INTO {quoted} {union}")
    java = JavaTable.load(bench, name)
    java.row_delta(
        deletes=[java.equality_deletes({**keys, "part": [part]}, list(keys)) for part, (keys, _) in KEYS.items()]
    )
    found = compare(bench, name)
    assert found.differences == []
    left = {json_part: sum(file.footer.num_rows for file in some) for json_part, some in found.arrow.files.items()}
    assert left == {f'0 ["{part}"]': rows for part, (_, rows) in KEYS.items()}


@pytest.mark.cases(22, 144)
def test_deletes_that_readers_pass_over(bench: Bench, new_name: Name) -> None:
    """By bounds, which leave NaN out, Iceberg finds a deleted NaN nowhere: rows that all readers see stay."""
    name = new_name("unseen")
    create(bench, name, "id int, d double")
    for _ in range(2):
        java = JavaTable.load(bench, name)
        java.append(java.data({"id": [1, 2], "d": [1.0, math.nan]}))
    java = JavaTable.load(bench, name)
    java.row_delta(deletes=[java.equality_deletes({"d": [math.nan, 5.0]}, ["d"])])
    refused = bench.run(name, Operation.REWRITE_DELETES, {"rewrite_deletes.min_equality_delete_files": 1})
    assert "readers may pass over the delete of a key that it has" in refused.reason
    found = compare(bench, name)
    assert found.differences == []
    assert sum(found.arrow.rows.values()) == 4


@pytest.mark.cases(20, 21, 24)
def test_equality_deletes_by_sequence_number(bench: Bench, new_name: Name) -> None:
    """Keys delete rows that are older, never rows of the same commit or of later ones, each file by its own columns."""
    name = new_name("sequence")
    quoted = create(bench, name, "id int, s string")
    insert(bench, quoted, "(1, 'old'), (2, 'old')", "(1, 'older'), (3, 'old')")
    java = JavaTable.load(bench, name)
    java.row_delta([java.data({"id": [1], "s": ["same"]})], [java.equality_deletes({"id": [1]}, ["id"])])
    insert(bench, quoted, "(1, 'later')")
    java = JavaTable.load(bench, name)
    keys = [java.equality_deletes({"id": [2]}, ["id"]), java.equality_deletes({"s": ["older", "same"]}, ["s"])]
    java.row_delta([java.data({"id": [2], "s": ["new"]})], keys)
    found = compare(bench, name)
    assert found.differences == []
    assert sum(found.arrow.rows.values()) == 3


@pytest.mark.cases(20)
def test_equality_deletes_that_are_not_parquet(bench: Bench, new_name: Name) -> None:
    """Arrow leaves them to Spark, and says so; positions do not replace them."""
    name = new_name("formats")
    quoted = create(bench, name, "id int, part string")
    insert(bench, quoted, "(1, 'a'), (2, 'a'), (3, 'a')", "(1, 'b'), (4, 'b')")
    java = JavaTable.load(bench, name)
    java.row_delta(deletes=[java.equality_deletes_as("orc", "id", 1), java.equality_deletes_as("avro", "id", 2)])
    insert(bench, quoted, "(1, 'later')")
    unchanged = bench.run(name, Operation.REWRITE_DELETES, {"rewrite_deletes.min_equality_delete_files": 1})
    assert "not all files there are Parquet" in unchanged.reason
    refused = bench.run(name, Operation.COMPACT, {**KNOBS, "compact.engine": "arrow"})
    assert "compact.engine is arrow, but some files are not Parquet" in refused.reason
    done = compacted(bench, name, KNOBS)
    assert "kernel spark: some files are not Parquet" in done.outcome.notes
    rows = bench.sql(f"SELECT id, part FROM {quoted} ORDER BY id")  # noqa: S608 - quoted
    assert [tuple(row) for row in rows] == [(1, "later"), (3, "a"), (4, "b")]


@pytest.mark.cases(26, 45)
def test_equality_deletes_on_columns_that_changed(bench: Bench, new_name: Name) -> None:
    """Keys apply though their column was dropped, renamed or widened since."""
    name = new_name("changed")
    quoted = create(bench, name, "id int, gone string, f float")
    insert(bench, quoted, "(1, 'g', 1.5)", "(2, NULL, 2.5)", "(3, 'h', NULL)", "(4, 'i', 0.1)")
    java = JavaTable.load(bench, name)
    for keys in ({"gone": ["g", None]}, {"f": [0.1]}):
        java.row_delta(deletes=[java.equality_deletes(keys, list(keys))])
    for change in ("DROP COLUMN gone", "ALTER COLUMN f TYPE double", "RENAME COLUMN f TO renamed"):
        bench.sql(f"ALTER TABLE {quoted} {change}")
    found = compare(bench, name)
    assert found.differences == []
