"""Avro container files from records that are encoded already."""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping, Sequence
from secrets import token_bytes

from icewright.core.avro_values import Schema, varint
from icewright.ports.work import WorkerThreads

_BLOCK_BYTES = 64_000  # of records, the default of Java's writer
_LEVEL = 6
_WRITERS = 2


def container(schema: Schema, meta: Mapping[str, str], records: Sequence[bytes]) -> bytes:
    """Return an Avro file of these records, deflated."""
    header = {**meta, "avro.schema": json.dumps(schema), "avro.codec": "deflate"}
    sync = token_bytes(16)
    fields = b"".join(_length_prefixed(part.encode()) for pair in header.items() for part in pair)
    with WorkerThreads(_WRITERS) as pool:
        blocks = list(pool.map(_block, _split_into_blocks(records)))
    return b"".join(
        (b"Obj\x01", varint(len(header)), fields, b"\x00", sync, *(part for b in blocks for part in (b, sync)))
    )


def _split_into_blocks(records: Sequence[bytes]) -> list[list[bytes]]:
    parts: list[list[bytes]] = []
    size = _BLOCK_BYTES
    for record in records:
        if size >= _BLOCK_BYTES:
            parts.append([])
            size = 0
        parts[-1].append(record)
        size += len(record)
    return parts


def _block(records: Sequence[bytes]) -> bytes:
    packer = zlib.compressobj(_LEVEL, zlib.DEFLATED, -15)
    packed = packer.compress(b"".join(records)) + packer.flush()
    return varint(len(records)) + varint(len(packed)) + packed


def _length_prefixed(text: bytes) -> bytes:
    return varint(len(text)) + text
