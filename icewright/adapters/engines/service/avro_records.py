"""Avro records as Python values, by schemas without logical types, and container files of encoded records."""

from __future__ import annotations

import io
import json
import struct
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from secrets import token_bytes
from typing import Any

import fastavro

from icewright.core.avro_values import Schema, container_file
from icewright.core.errors import MetadataUnreadable
from icewright.ports.work import WorkerThreads

_BLOCK_BYTES = 64_000  # of records, the default of Java's writer
_LEVEL, _BEST = 6, 9
_WRITERS = 2
Record = dict[str, Any]


def container(schema: Schema, meta: Mapping[str, str], records: Sequence[bytes], level: int = _LEVEL) -> bytes:
    """Return an Avro file of these records, deflated."""
    header = {**meta, "avro.schema": json.dumps(schema), "avro.codec": "deflate"}
    with WorkerThreads(_WRITERS) as pool:
        blocks = pool.map(partial(_block, level), _split_into_blocks(records))
        return container_file({name: text.encode() for name, text in header.items()}, token_bytes(16), blocks)


def padded(schema: Schema, meta: Mapping[str, str], records: Sequence[bytes], length: int) -> bytes | None:
    """Return an Avro file of exactly so many bytes, filled up by an entry of its header; None when it has more."""
    content = container(schema, meta, records, _BEST)
    for name in ("-", "--"):  # the length of a length varies
        for blanks in range(max(0, length - len(content) - 8), length - len(content)):
            filled = container(schema, {**meta, name: " " * blanks}, records, _BEST)
            if len(filled) == length:
                return filled
    return content if len(content) == length else None


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


def _block(level: int, records: Sequence[bytes]) -> tuple[int, bytes]:
    packer = zlib.compressobj(level, zlib.DEFLATED, -15)
    return len(records), packer.compress(b"".join(records)) + packer.flush()


def schema_field(name: str, field_id: int, kind: Schema) -> dict[str, Any]:
    """Return a field of a record; one that may be null is null by default."""
    return {"name": name, "type": kind, "field-id": field_id} | ({"default": None} if isinstance(kind, list) else {})


@contextmanager
def translating_errors(path: str) -> Iterator[None]:
    """Translate every error of a decoder into `MetadataUnreadable` with the file's path."""
    try:
        yield
    except (ValueError, EOFError, KeyError, IndexError, TypeError, StopIteration, struct.error) as error:
        raise MetadataUnreadable(f"{path}: not a readable Avro file ({type(error).__name__}: {error})") from error


def decoded(schema: Schema, count: int, body: bytes) -> list[Record]:
    """Decode `count` records of the schema from an inflated Avro block."""
    parsed, stream = fastavro.parse_schema(schema), io.BytesIO(body)
    return [r for _ in range(count) if isinstance(r := fastavro.schemaless_reader(stream, parsed, None), dict)]


def encoded(schema: Schema, record: Record) -> bytes:
    """Return a record as bytes, by a schema that fastavro has parsed."""
    out = io.BytesIO()
    fastavro.schemaless_writer(out, schema, record)
    return out.getvalue()


def plain_schema(node: Any, defined: set[str] | None = None) -> Any:  # noqa: ANN401 - JSON
    """Return a schema without logical types of primitives; the maps that Iceberg writes as arrays keep theirs.

    The second definition of a named type, which some writers repeat, becomes a reference, as Avro requires.
    """
    defined = set() if defined is None else defined
    if isinstance(node, list):
        return [plain_schema(n, defined) for n in node]
    if not isinstance(node, dict):
        return node
    if node.get("type") in ("fixed", "enum"):
        if node["name"] in defined:
            return node["name"]
        defined.add(node["name"])
    keep = node.get("logicalType") == "map" or "logicalType" not in node
    return {
        k: plain_schema(v, defined) for k, v in node.items() if keep or k not in ("logicalType", "precision", "scale")
    }


def shape_of(node: Any) -> Any:  # noqa: ANN401 - JSON
    """Return the parts of a schema that decide how values are encoded: between equal shapes bytes may be copied."""
    if isinstance(node, list):
        return tuple(shape_of(n) for n in node)
    if not isinstance(node, dict):
        return node
    match node["type"]:
        case "record":
            return ("record", *((f.get("field-id"), shape_of(f["type"])) for f in node["fields"]))
        case "array":
            return ("array", shape_of(node["items"]))
        case "map":
            return ("map", shape_of(node["values"]))
        case "fixed":
            return ("fixed", node["size"])
    return shape_of(node["type"])


def field_type(record: Schema, field_id: int) -> Schema:
    """Return the type of a record's field by its id. Raises `StopIteration` when there is none."""
    return next(f["type"] for f in record["fields"] if f.get("field-id") == field_id)


def with_field_type(record: Schema, field_id: int, kind: Schema) -> Schema:
    """Return the record with another type of one of its fields."""
    fields = [{**f, "type": kind} if f.get("field-id") == field_id else f for f in record["fields"]]
    return {**record, "fields": fields}


def names_by_id(record: Schema) -> dict[int, str]:
    """Return the names of a record's fields by their ids."""
    return {int(f["field-id"]): f["name"] for f in record["fields"] if "field-id" in f}
