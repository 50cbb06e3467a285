"""Checks that data files, delete files and deletion vectors are what their entries say, by their footers alone."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from icewright.adapters.engines.arrow.resolve import UnsupportedByArrow, field_id, stored, with_ids, with_inner
from icewright.adapters.engines.service.column_types import is_read_as, physical_types
from icewright.adapters.engines.service.content_file import ContentFile
from icewright.adapters.engines.service.footers import MAGIC, parquet_footer
from icewright.adapters.engines.service.manifest_files import DATA
from icewright.adapters.engines.service.vector_faults import vector_faults
from icewright.core import field_ids as ids
from icewright.core.errors import MetadataUnreadable
from icewright.core.integrity import FileFaultKind
from icewright.core.single_values import bound_value, is_bound
from icewright.core.table import PartitionSpec
from icewright.ports import TableFiles

Fault = tuple[FileFaultKind, str]
_TIMES = ("year", "month", "day", "hour")
_MAYBE_TRUNCATED_BYTES = 32  # writers cut texts of at least this length in statistics
_RAISED_BYTES = 8  # at the end of such a text, which a writer may have raised to a greater one


def check_content(
    files: TableFiles,
    entry: ContentFile,
    types: Mapping[int, Any],
    specs: Mapping[int, PartitionSpec],
    records: Mapping[str, int],
    needed: Collection[int],
    names: str | None = None,
) -> list[Fault]:
    """Return what the file's footer says other than its entry. A file that is missing has no fault here.

    `records` are the rows of data files by path, as far as they are known; `needed` are the columns that it must have.
    `names` is the name mapping, by which columns of files without ids are found.
    """
    if entry.is_encrypted:
        return []
    match entry.format:
        case "PARQUET":
            return list(_parquet_file(files, entry, types, specs, names).faults(needed))
        case "PUFFIN":
            return list(vector_faults(files, entry, records))
    if (magic := MAGIC.get(entry.format)) and files.read_range(entry.path, 0, len(magic)) != magic:
        raise MetadataUnreadable(f"{entry.path} does not begin as {entry.format} files do")
    return list(column_faults(entry, {}, types, specs.get(entry.spec_id)))


def corrected(
    files: TableFiles,
    entry: ContentFile,
    types: Mapping[int, Any],
    specs: Mapping[int, PartitionSpec],
    names: str | None,
) -> Mapping[int, Any]:
    """Return the values of a Parquet file's entry with the counts of its footer, and without bounds that are wrong."""
    if entry.format != "PARQUET":
        raise MetadataUnreadable(f"what {entry.path} has cannot be proved: of {entry.format} files no footer is read")
    return _parquet_file(files, entry, types, specs, names).corrected()


def _parquet_file(
    files: TableFiles,
    entry: ContentFile,
    types: Mapping[int, Any],
    specs: Mapping[int, PartitionSpec],
    names: str | None,
) -> _ParquetFile:
    footer, schema = _parquet_footer(files, entry)
    with suppress(UnsupportedByArrow):  # then readers differ in how they find columns: only the rows are counted
        schema = with_ids(schema, names)
    return _ParquetFile(entry, footer, schema, types, specs.get(entry.spec_id))


def _parquet_footer(files: TableFiles, entry: ContentFile) -> tuple[pq.FileMetaData, pa.Schema]:
    footer, schema, footer_bytes = parquet_footer(files, entry.path, entry.bytes)
    groups = [footer.row_group(number) for number in range(footer.num_row_groups)]
    if (rows := sum(group.num_rows for group in groups)) != footer.num_rows:
        counts = f"counts {footer.num_rows} rows, in row groups of {rows}"
        raise MetadataUnreadable(f"{entry.path} has a footer that {counts}")
    chunks = [group.column(number) for group in groups for number in range(group.num_columns)]
    if any(min(_beginnings(chunk)) + chunk.total_compressed_size > entry.bytes - footer_bytes for chunk in chunks):
        raise MetadataUnreadable(f"{entry.path} has a footer that names pages beyond its end")
    return footer, schema


def _beginnings(chunk: pq.ColumnChunkMetaData) -> Iterator[int]:
    """Yield where readers may begin to read a column of a row group."""
    yield chunk.data_page_offset
    if chunk.has_dictionary_page:
        yield chunk.dictionary_page_offset


def _leaf_ids(fields: Sequence[pa.Field], prefix: str = "") -> Iterator[tuple[str, int]]:
    for field in fields:
        if pa.types.is_struct(field.type):
            yield from _leaf_ids([field.type.field(i) for i in range(field.type.num_fields)], f"{prefix}{field.name}.")
        elif (number := field_id(field)) is not None and not pa.types.is_nested(field.type):
            yield f"{prefix}{field.name}", number


