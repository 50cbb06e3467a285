"""Compaction as Arrow leaves what Spark's own leaves: rows, entries of files, their metrics and the files themselves.

Whatever is compared is compacted twice from the same bytes; see `pictures`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC, PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import (
    BinaryType,
    DecimalType,
    FixedType,
    IcebergType,
    ListType,
    LongType,
    NestedField,
    StringType,
    StructType,
    TimestampType,
    TimestamptzType,
    UUIDType,
)

from icewright.core.paths import local_path
from icewright.core.policy import Operation
from tests.integration.bench import Bench
from tests.integration.javacore import JavaTable
from tests.integration.pictures import KNOBS, DataFile, compare, few, live, picture
from tests.integration.tables import create, insert

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("quick_spark")]

Name = Callable[[str], str]


def select(bench: Bench, quoted: str, *rows: str) -> None:
    """Append rows of expressions that `VALUES` does not take, a commit each."""
    for row in rows:
        bench.sql(f"INSERT INTO {quoted} SELECT {row}")


TYPES = (
    "b boolean, t tinyint, i int, l bigint, f float, d double, d5 decimal(5, 2), d18 decimal(18, 4), "
    "d38 decimal(38, 10), s string, bin binary, dt date, ts timestamp, tn timestamp_ntz, "
    "st struct<a: int, b: struct<c: string, d: double>>, arr array<int>, m map<string, bigint>, "
    "ls array<struct<x: int, y: string>>, ml map<string, array<int>>"
)
ROWS = (
    (
        "true, 1Y, 1, 1L, float('nan'), double('nan'), -1.25, -12345.6789, -1234567890.0123456789, '', x'', "
        "date'0001-01-01', timestamp'0001-01-01 00:00:00', timestamp_ntz'0001-01-01 00:00:00', "
        "named_struct('a', 1, 'b', named_struct('c', 'x', 'd', double('nan'))), array(1, NULL), "
        "map('k', 1L, 'n', NULL), array(named_struct('x', 1, 'y', NULL), NULL), "
        "map('a', array(1, NULL), 'b', NULL, 'c', array())"
    ),
    (
        "false, -128Y, -2147483648, -9223372036854775808L, float('-infinity'), -0.0D, 999.99, 99999999999999.9999, "
        f"9999999999999999999999999999.9999999999, repeat('é', 6000), x'{'ff' * 20}', date'9999-12-31', "
        "timestamp'9999-12-31 23:59:59.999999', timestamp_ntz'9999-12-31 23:59:59.999999', "
        "named_struct('a', NULL, 'b', NULL), array(), map(), array(), map()"
    ),
    (
        f"true, 2Y, 2, 2L, float('infinity'), 0.0D, 0, 0, 0, repeat('\U0010ffff', 2000), x'{'ab' * 5000}', "
        f"{', '.join(['NULL'] * 8)}"
    ),
    ", ".join(["NULL"] * 19),
)


@pytest.mark.cases(49, 50)
@pytest.mark.parametrize("version", few(1, (2, 3)))
def test_every_type_of_spark(version: int, bench: Bench, new_name: Name) -> None:
    """Values at the limits of every type, long ones and nested ones, come out with the same bounds and counts."""
    name = new_name("types")
    select(bench, create(bench, name, TYPES, version=version), *ROWS)
    found = compare(bench, name)
    assert found.differences == []
    assert not isinstance(found.arrow.by_pyiceberg, str), found.arrow.by_pyiceberg
    assert not isinstance(found.arrow.by_duckdb, str), found.arrow.by_duckdb


@pytest.mark.cases(50)
def test_required_columns(bench: Bench, new_name: Name) -> None:
    """Required columns stay required, those inside of optional ones too, where nulls stand above them."""
    name = new_name("required")
    columns = (
        "id int NOT NULL, st struct<a: int NOT NULL, b: struct<c: int NOT NULL>>, d decimal(5, 2) NOT NULL, "
        "arr array<struct<x: int NOT NULL>>"
    )
    row = "1, named_struct('a', 1, 'b', named_struct('c', 2)), 1.5, array(named_struct('x', 1), NULL)"
    select(
        bench, create(bench, name, columns), row, "2, NULL, 2.5, NULL", "3, named_struct('a', 1, 'b', NULL), 1, array()"
    )
    assert compare(bench, name).differences == []


def made(
    bench: Bench, name: str, fields: dict[str, IcebergType], spec: PartitionSpec = UNPARTITIONED_PARTITION_SPEC
) -> Table:
    """A table of PyIceberg's."""
    bench.lake.identifier(name)
    schema = Schema(*(NestedField(number, *one, required=False) for number, one in enumerate(fields.items(), 1)))
    properties = {"format-version": "2", "write.parquet.compression-codec": "zstd"}
    return bench.lake.catalog.create_table(
        name, schema, f"file://{bench.lake.folder(name)}", spec, properties=properties
    )


