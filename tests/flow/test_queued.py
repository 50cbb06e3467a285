"""What comes up between the plan, the worker and the end of a job; and what a job that was stopped leaves."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import QueuePool

from icewright.core.capacity import Limits, PoolLimits
from icewright.core.errors import CommitConflict, IcewrightError, MetadataUnreadable, StorageUnavailable
from icewright.core.runs import JobState, OperationState
from icewright.flow.bulk import queue_manual_job
from icewright.flow.execute import JobResult, execute_dequeued
from icewright.flow.queue import Planning, plan_now
from icewright.flow.reconcile import Reconciler
from icewright.flow.runtime import Runtime, Scope
from icewright.ports import FleetPause, ProcessRow, StepRequest
from icewright.testing import NOW, REF
from tests.flow.bench import COMPACT, EXPIRE, MANIFESTS, Bench, job_states, states
from tests.flow.test_loops import looked, other, taken


def _paused(bench: Bench) -> None:
    bench.store.tables.pause(REF, "stop")


def _late(bench: Bench) -> None:
    bench.clock.advance(hours=3)


def _disabled(bench: Bench) -> None:
    bench.enabled = False


def _left(bench: Bench) -> None:
    bench.scopes["lake"] = Scope(enabled=True, tables="other-*")


def cancel(bench: Bench, request: StepRequest) -> None:
    """Somebody cancels the job while it works."""
    bench.store.jobs.request_cancel(request.job_id, bench.clock.now())
    request.check()


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (_paused, "paused: stop"),
        (_late, "outside of its maintenance window, which opens 2026-11-22 11:00 UTC"),
        (_disabled, "catalog lake is not enabled any more"),
        (_left, "the table is not in the scope of catalog lake any more"),
    ],
)
def test_a_queued_job_asks_again_before_it_begins(bench: Bench, change: Callable[[Bench], None], reason: str) -> None:
    """Whatever forbids the work when a worker takes it ends the job, which changes nothing."""
    bench.table()
    bench.settings |= {"windows": "11:00-12:05"}  # it is 12:00
    assert Planning(looked(bench)).due() == 1
    change(bench)
    runtime = bench.runtime()
    (job,) = taken(bench, runtime)
    result = execute_dequeued(runtime, job)
    assert (result.state, result.reason) == (JobState.CANCELLED, reason)
    assert bench.asked == []
    assert job_states(bench) == [JobState.CANCELLED]
    assert bench.store.tables.get(REF).job_id is None  # type: ignore[union-attr]


def test_nothing_begins_while_everything_is_paused(bench: Bench) -> None:
    """Planner, worker, cycle, a person's run and the reconciler wait, and each says who paused the fleet and why."""
    bench.table()
    runtime = looked(bench)
    planning = Planning(runtime)
    assert planning.due() == 1
    (job,) = taken(bench, runtime)
    bench.store.fleet.begin(FleetPause("an incident", "ada", NOW))
    reason = "everything is paused by ada: an incident"
    assert execute_dequeued(runtime, job).reason == reason
    assert planning.due() == 0
    assert {d.reason for d in plan_now(runtime, ["lake"]).deferred} == {reason}
    assert bench.run(EXPIRE, force=True).reason == reason
    assert bench.cycle().jobs == ()
    bench.store.fleet.end()
    assert planning.due() == 1


