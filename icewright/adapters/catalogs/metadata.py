"""Iceberg's table metadata JSON: read into values, and changed without touching what is not understood.

Changes are made on the JSON itself and not through a client's model, so that fields of a newer spec survive a commit.
What a change does not concern is carried over as the bytes that it is, snapshots too: a file of 250 MB costs little
more than itself.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, assert_never
from uuid import uuid4

import msgspec

from icewright.core.errors import MetadataUnreadable, Refused
from icewright.core.predicates import column_names, quoted
from icewright.core.table import (
    MAIN,
    PartitionField,
    PartitionSpec,
    Ref,
    RefKind,
    Snapshot,
    StatisticsFile,
    TableMetadata,
    TableRef,
    metadata_folder,
)
from icewright.ports import AddSnapshot, Change, RemoveSnapshots

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_NO_SNAPSHOT = -1
METADATA_LOG = 100  # Iceberg's default of write.metadata.previous-versions-max

Json = Any
Document = dict[str, Any]  # a metadata file: each field as the bytes that stand in it, or as its new value


class _Struct(msgspec.Struct, rename=lambda name: name.replace("_", "-"), frozen=True, gc=False):
    """An object of the spec; fields that it does not name are skipped."""


# the fields of a summary that are read; writers add others, long ones too
_SUMMARY = (
    "operation", "changed-partition-count", "entries-processed", "manifests-created", "manifests-kept",
    "manifests-replaced", "app-id", "wap.id", "published-wap-id", "source-snapshot-id", "icewright.job-id",
    "added-data-files", "deleted-data-files", "total-data-files", "added-delete-files", "removed-delete-files",
    "total-delete-files", "added-records", "deleted-records", "total-records", "added-files-size",
    "removed-files-size", "total-files-size", "added-position-deletes", "removed-position-deletes",
    "total-position-deletes", "added-equality-deletes", "removed-equality-deletes", "total-equality-deletes",
)  # fmt: skip
_ATTRIBUTES = {name.replace("-", "_").replace(".", "_"): name for name in _SUMMARY}
_Summary: Any = msgspec.defstruct(
    "_Summary", [(name, Json, None) for name in _ATTRIBUTES], rename=_ATTRIBUTES, frozen=True, gc=False
)


class _Snapshot(_Struct, frozen=True, gc=False):
    snapshot_id: int
    timestamp_ms: int
    parent_snapshot_id: int | None = None
    sequence_number: int = 0
    manifest_list: str | None = None
    manifests: tuple[str, ...] | None = None
    summary: _Summary | None = None
    schema_id: int | None = None


class _Identified(_Struct, frozen=True, gc=False):
    snapshot_id: int


class _Ref(_Struct, frozen=True, gc=False):
    snapshot_id: int
    type: str
    min_snapshots_to_keep: int | None = None
    max_snapshot_age_ms: int | None = None
    max_ref_age_ms: int | None = None


class _Statistics(_Struct, frozen=True, gc=False):
    snapshot_id: int
    statistics_path: str
    file_size_in_bytes: int = 0


class _LogEntry(_Struct, frozen=True, gc=False):
    metadata_file: str


class _Metadata(_Struct, frozen=True, gc=False):
    format_version: int
    location: str
    last_updated_ms: int
    table_uuid: str = ""
    last_sequence_number: int = 0
    current_snapshot_id: int | None = None
    snapshots: list[msgspec.Raw] | None = None
    refs: dict[str, _Ref] | None = None
    metadata_log: list[_LogEntry] | None = None
    statistics: list[_Statistics] | None = None
    partition_statistics: list[_Statistics] | None = None
    properties: dict[str, str] | None = None
    partition_specs: list[dict[str, Json]] | None = None
    partition_spec: list[dict[str, Json]] | None = None
    default_spec_id: int = 0
    schemas: list[dict[str, Json]] | None = None
    schema: dict[str, Json] | None = None
    current_schema_id: int | None = None
    sort_orders: list[dict[str, Json]] | None = None
    default_sort_order_id: int | None = None


# made at once: threads that are the first to decode a struct at the same time crash in msgspec
_METADATA = msgspec.json.Decoder(_Metadata)
_SNAPSHOT = msgspec.json.Decoder(_Snapshot)
_IDENTIFIED = msgspec.json.Decoder(_Identified)


def _inflated(content: bytes, location: str) -> bytes:
    try:
        return gzip.decompress(content) if content[:2] == b"\x1f\x8b" else content
    except (OSError, EOFError, zlib.error) as error:
        raise MetadataUnreadable(f"{location}: not a readable metadata file ({error})") from error


def decode(content: bytes, location: str) -> Document:
    """The fields of a metadata file, gzipped or not. Raises `MetadataUnreadable`."""
    try:
        document: Document = msgspec.json.decode(_inflated(content, location), type=dict[str, msgspec.Raw])
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise MetadataUnreadable(f"{location}: not a readable metadata file ({error})") from error
    if "format-version" not in document or "location" not in document:
        raise MetadataUnreadable(f"{location}: not an Iceberg table metadata file")
    return document


def parse(ref: TableRef, location: str, content: bytes) -> TableMetadata:
    """A metadata file as values. Raises `MetadataUnreadable`."""
    try:
        read = _METADATA.decode(_inflated(content, location))
        return _parse(ref, location, len(content), read)
    except (
        AttributeError,
        KeyError,
        OverflowError,
        RecursionError,
        StopIteration,
        TypeError,
        ValueError,
        msgspec.MsgspecError,
    ) as error:
        raise MetadataUnreadable(f"{location}: not as the spec has it ({type(error).__name__}: {error})") from error


def _parse(ref: TableRef, location: str, length: int, read: _Metadata) -> TableMetadata:
    current = None if read.current_snapshot_id in (None, _NO_SNAPSHOT) else read.current_snapshot_id
    refs = {name: _ref(name, raw) for name, raw in (read.refs or {}).items()}
    if current is not None and MAIN not in refs:
        refs[MAIN] = Ref(MAIN, RefKind.BRANCH, current)
    schema = _current(read.schemas or ([read.schema] if read.schema else []), "schema-id", read.current_schema_id)
    order = _current(read.sort_orders or [], "order-id", read.default_sort_order_id)
    return TableMetadata(
        ref=ref,
        metadata_location=location,
        metadata_length=length,
        table_uuid=read.table_uuid,
        location=read.location.rstrip("/"),
        format_version=read.format_version,
        last_updated=_time(read.last_updated_ms),
        last_sequence_number=read.last_sequence_number,
        current_snapshot_id=current,
        snapshots=tuple(_snapshot(s) for s in read.snapshots or ()),
        refs=tuple(refs[name] for name in sorted(refs)),
        metadata_log=tuple(entry.metadata_file for entry in read.metadata_log or ()),
        statistics=_statistics(read.statistics),
        partition_statistics=_statistics(read.partition_statistics),
        properties=read.properties or {},
        specs=_specs(read.partition_specs or [{"spec-id": 0, "fields": read.partition_spec or []}]),
        default_spec_id=read.default_spec_id,
        schema=schema,
        sort_order=_sort_order(order, schema),
        sort_order_id=read.default_sort_order_id or 0,
        schema_ids=tuple(s["schema-id"] for s in read.schemas or () if "schema-id" in s),
    )


def _time(milliseconds: int) -> datetime:
    return _EPOCH + timedelta(milliseconds=milliseconds)


def _milliseconds(value: int | None) -> timedelta | None:
    if value is None:
        return None
    return min(timedelta(milliseconds=value), timedelta(days=365 * 100)) if value < 1e14 else timedelta(days=365 * 100)  # noqa: PLR2004


def _ref(name: str, raw: _Ref) -> Ref:
    return Ref(
        name=name,
        kind=RefKind(raw.type),
        snapshot_id=raw.snapshot_id,
        min_snapshots_to_keep=raw.min_snapshots_to_keep,
        max_snapshot_age=_milliseconds(raw.max_snapshot_age_ms),
        max_ref_age=_milliseconds(raw.max_ref_age_ms),
    )


def _snapshot(item: msgspec.Raw) -> Snapshot:
    """One at a time, so that of a long history two shapes are never in memory together."""
    raw = _SNAPSHOT.decode(item)
    said = [] if raw.summary is None else zip(_SUMMARY, msgspec.structs.astuple(raw.summary), strict=True)
    summary = {name: str(value) for name, value in said if value is not None}
    return Snapshot(
        snapshot_id=raw.snapshot_id,
        parent_id=raw.parent_snapshot_id,
        sequence_number=raw.sequence_number,
        timestamp=_time(raw.timestamp_ms),
        manifest_list=raw.manifest_list,
        manifests=raw.manifests or (),
        operation=summary.get("operation"),
        summary=summary,
        schema_id=raw.schema_id,
    )


def _statistics(raw: list[_Statistics] | None) -> tuple[StatisticsFile, ...]:
    return tuple(StatisticsFile(s.snapshot_id, s.statistics_path, s.file_size_in_bytes) for s in raw or ())


def _specs(raw: Sequence[Mapping[str, Any]]) -> tuple[PartitionSpec, ...]:
    return tuple(
        PartitionSpec(
            spec["spec-id"],
            tuple(
                PartitionField(
                    f.get("source-id", (f.get("source-ids") or [0])[0]),
                    f.get("field-id", 1000 + i),
                    f["name"],
                    f["transform"],
                )
                for i, f in enumerate(spec["fields"])
            ),
        )
        for spec in raw
    )


def _current(items: Sequence[Mapping[str, Any]], key: str, wanted: int | None) -> Mapping[str, Any]:
    """The schema or sort order in force; format v1 may have it by itself alone."""
    return next((i for i in items if i.get(key, 0) == wanted), items[-1] if items else {})


def _sort_order(order: Mapping[str, Any], schema: Mapping[str, Any]) -> str | None:
    """The order as `rewrite_data_files` takes it; None when it is empty or uses a transform it cannot say."""
    columns = column_names(schema)
    said = []
    for field in order.get("fields", ()):
        path = columns.get(field.get("source-id", 0))
        if field["transform"] != "identity" or path is None:
            return None
        nulls = "NULLS FIRST" if field.get("null-order") == "nulls-first" else "NULLS LAST"
        said.append(f"{'.'.join(quoted(p) for p in path)} {field.get('direction', 'asc').upper()} {nulls}")
    return ", ".join(said) or None


def changed(document: Document, location: str, change: Change, now: datetime) -> Document:
    """The file after a change; `location` is where `document` stands. The argument is left as it is."""
    new = _Editor(dict(document))
    match change:
        case RemoveSnapshots():
            _remove_snapshots(new, change)
        case AddSnapshot():
            _add_snapshot(new, change)
        case _:
            assert_never(change)
    kept = str(new.get("properties", {}).get("write.metadata.previous-versions-max", ""))
    limit = int(kept) if kept.isdecimal() else METADATA_LOG
    updated = new.get("last-updated-ms", 0)
    log = [*new.get("metadata-log", []), {"metadata-file": location, "timestamp-ms": updated}]
    new.set("metadata-log", log[-max(1, limit) :])
    new.set("last-updated-ms", max((now - _EPOCH) // timedelta(milliseconds=1), updated))
    return new.document


class _Editor:
    """Reads and writes single fields of a document; the others stay the bytes that they are."""

    def __init__(self, document: Document) -> None:
        self.document = document

    def get(self, name: str, default: Json) -> Json:
        """A field's value; what is missing or null is the default."""
        value = self.document.get(name)
        value = msgspec.json.decode(value) if isinstance(value, msgspec.Raw) else value
        return default if value is None else value

    def items(self, name: str) -> list[msgspec.Raw]:
        """The items of a list, as bytes."""
        raw = self.document.get(name)
        return (msgspec.json.decode(raw, type=list[msgspec.Raw] | None) or []) if raw is not None else []

    def set(self, name: str, value: Json) -> None:
        """A field's new value, which may hold bytes as they stand in the file."""
        self.document[name] = value


