"""Commands about readers' pins: pin, unpin, pins."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Annotated

import typer
from rich.markup import escape

from icewright.app import output
from icewright.app.cli.base import Json, Table, app, known_table, opened_application
from icewright.core.errors import UsageError
from icewright.core.policy import MAX_PIN_AGE
from icewright.ports import SnapshotPin

Reader = Annotated[str, typer.Option("--reader", metavar="NAME", help="Who reads on from the snapshot.")]


@app.command()
def pin(
    table: Table,
    snapshot: Annotated[int, typer.Argument(metavar="SNAPSHOT", help="Id of the snapshot that was read last.")],
    reader: Reader,
    hours: Annotated[
        int | None, typer.Option("--hours", min=1, help="How long; default: expire_snapshots.max_pin_age_hours.")
    ] = None,
) -> None:
    """Keep a snapshot, and all later ones, for a streaming reader; a pin of the same reader moves."""
    with opened_application() as opened:
        runtime, row = opened.runtime, known_table(opened, table)
        metadata = runtime.catalog(row.ref).load(row.ref)
        if snapshot not in metadata.by_id:
            raise UsageError(f"{row.ref} has no snapshot {snapshot}; it may have been expired already")
        now = runtime.clock.now()
        knobs = runtime.policy().knobs_for(row.ref, metadata)
        until = now + timedelta(hours=min(hours or knobs[MAX_PIN_AGE], knobs[MAX_PIN_AGE]))
        made = SnapshotPin(_name(reader), snapshot, now, until, runtime.trigger.actor)
        if not runtime.store.pins.add(row.ref, metadata.table_uuid, made):
            raise UsageError(f"a job works on {row.ref} and may be expiring the snapshot: pin it when the job is done")
    output.OUT.print(
        f"{escape(made.reader)} holds snapshot {snapshot} of {escape(str(row.ref))} until {until:%Y-%m-%d %H:%M} UTC"
    )


@app.command()
def unpin(table: Table, reader: Reader) -> None:
    """Release the pin of a reader."""
    with opened_application() as opened:
        row = known_table(opened, table)
        if not opened.runtime.store.pins.remove(row.ref, _name(reader)):
            raise UsageError(f"{reader} holds no snapshot of {row.ref}; `icewright pins {row.ref}` lists who does")
    output.OUT.print(f"{escape(reader)} holds no snapshot of {escape(str(row.ref))} any more")


@app.command()
def pins(table: Table, as_json: Json = False) -> None:
    """Who holds snapshots of a table."""
    with opened_application() as opened:
        row = known_table(opened, table)
        metadata = opened.runtime.catalog(row.ref).load(row.ref)
        held = opened.runtime.store.pins.list(row.ref, metadata.table_uuid)
        now = opened.runtime.clock.now()
    if as_json:
        fields = ("reader", "snapshot_id", "pinned_at", "until", "author")
        output.print_json([{f: getattr(p, f) for f in fields} | {"aged_out": p.until <= now} for p in held])
        return
    lines = [(p.reader, p.snapshot_id, f"{p.until:%Y-%m-%d %H:%M}", p.author, _state(p, now)) for p in held]
    output.rows(f"pins of {row.ref}", ("who", "snapshot", "until (UTC)", "author", ""), lines)


def _state(pin: SnapshotPin, now: datetime) -> str:
    return "aged out" if pin.until <= now else ""


def _name(reader: str) -> str:
    if not reader.strip():
        raise UsageError("--reader: give the reader a name, such as the job's")
    return f"reader {reader.strip()}"