@pytest.mark.cases(50)
def test_types_of_pyiceberg(bench: Bench, new_name: Name) -> None:
    """UUIDs, fixed values longer and shorter than bounds are, and strings of Arrow's large type, come out the same."""
    name = new_name("python")
    columns: dict[str, tuple[IcebergType, list[Any]]] = {
        "u": (UUIDType(), [UUID(int=0).bytes, UUID(int=2**128 - 1).bytes, None]),
        "short": (FixedType(7), [b"1234567", None, b"\xff" * 7]),
        "long": (FixedType(20), [b"a" * 20, b"\xff" * 20, None]),
        "ts": (TimestampType(), [datetime.min, None, datetime.max]),  # noqa: DTZ901 - without a zone
        "tz": (TimestamptzType(), [datetime.min.replace(tzinfo=UTC), None, datetime.max.replace(tzinfo=UTC)]),
        "s": (StringType(), ["x", None, "y" * 10_000]),
        "bin": (BinaryType(), [b"", None, b"\xff" * 5_000]),
        "dec": (DecimalType(20, 3), [Decimal("-1.001"), None, Decimal("12345678901234567.999")]),
    }
    table = made(bench, name, {column: kind for column, (kind, _) in columns.items()})
    rows = {column: values for column, (_, values) in columns.items()}
    for _ in range(2):
        table.append(pa.Table.from_pydict(rows, schema=table.schema().as_arrow()))
    assert compare(bench, name).differences == []


@pytest.mark.parametrize(
    "codec",
    few(1, [("zstd", "9"), ("gzip", None), ("snappy", None), ("lz4_raw", None), ("uncompressed", None)]),
    ids=lambda codec: str(codec[0]),
)
def test_files_as_the_properties_want_them(codec: tuple[str, str | None], bench: Bench, new_name: Name) -> None:
    """Codecs and levels, pages of v2, row groups, dictionaries and Bloom filters are as the table says."""
    name = new_name("codec")
    properties = {
        "write.parquet.compression-codec": codec[0],
        **({"write.parquet.compression-level": codec[1]} if codec[1] else {}),
        "write.parquet.page-version": "v2",
        "write.parquet.page-size-bytes": "1000",
        "write.parquet.row-group-size-bytes": "20000",
        "write.parquet.bloom-filter-enabled.column.k": "true",
        "write.parquet.dict-encoding-enabled.column.s": "false",
    }
    quoted = create(bench, name, "id int, s string, k string", "", properties)
    for first in (0, 3000):
        select(bench, quoted, f"id, concat('x', id % 7), concat('k', id * 2) FROM range({first}, {first + 3000})")
    found = compare(bench, name)
    assert found.differences == []
    ((file,),) = found.arrow.files.values()
    _, plain, _ = (file.footer.row_group(0).column(number) for number in range(3))
    assert not plain.has_dictionary_page
    with duckdb.connect() as connection:
        ask = "SELECT count(*) FILTER (bloom_filter_excludes), count(*) FROM parquet_bloom_probe(?, 'k', ?)"
        excluded = {key: connection.execute(ask, [local_path(file.path), key]).fetchone() for key in ("k4000", "k4001")}
    groups = file.footer.num_row_groups
    assert excluded["k4000"] != (groups, groups)
    assert excluded["k4001"] == (groups, groups)


TEXTS = range(1, 21)
GROUPS: Mapping[str, tuple[str, str, dict[str, str]]] = {  # columns, rows by their id, properties
    "repeating": (
        ", ".join(f"c{n} string" for n in TEXTS),
        ", ".join(f"'text number ' || (id * {n} % 50)" for n in TEXTS),
        {},
    ),
    "mixed": (
        "id bigint, d double, user string, kind string",
        "id, rand(1), lpad(id * 7919 % 100000, 9, '0'), 'kind ' || (id % 5)",
        {"size-bytes": "1500000"},
    ),
    "long": (
        "id bigint, u string, long string",
        "id, uuid(), repeat(lpad(id, 6, 'x'), 40)",
        {"size-bytes": "1000000", "check-min-record-count": "10"},
    ),
    "lists": (
        "id bigint, list array<bigint>, kind string",
        "id, array(id, id * 2), 'x' || (id % 9)",
        {"size-bytes": "400000", "size-track-uncompressed": "TRUE"},
    ),
}


