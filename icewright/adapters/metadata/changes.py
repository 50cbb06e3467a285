"""Changes of a metadata file.

They are made on the JSON itself and not through a client's model, so that fields of a newer spec survive a commit.
What a change does not concern is carried over as the bytes that it is, snapshots too: a file of 250 MB costs little
more than itself.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, assert_never

from icewright.adapters.metadata.document import OF_SNAPSHOT, Document, Editor
from icewright.adapters.metadata.restoring import restore
from icewright.core.errors import Refused
from icewright.core.table import MAIN
from icewright.ports import AddSnapshot, Change, RemoveSnapshots, RestoreSnapshots

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
METADATA_LOG = 100  # Iceberg's default of write.metadata.previous-versions-max


def changed(document: Document, location: str, change: Change, now: datetime) -> Document:
    """Return the file after a change; `location` is where `document` stands. The argument is left as it is.

    It is what is returned when there is nothing to change. Raises `Refused`.
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
        case _:
            assert_never(change)
    kept = str(new.get("properties", {}).get("write.metadata.previous-versions-max", ""))
    limit = int(kept) if kept.isdecimal() else METADATA_LOG
    updated = new.get("last-updated-ms", 0)
    log = [*new.get("metadata-log", []), {"metadata-file": location, "timestamp-ms": updated}]
    new.set("metadata-log", log[-max(1, limit) :])
    new.set("last-updated-ms", max((now - _EPOCH) // timedelta(milliseconds=1), updated))
    return new.document


def _remove_snapshots(new: Editor, change: RemoveSnapshots) -> None:
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
            new.set(name, [item for item in new.items(name) if OF_SNAPSHOT.decode(item).snapshot_id not in gone])
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


def _add_snapshot(new: Editor, change: AddSnapshot) -> None:
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
