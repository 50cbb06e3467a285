"""Faults of ours, tables that go, a store that is away for a moment: nothing begins anew for ever, nothing is lost."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from icewright.core.capacity import Limits
from icewright.core.errors import InvariantViolated, StorageUnavailable
from icewright.core.policy import Operation
from icewright.core.runs import FileAction, JobState
from icewright.core.table import TableRef
from icewright.flow.bulk import queue_manual_job
from icewright.flow.evaluate import evaluate_and_record
from icewright.flow.evaluator import evaluate_due
from icewright.flow.execute import execute, execute_dequeued
from icewright.flow.lease import Lease
from icewright.flow.operation import Request
from icewright.flow.queue import Planning
from icewright.flow.reconcile import Reconciler, reconcile_interrupted
from icewright.flow.runtime import STORE_PATIENCE, Runtime, Scope
from icewright.ports import LedgerState, StepRequest, Trigger, Unfinished
from icewright.testing import REF
from tests.flow.bench import COMPACT, EXPIRE, ORPHANS, Bench, job_states
from tests.flow.test_loops import looked, taken


def away(bench: Bench, times: int, *names: str) -> None:
    """Let the store be away for so many of these questions."""
    left = [times]

    def flaky(real: Callable[..., Any]) -> Callable[..., Any]:
        def asked(*arguments: Any, **options: Any) -> Any:
            if left[0]:
                left[0] -= 1
                raise StorageUnavailable("the state store failed: the database restarts")
            return real(*arguments, **options)

        return asked

    for name in names:
        part = getattr(bench.store, name.partition(".")[0])
        method = name.partition(".")[2]
        setattr(part, method, flaky(getattr(part, method)))


def begun(bench: Bench) -> tuple[Runtime, list[JobState]]:
    """One round of planning and working, whose faults end nothing; the states of all jobs."""
    runtime = bench.runtime()
    Planning(runtime).due()
    for job in taken(bench, runtime):
        try:
            execute_dequeued(runtime, job)
        except ValueError:
            continue
    return runtime, job_states(bench)


def test_a_table_that_is_gone_is_not_tried_again_and_again(bench: Bench) -> None:
    """Detection has not seen yet that it was dropped; whoever tries it first says that nothing is due."""
    ref = bench.table()
    looked(bench)
    del bench.catalog.tables[ref]
    assert [begun(bench)[1] for _ in range(3)] == [[JobState.SKIPPED]] * 3
    assert bench.store.planning.candidates(["lake"]) == []


def test_nothing_is_due_of_a_table_that_left_the_scope(bench: Bench) -> None:
    """Nor wrong with it: nobody will mend it, so no gauge and no rule may wait for that."""
    ref = bench.table()
    looked(bench)
    bench.store.tables.record_unreadable(ref, "broken", bench.clock.now())
    bench.scopes["lake"] = Scope(enabled=True, tables="other-*")
    bench.clock.advance(hours=30)
    assert evaluate_due(bench.runtime(), ["lake"]) == []
    row = bench.store.tables.get(ref)
    assert row is not None
    assert (row.due_since, row.error) == (None, None)
    assert bench.store.planning.candidates(["lake"]) == []


def test_a_fault_of_ours_before_the_work_pauses_the_table_in_the_end(bench: Bench) -> None:
    """It is a failure, and not an end of the process: the breaker counts it."""
    ref = bench.table()
    looked(bench)
    real = bench.store.activity.record

    def broken(kind: str, *arguments: Any, **details: Any) -> None:
        if kind == "operation_started":
            raise ValueError("a fault of ours")
        real(kind, *arguments, **details)

    bench.store.activity.record = broken  # type: ignore[method-assign]
    for _ in range(6):
        _, found = begun(bench)
    assert found == [JobState.FAILED] * 3
    job = bench.store.jobs.list()[0]
    assert job.summary == "unexpected ValueError: a fault of ours"
    row = bench.store.tables.get(ref)
    assert row is not None
    assert (row.paused or "").startswith("3 jobs failed in a row")


def test_a_broken_table_is_paused_though_the_store_blinks(bench: Bench) -> None:
    """Its run is written down, and nobody plans anything for it."""
    ref = bench.table()
    runtime = looked(bench)
    assert Planning(runtime).due() == 1

    def breaks(_: StepRequest) -> None:
        away(bench, 4, "tables.pause", "runs.record", "jobs.finish")
        raise InvariantViolated("rows are lost")

    bench.before = breaks
    (job,) = taken(bench, runtime)
    assert execute_dequeued(runtime, job).state is JobState.FAILED
    row = bench.store.tables.get(ref)
    assert row is not None
    assert (row.paused or "").endswith("rows are lost")
    assert len(bench.store.runs.list(job.job_id)) == 1
    assert Planning(bench.runtime()).due() == 0


def test_a_broken_table_that_cannot_be_paused_is_told(bench: Bench) -> None:
    """The store is away for longer than anybody waits."""
    bench.table()

    def breaks(_: StepRequest) -> None:
        away(bench, 10**6, "tables.pause")
        raise InvariantViolated("rows are lost")

    bench.before = breaks
    (outcome,) = bench.run(EXPIRE).outcomes
    assert "rows are lost; the table could not be paused: the state store failed" in outcome.reason


def test_what_a_finished_rewrite_says_outlives_a_blink_of_the_store(bench: Bench) -> None:
    """Written down once, though the first answer was lost, and nothing is planned again."""
    bench.rot(bench.table())
    runtime = looked(bench)
    assert Planning(runtime).due() == 1
    (job,) = taken(bench, runtime)
    real, asked = bench.store.runs.record, []

    def answer_lost(*arguments: Any) -> None:
        real(*arguments)
        asked.append(arguments)
        if len(asked) == 1:
            raise StorageUnavailable("the state store failed: the connection was lost")

    bench.store.runs.record = answer_lost  # type: ignore[assignment,method-assign]
    result = execute_dequeued(runtime, job)
    assert result.state is JobState.SUCCEEDED
    assert len(asked) == len(job.operations) + 1
    assert [run["operation"] for run in bench.store.runs.list(job.job_id)] == list(job.operations)
    assert Planning(bench.runtime()).due() == 0


def test_a_job_outlives_a_store_that_is_away_for_a_moment(bench: Bench) -> None:
    """Its hold is good for longer than that; after a minute nobody knows, and it stops."""
    bench.table()
    runtime = looked(bench)
    job_id = bench.store.jobs.claim(REF, "", (EXPIRE,), runtime.trigger, bench.clock.now())
    assert job_id is not None
    with Lease(runtime, job_id, timedelta(hours=1)).heartbeat() as lease:
        away(bench, 2, "jobs.heartbeat")
        lease.check()
        bench.clock.advance(seconds=STORE_PATIENCE.total_seconds() + 1)
        with pytest.raises(StorageUnavailable):
            lease.check()
        lease.check()


def test_one_odd_table_keeps_no_others_deletions_waiting(bench: Bench) -> None:
    """Its plans stay in the ledger, and why is told."""
    runtime = bench.runtime()
    names = [bench.table(name) for name in ("a", "b")]
    looked(bench)
    for ref in names:
        _planned(bench, EXPIRE, ref=ref)
    resumed = []

    def resume(unfinished: Unfinished, **_: bool) -> Any:
        resumed.append(unfinished.ref)
        raise ValueError("a fault of ours")

    engine = SimpleNamespace(resume=resume)
    said = reconcile_interrupted(replace(runtime, engine=engine))
    assert resumed == names
    assert all(line.endswith("wait: unexpected ValueError: a fault of ours") for line in said)


@pytest.mark.parametrize(
    ("operations", "kind", "said", "enabled", "resumed"),
    [
        ((ORPHANS,), "service", "true", True, True),
        ((ORPHANS,), "service", "false", True, False),
        ((ORPHANS,), "service", "true", False, False),
        ((ORPHANS,), "manual", "true", False, True),
        ((EXPIRE, ORPHANS), "service", "false", False, True),
    ],
)
def test_orphans_wait_where_nobody_removes_them_any_more(
    bench: Bench, operations: tuple[Operation, ...], kind: str, said: str, enabled: bool, resumed: bool
) -> None:
    """No commit owes their deletion; what a person asked for goes on, and what an expiry may have let go of too."""
    bench.table()
    looked(bench)
    _planned(bench, *operations, kind=kind)
    bench.settings = {"remove_orphans.mode": "delete"}
    properties = {"icewright.remove_orphans.enabled": said}
    bench.catalog.put(replace(bench.catalog.load(REF), properties=properties))
    bench.enabled = enabled
    asked = []

    def resume(unfinished: Unfinished, **_: bool) -> Any:
        asked.append(unfinished.operations)
        raise StorageUnavailable("away")

    Reconciler(bench.runtime(engine=SimpleNamespace(resume=resume))).due()
    assert bool(asked) is resumed


def _planned(bench: Bench, *operations: Operation, kind: str = "service", ref: TableRef = REF) -> None:
    """A job that ended after it had planned a deletion."""
    row, now = bench.store.tables.get(ref), bench.clock.now()
    assert row is not None
    job_id = bench.store.jobs.claim(ref, row.table_uuid or "", operations, Trigger(kind, "me", "host:1:2"), now)
    assert job_id is not None
    bench.store.ledger.plan(job_id, ref, [FileAction("s3://lake/one.parquet", 1, "data")], LedgerState.PLANNED, now)
    bench.store.jobs.finish(job_id, JobState.FAILED, "", now)


def test_a_pass_begins_nothing_outside_of_windows(bench: Bench) -> None:
    """Its jobs may have waited for hours for those before them; and none takes the place of what a person queued."""
    first, second = bench.table("aaa"), bench.table("bbb")
    bench.limits = Limits(total=4, per_worker=1)
    bench.settings |= {"windows": "11:00-12:05"}  # it is 12:00

    def long(request: StepRequest) -> None:
        waits = bench.store.tables.get(second if request.base.ref == first else first)
        assert waits is not None
        if len(bench.asked) == 1:
            assert queue_manual_job(bench.runtime(), waits, (COMPACT,), {})
            bench.clock.advance(hours=3)

    bench.before = long
    result = bench.cycle()
    assert len(bench.asked) == 1
    assert "outside of its maintenance window" in "".join(job.reason for job in result.jobs)
    assert sorted(job_states(bench)) == [JobState.QUEUED, JobState.SUCCEEDED]


def test_what_a_person_queued_gives_way_to_a_person_alone(bench: Bench) -> None:
    """A pass that comes to the table finds it held; whoever runs something by hand does not wait behind the queue."""
    bench.table()
    runtime = looked(bench)
    row = bench.store.tables.get(REF)
    assert row is not None
    job_id = queue_manual_job(runtime, row, (COMPACT,), {})
    held = f"another job holds the table: wait for job {job_id}, or cancel it"
    assert execute(runtime, Request(REF, (EXPIRE,))).reason == held
    manual = replace(runtime, trigger=replace(runtime.trigger, kind="manual"))
    assert execute(manual, Request(REF, (EXPIRE,), manual=True)).state is JobState.SUCCEEDED
    given_way = bench.store.jobs.get(job_id or "")
    assert given_way is not None
    assert given_way.state is JobState.CANCELLED


def test_knobs_of_one_job_do_not_outlive_it(bench: Bench) -> None:
    """The table is judged afterwards by what its policies say."""
    bench.rot(bench.table())
    runtime = looked(bench)
    row = bench.store.tables.get(REF)
    assert row is not None
    assert queue_manual_job(runtime, row, (COMPACT,), {"expire_snapshots.retention_hours": 20000, "importance": "low"})
    (job,) = taken(bench, runtime)
    assert execute_dequeued(runtime, job).state is JobState.SUCCEEDED
    (candidate,) = bench.store.planning.candidates(["lake"])
    assert candidate.importance == "normal"
    assert EXPIRE in candidate.due_operations


def test_one_read_that_failed_makes_nobody_wait_anew(bench: Bench) -> None:
    """Since when something is due stays; until the table can be read again, nothing is done."""
    ref = bench.table()
    looked(bench)
    (before,) = bench.store.planning.candidates(["lake"])
    bench.clock.advance(hours=25)
    bench.files.broken[ref] = StorageUnavailable("throttled")
    assert evaluate_and_record(bench.runtime(), ref, bench.clock.now()) is None
    assert bench.store.planning.candidates(["lake"]) == []
    bench.clock.advance(hours=1)
    del bench.files.broken[ref]
    assert evaluate_and_record(bench.runtime(), ref, bench.clock.now()) is not None
    (after,) = bench.store.planning.candidates(["lake"])
    assert after.due_operations[EXPIRE].since == before.due_operations[EXPIRE].since
