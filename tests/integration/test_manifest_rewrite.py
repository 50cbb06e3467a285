"""Manifests rewritten in-service against Spark's procedure: the same live entries, the same bounds, no file lost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from datetime import time
from itertools import pairwise
from uuid import UUID

import pyarrow as pa
import pytest
from pyiceberg.expressions import EqualTo
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import FixedType, IntegerType, NestedField, TimeType, UUIDType

from icewright.app.demo import tables
from icewright.core.errors import CommitConflict
from icewright.core.policy import MEGABYTE, Operation
from icewright.core.runs import OperationState
from icewright.core.steps import Due
from icewright.ports import StepRequest
from tests.integration.bench import Bench
from tests.integration.javacore import JavaTable
from tests.integration.tables import create, insert
from tests.nightly import nightly

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("quick_spark")]

KNOBS: Mapping[str, object] = {"rewrite_manifests.min_manifests": 2, "rewrite_manifests.engine": "service"}
Entries = Counter[str]
Summaries = dict[tuple[int, int], str]


def entries(bench: Bench, name: str) -> Entries:
    """Everything that Spark says of each live entry, deletes too, but whether it is new."""
    table = bench.lake.quoted(name)
    rows = bench.sql(
        "SELECT to_json(struct(snapshot_id, sequence_number, file_sequence_number, data_file, readable_metrics)) AS e "  # noqa: S608
        f"FROM {table}.entries WHERE status < 2"
    )
    return Counter(row["e"] for row in rows)


def summaries(bench: Bench, name: str) -> Summaries:
    """The partition bounds of the one manifest that each spec has of each content."""
    rows = bench.sql(
        "SELECT partition_spec_id AS s, content AS c, to_json(partition_summaries) AS p, "  # noqa: S608
        "added_data_files_count + added_delete_files_count AS a, "
        "existing_data_files_count + existing_delete_files_count AS e, "
        "deleted_data_files_count + deleted_delete_files_count AS d "
        f"FROM {bench.lake.quoted(name)}.manifests"
    )
    assert len({(row["s"], row["c"]) for row in rows}) == len(rows), "one manifest a spec and content"
    return {(row["s"], row["c"]): f"{row['p']} {row['a']} {row['e']} {row['d']}" for row in rows}


def planned(bench: Bench, name: str, filters: Mapping[str, object]) -> list[set[str]]:
    """The files that PyIceberg plans, in all and by each filter."""
    table = bench.lake.catalog.load_table(name)
    scans = [table.scan(), *(table.scan(row_filter=EqualTo(c, v)) for c, v in filters.items())]  # type: ignore[call-arg,arg-type]
    return [{task.file.file_path for task in scan.plan_files()} for scan in scans]


def check(bench: Bench, name: str, filters: Mapping[str, object] | None = None) -> None:
    """Ours keeps every entry and read as they were, and describes its manifests as Spark describes its own."""
    filters = filters or {}
    metadata = bench.metadata(name)
    before, read, plans = entries(bench, name), bench.read(name), planned(bench, name, filters)
    assert before
    with bench.aside(name):
        for spec in metadata.specs:
            bench.call("rewrite_manifests", name, f"use_caching => false, spec_id => {spec.spec_id}")
        theirs = summaries(bench, name)
    done = bench.run(name, Operation.REWRITE_MANIFESTS, KNOBS)
    assert done.state is OperationState.COMMITTED, done
    assert done.metrics["manifests_rewritten"] > done.metrics["manifests_written"]
    assert entries(bench, name) == before
    assert summaries(bench, name) == theirs
    assert bench.read(name) == read
    assert planned(bench, name, filters) == plans
    current = bench.lake.catalog.load_table(name)
    assert len(current.inspect.manifests()) == len(current.inspect.manifests()["path"].unique())
    again = bench.run(name, Operation.REWRITE_MANIFESTS, KNOBS)
    assert again.state is OperationState.SKIPPED


def _events(bench: Bench, name: str) -> None:
    tables.events(bench.lake, name, manifests=10, rows_per_file=4)


def _orders(bench: Bench, name: str) -> None:
    tables.orders(bench.lake, name, commits=4, rows_per_file=40)


def _payments(bench: Bench, name: str) -> None:
    tables.payments(bench.lake, name, checkpoints=9, rows_per_file=40)


def _customers(bench: Bench, name: str) -> None:
    tables.customers(bench.lake, name, commits=4, rows_per_file=8)


def _v1(bench: Bench, name: str) -> None:
    quoted = create(bench, name, "id int, part string", "part", version=1)
    insert(bench, quoted, "(1, 'a'), (2, 'b')", "(3, 'a'), (4, NULL)", "(5, 'é')")
    bench.sql(f"DELETE FROM {quoted} WHERE id = 1")  # noqa: S608 - quoted


def _v1_upgraded(bench: Bench, name: str) -> None:
    _v1(bench, name)
    quoted = bench.lake.quoted(name)
    bench.sql(f"ALTER TABLE {quoted} SET TBLPROPERTIES ('format-version' = '2', 'write.delete.mode' = 'merge-on-read')")
    insert(bench, quoted, "(6, 'a'), (7, 'a'), (8, 'b')", "(9, 'b')")
    bench.sql(f"DELETE FROM {quoted} WHERE id IN (3, 7)")  # noqa: S608 - quoted


def _void(bench: Bench, name: str) -> None:
    """Format v1 keeps a dropped partition field as void; a field is renamed and the column of another too."""
    quoted = create(bench, name, "id int, part string, other int", "part, other", version=1)
    insert(bench, quoted, "(1, 'a', 1)", "(2, NULL, 2)", "(3, 'c', NULL)")
    bench.sql(f"ALTER TABLE {quoted} DROP PARTITION FIELD part")
    insert(bench, quoted, "(4, 'a', 1)", "(5, NULL, 2)", "(6, 'a', 1)")
    bench.sql(f"ALTER TABLE {quoted} RENAME COLUMN other TO another")
    insert(bench, quoted, "(7, 'x', 9)")


def _evolved_metrics(bench: Bench, name: str) -> None:
    """Manifests of one spec and several schemas: columns added, dropped, renamed, widened."""
    columns = "id int, f float, gone string, dec decimal(5, 2), part string"
    quoted = create(bench, name, columns, "part, truncate(10, dec)")
    insert(bench, quoted, "(1, 1.5, 'x', 1.25, 'a')", "(2, float('nan'), 'y', -1.25, 'b')")
    for change in (
        "ALTER COLUMN id TYPE bigint",
        "ALTER COLUMN f TYPE double",
        "ALTER COLUMN dec TYPE decimal(38, 2)",
        "DROP COLUMN gone",
        "ADD COLUMN gone int",
        "RENAME COLUMN part TO renamed",
    ):
        bench.sql(f"ALTER TABLE {quoted} {change}")
    insert(bench, quoted, "(3, 2.5, 12345678901.25, 'c', 30)", "(4, double('nan'), NULL, NULL, 40)")


@pytest.mark.cases(42, 43, 47, 49)
@pytest.mark.parametrize(
    "build",
    [_events, _orders, _customers, _v1, _v1_upgraded, _void, _evolved_metrics],
    ids=["events", "position deletes", "two specs", "v1", "v1 upgraded", "void", "evolved"],
)
def test_entries_are_as_they_were(
    build: Callable[[Bench, str], None], bench: Bench, new_name: Callable[[str], str]
) -> None:
    """Every live entry keeps its file, partition, numbers and metrics; bounds are those that Spark writes."""
    name = new_name("manifests")
    build(bench, name)
    check(bench, name)


@pytest.mark.cases(28, 42, 49)
def test_equality_deletes_keep_their_effect(bench: Bench, new_name: Callable[[str], str]) -> None:
    """Delete manifests are merged as by Spark, and all entries keep the sequence numbers that they count by."""
    name = new_name("manifests")
    _payments(bench, name)
    before, read = entries(bench, name), bench.read(name)
    with bench.aside(name):
        bench.call("rewrite_manifests", name)
        theirs = summaries(bench, name)
    assert bench.run(name, Operation.REWRITE_MANIFESTS, KNOBS).state is OperationState.COMMITTED
    assert (entries(bench, name), bench.read(name), summaries(bench, name)) == (before, read, theirs)


def _bounds_of(bench: Bench, name: str, field: int) -> list[tuple[str, str]]:
    """The bounds of a partition field in each manifest, in their order."""
    rows = bench.sql(f"SELECT partition_summaries AS p FROM {bench.lake.quoted(name)}.manifests")  # noqa: S608 - quoted
    return sorted((row["p"][field]["lower_bound"], row["p"][field]["upper_bound"]) for row in rows)


def _apart(bounds: list[tuple[str, str]]) -> bool:
    return len(bounds) > 1 and all(one[1] <= other[0] for one, other in pairwise(bounds))


@pytest.mark.parametrize(("version", "sort_by"), [(2, None), (2, "other"), nightly(3, None), nightly(3, "other")])
def test_large_manifests_are_split(
    version: int, sort_by: str | None, bench: Bench, new_name: Callable[[str], str]
) -> None:
    """A manifest far above the target becomes several, ordered by the named field, as Spark's own are."""
    name, target = new_name("large"), 2_048
    properties = {"commit.manifest.target-size-bytes": str(target)}
    create(bench, name, "id int, part string, other string", "part, other", properties, version=version)
    java = JavaTable.load(bench, name)
    update = java.table.newFastAppend()
    for number in range(110):
        update.appendFile(java.data({"id": [number], "part": [f"{number % 2}"], "other": [f"{number:03}"]}))
    update.commit()
    before, read = entries(bench, name), bench.read(name)
    with bench.aside(name):
        bench.call("rewrite_manifests", name, "" if sort_by is None else f"sort_by => array('{sort_by}')")
        theirs = [_apart(_bounds_of(bench, name, field)) for field in (0, 1)]
    knobs = {"rewrite_manifests.target_manifest_mb": target / MEGABYTE, "rewrite_manifests.sort_by": sort_by}
    assert bench.run(name, Operation.REWRITE_MANIFESTS, knobs).state is OperationState.COMMITTED
    assert theirs == [_apart(_bounds_of(bench, name, field)) for field in (0, 1)] == [sort_by is None, bool(sort_by)]
    assert (entries(bench, name), bench.read(name)) == (before, read)
    assert bench.run(name, Operation.REWRITE_MANIFESTS, knobs).state is OperationState.SKIPPED


