"""The circuit breaker: a table whose jobs end badly again and again is paused until somebody has looked."""

from __future__ import annotations

from icewright.core.runs import JobState
from icewright.core.table import TableRef
from icewright.flow.world import World


def break_off(world: World, ref: TableRef, state: JobState, limit: int, said: str) -> None:
    """Pause the table when so many of its last jobs ended in this state."""
    count = world.store.ended_in_a_row(ref, state)
    row = world.store.table(ref)
    if count >= limit and row is not None and not row.paused:
        world.store.pause(ref, f"{count} jobs {said} in a row; `icewright resume {ref}` when mended")
        world.report("paused", ref, {"jobs": count, "state": state})
