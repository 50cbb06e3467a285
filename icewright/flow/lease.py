"""Whether a job may go on: it holds its table still, nobody asked it to stop, and its time is not over."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

from icewright.core.errors import Cancelled, LeaseLost, StorageUnavailable
from icewright.flow.runtime import PATIENCE, Runtime
from icewright.ports import LeaseStatus

HEARTBEAT_SECONDS = 30


class Lease:
    """A job's hold on its table."""

    def __init__(self, runtime: Runtime, job_id: str, limit: timedelta) -> None:
        self._runtime, self._job_id, self._limit = runtime, job_id, limit
        self._renewed = runtime.clock.now()
        self._until = self._renewed + limit

    def renew(self) -> LeaseStatus:
        """Return what the store says of the hold, which is longer now if it is one."""
        now = self._runtime.clock.now()
        beat = self._runtime.store.jobs.heartbeat(self._job_id, now)
        if beat is not LeaseStatus.LOST:
            self._renewed = now
        return beat

    def check(self) -> None:
        """Renew the hold. Raises `LeaseLost` when it is gone, `Cancelled` when the job was asked to stop or is late.

        A store that is away for a moment takes nothing from anybody: until then the hold is good.
        """
        try:
            beat = self.renew()
        except StorageUnavailable:
            if self._runtime.clock.now() - self._renewed > PATIENCE:
                raise
            beat = LeaseStatus.HELD
        match beat:
            case LeaseStatus.LOST:
                raise LeaseLost(f"job {self._job_id} does not hold its table any more")
            case LeaseStatus.CANCELLED:
                raise Cancelled("somebody asked it to stop")
            case LeaseStatus.HELD:
                pass
        if self._runtime.stopping():
            raise Cancelled("the process that runs it stops")
        if self._runtime.clock.now() >= self._until:
            raise Cancelled(f"it ran longer than execute.timeout_seconds ({self._limit.total_seconds():g})")


class NoLease(Lease):
    """What a dry run has: it changes nothing, so it holds nothing."""

    def __init__(self) -> None:
        pass

    def check(self) -> None:
        """A dry run may always go on."""


@contextmanager
def lease_heartbeat(runtime: Runtime, job_id: str, limit: timedelta) -> Iterator[Lease]:
    """The lease of a running job, renewed beside the work, which may block for long."""
    lease, stop = Lease(runtime, job_id, limit), threading.Event()

    def beat() -> None:
        while not stop.wait(HEARTBEAT_SECONDS):
            try:
                if lease.renew() is LeaseStatus.LOST:
                    return
            except Exception:  # noqa: BLE001, S112 - the store is away for a moment: the lease outlives some beats
                continue

    thread = threading.Thread(target=beat, name=f"heartbeat {job_id}", daemon=True)
    thread.start()
    try:
        yield lease
    finally:
        stop.set()
        thread.join()
