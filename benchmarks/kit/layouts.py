"""Manifests and manifest lists byte for byte as their writers lay them out: Spark (Iceberg 1.12) and PyIceberg 0.12."""

from __future__ import annotations

import io
import json
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import fastavro

_SCHEMAS = Path(__file__).with_name("spark_schemas.json")  # taken from files that Spark 4.1.4 with Iceberg 1.12.0 wrote
_JAVA_BLOCK = 64_000  # Avro's DataFileWriter ends a block with the record that reaches this
_ENDLESS = 1 << 62

LAYOUTS = ("spark", "pyiceberg")


@dataclass(frozen=True)
class AvroFiles:
    """One kind of Avro file of one table: what every header says, and where blocks end."""

    meta: Mapping[str, str]
    block_bytes: int
    deflate: Callable[[bytes], bytes]

    @cached_property
    def _schema(self) -> Any:  # noqa: ANN401 - fastavro's
        return fastavro.parse_schema(json.loads(self.meta["avro.schema"]))

    def record(self, values: Mapping[str, Any]) -> bytes:
        """One record, encoded."""
        out = io.BytesIO()
        fastavro.schemaless_writer(out, self._schema, dict(values))
        return out.getvalue()

    def file(self, records: Sequence[bytes], sync: bytes, meta: Mapping[str, str]) -> bytes:
        """A whole file of encoded records; `meta` is of this file alone."""
        header = {**self.meta, **meta}
        parts = [b"Obj\x01", _varint(len(header))]
        for name, value in header.items():
            parts += [_sized(name.encode()), _sized(value.encode())]
        parts += [b"\0", sync]
        for block in self._blocks(records):
            parts += [_varint(len(block)), _sized(self.deflate(b"".join(block))), sync]
        return b"".join(parts)

    def _blocks(self, records: Sequence[bytes]) -> Iterator[Sequence[bytes]]:
        start = held = 0
        for end, record in enumerate(records, 1):
            held += len(record)
            if held >= self.block_bytes:
                yield records[start:end]
                start, held = end, 0
        if start < len(records):
            yield records[start:]


@dataclass(frozen=True)
class Layout:
    """How one writer leaves a table on disk."""

    name: str
    scheme: str  # in front of a local path
    attempt: int  # in the names of manifest lists
    manifests: AvroFiles
    lists: AvroFiles
    summary: Mapping[str, str]  # what each snapshot says of its writer
    root: str = ""  # the part of local paths that is not named

    def uri(self, path: str) -> str:
        """A local path as the writer names it."""
        return self.scheme + path.removeprefix(self.root)

    def local(self, uri: str) -> str:
        """The local path behind a name."""
        return self.root + uri.removeprefix(self.scheme)


def layout(name: str, schema: Mapping[str, Any], spec: Sequence[Mapping[str, Any]]) -> Layout:
    """The layout `spark` or `pyiceberg` of a table of this schema and partition spec."""
    return {"spark": _spark, "pyiceberg": _pyiceberg}[name](schema, spec)


def _spark(schema: Mapping[str, Any], spec: Sequence[Mapping[str, Any]]) -> Layout:
    columns = {field["id"]: field for field in schema["fields"]}
    found = json.loads(_SCHEMAS.read_text(encoding="utf-8"))
    entry = found["manifest"]
    for part in spec:
        name, number, kind = part["name"], part["field-id"], columns[part["source-id"]]["type"]
        _partition(entry["avro"]).append({"name": name, "type": ["null", kind], "default": None, "field-id": number})
        _partition(entry["iceberg"]).append({"id": number, "name": name, "required": False, "type": kind})
    manifests = {
        "schema": _compact(schema),
        "avro.schema": _compact(entry["avro"]),
        "avro.codec": "deflate",
        "format-version": "2",
        "partition-spec-id": "0",
        "iceberg.schema": _compact(entry["iceberg"]),
        "partition-spec": _compact(spec),
        "content": "data",
    }
    lists = {
        "avro.schema": _compact(found["manifest_list"]["avro"]),
        "avro.codec": "deflate",
        "format-version": "2",
        "iceberg.schema": _compact(found["manifest_list"]["iceberg"]),
    }
    return Layout(
        "spark",
        "file:",
        1,
        AvroFiles(manifests, _JAVA_BLOCK, _java_deflate),
        AvroFiles(lists, _JAVA_BLOCK, _java_deflate),
        {
            "spark.app.id": "local-1700000000000",
            "engine-version": "4.1.4",
            "app-id": "local-1700000000000",
            "engine-name": "spark",
            "iceberg-version": "Apache Iceberg 1.12.0 (commit 212aa894e919ff9fdf89160da4aadcbe6858ac01)",
            "app-name": "benchmark",
        },
    )


def _pyiceberg(schema: Mapping[str, Any], spec: Sequence[Mapping[str, Any]]) -> Layout:
    from pyiceberg.manifest import (  # noqa: PLC0415 - needed for this layout alone
        MANIFEST_LIST_FILE_SCHEMAS,
        data_file_with_partition,
        manifest_entry_schema_with_data_file,
    )
    from pyiceberg.partitioning import PartitionSpec  # noqa: PLC0415
    from pyiceberg.schema import Schema  # noqa: PLC0415
    from pyiceberg.utils.schema_conversion import AvroSchemaConversion  # noqa: PLC0415

    own = Schema.model_validate(schema)
    parts = PartitionSpec.model_validate({"spec-id": 0, "fields": spec})
    entry = manifest_entry_schema_with_data_file(2, data_file_with_partition(parts.partition_type(own), 2))
    convert = AvroSchemaConversion()
    manifests = {
        "schema": own.model_dump_json(),
        "partition-spec": _compact([field.model_dump(by_alias=True, mode="json") for field in parts.fields]),
        "partition-spec-id": "0",
        "format-version": "2",
        "avro.codec": "deflate",
        "content": "data",
        "avro.schema": json.dumps(convert.iceberg_to_avro(entry, schema_name="manifest_entry")),
    }
    lists = {
        "format-version": "2",
        "avro.codec": "deflate",
        "avro.schema": json.dumps(convert.iceberg_to_avro(MANIFEST_LIST_FILE_SCHEMAS[2], schema_name="manifest_file")),
    }
    # an entry is a block of its own, a manifest list is one block
    return Layout(
        "pyiceberg",
        "file://",
        0,
        AvroFiles(manifests, 0, _pyiceberg_deflate),
        AvroFiles(lists, _ENDLESS, _pyiceberg_deflate),
        {},
    )


def _java_deflate(content: bytes) -> bytes:
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    return packer.compress(content) + packer.flush()


def _pyiceberg_deflate(content: bytes) -> bytes:
    return zlib.compress(content)[2:-1]  # it cuts one byte of the checksum off, not four


def _partition(schema: Mapping[str, Any]) -> list[Any]:
    """The fields of the partition record in a schema of manifest entries, Avro's or Iceberg's."""
    data_file = next(field for field in schema["fields"] if field["name"] == "data_file")
    partition = next(field for field in data_file["type"]["fields"] if field["name"] == "partition")
    fields: list[Any] = partition["type"]["fields"]
    return fields


def _compact(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))


def _sized(content: bytes) -> bytes:
    return _varint(len(content)) + content


def _varint(value: int) -> bytes:
    """A number that is not negative, as Avro stores longs."""
    value <<= 1
    out = bytearray()
    while value > 0x7F:
        out.append((value & 0x7F) | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