@dataclass(frozen=True)
class ColumnContent:
    """The statistics of a column in one file: numbers as integers, texts as bytes."""

    values: int
    nulls: int | None
    least: Any
    most: Any
    is_exact: bool  # the two are values of the column, and not cut
    nans: int | None = None
    sample: tuple[Any, ...] = ()  # more of its values


_UNMEASURED = ColumnContent(0, None, None, None, is_exact=False)


@dataclass(frozen=True)
class _ParquetFile:
    """A Parquet file's footer beside its entry."""

    entry: ContentFile
    footer: pq.FileMetaData
    schema: pa.Schema
    types: Mapping[int, Any]
    spec: PartitionSpec | None

    @cached_property
    def columns(self) -> Mapping[str, int]:
        """Return the field id of each leaf outside of lists and maps, by its path."""
        return dict(_leaf_ids(self.schema))

    def faults(self, needed: Collection[int]) -> Iterator[Fault]:
        """Yield where the two differ, and which of the columns that readers need the file has not."""
        present = {*self.columns.values(), *map(field_id, self.schema)} - {None}
        if present and (lacking := sorted(set(needed) - present)):  # a file without ids has columns by name
            yield FileFaultKind.WRONG_FIELDS, f"it lacks the columns of the ids {lacking}, which its readers need"
        for index, field in enumerate(stored(self.schema)):
            kind = self.types.get(number := field_id(field) or 0)
            if isinstance(kind, str) and not self._fits(kind, index):
                column = self.footer.schema.column(index)
                actual = re.sub(" None$|, is_from.*(?=\\))", "", f"{column.physical_type} {column.logical_type}")
                yield FileFaultKind.WRONG_FIELDS, f"column {number} is {kind}, and the file's is {actual}"
            if isinstance(kind, Mapping):
                yield FileFaultKind.WRONG_FIELDS, f"column {number} is a {kind['type']}, and the file's is {field.type}"
        for field in with_inner(self.schema):
            kind = self.types.get(number := field_id(field) or 0)
            if physical_types(kind) is not None and pa.types.is_nested(field.type):
                yield FileFaultKind.WRONG_FIELDS, f"column {number} is {kind}, and the file's is {field.type}"
        for number in sorted(self._measured.keys() & set(needed)) if self.entry.content == DATA else ():
            if nulls := self._measured[number].nulls:
                yield FileFaultKind.WRONG_FIELDS, f"column {number} is required, and has {nulls} nulls"
        if self.footer.num_rows != self.entry.records:
            yield FileFaultKind.WRONG_COUNT, f"it has {self.footer.num_rows} rows, not {self.entry.records}"
        if self._offsets_are_wrong:
            offsets = self.entry.values[ids.SPLIT_OFFSETS]
            yield FileFaultKind.WRONG_OFFSETS, f"its entry has split offsets {offsets} where no row group begins"
        yield from column_faults(self.entry, self._measured, self.types, self.spec)

    def corrected(self) -> Mapping[int, Any]:
        """Return the entry's values as the footer has them; what is wrong and optional is left out."""
        new, measured = dict(self.entry.values), self._measured
        new[ids.RECORD_COUNT] = self.footer.num_rows
        if self._offsets_are_wrong:
            new[ids.SPLIT_OFFSETS] = None
        lower, upper = self.entry.mapped(ids.LOWER_BOUNDS), self.entry.mapped(ids.UPPER_BOUNDS)
        wrong = {
            n
            for n in _bounded(self.entry, self.types)
            if any(_outside(self.types[n], n, measured.get(n, _UNMEASURED), lower.get(n), upper.get(n)))
        }
        for field, actual in (
            (ids.VALUE_COUNTS, {number: column.values for number, column in measured.items()}),
            (ids.NULL_COUNTS, {n: column.nulls for n, column in measured.items() if column.nulls is not None}),
        ):
            stated = new.get(field)
            new[field] = stated and [{**pair, "value": actual.get(pair["key"], pair["value"])} for pair in stated]
        if _names_other_files(self.entry, measured):
            new[ids.REFERENCED_DATA_FILE] = None
        contradicted = _contradictions(replace(self.entry, values=new)).keys()
        for field, dropped in (ids.LOWER_BOUNDS, wrong), (ids.UPPER_BOUNDS, wrong), (ids.NAN_COUNTS, contradicted):
            new[field] = new.get(field) and [pair for pair in new[field] if pair["key"] not in dropped]
        return new

    @cached_property
    def _offsets_are_wrong(self) -> bool:
        groups = [self.footer.row_group(number).column(0) for number in range(self.footer.num_row_groups)]
        begins = {offset for group in groups for offset in _beginnings(group)}
        offsets = list(self.entry.values.get(ids.SPLIT_OFFSETS) or ())
        return offsets != sorted(offsets) or not begins.issuperset(offsets)

    @cached_property
    def _simple(self) -> Mapping[int, int]:
        """Return where each column of a simple type is, by its id."""
        named = {self.columns.get(self.footer.schema.column(i).path): i for i in range(self.footer.num_columns)}
        return {n: index for n, index in named.items() if n is not None and isinstance(self.types.get(n), str)}

    def _fits(self, kind: str, index: int) -> bool:
        """Return whether the file stores the column as its type asks for."""
        column = self.footer.schema.column(index)
        return is_read_as(kind, column.physical_type, column.logical_type.to_json())

    @cached_property
    def _measured(self) -> Mapping[int, ColumnContent]:
        """Return what the footer says of each column of a simple type, by its id."""
        return {n: self._column(i, self.types[n]) for n, i in self._simple.items() if self._fits(self.types[n], i)}

    def _column(self, index: int, kind: str) -> ColumnContent:
        chunks = [self.footer.row_group(number).column(index) for number in range(self.footer.num_row_groups)]
        values = sum(chunk.num_values for chunk in chunks)
        stats = [chunk.statistics for chunk in chunks if chunk.num_values]
        if any(s is None or not s.has_null_count for s in stats):
            return ColumnContent(values, None, None, None, is_exact=False)
        filled = [s for s in stats if s.num_values]  # not only nulls
        known = all(s.has_min_max for s in filled) and self._in_unit_of_bounds(index, kind)
        ends = [(_comparable(s.min_raw, kind), _comparable(s.max_raw, kind)) for s in filled] if known else []
        least, most = min((e[0] for e in ends), default=None), max((e[1] for e in ends), default=None)
        exact = not any(isinstance(end, bytes) and len(end) >= _MAYBE_TRUNCATED_BYTES for end in (least, most))
        return ColumnContent(values, sum(s.null_count for s in stats), least, most, exact)

    def _in_unit_of_bounds(self, index: int, kind: str) -> bool:
        """Return whether the file stores the column in the unit of its bounds."""
        if not is_ordered(kind):
            return False
        logical = json.loads(self.footer.schema.column(index).logical_type.to_json())
        return logical.get("timeUnit") in (None, "nanoseconds" if kind.endswith("_ns") else "microseconds")


