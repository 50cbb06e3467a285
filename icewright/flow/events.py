"""What others push, and what tables of commit reports say: whose it is, and into the store with it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from icewright.core.errors import BadEvent, IcewrightError
from icewright.core.events.directory import Directory
from icewright.core.events.fields import dotted_name
from icewright.core.events.model import Message, Name, TableTouched, message_id
from icewright.flow.runtime import Runtime
from icewright.ports import CommitReports, Receipt


@dataclass(frozen=True, slots=True)
class Taken:
    """What became of messages, and what of them is about no table of ours."""

    receipt: Receipt
    ignored: tuple[str, ...]


def take(runtime: Runtime, directory: Directory, messages: Sequence[Message], *, ask: bool = True) -> Taken:
    """Take messages in: all of them, or none and `BadEvent` says why."""
    found = []
    faults: list[str] = []
    for message in messages:
        try:
            found.append(directory.understood(message))
        except BadEvent as error:
            faults += error.faults
    if faults:
        raise BadEvent(tuple(dict.fromkeys(faults)))
    receipt = runtime.store.inbox.receive([f.message for f in found], runtime.clock.now(), ask=ask)
    return Taken(receipt, tuple(dict.fromkeys(said for one in found for said in one.ignored)))


def read_reports(runtime: Runtime, directory: Directory, reports: Mapping[str, CommitReports]) -> int:
    """Read what is new in each catalog's table of commit reports; returns how many tables were named.

    One that cannot be read is written down, and the others go on. After a gap the catalog itself is asked.
    """
    named = 0
    for catalog, table in reports.items():
        now = runtime.clock.now()
        last = runtime.store.catalogs.commit_reports_read_up_to(catalog)
        try:
            new = table.since(last)
        except IcewrightError as error:
            runtime.store.activity.record("reports_failed", now, catalog=catalog, error=str(error))
            runtime.emit("reports_failed", {"catalog": catalog, "error": str(error)})
            continue
        if new.snapshot_id == last:
            continue
        names = tuple(name for said in new.tables if (name := _name(directory, catalog, said)))
        if names:
            # by its id the same reading counts once, should this process end before the last line
            reading = message_id("reports", catalog, str(last), str(new.snapshot_id))
            runtime.store.inbox.receive([Message(reading, (TableTouched(names),))], now, ask=False)
        if new.gap:
            runtime.store.catalogs.detect_soon([catalog], now)
        runtime.store.catalogs.record_commit_reports_read(catalog, new.snapshot_id, now)
        named += len(names)
    return named


def _name(directory: Directory, catalog: str, said: str) -> Name | None:
    """`namespace.table`, with or without the catalog before it; nothing for what is no name."""
    first, _, rest = said.partition(".")
    full = said if directory.named(first) == catalog and "." in rest else f"{catalog}.{said}"
    try:
        name = dotted_name(full, "table_name")
    except BadEvent:
        return None
    return (catalog, *name[1:])