@pytest.mark.cases(125)
@pytest.mark.parametrize("kind", few(2, [*GROUPS]))
def test_row_groups_as_spark_makes_them(kind: str, bench: Bench, new_name: Name) -> None:
    """By encoded bytes, when parquet-java looks at them; texts that repeat are held as codes until then."""
    name, (columns, row, properties) = new_name("groups"), GROUPS[kind]
    asked = {f"write.parquet.row-group-{key}": value for key, value in properties.items()}
    quoted = create(bench, name, columns, "", asked)
    for first in (0, 150_000):
        select(bench, quoted, f"/*+ COALESCE(1) */ {row} FROM range({first}, {first + 150_000})")
    saved, files = bench.save(name), list[DataFile]()
    for engine in ("spark", "arrow"):
        saved.restore()
        bench.run(name, Operation.COMPACT, {**KNOBS, "compact.engine": engine, "compact.task_memory_mb": 256})
        ((file,),) = live(JavaTable.load(bench, name), rows=False)[0].values()
        files.append(file)
    theirs, ours = ([f.footer.row_group(n).num_rows for n in range(f.footer.num_row_groups)] for f in files)
    assert len(ours) == pytest.approx(len(theirs), rel=0.2)
    assert ours[0] == pytest.approx(theirs[0], rel=0.2)


METRICS = "id int, s string, bin binary, st struct<a: int, b: string>, arr array<int>, d double, long string"


@pytest.mark.cases(49)
@pytest.mark.parametrize("mode", few(1, ("counts", "full", "none", "truncate(4)")))
def test_metrics_of_every_mode(mode: str, bench: Bench, new_name: Name) -> None:
    """Metrics are those of the table's mode and of its columns' own modes, of nested ones too."""
    name, said = new_name("metrics"), "write.metadata.metrics"
    own = {f"{said}.column.st.b": "full" if mode == "counts" else "counts", f"{said}.column.s": "truncate(3)"}
    long = {f"{said}.column.long": "truncate(20)"}  # beyond what Parquet's own statistics hold
    quoted = create(bench, name, METRICS, "", {f"{said}.default": mode, **own, **long})
    nested = "named_struct('a', 1, 'b', 'bcdefghijk')"
    select(bench, quoted, f"1, 'abcdefgh', x'ffffffffffff', {nested}, array(1, 2), double('nan'), repeat('lo', 3000)")
    select(bench, quoted, "2, NULL, NULL, NULL, NULL, 1.0, 'x'")
    assert compare(bench, name).differences == []


@pytest.mark.cases(49)
def test_many_columns_and_odd_names(bench: Bench, new_name: Name) -> None:
    """Of more than a hundred columns the first have metrics; names may hold blanks, quotes, dots and any letters."""
    name = new_name("many")
    odd = ("x y", 'q"z', "é中", "1st", "it's", "dots.in.it")
    columns = [*(f"`{column}` double" for column in odd), *(f"c{number} int" for number in range(110))]
    quoted = create(bench, name, ", ".join(columns))
    insert(bench, quoted, *[f"({', '.join(['1'] * len(columns))})"] * 2)
    found = compare(bench, name)
    # Parquet's own names are another matter: Iceberg's Java writes them as Avro would have them.
    assert [said for said in found.differences if "Parquet column" not in said] == []


EVOLVED = (
    "id int, st struct<a: int, b: struct<c: int>>, arr array<struct<x: int>>, m map<int, struct<x: float>>, "
    "d decimal(5, 2), again string, old int"
)
CHANGES = (
    "ALTER COLUMN id TYPE bigint",
    "ALTER COLUMN st.a TYPE bigint",
    "ALTER COLUMN st.b.c TYPE bigint",
    "ALTER COLUMN arr.element.x TYPE bigint",
    "ALTER COLUMN m.value.x TYPE double",
    "ALTER COLUMN d TYPE decimal(20, 2)",
    "ADD COLUMN st.b.new string",
    "ADD COLUMN arr.element.new array<int>",
    "ADD COLUMN m.value.y int FIRST",
    "RENAME COLUMN st.a TO aa",
    "DROP COLUMN m.value.y",
    "ADD COLUMN m.value.y string",
    "ADD COLUMN st.f int FIRST",
    "DROP COLUMN again",
    "ADD COLUMN again string FIRST",
    "RENAME COLUMN old TO renamed",
    "ALTER COLUMN renamed FIRST",
    "ADD COLUMN fresh struct<a: int>",
)


