"""Application of catalog changes to metadata files, and the restoring of what an expiry removed.

Changes edit the JSON itself and not a client's model, so that fields of a newer spec survive a commit. Other fields and
snapshots are copied as bytes: a file of 250 MB costs little more than itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, assert_never

import msgspec

from icewright.adapters.metadata.document import SNAPSHOT_KEY, Document, Editor, decode
from icewright.adapters.metadata.parsing import NO_SNAPSHOT, time_of
from icewright.core.errors import Refused
from icewright.core.numbers import number_or
from icewright.core.table import FORMAT_V3, MAIN, SnapshotRef
from icewright.ports import AddSnapshot, Change, RemoveSnapshots, RestoreSnapshots, SetRefs, SetStatistics

Json = Mapping[str, Any]
_STATISTICS = ("statistics", "partition-statistics")
_GAP = "other snapshots of that time are gone"
_DEFINITIONS = (("partition-specs", "spec-id", "partition spec"), ("schemas", "schema-id", "schema"))
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_REF_FIELDS = {"snapshot-id", "type", "min-snapshots-to-keep", "max-snapshot-age-ms", "max-ref-age-ms"}
METADATA_LOG = 100  # Iceberg's default of write.metadata.previous-versions-max


@dataclass(frozen=True, slots=True)
class Restored:
    """The result of a restore: whether it changed the metadata, and what it left out."""

    changed: bool
    left_out: tuple[str, ...]  # what did not come back and why, as sentences


def restoration(content: bytes, location: str, change: RemoveSnapshots) -> RestoreSnapshots:
    """Return the change that restores what `change` removes from the metadata file. Raises `MetadataUnreadable`."""
    old = Editor(decode(content, location))
    removed = change.snapshot_ids
    snapshots, statistics, partition_statistics = (
        tuple(msgspec.json.decode(item) for item in old.items(name) if SNAPSHOT_KEY.decode(item).snapshot_id in removed)
        for name in ("snapshots", *_STATISTICS)
    )
    log = old.get("snapshot-log", [])
    last = max((index for index, entry in enumerate(log) if entry["snapshot-id"] in removed), default=-1)
    return RestoreSnapshots(
        table_uuid=old.get("table-uuid", ""),
        snapshots=snapshots,
        refs={name: ref for name, ref in old.get("refs", {}).items() if name in change.refs},
        statistics=statistics,
        partition_statistics=partition_statistics,
        specs=tuple(spec for spec in old.get("partition-specs", []) if spec.get("spec-id") in change.specs),
        schemas=tuple(schema for schema in old.get("schemas", []) if schema.get("schema-id") in change.schemas),
        history=tuple(log[: last + 2]) if last >= 0 else (),
    )


def unrestorable(document: Document, change: RestoreSnapshots) -> str:
    """Return what `restore` would leave out; the text begins with `nothing:` when it would refuse everything."""
    try:
        return "; ".join(restore(Editor(dict(document)), change).left_out)
    except Refused as error:
        return f"nothing: {error}"


def missing_snapshots(document: Document, change: RestoreSnapshots) -> list[Json]:
    """Return the snapshots to restore that the metadata lacks, in the order of their commits.

    Raises `Refused` when the metadata is another table's by now.
    """
    editor = Editor(document)
    where, uuid = editor.get("location", ""), editor.get("table-uuid", "")
    if change.table_uuid and uuid.lower() != change.table_uuid.lower():
        raise Refused(f"{where}: it is another table now (uuid {uuid}, not {change.table_uuid})")
    present = {SNAPSHOT_KEY.decode(item).snapshot_id for item in editor.items("snapshots")}
    absent = [snapshot for snapshot in change.snapshots if snapshot["snapshot-id"] not in present]
    last = editor.get("last-sequence-number", 0)
    for snapshot in absent:
        if (snapshot.get("sequence-number") or 0) > last:
            raise Refused(f"{where}: snapshot {snapshot['snapshot-id']} is newer than the table, which began anew")
    return absent


def missing_definitions(document: Document, change: RestoreSnapshots) -> dict[str, list[Json]]:
    """Return the partition specs and schemas to restore that the metadata lacks, by the field that holds them.

    Raises `Refused` when an id has another meaning by now: the snapshots could not be read by it.
    """
    editor = Editor(document)
    absent_by_field: dict[str, list[Json]] = {}
    for (name, key, kind), definitions in zip(_DEFINITIONS, (change.specs, change.schemas), strict=True):
        present = {item.get(key): item for item in editor.get(name, [])}
        for item in definitions:
            if item[key] in present and _plain(present[item[key]]) != _plain(item):
                where = editor.get("location", "")
                raise Refused(f"{where}: {kind} {item[key]}, by which the snapshots are read, is another one now")
        if absent := [item for item in definitions if item[key] not in present]:
            absent_by_field[name] = absent
    return absent_by_field


def restore(new: Editor, change: RestoreSnapshots) -> Restored:
    """Restore the missing objects. Raises `Refused` when the snapshots would differ from the removed ones."""
    before = dict(new.document)
    if absent := missing_snapshots(new.document, change):
        for name, items in missing_definitions(new.document, change).items():
            new.set(name, [*new.items(name), *_raw(items)])
        new.set("snapshots", _merged(new.items("snapshots"), absent))
    present = {SNAPSHOT_KEY.decode(item).snapshot_id for item in new.items("snapshots")}
    for name, files in zip(_STATISTICS, (change.statistics, change.partition_statistics), strict=True):
        present_statistics = {SNAPSHOT_KEY.decode(item).snapshot_id for item in new.items(name)}
        if absent_files := [file for file in files if file["snapshot-id"] in present - present_statistics]:
            new.set(name, [*_raw(absent_files), *new.items(name)])
    notes = [*_restore_refs(new, change, present), *_restore_history(new, change.history, present)]
    return Restored(new.document != before, tuple(notes))


def _merged(present: Sequence[msgspec.Raw], restored: Sequence[Json]) -> list[msgspec.Raw]:
    """Merge restored snapshots among the present ones by the order of commits, without reordering either."""
    pending = [(SNAPSHOT_KEY.decode(item).commit_order, item) for item in _raw(restored)]
    pending.reverse()
    merged: list[msgspec.Raw] = []
    for item in present:
        order = SNAPSHOT_KEY.decode(item).commit_order
        while pending and pending[-1][0] <= order:
            merged.append(pending.pop()[1])
        merged.append(item)
    return [*merged, *(item for _, item in reversed(pending))]


def _restore_refs(new: Editor, change: RestoreSnapshots, present: AbstractSet[int]) -> list[str]:
    refs, restored, notes = _refs(new), {}, []
    for name, ref in change.refs.items():
        label = f"{ref.get('type', 'ref')} {name}"
        if name in refs:
            if _plain(refs[name]) != _plain(ref):
                notes.append(f"{label}, as somebody has set {name} on snapshot {refs[name]['snapshot-id']} since")
        elif ref["snapshot-id"] not in present:
            notes.append(f"{label}, as its snapshot {ref['snapshot-id']} is gone by another commit")
        else:
            restored[name] = ref
    if restored:
        new.set("refs", {**refs, **restored})
    return notes


def _restore_history(new: Editor, history: Sequence[Json], present: AbstractSet[int]) -> list[str]:
    """Restore entries of the snapshot log up to the first gap: past it time travel would read a wrong snapshot."""
    log = new.get("snapshot-log", [])
    *removed, first_retained = history or ({},)
    if log and log[0] in removed:
        return []
    restored: list[Json] = []
    if log and log[0] == first_retained:
        for entry in removed:
            if entry["snapshot-id"] in present:
                restored.append(entry)
            else:
                restored.clear()
        if restored:
            new.set("snapshot-log", [*restored, *log])
    if len(restored) == len(removed):
        return []
    return [f"time travel to before {first_time(restored or log or [first_retained])}: {_GAP}"]


def first_time(log: Sequence[Json]) -> str:
    """Return the time of the first entry of a snapshot log, in ISO format."""
    return time_of(log[0]["timestamp-ms"]).isoformat(timespec="seconds")


def _plain(item: Json) -> dict[str, Any]:
    """Return an object without the empty fields that writers may leave out."""
    return {key: value for key, value in item.items() if value not in (None, [], {})}


def _raw(items: Iterable[Json]) -> list[msgspec.Raw]:
    return [msgspec.Raw(msgspec.json.encode(item)) for item in items]


def apply_change(document: Document, location: str, change: Change, now: datetime) -> Document:
    """Return the document after a change; `location` is that of `document`, which is not modified.

    Returns `document` itself when there is nothing to change. Raises `Refused` when the change is impossible.
    """
    new = Editor(dict(document))
    match change:
        case RemoveSnapshots():
            _remove_snapshots(new, change)
        case AddSnapshot():
            _add_snapshot(new, change)
        case RestoreSnapshots():
            if not restore(new, change).changed:
                return document
        case SetRefs():
            if not _set_refs(new, change, now):
                return document
        case SetStatistics():
            _set_statistics(new, change)
        case _:
            assert_never(change)
    limit = number_or(METADATA_LOG, str(new.get("properties", {}).get("write.metadata.previous-versions-max", "")))
    updated = _last_time(new, "metadata-log")
    log = [*new.get("metadata-log", []), {"metadata-file": location, "timestamp-ms": updated}]
    new.set("metadata-log", log[-max(1, limit) :])
    new.set("last-updated-ms", _update_time(new, now))
    return new.document


def _refs(new: Editor) -> dict[str, Json]:
    """Return the refs, and main where an older writer named none: to readers, a list without it has no main."""
    current = new.get("current-snapshot-id", NO_SNAPSHOT)
    main = {} if current == NO_SNAPSHOT else {MAIN: {"snapshot-id": current, "type": "branch"}}
    return {**main, **new.get("refs", {})}


def _update_time(new: Editor, now: datetime) -> int:
    """Return the time of the change in milliseconds, which is never before that of the last one."""
    return max((now - _EPOCH) // timedelta(milliseconds=1), _last_time(new, "snapshot-log", "metadata-log"))


def _last_time(new: Editor, *logs: str) -> int:
    """Return the time of the last change and entry of the logs: Iceberg's library loads no table that goes back."""
    logged = (int(entry.get("timestamp-ms") or 0) for log in logs for entry in new.get(log, [])[-1:])
    return max([int(new.get("last-updated-ms", 0)), *logged])


