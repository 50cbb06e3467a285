"""Parsing of table metadata files into values of the core, and of their owner and earlier versions alone."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from icewright.adapters.metadata.document import Editor, Json, SnapshotKey, SpecObject, decode, inflate, text_of
from icewright.adapters.read_limits import read_limits
from icewright.core.errors import MetadataTooLarge, MetadataUnreadable
from icewright.core.paths import key, split, stray_local_file
from icewright.core.predicates import column_names, quoted
from icewright.core.restore import TableHistory
from icewright.core.table import (
    MAIN,
    PartitionField,
    PartitionSpec,
    RefKind,
    Snapshot,
    SnapshotRef,
    StatisticsFile,
    TableMetadata,
    TableRef,
)

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LONGEST_MS = 365 * 100 * 86_400_000  # of an age: an older time would lie before the calendar begins
# the largest age of a recovery point's tag, which no arithmetic uses, but which must be exact
_EXACT_MS = 2**53
# a time of the years 1000 to 8999: ages of centuries can be added to it and taken from it
_LATEST_MS = 221_845_391_999_999
_Time = Annotated[int, Meta(ge=-30_610_224_000_000, le=_LATEST_MS)]
NO_SNAPSHOT = -1  # how older writers say that a table has none

# the keys of a summary that are read
_SUMMARY = frozenset({
    "operation", "changed-partition-count", "entries-processed", "manifests-created", "manifests-kept",
    "manifests-replaced", "app-id", "engine-name", "wap.id", "published-wap-id", "source-snapshot-id",
    "icewright.job-id", "added-data-files", "deleted-data-files", "total-data-files", "added-delete-files",
    "removed-delete-files",
    "total-delete-files", "added-records", "deleted-records", "total-records", "added-files-size",
    "removed-files-size", "total-files-size", "added-position-deletes", "removed-position-deletes",
    "total-position-deletes", "added-equality-deletes", "removed-equality-deletes", "total-equality-deletes",
})  # fmt: skip
# keys that Iceberg and engines write into nearly every snapshot, and that nothing reads: not kept in memory
_UNREAD = frozenset({
    "added-dvs", "removed-dvs", "added-position-delete-files", "removed-position-delete-files",
    "added-equality-delete-files", "removed-equality-delete-files", "deleted-duplicate-files",
    "partition-summaries-included", "engine-version", "iceberg-version", "app-name", "environment-context",
    "spark.app.id", "replace-partitions", "trino_query_id", "trino_user",
})  # fmt: skip
_DEFINED = _SUMMARY | _UNREAD
_OF_PARTITION = "partitions."  # one key for each partition that a commit changed
_LONGEST = 1_000  # characters of another key's value that are read; ids of writers have up to 40
_NO_PROPERTIES: Mapping[str, str] = {}
_FIELDS = ("format-version", "table-uuid", "view-uuid")  # one of which every file of Iceberg has
_ZSTD = b"\x28\xb5\x2f\xfd"  # some writers compress by it, although the spec does not know it
_ENCRYPTED = b"AGS1"
_NUL = "\0"  # which no file system, and not every database, takes


class _Snapshot(SpecObject, frozen=True, gc=False):
    snapshot_id: Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
    timestamp_ms: _Time
    parent_snapshot_id: int | None = None
    sequence_number: int = 0
    manifest_list: str | None = None
    manifests: tuple[str, ...] | None = None
    summary: dict[str, Json] | None = None
    schema_id: int | None = None


class _Ref(SpecObject, frozen=True, gc=False):
    snapshot_id: int
    type: str
    min_snapshots_to_keep: int | None = None
    max_snapshot_age_ms: int | None = None
    max_ref_age_ms: int | None = None


class _Statistics(SpecObject, frozen=True, gc=False):
    snapshot_id: int
    statistics_path: str
    file_size_in_bytes: int = 0


class _LogEntry(SpecObject, frozen=True, gc=False):
    metadata_file: str
    timestamp_ms: _Time | None = None


class _HistoryEntry(SpecObject, frozen=True, gc=False):
    snapshot_id: int
    timestamp_ms: int  # a check names one that is out of order


class _Metadata(SpecObject, frozen=True, gc=False):
    format_version: Annotated[int, Meta(ge=1)]
    location: str
    last_updated_ms: _Time
    table_uuid: str = ""
    last_sequence_number: Annotated[int, Meta(le=2**63 - 2)] = 0  # the next commit's is one more
    current_snapshot_id: int | None = None
    snapshots: list[msgspec.Raw] | None = None
    refs: dict[str, _Ref] | None = None
    metadata_log: list[_LogEntry] | None = None
    snapshot_log: list[_HistoryEntry] | None = None
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


def parse(ref: TableRef, location: str, content: bytes) -> TableMetadata:
    """Parse a metadata file, gzipped or not. Raises `MetadataUnreadable` where it breaks the spec."""
    try:
        decoded = _METADATA.decode(text_of(content, location))
        if len(decoded.snapshots or ()) > (most := read_limits().max_snapshots):
            problem = f"{len(decoded.snapshots or ())} snapshots, more than {most}"
            raise MetadataTooLarge(location, problem, "reading.max_snapshots")
        metadata = _parse(ref, location, len(content), decoded)
        if any(_NUL in text for text in (metadata.location, metadata.table_uuid, *metadata.write_paths)):
            raise ValueError("a location or an id with the character U+0000")  # noqa: TRY301 - as the others
        if decoded.snapshot_log and decoded.snapshot_log[-1].timestamp_ms > _LATEST_MS:  # no commit is before it
            raise ValueError("the last timestamp-ms of its snapshot-log is after the year 8999")  # noqa: TRY301 - as the others
        # new files would be written to the root of this machine
        if not split(metadata.location).authority and key(metadata.location) == "/":
            raise ValueError(f"the location {decoded.location!r} is no folder")  # noqa: TRY301 - as the others
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
    named = (path for s in metadata.snapshots for path in (s.manifest_list, *s.manifests) if path is not None)
    if (stray := stray_local_file(location, named)) is not None:
        raise MetadataUnreadable(f"{location} lies in an object store and names a local file, {stray}: it is not read")
    return metadata


def _parse(ref: TableRef, location: str, length: int, decoded: _Metadata) -> TableMetadata:
    current = None if decoded.current_snapshot_id in (None, NO_SNAPSHOT) else decoded.current_snapshot_id
    refs = {name: _ref(name, raw) for name, raw in (decoded.refs or {}).items()}
    if current is not None and MAIN not in refs:
        refs[MAIN] = SnapshotRef(MAIN, RefKind.BRANCH, current)
    log = decoded.metadata_log or ()
    schemas = decoded.schemas or ([decoded.schema] if decoded.schema else [])
    schema = _current(schemas, "schema-id", decoded.current_schema_id)
    order = _current(decoded.sort_orders or [], "order-id", decoded.default_sort_order_id)
    return TableMetadata(
        ref=ref,
        metadata_location=location,
        metadata_length=length,
        table_uuid=decoded.table_uuid.lower(),  # writers differ in case
        location=decoded.location.rstrip("/"),
        format_version=decoded.format_version,
        last_updated=time_of(decoded.last_updated_ms),
        last_sequence_number=decoded.last_sequence_number,
        current_snapshot_id=current,
        snapshots=tuple(_snapshot(s) for s in decoded.snapshots or ()),
        refs=tuple(refs[name] for name in sorted(refs)),
        metadata_log=tuple(entry.metadata_file for entry in log),
        statistics=_statistics(decoded.statistics),
        partition_statistics=_statistics(decoded.partition_statistics),
        properties=decoded.properties or {},
        specs=_specs(decoded.partition_specs or [{"spec-id": 0, "fields": decoded.partition_spec or []}]),
        default_spec_id=decoded.default_spec_id,
        schema=schema,
        sort_order=_sort_order(order, schema),
        sort_order_id=decoded.default_sort_order_id or 0,
        schema_ids=tuple(s["schema-id"] for s in decoded.schemas or () if "schema-id" in s),
        log_since=time_of(log[0].timestamp_ms) if log and log[0].timestamp_ms is not None else None,
    )


def read_history(content: bytes, location: str) -> TableHistory:
    """Return the history in a metadata file. Raises `MetadataUnreadable`."""
    document = Editor(decode(content, location))
    try:
        entries = [(time_of(e["timestamp-ms"]), e["snapshot-id"]) for e in document.get("snapshot-log", [])]
        schemas = document.get("schemas", []) or [document.get("schema", {})]
        return TableHistory(tuple(entries), {schema.get("schema-id", 0): schema for schema in schemas})
    except (AttributeError, KeyError, TypeError, OverflowError) as error:
        raise MetadataUnreadable(f"{location}: not as the spec has it ({type(error).__name__}: {error})") from error


def time_of(milliseconds: int) -> datetime:
    """Return the time of a timestamp in milliseconds since the epoch."""
    return _EPOCH + timedelta(milliseconds=milliseconds)


def _milliseconds(value: int | None, most: int = _LONGEST_MS) -> timedelta | None:
    """Return an age from nothing to a century, or as long as a recovery point's tag has one, exactly."""
    if value is None:
        return None
    return timedelta(milliseconds=max(0, value) if value <= most else _LONGEST_MS)