@pytest.mark.cases(44, 45)
@pytest.mark.parametrize("version", few(1, (2, 3)))
def test_evolved_schemas(version: int, bench: Bench, new_name: Name) -> None:
    """Columns renamed, dropped and added again, moved and widened, inside of others too, hold what they should."""
    name = new_name("evolved")
    quoted = create(bench, name, EVOLVED, version=version)
    select(
        bench,
        quoted,
        "1, named_struct('a', 1, 'b', named_struct('c', 2)), array(named_struct('x', 1), NULL), "
        "map(1, named_struct('x', 1.5F), 2, NULL), 1.25, 'gone', 5",
        "2, NULL, NULL, NULL, NULL, NULL, NULL",
        "3, named_struct('a', 1, 'b', NULL), array(), map(), -1.25, '', 6",
    )
    for change in CHANGES:
        bench.sql(f"ALTER TABLE {quoted} {change}")
    select(
        bench,
        quoted,
        "7, 'new', 4, named_struct('f', 1, 'aa', 2L, 'b', named_struct('c', 3L, 'new', 'x')), "
        "array(named_struct('x', 1L, 'new', array(1, NULL))), map(1, named_struct('x', 1.5D, 'y', 'z')), "
        "12345678901234567.25, named_struct('a', 1)",
    )
    assert compare(bench, name).differences == []


@pytest.mark.cases(44)
def test_structs_with_other_children(bench: Bench, new_name: Name) -> None:
    """A struct all of whose children are younger than a file is null where it was, and else a struct of nulls."""
    name = new_name("children")
    quoted = create(bench, name, "id int, st struct<a: int>, s2 struct<a: int, b: struct<z: int>>")
    select(bench, quoted, "1, named_struct('a', 1), named_struct('a', 1, 'b', named_struct('z', 1))", "2, NULL, NULL")
    for change in ("ADD COLUMN st.b int", "DROP COLUMN st.a", "ADD COLUMN s2.b.y string", "DROP COLUMN s2.b.z"):
        bench.sql(f"ALTER TABLE {quoted} {change}")
    select(bench, quoted, "3, named_struct('b', 1), named_struct('a', 1, 'b', named_struct('y', 'q'))")
    assert compare(bench, name).differences == []


@pytest.mark.cases(46)
def test_initial_defaults(bench: Bench, new_name: Name) -> None:
    """Columns that came with a default have it in the rows of before."""
    name = new_name("defaults")
    insert(bench, create(bench, name, "id int", version=3), "(1)", "(2)")
    java = JavaTable.load(bench, name)
    types, lit, update = java.java.types.Types, java.java.expressions.Expressions.lit, java.table.updateSchema()
    for column, kind, value in (
        ("s", types.StringType.get(), "dé"),
        ("b", types.BooleanType.get(), True),
        ("f", types.DoubleType.get(), 1.5),
        ("i", types.IntegerType.get(), 7),
        ("dt", types.DateType.get(), "2020-01-02"),
        ("tz", types.TimestampType.withZone(), "1960-01-02T03:04:05.000006+00:00"),
        ("tn", types.TimestampType.withoutZone(), "2020-01-02T03:04:05.000006"),
        ("dec", types.DecimalType.of(10, 2), "-14.20"),
    ):
        update.addColumn(column, kind, lit(value).to(kind))
    update.commit()
    found = compare(bench, name)
    assert found.differences == []
    assert all("dé" in row for row in found.arrow.rows)


PARTITIONED = (
    "id int, s string, ts timestamp, tn timestamp_ntz, d date, dec decimal(10, 2), bin binary, b boolean, f float"
)


