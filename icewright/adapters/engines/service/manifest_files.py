"""Manifests and manifest lists record by record, for copying them: whatever a record holds is kept.

Values stay as Avro stores them (logical types are left out of the schemas), so that a copy is exact. Field names differ
between writers; field ids do not, so records are mapped by id.
"""

from __future__ import annotations

import io
import json
import secrets
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import fastavro

from icewright.core.errors import MetadataUnreadable, UnsupportedTable
from icewright.core.table import ManifestFile, TableMetadata
from icewright.ports import Files

ADDED, EXISTING, DELETED = 1, 0, 2
PATH = 500
_ENTRY = {"status": 0, "snapshot_id": 1, "sequence_number": 3, "file_sequence_number": 4, "data_file": 2}
_PARTITION, _RECORDS, _BLOCK_SIZE = 102, 103, 105
_SEQUENCE_IN_LIST = 515
_VERSION_SEQUENCES = 2  # from this format version on entries have sequence numbers


_V1_VALUES = {517: 0, 515: 0, 516: 0, 3: 0, 4: 0, 134: 0}  # what the spec says of files of v1, by field id


def _field(name: str, field_id: int, kind: Any) -> dict[str, Any]:  # noqa: ANN401 - JSON
    return {"name": name, "type": kind, "field-id": field_id} | ({"default": None} if isinstance(kind, list) else {})


_HEADER = fastavro.parse_schema(
    {
        "type": "record",
        "name": "header",
        "fields": [
            {"name": "magic", "type": {"type": "fixed", "name": "magic", "size": 4}},
            {"name": "meta", "type": {"type": "map", "values": "bytes"}},
            {"name": "sync", "type": {"type": "fixed", "name": "sync", "size": 16}},
        ],
    }
)
_LIST_ADDITIONS = (
    _field("content", 517, "int"),
    _field("sequence_number", 515, "long"),
    _field("min_sequence_number", 516, "long"),
)
_ENTRY_ADDITIONS = (
    _field("sequence_number", 3, ["null", "long"]),
    _field("file_sequence_number", 4, ["null", "long"]),
)
_DATA_ADDITIONS = (
    _field("content", 134, "int"),
    _field("equality_ids", 135, ["null", {"type": "array", "items": "int", "element-id": 136}]),
)

Record = dict[str, Any]


@dataclass(frozen=True)
class Records:
    """The records of one file with its writer schema and header; values are raw, without their logical types."""

    schema: Mapping[str, Any]
    header: Mapping[str, str]
    records: list[Record]
    names: Mapping[int, str]

    def value(self, record: Record, field_id: int) -> Any:  # noqa: ANN401 - any Avro value
        """A top field by its id."""
        return record.get(self.names.get(field_id, ""))


@dataclass(frozen=True)
class ManifestRecords(Records):
    """A manifest; `data_names` has the fields of `data_file` by id."""

    data_names: Mapping[int, str]

    @property
    def entries(self) -> list[Record]:
        """The entries."""
        return self.records


@dataclass(frozen=True, slots=True)
class WrittenManifest:
    """A new manifest, as its manifest list describes it (by field id)."""

    path: str
    entries: int
    row: Mapping[int, Any]


def read_list(files: Files, path: str, version: int) -> Records:
    """A manifest list record by record, in the shape of the table's format version. Raises `MetadataUnreadable`."""
    header, schema, records = _read(files, path)
    if version >= _VERSION_SEQUENCES and _SEQUENCE_IN_LIST not in _names(schema):
        _add_fields(schema, records, _LIST_ADDITIONS)
    return Records(schema, header, records, _names(schema))


