"""Estimate how columns are encoded: whether a dictionary pays, and how many rows make a row group."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

_SAMPLES, _SAMPLE_ROWS = 16, 256  # sampled slices of a row group, and rows of each at most
_STEPS = 4  # of the estimate of distinct values
_SAMPLE_BYTES = 16 << 20  # of all slices, about: counting distinct values copies them
_ENCODED_SAMPLE_BYTES = 8 << 20  # decoded, of the rows whose encoded size is measured


def dictionary_pays(column: pa.ChunkedArray, limit: int, page_rows: int | None = None) -> bool:
    """Return whether a dictionary of the column is estimated to stay within `limit` bytes, and to save any.

    One that overflows costs time and stores both codes and values. Like parquet-java, a column whose dictionary and
    codes take no fewer bytes than its values in a first page of `page_rows` does without; by default all rows count.
    Columns that Arrow cannot count, such as nested columns, have a dictionary.
    """
    if not len(column) or pa.types.is_nested(column.type):
        return True
    sample = decoded(_sample(column)).drop_null()
    if not len(sample):
        return True
    if isinstance(column.type, pa.BaseExtensionType):
        sample = pa.chunked_array([chunk.storage for chunk in sample.chunks], column.type.storage_type)
    sampled, distinct = len(sample), float(pc.count_distinct(sample).as_py())
    width, rows = float(sample.nbytes / sampled), min(len(column), page_rows or len(column))
    if sampled < len(column):
        distinct = _distinct(sampled, distinct)
    in_page = distinct if rows == sampled else _expected(rows, distinct)
    codes = rows * math.ceil(math.log2(in_page + 1)) / 8
    return distinct * width <= limit and in_page * width + codes < rows * width


def _distinct(sampled: int, found: float) -> float:
    """Estimate how many distinct values a column has, all equally frequent, by those found in a sample."""
    distinct = sampled**2 / (2 * max(sampled - found, 1))  # too many, but where few repeat
    for _ in range(_STEPS):
        distinct *= found / _expected(sampled, distinct)
    return distinct


def _expected(rows: int, distinct: float) -> float:
    """Return how many of the distinct values are among so many rows."""
    return -distinct * math.expm1(-rows / distinct)


def _sample(column: pa.ChunkedArray) -> pa.ChunkedArray:
    rows = max(1, min(_SAMPLE_ROWS, _SAMPLE_BYTES * len(column) // max(_decoded_bytes(column), 1) // _SAMPLES))
    if len(column) <= _SAMPLES * rows:
        return column
    step = len(column) // _SAMPLES
    chunks = [chunk for number in range(_SAMPLES) for chunk in column.slice(number * step, rows).chunks]
    return pa.chunked_array(chunks, column.type)


def _decoded_bytes(column: pa.ChunkedArray) -> int:
    """Return the bytes of a column's values; of codes, at most: as if all rows had the longest."""
    if not pa.types.is_dictionary(column.type):
        return int(column.nbytes)
    lengths = (pc.max(pc.binary_length(chunk.dictionary)).as_py() or 0 for chunk in column.chunks)
    return max(lengths, default=0) * len(column)


