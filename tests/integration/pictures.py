"""A table compacted twice from the same bytes, by Spark's rows and as Arrow, and all in which the results differ."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date, datetime
from decimal import Decimal
from pprint import saferepr
from typing import Any, TypeVar

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import settings
from pyiceberg.conversions import from_bytes
from pyiceberg.expressions import BooleanExpression, EqualTo
from pyiceberg.types import PrimitiveType

from icewright.core.paths import local_path
from icewright.core.policy import Operation
from icewright.core.predicates import quoted, text_literal
from icewright.core.runs import OperationState, Outcome
from tests.integration.bench import Bench
from tests.integration.javacore import JavaTable

KNOBS: Mapping[str, object] = {
    "compact.min_input_files": 2,
    "compact.delete_file_threshold": 1,
    "compact.hot_partitions": "include",
}
_LINEAGE = {"_row_id", "_last_updated_sequence_number"}
_COUNTS = ("value-counts", "null-value-counts", "nan-value-counts")
_SUMMARY = (  # what a commit says of itself, but for bytes
    *("added-data-files", "deleted-data-files", "added-records", "deleted-records"),
    *("changed-partition-count", "total-data-files", "total-records", "total-delete-files"),
    *("total-position-deletes", "total-equality-deletes"),
)
_LARGE = 100_000  # bytes from which sizes are compared
_MOST_MORE = 1.05
_PARQUET = "FROM read_parquet(?, union_by_name => true, hive_partitioning => false)"
_INFINITE = (float("inf"), float("-inf"))  # larger than any float to PyIceberg, which finds none
Rows = Counter[str]
Case = TypeVar("Case")
LONG = settings.get_current_profile_name() == "long"


@dataclass(frozen=True)
class DataFile:
    """A live data file: what its entry says and what it is."""

    path: str
    partition: str
    entry: Mapping[str, Any]
    sequence_number: int
    footer: pq.FileMetaData = field(repr=False)
    table: pa.Table = field(repr=False)  # its rows in their order

    @property
    def size(self) -> int:
        """Its bytes."""
        return int(self.entry["file-size-in-bytes"])

    def metrics(self, name: str) -> dict[int, Any]:
        """A map of the entry by column id."""
        found = self.entry.get(name, {"keys": [], "values": []})
        return dict(zip(found["keys"], found["values"], strict=True))


@dataclass(frozen=True)
class Picture:
    """What a table is to its readers."""

    files: Mapping[str, Sequence[DataFile]]  # by partition
    deletes: Counter[tuple[str, str, str]]  # content, format and partition of delete files
    rows: Rows
    by_pyiceberg: Rows | str  # or why it cannot read them
    by_duckdb: Rows | str
    columns: Mapping[int, PrimitiveType]  # primitive ones, by id
    summary: Mapping[str, str | None]  # of the current snapshot
    values: Mapping[str, Sequence[Any]] = field(repr=False)  # of each column, as Spark reads them
    filters: Sequence[str] = ()  # what is wrong with the rows that readers find by a value


@dataclass(frozen=True)
class Compared:
    """What became of the copies."""

    before: Picture
    spark: Picture
    arrow: Picture
    outcome: Outcome  # Arrow's

    @property
    def differences(self) -> list[str]:
        """All in which Arrow's result is not Spark's, in words."""
        return [*self._tables(), *self._files(), *self.arrow.filters]

    def _tables(self) -> Iterator[str]:
        yield from _unequal("rows, of Spark's kernel", self.before.rows, self.spark.rows)
        yield from _unequal("rows", self.spark.rows, self.arrow.rows)
        yield from _unequal("rows in PyIceberg", self.spark.by_pyiceberg, self.arrow.by_pyiceberg)
        yield from _unequal("rows in DuckDB", self.spark.by_duckdb, self.arrow.by_duckdb)
        # delete files go in a commit of their own, or with the data: also those that apply to nothing
        if self.before.summary["total-delete-files"] == "0" and self.spark.summary != self.arrow.summary:
            yield f"summary: {self.spark.summary} and {self.arrow.summary}"
        # Spark keeps delete files of a partition that are as old as the outputs, though they name no row of them
        if self.arrow.deletes - self.spark.deletes:
            yield f"delete files: {self.spark.deletes} and {self.arrow.deletes}"

    def _files(self) -> Iterator[str]:
        theirs, ours = self.spark.files, self.arrow.files
        if theirs.keys() != ours.keys():
            yield f"partitions: {sorted(theirs)} and {sorted(ours)}"
        for partition in sorted(theirs.keys() & ours.keys()):
            one, other = theirs[partition], ours[partition]
            if len(one) != len(other):
                yield f"{partition}: {len(one)} files and {len(other)}"
            elif len(one) == 1:
                yield from (f"{partition}: {said}" for said in _entries(one[0], other[0], self.arrow.columns))
            size, own = sum(file.size for file in one), sum(file.size for file in other)
            if own > max(_LARGE, size * _MOST_MORE):
                yield f"{partition}: {size} bytes and {own}"


def few(count: int, cases: Sequence[Case]) -> Sequence[Case]:
    """The first of the cases, and all of them under the long profile: each costs seconds of Spark."""
    return cases if LONG else cases[:count]


def compare(bench: Bench, name: str, knobs: Mapping[str, object] | None = None) -> Compared:
    """Compact by each kernel from the same bytes; Arrow's result stays."""
    said = {**KNOBS, **(knobs or {})}
    saved, before = bench.save(name), picture(bench, name, others=False)
    done = bench.run(name, Operation.COMPACT, {**said, "compact.engine": "spark"})
    assert done.state is OperationState.COMMITTED, done
    by_spark = picture(bench, name)
    saved.restore()
    done = bench.run(name, Operation.COMPACT, {**said, "compact.engine": "arrow"})
    assert done.state is OperationState.COMMITTED, done
    return Compared(before, by_spark, picture(bench, name), done)