def is_ordered(kind: str) -> bool:
    """Return whether bounds of the type can be compared: libraries differ in the order of UUIDs, others have none."""
    return kind != "uuid" and not kind.startswith(("variant", "geometry", "geography", "unknown"))


def column_faults(
    entry: ContentFile, columns: Mapping[int, ColumnContent], types: Mapping[int, Any], spec: PartitionSpec | None
) -> Iterator[Fault]:
    """Yield where an entry differs from what its file says of the columns, by their ids."""
    values, nulls, nans, lower, upper = map(
        entry.mapped, (ids.VALUE_COUNTS, ids.NULL_COUNTS, ids.NAN_COUNTS, ids.LOWER_BOUNDS, ids.UPPER_BOUNDS)
    )
    for number, column in columns.items():
        for what, actual, stated in (
            ("values", column.values, values),
            ("nulls", column.nulls, nulls),
            ("NaN", column.nans, nans),
        ):
            if None not in (actual, stated.get(number)) and actual != stated[number]:
                yield (
                    FileFaultKind.WRONG_COUNT,
                    f"column {number} has {actual} {what}, and its entry says {stated[number]}",
                )
    for number, contradiction in _contradictions(entry).items():
        yield FileFaultKind.WRONG_COUNT, f"column {number} has {contradiction} by its entry"
    for number in _bounded(entry, types):
        column = columns.get(number, _UNMEASURED)
        yield from _outside(types[number], number, column, lower.get(number), upper.get(number))
    if _names_other_files(entry, columns):
        detail = f"it deletes rows of other files than {entry.referenced}, which its entry names alone"
        yield FileFaultKind.WRONG_BOUNDS, detail
    yield from _wrong_partition(entry, columns, types, spec)


def _names_other_files(entry: ContentFile, columns: Mapping[int, ColumnContent]) -> bool:
    """Return whether position deletes name other data files than the one of their entry."""
    path, paths = entry.referenced.encode(), columns.get(ids.DELETED_PATH, _UNMEASURED)
    return bool(path) and not entry.is_vector and any(_outside("string", ids.DELETED_PATH, paths, path, path))


def _contradictions(entry: ContentFile) -> Mapping[int, str]:
    """Return the columns whose counts contradict one another or their bounds."""
    values, nulls, nans, lower = map(
        entry.mapped, (ids.VALUE_COUNTS, ids.NULL_COUNTS, ids.NAN_COUNTS, ids.LOWER_BOUNDS)
    )
    contradictions = {}
    for number, total in values.items():
        numbers, bound = total - nulls.get(number, 0) - nans.get(number, 0), lower.get(number, b"")
        if numbers < 0:
            contradictions[number] = "fewer values than nulls and NaN"
        elif (
            not numbers
            and nans.get(number)
            and is_bound("double", bound)
            and not math.isnan(bound_value("double", bound))
        ):
            contradictions[number] = "nothing but NaN, and a bound"
    return contradictions