def read_manifest(files: Files, manifest: ManifestFile, version: int) -> ManifestRecords:
    """A manifest record by record, in the shape of the table's format version. Raises `MetadataUnreadable`."""
    header, schema, records = _read(files, manifest.path)
    data = next(f for f in schema["fields"] if f["name"] == "data_file")
    if version >= _VERSION_SEQUENCES and _ENTRY["sequence_number"] not in _names(schema):
        _add_fields(schema, records, _ENTRY_ADDITIONS)
        _add_fields(data["type"], [r["data_file"] for r in records], _DATA_ADDITIONS)
        header |= {"format-version": str(version), "content": "data"}
    return ManifestRecords(schema, header, records, _names(schema), _names(data["type"]))


def _add_fields(schema: dict[str, Any], records: Sequence[Record], fields: Sequence[dict[str, Any]]) -> None:
    """What format v2 adds to v1, with the values that the spec gives to files of v1."""
    schema["fields"] = [*schema["fields"], *fields]
    for record in records:
        record |= {f["name"]: _V1_VALUES.get(f["field-id"]) for f in fields}


def _read(files: Files, path: str) -> tuple[dict[str, str], dict[str, Any], list[Record]]:
    content = files.read(path)
    try:
        header = _header(content)
        schema = json.loads(header["avro.schema"])
        raw = fastavro.reader(_with_schema(content, header["avro.schema"], _plain(schema)))
        return header, schema, [r for r in raw if isinstance(r, dict)]
    except (ValueError, EOFError, KeyError, IndexError, TypeError, StopIteration, struct.error) as error:
        raise MetadataUnreadable(f"{path}: not a readable Avro file ({type(error).__name__}: {error})") from error


def _header(content: bytes) -> dict[str, str]:
    """The header's properties; its schema is not parsed, as some writers' would not stand it."""
    parsed = fastavro.schemaless_reader(io.BytesIO(content), _HEADER, None)
    if not isinstance(parsed, dict) or parsed["magic"] != b"Obj\x01":
        raise ValueError("not an Avro file")
    return {name: value.decode() for name, value in parsed["meta"].items()}


def _with_schema(content: bytes, old: str, schema: Mapping[str, Any]) -> io.BytesIO:
    """The same file with a header whose schema lacks logical types, so that raw values are read."""
    new, before = json.dumps(schema).encode(), old.encode()
    return io.BytesIO(content.replace(_sized(before), _sized(new), 1))


def _sized(text: bytes) -> bytes:
    length, out = len(text) << 1, bytearray()
    while length > 0x7F:  # noqa: PLR2004 - seven bits a byte
        out.append((length & 0x7F) | 0x80)
        length >>= 7
    out.append(length)
    return bytes(out) + text


def _plain(node: Any, seen: set[str] | None = None) -> Any:  # noqa: ANN401 - JSON
    """A schema without logical types of primitives; the maps that Iceberg writes as arrays keep theirs.

    A named type that some writers define twice is a reference the second time, as Avro wants it.
    """
    seen = set() if seen is None else seen
    if isinstance(node, list):
        return [_plain(n, seen) for n in node]
    if not isinstance(node, dict):
        return node
    if node.get("type") in ("fixed", "enum"):
        if node["name"] in seen:
            return node["name"]
        seen.add(node["name"])
    keep = node.get("logicalType") == "map" or "logicalType" not in node
    return {k: _plain(v, seen) for k, v in node.items() if keep or k not in ("logicalType", "precision", "scale")}


def _names(record: Any) -> dict[int, str]:  # noqa: ANN401 - JSON
    return {int(f["field-id"]): f["name"] for f in record["fields"] if "field-id" in f}


