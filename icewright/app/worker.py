"""The worker: runs queued jobs in threads, and gives up those that hang past their end.

One catalog does not take all slots while others have jobs.
A job that waits for an answer of a catalog or of storage, or for an executor of Spark, leaves its slot to another job
until it goes on.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial

from icewright.core.breakers import UNAVAILABLE
from icewright.core.errors import Cancelled, FaultOwner, IcewrightError, LeaseLost, StoreUnavailable, explained
from icewright.core.policy import TIMEOUT
from icewright.core.table import TableRef
from icewright.flow.breakers import awaited_resource, failing_resources, record_wait
from icewright.flow.execute import end_abandoned_job, end_interrupted_job
from icewright.flow.lease import Lease
from icewright.flow.requested import run_dequeued
from icewright.flow.runtime import Runtime
from icewright.ports import JobRow
from icewright.ports.work import WAITS_AFTER, SupervisedWork, WorkState

PATIENCE = timedelta(seconds=10)  # a thread without progress for so long, past the job's end, is given up
LOOK_AFTER = timedelta(seconds=5)  # without progress, after which the supervisor itself asks for the state of the lease
UNANSWERED = timedelta(seconds=60)  # after which a job that waits for a failing catalog or storage is given up
_SUPERVISE_EVERY = 1.0  # seconds


@dataclass(eq=False)
class RunningJob:
    """A job with its lease and its thread."""

    job: JobRow
    lease: Lease
    thread: threading.Thread = field(init=False)
    end_seen: float | None = None  # when the supervisor first saw that the job must end, in monotonic seconds
    looked: float | None = None  # when the supervisor asked for the state of the lease
    waits: bool = False  # for an answer of a catalog or of storage, or for Spark

    @property
    def state(self) -> WorkState:
        """Return what the job's threads do now."""
        return self.lease.work.state(str(self.job.ref))