def _bounded(entry: ContentFile, types: Mapping[int, Any]) -> list[int]:
    """Return the columns of simple types of which the entry has bounds."""
    bounded = entry.mapped(ids.LOWER_BOUNDS).keys() | entry.mapped(ids.UPPER_BOUNDS).keys()
    return sorted(number for number in bounded if isinstance(types.get(number), str))


def _outside(
    kind: str, number: int, column: ColumnContent, lower: bytes | None, upper: bytes | None
) -> Iterator[Fault]:
    """Compare the entry's bounds with the column's: a file whose rows lie outside of them is skipped by readers."""
    if any(bound is not None and not is_bound(kind, bound) for bound in (lower, upper)):
        yield FileFaultKind.WRONG_BOUNDS, f"column {number} has a bound that is no {kind}"
        return
    if lower is not None and upper is not None and is_ordered(kind):
        low, high = bound_value(kind, lower), bound_value(kind, upper)
        if low > high:
            yield FileFaultKind.WRONG_BOUNDS, f"column {number} has the lower bound {low!r}, above the upper {high!r}"
    if column.least is not None and lower is not None:
        low, least = bound_value(kind, lower), column.least
        if isinstance(low, bytes) and len(least) >= _MAYBE_TRUNCATED_BYTES:
            low = low[: len(least)]
        if low > least:
            yield FileFaultKind.WRONG_BOUNDS, f"column {number} has {least!r}, below the lower bound {low!r}"
    if column.most is not None and upper is not None:
        high, most = bound_value(kind, upper), column.most if column.is_exact else column.most[:-_RAISED_BYTES]
        if high < most:
            yield FileFaultKind.WRONG_BOUNDS, f"column {number} has {column.most!r}, above the upper bound {high!r}"


def _wrong_partition(
    entry: ContentFile, columns: Mapping[int, ColumnContent], types: Mapping[int, Any], spec: PartitionSpec | None
) -> Iterator[Fault]:
    """Compare partition values with the column's, where the file has the column."""
    for partition, value in zip(spec.fields if spec else (), entry.partition, strict=False):
        column = columns.get(partition.source_id)
        if column is None or partition.transform == "void":
            continue
        if _has_rows_of_others(column, types[partition.source_id], partition.transform, value):
            yield (
                FileFaultKind.WRONG_PARTITION,
                f"{partition.name} of its partition is {value!r}, and its rows are of others",
            )


def _has_rows_of_others(column: ColumnContent, kind: str, transform: str, value: Any) -> bool:  # noqa: ANN401 - Avro's
    """Return whether the column has values of other partitions than that of the value; False where nobody can tell."""
    if value is None:
        return column.nulls is not None and column.nulls != column.values
    if value != value or not column.is_exact or column.least is None or column.most is None:  # noqa: PLR0124 - NaN
        return False
    if column.nulls:
        return True
    stored = _comparable(value, kind)
    expected = {_transformed(transform, kind, known) for known in (column.least, column.most, *column.sample)}
    return any(type(known) is type(stored) and known != stored for known in expected)


def _transformed(transform: str, kind: str, value: Any) -> Any:  # noqa: ANN401 - any comparable
    """Return the partition value of a column's value; None where it cannot be told.

    Early versions of Iceberg rounded times before 1970 up.
    """
    if transform == "identity":
        return value
    function = None if kind.startswith("decimal") else _function(transform, kind)
    if function is None or (transform in _TIMES and value < 0):
        return None
    try:
        result = function(value.decode() if kind == "string" else value)
    except (UnicodeDecodeError, OverflowError):  # Python has texts of UTF-8 alone, and no year above 9999
        return None
    return result.encode() if isinstance(result, str) else result


@lru_cache(maxsize=100)
def _function(transform: str, kind: str) -> Callable[[Any], Any] | None:
    """Return a transform of a type; None for those that there are not."""
    from pyiceberg.transforms import parse_transform  # noqa: PLC0415 - takes long to load
    from pyiceberg.types import NestedField  # noqa: PLC0415

    field = NestedField.model_validate({"id": 1, "name": "source", "type": kind, "required": False})
    try:
        parsed = parse_transform(transform)
        function: Callable[[Any], Any] = parsed.transform(field.field_type)
    except (AttributeError, ValueError):
        return None
    exists = parsed.can_transform(field.field_type) and not re.search(r"\[0+\]$", transform)
    return function if exists else None


def _comparable(value: Any, kind: str) -> Any:  # noqa: ANN401 - any physical value
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, bytes) and kind.startswith("decimal"):
        return int.from_bytes(value, "big", signed=True)
    return value