def _remove_snapshots(new: Editor, change: RemoveSnapshots) -> None:
    removed = change.snapshot_ids
    if MAIN in change.refs:
        raise Refused("main cannot be removed")
    refs = {name: ref for name, ref in _refs(new).items() if name not in change.refs}
    referenced = {ref["snapshot-id"]: name for name, ref in refs.items()} | {new.get("current-snapshot-id", None): MAIN}
    for snapshot_id in removed & referenced.keys():
        raise Refused(f"snapshot {snapshot_id} is still referenced by {referenced[snapshot_id]}")
    new.set("refs", refs)
    for name in ("snapshots", "statistics", "partition-statistics"):
        if name in new.document:
            new.set(name, [item for item in new.items(name) if SNAPSHOT_KEY.decode(item).snapshot_id not in removed])
    for name, key, unused in (("partition-specs", "spec-id", change.specs), ("schemas", "schema-id", change.schemas)):
        if unused:
            new.set(name, [item for item in new.get(name, []) if item.get(key) not in unused])
    log: list[dict[str, Any]] = []
    for entry in new.get("snapshot-log", []):
        if entry["snapshot-id"] in removed:
            log.clear()  # a gap would make time travel to before it read the wrong snapshot (Iceberg does the same)
        else:
            log.append(entry)
    new.set("snapshot-log", log)