@dataclass(frozen=True, slots=True)
class RowGroupTarget:
    """The limits at which parquet-java ends a row group: bytes in memory, which it checks from time to time."""

    bytes: int
    least_check: int  # rows from one check to the next
    most_check: int
    page_rows: int
    page_bytes: int
    compressed: bool  # whether complete pages count as compressed

    def rows(self, table: pa.Table, options: Mapping[str, Any]) -> int:
        """Return how many rows like those of the table a row group has; some are encoded to find out."""
        sample = table.slice(0, max(1, _ENCODED_SAMPLE_BYTES * table.num_rows // max(1, table.nbytes)))
        sample = unified(sample, options["dictionary_pagesize_limit"])
        costs = list(self._costs(sample, options))
        rows = self._next_check(0)
        while True:
            group_bytes = sum(
                pages * page_bytes + rest * row_bytes
                for pages, rest, page_bytes, row_bytes in (
                    (*divmod(rows, page_rows), page_bytes, row_bytes) for page_rows, page_bytes, row_bytes in costs
                )
            )
            row = group_bytes / rows
            if group_bytes > self.bytes - 2 * row:
                return rows
            rows += self._next_check((self.bytes - group_bytes) / row)

    def _next_check(self, remaining: float) -> int:
        """Return the rows until the next look; the first is after the least number."""
        return min(max(int(remaining / 2), self.least_check, 1), max(self.most_check, 1))

    def _costs(self, sample: pa.Table, options: Mapping[str, Any]) -> Iterator[tuple[int, float, float]]:
        """Yield the rows of a page of each column, the bytes of a complete one, and those of a row before.

        Dictionaries do not count, and values of a page that is not complete count as they are without one.
        """
        plain = _encoded(sample, {**options, "use_dictionary": False, "compression": "NONE", "compression_level": None})
        written = _encoded(sample, options)
        for number in range(plain.num_columns):
            row = plain.column(number).total_uncompressed_size / plain.num_rows
            rows = max(1, min(self.page_rows, int(self.page_bytes / max(row, 1e-9))))
            yield rows, rows * (_page_bytes(written.column(number)) / plain.num_rows if self.compressed else row), row


def _encoded(table: pa.Table, options: Mapping[str, Any]) -> pq.RowGroupMetaData:
    """Return the sizes that a table has as a row group."""
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(sink, table.schema, **options) as writer:
        writer.write_table(table, row_group_size=table.num_rows)
    return pq.read_metadata(pa.BufferReader(sink.getvalue())).row_group(0)


def _page_bytes(chunk: pq.ColumnChunkMetaData) -> int:
    """Return the bytes of a column chunk without its dictionary."""
    dictionary = chunk.data_page_offset - chunk.dictionary_page_offset if chunk.has_dictionary_page else 0
    return int(chunk.total_compressed_size - dictionary)


def coded(batch: pa.RecordBatch, names: AbstractSet[str]) -> pa.RecordBatch:
    """Return the batch with the named columns as codes and dictionaries, and no others."""
    for index, field in enumerate(batch.schema):
        if (field.name in names) != pa.types.is_dictionary(field.type):
            column = batch.column(index)
            column = column.dictionary_encode() if field.name in names else column.dictionary_decode()
            batch = batch.set_column(index, field.with_type(column.type), column)
    return batch


def codes_of(batch: pa.RecordBatch) -> frozenset[str]:
    """Return the names of the columns that are codes and dictionaries."""
    return frozenset(field.name for field in batch.schema if pa.types.is_dictionary(field.type))


def decoded(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return the values of a column that may consist of codes."""
    return column.cast(column.type.value_type) if pa.types.is_dictionary(column.type) else column


def unified(table: pa.Table, limit: int) -> pa.Table:
    """Return the table with one dictionary for each column of codes.

    Where it is above `limit` bytes the first value has one of its own: once the dictionary changes, Arrow writes values
    in place of codes.
    """
    columns, schema = table.columns, table.schema
    del table
    for index, column in enumerate(columns):
        if pa.types.is_dictionary(column.type) and column.num_chunks:
            codes = referenced(column.unify_dictionaries())
            if codes.chunk(0).dictionary.nbytes > limit:
                first = column.chunk(0).slice(0, 1).dictionary_decode().dictionary_encode()
                codes = pa.chunked_array([first, *column.slice(1).chunks])
            columns[index] = codes
    return pa.Table.from_arrays(columns, schema=schema)


def referenced(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return codes of one dictionary without the values that no row has, which Arrow takes for bounds beside nulls."""
    values, codes = column.chunk(0).dictionary, [chunk.indices for chunk in column.chunks]
    used = codes[0][:0]
    for chunk in codes:  # the first rows have all values, often
        used = pc.unique(pa.concat_arrays([used, chunk])).drop_null()
        if len(used) == len(values):
            return column
    values = values.take(used)
    return pa.chunked_array([pa.DictionaryArray.from_arrays(pc.index_in(c, value_set=used), values) for c in codes])