def compare_with_statement(bench: Bench, name: str, knobs: Mapping[str, object]) -> Compared:
    """Compact as Arrow, then from the same bytes by the statement that Spark's kernel would run, whose result stays.

    Nobody asks what rows Spark reads of its own result: a comparison of their entries, and what other readers read of
    them, take a third of the time.
    """
    saved, before = bench.save(name), picture(bench, name, others=False)
    done = bench.run(name, Operation.COMPACT, {**KNOBS, **knobs, "compact.engine": "arrow"})
    assert done.state is OperationState.COMMITTED, done
    by_arrow = picture(bench, name)
    by_arrow = replace(by_arrow, filters=list(_filters(JavaTable.load(bench, name), by_arrow)))
    saved.restore()
    for statement in done.statements:
        bench.sql(statement)
    by_spark = picture(bench, name, rows=before.rows)
    return Compared(before, by_spark, by_arrow, done)


def picture(bench: Bench, name: str, *, rows: Rows | None = None, others: bool = True) -> Picture:
    """The table as it is now, with these rows where they are known, and as `others` than Spark read it."""
    java = JavaTable.load(bench, name)
    files, deletes = live(java, rows=others)
    loaded = bench.lake.catalog.load_table(name)
    snapshot = loaded.current_snapshot()
    said = snapshot.summary if snapshot and snapshot.summary else {}
    kinds = {number: found.field_type for number, found in loaded.schema()._lazy_id_to_field.items()}
    seen = _placed(java, files) if rows is None else pa.table({})
    return Picture(
        files,
        deletes,
        _counted(seen) if rows is None else rows,
        _read(lambda: loaded.scan().to_arrow()) if others else "not asked",
        _read(lambda: _by_duckdb(files)) if others and not deletes else "deletes",
        {number: kind for number, kind in kinds.items() if isinstance(kind, PrimitiveType)},
        {name: said.get(name) for name in _SUMMARY},
        {field.name: seen.column(number).to_pylist() for number, field in enumerate(loaded.schema().fields)}
        if rows is None
        else {},
    )


def rows_by_spark(java: JavaTable) -> Rows:
    """The rows, without their lineage."""
    return _counted(_collected(java, f"SELECT * FROM {java.bench.lake.quoted(java.name)}"))  # noqa: S608 - quoted


def _placed(java: JavaTable, files: Mapping[str, Sequence[DataFile]]) -> pa.Table:
    """The rows with their lineage and, for the files, the partitions that these are in."""
    by_path = {file.path: partition for partition, some in files.items() for file in some}
    version = int(java.java.TableUtil.formatVersion(java.table))
    lineage = ", _row_id, _last_updated_sequence_number" if version > 2 else ""
    table = _collected(java, f"SELECT *, _file{lineage} FROM {java.bench.lake.quoted(java.name)}")  # noqa: S608 - quoted
    at = table.column_names.index("_file")
    placed = pa.array([by_path[path] for path in table.column(at).to_pylist()], pa.string())
    return table.set_column(at, "_file", placed)


def _collected(java: JavaTable, query: str) -> pa.Table:
    """The answer of Spark, whose `toArrow` fails at nulls above required columns."""
    return pa.Table.from_batches(java.spark.sql(query)._collect_as_arrow(empty_list_if_zero_records=False))


