"""The circuit breaker: a table whose jobs end badly again and again is paused until somebody has looked."""

from __future__ import annotations

from icewright.core.runs import JobState
from icewright.core.table import TableRef
from icewright.flow.runtime import Runtime


def break_off(runtime: Runtime, ref: TableRef, state: JobState, limit: int, said: str) -> None:
    """Pause the table when so many of its last jobs ended in this state."""
    count = runtime.store.jobs.count_consecutive(ref, state)
    row = runtime.store.tables.get(ref)
    if count >= limit and row is not None and not row.paused:
        runtime.store.tables.pause(ref, f"{count} jobs {said} in a row; `icewright resume {ref}` when mended")
        runtime.record_event("paused", ref, {"jobs": count, "state": state})