@pytest.mark.parametrize(
    ("windows", "end"),
    [
        ("11:00-12:05", "2026-11-21 12:05"),
        ("sat 22:00-06:00 Europe/Berlin", "2027-03-28 04:00"),  # a night of seven hours
        ("sat 22:00-06:00 Europe/Berlin", "2027-10-31 05:00"),  # a night of nine hours
    ],
)
@pytest.mark.parametrize(
    ("windows_end", "manual", "state"),
    [
        ("finish", False, JobState.SUCCEEDED),
        ("cancel", False, JobState.CANCELLED),
        ("cancel", True, JobState.SUCCEEDED),
    ],
)
def test_the_end_of_a_window_may_cancel_running_work(
    bench: Bench, windows: str, end: str, windows_end: str, manual: bool, state: JobState
) -> None:
    """With `windows_end: cancel` an automatic job ends before its next step; a job of a person is not bound."""
    bench.clock.time = datetime.fromisoformat(end).replace(tzinfo=UTC) - timedelta(minutes=5)
    bench.rot(bench.table())
    bench.settings |= {"windows": windows, "windows_end": windows_end}
    runtime = looked(bench)
    if manual:
        row = bench.store.tables.get(REF)
        assert row is not None
        queue_manual_job(runtime, row, (COMPACT, MANIFESTS), {})
    else:
        assert Planning(runtime).due() == 1

    def outlast_window(_: StepRequest) -> None:
        bench.clock.advance(minutes=10)

    bench.after = outlast_window
    (job,) = taken(bench, runtime)
    result = execute_dequeued(runtime, job)
    assert result.state is state
    if state is JobState.CANCELLED:
        assert f"its maintenance window ended at {end} UTC" in result.reason


def test_what_a_person_asks_for_runs_outside_of_windows(bench: Bench) -> None:
    """Only a pause holds it, unless it is forced."""
    bench.table()
    bench.settings |= {"windows": "01:00-02:00"}
    runtime = looked(bench)
    assert bench.run(EXPIRE).state is JobState.SUCCEEDED
    assert taken(bench, runtime) == []


@pytest.mark.parametrize("error", [MetadataUnreadable("broken"), CommitConflict("a writer was first")])
def test_nobody_plans_between_a_job_and_its_evaluation(bench: Bench, error: IcewrightError) -> None:
    """A job that came to nothing is not begun again at once by a process that plans before its table was judged."""
    bench.table()
    runtime = looked(bench)
    assert Planning(runtime).due() == 1
    (job,) = taken(bench, runtime)

    def fails(_: StepRequest) -> None:
        raise error

    bench.before = fails
    facts, elsewhere = bench.files.facts, Planning(other(bench))
    bench.store.leases.release("plan", runtime.trigger.holder)

    def planned_meanwhile(*of: object) -> object:
        elsewhere.due()
        return facts(*of)  # type: ignore[arg-type]

    bench.files.facts = planned_meanwhile  # type: ignore[assignment,method-assign]
    execute_dequeued(runtime, job)
    assert taken(bench, runtime) == []
    assert len(bench.store.jobs.list()) == 1


def rounds(bench: Bench, worker: Runtime, planning: Planning) -> list[JobResult]:
    """What becomes of jobs as they are taken and planned, again and again."""
    found = []
    for _ in range(10):
        found += [execute_dequeued(worker, job) for job in taken(bench, worker)]
        bench.clock.advance(seconds=3)
        planning.due()
    return found


@pytest.mark.parametrize("how", ["its windows are new", "the worker's configuration is older"])
def test_what_is_refused_is_not_planned_again_at_once(bench: Bench, how: str) -> None:
    """Whoever plans knows of new windows by then, or the operation cools down: no job after job for nothing."""
    bench.table()
    runtime = looked(bench)
    planning = Planning(runtime)
    assert planning.due() == 1
    if how == "its windows are new":
        bench.settings |= {"windows": "01:00-02:00"}
        worker = bench.runtime()
    else:
        worker = replace(runtime, scopes={"lake": Scope(enabled=False)})
    assert {result.state for result in rounds(bench, worker, planning)} == {JobState.CANCELLED}
    assert job_states(bench) == [JobState.CANCELLED]
    assert bench.asked == []


def test_a_cancelled_job_puts_off_what_it_had_not_begun(bench: Bench) -> None:
    """Its later operations do not come back at once as a job of their own."""
    bench.rot(bench.table())
    bench.settings |= {"rewrite_manifests.enabled": False}
    runtime = looked(bench)
    planning = Planning(runtime)
    assert planning.due() == 1
    bench.before = lambda request: cancel(bench, request)
    deferral = {COMPACT: OperationState.DEFERRED, EXPIRE: OperationState.DEFERRED}
    assert [states(result) for result in rounds(bench, runtime, planning)] == [deferral]
    assert len(bench.asked) == 1


