"""How many rows of a Parquet file are decoded at once, by what its footer says of the length of values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from icewright.adapters.engines.arrow.compact_thrift import read_struct

_BATCH_BYTES = 16 << 20  # decoded
_MAX_BATCH_ROWS = 1 << 17
_VALUE_BYTES = 8  # of a decoded value, however often it repeats; of a text the offset, and what it may be less
_MAX_ENCODED_ROWS = 1 << 13  # values of a dictionary may be longer than the footer reports
# the way in the footer to the bytes of a column chunk's values in memory (Parquet's SizeStatistics)
_ROW_GROUPS, _COLUMNS, _METADATA, _SIZES, _UNENCODED = 4, 1, 3, 16, 1
_FOOTER_BYTES = 1 << 16  # of the largest footer that takes less time than to look up dictionaries
_TAIL_BYTES = 8  # behind the footer
_TINY_DICTIONARY_BYTES, _ROWS_PER_BYTE = 1 << 12, 16  # of a compressed dictionary
_LONG_BYTES = 1 << 12  # of a value; pages of longer ones differ in size, and their statistics are left out


def batch_rows(group: pq.RowGroupMetaData, schema: pq.ParquetSchema) -> int:
    """Return how many rows take about `_BATCH_BYTES` once decoded.

    The footer says how long values are, but for byte arrays with a dictionary. Those without statistics have values
    above 4 KB, none longer than their column chunk.
    """
    chunks = [group.column(number) for number in range(group.num_columns)]
    encoded = [chunk for chunk in chunks if _has_codes(chunk)]
    longest = max((chunk.total_uncompressed_size for chunk in encoded if not _has_bounds(chunk)), default=0)
    most = _MAX_ENCODED_ROWS if encoded else _MAX_BATCH_ROWS
    fitting = max(1, min(most, _BATCH_BYTES * group.num_rows // max(1, _decoded_bytes(group, schema))))
    return max(1, min(fitting, _BATCH_BYTES // longest)) if longest else int(fitting)


def batch_rows_of(source: pa.NativeFile, metadata: pq.FileMetaData, numbers: Sequence[int]) -> int:
    """Return how many rows of these row groups take about `_BATCH_BYTES` once decoded.

    Where only dictionaries stand against more rows than the footer's lengths allow, the longest values are looked up,
    unless the footer tells the length of all values together.
    """
    groups = {number: metadata.row_group(number) for number in numbers}
    rows = min(batch_rows(group, metadata.schema) for group in groups.values())
    if rows != _MAX_ENCODED_ROWS or min(group.num_rows for group in groups.values()) <= rows:
        return rows
    if (known := _rows_by_text_sizes(source, metadata, groups)) >= rows:
        return known
    rows_by_group = [_rows_by_dictionary(source, metadata, number, group) for number, group in groups.items()]
    return min(of_group or rows for of_group in rows_by_group)


def few_valued_texts(metadata: pq.FileMetaData) -> list[str]:
    """Return the columns of texts and binary values whose dictionaries are tiny in all row groups."""
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    paths = ((index, metadata.schema.column(index).path) for index in range(metadata.num_columns))
    return [
        path
        for index, path in paths
        if "." not in path and all(_has_few_values(group.column(index)) for group in groups)
    ]


def _has_few_values(chunk: pq.ColumnChunkMetaData) -> bool:
    if not _has_codes(chunk):
        return False
    dictionary = chunk.data_page_offset - chunk.dictionary_page_offset
    return bool(dictionary <= _TINY_DICTIONARY_BYTES and dictionary * _ROWS_PER_BYTE <= chunk.num_values)


def constant_rows(columns: int, texts: Iterable[object]) -> int:
    """Return how many rows of so many columns take about `_BATCH_BYTES`, with these values in each that are texts."""
    row_bytes = _VALUE_BYTES * columns + sum(len(text) for text in texts if isinstance(text, str))
    return max(1, _BATCH_BYTES // max(1, row_bytes))


def _decoded_bytes(group: pq.RowGroupMetaData, schema: pq.ParquetSchema) -> int:
    """Return the bytes of a row group once decoded, in which values take room however often they repeat.

    Of texts and binary values with a dictionary only the codes count.
    """
    chunks = ((group.column(number), schema.column(number)) for number in range(group.num_columns))
    return sum(
        max(chunk.total_uncompressed_size, chunk.num_values * max(_VALUE_BYTES, column.length))
        for chunk, column in chunks
    )


def _rows_by_text_sizes(
    source: pa.NativeFile, metadata: pq.FileMetaData, groups: Mapping[int, pq.RowGroupMetaData]
) -> int:
    """Return how many rows take twice `_BATCH_BYTES` if all texts of a group lie in them; 0 if no footer says it."""
    length, most_rows = metadata.serialized_size, _MAX_BATCH_ROWS
    if length > _FOOTER_BYTES:
        return 0
    try:
        footer, _ = read_struct(source.read_at(length, source.size() - _TAIL_BYTES - length), 0)
        for number, group in groups.items():
            columns = footer[_ROW_GROUPS][number][_COLUMNS]
            texts = sum(
                column[_METADATA][_SIZES][_UNENCODED]
                for index, column in enumerate(columns)
                if _has_codes(group.column(index))
            )
            row_bytes = _decoded_bytes(group, metadata.schema) / group.num_rows
            most_rows = min(most_rows, int((2 * _BATCH_BYTES - texts) / row_bytes))
    except (LookupError, ValueError):
        return 0
    return most_rows


def _has_codes(chunk: pq.ColumnChunkMetaData) -> bool:
    return bool(chunk.physical_type == "BYTE_ARRAY" and chunk.has_dictionary_page)


def _rows_by_dictionary(
    source: pa.NativeFile, metadata: pq.FileMetaData, number: int, group: pq.RowGroupMetaData
) -> int:
    """Return how many rows take `_BATCH_BYTES` when each has the longest values of dictionaries; 0 if unclear."""
    row_bytes = _decoded_bytes(group, metadata.schema) / group.num_rows
    for chunk in (group.column(index) for index in range(group.num_columns)):
        if _has_codes(chunk):
            name = chunk.path_in_schema
            if "." in name or may_be_long(chunk):
                return 0
            file = pq.ParquetFile(source, metadata=metadata, read_dictionary=[name])
            values = next(file.iter_batches(1, row_groups=[number], columns=[name], use_threads=False)).column(0)
            if not pa.types.is_dictionary(values.type):
                return 0
            row_bytes += pc.max(pc.binary_length(values.dictionary)).as_py() or 0
    return max(1, min(_MAX_BATCH_ROWS, int(_BATCH_BYTES / row_bytes)))


def may_be_long(chunk: pq.ColumnChunkMetaData) -> bool:
    """Return whether some values of a column chunk may be so long that writers leave them out of statistics."""
    return not _has_bounds(chunk) or chunk.total_uncompressed_size > _LONG_BYTES * chunk.num_values


def _has_bounds(chunk: pq.ColumnChunkMetaData) -> bool:
    """Return whether a column chunk has statistics that name its least and greatest value, or no value."""
    statistics = chunk.statistics
    return statistics is not None and (statistics.has_min_max or statistics.null_count == chunk.num_values)