def _filters(java: JavaTable, found: Picture) -> Iterator[str]:
    """What is wrong with the number of rows in which each of two columns has one of its values, by three readers."""
    loaded, table = java.loaded(), java.bench.lake.quoted(java.name)
    wanted: list[tuple[str, Any, int]] = []
    for name, values in found.values.items():
        known = [value for value in values if value not in (None, 0.0, *_INFINITE) and repr(value) != "nan"]
        if known and isinstance(loaded.schema().find_field(name).field_type, PrimitiveType):
            value = max(known, key=repr)
            wanted.append((name, value, values.count(value)))
    wanted = wanted[-2:]
    asked = " UNION ALL ".join(
        f"SELECT {number} AS n FROM {table} WHERE {quoted(name)} = {_literal(value)}"  # noqa: S608 - quoted
        for number, (name, value, _) in enumerate(wanted)
    )
    by_spark = Counter(row["n"] for row in java.bench.sql(asked)) if asked else Counter[int]()
    for number, (name, value, count) in enumerate(wanted):
        rows = {"Spark": by_spark[number]}
        if not isinstance(found.by_pyiceberg, str):
            said = value.isoformat() if isinstance(value, date) else value
            rows["PyIceberg"] = loaded.scan(_equal(name, said)).to_arrow().num_rows
        files = [file for some in found.files.values() for file in some]
        if not found.deletes and files and all(name in file.table.column_names for file in files):
            with duckdb.connect() as connection:
                paths, where = [local_path(file.path) for file in files], f'WHERE "{name}" = ?'
                rows["DuckDB"] = len(connection.execute(f"SELECT 1 {_PARQUET} {where}", [paths, value]).fetchall())
        yield from (
            f"{reader}: {n} rows of {count} with {name} = {value!r:.60}" for reader, n in rows.items() if n != count
        )


def _equal(name: str, value: Any) -> BooleanExpression:
    equal: Any = EqualTo  # whose types are those of its fields, not of its arguments
    return equal(name, value)  # type: ignore[no-any-return]


def _literal(value: Any) -> str:
    match value:
        case bool() | int():
            return str(value)
        case str():
            return text_literal(value)
        case bytes():
            return f"X'{value.hex()}'"
        case Decimal():
            return f"{value}BD"
        case float():
            return f"CAST('{value}' AS DOUBLE)"
        case datetime():
            return f"TIMESTAMP{'_NTZ' if value.tzinfo is None else ''} '{value.isoformat(sep=' ')}'"
    return f"DATE '{value.isoformat()}'"


def live(
    java: JavaTable, *, rows: bool = True
) -> tuple[Mapping[str, Sequence[DataFile]], Counter[tuple[str, str, str]]]:
    """The data files by partition, and content, format and partition of the delete files that apply to them."""
    files: dict[str, list[DataFile]] = defaultdict(list)
    deletes: dict[tuple[str, int], tuple[str, str, str]] = {}
    specs, parser = java.table.specs(), java.java.ContentFileParser

    def said(file: Any) -> tuple[str, dict[str, Any]]:
        entry: dict[str, Any] = json.loads(parser.toJson(file, specs[file.specId()]))
        return f"{entry['spec-id']} {json.dumps(entry['partition'])}", entry

    tasks = java.table.newScan().includeColumnStats().planFiles().iterator()
    while tasks.hasNext():
        task = tasks.next()
        partition, entry = said(task.file())
        local = local_path(entry["file-path"])
        with pq.ParquetFile(local) as source:
            number = int(task.file().dataSequenceNumber())
            file = DataFile(
                entry["file-path"], partition, entry, number, source.metadata, source.read(columns=None if rows else [])
            )
        files[partition].append(file)
        for delete in task.deletes().toArray():  # a list, read to its end, ends in an exception of Java's
            where, about = said(delete)
            key = (about["file-path"], about.get("content-offset", 0))
            deletes[key] = (about["content"], about["file-format"], where)
    return files, Counter(deletes.values())


def _by_duckdb(files: Mapping[str, Sequence[DataFile]]) -> pa.Table:
    """The columns by name: files that nobody rewrote may have others, and which file comes first says nothing."""
    paths = [local_path(file.path) for some in files.values() for file in some]
    if not paths:
        return pa.table({})
    found: pa.Table
    with duckdb.connect() as connection:
        found = connection.sql(f"SELECT * {_PARQUET}", params=[paths]).to_arrow_table()
    return found.select(sorted(set(found.column_names) - _LINEAGE))


def _read(read: Callable[[], pa.Table]) -> Rows | str:
    """What a reader reads, or why it cannot: what it cannot read of Spark's files it need not read of ours."""
    try:
        return _counted(read())
    except Exception as error:  # noqa: BLE001 - whatever it does not know
        return f"{type(error).__name__}: {error}"