def _remove_snapshots(new: _Editor, change: RemoveSnapshots) -> None:
    gone = change.snapshot_ids
    if MAIN in change.refs:
        raise Refused("main cannot be removed")
    refs = {name: ref for name, ref in new.get("refs", {}).items() if name not in change.refs}
    held = {ref["snapshot-id"]: name for name, ref in refs.items()} | {new.get("current-snapshot-id", None): MAIN}
    for snapshot_id in gone & held.keys():
        raise Refused(f"snapshot {snapshot_id} is still referenced by {held[snapshot_id]}")
    new.set("refs", refs)
    for name in ("snapshots", "statistics", "partition-statistics"):
        if name in new.document or name == "snapshots":
            new.set(name, [item for item in new.items(name) if _id(item) not in gone])
    for name, key, unused in (("partition-specs", "spec-id", change.specs), ("schemas", "schema-id", change.schemas)):
        if unused:
            new.set(name, [item for item in new.get(name, []) if item.get(key) not in unused])
    log: list[dict[str, Any]] = []
    for entry in new.get("snapshot-log", []):
        if entry["snapshot-id"] in gone:
            log.clear()  # a gap would make time travel to before it read the wrong snapshot (Iceberg does the same)
        else:
            log.append(entry)
    new.set("snapshot-log", log)


