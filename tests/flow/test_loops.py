"""What services share through the store: whose turn it is, what waits in the queue, what the dead leave behind."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta

import pytest

from icewright.adapters.store.planning import SqlPlanning
from icewright.core.capacity import Candidate, CatalogLimits, Limits, PoolLimits
from icewright.core.errors import CatalogUnavailable, StorageUnavailable
from icewright.core.layering import PolicyRule
from icewright.core.runs import JobState
from icewright.core.table import TableRef
from icewright.flow.detect import configured_policy
from icewright.flow.evaluator import evaluate_due
from icewright.flow.execute import execute_dequeued
from icewright.flow.queue import Planning, plan_now
from icewright.flow.reconcile import MAX_INTERRUPTED, Reconciler, reconcile_interrupted
from icewright.flow.runtime import Runtime, Scope
from icewright.ports import JobRow, ProcessRow, Trigger
from icewright.testing import NOW, REF
from tests.flow.bench import COMPACT, EXPIRE, Bench, detect_due, job_states


def other(bench: Bench, holder: str = "host:9:9") -> Runtime:
    """The world of another process on the same store."""
    return bench.runtime(trigger=Trigger("service", "me", holder))


def looked(bench: Bench) -> Runtime:
    """Everything detected and evaluated, as the loops do it."""
    runtime = bench.runtime()
    detect_due(runtime)
    evaluate_due(runtime, sorted(bench.catalogs))
    return runtime


def taken(bench: Bench, runtime: Runtime, limit: int = 10) -> list[JobRow]:
    """What a worker gets."""
    return list(runtime.store.jobs.dequeue(runtime.trigger.holder, sorted(bench.catalogs), bench.clock.now(), limit))


def test_the_loops_meet_in_the_store(bench: Bench) -> None:
    """Detected, evaluated, planned, taken and run, each by a process of its own."""
    ref = bench.table()
    detect_due(other(bench, "a:1:1"))
    assert evaluate_due(other(bench, "b:1:1"), ["lake"]) == [ref]
    assert Planning(other(bench, "c:1:1")).due() == 1
    (job,) = taken(bench, other(bench, "d:1:1"))
    assert (job.ref, job.operations, job.state, job.holder) == (ref, (EXPIRE,), JobState.RUNNING, "d:1:1")
    result = execute_dequeued(other(bench, "d:1:1"), job)
    assert (result.state, result.job_id) == (JobState.SUCCEEDED, job.job_id)
    assert job_states(bench) == [JobState.SUCCEEDED]
    assert Planning(other(bench, "c:1:1")).due() == 0
    assert bench.store.planning.candidates(["lake"]) == []


def test_a_catalog_is_asked_by_one_process_in_each_interval(bench: Bench) -> None:
    """Whoever comes first asks; the next time is an interval later."""
    bench.table()
    bench.scopes["lake"] = Scope(enabled=True, interval=timedelta(minutes=5))
    assert detect_due(bench.runtime()).tables == 1
    assert detect_due(other(bench)).tables == 0
    bench.clock.advance(minutes=5)
    assert detect_due(other(bench)).tables == 1
    assert detect_due(bench.runtime()).tables == 0


def test_a_catalog_that_fails_is_tried_later_and_later(bench: Bench) -> None:
    """Each failure in a row doubles the wait, up to half an hour; an answer ends it. The others go on."""
    bench.table()
    bench.table(catalog="pond")
    bench.catalog.down = CatalogUnavailable("lake is down")
    waits = []
    for _ in range(8):
        found = detect_due(bench.runtime())
        assert found.errors == (("lake", "lake is down"),)
        (row,) = (r for r in bench.store.catalogs.list() if r.name == "lake")
        waits.append((row.detect_at - bench.clock.now()).total_seconds() / 60)
        bench.clock.time = row.detect_at
    assert waits == [1, 2, 4, 8, 16, 30, 30, 30]
    assert (row.failures, row.error) == (8, "lake is down")
    bench.catalog.down = None
    assert detect_due(bench.runtime()).errors == ()
    (row,) = (r for r in bench.store.catalogs.list() if r.name == "lake")
    assert (row.failures, row.error, row.detected_at) == (0, None, bench.clock.now())


def test_a_catalog_that_does_not_answer(bench: Bench) -> None:
    """It has its time, and then it counts as down; no loop waits for it."""
    bench.table()
    bench.scopes["lake"] = Scope(enabled=True, timeout=timedelta(milliseconds=20))
    answer = threading.Event()
    slow = bench.runtime()
    bench.catalog.pointers = lambda: [answer.wait(10)][1:]  # type: ignore[method-assign,assignment,return-value]
    (failure,) = detect_due(slow).errors
    assert failure == ("lake", "catalog lake did not answer within 0.02 s (detect.timeout_seconds)")
    answer.set()


def test_each_table_is_evaluated_once(bench: Bench) -> None:
    """Tables are claimed before they are read; what a process that died had claimed, another evaluates."""
    for number in range(5):
        bench.table(f"t{number}")
    detect_due(bench.runtime())
    until = NOW + timedelta(minutes=2)
    claimed = bench.store.tables.claim_evaluations(["lake"], "dead:1:1", NOW, until, 3)
    assert len(claimed) == 3
    assert len(evaluate_due(bench.runtime(), ["lake"])) == 2
    bench.clock.time = until
    assert len(evaluate_due(bench.runtime(), ["lake"])) == 3
    assert evaluate_due(bench.runtime(), ["lake"]) == []


def test_what_the_dead_had_claimed_is_free_at_once(bench: Bench) -> None:
    """Settling frees tables and catalogs of processes that have surely ended, and takes over what they alone did."""
    bench.table()
    detect_due(bench.runtime())
    until = NOW + timedelta(hours=1)
    bench.store.tables.claim_evaluations(["lake"], "dead:1:1", NOW, until, 3)
    assert bench.store.leases.acquire("reconcile", "dead:1:1", NOW, until) == "dead:1:1"
    assert bench.store.leases.acquire("plan", "alive:1:1", NOW, until) == "alive:1:1"
    runtime = replace(bench.runtime(), process_has_ended=lambda holder: holder == "dead:1:1")
    Reconciler(runtime).due()
    assert len(evaluate_due(runtime, ["lake"])) == 1
    assert Planning(runtime).due() == 0
    assert bench.store.planning.candidates(["lake"])


def test_one_process_plans_at_a_time(bench: Bench) -> None:
    """Another takes over when the first has not come back for a while."""
    bench.table()
    bench.scopes["lake"] = Scope(enabled=True, interval=timedelta(seconds=10))
    runtime = looked(bench)
    assert Planning(runtime).due() == 1
    bench.table("late")
    bench.clock.advance(seconds=30)
    looked(bench)
    assert Planning(other(bench)).due() == 0
    bench.clock.advance(seconds=30)
    assert Planning(other(bench)).due() == 1


def test_a_plan_is_made_anew_when_something_has_moved_or_after_a_while(bench: Bench) -> None:
    """What only the clock changes, such as a window that opens, is seen within a minute; all else at once."""
    bench.table()
    bench.settings |= {"windows": f"{NOW + timedelta(minutes=1):%H:%M}-23:59"}
    planning = Planning(looked(bench))
    assert planning.due() == 0
    bench.clock.advance(seconds=59)
    seen = [planning.due()]
    bench.clock.advance(seconds=1)
    assert [*seen, planning.due()] == [0, 1]
    assert planning.due() == 0
    (job,) = bench.store.jobs.list()
    assert bench.store.jobs.request_cancel(job.job_id, bench.clock.now())
    assert planning.due() == 1
    bench.table("late")
    looked(bench)
    assert planning.due() == 1


def test_a_plan_that_failed_is_made_again(bench: Bench) -> None:
    """Nothing has moved since, and yet it is not taken for made."""
    bench.table()
    runtime = looked(bench)
    faults = [StorageUnavailable("the store is away")]

    class Away(SqlPlanning):
        def candidates(self, catalogs: Sequence[str]) -> Sequence[Candidate]:
            if faults:
                raise faults.pop()
            return super().candidates(catalogs)

    bench.store.planning = Away(bench.store.db)
    planning = Planning(runtime)
    with pytest.raises(StorageUnavailable):
        planning.due()
    assert planning.due() == 1


def test_a_table_has_one_job_at_a_time(bench: Bench) -> None:
    """While one waits no other is queued; a job by hand takes its place."""
    ref = bench.table()
    runtime = looked(bench)
    assert [Planning(runtime).due(), Planning(runtime).due()] == [1, 0]
    assert next(iter(plan_now(runtime, ["lake"]).deferred)).reason.startswith("held by job ")
    bench.clock.advance(seconds=1)
    result = bench.run(EXPIRE, ref=ref)
    assert result.state is JobState.SUCCEEDED
    assert job_states(bench) == [JobState.CANCELLED, JobState.SUCCEEDED]
    assert bench.store.jobs.list()[1].summary == "gave way to a job that began at once"
    assert taken(bench, runtime) == []


def test_limits_hold_over_all_workers(bench: Bench) -> None:
    """What waits and what runs counts, whoever runs it."""
    for number in range(6):
        bench.rot(bench.table(f"t{number}"))
    bench.settings |= {"expire_snapshots.enabled": False, "rewrite_manifests.enabled": False}
    bench.limits = Limits(9, {COMPACT: 5}, pools={"default": PoolLimits(3)}, catalogs={"lake": CatalogLimits(4)})
    runtime = looked(bench)
    assert Planning(runtime).due() == 3
    assert len(taken(bench, runtime, 2)) == 2
    assert Planning(runtime).due() == 0
    for job in bench.store.jobs.list():
        bench.store.jobs.finish(job.job_id, JobState.SUCCEEDED, "", bench.clock.now())
    assert Planning(runtime).due() == 2  # one waits still


@pytest.mark.cases(132)
def test_a_job_that_no_worker_takes_goes_ahead_of_newer_ones(bench: Bench) -> None:
    """After an hour in the queue it is promoted. The plan says how long what is overdue has waited."""
    bench.settings |= {"expire_snapshots.enabled": False, "rewrite_manifests.enabled": False}
    bench.limits = Limits(2)
    bench.rot(bench.table("old"))
    runtime = looked(bench)
    assert Planning(runtime).due() == 1
    bench.clock.advance(minutes=61)
    bench.rules = [PolicyRule(("lake", "sales", "new"), {"importance": "critical"})]
    bench.rot(bench.table("new"))
    bench.rot(bench.table("last"))
    runtime = looked(bench)
    assert Planning(runtime).due() == 1
    assert [job.ref.name for job in taken(bench, runtime, 1)] == ["old"]
    bench.clock.advance(hours=25)
    (waits,) = (d.reason for d in plan_now(runtime, ["lake"]).deferred if d.position)
    assert waits == "global limit (2) reached; waited 25 hours"


def test_a_saturated_pool_is_given_less(bench: Bench) -> None:
    """Half of its jobs while tasks wait in crowds; one more with each plan once it is idle; never beyond its limit."""
    bench.limits = Limits(9, pools={"default": PoolLimits(4)})
    runtime = looked(bench)

    def after(active: int, pending: int) -> int:
        load = {"cores": 2, "active_tasks": active, "pending_tasks": pending, "longest_wait_seconds": 0.0}
        row = ProcessRow("w:1:1", "worker", NOW, bench.clock.now(), 2, {"pools": {"default": load}})
        bench.store.processes.record_heartbeat(row)
        Planning(runtime).due()
        return bench.store.planning.pool_limits().get("default", 4)

    assert [after(2, 50), after(2, 50), after(2, 50), after(2, 4)] == [2, 1, 1, 1]
    assert [after(0, 0) for _ in range(5)] == [2, 3, 4, 4, 4]
    bench.store.processes.deregister(["w:1:1"])
    assert bench.store.processes.list() == []


def test_a_table_that_is_gone_when_its_turn_comes(bench: Bench) -> None:
    """The job ends, skipped, and frees the name."""
    ref = bench.table()
    runtime = looked(bench)
    Planning(runtime).due()
    (job,) = taken(bench, runtime)
    del bench.catalog.tables[ref]
    assert execute_dequeued(runtime, job).state is JobState.SKIPPED
    row = bench.store.tables.get(ref)
    assert row is not None
    assert row.job_id is None


def test_a_catalog_that_is_down_when_a_job_begins(bench: Bench) -> None:
    """Its jobs are given back: none is a failure, and no table is paused."""
    bench.table()
    bench.settings |= {"execute.pause_after_failures": 2}
    for _ in range(3):
        runtime = looked(bench)
        Planning(runtime).due()
        (job,) = taken(bench, runtime)
        bench.catalog.down = CatalogUnavailable("lake is down")
        result = execute_dequeued(runtime, job)
        assert (result.state, result.reason) == (JobState.CANCELLED, "unavailable: lake is down")
        bench.catalog.down = None
        bench.clock.advance(hours=2)
    (row,) = bench.store.tables.list()
    assert row.paused is None


def test_a_job_with_knobs_of_its_own(bench: Bench) -> None:
    """What was asked for by hand carries its settings to whichever worker takes it, and looks past cooldowns."""
    ref = bench.table()
    runtime = looked(bench)
    (planned,) = plan_now(runtime, ["lake"]).jobs
    manual = Trigger("manual", "ann", "host:1:1")
    options = {"set": {"expire_snapshots.retention_hours": 2000}, "force": False}
    assert bench.store.jobs.enqueue(planned, manual, NOW, options) is not None
    (job,) = taken(bench, runtime)
    assert (job.actor, job.options) == ("ann", options)
    result = execute_dequeued(runtime, job)
    assert (result.ref, result.state) == (ref, JobState.SKIPPED)
    assert bench.asked == []


def test_a_queued_job_is_cancelled_at_once(bench: Bench) -> None:
    """It has not begun, so nothing has to be waited for."""
    bench.table()
    runtime = looked(bench)
    Planning(runtime).due()
    (job,) = bench.store.jobs.list()
    assert bench.store.jobs.request_cancel(job.job_id, NOW)
    assert job_states(bench) == [JobState.CANCELLED]
    assert Planning(runtime).due() == 1


@pytest.mark.parametrize("others", ["live", "die here", "die elsewhere"])
def test_a_table_whose_jobs_end_their_process_is_paused(bench: Bench, others: str) -> None:
    """After ten in a row, but not while processes that run none of its jobs die as well: then it is not the cause.

    Those of another host have died when they are silent for longer than a lease.
    """
    others_die, elsewhere = others != "live", ["idle0"] if others == "die elsewhere" else []
    bench.table()
    for number in range(MAX_INTERRUPTED):
        (row,) = bench.store.tables.list() or (None,)
        assert row is None or row.paused is None, number
        runtime = looked(bench)
        Planning(runtime).due()
        (job,) = taken(bench, runtime)
        if number == 0:  # its last heartbeat; one that died before its first job says nothing
            died = bench.clock.now() - (timedelta(seconds=9) if others_die else timedelta(days=1))
            bench.store.processes.record_heartbeat(ProcessRow(f"idle{number}", "worker", died, died, 1, {}))
        alive = bench.clock.now()
        bench.store.processes.record_heartbeat(ProcessRow("alive", "worker", alive, alive, 1, {}))
        dead = replace(runtime, process_has_ended=lambda holder: holder not in ("alive", *elsewhere))
        assert reconcile_interrupted(dead) == [f"{job.ref}: job {job.job_id} was interrupted"]
        bench.clock.advance(minutes=1)
    (row,) = bench.store.tables.list()
    if others_die:
        assert row.paused is None
    else:
        assert row.paused is not None
        assert row.paused.startswith(f"{MAX_INTERRUPTED} jobs were interrupted in a row")


def test_a_process_that_is_to_stop(bench: Bench) -> None:
    """What it runs ends before its next step, and the work is due again for the others."""
    bench.rot(bench.table())
    stopping: list[bool] = []
    runtime = replace(looked(bench), stopping=lambda: bool(stopping))
    Planning(runtime).due()
    (job,) = taken(bench, runtime)
    bench.after = lambda _: stopping.append(True)
    result = execute_dequeued(runtime, job)
    assert (result.state, result.reason) == (JobState.CANCELLED, "cancelled: the process that runs it stops")
    assert [o.operation for o in result.outcomes] == [COMPACT]
    assert Planning(bench.runtime()).due() == 1


def test_an_evaluation_that_took_long_does_not_undo_a_newer_one(bench: Bench) -> None:
    """Of two that read one table, the one that began later is right, whichever is done last."""
    ref = bench.table()
    runtime = looked(bench)
    old = plan_now(runtime, ["lake"]).jobs
    slow = bench.clock.now()
    bench.clock.advance(seconds=5)
    bench.run(EXPIRE, ref=ref)
    assert old
    bench.store.tables.record_unreadable(ref, "what it said five seconds ago", slow)
    (row,) = bench.store.tables.list()
    assert row.error is None


def test_the_store_is_away_for_a_moment(bench: Bench) -> None:
    """A round of a loop fails as a whole, and the next one does the work."""
    bench.table()
    runtime = bench.runtime()
    real = runtime.store.catalogs.claim
    away = iter([True])

    def claim(*arguments: object) -> object:
        if next(away, False):
            raise StorageUnavailable("the state store is away")
        return real(*arguments)  # type: ignore[arg-type]

    bench.store.catalogs.claim = claim  # type: ignore[method-assign,assignment]
    with pytest.raises(StorageUnavailable):
        detect_due(runtime)
    assert detect_due(runtime).tables == 1


def test_a_policy_that_changes_makes_tables_due_for_a_look(bench: Bench) -> None:
    """Those alone whose knobs are others now."""
    bench.table("a")
    ref = bench.table("b")
    looked(bench)
    bench.rules = [PolicyRule(("lake", "sales", "b"), {"importance": "high"})]
    bench.clock.advance(minutes=5)
    detect_due(bench.runtime())
    assert evaluate_due(bench.runtime(), ["lake"]) == [ref]
    assert REF.catalog == "lake"


@pytest.mark.cases(119)
def test_two_configurations_do_not_evaluate_the_tables_in_turn(bench: Bench) -> None:
    """While the service that applied its policy lives, another with a different policy leaves the tables alone."""
    bench.table()
    first, second = looked(bench), other(bench)
    rules = {first.trigger.holder: [], second.trigger.holder: [PolicyRule(("lake",), {"importance": "high"})]}

    def look(process: Runtime) -> list[TableRef]:
        bench.rules = rules[process.trigger.holder]
        runtime = replace(bench.runtime(), trigger=process.trigger)
        policies = {"lake": configured_policy(runtime, "lake")}
        row = ProcessRow(process.trigger.holder, "service", NOW, bench.clock.now(), 0, {"policies": policies})
        bench.store.processes.record_heartbeat(row)
        bench.store.catalogs.detect_soon(["lake"], bench.clock.now())
        detect_due(runtime)
        return evaluate_due(runtime, ["lake"])

    def turns() -> list[TableRef]:
        evaluated = []
        for _ in range(6):
            for process in (first, second):
                bench.clock.advance(seconds=15)
                evaluated += look(process)
        return evaluated

    look(first)
    assert turns() == []
    bench.store.processes.deregister([first.trigger.holder])
    assert look(second) == [REF], "the first is gone: the policy of the other holds now"
    rules[second.trigger.holder] = []
    assert look(second) == [REF], "its own change is applied at once"
