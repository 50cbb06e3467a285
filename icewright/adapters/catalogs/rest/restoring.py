"""Updates by which a REST server restores what an expiry removed.

Servers that build metadata as Iceberg's Java library does take a snapshot only if its sequence number is above the
table's last one, or if it has no parent; the table's last number is then the snapshot's own. So one request, which
the server applies whole or not at all, adds a bare snapshot without a parent that sets the number back, the old
snapshots as they were, and another bare one that sets number and time to what they are; then it removes both.

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
    now, after = Editor(document), Editor(dict(document))
    restore(after, change)
    snapshots = _addable(document, change)
    actions, bare = _added(now, snapshots) if snapshots else ([], [])
    for name in ("statistics", "partition-statistics"):
        back = after.items(name)[: len(after.items(name)) - len(now.items(name))]
        files = [msgspec.json.decode(item) for item in back]
        actions += [{"action": f"set-{name}", "snapshot-id": file["snapshot-id"], name: file} for file in files]
    current_refs = now.get("refs", {})
    refs = {
        name: ref for name, ref in after.get("refs", {}).items() if name in change.refs and name not in current_refs
    }
    actions += [{"action": "set-snapshot-ref", "ref-name": name, **ref} for name, ref in refs.items()]
    return [*actions, *bare]


def bare_snapshots(actions: Sequence[Mapping[str, Any]]) -> set[int]:
    """Return the ids of the snapshots that the updates add and remove again."""
    return {i for update in actions if update["action"] == "remove-snapshots" for i in update["snapshot-ids"]}


def left_out(document: Document, change: RestoreSnapshots) -> str:
    """Return in words what the server cannot restore.

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


def _added(now: Editor, snapshots: Sequence[Mapping[str, Any]]) -> tuple[list[Json], list[Json]]:
    """Return the updates that add the snapshots, and the updates that must come last."""
    version, last = now.get("format-version", 1), now.get("last-sequence-number", 0)
    rows = {"first-row-id": now.get("next-row-id", 0), "added-rows": 0} if version >= FORMAT_V3 else {}
    blank = {**snapshots[0], **rows, "timestamp-ms": now.get("last-updated-ms", 0)}
    blank.pop("parent-snapshot-id", None)
    bare: list[Json] = []

    def numbered(number: int) -> Json:
        bare.append(blank | {"snapshot-id": uuid4().int >> 65} | ({"sequence-number": number} if version > 1 else {}))
        return _add(bare[-1])

    actions: list[Json] = []
    reached = last
    for snapshot in sorted(snapshots, key=_place):
        number, _ = _place(snapshot)
        if version > 1 and number <= reached and snapshot.get("parent-snapshot-id") is not None:
            actions.append(numbered(number - 1))
        actions.append(_add({**snapshot, **rows}))
        reached = number
    ending = numbered(last)
    bare_ids = sorted(snapshot["snapshot-id"] for snapshot in bare)
    return actions, [ending, {"action": "remove-snapshots", "snapshot-ids": bare_ids}]


def _place(snapshot: Mapping[str, Any]) -> tuple[int, int]:
    return (snapshot.get("sequence-number") or 0, snapshot["timestamp-ms"])


def _add(snapshot: Mapping[str, Any]) -> Json:
    return {"action": "add-snapshot", "snapshot": dict(snapshot)}