def _id(item: msgspec.Raw) -> int:
    return _IDENTIFIED.decode(item).snapshot_id


def _add_snapshot(new: _Editor, change: AddSnapshot) -> None:
    snapshot = dict(change.snapshot)
    new.set("snapshots", [*new.items("snapshots"), snapshot])
    if "sequence-number" in snapshot:
        new.set("last-sequence-number", snapshot["sequence-number"])
    refs = dict(new.get("refs", {}))
    refs[change.branch] = {"type": "branch", **refs.get(change.branch, {}), "snapshot-id": snapshot["snapshot-id"]}
    new.set("refs", refs)
    if change.branch == MAIN:
        new.set("current-snapshot-id", snapshot["snapshot-id"])
        entry = {"snapshot-id": snapshot["snapshot-id"], "timestamp-ms": snapshot["timestamp-ms"]}
        new.set("snapshot-log", [*new.get("snapshot-log", []), entry])


def encode(document: Document) -> bytes:
    """The file's content, gzipped when the table asks for it."""
    content = msgspec.json.encode(document)
    return gzip.compress(content) if _gzipped(_Editor(document)) else content


def next_location(document: Document, current: str) -> str:
    """Where the next metadata file goes: the version counts up, a fresh uuid keeps writers apart."""
    new = _Editor(document)
    location = new.get("location", "").rstrip("/")
    folder = metadata_folder(location, new.get("properties", {}))
    version = current.rsplit("/", 1)[-1].partition("-")[0]
    number = int(version) + 1 if version.isdecimal() else 1
    ending = ".gz.metadata.json" if _gzipped(new) else ".metadata.json"
    return f"{folder}/{number:05d}-{uuid4()}{ending}"


def _gzipped(document: _Editor) -> bool:
    codec = document.get("properties", {}).get("write.metadata.compression-codec", "none")
    return str(codec).lower() == "gzip"
