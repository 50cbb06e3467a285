"""Jobs that a worker takes from the queue: operations, or work that no operation does and a person asked for."""

from __future__ import annotations

from contextlib import suppress

from icewright.core.errors import IcewrightError
from icewright.flow import copy, erase, layout, repair, restore
from icewright.flow.execute import execute_dequeued
from icewright.flow.lease import Lease
from icewright.flow.runtime import Runtime
from icewright.flow.table_job import running_job
from icewright.ports import JobRow

_KINDS = {  # by `JobRow.work`
    restore.RESTORE: restore.carry_out_dequeued,
    repair.REPAIR: repair.carry_out_dequeued,
    erase.ERASE: erase.carry_out_dequeued,
    copy.COPY: copy.carry_out_dequeued,
    layout.LAYOUTS: layout.carry_out_dequeued,
}


def run_dequeued(runtime: Runtime, job: JobRow, lease: Lease) -> None:
    """Run a dequeued job to its end under its lease; errors of the table are the job's state and are not raised."""
    what = job.work
    if what not in _KINDS:
        execute_dequeued(runtime, job, lease)
        return
    with suppress(IcewrightError), running_job(runtime, job.ref, job.job_id, what, lease) as running:
        running.summary = _KINDS[what](runtime, job, running)
