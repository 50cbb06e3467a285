"""What an expiry takes from a metadata file, and how it comes back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any

import msgspec

from icewright.adapters.metadata.document import OF_SNAPSHOT, Document, Editor, decode
from icewright.adapters.metadata.parsing import time_of
from icewright.core.errors import Refused
from icewright.core.table import MAIN
from icewright.ports import RemoveSnapshots, RestoreSnapshots

Json = Mapping[str, Any]
_STATISTICS = ("statistics", "partition-statistics")
_GAP = "other snapshots of that time are gone"
_DEFINITIONS = (("partition-specs", "spec-id", "partition spec"), ("schemas", "schema-id", "schema"))


@dataclass(frozen=True, slots=True)
class Restored:
    """Whether a restore brought anything back, and what it left out."""

    anything: bool
    left_out: tuple[str, ...]  # what did not, and why, in words


def restoration(content: bytes, location: str, change: RemoveSnapshots) -> RestoreSnapshots:
    """Return the change that puts back what `change` takes from the metadata file. Raises `MetadataUnreadable`."""
    old = Editor(decode(content, location))
    gone = change.snapshot_ids
    snapshots, statistics, of_partitions = (
        tuple(msgspec.json.decode(item) for item in old.items(name) if OF_SNAPSHOT.decode(item).snapshot_id in gone)
        for name in ("snapshots", *_STATISTICS)
    )
    log = old.get("snapshot-log", [])
    last = max((place for place, entry in enumerate(log) if entry["snapshot-id"] in gone), default=-1)
    return RestoreSnapshots(
        table_uuid=old.get("table-uuid", ""),
        snapshots=snapshots,
        refs={name: ref for name, ref in old.get("refs", {}).items() if name in change.refs},
        statistics=statistics,
        partition_statistics=of_partitions,
        specs=tuple(spec for spec in old.get("partition-specs", []) if spec.get("spec-id") in change.specs),
        schemas=tuple(schema for schema in old.get("schemas", []) if schema.get("schema-id") in change.schemas),
        history=tuple(log[: last + 2]) if last >= 0 else (),
    )


def left_out(document: Document, change: RestoreSnapshots) -> str:
    """Return what `restore` would leave out, in words; it begins with `nothing:` when it would refuse."""
    try:
        return "; ".join(restore(Editor(dict(document)), change).left_out)
    except Refused as error:
        return f"nothing: {error}"


def missing(document: Document, change: RestoreSnapshots) -> list[Json]:
    """Return the snapshots that are to come back, in the order of their commits.

    Raises `Refused` when the table that they were of is not this one any more.
    """
    now = Editor(document)
    where, uuid = now.get("location", ""), now.get("table-uuid", "")
    if change.table_uuid and uuid != change.table_uuid:
        raise Refused(f"{where}: it is another table now (uuid {uuid}, not {change.table_uuid})")
    there = {OF_SNAPSHOT.decode(item).snapshot_id for item in now.items("snapshots")}
    wanted = [snapshot for snapshot in change.snapshots if snapshot["snapshot-id"] not in there]
    last = now.get("last-sequence-number", 0)
    for snapshot in wanted:
        if (snapshot.get("sequence-number") or 0) > last:
            raise Refused(f"{where}: snapshot {snapshot['snapshot-id']} is newer than the table, which began anew")
    return wanted


def undefined(document: Document, change: RestoreSnapshots) -> dict[str, list[Json]]:
    """Partition specs and schemas that are to come back, by the field that holds them.

    Raises `Refused` when an id has another meaning by now: the snapshots could not be read by it.
    """
    now = Editor(document)
    found: dict[str, list[Json]] = {}
    for (name, key, kind), wanted in zip(_DEFINITIONS, (change.specs, change.schemas), strict=True):
        there = {item.get(key): item for item in now.get(name, [])}
        for item in wanted:
            if item[key] in there and _plain(there[item[key]]) != _plain(item):
                where = now.get("location", "")
                raise Refused(f"{where}: {kind} {item[key]}, by which the snapshots are read, is another one now")
        if absent := [item for item in wanted if item[key] not in there]:
            found[name] = absent
    return found


def restore(new: Editor, change: RestoreSnapshots) -> Restored:
    """Put back what is missing. Raises `Refused` when the snapshots would not be what they were."""
    before = dict(new.document)
    if wanted := missing(new.document, change):
        for name, items in undefined(new.document, change).items():
            new.set(name, [*new.items(name), *_raw(items)])
        new.set("snapshots", _merged(new.items("snapshots"), wanted))
    there = {OF_SNAPSHOT.decode(item).snapshot_id for item in new.items("snapshots")}
    for name, files in zip(_STATISTICS, (change.statistics, change.partition_statistics), strict=True):
        known = {OF_SNAPSHOT.decode(item).snapshot_id for item in new.items(name)}
        if back := [file for file in files if file["snapshot-id"] in there - known]:
            new.set(name, [*_raw(back), *new.items(name)])
    notes = [*_restore_refs(new, change, there), *_restore_history(new, change.history, there)]
    return Restored(new.document != before, tuple(notes))


def _merged(there: Sequence[msgspec.Raw], back: Sequence[Json]) -> list[msgspec.Raw]:
    """The snapshots in the order of their commits; neither those that are there nor those that return change theirs."""
    waiting = [(OF_SNAPSHOT.decode(item).place, item) for item in _raw(back)]
    waiting.reverse()
    merged: list[msgspec.Raw] = []
    for item in there:
        place = OF_SNAPSHOT.decode(item).place
        while waiting and waiting[-1][0] <= place:
            merged.append(waiting.pop()[1])
        merged.append(item)
    return [*merged, *(item for _, item in reversed(waiting))]


def _restore_refs(new: Editor, change: RestoreSnapshots, there: AbstractSet[int]) -> list[str]:
    current = new.get("current-snapshot-id", None)
    implied = {MAIN: {"snapshot-id": current, "type": "branch"}} if current in there else {}
    refs = new.get("refs", implied)
    back, notes = {}, []
    for name, ref in change.refs.items():
        called = f"{ref.get('type', 'ref')} {name}"
        if name in refs:
            if _plain(refs[name]) != _plain(ref):
                notes.append(f"{called}, as somebody has set {name} on snapshot {refs[name]['snapshot-id']} since")
        elif ref["snapshot-id"] not in there:
            notes.append(f"{called}, as its snapshot {ref['snapshot-id']} is gone by another commit")
        else:
            back[name] = ref
    if back:
        new.set("refs", {**refs, **back})
    return notes


def _restore_history(new: Editor, history: Sequence[Json], there: AbstractSet[int]) -> list[str]:
    """Put back entries of the snapshot log as long as no gap comes into it: time travel would read a wrong snapshot."""
    log = new.get("snapshot-log", [])
    *gone, stayed = history or ({},)
    if not gone or (log and log[0] in gone):
        return []
    back: list[Json] = []
    if log and log[0] == stayed:
        for entry in gone:
            if entry["snapshot-id"] in there:
                back.append(entry)
            else:
                back.clear()
        if back:
            new.set("snapshot-log", [*back, *log])
    return [] if len(back) == len(gone) else [f"time travel to before {since(back or log or [stayed])}: {_GAP}"]


def since(log: Sequence[Json]) -> str:
    """Return the time at which a snapshot log begins."""
    return time_of(log[0]["timestamp-ms"]).isoformat(timespec="seconds")


def _plain(item: Json) -> dict[str, Any]:
    """Without what writers may leave out."""
    return {key: value for key, value in item.items() if value not in (None, [], {})}


def _raw(items: Iterable[Json]) -> list[msgspec.Raw]:
    return [msgspec.Raw(msgspec.json.encode(item)) for item in items]
