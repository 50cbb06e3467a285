"""Archive old history into Iceberg tables exactly once: plan, write, prune; a crash may follow each step."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

from icewright.core.cadence import Cadence
from icewright.core.errors import CommitConflict, CommitStateUnknown, InvariantViolated, LeaseLost
from icewright.flow.runtime import Runtime
from icewright.ports import Archive, Batch, OldHistory
from icewright.ports.archive import SOURCES

if TYPE_CHECKING:
    import pyarrow as pa

LEASE = timedelta(minutes=10)  # on archiving, so that one process archives at a time
_LEASE_NAME = "archive"
_DAY_LEASE, _DONE = "archive of the day", "done"  # held until midnight when the day's history is archived
_ATTEMPTS = 5


@dataclass(frozen=True)
class Archiving:
    """The store's old history, the archive that takes it, and the age at which history moves."""

    history: OldHistory
    archive: Archive
    after: timedelta


class LazyArchive:
    """An archive that is opened with the first batch."""

    def __init__(self, opened: Callable[[], Archive]) -> None:
        self._open = opened
        self._opened: Archive | None = None

    def write(self, batch: Batch, rows: pa.Table) -> None:
        """Add the rows, unless the archive table has the batch already."""
        if self._opened is None:
            self._opened = self._open()
        self._opened.write(batch, rows)

    def close(self) -> None:
        """Close the archive if it was opened."""
        if self._opened is not None:
            self._opened.close()


def archive_batches(runtime: Runtime, archiving: Archiving, before: datetime) -> Iterator[Batch]:
    """Move batch after batch, unfinished ones of earlier processes first; each batch is complete when it is yielded.

    Closing the iterator stops the work. Raises `LeaseLost` when another process archives, and the errors of the ports:
    the next process then continues the batch.
    """
    _renew_lease(runtime)
    try:
        for unfinished in archiving.history.unfinished():
            yield _move(runtime, archiving, unfinished)
        for source in SOURCES:
            while batch := _plan_batch(runtime, archiving, source, before):
                yield _move(runtime, archiving, batch)
    finally:
        runtime.store.leases.release(_LEASE_NAME, runtime.trigger.holder)


def archive_due(runtime: Runtime, archiving: Archiving) -> int:
    """Archive one batch of what was old at midnight; return the number of rows, 0 while another process archives.

    History moves by whole days, into few files; the store is not queried again before the next day.
    """
    now, holder = runtime.clock.now(), runtime.trigger.holder
    midnight = Cadence.DAILY.start(now)
    if runtime.store.leases.acquire(_DAY_LEASE, holder, now, now) != holder:
        return 0
    try:
        batch = next(archive_batches(runtime, archiving, midnight - archiving.after), None)
    except LeaseLost:
        return 0
    if batch is None:
        runtime.store.leases.acquire(_DAY_LEASE, _DONE, runtime.clock.now(), midnight + timedelta(days=1))
        return 0
    return batch.rows


def _renew_lease(runtime: Runtime) -> None:
    if not runtime.try_acquire_lease(_LEASE_NAME, LEASE):
        raise LeaseLost("another process archives now")


def _plan_batch(runtime: Runtime, archiving: Archiving, source: str, before: datetime) -> Batch | None:
    _renew_lease(runtime)
    return archiving.history.plan(source, before, runtime.clock.now())


def _move(runtime: Runtime, archiving: Archiving, batch: Batch) -> Batch:
    """Complete the batch from its present step; rows leave the store only when the archive table has them."""
    _renew_lease(runtime)
    if not batch.written:
        _write_until_known(runtime, archiving, batch)
        archiving.history.written(batch)
    archiving.history.prune(batch)
    details: dict[str, Any] = {"source": batch.source, "rows": batch.rows, "batch": batch.batch_id}
    runtime.store.activity.record("archived", runtime.clock.now(), **details)
    runtime.emit("archived", details)
    return batch


def _write_until_known(runtime: Runtime, archiving: Archiving, batch: Batch) -> None:
    """Write the batch and retry lost commits; each write looks for the batch first, so repeats are safe."""
    rows = archiving.history.rows(batch)
    if rows.num_rows != batch.rows:
        raise InvariantViolated(
            f"{batch.rows - rows.num_rows} of the {batch.rows} rows of archive batch {batch.batch_id} are gone from "
            "the store, and not by Icewright: nothing is archived until a person has looked"
        )
    write = partial(archiving.archive.write, batch, rows)
    runtime.retry(write, (CommitConflict, CommitStateUnknown), attempts=_ATTEMPTS)
