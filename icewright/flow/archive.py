"""Old history into Iceberg tables, exactly once: planned, written, pruned; each step may be the last before a crash."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from icewright.core.errors import CommitConflict, CommitStateUnknown, InvariantViolated, LeaseLost
from icewright.core.runs import backoff
from icewright.flow.world import World
from icewright.ports import Archive, Batch, OldHistory
from icewright.ports.archive import SOURCES

TURN = timedelta(minutes=10)  # how long a process that archives keeps others from it
_LEASE = "archive"
_DAY, _DONE = "archive of the day", "done"  # a lease that nobody gives back: until the day is over all has gone
_ATTEMPTS = 5


@dataclass(frozen=True)
class Archiving:
    """Both sides, and the age at which history goes."""

    history: OldHistory
    archive: Archive
    after: timedelta


def archived(world: World, archiving: Archiving, before: datetime) -> Iterator[Batch]:
    """Carry batch after batch, those first that an earlier process left; each is done when it comes out.

    Whoever stops asking stops the work. Raises `LeaseLost` when another process archives, and what the ports raise:
    then the batch is taken up where it stands by whoever archives next.
    """
    _renewed(world)
    try:
        for left in archiving.history.unfinished():
            yield _carried(world, archiving, left)
        for source in SOURCES:
            while batch := _planned(world, archiving, source, before):
                yield _carried(world, archiving, batch)
    finally:
        world.store.release(_LEASE, world.trigger.holder)


def archive_due(world: World, archiving: Archiving) -> int:
    """One batch of what was old when the day began, unless another process is at it; returns how many rows went.

    By whole days: so each day's history goes at once, into few files, and the store is asked no more until the next.
    """
    now, holder = world.clock.now(), world.trigger.holder
    midnight = now.replace(hour=0, minute=0, second=0, microsecond=0)
    if not world.store.lease(_DAY, holder, now, now):
        return 0
    try:
        batch = next(archived(world, archiving, midnight - archiving.after), None)
    except LeaseLost:
        return 0
    if batch is None:
        world.store.lease(_DAY, _DONE, world.clock.now(), midnight + timedelta(days=1))
        return 0
    return batch.rows


def _renewed(world: World) -> None:
    now = world.clock.now()
    if not world.store.lease(_LEASE, world.trigger.holder, now, now + TURN):
        raise LeaseLost("another process archives now")


def _planned(world: World, archiving: Archiving, source: str, before: datetime) -> Batch | None:
    _renewed(world)
    return archiving.history.plan(source, before, world.clock.now())


def _carried(world: World, archiving: Archiving, batch: Batch) -> Batch:
    """From where it stands to its end: the store deletes nothing before the table has it."""
    _renewed(world)
    if not batch.written:
        _write(world, archiving, batch)
        archiving.history.written(batch)
    archiving.history.prune(batch)
    said: dict[str, Any] = {"source": batch.source, "rows": batch.rows, "batch": batch.batch_id}
    world.store.event("archived", world.clock.now(), **said)
    world.tell("archived", said)
    return batch


def _write(world: World, archiving: Archiving, batch: Batch) -> None:
    """Written again until the table is known to have it: writing looks for the batch first."""
    rows = archiving.history.rows(batch)
    if rows.num_rows != batch.rows:
        raise InvariantViolated(
            f"{batch.rows - rows.num_rows} of the {batch.rows} rows of archive batch {batch.batch_id} are gone from "
            "the store, and not by Icewright: nothing is archived before somebody has looked"
        )
    for attempt in range(1, _ATTEMPTS):
        try:
            return archiving.archive.write(batch, rows)
        except (CommitConflict, CommitStateUnknown):
            world.clock.sleep(backoff(attempt).total_seconds())
    return archiving.archive.write(batch, rows)
