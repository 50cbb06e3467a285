"""Application of catalog changes to metadata files.

Changes edit the JSON itself and not a client's model, so that fields of a newer spec survive a commit. Other fields and
snapshots are copied as bytes: a file of 250 MB costs little more than itself.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, assert_never

from icewright.adapters.metadata.document import OF_SNAPSHOT, Document, Editor
from icewright.adapters.metadata.restoring import restore
from icewright.core.errors import Refused
from icewright.core.table import FORMAT_V3, MAIN, SnapshotRef
from icewright.ports import AddSnapshot, Change, RemoveSnapshots, RestoreSnapshots, SetRefs

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
METADATA_LOG = 100  # Iceberg's default of write.metadata.previous-versions-max


def changed(document: Document, location: str, change: Change, now: datetime) -> Document:
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
            if not restore(new, change).anything:
                return document
        case SetRefs():
            if not _set_refs(new, change, now):
                return document
        case _:
            assert_never(change)
    log_length = str(new.get("properties", {}).get("write.metadata.previous-versions-max", ""))
    limit = int(log_length) if log_length.isdecimal() else METADATA_LOG
    updated = new.get("last-updated-ms", 0)
    log = [*new.get("metadata-log", []), {"metadata-file": location, "timestamp-ms": updated}]
    new.set("metadata-log", log[-max(1, limit) :])
    new.set("last-updated-ms", _update_time(new, now))
    return new.document


def _update_time(new: Editor, now: datetime) -> int:
    """Return the time of the change in milliseconds, which is never before that of the last one."""
    return max((now - _EPOCH) // timedelta(milliseconds=1), int(new.get("last-updated-ms", 0)))


def _remove_snapshots(new: Editor, change: RemoveSnapshots) -> None:
    removed = change.snapshot_ids
    if MAIN in change.refs:
        raise Refused("main cannot be removed")
    refs = {name: ref for name, ref in new.get("refs", {}).items() if name not in change.refs}
    referenced = {ref["snapshot-id"]: name for name, ref in refs.items()} | {new.get("current-snapshot-id", None): MAIN}
    for snapshot_id in removed & referenced.keys():
        raise Refused(f"snapshot {snapshot_id} is still referenced by {referenced[snapshot_id]}")
    new.set("refs", refs)
    for name in ("snapshots", "statistics", "partition-statistics"):
        if name in new.document or name == "snapshots":
            new.set(name, [item for item in new.items(name) if OF_SNAPSHOT.decode(item).snapshot_id not in removed])
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
    refs = dict(new.get("refs", {}))
    refs[change.branch] = {"type": "branch", **refs.get(change.branch, {}), "snapshot-id": snapshot["snapshot-id"]}
    new.set("refs", refs)
    if change.branch == MAIN:
        new.set("current-snapshot-id", snapshot["snapshot-id"])
        entry = {"snapshot-id": snapshot["snapshot-id"], "timestamp-ms": snapshot["timestamp-ms"]}
        new.set("snapshot-log", [*new.get("snapshot-log", []), entry])


def _set_refs(new: Editor, change: SetRefs, now: datetime) -> bool:
    """Set and remove refs; return whether anything changed. Raises `Refused` for a snapshot that is not there."""
    if MAIN in change.removed:
        raise Refused("main cannot be removed")
    current = new.get("current-snapshot-id", None)
    present = {OF_SNAPSHOT.decode(item).snapshot_id for item in new.items("snapshots")}
    before = new.get("refs", {MAIN: {"snapshot-id": current, "type": "branch"}} if current in present else {})
    refs = {name: ref for name, ref in before.items() if name not in change.removed}
    for ref in change.refs:
        if ref.snapshot_id not in present:
            raise Refused(f"{ref.kind} {ref.name} cannot be set: the table has no snapshot {ref.snapshot_id}")
        refs[ref.name] = ref_document(ref)
        if ref.name == MAIN and ref.snapshot_id != current:
            new.set("current-snapshot-id", ref.snapshot_id)
            entry = {"snapshot-id": ref.snapshot_id, "timestamp-ms": _update_time(new, now)}
            new.set("snapshot-log", [*new.get("snapshot-log", []), entry])
    if refs == before:
        return False
    new.set("refs", refs)
    return True


def ref_document(ref: SnapshotRef) -> dict[str, Any]:
    """Return a ref as the JSON of the spec."""
    ages = {"max-snapshot-age-ms": ref.max_snapshot_age, "max-ref-age-ms": ref.max_ref_age}
    least = {} if ref.min_snapshots_to_keep is None else {"min-snapshots-to-keep": ref.min_snapshots_to_keep}
    known = {name: age // timedelta(milliseconds=1) for name, age in ages.items() if age is not None}
    return {"snapshot-id": ref.snapshot_id, "type": ref.kind.value, **least, **known}
