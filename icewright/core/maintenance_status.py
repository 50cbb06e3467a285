"""The maintenance status of a table in the terms of Amazon S3 Tables, for its clients."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from icewright.core.policy import Operation
from icewright.core.runs import REFUSED, History, LastRun, OperationState


class JobStatus(enum.StrEnum):
    """How the last run of an operation ended."""

    DISABLED = "Disabled"
    NOT_YET_RUN = "Not_Yet_Run"
    SUCCESSFUL = "Successful"
    FAILED = "Failed"


@dataclass(frozen=True, slots=True)
class MaintenanceStatus:
    """The status of one operation on one table."""

    status: JobStatus
    last_run: datetime | None = None
    message: str = ""  # why the last run failed


def maintenance_status(last: LastRun | None, *, enabled: bool) -> MaintenanceStatus:
    """Return the status of one operation; the status of a disabled operation still has the time of its last run.

    A run that found nothing to do was successful; one that was deferred, or refused by a safety rule, was not.
    """
    when = last.finished if last is not None else None
    if not enabled:
        return MaintenanceStatus(JobStatus.DISABLED, when)
    if last is None:
        return MaintenanceStatus(JobStatus.NOT_YET_RUN)
    match last.state:
        case OperationState.SKIPPED if last.reason.startswith(REFUSED):
            return MaintenanceStatus(JobStatus.FAILED, when, last.reason)
        case OperationState.COMMITTED | OperationState.SKIPPED:
            return MaintenanceStatus(JobStatus.SUCCESSFUL, when)
        case OperationState.FAILED | OperationState.DEFERRED:
            return MaintenanceStatus(JobStatus.FAILED, when, last.reason or str(last.state))


def table_status(history: History, enabled: Mapping[Operation, bool]) -> dict[Operation, MaintenanceStatus]:
    """Return the status of every operation of a table."""
    return {op: maintenance_status(history.get(op), enabled=enabled[op]) for op in Operation}
