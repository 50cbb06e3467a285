"""Manifest lists row by row: rows that stay are carried over as they are."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import fastavro

from icewright.adapters.engines.service.avro_records import (
    Record,
    container,
    decoded,
    encoded,
    names_by_id,
    plain_schema,
    schema_field,
    translating_errors,
)
from icewright.adapters.engines.service.manifest_files import WrittenManifest
from icewright.core import field_ids as ids
from icewright.core.avro_values import Schema
from icewright.core.errors import MetadataUnreadable
from icewright.core.table import FORMAT_V2, TableMetadata
from icewright.ports import AvroFile, TableFiles

_LIST_ADDITIONS = (
    schema_field("content", ids.MANIFEST_CONTENT, "int"),
    schema_field("sequence_number", ids.MANIFEST_SEQUENCE_NUMBER, "long"),
    schema_field("min_sequence_number", ids.MIN_SEQUENCE_NUMBER, "long"),
)
# the spec's values for files of v1
_V1_VALUES = dict.fromkeys((ids.MANIFEST_CONTENT, ids.MANIFEST_SEQUENCE_NUMBER, ids.MIN_SEQUENCE_NUMBER), 0)


@dataclass(frozen=True)
class Records:
    """The rows of a manifest list with its writer schema; values are raw, without their logical types."""

    schema: Schema
    records: list[Record]
    names: Mapping[int, str]

    def value(self, record: Record, field_id: int) -> Any:  # noqa: ANN401 - any Avro value
        """Return a field by its id."""
        return record.get(self.names.get(field_id, ""))


def read_list(files: TableFiles, path: str, version: int) -> Records:
    """Return a manifest list row by row, in the shape of the table's format version. Raises `MetadataUnreadable`."""
    return list_of(path, files.avro(path), version)


def list_of(path: str, file: AvroFile | MetadataUnreadable, version: int) -> Records:
    """Return the rows of a manifest list, or raise why it cannot be read."""
    if isinstance(file, MetadataUnreadable):
        raise file
    with translating_errors(path):
        schema = json.loads(file.meta["avro.schema"])
        records = decoded(plain_schema(schema), file.records, file.body)
    if version >= FORMAT_V2 and ids.MANIFEST_SEQUENCE_NUMBER not in names_by_id(schema):
        schema = schema | {"fields": [*schema["fields"], *_LIST_ADDITIONS]}
        for record in records:
            record |= {f["name"]: _V1_VALUES.get(f["field-id"]) for f in _LIST_ADDITIONS}
    return Records(schema, records, names_by_id(schema))


def manifest_list(
    rows: Records,
    carried_over: Sequence[Record],
    written: Sequence[WrittenManifest],
    metadata: TableMetadata,
    snapshot_id: int,
    parent_id: int | None,
    sequence: int,
) -> bytes:
    """Return the content of a manifest list: new manifests first, as Iceberg orders them, then those carried over."""
    new = [_record(rows, manifest, snapshot_id, sequence) for manifest in written]
    header = {
        "snapshot-id": str(snapshot_id),
        "parent-snapshot-id": "null" if parent_id is None else str(parent_id),
        "format-version": str(metadata.format_version),
    }
    if metadata.format_version >= FORMAT_V2:
        header["sequence-number"] = str(sequence)
    parsed = fastavro.parse_schema(plain_schema(rows.schema))
    return container(rows.schema, header, [encoded(parsed, record) for record in [*new, *carried_over]])


def with_written(rows: Records, written: Sequence[WrittenManifest], snapshot_id: int, sequence: int) -> Records:
    """Return a list with manifests of a snapshot before those that it has."""
    return replace(rows, records=[*(_record(rows, m, snapshot_id, sequence) for m in written), *rows.records])


def _record(rows: Records, manifest: WrittenManifest, snapshot_id: int, sequence: int) -> Record:
    least = manifest.row[ids.MIN_SEQUENCE_NUMBER]  # None: added files have the sequence number of this commit
    values = {
        **manifest.row,
        ids.ADDED_SNAPSHOT_ID: snapshot_id,
        ids.MANIFEST_SEQUENCE_NUMBER: sequence,
        ids.MIN_SEQUENCE_NUMBER: sequence if least is None else least,
    }
    record = {name: values.get(i) for i, name in rows.names.items()}
    aliases = {
        "added_data_files_count": ids.ADDED_FILES,
        "existing_data_files_count": ids.EXISTING_FILES,
        "deleted_data_files_count": ids.DELETED_FILES,
    }
    return record | {name: values[i] for name, i in aliases.items() if name in record}


def new_snapshot_id(metadata: TableMetadata) -> int:
    """Return a positive 63-bit id that the table does not have yet."""
    while (chosen := secrets.randbits(63)) in metadata.by_id or not chosen:
        continue
    return chosen