def _add_snapshot(new: Editor, change: AddSnapshot) -> None:
    snapshot = dict(change.snapshot)
    if new.get("format-version", 1) >= FORMAT_V3:  # the snapshot adds no rows: it rewrites metadata or delete files
        snapshot = {"first-row-id": new.get("next-row-id", 0), "added-rows": 0} | snapshot
    new.set("snapshots", [*new.items("snapshots"), snapshot])
    if "sequence-number" in snapshot:
        new.set("last-sequence-number", snapshot["sequence-number"])
    refs, current = _refs(new), new.get("current-snapshot-id", NO_SNAPSHOT)
    if change.branch == MAIN and refs.get(MAIN, {}).get("snapshot-id", current) != current:
        raise Refused(
            f"{new.get('location', '')}: main is of snapshot {refs[MAIN]['snapshot-id']}, the current one is {current}"
            ", and which of them readers see is not known: restore main's, and then the other if that is meant"
        )
    refs[change.branch] = {"type": "branch", **refs.get(change.branch, {}), "snapshot-id": snapshot["snapshot-id"]}
    new.set("refs", refs)
    if change.branch == MAIN:
        new.set("current-snapshot-id", snapshot["snapshot-id"])
        last = _last_time(new, "snapshot-log")
        entry = {"snapshot-id": snapshot["snapshot-id"], "timestamp-ms": max(snapshot["timestamp-ms"], last)}
        new.set("snapshot-log", [*new.get("snapshot-log", []), entry])


