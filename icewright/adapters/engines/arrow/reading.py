"""Scan the live rows of a bin's files in batches, in the table's current schema."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyroaring import BitMap64

from icewright.adapters.engines.arrow.batch_rows import batch_rows_of, constant_rows
from icewright.adapters.engines.arrow.deletes import Deletes, and_masks, equality_mask, position_mask
from icewright.adapters.engines.arrow.equality import EqualityDeletes
from icewright.adapters.engines.arrow.metrics import column_paths
from icewright.adapters.engines.arrow.opening import Opener, OpenParquet, UnreadableFile
from icewright.adapters.engines.arrow.pages import chunk_offset
from icewright.adapters.engines.arrow.ranges import TIE, ties
from icewright.adapters.engines.arrow.reading_ahead import ReadingAhead
from icewright.adapters.engines.arrow.resolve import Unresolvable, field_id, resolved, with_ids
from icewright.adapters.engines.arrow.tasks import Bin, DeleteKind, FileSlice, Layout
from icewright.adapters.engines.arrow.types import LAST_UPDATED, ROW_ID, Field, arrow_schema
from icewright.core.schemas import NAME_MAPPING

_BYTES_OF_A_COLUMN = 1 << 10  # of a batch, beside its values
_DELETE_BYTES = 1 << 20  # that a delete file is taken for, as entries of data files do not say
_SMALL_SHARE = 64  # divisor of the task's memory: smaller batches become one


@dataclass
class BatchScan:
    """A scan of one bin, and the counts of rows that it has read so far."""

    layout: Layout
    opener: Opener
    bin: Bin
    read: int = 0  # rows, deleted rows included
    deleted: int = 0
    codes: bool = False  # whether texts that repeat a lot may stay codes
    tie_seed: int | None = None  # of the ties of rows, by place in the scan; appended as a column when set
    fields: tuple[Field, ...] = field(init=False)
    schema: pa.Schema = field(init=False)

    def __post_init__(self) -> None:
        lineage = (ROW_ID, LAST_UPDATED) if self.layout.has_row_ids else ()
        self.fields = (*self.layout.schema["fields"], *lineage)
        self.schema = arrow_schema(self.fields)
        self._required = [index for index, stored in enumerate(self.schema) if not stored.nullable]
        self.opener = ReadingAhead.of(self.opener, self._in_order(), self.layout.memory_bytes)
        self._deletes = Deletes(self.layout, self.opener, self.bin.slices)
        constants = (*self.bin.partition.values(), *(f.get("initial-default") for f in self.fields))
        self._leaves = len([*column_paths(self.fields)])
        self._most_rows = constant_rows(self._leaves, constants)  # of columns that a file lacks

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield all live rows, those of small files together. Raises `UnreadableFile`, which names the file."""
        least, small, size = self.layout.memory_bytes // _SMALL_SHARE, list[pa.RecordBatch](), 0
        for batch in itertools.chain.from_iterable(map(self._live_batches, self.bin.slices)):
            if small and batch.schema != small[0].schema:  # codes beside values
                yield _one_batch(small)
                size = 0
            small.append(batch)
            size += batch.nbytes + _BYTES_OF_A_COLUMN * self._leaves
            if size >= least:
                yield _one_batch(small)
                size = 0
        if small:
            yield _one_batch(small)

    def _in_order(self) -> Iterator[tuple[str, int]]:
        """Yield the files to read, with their bytes; the first equality deletes to be applied need all of them."""
        deletes = {(delete.kind, delete.path) for file in self.bin.slices for delete in file.deletes}
        yield from ((path, _DELETE_BYTES) for kind, path in sorted(deletes) if kind is DeleteKind.EQUALITY)
        for file in self.bin.slices:
            positions = {delete.path for delete in file.deletes if delete.kind is DeleteKind.POSITION}
            yield from ((path, _DELETE_BYTES) for path in sorted(positions))
            yield file.path, file.file_bytes

    def scan_columns(self, fields: Sequence[Field]) -> Iterator[list[pa.Array]]:
        """Yield the columns of all rows, deleted rows included, in the order of `batches`."""
        for file_slice in self.bin.slices:
            with self.opener.parquet(file_slice.path, file_slice.file_bytes, self.layout.page_memory) as source:
                for batch, file_fields, _ in self._file_batches(source, file_slice, fields):
                    yield self._resolve(file_slice, batch, file_fields, fields)

    def _live_batches(self, file_slice: FileSlice) -> Iterator[pa.RecordBatch]:
        positions, equality = self._deletes.positions(file_slice), self._deletes.equality_deletes(file_slice)
        keys = {column["id"]: column for deletes in equality for column in deletes.index.columns}
        dropped = keys.keys() - {column["id"] for column in self.fields}
        fields = (*self.fields, *(keys[number] for number in dropped))
        codes = {column["id"] for column in self.fields} - keys.keys() if self.codes else frozenset[int]()
        opened = self.opener.parquet(file_slice.path, file_slice.file_bytes, self.layout.page_memory, codes=bool(codes))
        with opened as source:
            for batch, file_fields, start in self._file_batches(source, file_slice, fields):
                columns = self._resolve(file_slice, batch, file_fields, fields, codes)
                yield self._live_rows(file_slice, fields, columns, start, positions, equality)

    def _live_rows(
        self,
        file_slice: FileSlice,
        fields: Sequence[Field],
        columns: list[pa.Array],
        start: int,
        positions: BitMap64,
        equality: Sequence[EqualityDeletes],
    ) -> pa.RecordBatch:
        length = len(columns[0])
        if self.layout.has_row_ids:
            self._inherit_lineage(file_slice, columns, start)
        batch = pa.RecordBatch.from_arrays(columns[: len(self.fields)], schema=self._schema_of(columns))
        by_position = position_mask(positions, start, length)
        columns_by_id = {schema_field["id"]: column for schema_field, column in zip(fields, columns, strict=True)}
        mask = and_masks([by_position, equality_mask(length, columns_by_id, equality)])
        if self.tie_seed is not None:
            batch = batch.append_column(TIE, ties(self.read, length, self.tie_seed))
        live = batch if mask is None else batch.filter(mask)
        for index in self._required:
            if live.column(index).null_count:
                name = self.schema.field(index).name
                reason = f"it has nulls in column {name}, which is required, and Spark reads zeroes for them"
                raise UnreadableFile(f"{file_slice.path}: {reason}")
        self.read += length
        self.deleted += length - live.num_rows
        return live

    def _schema_of(self, columns: Sequence[pa.Array]) -> pa.Schema:
        """Return the schema of columns of which some may be codes."""
        schema = self.schema
        for index, column in enumerate(columns[: len(schema)] if self.codes else ()):
            if pa.types.is_dictionary(column.type):
                schema = schema.set(index, schema.field(index).with_type(column.type))
        return schema

    def _inherit_lineage(self, file_slice: FileSlice, columns: list[pa.Array], start: int) -> None:
        """Fill row ids and sequence numbers that the file inherits from its manifest entry (spec, Row Lineage)."""
        at = len(self.fields) - 2
        length = len(columns[at])
        if file_slice.first_row_id is None:
            columns[at] = columns[at + 1] = pa.nulls(length, pa.int64())
            return
        first = file_slice.first_row_id + start
        ids = pl.int_range(first, first + length, dtype=pl.Int64, eager=True).to_arrow()
        columns[at] = pc.coalesce(columns[at], ids)
        columns[at + 1] = columns[at + 1].fill_null(file_slice.sequence_number)

    def _file_batches(
        self, source: OpenParquet, file_slice: FileSlice, fields: Sequence[Field]
    ) -> Iterator[tuple[pa.RecordBatch, list[pa.Field], int]]:
        """Yield batches of the columns with wanted ids, their file fields, and the position of the first row."""
        metadata = source.metadata
        if metadata.num_rows != file_slice.records:
            raise UnreadableFile(
                f"{file_slice.path} has {metadata.num_rows} rows where its entry says {file_slice.records}"
            )
        schema = with_ids(source.schema_arrow, self.layout.properties.get(NAME_MAPPING))
        wanted_ids = {schema_field["id"] for schema_field in fields} - self.bin.partition.keys()
        names = [f.name for f in schema if field_id(f) in wanted_ids]
        by_name = {f.name: f for f in schema}
        groups, start = _row_groups(metadata, file_slice)
        if not groups:
            return
        if not names:  # the file has none of the columns: yield row counts
            end = start + sum(metadata.row_group(number).num_rows for number in groups)
            for first in range(start, end, self._most_rows):
                nulls = pa.nulls(min(self._most_rows, end - first))
                yield pa.RecordBatch.from_arrays([nulls], names=["none"]), [], first
            return
        rows = min(batch_rows_of(source.source, metadata, groups), self._most_rows)
        for batch in source.iter_batches(rows, row_groups=groups, columns=names, use_threads=False):
            yield batch, [by_name[name] for name in batch.schema.names], start
            start += batch.num_rows

    def _resolve(
        self,
        file_slice: FileSlice,
        batch: pa.RecordBatch,
        file_fields: list[pa.Field],
        fields: Sequence[Field],
        codes: AbstractSet[int] = frozenset(),
    ) -> list[pa.Array]:
        try:
            return resolved(batch, file_fields, fields, self.bin.partition, codes)
        except Unresolvable as error:
            raise UnreadableFile(f"{file_slice.path}: {error}") from error


def _one_batch(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    """Return the rows of all batches, releasing each."""
    batch = batches[0] if len(batches) == 1 else pa.concat_batches(batches)
    batches.clear()
    return batch


def _row_groups(metadata: pq.FileMetaData, file_slice: FileSlice) -> tuple[list[int], int]:
    """Return the row groups that begin in the slice, and the position of their first row."""
    groups: list[int] = []
    first = row = 0
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        if file_slice.start <= offset(group) < file_slice.end:
            if not groups:
                first = row
            groups.append(number)
        row += group.num_rows
    return groups, first


def offset(group: pq.RowGroupMetaData) -> int:
    """Return where a row group begins in its file."""
    return chunk_offset(group.column(0)) if group.num_columns else 0
