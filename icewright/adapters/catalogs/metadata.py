"""Iceberg's table metadata JSON: read into values, and changed without touching what is not understood.

Changes are made on the JSON itself and not through a client's model, so that fields of a newer spec survive a commit.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, assert_never
from uuid import uuid4

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
)
from icewright.ports import AddSnapshot, Change, RemoveSnapshots

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_NO_SNAPSHOT = -1
METADATA_LOG = 100  # Iceberg's default of write.metadata.previous-versions-max


def decode(content: bytes, location: str) -> dict[str, Any]:
    """The JSON of a metadata file, gzipped or not. Raises `MetadataUnreadable`."""
    try:
        document = json.loads(gzip.decompress(content) if content[:2] == b"\x1f\x8b" else content)
    except (OSError, EOFError, ValueError, RecursionError, zlib.error) as error:
        raise MetadataUnreadable(f"{location}: not a readable metadata file ({error})") from error
    if not isinstance(document, dict) or "format-version" not in document or "location" not in document:
        raise MetadataUnreadable(f"{location}: not an Iceberg table metadata file")
    return document


def parse(ref: TableRef, location: str, content: bytes) -> TableMetadata:
    """A metadata file as values. Raises `MetadataUnreadable`."""
    document = decode(content, location)
    try:
        return _parse(ref, location, len(content), document)
    except (AttributeError, KeyError, OverflowError, TypeError, ValueError, StopIteration) as error:
        raise MetadataUnreadable(f"{location}: not as the spec has it ({type(error).__name__}: {error})") from error


def _parse(ref: TableRef, location: str, length: int, document: dict[str, Any]) -> TableMetadata:
    current = document.get("current-snapshot-id")
    current = None if current in (None, _NO_SNAPSHOT) else current
    refs = {name: _ref(name, raw) for name, raw in document.get("refs", {}).items()}
    if current is not None and MAIN not in refs:
        refs[MAIN] = Ref(MAIN, RefKind.BRANCH, current)
    schema = _current(document, "schemas", "schema-id", "current-schema-id", "schema")
    order = _current(document, "sort-orders", "order-id", "default-sort-order-id", "")
    return TableMetadata(
        ref=ref,
        metadata_location=location,
        metadata_length=length,
        table_uuid=document.get("table-uuid", ""),
        location=document["location"].rstrip("/"),
        format_version=document["format-version"],
        last_updated=_time(document["last-updated-ms"]),
        last_sequence_number=document.get("last-sequence-number", 0),
        current_snapshot_id=current,
        snapshots=tuple(_snapshot(s) for s in document.get("snapshots", ())),
        refs=tuple(refs[name] for name in sorted(refs)),
        metadata_log=tuple(entry["metadata-file"] for entry in document.get("metadata-log", ())),
        statistics=tuple(_statistics(s) for s in document.get("statistics", ())),
        partition_statistics=tuple(_statistics(s) for s in document.get("partition-statistics", ())),
        properties=document.get("properties", {}),
        specs=_specs(document),
        default_spec_id=document.get("default-spec-id", 0),
        schema=schema,
        sort_order=_sort_order(order, schema),
    )


def _time(milliseconds: int) -> datetime:
    return _EPOCH + timedelta(milliseconds=milliseconds)


def _milliseconds(value: Any) -> timedelta | None:  # noqa: ANN401 - JSON
    if value is None:
        return None
    return min(timedelta(milliseconds=value), timedelta(days=365 * 100)) if value < 1e14 else timedelta(days=365 * 100)  # noqa: PLR2004


def _ref(name: str, raw: Mapping[str, Any]) -> Ref:
    return Ref(
        name=name,
        kind=RefKind(raw["type"]),
        snapshot_id=raw["snapshot-id"],
        min_snapshots_to_keep=raw.get("min-snapshots-to-keep"),
        max_snapshot_age=_milliseconds(raw.get("max-snapshot-age-ms")),
        max_ref_age=_milliseconds(raw.get("max-ref-age-ms")),
    )


def _snapshot(raw: Mapping[str, Any]) -> Snapshot:
    summary = {k: str(v) for k, v in (raw.get("summary") or {}).items()}
    return Snapshot(
        snapshot_id=raw["snapshot-id"],
        parent_id=raw.get("parent-snapshot-id"),
        sequence_number=raw.get("sequence-number", 0),
        timestamp=_time(raw["timestamp-ms"]),
        manifest_list=raw.get("manifest-list"),
        manifests=tuple(raw.get("manifests", ())),
        operation=summary.get("operation"),
        summary=summary,
    )


def _statistics(raw: Mapping[str, Any]) -> StatisticsFile:
    return StatisticsFile(raw["snapshot-id"], raw["statistics-path"], raw.get("file-size-in-bytes", 0))


def _specs(document: Mapping[str, Any]) -> tuple[PartitionSpec, ...]:
    raw = document.get("partition-specs") or [{"spec-id": 0, "fields": document.get("partition-spec", ())}]
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


def _current(document: Mapping[str, Any], plural: str, key: str, pointer: str, single: str) -> Mapping[str, Any]:
    """The schema or sort order in force; format v1 may have it by itself alone."""
    items = document.get(plural) or ([document[single]] if single else [])
    wanted = document.get(pointer)
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


def changed(document: Mapping[str, Any], location: str, change: Change, now: datetime) -> dict[str, Any]:
    """The JSON after a change; `location` is the file that the JSON stands in. The argument is left as it is."""
    new = dict(document)
    now_ms = (now - _EPOCH) // timedelta(milliseconds=1)
    match change:
        case RemoveSnapshots():
            _remove_snapshots(new, change)
        case AddSnapshot():
            _add_snapshot(new, change)
        case _:
            assert_never(change)
    kept = str(new.get("properties", {}).get("write.metadata.previous-versions-max", ""))
    limit = int(kept) if kept.isdecimal() else METADATA_LOG
    log = [*new.get("metadata-log", []), {"metadata-file": location, "timestamp-ms": document["last-updated-ms"]}]
    new["metadata-log"] = log[-max(1, limit) :]
    new["last-updated-ms"] = max(now_ms, document["last-updated-ms"])
    return new


def _remove_snapshots(new: dict[str, Any], change: RemoveSnapshots) -> None:
    gone = change.snapshot_ids
    if MAIN in change.refs:
        raise Refused("main cannot be removed")
    refs = {name: ref for name, ref in new.get("refs", {}).items() if name not in change.refs}
    held = {ref["snapshot-id"]: name for name, ref in refs.items()} | {new.get("current-snapshot-id"): MAIN}
    for snapshot_id in gone & held.keys():
        raise Refused(f"snapshot {snapshot_id} is still referenced by {held[snapshot_id]}")
    new["refs"] = refs
    new["snapshots"] = [s for s in new.get("snapshots", []) if s["snapshot-id"] not in gone]
    for key in ("statistics", "partition-statistics"):
        if key in new:
            new[key] = [s for s in new[key] if s["snapshot-id"] not in gone]
    log: list[dict[str, Any]] = []
    for entry in new.get("snapshot-log", []):
        if entry["snapshot-id"] in gone:
            log.clear()  # a gap would make time travel to before it read the wrong snapshot (Iceberg does the same)
        else:
            log.append(entry)
    new["snapshot-log"] = log


def _add_snapshot(new: dict[str, Any], change: AddSnapshot) -> None:
    snapshot = dict(change.snapshot)
    new["snapshots"] = [*new.get("snapshots", []), snapshot]
    if "sequence-number" in snapshot:
        new["last-sequence-number"] = snapshot["sequence-number"]
    refs = dict(new.get("refs", {}))
    refs[change.branch] = {"type": "branch", **refs.get(change.branch, {}), "snapshot-id": snapshot["snapshot-id"]}
    new["refs"] = refs
    if change.branch == MAIN:
        new["current-snapshot-id"] = snapshot["snapshot-id"]
        entry = {"snapshot-id": snapshot["snapshot-id"], "timestamp-ms": snapshot["timestamp-ms"]}
        new["snapshot-log"] = [*new.get("snapshot-log", []), entry]


def encode(document: Mapping[str, Any]) -> bytes:
    """The file's content, gzipped when the table asks for it."""
    content = json.dumps(document, separators=(",", ":")).encode()
    return gzip.compress(content) if _gzipped(document) else content


def next_location(document: Mapping[str, Any], current: str) -> str:
    """Where the next metadata file goes: the version counts up, a fresh uuid keeps writers apart."""
    folder = document.get("properties", {}).get("write.metadata.path") or f"{document['location'].rstrip('/')}/metadata"
    version = current.rsplit("/", 1)[-1].partition("-")[0]
    number = int(version) + 1 if version.isdecimal() else 1
    ending = ".gz.metadata.json" if _gzipped(document) else ".metadata.json"
    return f"{folder.rstrip('/')}/{number:05d}-{uuid4()}{ending}"


def _gzipped(document: Mapping[str, Any]) -> bool:
    return str(document.get("properties", {}).get("write.metadata.compression-codec", "none")).lower() == "gzip"
