"""Updates by which a REST server restores what an expiry removed.

Servers that build metadata as Iceberg's Java library does take a snapshot only if its sequence number is above the
table's last one, or if it has no parent; the table's last number is then the snapshot's own. So one request,
which the server applies whole or not at all, adds a placeholder snapshot without a parent, which sets the number back,
the old snapshots as they were, and another placeholder, which sets number and time to what they are now; then it
removes both placeholders.

History (the snapshot log) cannot be given back by any update of the protocol. Of format v3, Java takes no snapshot
whose `first-row-id` lies behind the table's `next-row-id`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any
from uuid import uuid4

import msgspec

from icewright.adapters.metadata.changes import first_time, missing_definitions, missing_snapshots, restore
from icewright.adapters.metadata.document import Document, Editor
from icewright.core.errors import Refused
from icewright.core.table import FORMAT_V3
from icewright.ports import RestoreSnapshots

Json = dict[str, Any]


def updates(document: Document, change: RestoreSnapshots) -> list[Json]:
    """Return the updates that restore the change's snapshots, refs and statistics; empty when all are present.

    Raises `Refused`.
    """
    current, restored = Editor(document), Editor(dict(document))
    restore(restored, change)
    snapshots = _addable(document, change)
    actions, final_actions = _add_snapshots(current, snapshots) if snapshots else ([], [])
    for name in ("statistics", "partition-statistics"):
        items = restored.items(name)
        added_items = items[: len(items) - len(current.items(name))]  # `restore` puts them first
        files = [msgspec.json.decode(item) for item in added_items]
        actions += [{"action": f"set-{name}", "snapshot-id": file["snapshot-id"], name: file} for file in files]
    current_refs = current.get("refs", {})
    refs = {
        name: ref for name, ref in restored.get("refs", {}).items() if name in change.refs and name not in current_refs
    }
    actions += [{"action": "set-snapshot-ref", "ref-name": name, **ref} for name, ref in refs.items()]
    return [*actions, *final_actions]


def placeholder_ids(actions: Sequence[Mapping[str, Any]]) -> set[int]:
    """Return the ids of the placeholder snapshots, which the updates add and remove again."""
    return {i for update in actions if update["action"] == "remove-snapshots" for i in update["snapshot-ids"]}


def unrestorable(document: Document, change: RestoreSnapshots) -> str:
    """Return what the server cannot restore, as `Catalog.unrestorable` says it.

    The text begins with `nothing:` when it would refuse everything.
    """
    try:
        snapshots = _addable(document, change)
        notes = list(restore(Editor(dict(document)), replace(change, history=())).left_out)
    except Refused as error:
        return f"nothing: {error}"
    if change.history and (log := Editor(document).get("snapshot-log", [])) and log[0] not in change.history[:-1]:
        notes.append(f"time travel to before {first_time(log)}: REST servers take no history back")
    if snapshots and Editor(document).get("format-version", 1) >= FORMAT_V3:
        notes.append("first-row-id and added-rows of the snapshots: the server gives new ones, and rows keep their ids")
    return "; ".join(notes)


def _addable(document: Document, change: RestoreSnapshots) -> list[Mapping[str, Any]]:
    """Return the snapshots to add.

    Raises `Refused` if their schemas or specs are missing: the server assigns those ids itself.
    """
    snapshots = missing_snapshots(document, change)
    for name, items in (missing_definitions(document, change) if snapshots else {}).items():
        ids = ", ".join(str(item.get("spec-id", item.get("schema-id"))) for item in items)
        where = Editor(document).get("location", "")
        raise Refused(
            f"{where}: the expiry removed {ids} of {name}, and REST servers renumber what is added; set "
            "expire_snapshots.clean_expired_metadata to false to be able to undo"
        )
    return snapshots


def _add_snapshots(current: Editor, snapshots: Sequence[Mapping[str, Any]]) -> tuple[list[Json], list[Json]]:
    """Return the updates that add the snapshots, and the updates that must come last."""
    version, last = current.get("format-version", 1), current.get("last-sequence-number", 0)
    rows = {"first-row-id": current.get("next-row-id", 0), "added-rows": 0} if version >= FORMAT_V3 else {}
    blank = {**snapshots[0], **rows, "timestamp-ms": current.get("last-updated-ms", 0)}
    blank.pop("parent-snapshot-id", None)
    placeholders: list[Json] = []

    def add_placeholder(number: int) -> Json:
        placeholders.append(
            blank | {"snapshot-id": uuid4().int >> 65} | ({"sequence-number": number} if version > 1 else {})
        )
        return _add(placeholders[-1])

    actions: list[Json] = []
    reached_number = last
    for snapshot in sorted(snapshots, key=_commit_order):
        number, _ = _commit_order(snapshot)
        if version > 1 and number <= reached_number and snapshot.get("parent-snapshot-id") is not None:
            actions.append(add_placeholder(number - 1))
        actions.append(_add({**snapshot, **rows}))
        reached_number = number
    set_reached_number = add_placeholder(last)
    ids = sorted(snapshot["snapshot-id"] for snapshot in placeholders)
    return actions, [set_reached_number, {"action": "remove-snapshots", "snapshot-ids": ids}]


def _commit_order(snapshot: Mapping[str, Any]) -> tuple[int, int]:
    return (snapshot.get("sequence-number") or 0, snapshot["timestamp-ms"])


def _add(snapshot: Mapping[str, Any]) -> Json:
    return {"action": "add-snapshot", "snapshot": dict(snapshot)}
