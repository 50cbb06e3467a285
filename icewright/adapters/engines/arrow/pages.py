"""Estimate the memory in which Arrow decodes a Parquet file, before it reads a row."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

_BATCH_BYTES = 16 << 20  # decoded
_MAX_BATCH_ROWS = 1 << 17
_VALUE_BYTES = 8  # of a decoded value, however often it repeats; of a text the offset, and what it may be less
_MAX_ENCODED_ROWS = 1 << 13  # values of a dictionary may be longer than the footer reports
_PAGE_BYTES = 1 << 20  # the usual size of a page; smaller column chunks are counted as one page
_LONG_BYTES = 1 << 12  # of a value; pages of longer ones differ in size, and their statistics are left out
_HEADER_BYTES = 1 << 14  # with the statistics of a page
_WINDOW_BYTES = 4 << 20  # read at once where all headers of a column are
_ALONE = 2  # times that one large page counts: its values are copied more often than those of many small pages
_STOP = 0  # the end of a struct in Thrift's compact protocol
_TRUE, _FALSE, _BYTE, _I16, _I32, _I64, _DOUBLE, _BINARY, _LIST, _STRUCT = 1, 2, 3, 4, 5, 6, 7, 8, 9, 12  # its types
_LONG_LIST = 15  # the count of a list of which the count follows
_SIZE, _COMPRESSED, _V1, _DICTIONARY, _V2 = 2, 3, 5, 7, 8  # fields of a page header
_VALUES = 1  # the first field of its three structs
# the way in the footer to the bytes of a column chunk's values in memory (Parquet's SizeStatistics)
_ROW_GROUPS, _COLUMNS, _METADATA, _SIZES, _UNENCODED = 4, 1, 3, 16, 1
_FOOTER_BYTES = 1 << 16  # of the largest footer that takes less time than to look up dictionaries
_TAIL_BYTES = 8  # behind the footer
_TINY_DICTIONARY_BYTES, _ROWS_PER_BYTE = 1 << 12, 16  # of a compressed dictionary


def decoding_bytes(source: pa.NativeFile, metadata: pq.FileMetaData, enough: int) -> int:
    """Return the bytes in memory at once while the row group that takes most is decoded, as far as they matter.

    Arrow holds a page of each column, and reserves as much again for those of byte arrays. The footer does not say how
    large pages are: their headers are read where whole chunks would take more than `enough`. Pages of values that may
    be long are all looked at, of others one in each column.
    """
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    groups.sort(key=lambda group: group.total_byte_size, reverse=True)
    short_pages: dict[int, int] = {}  # by column
    return max((_group_bytes(source, group, metadata.schema, enough, short_pages) for group in groups), default=0)


def _group_bytes(
    source: pa.NativeFile,
    group: pq.RowGroupMetaData,
    schema: pq.ParquetSchema,
    enough: int,
    short_pages: dict[int, int],
) -> int:
    chunks = [group.column(number) for number in range(group.num_columns)]
    weights = [(2 if chunk.physical_type == "BYTE_ARRAY" else 1) * chunk.total_uncompressed_size for chunk in chunks]
    if sum(weights) <= enough and _ALONE * max(weights, default=0) <= enough:
        return sum(weights)
    rows, total, most = batch_rows(group, schema), 0, 0
    for number, (chunk, weight) in enumerate(zip(chunks, weights, strict=True)):
        size = chunk.total_uncompressed_size
        if size <= _PAGE_BYTES:
            total += weight
            continue
        long = not has_bounds(chunk) or size > _LONG_BYTES * chunk.num_values
        if long:
            page, batch = _largest_page_bytes(source, chunk, rows)
            most = max(most, batch)
        else:
            page = short_pages[number] if number in short_pages else _first_page_bytes(source, chunk)
            short_pages[number] = page
        decoded = weight // size * min(page, size)
        total, most = total + decoded, max(most, _ALONE * decoded)
    return max(total, most)


def _largest_page_bytes(source: pa.NativeFile, chunk: pq.ColumnChunkMetaData, rows: int) -> tuple[int, int]:
    """Return the bytes of the largest page, and those of a batch where values are longest; of the chunk if unclear."""
    size = chunk.total_uncompressed_size
    page = batch = 0
    try:
        for bytes_, values in _pages(source, chunk, _WINDOW_BYTES):
            page, batch = max(page, bytes_), max(batch, bytes_ * max(rows, values) // max(values, 1))
    except (LookupError, ValueError):
        return size, size
    return page, min(batch, size)


def _first_page_bytes(source: pa.NativeFile, chunk: pq.ColumnChunkMetaData) -> int:
    """Return the bytes of the first page and the dictionary, if there is one; of the chunk if unclear."""
    try:
        pages = _pages(source, chunk, _HEADER_BYTES)
        return sum(size for size, _ in itertools.islice(pages, 2 if chunk.has_dictionary_page else 1))
    except (LookupError, ValueError):
        return int(chunk.total_uncompressed_size)


def _pages(source: pa.NativeFile, chunk: pq.ColumnChunkMetaData, window: int) -> Iterator[tuple[int, int]]:
    """Yield the uncompressed bytes and the number of values of each page."""
    at = chunk_offset(chunk)
    end = at + chunk.total_compressed_size
    data, start = b"", at
    while at < end:
        if at + _HEADER_BYTES > min(start + len(data), end):
            data, start = source.read_at(max(min(window, end - at), 1), at), at
        header, after = _struct(data, at - start)
        kind = next(number for number in (_V1, _DICTIONARY, _V2) if number in header)
        yield header[_SIZE], header[kind][_VALUES]
        at = start + after + header[_COMPRESSED]


def _struct(data: bytes, at: int) -> tuple[dict[int, Any], int]:
    """Return the fields of a struct in Thrift's compact protocol by number, and where it ends.

    Raises `IndexError` where the bytes end before it, `ValueError` for types that no page header has.
    """
    fields: dict[int, Any] = {}
    number = 0
    while data[at] != _STOP:
        step, kind = data[at] >> 4, data[at] & 0xF
        at += 1
        if step:
            number += step
        else:
            number, at = _integer(data, at)
        fields[number], at = _value(data, at, kind)
    return fields, at + 1


def _value(data: bytes, at: int, kind: int) -> tuple[Any, int]:
    if kind in (_TRUE, _FALSE):
        return kind == _TRUE, at
    if kind in (_I16, _I32, _I64):
        return _integer(data, at)
    if kind == _STRUCT:
        return _struct(data, at)
    if kind == _LIST:
        count, element = data[at] >> 4, data[at] & 0xF
        count, at = _varint(data, at + 1) if count == _LONG_LIST else (count, at + 1)
        element = _BYTE if element in (_TRUE, _FALSE) else element  # in a list a truth value takes a byte
        items = []
        for _ in range(count):
            item, at = _value(data, at, element)
            items.append(item)
        return items, at
    if kind == _BINARY:
        length, at = _varint(data, at)
        return None, at + length
    if kind in (_BYTE, _DOUBLE):
        return None, at + (1 if kind == _BYTE else 8)
    raise ValueError(kind)


def _integer(data: bytes, at: int) -> tuple[int, int]:
    number, at = _varint(data, at)
    return (number >> 1) ^ -(number & 1), at


def _varint(data: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while data[at] & 0x80:
        number |= (data[at] & 0x7F) << shift
        shift, at = shift + 7, at + 1
    return number | data[at] << shift, at + 1


def chunk_offset(chunk: pq.ColumnChunkMetaData) -> int:
    """Return where a column chunk begins in its file."""
    offsets: list[int] = [o for o in (chunk.dictionary_page_offset, chunk.data_page_offset) if o is not None]
    return min(offsets)


def batch_rows(group: pq.RowGroupMetaData, schema: pq.ParquetSchema) -> int:
    """Return how many rows take about `_BATCH_BYTES` once decoded.

    The footer says how long values are, but for byte arrays with a dictionary. Those without statistics have values
    above 4 KB, none longer than their column chunk.
    """
    chunks = [group.column(number) for number in range(group.num_columns)]
    encoded = [chunk for chunk in chunks if _has_codes(chunk)]
    longest = max((chunk.total_uncompressed_size for chunk in encoded if not has_bounds(chunk)), default=0)
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
        footer, _ = _struct(source.read_at(length, source.size() - _TAIL_BYTES - length), 0)
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
            if "." in name or not has_bounds(chunk) or chunk.total_uncompressed_size > _LONG_BYTES * chunk.num_values:
                return 0
            file = pq.ParquetFile(source, metadata=metadata, read_dictionary=[name])
            values = next(file.iter_batches(1, row_groups=[number], columns=[name], use_threads=False)).column(0)
            if not pa.types.is_dictionary(values.type):
                return 0
            row_bytes += pc.max(pc.binary_length(values.dictionary)).as_py() or 0
    return max(1, min(_MAX_BATCH_ROWS, int(_BATCH_BYTES / row_bytes)))


def has_bounds(chunk: pq.ColumnChunkMetaData) -> bool:
    """Return whether a column chunk has statistics that name its least and greatest value, or no value."""
    statistics = chunk.statistics
    return statistics is not None and (statistics.has_min_max or statistics.null_count == chunk.num_values)