class Worker:
    """Runs queued jobs, at most `slots` at the same time."""

    def __init__(
        self, runtime: Runtime, slots: int, done: Callable[[], None], seconds: Callable[[], float] = time.monotonic
    ) -> None:
        self.slots = slots
        self._runtime, self._done, self._seconds = runtime, done, seconds
        self._running: list[RunningJob] = []
        self._hanging: dict[TableRef, RunningJob] = {}  # given up, and their threads have not come back
        self._lock = threading.RLock()
        self._ended = threading.Condition(self._lock)

    @property
    def busy(self) -> int:
        """Return how many jobs the worker runs now."""
        with self._lock:
            return len(self._running)

    def start_queued(self) -> int:
        """Give up jobs that hang, and start queued jobs in the free slots; return how many were started."""
        self.supervise()
        with self._lock:
            waiting = sum(run.waits for run in self._running)
            free = self.slots - len(self._running) + min(waiting, self.slots)
        if free <= 0 or self._runtime.stopping():
            return 0
        jobs = self._dequeue(free)
        failures = [error for error in map(self._start, jobs) if error is not None]
        if failures:
            raise failures[0]
        return len(jobs)

    def _dequeue(self, free: int) -> Sequence[JobRow]:
        """Take queued jobs; the last slot goes to another catalog than the one that has all others, if that has jobs.

        So a catalog or a storage whose answers come slowly leaves a slot to the tables of others.
        """
        runtime, catalogs = self._runtime, sorted(self._runtime.scopes)
        dequeue = partial(runtime.store.jobs.dequeue, runtime.trigger.holder, now=runtime.clock.now())
        jobs = dequeue(catalogs, limit=free - 1) if free > 1 else ()
        if len(jobs) < free - 1:
            return jobs
        with self._lock:
            busy = {run.job.ref.catalog for run in self._running} | {job.ref.catalog for job in jobs}
        others = [name for name in catalogs if name not in busy] if len(busy) == 1 else []
        return [*jobs, *((others and dequeue(others, limit=1)) or dequeue(catalogs, limit=1))]

    def wait(self, timeout: timedelta) -> bool:
        """Wait for the running jobs; return whether all ended, or were given up, within the timeout."""
        until = time.monotonic() + timeout.total_seconds()
        while True:
            self.supervise()
            with self._ended:
                remaining = until - time.monotonic()
                if not self._running or remaining <= 0:
                    return not self._running
                self._ended.wait(min(remaining, _SUPERVISE_EVERY))

    def supervise(self) -> None:
        """Give up the jobs that had to end, by time-out, cancellation or without progress, and whose threads hang."""
        with self._lock:
            running = list(self._running)
            self._hanging = {ref: run for ref, run in self._hanging.items() if run.thread.is_alive()}
        for run in running:
            self._record_wait(run)
            reason = self._overdue(run)
            if reason is not None:
                self._give_up(run, reason)

    def give_up_all(self) -> None:
        """Give up every running job, as the process ends."""
        with self._lock:
            running = list(self._running)
        for run in running:
            self._give_up(run, run.lease.end_reason() or Cancelled("the process that runs it stops"))

    def states(self) -> Sequence[WorkState]:
        """Return what the running jobs do now, and those that were given up and whose threads hang."""
        with self._lock:
            runs = [*self._running, *(run for run in self._hanging.values() if run.thread.is_alive())]
        return [run.state for run in runs]

    def _start(self, job: JobRow) -> RuntimeError | None:
        """Start a job in a thread; return why the process may start none, after which the job is due again."""
        with self._lock:
            hanging = self._hanging.get(job.ref)
        if hanging is not None:  # a second thread would hang as well
            reason = Cancelled(f"an earlier job on the table, {hanging.job.job_id}, has not come back")
            with suppress(IcewrightError):  # the store is away: the reconciler ends the job
                end_abandoned_job(self._runtime, job, reason, hanging.state)
            return None
        limit = timedelta(seconds=TIMEOUT.default)  # until the job has read its settings
        run = RunningJob(
            job, Lease(self._runtime, job.job_id, limit, SupervisedWork(f"job {job.job_id}", self._seconds))
        )
        run.thread = threading.Thread(target=self._run, args=(run,), name=f"job {job.job_id}", daemon=True)
        with self._lock:
            self._running.append(run)
        try:
            run.thread.start()
        except RuntimeError as error:
            self._forget(run)
            with suppress(IcewrightError):  # the store is away: the reconciler ends the job
                end_interrupted_job(self._runtime, job, error, FaultOwner.ICEWRIGHT)
            return error
        return None

    def _run(self, run: RunningJob) -> None:
        details: Mapping[str, object] = {"job_id": run.job.job_id, "table": str(run.job.ref)}
        try:
            run_dequeued(self._runtime, run.job, run.lease)
        except StoreUnavailable as error:
            with suppress(IcewrightError):  # it is still away: the reconciler ends the job
                end_interrupted_job(self._runtime, run.job, error, error.owner)
        except Exception as error:  # noqa: BLE001 - a bug in one job ends no other
            if not run.lease.work.abandoned:
                message = explained(error)
                self._runtime.emit("job_crashed", {**details, "error": message})
        if run.lease.work.abandoned:
            self._runtime.emit("job_returned", details)
        self._forget(run)

    def _record_wait(self, run: RunningJob) -> None:
        """Note whether a job waits, and count a wait for its catalog or storage once for the breaker of that."""
        state = run.state if run.lease.work.idle_seconds() >= WAITS_AFTER else None
        waited, run.waits = run.waits, state is not None and state.is_waiting
        if state is not None and run.waits and not waited:
            record_wait(self._runtime, state, run.job.ref)

    def _unanswered(self, run: RunningJob) -> Cancelled | None:
        """Return why a job must end that waits for long for what is known not to answer others either."""
        if (state := run.state).idle_seconds < UNANSWERED.total_seconds():
            return None
        try:
            resource, failing = awaited_resource(self._runtime, state, run.job.ref), failing_resources(self._runtime)
        except IcewrightError:  # the store is away for a moment
            return None
        return Cancelled(f"{UNAVAILABLE}: {resource} does not answer") if resource in failing else None

    def _overdue(self, run: RunningJob) -> Cancelled | LeaseLost | None:
        """Return why a job must end when its thread has not ended in time and does nothing; None for other jobs."""
        idle, now = run.lease.work.idle_seconds(), self._seconds()
        if idle < LOOK_AFTER.total_seconds():
            run.end_seen = None
            return None
        if run.looked is None or now - run.looked >= LOOK_AFTER.total_seconds():
            run.looked = now
            with suppress(IcewrightError):  # the store is away for a moment
                run.lease.renew()
        reason = run.lease.end_reason() or self._unanswered(run)
        if reason is None:
            return None
        run.end_seen = now if run.end_seen is None else run.end_seen
        patience = PATIENCE.total_seconds()
        return reason if now - run.end_seen >= patience and idle >= patience else None

    def _give_up(self, run: RunningJob, reason: Cancelled | LeaseLost) -> None:
        run.lease.work.abandon()
        try:
            end_abandoned_job(self._runtime, run.job, reason, run.state)
        except IcewrightError as error:  # the store is away: the next round tries again, or the reconciler
            self._runtime.emit("abandon_failed", {"job_id": run.job.job_id, "error": str(error)})
            return
        with self._lock:
            if run.thread.is_alive():
                self._hanging[run.job.ref] = run
        self._forget(run)

    def _forget(self, run: RunningJob) -> None:
        """Free the slot of a job."""
        with self._ended:
            if run in self._running:
                self._running.remove(run)
            self._ended.notify_all()
        self._done()
