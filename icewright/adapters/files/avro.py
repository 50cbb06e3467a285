"""Avro object container files read into columns.

All files of one writer schema are inflated here and joined into one block, which Polars then decodes in one call:
the cost of a schema parse, and of small blocks (PyIceberg writes one a record), is paid once and not per file.
"""

from __future__ import annotations

import io
import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import polars as pl
import pyarrow as pa
import zstandard

_MAGIC = b"Obj\x01"
_SYNC = b"icewright-blocks"


@dataclass(frozen=True, slots=True)
class Container:
    """One file taken apart: its header and its blocks, inflated."""

    meta: Mapping[str, bytes]
    records: int
    body: bytes = field(repr=False)

    @property
    def schema(self) -> bytes:
        """The writer schema as it stands in the header."""
        return self.meta["avro.schema"]


def parse(content: bytes) -> Container:
    """Take a container apart. Raises `ValueError` when it is truncated or no Avro container."""
    try:
        return _parse(content)
    except (
        IndexError,
        KeyError,
        MemoryError,  # a broken length
        OSError,
        OverflowError,
        zlib.error,
        zstandard.ZstdError,
        pa.ArrowInvalid,
    ) as error:
        raise ValueError(f"truncated or broken Avro file ({type(error).__name__}: {error})") from error


def _parse(content: bytes) -> Container:
    if content[:4] != _MAGIC:
        raise ValueError("not an Avro file")
    meta, position = _header(content)
    if "avro.schema" not in meta:
        raise ValueError("truncated or broken Avro file (its header has no schema)")
    sync = content[position : position + 16]
    if len(sync) < 16:  # noqa: PLR2004 - the length of a sync marker
        raise ValueError("truncated or broken Avro file (it ends within its header)")
    position += 16
    codec = meta.get("avro.codec", b"null").decode()
    records, bodies = 0, []
    while position < len(content):
        count, position = _varint(content, position)
        length, position = _varint(content, position)
        end = position + length
        if count < 0 or length < 0 or content[end : end + 16] != sync:
            raise ValueError("truncated or broken Avro file (a block does not end where it should)")
        bodies.append(_inflate(codec, content[position:end]))
        records += count
        position = end + 16
    return Container(meta, records, b"".join(bodies))


def _header(content: bytes) -> tuple[dict[str, bytes], int]:
    meta: dict[str, bytes] = {}
    position = 4
    while True:
        count, position = _varint(content, position)
        if count == 0:
            return meta, position
        if count < 0:  # the block's length in bytes follows
            count, (_, position) = -count, _varint(content, position)
        for _ in range(count):
            length, position = _varint(content, position)
            name = content[position : position + length].decode()
            length, position = _varint(content, position + length)
            meta[name] = content[position : position + length]
            position += length


def _varint(content: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = content[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:  # noqa: PLR2004 - the last byte of a varint has its top bit clear
            return (value >> 1) ^ -(value & 1), position
        shift += 7


def _encode_varint(value: int) -> bytes:
    value <<= 1
    out = bytearray()
    while value > 0x7F:  # noqa: PLR2004 - seven bits a byte
        out.append((value & 0x7F) | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _inflate(codec: str, block: bytes) -> bytes:
    match codec:
        case "null":
            return block
        case "deflate":
            return zlib.decompress(block, -15)
        case "zstandard":
            stream = zstandard.ZstdDecompressor().decompressobj()
            inflated = stream.decompress(block)
            if not stream.eof:
                raise ValueError("truncated or broken Avro file (a block ends early)")
            return inflated
        case "snappy":  # four bytes of checksum follow; the length stands in front as a varint without zig-zag
            length = shift = position = 0
            while True:
                byte = block[position]
                length |= (byte & 0x7F) << shift
                position, shift = position + 1, shift + 7
                if byte < 0x80:  # noqa: PLR2004
                    break
            inflated = bytes(pa.Codec("snappy").decompress(block[:-4], decompressed_size=length, asbytes=True))
            if zlib.crc32(inflated) != int.from_bytes(block[-4:], "big"):
                raise ValueError("truncated or broken Avro file (a checksum does not match)")
            return inflated
    raise ValueError(f"Avro codec {codec} is not supported")


def read_together(containers: Sequence[Container]) -> pl.DataFrame:
    """The records of containers that share one writer schema, in their order."""
    schema = _for_polars(containers[0].schema)
    body = b"".join(c.body for c in containers)
    count = sum(c.records for c in containers)
    header = _MAGIC + b"".join(
        (
            _encode_varint(2),
            *(_encode_varint(len(part)) + part for part in (b"avro.schema", schema, b"avro.codec", b"null")),
            b"\x00",
            _SYNC,
        )
    )
    block = b"".join((_encode_varint(count), _encode_varint(len(body)), body, _SYNC)) if count else b""
    return pl.read_avro(io.BytesIO(header + block))


@lru_cache(maxsize=512)
def _for_polars(schema: bytes) -> bytes:
    """The schema as Polars takes it: no defaults other than null, no references to named types."""
    named: dict[str, Any] = {}

    def stripped(node: Any) -> Any:  # noqa: ANN401 - Avro schemas are JSON
        if isinstance(node, list):
            return [stripped(n) for n in node]
        if isinstance(node, str):
            return named.get(node, node)
        if isinstance(node, dict):
            kept = {k: v for k, v in node.items() if k not in ("default", "doc", "aliases")}
            kept |= {k: stripped(kept[k]) for k in ("type", "items", "values") if k in kept}
            if "fields" in kept:
                kept["fields"] = [f | {"type": stripped(f["type"])} for f in map(_bare, kept["fields"])]
            if "name" in kept and kept["type"] in ("fixed", "enum"):
                named[kept["name"]] = kept
            return kept
        return node

    return json.dumps(stripped(json.loads(schema))).encode()


def _bare(field: dict[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in field.items() if k not in ("default", "doc", "aliases")}


@lru_cache(maxsize=512)
def field_names(schema: bytes, record: str | None = None) -> Mapping[int, str]:
    """Field ids to names of the top record, or of the record under the field `record`, as the writer named them."""
    parsed = json.loads(schema)
    if record is not None:
        parsed = _record(next(f["type"] for f in parsed["fields"] if f["name"] == record))
    return {int(f["field-id"]): f["name"] for f in parsed["fields"] if "field-id" in f}


def _record(kind: Any) -> Any:  # noqa: ANN401 - Avro schemas are JSON
    """A record type, also as the second branch of an optional one."""
    return next(k for k in kind if k != "null") if isinstance(kind, list) else kind
