"""Old history into Iceberg tables, exactly once: planned, written, pruned; each step may be the last before a crash."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from icewright.core.errors import CommitConflict, CommitStateUnknown, InvariantViolated, LeaseLost
from icewright.core.runs import backoff
from icewright.flow.runtime import Runtime
from icewright.ports import Archive, Batch, OldHistory
from icewright.ports.archive import SOURCES

if TYPE_CHECKING:
    import pyarrow as pa

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


class WhenNeeded:
    """An archive that is opened when the first batch goes there."""

    def __init__(self, opened: Callable[[], Archive]) -> None:
        self._open = opened
        self._opened: Archive | None = None

    def write(self, batch: Batch, rows: pa.Table) -> None:
        """Add the rows, unless the table has the batch."""
        if self._opened is None:
            self._opened = self._open()
        self._opened.write(batch, rows)

    def close(self) -> None:
        """Let go of what was opened."""
        if self._opened is not None:
            self._opened.close()


def archived(runtime: Runtime, archiving: Archiving, before: datetime) -> Iterator[Batch]:
    """Carry batch after batch, those first that an earlier process left; each is done when it comes out.

    Whoever stops asking stops the work. Raises `LeaseLost` when another process archives, and what the ports raise:
    then the batch is taken up where it stands by whoever archives next.
    """
    _renewed(runtime)
    try:
        for left in archiving.history.unfinished():
            yield _carried(runtime, archiving, left)
        for source in SOURCES:
            while batch := _planned(runtime, archiving, source, before):
                yield _carried(runtime, archiving, batch)
    finally:
        runtime.store.leases.release(_LEASE, runtime.trigger.holder)


def archive_due(runtime: Runtime, archiving: Archiving) -> int:
    """Return one batch of what was old when the day began, unless another process is at it; returns how many rows went.

    By whole days: so each day's history goes at once, into few files, and the store is asked no more until the next.
    """
    now, holder = runtime.clock.now(), runtime.trigger.holder
    midnight = now.replace(hour=0, minute=0, second=0, microsecond=0)
    if runtime.store.leases.acquire(_DAY, holder, now, now) != holder:
        return 0
    try:
        batch = next(archived(runtime, archiving, midnight - archiving.after), None)
    except LeaseLost:
        return 0
    if batch is None:
        runtime.store.leases.acquire(_DAY, _DONE, runtime.clock.now(), midnight + timedelta(days=1))
        return 0
    return batch.rows


def _renewed(runtime: Runtime) -> None:
    if not runtime.try_acquire_lease(_LEASE, TURN):
        raise LeaseLost("another process archives now")


def _planned(runtime: Runtime, archiving: Archiving, source: str, before: datetime) -> Batch | None:
    _renewed(runtime)
    return archiving.history.plan(source, before, runtime.clock.now())


def _carried(runtime: Runtime, archiving: Archiving, batch: Batch) -> Batch:
    """From where it stands to its end: the store deletes nothing before the table has it."""
    _renewed(runtime)
    if not batch.written:
        _write(runtime, archiving, batch)
        archiving.history.written(batch)
    archiving.history.prune(batch)
    said: dict[str, Any] = {"source": batch.source, "rows": batch.rows, "batch": batch.batch_id}
    runtime.store.activity.record("archived", runtime.clock.now(), **said)
    runtime.emit("archived", said)
    return batch


def _write(runtime: Runtime, archiving: Archiving, batch: Batch) -> None:
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
            runtime.clock.sleep(backoff(attempt).total_seconds())
    return archiving.archive.write(batch, rows)