_TYPES = {
    "b": ("boolean", ("true", "false")),
    "i": ("int", ("-7", "2147483647")),
    "l": ("bigint", ("-9223372036854775808", "5")),
    "f": ("float", ("-1.5", "0.1")),
    "d": ("double", ("double('nan')", "-0.1")),
    "dec": ("decimal(9, 2)", ("-1.28", "327.68")),
    "big": ("decimal(30, 4)", ("-0.0128", "12345678901234567890.1234")),
    "dt": ("date", ("date'1969-12-31'", "date'2026-03-01'")),
    "ts": ("timestamp", ("timestamp'1969-12-31 23:59:59.999999'", "timestamp'2026-03-01 01:02:03'")),
    "tn": ("timestamp_ntz", ("timestamp_ntz'1969-12-31 23:59:59.5'", "timestamp_ntz'2026-03-01 01:02:03'")),
    "s": ("string", ("'é ü/=%20'", "''")),
    "bin": ("binary", ("x'ff00'", "x'00'")),
}
_TRANSFORMED = (
    ("bucket(4, l)", "truncate(10, i)", "truncate(2, s)", "years(dt)"),
    ("months(ts)", "truncate(50, dec)", "bucket(3, s)", "bucket(5, dec)"),
    ("days(ts)", "hours(tn)", "truncate(1, bin)", "bucket(7, bin)"),
)


