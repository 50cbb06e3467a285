"""Intake of change events: messages that others push, and Iceberg's tables of commit reports."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from icewright.core.errors import BadEvent, IcewrightError
from icewright.core.events.directory import Directory
from icewright.core.events.model import Message, Name, TableTouched, dotted_name, message_id
from icewright.flow.runtime import Runtime
from icewright.ports import CommitReports, Receipt


@dataclass(frozen=True, slots=True)
class ReceivedEvents:
    """The receipt for accepted messages, and the names in them that match no configured table."""

    receipt: Receipt
    ignored: tuple[str, ...]


def receive_events(runtime: Runtime, directory: Directory, messages: Sequence[Message]) -> ReceivedEvents:
    """Store all messages; when one cannot be understood, store none and raise `BadEvent` with the reasons."""
    resolved = []
    faults: list[str] = []
    for message in messages:
        try:
            resolved.append(directory.resolve(message))
        except BadEvent as error:
            faults += error.faults
    if faults:
        raise BadEvent(tuple(dict.fromkeys(faults)))
    receipt = runtime.store.inbox.receive([entry.message for entry in resolved], runtime.clock.now())
    return ReceivedEvents(receipt, tuple(dict.fromkeys(ignored for message in resolved for ignored in message.ignored)))


def read_reports(runtime: Runtime, directory: Directory, reports: Mapping[str, CommitReports]) -> int:
    """Read the new rows of each catalog's table of commit reports; return how many tables they name.

    A failed read is recorded, and the other catalogs go on. After a gap in the reports the catalog is listed soon.
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
        names = tuple(name for text in new.tables if (name := _name(directory, catalog, text)))
        if names:
            # the id makes a repeated reading count once, should this process end before the last line
            reading = message_id("reports", catalog, str(last), str(new.snapshot_id))
            runtime.store.inbox.receive([Message(reading, (TableTouched(names),))], now, ask=False)
        if new.gap:
            runtime.store.catalogs.detect_soon([catalog], now)
        runtime.store.catalogs.record_commit_reports_read(catalog, new.snapshot_id, now)
        named += len(names)
    return named


def _name(directory: Directory, catalog: str, text: str) -> Name | None:
    """Return the name from `namespace.table`, with or without a catalog; None for text that is no name."""
    first, _, remainder = text.partition(".")
    full = text if directory.named(first) == catalog and "." in remainder else f"{catalog}.{text}"
    try:
        name = dotted_name(full, "table_name")
    except BadEvent:
        return None
    return (catalog, *name[1:])