@dataclass(frozen=True)
class ManifestWriter:
    """Writes manifests of one spec with the schema of an existing manifest of that spec."""

    model: ManifestRecords
    metadata: TableMetadata
    spec_id: int

    def existing(self, entry: Record, manifest: ManifestFile, source: ManifestRecords) -> Record:
        """The entry as EXISTING, with what it had inherited stated."""
        data = entry[source.names[_ENTRY["data_file"]]]
        if source.schema != self.model.schema:
            data = self._translated(data, source)
        new: Record = {self.model.names[0]: EXISTING, self.model.names[2]: data}
        snapshot_id = source.value(entry, _ENTRY["snapshot_id"])
        new[self.model.names[1]] = manifest.added_snapshot_id if snapshot_id is None else snapshot_id
        for field_id in (_ENTRY["sequence_number"], _ENTRY["file_sequence_number"]):
            if field_id in self.model.names:
                value = source.value(entry, field_id)
                new[self.model.names[field_id]] = manifest.sequence_number if value is None else value
        return new

    def _translated(self, data: Record, source: ManifestRecords) -> Record:
        """A data file written under another schema, its fields mapped by id; the partition tuple by position."""
        missing = {i: n for i, n in source.data_names.items() if i not in self.model.data_names and i != _BLOCK_SIZE}
        unknown = [i for i, name in missing.items() if data[name] is not None]
        if unknown:
            raise UnsupportedTable(
                f"{self.metadata.ref}: entries have fields {unknown} that the other manifests lack; "
                "set rewrite_manifests.engine to spark"
            )
        new = {name: data.get(source.data_names.get(i, "")) for i, name in self.model.data_names.items()}
        if _BLOCK_SIZE in self.model.data_names and new[self.model.data_names[_BLOCK_SIZE]] is None:
            new[self.model.data_names[_BLOCK_SIZE]] = 64 * 1024 * 1024  # required by format v1, read by nobody
        if 134 in self.model.data_names and new[self.model.data_names[134]] is None:  # noqa: PLR2004 - content
            new[self.model.data_names[134]] = 0
        names = [f["name"] for f in _partition_fields(self.model)]
        new[self.model.data_names[_PARTITION]] = dict(
            zip(names, data[source.data_names[_PARTITION]].values(), strict=True)
        )
        return new

    def cluster_key(self, entry: Record) -> tuple[Any, ...]:
        """Sorts entries by partition, nulls first, then as they were written."""
        partition = self._partition(entry)
        return (
            *((value is not None, value if value is not None else 0) for value in partition.values()),
            entry.get(self.model.names.get(3, ""), 0),
        )

    def _partition(self, entry: Record) -> Record:
        partition: Record = entry[self.model.names[2]][self.model.data_names[_PARTITION]]
        return partition

    def write(self, files: Files, path: str, entries: Sequence[Record]) -> WrittenManifest:
        """One manifest."""
        header = {k: v for k, v in self.model.header.items() if not k.startswith("avro.")}
        content = _encoded(self.model.schema, entries, header)
        files.write(path, content)
        data_names = self.model.data_names
        sequences = [e[self.model.names[3]] for e in entries] if 3 in self.model.names else [0]  # noqa: PLR2004
        rows = sum(e[self.model.names[2]][data_names[_RECORDS]] for e in entries)
        return WrittenManifest(
            path,
            len(entries),
            {
                PATH: path,
                501: len(content),
                502: self.spec_id,
                517: 0,
                516: min(sequences),
                504: 0,
                505: len(entries),
                506: 0,
                512: 0,
                513: rows,
                514: 0,
                507: self._summaries(entries),
            },
        )

    def _summaries(self, entries: Sequence[Record]) -> list[Record]:
        """Bounds of each partition field over the entries (spec, field_summary)."""
        summaries = []
        for field in _partition_fields(self.model):
            values = [self._partition(e)[field["name"]] for e in entries]
            kind = field["type"]
            real = [v for v in values if v is not None and v == v]  # noqa: PLR0124 - NaN is not itself
            ordered = sorted((_comparable(v, kind) for v in real), key=_order(kind))
            summaries.append(
                {
                    "contains_null": any(v is None for v in values),
                    "contains_nan": any(v is not None and v != v for v in values),  # noqa: PLR0124
                    "lower_bound": _single_value(ordered[0], kind) if ordered else None,
                    "upper_bound": _single_value(ordered[-1], kind) if ordered else None,
                }
            )
        return summaries