def test_what_somebody_cancelled_does_not_begin_again_at_once(bench: Bench) -> None:
    """The operation cools down as after a run."""
    bench.table()
    runtime = looked(bench)
    planning = Planning(runtime)
    assert planning.due() == 1
    bench.before = lambda request: cancel(bench, request)
    assert [result.state for result in rounds(bench, runtime, planning)] == [JobState.CANCELLED]
    assert len(bench.asked) == 1


def test_a_job_that_a_service_stops_begins_again(bench: Bench) -> None:
    """It was not the table's work that came to nothing: the next service has it at once."""
    bench.table()
    runtime = looked(bench)
    assert Planning(runtime).due() == 1
    bench.before = lambda request: request.check()
    (job,) = taken(bench, runtime)
    stopping = bench.runtime(stopping=lambda: True)
    assert execute_dequeued(stopping, job).state is JobState.CANCELLED
    assert Planning(runtime).due() == 1


def test_a_silent_process_holds_no_pool_down(bench: Bench) -> None:
    """A worker killed under load said last that its Spark is full: what others say counts."""
    bench.limits = Limits(9, pools={"default": PoolLimits(4)})
    planning = Planning(looked(bench))
    full = {"cores": 2, "active_tasks": 2, "pending_tasks": 50, "longest_wait_seconds": 40.0}
    idle = {"cores": 2, "active_tasks": 0, "pending_tasks": 0, "longest_wait_seconds": 0.0}
    bench.store.processes.record_heartbeat(
        ProcessRow("killed:1:1", "worker", NOW, NOW, 2, {"pools": {"default": full}})
    )
    planning.due()
    assert bench.store.planning.pool_limits()["default"] < 4
    for _ in range(12):
        bench.clock.advance(hours=1)
        bench.store.processes.record_heartbeat(
            ProcessRow("new:1:1", "worker", NOW, bench.clock.now(), 2, {"pools": {"default": idle}})
        )
        planning.due()
    assert bench.store.planning.pool_limits()["default"] == 4


def test_jobs_of_a_catalog_that_is_gone_leave_their_places(bench: Bench) -> None:
    """A day after anybody was to ask it, what waits for its tables is cancelled, and others have the room."""
    for number in range(4):
        bench.table(f"p{number}", catalog="pond")
    bench.table()
    bench.limits = Limits(4)
    looked(bench)
    bench.store.tables.pause(REF, "later")
    assert Planning(bench.runtime()).due() == 4
    del bench.catalogs["pond"]
    bench.store.tables.pause(REF, None)
    runtime = bench.runtime()
    settling = Reconciler(runtime)
    settling.due()
    assert job_states(bench) == [JobState.QUEUED] * 4
    bench.clock.advance(days=2)
    settling.due()
    assert job_states(bench) == [JobState.CANCELLED] * 4
    assert "not configured any more" in str(bench.store.activity.list(limit=1))
    assert Planning(runtime).due() == 1


def test_failures_of_an_earlier_table_break_nothing_off(bench: Bench) -> None:
    """A table that was made anew under the name begins without them."""

    def fails(_: StepRequest) -> None:
        raise MetadataUnreadable("broken")

    bench.before = fails
    bench.table()
    for _ in range(2):
        bench.run(EXPIRE)
        bench.clock.advance(hours=2)
    bench.table(table_uuid="another")
    bench.run(EXPIRE)
    assert bench.store.tables.get(REF).paused is None  # type: ignore[union-attr]


@pytest.mark.slow
def test_no_free_connection_is_a_store_that_is_away(bench: Bench) -> None:
    """So that whoever asked tries again."""
    bench.table()
    looked(bench)
    pool = bench.store.engine.pool
    assert isinstance(pool, QueuePool)
    pool._timeout = 0.1  # half a minute else
    with ExitStack() as taken_all:
        for _ in range(15):
            taken_all.enter_context(bench.store.engine.connect())
        with pytest.raises(StorageUnavailable):
            bench.store.jobs.heartbeat("job", bench.clock.now() + timedelta(seconds=1))
