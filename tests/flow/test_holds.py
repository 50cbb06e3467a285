"""What holds snapshots beside refs: readers' pins, and the snapshot that a running rewrite began on."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from icewright.core.errors import IcewrightError
from icewright.core.policy import Operation
from icewright.core.runs import JobState
from icewright.core.steps import ExpireSnapshots
from icewright.core.table import TableMetadata
from icewright.ports import SnapshotPin, StepRequest
from icewright.testing import NOW, REF
from tests.flow.bench import COMPACT, EXPIRE, OLD, Bench


def table(bench: Bench) -> TableMetadata:
    """A table whose snapshots are due for expiry."""
    ref = bench.table(ages=OLD)
    return bench.catalogs["lake"].load(ref)


def pin(snapshot_id: int, reader: str = "reader x", hours: float = 1) -> SnapshotPin:
    """A pin from now on."""
    return SnapshotPin(reader, snapshot_id, NOW, NOW + timedelta(hours=hours), "me")


def expired(bench: Bench) -> tuple[int, ...]:
    """What the engine was last asked to expire."""
    step = bench.engine.requests[-1].step
    assert isinstance(step, ExpireSnapshots)
    return step.snapshot_ids


def test_a_pin_is_seen_by_the_next_expiry(bench: Bench) -> None:
    """What a reader holds is not in the plan; once it ages out it is."""
    made = table(bench)
    bench.store.tables.record_listing("lake", bench.catalogs["lake"].pointers(), NOW)
    first, second = sorted(made.by_id)[:2]
    assert bench.store.pins.add(REF, made.table_uuid, pin(second))
    bench.run(EXPIRE)
    assert expired(bench) == (first,)
    bench.clock.advance(hours=2)
    bench.run(EXPIRE)
    assert second in expired(bench)


@pytest.mark.parametrize("fault", [None, IcewrightError("broken")])
def test_a_rewrite_holds_the_snapshot_that_it_began_on(bench: Bench, fault: Exception | None) -> None:
    """While compaction runs, its base is held, and no longer once it ended, however it ended."""
    bench.rot()
    made = table(bench)
    seen: list[list[SnapshotPin]] = []

    def before(request: StepRequest) -> None:
        seen.append(list(bench.store.pins.list(REF, made.table_uuid)))
        if fault is not None and request.operation is Operation.COMPACT:
            raise fault

    bench.before = before
    result = bench.run(COMPACT)
    assert result.state is (JobState.SUCCEEDED if fault is None else JobState.FAILED)
    ((held,),) = seen
    assert held.snapshot_id == made.current_snapshot_id
    assert str(result.job_id) in held.reader
    assert not bench.store.pins.list(REF, made.table_uuid)


def test_a_dry_run_holds_nothing(bench: Bench) -> None:
    """It changes nothing, the store included."""
    bench.rot()
    made = table(bench)
    bench.before = lambda _: pytest.fail("held") if bench.store.pins.list(REF, made.table_uuid) else None
    assert bench.run(COMPACT, dry_run=True).state is JobState.SUCCEEDED


def test_the_hold_of_a_rewrite_that_died_ages_out(bench: Bench) -> None:
    """A process that was killed leaves its hold behind, which keeps the base until the job's time would be over."""
    made = table(bench)
    bench.store.tables.record_listing("lake", bench.catalogs["lake"].pointers(), NOW)
    first, second = sorted(made.by_id)[:2]
    left = replace(pin(second, "the running rewrite of job x"), until=NOW + timedelta(seconds=3600))
    assert bench.store.pins.add(REF, made.table_uuid, left)
    bench.run(EXPIRE)
    assert expired(bench) == (first,)
    bench.clock.advance(seconds=3601)
    bench.run(EXPIRE)
    assert second in expired(bench)
