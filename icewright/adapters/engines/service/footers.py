"""Footers of Parquet and Puffin files, read from the ends of the files."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from icewright.adapters.engines.arrow.deletes import PUFFIN_MAGIC
from icewright.adapters.read_limits import read_limits
from icewright.core.avro_values import AVRO_MAGIC
from icewright.core.errors import MetadataUnreadable
from icewright.ports import TableFiles

_TAIL_BYTES = 64 << 10  # holds most footers whole
_PARQUET_END = 8  # bytes of length and magic
_PUFFIN_END = 12  # bytes of payload size, flags and magic
_LEAST_BYTES = 12  # of a file of either format
PARQUET_MAGIC = b"PAR1"  # at the begin and the end of a file
MAGIC = {"ORC": b"ORC", "AVRO": AVRO_MAGIC}  # how files begin whose footers are not read


def check_statistics(files: TableFiles, path: str, length: int, footer_bytes: int | None) -> None:
    """Raise `MetadataUnreadable` unless a file of statistics can be read.

    `footer_bytes` is what the metadata says of a Puffin file; partition statistics are in a format of data files.
    """
    if footer_bytes is None:
        if not files.read_range(path, 0, 4).startswith(tuple(MAGIC.values())):
            parquet_footer(files, path, length)
        return
    puffin_blobs(files, path, length)
    start, _ = puffin_footer(files, path, length)
    if length - start != footer_bytes:
        raise MetadataUnreadable(f"{path} has a footer of {length - start} bytes, and its entry says {footer_bytes}")


def puffin_blobs(files: TableFiles, path: str, length: int) -> list[Mapping[str, Any]]:
    """Return the blobs of a Puffin file (Puffin spec). Raises `MetadataUnreadable`."""
    _, footer = puffin_footer(files, path, length)
    if footer is None:
        return []
    blobs: list[Mapping[str, Any]] | None = footer.get("blobs") if isinstance(footer, dict) else None
    if not isinstance(blobs, list) or not all(map(_is_blob, blobs)):
        raise MetadataUnreadable(f"{path} has a Puffin footer that is not as the spec has it")
    if any(blob["offset"] + blob["length"] > length for blob in blobs):
        raise MetadataUnreadable(f"{path} names a blob beyond its end")
    return blobs


def _is_blob(blob: Any) -> bool:  # noqa: ANN401 - JSON
    return (
        isinstance(blob, dict)
        and isinstance(blob.get("type"), str)
        and isinstance(blob.get("fields"), list)
        and isinstance(blob.get("properties", {}), dict)
        and all(isinstance(blob.get(name), int) and blob[name] >= 0 for name in ("offset", "length"))
    )


def puffin_footer(files: TableFiles, path: str, length: int) -> tuple[int, Any]:
    """Return where the footer of a Puffin file begins, and its JSON; None for one that is compressed by LZ4.

    No writer compresses it in files of vectors or statistics. Raises `MetadataUnreadable`.
    """

    def footer_bytes(tail: bytes) -> int:
        (payload,) = struct.unpack("<i", tail[-_PUFFIN_END:-8])
        return len(PUFFIN_MAGIC) + int(payload) + _PUFFIN_END

    tail = _tail(files, path, length, PUFFIN_MAGIC, footer_bytes)
    start = length - len(tail)
    if not tail.startswith(PUFFIN_MAGIC):
        raise MetadataUnreadable(f"{path} has no Puffin footer where its length says")
    if tail[-8] & 1:
        return start, None
    try:
        return start, json.loads(tail[len(PUFFIN_MAGIC) : -_PUFFIN_END])
    except (ValueError, RecursionError) as error:
        raise MetadataUnreadable(f"{path} has a Puffin footer that cannot be read: {error}") from error


def parquet_footer(files: TableFiles, path: str, length: int) -> tuple[pq.FileMetaData, pa.Schema, int]:
    """Return the footer of a Parquet file, its schema, and the bytes of both. Raises `MetadataUnreadable`."""
    tail = _tail(files, path, length, PARQUET_MAGIC, lambda tail: struct.unpack("<I", tail[-8:-4])[0] + _PARQUET_END)
    try:
        footer = pq.read_metadata(pa.BufferReader(tail))
        return footer, footer.schema.to_arrow_schema(), len(tail)
    except (pa.ArrowException, OSError) as error:
        raise MetadataUnreadable(f"{path} has a footer that cannot be read: {error}") from error


def _tail(files: TableFiles, path: str, length: int, magic: bytes, footer_bytes: Callable[[bytes], int]) -> bytes:
    """Return the end of a file from its footer on.

    Raises `MetadataUnreadable` unless it ends with the magic and its footer is no larger than a manifest may be.
    """
    tail = files.read_range(path, max(0, length - _TAIL_BYTES), _TAIL_BYTES)
    if len(tail) < _LEAST_BYTES or tail[-len(magic) :] != magic:
        raise MetadataUnreadable(f"{path} does not end as its format does")
    wanted = footer_bytes(tail)
    if wanted > length:
        raise MetadataUnreadable(f"{path} says that its footer is longer than the file")
    read_limits().manifest.check(path, wanted)
    return tail[-wanted:] if wanted <= len(tail) else files.read_range(path, length - wanted, wanted)