@pytest.mark.cases(49)
@pytest.mark.parametrize(
    "by", few(1, ("bucket(4, id), truncate(3, s), d", "hours(tn), dec, bin", "days(ts), b", "s, f"))
)
def test_partitions_of_every_transform(by: str, bench: Bench, new_name: Name) -> None:
    """Files come out in the partition of every transform, null and odd values among them."""
    name = new_name("partitions")
    rows = (
        "(1, 'abcdef', timestamp'2020-01-01 01:02:03.000004', timestamp_ntz'1969-12-31 23:59:59.999999', "
        "date'1960-01-01', -12.34, x'00ff', true, 1.5F), "
        "(2, 'x/y=%é', timestamp'2020-01-02 01:02:03', NULL, NULL, NULL, NULL, NULL, NULL)"
    )
    insert(bench, create(bench, name, PARTITIONED, by), rows, rows)
    found = compare(bench, name)
    assert found.differences == []
    assert len(found.arrow.files) == 2


@pytest.mark.cases(43)
def test_a_void_partition_field(bench: Bench, new_name: Name) -> None:
    """In format v1 a field that was dropped stays in the spec as void, and is null in what is written."""
    name = new_name("void")
    quoted = create(bench, name, "id int, part string, n int", "part, n", version=1)
    bench.sql(f"ALTER TABLE {quoted} DROP PARTITION FIELD part")
    insert(bench, quoted, "(1, 'a', 1), (2, NULL, 2)", "(3, 'b', 1), (4, 'c', 2)")
    assert compare(bench, name).differences == []


@pytest.mark.parametrize("partitioned", few(1, (True, False)))
def test_added_files_without_field_ids(partitioned: bool, bench: Bench, new_name: Name) -> None:
    """Files that PyIceberg added as they were are read by the table's name mapping, nested columns too."""
    name = new_name("added")
    nested = StructType(
        NestedField(10, "a", LongType(), required=False),
        NestedField(11, "l", ListType(12, StringType(), element_required=False), required=False),
    )
    spec = PartitionSpec(PartitionField(3, 1000, IdentityTransform(), "p")) if partitioned else PartitionSpec()
    table = made(bench, name, {"id": LongType(), "st": nested, "p": StringType()}, spec)
    folder = bench.lake.folder(name) / "data"
    folder.mkdir()
    kind = pa.struct([("a", pa.int64()), ("l", pa.list_(pa.string()))])
    for number in range(3):
        structs = pa.array([{"a": number, "l": ["q", None]}, None], kind)
        columns = {"p": ["x", "x"], "st": structs, "id": pa.array([number, None], pa.int64())}
        pq.write_table(pa.table(columns), folder / f"{number}.parquet")
    table.add_files([f"file://{folder}/{number}.parquet" for number in range(3)])
    assert compare(bench, name).differences == []


def test_partition_values_that_are_not_in_the_file(bench: Bench, new_name: Name) -> None:
    """The identity partition column of files as Hive lays them out comes from the entry, other columns are null."""
    name = new_name("hive")
    quoted = create(bench, name, "id bigint, p string, n int", "p")
    names = [{"field-id": number, "names": [column]} for number, column in enumerate(("id", "p", "n"), 1)]
    bench.sql(f"ALTER TABLE {quoted} SET TBLPROPERTIES ('schema.name-mapping.default' = '{json.dumps(names)}')")
    folder = bench.lake.folder(name) / "data/p=x"
    folder.mkdir(parents=True)
    for number in range(2):
        path = folder / f"{number}.parquet"
        pq.write_table(pa.table({"id": pa.array([number, number + 10], pa.int64())}), path)
        _add(JavaTable.load(bench, name), path, 2, "p=x")
    found = compare(bench, name)
    assert found.differences == []
    assert all("'x'" in row for row in found.arrow.rows)


def _add(java: JavaTable, path: Path, rows: int, partition: str) -> None:
    builder = java.java.DataFiles.builder(java.table.spec()).withPath(f"file://{path}").withFormat("PARQUET")
    builder.withFileSizeInBytes(path.stat().st_size).withRecordCount(rows).withPartitionPath(partition)
    java.append(builder.build())


def test_a_table_that_is_read_again(bench: Bench, new_name: Name) -> None:
    """What Arrow has written is compacted again by either kernel, as Spark's is."""
    name = new_name("again")
    quoted = create(bench, name, TYPES)
    select(bench, quoted, *ROWS)
    compare(bench, name)
    select(bench, quoted, *ROWS)
    rows = picture(bench, name).rows
    assert compare(bench, name).differences == []
    assert sum(rows.values()) == 2 * len(ROWS)
