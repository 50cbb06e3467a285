"""Manifests as bytes of single entries, from which new manifests are composed without losing a field.

The bytes of an entry's data file are copied; only where manifests with different schemas meet (other writers, other
format versions) are they decoded and encoded by the other schema. Field names differ between writers and field ids do
not, so fields are found by id.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate, groupby
from typing import Any
from uuid import uuid4

import fastavro

from icewright.adapters.engines.service.avro_records import (
    container,
    decoded,
    encoded,
    field_type,
    names_by_id,
    padded,
    plain_schema,
    schema_field,
    shape_of,
    translating_errors,
    with_field_type,
)
from icewright.adapters.engines.service.manifest_bytes import EntryShape, ManifestBytes
from icewright.adapters.engines.service.partition_bounds import partition_fields, summaries, widened
from icewright.adapters.engines.service.partition_types import promoted, source_types
from icewright.core import field_ids as ids
from icewright.core.avro_values import Schema, read_varint, varint
from icewright.core.errors import MetadataUnreadable, UnsupportedTable
from icewright.core.table import FORMAT_V2, ManifestContent, ManifestFile, TableMetadata
from icewright.ports import TableFiles

EXISTING, ADDED, DELETED = 0, 1, 2  # status of an entry (spec, Manifests)
DATA, POSITION_DELETES, EQUALITY_DELETES = 0, 1, 2  # content of a file (spec, Data File Fields)

_ENTRY_ADDITIONS = (
    schema_field("sequence_number", ids.SEQUENCE_NUMBER, ["null", "long"]),
    schema_field("file_sequence_number", ids.FILE_SEQUENCE_NUMBER, ["null", "long"]),
)
_DATA_ADDITIONS = (
    schema_field("content", ids.CONTENT, "int"),
    schema_field("equality_ids", ids.EQUALITY_IDS, ["null", {"type": "array", "items": "int", "element-id": 136}]),
)
_DELETE_ADDITIONS = (
    *_DATA_ADDITIONS,
    schema_field("referenced_data_file", ids.REFERENCED_DATA_FILE, ["null", "string"]),
    schema_field("content_offset", ids.CONTENT_OFFSET, ["null", "long"]),
    schema_field("content_size_in_bytes", ids.CONTENT_SIZE, ["null", "long"]),
)


@dataclass(frozen=True, slots=True)
class Entry:
    """A manifest entry with inherited values filled in, and `data_file` encoded by the schema of the new manifest.

    An entry that was read is live; an added one inherits the sequence numbers that are None (spec, Sequence Number
    Inheritance).
    """

    snapshot_id: int
    sequence: int | None
    file_sequence: int | None
    partition: bytes
    records: int
    data_file: bytes
    status: int = EXISTING


@dataclass(frozen=True, slots=True)
class WrittenManifest:
    """A new manifest, as its manifest list describes it (by field id)."""

    path: str
    entries: int
    row: Mapping[int, Any]


class ManifestWriter:
    """Writes manifests of one spec by the schema of an existing manifest, upgraded to the table's format version."""

    def __init__(
        self,
        model: ManifestBytes,
        metadata: TableMetadata,
        spec_id: int,
        content: ManifestContent = ManifestContent.DATA,
    ) -> None:
        self._metadata, self._spec_id, self._holds = metadata, spec_id, content
        self._header, self._shape = dict(model.header), model.shape
        if metadata.format_version >= FORMAT_V2 and ids.SEQUENCE_NUMBER not in names_by_id(model.shape.schema):
            self._header |= {"format-version": str(metadata.format_version), "content": "data"}
            self._shape = EntryShape(_upgraded(model.shape.schema, _DATA_ADDITIONS, _ENTRY_ADDITIONS))
        schema = promoted(self._shape.schema, source_types(metadata, spec_id))
        self._shape = self._shape if schema is self._shape.schema else EntryShape(schema)
        self._names = names_by_id(self._shape.data_file)
        self._partition_schema = fastavro.parse_schema(plain_schema(partition_schema(self._shape.data_file)))
        self._partition_fields = partition_fields(partition_schema(self._shape.data_file))
        self._partitions: dict[bytes, tuple[Any, ...]] = {}
        self._around_data_file: dict[tuple[int, int, int | None, int | None], tuple[bytes, bytes]] = {}

    def entries(
        self, manifest: ManifestFile, source: ManifestBytes, statuses: Collection[int] = (EXISTING, ADDED)
    ) -> list[Entry]:
        """Return the live entries of a manifest, with inherited values filled in. Raises `MetadataUnreadable`."""
        with translating_errors(manifest.path):
            self._require_listed_content(deletes=source.header.get("content") == "deletes")
            walked = [e for e in source.shape.walk(source.body, source.records) if e[0][ids.STATUS] in statuses]
            if source.shape.bytes_alike == self._shape.bytes_alike:
                return [self._entry(manifest, n, s, source.body) for n, s in walked]
            data_files = [self._translated(source, s[ids.DATA_FILE]) for _, s in walked]
            body = b"".join(data_files)
            moved = [spans for _, spans in self._translations.walk(body, len(data_files))]
            return [self._entry(manifest, n, s, body) for (n, _), s in zip(walked, moved, strict=True)]

    def live_entries(self, manifest: ManifestFile, source: ManifestBytes) -> list[Entry]:
        """Return the live entries of a manifest. Raises `MetadataUnreadable` when its manifest list counts others."""
        entries = self.entries(manifest, source)
        if len(entries) != manifest.live_files:
            raise MetadataUnreadable(
                f"{manifest.path} has {len(entries)} live files where its manifest list says {manifest.live_files}"
            )
        return entries

    @cached_property
    def _translations(self) -> EntryShape:
        """Return the layout of entries that consist of their data file alone."""
        return EntryShape(_entry_schema(self._shape.data_file))

    def _entry(
        self,
        manifest: ManifestFile,
        numbers: Mapping[int, int | None],
        spans: Mapping[int, tuple[int, int]],
        body: bytes,
    ) -> Entry:
        def stated(field_id: int, inherited: int) -> int:
            value = numbers.get(field_id)
            return inherited if value is None else value

        start, end = spans[ids.DATA_FILE]
        first, last = spans[ids.PARTITION]
        self._require_listed_content(deletes=ids.CONTENT in spans and body[spans[ids.CONTENT][0]] != 0)
        return Entry(
            stated(ids.SNAPSHOT_ID, manifest.added_snapshot_id),
            stated(ids.SEQUENCE_NUMBER, manifest.sequence_number),
            stated(ids.FILE_SEQUENCE_NUMBER, manifest.sequence_number),
            body[first:last],
            read_varint(body, spans[ids.RECORD_COUNT][0])[0],
            body[start:end],
        )

    def _require_listed_content(self, *, deletes: bool) -> None:
        if deletes is not (self._holds is ManifestContent.DELETES):
            holds, listed = ("delete", "data") if deletes else ("data", "delete")
            raise ValueError(f"it holds {holds} files, though its manifest list calls it a {listed} manifest")

    def _translated(self, source: ManifestBytes, span: tuple[int, int]) -> bytes:
        """Return a data file written in another shape, its fields mapped by id; the partition tuple by position."""
        (data,) = decoded(source.shape.values, 1, source.body[slice(*span)])
        names = names_by_id(source.shape.data_file)
        lacking = {i: n for i, n in names.items() if i not in self._names and i != ids.BLOCK_SIZE}
        unknown = [i for i, name in lacking.items() if data[name] is not None]
        if unknown:
            raise UnsupportedTable(
                f"{self._metadata.ref}: entries have fields {unknown} that the other manifests lack; "
                "set rewrite_manifests.engine to spark"
            )
        new = {name: data.get(names.get(i, "")) for i, name in self._names.items()}
        if ids.BLOCK_SIZE in self._names and new[self._names[ids.BLOCK_SIZE]] is None:
            new[self._names[ids.BLOCK_SIZE]] = 64 * 1024 * 1024  # required by format v1, but no reader uses it
        if ids.CONTENT in self._names and new[self._names[ids.CONTENT]] is None:
            new[self._names[ids.CONTENT]] = 0
        new[self._names[ids.PARTITION]] = {
            field["name"]: widened(value, field["type"])
            for field, value in zip(self._partition_fields, data[names[ids.PARTITION]].values(), strict=True)
        }
        return encoded(self._shape.values, new)

    def clustered(self, entries: Sequence[Entry], first: Sequence[int] = ()) -> list[Entry]:
        """Return the entries sorted by partition, nulls first; within a partition in the order of writing.

        `first` are the places of the partition fields that come before the others.
        """

        def key(partition: bytes) -> tuple[Any, ...]:
            stored = self.partition(partition)
            values = [*(stored[index] for index in first), *stored]
            return tuple((value is not None, value if value is not None else 0) for value in values)

        ranks = {p: rank for rank, p in enumerate(sorted({e.partition for e in entries}, key=key))}
        return sorted(entries, key=lambda e: (ranks[e.partition], e.sequence or 0))

    def data_files(self, entries: Sequence[Entry]) -> list[dict[int, Any]]:
        """Return the stored values of the entries' data files, by field id."""
        records = decoded(self._shape.values, len(entries), b"".join(e.data_file for e in entries))
        return [{number: record[name] for number, name in self._names.items()} for record in records]

    @cached_property
    def partition_shape(self) -> Any:  # noqa: ANN401 - JSON
        """Return the encoding of partition tuples: with one encoding, equal bytes mean the same partition."""
        return shape_of(partition_schema(self._shape.data_file))

    def has_fields(self, field_ids: Collection[int]) -> bool:
        """Return whether the written manifests have all of these fields of a data file."""
        return set(field_ids) <= self._names.keys()

    def added(
        self, values: Mapping[int, Any], partition: tuple[Any, ...], snapshot_id: int, sequence: int | None
    ) -> Entry:
        """Return the entry of a new file in a partition; the values, by field id, are of data if none says."""
        names = self._names
        record = {name: values.get(number) for number, name in names.items()}
        tuple_names = (field["name"] for field in self._partition_fields)
        record[names[ids.PARTITION]] = stored = dict(zip(tuple_names, partition, strict=True))
        if ids.CONTENT in names:
            record[names[ids.CONTENT]] = values.get(ids.CONTENT, 0)
        data_file = encoded(self._shape.values, record)
        encoded_partition = encoded(self._partition_schema, stored)
        return Entry(snapshot_id, sequence, None, encoded_partition, values[ids.RECORD_COUNT], data_file, ADDED)

    def changed(self, entry: Entry, values: Mapping[int, Any]) -> Entry:
        """Return an entry with other values of its data file, by field id; its partition stays."""
        data_file = encoded(self._shape.values, {name: values.get(number) for number, name in self._names.items()})
        return replace(entry, records=values[ids.RECORD_COUNT], data_file=data_file)

    def partition(self, partition: bytes) -> tuple[Any, ...]:
        """Return the values of a partition tuple as they are stored."""
        if partition not in self._partitions:
            (values,) = decoded(self._partition_schema, 1, partition)
            self._partitions[partition] = tuple(values.values())
        return self._partitions[partition]

    def write(self, files: TableFiles, folder: str, entries: Sequence[Entry], count: int) -> list[WrittenManifest]:
        """Write this number of manifests of about equally many bytes each, or fewer."""
        begins = accumulate((len(entry.data_file) for entry in entries), initial=0)  # the last one is the total
        total = sum(len(entry.data_file) for entry in entries)
        shares = groupby(zip(entries, begins, strict=False), lambda entry: entry[1] * count // max(1, total))
        return [
            self._write(files, f"{folder}/{uuid4()}-m{number}.avro", [entry for entry, _ in share])
            for number, share in shares
        ]

    def _write(self, files: TableFiles, path: str, entries: Sequence[Entry]) -> WrittenManifest:
        content = container(self._shape.schema, self._header, [self._record(e) for e in entries])
        files.write(path, content)
        of = {status: [e.records for e in entries if e.status == status] for status in (ADDED, EXISTING, DELETED)}
        live = [e.sequence for e in entries if e.status != DELETED and e.sequence is not None]
        return WrittenManifest(
            path,
            len(entries),
            {
                ids.MANIFEST_PATH: path,
                ids.MANIFEST_LENGTH: len(content),
                ids.MANIFEST_SPEC_ID: self._spec_id,
                ids.MANIFEST_CONTENT: int(self._holds),
                ids.MIN_SEQUENCE_NUMBER: min(live, default=None),
                ids.ADDED_FILES: len(of[ADDED]),
                ids.EXISTING_FILES: len(of[EXISTING]),
                ids.DELETED_FILES: len(of[DELETED]),
                ids.ADDED_ROWS: sum(of[ADDED]),
                ids.EXISTING_ROWS: sum(of[EXISTING]),
                ids.DELETED_ROWS: sum(of[DELETED]),
                ids.PARTITION_SUMMARIES: self.summaries(entries),
            },
        )

    def summaries(self, entries: Sequence[Entry]) -> list[Any]:
        """Return the summaries of the entries' partitions, as a manifest list has them."""
        return summaries(self._partition_fields, [self.partition(p) for p in {e.partition for e in entries}])

    def same_length(self, entries: Sequence[Entry], length: int) -> bytes | None:
        """Return a manifest of the entries that has exactly so many bytes; None when it would have more."""
        return padded(self._shape.schema, self._header, [self._record(e) for e in entries], length)

    def _record(self, entry: Entry) -> bytes:
        numbers = (entry.status, entry.snapshot_id, entry.sequence, entry.file_sequence)
        if numbers not in self._around_data_file:  # the same for all that one commit wrote
            self._around_data_file[numbers] = self._encoded_around(numbers)
        before, after = self._around_data_file[numbers]
        return b"".join((before, entry.data_file, after))

    def _encoded_around(self, numbers: Sequence[int | None]) -> tuple[bytes, bytes]:
        """Return the fields of an entry before its data file and after it."""
        fields = (ids.STATUS, ids.SNAPSHOT_ID, ids.SEQUENCE_NUMBER, ids.FILE_SEQUENCE_NUMBER)
        by_id = dict(zip(fields, numbers, strict=True))
        schema = self._shape.schema["fields"]
        at = next(index for index, field in enumerate(schema) if field.get("field-id") == ids.DATA_FILE)
        before, after = (
            b"".join(_encoded_number(by_id[field["field-id"]], field["type"]) for field in part)
            for part in (schema[:at], schema[at + 1 :])
        )
        return before, after


def _encoded_number(number: int | None, kind: Schema) -> bytes:
    """Return a number, or null where the kind allows it, as Avro writes it. Raises `ValueError` where it does not."""
    nulls = [branch == "null" for branch in (kind if isinstance(kind, list) else [kind])]
    branch = nulls.index(number is None)
    return (varint(branch) if isinstance(kind, list) else b"") + (b"" if number is None else varint(number))


def model_for_deletes(model: ManifestBytes, format_version: int) -> ManifestBytes:
    """Return the model of a new manifest of delete files, made from any manifest of the spec."""
    present, entry_fields = names_by_id(model.shape.data_file), names_by_id(model.shape.schema)
    lacking = [f for f in _DELETE_ADDITIONS if f["field-id"] not in present]
    entry_lacking = [f for f in _ENTRY_ADDITIONS if f["field-id"] not in entry_fields]
    header = {**model.header, "content": "deletes", "format-version": str(format_version)}
    return ManifestBytes(header, EntryShape(_upgraded(model.shape.schema, lacking, entry_lacking)), 0, b"")


def _upgraded(schema: Schema, of_files: Sequence[Schema], of_entries: Sequence[Schema]) -> Schema:
    """Return the schema of a manifest with fields that later versions add."""
    data_file = field_type(schema, ids.DATA_FILE)
    upgraded = with_field_type(schema, ids.DATA_FILE, {**data_file, "fields": [*data_file["fields"], *of_files]})
    return {**upgraded, "fields": [*upgraded["fields"], *of_entries]}


def _entry_schema(data_file: Schema) -> Schema:
    """Return the schema of entries that consist of their data file alone."""
    return {"type": "record", "name": "entry", "fields": [{"name": "f", "type": data_file, "field-id": ids.DATA_FILE}]}


def partition_schema(data_file: Schema) -> Schema:
    """Return the schema of partition tuples."""
    return field_type(data_file, ids.PARTITION)
