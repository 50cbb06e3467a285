"""The end of a job whose thread hangs in a call that never returns: its results do not count any more."""

from __future__ import annotations

from contextlib import suppress

from icewright.core.errors import Cancelled, LeaseLost, StoreUnavailable
from icewright.core.runs import JobState
from icewright.flow.breakers import hanging_call, record_fault
from icewright.flow.execute import defer
from icewright.flow.runtime import Runtime
from icewright.ports import JobRow
from icewright.ports.work import WorkState

HANGS_AFTER = 5.0  # seconds without progress, after which a thread is said to hang


def end_abandoned_job(runtime: Runtime, job: JobRow, reason: Cancelled | LeaseLost, work: WorkState) -> None:
    """End a job that was given up, release its table, and record the operations that it had not ended as deferred.

    Where the thread of the work hangs, the call counts as a failure of what was called, for its breaker.
    A job that does not hold its table any more keeps the end that others gave to it. May be repeated, as the store may
    be away.
    """
    row = runtime.store.jobs.get(job.job_id)
    if row is None or row.state is not JobState.RUNNING:
        return
    hangs = work.idle_seconds >= HANGS_AFTER
    message = f"{reason}; its thread hangs in {work.site or 'a call outside of Icewright'}" if hangs else str(reason)
    cancelled = isinstance(reason, Cancelled)
    if not runtime.stopping():
        ended = {run["operation"] for run in runtime.store.runs.list(job.job_id)}
        remaining = [operation for operation in job.operations if operation not in ended]
        defer(runtime, job.ref, remaining, job.job_id, "", message)
    error = hanging_call(f"{job.ref}: {message}", work.site)
    summary = f"{'cancelled' if cancelled else 'stopped'}: {message}"
    state, now = JobState.CANCELLED if cancelled else JobState.INTERRUPTED, runtime.clock.now()
    runtime.store.jobs.finish(job.job_id, state, summary, now, error.owner if hangs else None)
    runtime.store.tables.schedule_evaluation([job.ref], now)
    runtime.record_event("job_finished", job.ref, {"job_id": job.job_id, "state": state, "summary": summary})
    if hangs:
        with suppress(StoreUnavailable):  # the job has ended, even if the breaker is not recorded
            record_fault(runtime, error, job.ref)
