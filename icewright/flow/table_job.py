"""Jobs for work on one table that is no operation: an undo, a restore, a repair, an erasure or a copy."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from icewright.core.errors import Cancelled, LeaseLost, Refused
from icewright.core.policy import STALL
from icewright.core.runs import JobState
from icewright.core.table import TableRef
from icewright.flow.evaluate import evaluate_and_record
from icewright.flow.lease import Lease, why_unclaimed
from icewright.flow.runtime import Runtime
from icewright.ports.work import catalog_context

_TIME_LIMIT = timedelta(hours=2)


@dataclass(slots=True)
class TableJob:
    """A running job, which holds the table's lease. Its work sets `summary` and `result`, a JSON document."""

    job_id: str
    lease: Lease
    summary: str = ""
    result: Mapping[str, Any] | None = None


@contextmanager
def table_job(
    runtime: Runtime, ref: TableRef, table_uuid: str, options: Mapping[str, str], what: str, pool: str = "default"
) -> Iterator[TableJob]:
    """Run the block as a new job on the table. Raises `Refused` while another job works on the table."""
    now = runtime.clock.now()
    job_id = runtime.store.jobs.claim(ref, table_uuid, (), runtime.trigger, now, pool, options)
    if job_id is None:
        raise Refused(f"{ref}: {why_unclaimed(runtime, ref)}; there is no {what} before that")
    with running_job(runtime, ref, job_id, what, Lease(runtime, job_id, _TIME_LIMIT)) as job:
        yield job


@contextmanager
def running_job(runtime: Runtime, ref: TableRef, job_id: str, what: str, lease: Lease) -> Iterator[TableJob]:
    """Run the block as the work of a running job, and finish the job after it. Raises what the block raises."""
    lease.set_limits(_TIME_LIMIT, timedelta(seconds=STALL.default))
    runtime.record_event("job_started", ref, {"job_id": job_id, "operations": ()})
    state, summary = JobState.INTERRUPTED, ""
    with catalog_context(ref.catalog), lease.heartbeat():
        job = TableJob(job_id, lease)
        try:
            yield job
            if (result := job.result) is not None:
                runtime.retry_idempotent(lambda: runtime.store.jobs.record_result(job_id, result))
            state, summary = JobState.SUCCEEDED, job.summary
        except LeaseLost as error:
            summary = str(error)
            raise
        except Cancelled as error:
            state, summary = JobState.CANCELLED, f"cancelled: {error}"
            raise
        except Exception as error:
            state, summary = JobState.FAILED, f"{what}: {error}"
            raise
        finally:
            _finish(runtime, ref, job_id, state, summary)


def _finish(runtime: Runtime, ref: TableRef, job_id: str, state: JobState, summary: str) -> None:
    """Evaluate the table if the job succeeded, then finish the job."""
    try:
        if state is JobState.SUCCEEDED and ref.catalog in runtime.catalogs:
            runtime.retry_idempotent(lambda: evaluate_and_record(runtime, ref, runtime.clock.now()))
    finally:
        runtime.finish_job(ref, job_id, state, summary)
