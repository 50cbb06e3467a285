"""Write deleted positions: as deletion vectors in a Puffin file, or as a position delete file in Parquet."""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Mapping
from dataclasses import dataclass

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
from pyroaring import BitMap64

from icewright.adapters.engines.arrow.types import FIELD_ID

VECTOR_MAGIC = b"\xd1\xd3\x39\x64"
DELETED_PATH, DELETED_POSITION = 2147483546, 2147483545  # reserved ids of position delete files
_ROW_POSITION = 2147483645  # the reserved id of `_pos`, which vectors are about
_PUFFIN = b"PFA1"
_BATCH_ROWS = 1 << 17


@dataclass(frozen=True, slots=True)
class Blob:
    """Where a deletion vector lies in its Puffin file."""

    offset: int
    length: int


def puffin_file(vectors: Mapping[str, BitMap64]) -> tuple[bytes, dict[str, Blob]]:
    """Return a Puffin file with a deletion vector for each data file, and where each lies (Puffin spec)."""
    content, blobs, footer = bytearray(_PUFFIN), {}, []
    for path, positions in vectors.items():
        blob = vector_blob(positions)
        blobs[path] = Blob(len(content), len(blob))
        properties = {"referenced-data-file": path, "cardinality": str(len(positions))}
        place = {"offset": len(content), "length": len(blob), "snapshot-id": -1, "sequence-number": -1}
        footer.append({"type": "deletion-vector-v1", "fields": [_ROW_POSITION], **place, "properties": properties})
        content += blob
    payload = json.dumps({"blobs": footer, "properties": {"created-by": "Icewright"}}).encode()
    content += _PUFFIN + payload + struct.pack("<I", len(payload)) + bytes(4) + _PUFFIN
    return bytes(content), blobs


def vector_blob(positions: BitMap64) -> bytes:
    """Return a blob of type `deletion-vector-v1` (Puffin spec)."""
    body = VECTOR_MAGIC + positions.serialize()
    return struct.pack(">I", len(body)) + body + struct.pack(">I", zlib.crc32(body))


def position_delete_file(positions: Mapping[str, BitMap64]) -> bytes:
    """Return a Parquet file of positions, sorted by data file and position (spec, Position Delete Files)."""
    fields = (("file_path", pa.string(), DELETED_PATH), ("pos", pa.int64(), DELETED_POSITION))
    schema = pa.schema([pa.field(n, kind, False, {FIELD_ID: str(number).encode()}) for n, kind, number in fields])
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(sink, schema, compression="zstd") as writer:
        for path in sorted(positions):
            rows = pl.Series(positions[path].to_array(), dtype=pl.UInt64).cast(pl.Int64)
            for first in range(0, len(rows), _BATCH_ROWS):
                share = rows[first : first + _BATCH_ROWS].to_arrow()
                columns = [pa.repeat(pa.scalar(path), len(share)), share]
                writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=schema))
    content: bytes = sink.getvalue().to_pybytes()
    return content