def _ref(name: str, raw: _Ref) -> SnapshotRef:
    return SnapshotRef(
        name=name,
        kind=RefKind(raw.type),
        snapshot_id=raw.snapshot_id,
        min_snapshots_to_keep=raw.min_snapshots_to_keep,
        max_snapshot_age=_milliseconds(raw.max_snapshot_age_ms),
        max_ref_age=_milliseconds(raw.max_ref_age_ms, _EXACT_MS),
    )


def _snapshot(item: msgspec.Raw) -> Snapshot:
    """Parse one snapshot at a time, so that a long history is never in memory in two forms."""
    raw = _SNAPSHOT.decode(item)
    if raw.manifest_list is None and raw.manifests is None:  # what it reads would look unreached
        raise ValueError(f"snapshot {raw.snapshot_id} names neither a manifest list nor manifests")
    raw_summary = raw.summary or {}
    summary = {name: str(value) for name, value in raw_summary.items() if name in _SUMMARY and value is not None}
    return Snapshot(
        snapshot_id=raw.snapshot_id,
        parent_id=raw.parent_snapshot_id,
        sequence_number=raw.sequence_number,
        timestamp=time_of(raw.timestamp_ms),
        manifest_list=raw.manifest_list,
        manifests=raw.manifests or (),
        operation=summary.get("operation"),
        summary=summary,
        schema_id=raw.schema_id,
        writer_properties=_writer_properties(raw_summary) if not raw_summary.keys() <= _DEFINED else _NO_PROPERTIES,
    )


