"""Changes in REST's terms: requirements that the server checks, and updates that it applies."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, assert_never

from icewright.adapters.metadata.changes import ref_document
from icewright.core.errors import Refused
from icewright.core.table import FORMAT_V2, MAIN, Snapshot, SnapshotRef, TableMetadata
from icewright.ports import AddSnapshot, Change, RemoveSnapshots, RestoreSnapshots, SetRefs, SetStatistics

Json = dict[str, Any]
_NO_SNAPSHOT = -1


def requirements(base: TableMetadata, change: Change) -> list[Json]:
    """Return the requirements: the table's uuid and every ref are those of `base`."""
    required: list[Json] = [{"type": "assert-table-uuid", "uuid": base.table_uuid}]
    required += [{"type": "assert-ref-snapshot-id", "ref": r.name, "snapshot-id": r.snapshot_id} for r in base.refs]
    if isinstance(change, AddSnapshot) and change.branch not in {r.name for r in base.refs}:
        required.append({"type": "assert-ref-snapshot-id", "ref": change.branch, "snapshot-id": None})
    if isinstance(change, RestoreSnapshots | SetRefs):
        named = change.refs.keys() if isinstance(change, RestoreSnapshots) else {ref.name for ref in change.refs}
        names = sorted(named - {r.name for r in base.refs})
        required += [{"type": "assert-ref-snapshot-id", "ref": name, "snapshot-id": None} for name in names]
    if (schema_id := base.schema.get("schema-id")) is not None:
        required.append({"type": "assert-current-schema-id", "current-schema-id": schema_id})
    required.append({"type": "assert-default-spec-id", "default-spec-id": base.default_spec_id})
    return required


def updates(base: TableMetadata, change: AddSnapshot | RemoveSnapshots | SetRefs | SetStatistics) -> list[Json]:
    """Return the updates of a change. Raises `Refused` for a snapshot that a ref needs."""
    match change:
        case AddSnapshot():
            branch = next((r for r in base.refs if r.name == change.branch), None)
            snapshot = dict(change.snapshot)
            return [{"action": "add-snapshot", "snapshot": snapshot}, set_ref(change.branch, branch, snapshot)]
        case RemoveSnapshots():
            return _removal(base, change)
        case SetRefs():
            if MAIN in change.removed:
                raise Refused("main cannot be removed")
            removed = sorted(change.removed & {r.name for r in base.refs})
            drops: list[Json] = [{"action": "remove-snapshot-ref", "ref-name": name} for name in removed]
            return [*drops, *(set_ref(r.name, r, {"snapshot-id": r.snapshot_id}) for r in change.refs)]
        case SetStatistics():
            if change.snapshot_id not in base.by_id:
                raise Refused(f"statistics cannot be set: the table has no snapshot {change.snapshot_id}")
            files = (("statistics", change.statistics), ("partition-statistics", change.partition_statistics))
            return [
                {"action": f"set-{name}", "snapshot-id": change.snapshot_id, name: dict(file)}
                for name, file in files
                if file is not None
            ]
        case _:
            assert_never(change)


def set_ref(name: str, ref: SnapshotRef | None, snapshot: Mapping[str, Any]) -> Json:
    """Return the update that sets a ref to a snapshot, with the retention that the ref has."""
    retention = {"type": "branch"} if ref is None else ref_document(ref)
    return {"action": "set-snapshot-ref", "ref-name": name, **retention, "snapshot-id": snapshot["snapshot-id"]}


