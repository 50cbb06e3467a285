"""The lease of a running job on its table: renewed by heartbeats, checked before each commit."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime, timedelta

from icewright.core.errors import Cancelled, LeaseLost, StorageUnavailable
from icewright.flow.runtime import STORE_PATIENCE, Runtime
from icewright.ports import LeaseStatus

HEARTBEAT_SECONDS = 30


class Lease:
    """The exclusive right of a job to its table, with the job's time limit and the end of its maintenance window."""

    def __init__(self, runtime: Runtime, job_id: str, limit: timedelta, closing: datetime | None = None) -> None:
        self._runtime, self._job_id, self._limit, self._closing = runtime, job_id, limit, closing
        self._renewed = runtime.clock.now()
        self._until = self._renewed + limit

    def renew(self) -> LeaseStatus:
        """Renew the lease in the store and return its status."""
        now = self._runtime.clock.now()
        status = self._runtime.store.jobs.heartbeat(self._job_id, now)
        if status is not LeaseStatus.LOST:
            self._renewed = now
        return status

    def check(self) -> None:
        """Renew the lease. Raises `LeaseLost` when it is lost, `Cancelled` when the job must stop or is over its time.

        While the store is away, the lease stays valid for `STORE_PATIENCE` after the last renewal.
        """
        try:
            status = self.renew()
        except StorageUnavailable:
            if self._runtime.clock.now() - self._renewed > STORE_PATIENCE:
                raise
            status = LeaseStatus.HELD
        match status:
            case LeaseStatus.LOST:
                raise LeaseLost(f"job {self._job_id} does not hold its table any more")
            case LeaseStatus.CANCELLED:
                raise Cancelled("somebody asked it to stop")
            case LeaseStatus.HELD:
                pass
        if self._runtime.stopping():
            raise Cancelled("the process that runs it stops")
        now = self._runtime.clock.now()
        if self._closing is not None and now >= self._closing:
            raise Cancelled(f"its maintenance window ended at {self._closing:%Y-%m-%d %H:%M} UTC (windows_end: cancel)")
        if now >= self._until:
            raise Cancelled(f"it ran longer than execute.timeout_seconds ({self._limit.total_seconds():g})")

    def require_held(self) -> None:
        """Raise `LeaseLost` when another process owns the table by now; while the store is away the lease is held."""
        with suppress(StorageUnavailable):
            if self.renew() is LeaseStatus.LOST:
                raise LeaseLost(f"job {self._job_id} does not hold its table any more")


class NoLease(Lease):
    """The lease of a dry run, which changes nothing and needs no exclusive right."""

    def __init__(self) -> None:
        pass

    def check(self) -> None:
        """Do nothing, as a dry run may always go on."""

    def require_held(self) -> None:
        """Do nothing, as a dry run records nothing."""


@contextmanager
def lease_heartbeat(
    runtime: Runtime, job_id: str, limit: timedelta, closing: datetime | None = None
) -> Iterator[Lease]:
    """Hold the lease of a running job until the limit or `closing`; a thread renews the lease while the work blocks."""
    lease, stop = Lease(runtime, job_id, limit, closing), threading.Event()

    def renew_until_stopped() -> None:
        while not stop.wait(HEARTBEAT_SECONDS):
            try:
                if lease.renew() is LeaseStatus.LOST:
                    return
            except Exception:  # noqa: BLE001, S112 - the store is away for a moment: the lease outlives some beats
                continue

    thread = threading.Thread(target=renew_until_stopped, name=f"heartbeat {job_id}", daemon=True)
    thread.start()
    try:
        yield lease
    finally:
        stop.set()
        thread.join()