def _writer_properties(summary: Mapping[str, Json]) -> Mapping[str, str]:
    """Return the entries of a summary that are neither Iceberg's nor an engine's: writers' own."""
    own = {k: str(v)[:_LONGEST] for k, v in summary.items() if k not in _DEFINED and v is not None}
    return {k: v for k, v in own.items() if not k.startswith(_OF_PARTITION)} or _NO_PROPERTIES


def _statistics(raw: list[_Statistics] | None) -> tuple[StatisticsFile, ...]:
    return tuple(StatisticsFile(s.snapshot_id, s.statistics_path, s.file_size_in_bytes) for s in raw or ())


def _specs(raw: Sequence[Mapping[str, Any]]) -> tuple[PartitionSpec, ...]:
    return tuple(
        PartitionSpec(
            spec["spec-id"],
            tuple(
                PartitionField(
                    f.get("source-id", (f.get("source-ids") or [0])[0]),
                    1000 + i if f.get("field-id") is None else f["field-id"],
                    f["name"],
                    f["transform"],
                )
                for i, f in enumerate(spec["fields"])
            ),
        )
        for spec in raw
    )


def _current(items: Sequence[Mapping[str, Any]], key: str, current_id: int | None) -> Mapping[str, Any]:
    """Return the current schema or sort order; format v1 may have only one, without an id."""
    return next((i for i in items if i.get(key, 0) == current_id), items[-1] if items else {})