def _counted(table: pa.Table) -> Rows:
    """The rows without order, nor that of a struct's fields, which DuckDB takes from the file that it opens first.

    Floats are compared as text, so that NaN and minus zero are told apart.
    """
    return Counter(saferepr(row) for row in zip(*(column.to_pylist() for column in table.columns), strict=True))


def _unequal(what: str, one: Rows | str, other: Rows | str) -> Iterator[str]:
    if isinstance(one, str):
        return
    if isinstance(other, str):
        yield f"{what}: {other}"
    elif one != other:
        yield f"{what}: only {_some(one - other)} and only {_some(other - one)}"


def _some(rows: Rows) -> str:
    return str([row[:300] for row in sorted(rows)[:3]])


def _entries(theirs: DataFile, ours: DataFile, columns: Mapping[int, PrimitiveType]) -> Iterator[str]:
    if theirs.path == ours.path:  # left alone by both
        return
    for name in ("record-count", "sort-order-id", "spec-id"):
        if theirs.entry.get(name) != ours.entry.get(name):
            yield f"{name} {theirs.entry.get(name)} and {ours.entry.get(name)}"
    if theirs.sequence_number != ours.sequence_number:
        yield f"sequence number {theirs.sequence_number} and {ours.sequence_number}"
    if list(ours.entry["split-offsets"]) != _offsets(ours.footer):
        yield f"split offsets {ours.entry['split-offsets']} of row groups at {_offsets(ours.footer)}"
    for name in _COUNTS:
        yield from _maps(name, theirs.metrics(name), ours.metrics(name))
    for name in ("lower-bounds", "upper-bounds"):
        yield from _maps(name, _values(theirs, name, columns), _values(ours, name, columns))
    sized = theirs.metrics("value-counts").keys() - ours.metrics("column-sizes").keys()
    if sized:
        yield f"columns without a size: {sorted(sized)}"
    yield from _parquet(theirs, ours)


def _maps(name: str, theirs: Mapping[int, Any], ours: Mapping[int, Any]) -> Iterator[str]:
    for number in sorted(theirs.keys() | ours.keys()):
        one, other = theirs.get(number), ours.get(number)
        if repr(one) != repr(other):
            yield f"{name} of column {number}: {repr(one)[:60]} and {repr(other)[:60]}"


def _values(file: DataFile, name: str, columns: Mapping[int, PrimitiveType]) -> dict[int, Any]:
    said = {number: bytes.fromhex(value) for number, value in file.metrics(name).items()}
    values = {n: from_bytes(columns[n], value) if n in columns else value for n, value in said.items()}
    # Parquet widens zeros to either sign
    return {n: 0.0 if isinstance(v, float) and v == 0 else v for n, v in values.items()}


def _offsets(footer: pq.FileMetaData) -> list[int]:
    groups = [footer.row_group(number).column(0) for number in range(footer.num_row_groups)]
    return [min(o for o in (c.dictionary_page_offset, c.data_page_offset) if o is not None) for c in groups]


def _parquet(theirs: DataFile, ours: DataFile) -> Iterator[str]:
    for one, other in zip(_described(theirs), _described(ours), strict=False):
        if one != other:
            yield f"Parquet column {one} and {other}"
    if theirs.footer.num_columns != ours.footer.num_columns:
        yield f"{theirs.footer.num_columns} Parquet columns and {ours.footer.num_columns}"
    one_codec, other_codec = _codecs(theirs.footer), _codecs(ours.footer)
    if one_codec != other_codec:
        yield f"codecs {one_codec} and {other_codec}"


def _described(file: DataFile) -> list[tuple[Any, ...]]:
    """Every field with its id, then every leaf with its types and levels."""
    fields = list(_fields(file.table.schema))
    leaves = [file.footer.schema.column(number) for number in range(file.footer.num_columns)]
    return [
        *fields,
        *(
            (c.path, c.physical_type, str(c.logical_type), c.length, c.max_definition_level, c.max_repetition_level)
            for c in leaves
        ),
    ]


def _fields(fields: Iterable[pa.Field]) -> Iterator[tuple[Any, ...]]:
    for one in fields:
        number = (one.metadata or {}).get(b"PARQUET:field_id")
        yield one.name, number, one.nullable
        kind = one.type
        if pa.types.is_map(kind):
            yield from _fields([kind.key_field, kind.item_field])
        else:
            yield from _fields([kind.field(number) for number in range(kind.num_fields)])


def _codecs(footer: pq.FileMetaData) -> set[str]:
    groups = [footer.row_group(number) for number in range(footer.num_row_groups)]
    return {group.column(number).compression for group in groups for number in range(footer.num_columns)}