@pytest.mark.parametrize("partition", [", ".join(_TYPES), *map(", ".join, _TRANSFORMED)], ids=["identity", *"abc"])
def test_partitions_of_all_types(partition: str, bench: Bench, new_name: Callable[[str], str]) -> None:
    """Bounds, nulls and NaN of every partition type and transform are said as Spark says them."""
    name = new_name("types")
    listed = ", ".join(f"{column} {kind}" for column, (kind, _) in _TYPES.items())
    quoted = create(bench, name, listed, partition)
    insert(
        bench,
        quoted,
        f"({', '.join(values[0] for _, values in _TYPES.values())})",
        f"({', '.join(values[1] for _, values in _TYPES.values())})",
        f"({', '.join('NULL' for _ in _TYPES)})",
    )
    check(bench, name, {"i": -7, "s": ""})


def _spec(source: int, name: str) -> PartitionSpec:
    return PartitionSpec(PartitionField(source, 1000, IdentityTransform(), name))


def _uuids(bench: Bench, name: str) -> str:
    bench.lake.identifier(name)
    schema = Schema(NestedField(1, "n", IntegerType()), NestedField(2, "id", UUIDType()))
    place = f"file://{bench.lake.folder(name)}"
    bench.lake.catalog.create_table(name, schema, location=place, partition_spec=_spec(2, "id"))
    return bench.lake.quoted(name)


