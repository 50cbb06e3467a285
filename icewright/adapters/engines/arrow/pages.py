"""The memory in which Arrow decodes a Parquet file, by the sizes of its pages and before a row is read."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.parquet as pq

from icewright.adapters.engines.arrow.batch_rows import batch_rows, may_be_long
from icewright.adapters.engines.arrow.compact_thrift import read_struct

_PAGE_BYTES = 1 << 20  # the usual size of a page; smaller column chunks are counted as one page
_HEADER_BYTES = 1 << 14  # with the statistics of a page
_WINDOW_BYTES = 4 << 20  # read at once where all headers of a column are
_ALONE = 2  # times that one large page counts: its values are copied more often than those of many small pages
_SIZE, _COMPRESSED, _V1, _DICTIONARY, _V2 = 2, 3, 5, 7, 8  # fields of a page header
_VALUES = 1  # the first field of its three structs


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
        if may_be_long(chunk):
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
        header, after = read_struct(data, at - start)
        kind = next(number for number in (_V1, _DICTIONARY, _V2) if number in header)
        yield header[_SIZE], header[kind][_VALUES]
        at = start + after + header[_COMPRESSED]


def chunk_offset(chunk: pq.ColumnChunkMetaData) -> int:
    """Return where a column chunk begins in its file."""
    offsets: list[int] = [o for o in (chunk.dictionary_page_offset, chunk.data_page_offset) if o is not None]
    return min(offsets)