def _set_refs(new: Editor, change: SetRefs, now: datetime) -> bool:
    """Set and remove refs; return whether anything changed. Raises `Refused` for a snapshot that is not there."""
    if MAIN in change.removed:
        raise Refused("main cannot be removed")
    current = new.get("current-snapshot-id", None)
    present = {SNAPSHOT_KEY.decode(item).snapshot_id for item in new.items("snapshots")}
    before = _refs(new)
    refs = {name: ref for name, ref in before.items() if name not in change.removed}
    for ref in change.refs:
        if ref.snapshot_id not in present:
            raise Refused(f"{ref.kind} {ref.name} cannot be set: the table has no snapshot {ref.snapshot_id}")
        future = {name: value for name, value in before.get(ref.name, {}).items() if name not in _REF_FIELDS}
        refs[ref.name] = future | ref_document(ref)
        if ref.name == MAIN and ref.snapshot_id != current:
            new.set("current-snapshot-id", ref.snapshot_id)
            entry = {"snapshot-id": ref.snapshot_id, "timestamp-ms": _update_time(new, now)}
            new.set("snapshot-log", [*new.get("snapshot-log", []), entry])
    if refs == before:
        return False
    new.set("refs", refs)
    return True


def _set_statistics(new: Editor, change: SetStatistics) -> None:
    if change.snapshot_id not in {SNAPSHOT_KEY.decode(item).snapshot_id for item in new.items("snapshots")}:
        raise Refused(f"statistics cannot be set: the table has no snapshot {change.snapshot_id}")
    for name, file in (("statistics", change.statistics), ("partition-statistics", change.partition_statistics)):
        if file is not None:
            others = [i for i in new.items(name) if SNAPSHOT_KEY.decode(i).snapshot_id != change.snapshot_id]
            new.set(name, [*others, dict(file)])


def ref_document(ref: SnapshotRef) -> dict[str, Any]:
    """Return a ref as the JSON of the spec."""
    ages = {"max-snapshot-age-ms": ref.max_snapshot_age, "max-ref-age-ms": ref.max_ref_age}
    least = {} if ref.min_snapshots_to_keep is None else {"min-snapshots-to-keep": ref.min_snapshots_to_keep}
    known = {name: age // timedelta(milliseconds=1) for name, age in ages.items() if age is not None}
    return {"snapshot-id": ref.snapshot_id, "type": ref.kind.value, **least, **known}