def _removal(base: TableMetadata, change: RemoveSnapshots) -> list[Json]:
    if MAIN in change.refs:
        raise Refused("main cannot be removed")
    ref_of_snapshot = {r.snapshot_id: r.name for r in base.refs if r.name not in change.refs}
    for snapshot_id in sorted(change.snapshot_ids & ref_of_snapshot.keys()):
        raise Refused(f"snapshot {snapshot_id} is still referenced by {ref_of_snapshot[snapshot_id]}")
    removed_ids = sorted(change.snapshot_ids & base.by_id.keys())
    actions: list[Json] = [{"action": "remove-snapshot-ref", "ref-name": name} for name in sorted(change.refs)]
    for action, files in (
        ("remove-statistics", base.statistics),
        ("remove-partition-statistics", base.partition_statistics),
    ):
        ids = sorted({f.snapshot_id for f in files} & change.snapshot_ids)
        actions += [{"action": action, "snapshot-id": snapshot_id} for snapshot_id in ids]
    if removed_ids:
        actions.append({"action": "remove-snapshots", "snapshot-ids": removed_ids})
    if change.specs:
        actions.append({"action": "remove-partition-specs", "spec-ids": sorted(change.specs)})
    if change.schemas:
        actions.append({"action": "remove-schemas", "schema-ids": sorted(change.schemas)})
    return actions


def has_landed(base: TableMetadata, now: TableMetadata, change: Change) -> bool:
    """Return whether the table shows that a change with a lost response was applied."""
    if now.table_uuid != base.table_uuid:
        return False
    match change:
        case AddSnapshot():
            return change.snapshot["snapshot-id"] in now.by_id
        case RemoveSnapshots():
            still_present = now.by_id.keys() & change.snapshot_ids or {r.name for r in now.refs} & change.refs
            return not still_present
        case RestoreSnapshots():
            ids = {snapshot["snapshot-id"] for snapshot in change.snapshots}
            return ids <= now.by_id.keys() and change.refs.keys() <= {r.name for r in now.refs}
        case SetRefs():
            return set(change.refs) <= set(now.refs) and not change.removed & {r.name for r in now.refs}
        case SetStatistics():
            return change.paths <= {file.path for file in (*now.statistics, *now.partition_statistics)}
        case _:
            assert_never(change)


def can_never_land(base: TableMetadata, now: TableMetadata) -> bool:
    """Return whether a request that may still be under way must fail: a requirement is broken."""
    return not set(_heads(base)) <= set(_heads(now))


def _heads(metadata: TableMetadata) -> list[tuple[str, int]]:
    return [(r.name, r.snapshot_id) for r in metadata.refs]


def lost_refs(
    replaced: TableMetadata, after: TableMetadata, change: RemoveSnapshots
) -> list[tuple[SnapshotRef, Snapshot]]:
    """Return refs set by others on removed snapshots, with the snapshot: servers drop such refs silently."""
    still_present = {r.name for r in after.refs} | change.refs
    return [
        (ref, replaced.by_id[ref.snapshot_id])
        for ref in replaced.refs
        if ref.name not in still_present and ref.snapshot_id in replaced.by_id
    ]


def restoring_request(
    after: TableMetadata, next_row_id: int | None, ref: SnapshotRef, snapshot: Json, now_ms: int
) -> Json:
    """Return the request that restores a lost ref with its snapshot.

    Iceberg's servers refuse a snapshot whose sequence number or time is older than the table's, so the restored
    snapshot gets current ones; its id, its manifest list and all of its files stay the same.
    """
    snapshot_again = {**snapshot, "timestamp-ms": now_ms}
    if after.format_version >= FORMAT_V2:
        snapshot_again["sequence-number"] = after.last_sequence_number + 1
        # one without a parent sets the table's number back
        snapshot_again.setdefault("parent-snapshot-id", _NO_SNAPSHOT)
    if next_row_id is not None:
        snapshot_again |= {"first-row-id": next_row_id, "added-rows": 0}  # its rows have ids, by its manifest list
    missing = ref.snapshot_id not in after.by_id
    added = [{"action": "add-snapshot", "snapshot": snapshot_again}] if missing else []
    return {
        "requirements": [
            {"type": "assert-table-uuid", "uuid": after.table_uuid},
            {"type": "assert-ref-snapshot-id", "ref": ref.name, "snapshot-id": None},
        ],
        "updates": [*added, set_ref(ref.name, ref, snapshot)],
    }
