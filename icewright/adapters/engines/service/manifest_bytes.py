"""Manifests as they are read: their header, and the bytes of their entries."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache

import fastavro

from icewright.adapters.engines.service.avro_records import field_type, plain_schema, shape_of, translating_errors
from icewright.core import field_ids as ids
from icewright.core.avro_values import Schema, read_varint, skipper
from icewright.core.errors import MetadataUnreadable
from icewright.ports import AvroFile, TableFiles


class EntryShape:
    """The byte layout of a manifest's entries, by the writer schema.

    Raises `StopIteration` when the schema is not that of a manifest.
    """

    def __init__(self, schema: Schema) -> None:
        named: dict[str, Schema] = {}
        self.schema = schema
        self.data_file = field_type(schema, ids.DATA_FILE)
        self.bytes_alike = shape_of(self.data_file)  # equal for data files that may be copied as bytes
        self._top = [(f.get("field-id"), f["type"], skipper(f["type"], named)) for f in schema["fields"]]
        self._inner = [(f.get("field-id"), skipper(f["type"], named)) for f in self.data_file["fields"]]

    @cached_property
    def values(self) -> Schema:
        """Return the schema of `data_file` by which fastavro reads and writes its values as they are stored."""
        return fastavro.parse_schema(plain_schema(self.data_file))

    def walk(self, body: bytes, records: int) -> Iterator[tuple[dict[int, int | None], dict[int, tuple[int, int]]]]:
        """Yield each entry: its numbers by field id, and the spans of `data_file` and of three of its fields."""
        position = 0
        for _ in range(records):
            numbers: dict[int, int | None] = {}
            spans: dict[int, tuple[int, int]] = {}
            for field_id, kind, skip in self._top:
                if field_id == ids.DATA_FILE:
                    spans = self._spans(body, position)
                    _, position = spans[ids.DATA_FILE]
                elif field_id in (ids.STATUS, ids.SNAPSHOT_ID, ids.SEQUENCE_NUMBER, ids.FILE_SEQUENCE_NUMBER):
                    numbers[field_id], position = _number(body, position, kind)
                else:
                    position = skip(body, position)
            yield numbers, spans
        if position != len(body):
            raise ValueError(f"{len(body) - position} bytes are left after {records} entries")

    def _spans(self, body: bytes, start: int) -> dict[int, tuple[int, int]]:
        """Return where `data_file` and some of its fields begin and end."""
        position, spans = start, dict[int, tuple[int, int]]()
        for field_id, skip in self._inner:
            before, position = position, skip(body, position)
            if field_id in (ids.PARTITION, ids.RECORD_COUNT, ids.CONTENT):
                spans[field_id] = (before, position)
        spans[ids.DATA_FILE] = (start, position)
        return spans


@lru_cache(maxsize=256)
def _shape_by(schema: bytes) -> EntryShape:
    return EntryShape(json.loads(schema))


@dataclass(frozen=True)
class ManifestBytes:
    """An Avro manifest as bytes, entry by entry."""

    header: Mapping[str, str]
    shape: EntryShape
    records: int
    body: bytes = field(repr=False)


def _number(body: bytes, position: int, kind: Schema) -> tuple[int | None, int]:
    if isinstance(kind, list):
        chosen, position = read_varint(body, position)
        if kind[chosen] == "null":
            return None, position
    return read_varint(body, position)


def read_manifest(files: TableFiles, path: str) -> ManifestBytes:
    """Read all entries of a manifest file. Raises `MetadataUnreadable`."""
    return manifest_of(path, files.avro(path))


def read_manifests(files: TableFiles, paths: Sequence[str]) -> Iterator[ManifestBytes]:
    """Yield the same of many manifests, in order."""
    return map(manifest_of, paths, files.avros(paths))


def manifest_of(path: str, file: AvroFile | MetadataUnreadable) -> ManifestBytes:
    """Return the entries of a manifest file, or raise why it cannot be read."""
    if isinstance(file, MetadataUnreadable):
        raise file
    with translating_errors(path):
        header = {k: v.decode() for k, v in file.meta.items() if not k.startswith("avro.")}
        return ManifestBytes(header, _shape_by(file.meta["avro.schema"]), file.records, file.body)
