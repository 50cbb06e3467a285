"""The circuit breaker of tables: a table whose jobs fail repeatedly is paused until a person resumes it."""

from __future__ import annotations

from icewright.core.runs import JobState
from icewright.core.table import TableRef
from icewright.flow.runtime import Runtime


def break_off(runtime: Runtime, ref: TableRef, state: JobState, limit: int, ending: str) -> None:
    """Pause the table when its last `limit` jobs ended in this state."""
    count = runtime.store.jobs.count_consecutive(ref, state)
    row = runtime.store.tables.get(ref)
    if count >= limit and row is not None and not row.paused:
        runtime.store.tables.pause(ref, f"{count} jobs {ending} in a row; `icewright resume {ref}` when mended")
        runtime.record_event("paused", ref, {"jobs": count, "state": state})
