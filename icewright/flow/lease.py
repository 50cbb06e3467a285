"""The lease of a running job on its table: renewed while the work makes progress, checked before each commit."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime, timedelta

from icewright.core.errors import Cancelled, LeaseLost, StorageUnavailable
from icewright.core.policy import STALL
from icewright.core.table import TableRef
from icewright.flow.runtime import STORE_PATIENCE, Runtime
from icewright.ports import LeaseStatus
from icewright.ports.work import SupervisedWork, current_work

HEARTBEAT_SECONDS = 30


class Lease:
    """The exclusive right of a job to its table, with the job's limits.

    They are its time, its time without progress, and the end of its maintenance window.
    """

    def __init__(self, runtime: Runtime, job_id: str, limit: timedelta, work: SupervisedWork | None = None) -> None:
        self.work = work or current_work() or SupervisedWork(f"job {job_id}")
        self._runtime, self.job_id = runtime, job_id
        self._began = self._renewed = runtime.clock.now()
        self._status = LeaseStatus.HELD
        self.set_limits(limit, timedelta(seconds=STALL.default))

    def set_limits(self, limit: timedelta, stall: timedelta, closing: datetime | None = None) -> None:
        """Set how long the job may run since its begin, how long without progress, and until when at most."""
        self._limit, self._stall, self._closing = limit, stall, closing

    def renew(self) -> LeaseStatus:
        """Renew the lease in the store and return its status."""
        now = self._runtime.clock.now()
        self._status = self._runtime.store.jobs.heartbeat(self.job_id, now)
        if self._status is not LeaseStatus.LOST:
            self._renewed = now
        return self._status

    def end_reason(self) -> Cancelled | LeaseLost | None:
        """Return why the job must end, by its last renewal, its limits and the process; None while it may go on."""
        match self._status:
            case LeaseStatus.LOST:
                return LeaseLost(f"job {self.job_id} does not hold its table any more")
            case LeaseStatus.CANCELLED:
                return Cancelled("it was asked to stop")
            case LeaseStatus.HELD:
                pass
        if self._runtime.stopping():
            return Cancelled("the process that runs it stops")
        now = self._runtime.clock.now()
        if self._closing is not None and now >= self._closing:
            return Cancelled(
                f"its maintenance window ended at {self._closing:%Y-%m-%d %H:%M} UTC (windows_end: cancel)"
            )
        if now - self._began >= self._limit:
            return Cancelled(f"it ran longer than execute.timeout_seconds ({self._limit.total_seconds():g})")
        if self.work.idle_seconds() >= self._stall.total_seconds():
            return LeaseLost(f"it made no progress for execute.stall_seconds ({self._stall.total_seconds():g})")
        return None

    def check(self) -> None:
        """Renew the lease. Raises `LeaseLost` when it is lost, `Cancelled` when the job must stop or is over its time.

        While the store is away, the lease stays valid for `STORE_PATIENCE` after the last renewal.
        """
        self.work.require_attended()
        if current_work() is self.work:  # and not a thread beside the work that watches it
            self.work.progress()
        try:
            self.renew()
        except StorageUnavailable:
            if self._runtime.clock.now() - self._renewed > STORE_PATIENCE:
                raise
        if (reason := self.end_reason()) is not None:
            raise reason

    def require_held(self) -> None:
        """Raise `LeaseLost` when another process owns the table by now; while the store is away the lease is held."""
        self.work.require_attended()
        with suppress(StorageUnavailable):
            if self.renew() is LeaseStatus.LOST:
                raise LeaseLost(f"job {self.job_id} does not hold its table any more")

    @contextmanager
    def heartbeat(self) -> Iterator[Lease]:
        """Make the block the lease's work, and renew the lease in a thread beside it while the work makes progress."""
        stop = threading.Event()

        def renew_until_stopped() -> None:
            while not stop.wait(HEARTBEAT_SECONDS):
                if self.work.abandoned or self.work.idle_seconds() >= self._stall.total_seconds():
                    return
                try:
                    if self.renew() is LeaseStatus.LOST:
                        return
                except Exception:  # noqa: BLE001, S112 - the store is away for a moment: the lease outlives some beats
                    continue

        thread = threading.Thread(target=renew_until_stopped, name=f"heartbeat {self.job_id}", daemon=True)
        with self.work.attached():
            thread.start()
            try:
                yield self
            finally:
                stop.set()
                thread.join()


class NoLease(Lease):
    """The lease of a dry run, which changes nothing and needs no exclusive right."""

    def __init__(self) -> None:
        pass

    def check(self) -> None:
        """Do nothing, as a dry run may always go on."""

    def require_held(self) -> None:
        """Do nothing, as a dry run records nothing."""


def why_unclaimed(runtime: Runtime, ref: TableRef) -> str:
    """Return why the store gave no job on the table."""
    row = runtime.store.tables.get(ref)
    if row is None:
        return f"the state store does not know {ref}: `icewright tables` looks for it"
    if row.job_id is None:
        return "another job held the table until now: try again"
    return f"another job holds the table: wait for job {row.job_id}, or cancel it"