def _sort_order(order: Mapping[str, Any], schema: Mapping[str, Any]) -> str | None:
    """Return the order in the syntax of `rewrite_data_files`; None when empty or with a transform it cannot express."""
    columns = column_names(schema)
    terms = []
    for field in order.get("fields", ()):
        path = columns.get(field.get("source-id", 0))
        if field["transform"] != "identity" or path is None:
            return None
        nulls = "NULLS FIRST" if field.get("null-order") == "nulls-first" else "NULLS LAST"
        terms.append(f"{'.'.join(quoted(p) for p in path)} {field.get('direction', 'asc').upper()} {nulls}")
    return ", ".join(terms) or None


@dataclass(frozen=True, slots=True)
class Lineage:
    """The table or view that a metadata file belongs to, and the versions of the table before it."""

    table_uuid: str  # of a view its own; blank when the file has none, as format v1 allows
    location: str
    last_updated: datetime | None  # None for views
    log: tuple[str, ...]  # earlier metadata files as the file names them, the oldest first
    snapshot_ids: frozenset[int]
    current_snapshot_id: int | None


class _MetadataLogEntry(SpecObject, frozen=True, gc=False):
    metadata_file: str


class _Lineage(SpecObject, frozen=True, gc=False):
    table_uuid: str | None = None
    view_uuid: str | None = None
    location: str = ""
    last_updated_ms: _Time | None = None
    metadata_log: list[_MetadataLogEntry] | None = None
    snapshots: list[SnapshotKey] | None = None
    current_snapshot_id: int | None = None


class _History(SpecObject, frozen=True, gc=False):
    snapshots: list[SnapshotKey] | None = None
    snapshot_log: list[SnapshotKey] | None = None


# made at once: threads that are the first to decode a struct at the same time crash in msgspec
_HISTORY = msgspec.json.Decoder(_History)
_LINEAGE = msgspec.json.Decoder(_Lineage)
_DOCUMENT = msgspec.json.Decoder(msgspec.Raw)


def lineage(content: bytes, location: str) -> Lineage | None:
    """Return the lineage of a metadata file; None when it is none: empty, truncated, or not Iceberg's at all.

    Raises `MetadataUnreadable` when the file may be a table's and cannot be read: compressed in another way, encrypted,
    not valid by the spec, or too large when inflated.
    """
    if content.startswith((_ZSTD, _ENCRYPTED)):
        raise MetadataUnreadable(f"{location}: compressed or encrypted in a way that Icewright cannot read")
    try:
        text = inflate(content, location)
        fields = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
    except (OSError, EOFError, zlib.error, msgspec.MsgspecError, ValueError, RecursionError):
        return None
    if not fields.keys() & set(_FIELDS):
        return None
    try:
        return _values(_LINEAGE.decode(text))
    except (msgspec.MsgspecError, ValueError, OverflowError) as error:
        raise MetadataUnreadable(f"{location}: not as the spec has it ({error})") from error


def lacks_snapshots(content: bytes) -> bool:
    """Return whether a reply lacks snapshots that its log names, as one of the referenced snapshots alone does."""
    try:
        history = _HISTORY.decode(content)
    except msgspec.MsgspecError:
        return False
    present = {snapshot.snapshot_id for snapshot in history.snapshots or ()}
    return any(entry.snapshot_id not in present for entry in history.snapshot_log or ())


def is_document(content: bytes, location: str) -> bool:
    """Return whether a file is whole JSON, whatever it describes."""
    try:
        _DOCUMENT.decode(inflate(content, location))
    except (OSError, EOFError, zlib.error, msgspec.MsgspecError, ValueError, RecursionError):
        return False
    return True


def _values(decoded: _Lineage) -> Lineage:
    current = decoded.current_snapshot_id
    return Lineage(
        table_uuid=(decoded.table_uuid or decoded.view_uuid or "").lower(),  # in which case does not count
        location=decoded.location.rstrip("/"),
        last_updated=None if decoded.last_updated_ms is None else time_of(decoded.last_updated_ms),
        log=tuple(entry.metadata_file for entry in decoded.metadata_log or ()),
        snapshot_ids=frozenset(snapshot.snapshot_id for snapshot in decoded.snapshots or ()),
        current_snapshot_id=None if current == NO_SNAPSHOT else current,
    )
