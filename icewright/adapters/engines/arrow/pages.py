"""Estimate the memory in which Arrow decodes a Parquet file, before it reads a row."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.parquet as pq

_PAGE_BYTES = 1 << 20  # the usual size of a page; smaller column chunks are counted as one page
_HEADER_BYTES = 32
_I32_FIELD = 0x15  # of Thrift's compact protocol: the next field, of type i32


def decoding_bytes(source: pa.NativeFile, metadata: pq.FileMetaData, enough: int) -> int:
    """Return the bytes of pages that are in memory at once while the largest row group is decoded.

    Arrow holds a page of each column, and reserves as much again for those of byte arrays. The footer does not say how
    large pages are: their headers are read where the whole row group would take more than `enough`.
    """
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    group = max(groups, key=lambda each: each.total_byte_size, default=None)
    if group is None:
        return 0
    chunks = [group.column(number) for number in range(group.num_columns)]
    whole = sum(_copies(chunk) * chunk.total_uncompressed_size for chunk in chunks)
    if whole <= enough:
        return int(whole)
    return sum(_copies(chunk) * min(chunk.total_uncompressed_size, _pages(source, chunk)) for chunk in chunks)


def _copies(chunk: pq.ColumnChunkMetaData) -> int:
    return 2 if chunk.physical_type == "BYTE_ARRAY" else 1


def _pages(source: pa.NativeFile, chunk: pq.ColumnChunkMetaData) -> int:
    """Return the uncompressed bytes of the first page and the dictionary; those of the chunk if a header is unclear."""
    size = int(chunk.total_uncompressed_size)
    if size <= _PAGE_BYTES:
        return size
    offsets = [chunk.data_page_offset, *([chunk.dictionary_page_offset] if chunk.has_dictionary_page else [])]
    pages = [_page_bytes(source.read_at(_HEADER_BYTES, offset)) for offset in offsets]
    return size if None in pages else sum(page for page in pages if page is not None)


def _page_bytes(header: bytes) -> int | None:
    """Return the uncompressed size of a page by its header, whose first fields are its type and this size."""
    values = iter(header)
    kind = _i32(values)
    size = None if kind is None else _i32(values)
    return size if size is not None and size >= 0 else None


def _i32(values: Iterator[int]) -> int | None:
    """Return the next field as an integer; None when it is none."""
    if next(values, None) != _I32_FIELD:
        return None
    number = shift = 0
    for byte in values:
        number |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:  # noqa: PLR2004 - the high bit says that more bytes follow
            return (number >> 1) ^ -(number & 1)
    return None