def _bounds(bench: Bench, name: str) -> list[tuple[bytes | None, bytes | None]]:
    table = bench.lake.catalog.load_table(name)
    snapshot = table.current_snapshot()
    assert snapshot
    return [(p.lower_bound, p.upper_bound) for m in snapshot.manifests(table.io) for p in m.partitions or ()]


def test_partitions_of_uuids(bench: Bench, new_name: Callable[[str], str]) -> None:
    """UUID partitions are bounded in the order in which Iceberg's Java bounds and prunes them: every row is found."""
    ids = [str(UUID(int=number)) for number in (1, 1 << 127, (1 << 128) - 1)]
    rows = [f"({number}, '{one}')" for number, one in enumerate(ids)]
    name, at_once = new_name("uuids"), new_name("uuids")
    quoted = _uuids(bench, name)
    insert(bench, quoted, *rows)
    insert(bench, _uuids(bench, at_once), ", ".join(rows))
    # Spark's own procedure and its `entries` table fail on UUID partitions (Iceberg 1.12), PyIceberg finds no row
    done = bench.run(name, Operation.REWRITE_MANIFESTS, KNOBS)
    assert done.state is OperationState.COMMITTED, done
    counts = [bench.sql(f"SELECT count(*) FROM {quoted} WHERE id = '{one}'")[0][0] for one in ids]  # noqa: S608
    assert (counts, _bounds(bench, name)) == ([1, 1, 1], _bounds(bench, at_once))


@pytest.mark.parametrize("source", ["at", "fixed"])
def test_partitions_of_types_that_spark_lacks(source: str, bench: Bench, new_name: Callable[[str], str]) -> None:
    """Time and fixed partitions, written by PyIceberg, are found by their values after the rewrite."""
    name = new_name("pyiceberg")
    bench.lake.identifier(name)
    schema = Schema(
        NestedField(1, "n", IntegerType()), NestedField(2, "at", TimeType()), NestedField(3, "fixed", FixedType(4))
    )
    place, spec = f"file://{bench.lake.folder(name)}", _spec(schema.find_field(source).field_id, source)
    table = bench.lake.catalog.create_table(name, schema, location=place, partition_spec=spec)
    arrow = table.schema().as_arrow()
    for number in range(3):
        row = {"n": number, "at": time(number * 7, 1, 2, 3), "fixed": bytes([number * 127, 0, 0, 255])}
        table.append(pa.Table.from_pylist([row], schema=arrow))
    plans = planned(bench, name, {})
    before = sorted(map(str, table.scan().to_arrow().to_pylist()))
    done = bench.run(name, Operation.REWRITE_MANIFESTS, KNOBS)
    assert done.state is OperationState.COMMITTED, done
    assert planned(bench, name, {}) == plans
    fresh = bench.lake.catalog.load_table(name)
    rows = fresh.scan().to_arrow().to_pylist()
    assert sorted(map(str, rows)) == before
    for row in rows:
        value = row[source].isoformat() if source == "at" else row[source]
        assert len(list(fresh.scan(row_filter=EqualTo(source, value)).plan_files())) == 1  # type: ignore[call-arg, arg-type]


@pytest.mark.cases(84)
@pytest.mark.parametrize("meanwhile", ["INSERT INTO {} VALUES (99, 'z')", "DELETE FROM {} WHERE part = 'a'"])
def test_a_writer_in_between_wins(meanwhile: str, bench: Bench, new_name: Callable[[str], str]) -> None:
    """A rewrite whose table moved is a conflict that leaves no file behind, and its next attempt loses nothing."""
    name = new_name("race")
    quoted = create(bench, name, "id int, part string", "part")
    insert(bench, quoted, "(1, 'a')", "(2, 'b')", "(3, 'a'), (4, 'c')")
    evaluation = bench.evaluate(name, KNOBS)
    verdict = evaluation.verdicts[Operation.REWRITE_MANIFESTS]
    assert isinstance(verdict, Due)
    bench.sql(meanwhile.format(quoted))
    files, read = bench.files(name), bench.read(name)
    (step,) = verdict.work.steps
    with pytest.raises(CommitConflict):
        bench.runtime.engine.run(StepRequest("race", Operation.REWRITE_MANIFESTS, step, evaluation.facts.metadata))
    assert (bench.files(name), bench.read(name)) == (files, read)
    check(bench, name)