def _encoded(schema: Mapping[str, Any], records: Sequence[Record], header: Mapping[str, str]) -> bytes:
    """An Avro file of raw values whose header says the full schema, logical types and field ids included."""
    out = io.BytesIO()
    parsed = fastavro.parse_schema(_plain(schema))
    fastavro.writer(out, parsed, records, codec="deflate", metadata=dict(header), sync_interval=64_000)
    content = out.getvalue()
    written = _header(content)["avro.schema"]
    return content.replace(_sized(written.encode()), _sized(json.dumps(schema).encode()), 1)


def _partition_fields(model: ManifestRecords) -> list[dict[str, Any]]:
    """The partition fields with their types, named types looked up."""
    data = next(f for f in model.schema["fields"] if f["name"] == model.names[_ENTRY["data_file"]])
    partition = next(f for f in data["type"]["fields"] if f["name"] == model.data_names[_PARTITION])
    named: dict[str, Any] = {}
    fields = []
    for field in partition["type"]["fields"]:
        kind = field["type"]
        chosen = next((k for k in kind if k != "null"), "null") if isinstance(kind, list) else kind
        if isinstance(chosen, dict) and "name" in chosen:
            named[chosen["name"]] = chosen
        resolved = named.get(chosen, {"type": chosen}) if isinstance(chosen, str) else chosen
        fields.append({"name": field["name"], "type": resolved})
    return fields


def _comparable(value: Any, kind: Mapping[str, Any]) -> Any:  # noqa: ANN401 - any Avro value
    """Decimals compare as numbers, everything else as it is."""
    if kind.get("logicalType") == "decimal":
        return int.from_bytes(value, "big", signed=True)
    return value


def _order(kind: Mapping[str, Any]) -> Callable[[Any], Any] | None:
    """How Iceberg's Java library, and with it Spark, orders values: UUIDs as two signed numbers."""
    if kind.get("logicalType") != "uuid":
        return None
    return lambda value: tuple(int.from_bytes(half, "big", signed=True) for half in (value[:8], value[8:]))


def _single_value(value: Any, kind: Mapping[str, Any]) -> bytes:  # noqa: ANN401 - any Avro value
    """Binary single-value serialization (spec, Appendix D)."""
    if kind.get("logicalType") == "decimal":
        number: int = value
        bits = (number if number >= 0 else ~number).bit_length()  # without the sign
        return number.to_bytes(bits // 8 + 1, "big", signed=True)
    match kind["type"]:
        case "boolean":
            return b"\x01" if value else b"\x00"
        case "int":
            return struct.pack("<i", value)
        case "long":
            return struct.pack("<q", value)
        case "float":
            return struct.pack("<f", value)
        case "double":
            return struct.pack("<d", value)
        case "string":
            return str(value).encode()
    return bytes(value)


def manifest_list(
    rows: Records,
    kept: Sequence[Record],
    written: Sequence[WrittenManifest],
    metadata: TableMetadata,
    snapshot_id: int,
    parent_id: int,
    sequence: int,
) -> bytes:
    """The content of a manifest list: new manifests first, as Iceberg orders them, then those carried over."""
    new = []
    for manifest in written:
        values = {**manifest.row, 503: snapshot_id, 515: sequence}
        record = {name: values.get(i) for i, name in rows.names.items()}
        aliases = {"added_data_files_count": 504, "existing_data_files_count": 505, "deleted_data_files_count": 506}
        record |= {name: values[i] for name, i in aliases.items() if name in record}
        new.append(record)
    header = {
        "snapshot-id": str(snapshot_id),
        "parent-snapshot-id": str(parent_id),
        "format-version": str(metadata.format_version),
    }
    if metadata.format_version >= _VERSION_SEQUENCES:
        header["sequence-number"] = str(sequence)
    return _encoded(rows.schema, [*new, *kept], header)


def new_snapshot_id(metadata: TableMetadata) -> int:
    """A positive 63-bit id that the table does not have yet."""
    while (chosen := secrets.randbits(63)) in metadata.by_id or not chosen:
        continue
    return chosen
