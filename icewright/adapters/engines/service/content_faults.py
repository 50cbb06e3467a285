"""Checks that data files, delete files and deletion vectors are what their entries say, by their footers alone."""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from icewright.adapters.engines.arrow.deletes import vector_positions
from icewright.adapters.engines.arrow.resolve import UnsupportedByArrow, field_id, stored, with_ids, with_inner
from icewright.adapters.engines.service.column_faults import (
    MAYBE_TRUNCATED_BYTES,
    ColumnContent,
    Fault,
    column_faults,
    comparable,
    contradictions,
    is_ordered,
    names_other_files,
    wrong_bounds,
)
from icewright.adapters.engines.service.column_types import is_read_as, physical_types
from icewright.adapters.engines.service.content_file import ContentFile
from icewright.adapters.engines.service.footers import MAGIC, parquet_footer, puffin_blobs
from icewright.adapters.engines.service.manifest_files import DATA
from icewright.core import field_ids as ids
from icewright.core.errors import MetadataUnreadable
from icewright.core.integrity import FileFaultKind
from icewright.core.table import PartitionSpec
from icewright.ports import TableFiles


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
            return list(_vector_faults(files, entry, records))
    if (magic := MAGIC.get(entry.format)) and files.read_range(entry.path, 0, len(magic)) != magic:
        raise MetadataUnreadable(f"{entry.path} does not begin as {entry.format} files do")
    return list(column_faults(entry, {}, types, specs.get(entry.spec_id)))


def _vector_faults(files: TableFiles, entry: ContentFile, records: Mapping[str, int]) -> Iterator[Fault]:
    """Yield where a vector is another than its entry says; `records` are the rows of data files by path."""
    offset, length = entry.values.get(ids.CONTENT_OFFSET), entry.values.get(ids.CONTENT_SIZE)
    blobs = puffin_blobs(files, entry.path, entry.bytes)
    blob = next((b for b in blobs if (b["offset"], b["length"]) == (offset, length)), None)
    if offset is None or length is None or (blobs and blob is None):
        yield FileFaultKind.WRONG_VECTOR, f"its entry says {length} bytes at {offset}, where the file has no blob"
        return
    if blob and (other := blob.get("properties", {}).get("referenced-data-file", entry.referenced)) != entry.referenced:
        yield FileFaultKind.WRONG_VECTOR, f"its blob at {offset} is of {other}, and its entry of {entry.referenced}"
    try:
        positions = vector_positions(files.read_range(entry.path, offset, length))
    except (ValueError, struct.error) as error:
        yield FileFaultKind.WRONG_VECTOR, f"the vector at {offset} is broken: {error}"
        return
    if len(positions) != entry.records:
        yield FileFaultKind.WRONG_VECTOR, f"the vector at {offset} has {len(positions)} positions, not {entry.records}"
    rows = records.get(entry.referenced)
    if rows is not None and len(positions) and positions.max() >= rows:
        deleted = f"position {positions.max()} of {entry.referenced}, which has {rows} rows"
        yield FileFaultKind.WRONG_POSITIONS, f"the vector at {offset} deletes {deleted}"


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
        yield from self._type_faults()
        for number in sorted(self._measured.keys() & set(needed)) if self.entry.content == DATA else ():
            if nulls := self._measured[number].nulls:
                yield FileFaultKind.WRONG_FIELDS, f"column {number} is required, and has {nulls} nulls"
        if self.footer.num_rows != self.entry.records:
            yield FileFaultKind.WRONG_COUNT, f"it has {self.footer.num_rows} rows, not {self.entry.records}"
        if self._offsets_are_wrong:
            offsets = self.entry.values[ids.SPLIT_OFFSETS]
            yield FileFaultKind.WRONG_OFFSETS, f"its entry has split offsets {offsets} where no row group begins"
        yield from column_faults(self.entry, self._measured, self.types, self.spec)

    def _type_faults(self) -> Iterator[Fault]:
        """Yield which columns the file stores as other types than the schema has."""
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

    def corrected(self) -> Mapping[int, Any]:
        """Return the entry's values as the footer has them; what is wrong and optional is left out."""
        new, measured = dict(self.entry.values), self._measured
        new[ids.RECORD_COUNT] = self.footer.num_rows
        if self._offsets_are_wrong:
            new[ids.SPLIT_OFFSETS] = None
        wrong = wrong_bounds(self.entry, measured, self.types)
        for field, actual in (
            (ids.VALUE_COUNTS, {number: column.values for number, column in measured.items()}),
            (ids.NULL_COUNTS, {n: column.nulls for n, column in measured.items() if column.nulls is not None}),
        ):
            stated = new.get(field)
            new[field] = stated and [{**pair, "value": actual.get(pair["key"], pair["value"])} for pair in stated]
        if names_other_files(self.entry, measured):
            new[ids.REFERENCED_DATA_FILE] = None
        contradicted = contradictions(replace(self.entry, values=new)).keys()
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
        ends = [(comparable(s.min_raw, kind), comparable(s.max_raw, kind)) for s in filled] if known else []
        least, most = min((e[0] for e in ends), default=None), max((e[1] for e in ends), default=None)
        exact = not any(isinstance(end, bytes) and len(end) >= MAYBE_TRUNCATED_BYTES for end in (least, most))
        return ColumnContent(values, sum(s.null_count for s in stats), least, most, exact)

    def _in_unit_of_bounds(self, index: int, kind: str) -> bool:
        """Return whether the file stores the column in the unit of its bounds."""
        if not is_ordered(kind):
            return False
        logical = json.loads(self.footer.schema.column(index).logical_type.to_json())
        return logical.get("timeUnit") in (None, "nanoseconds" if kind.endswith("_ns") else "microseconds")
