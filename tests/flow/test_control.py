"""Who may stop a job, and what a job does that must not go on: cancel, time-out, a lost lease, a broken invariant."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from icewright.core.errors import Cancelled, InvariantViolated, LeaseLost, TableNotFound
from icewright.core.runs import FileAction, JobState, OperationState, Outcome, committed
from icewright.core.table import RefKind, SnapshotRef
from icewright.flow.reconcile import reconcile_interrupted
from icewright.ports import LedgerState, StepRequest, Unfinished
from icewright.testing import REF
from tests.flow.bench import COMPACT, EXPIRE, MANIFESTS, Bench, job_states, states

FILES = [FileAction(f"s3://lake/sales/orders/data/{number}", 1, "data") for number in range(3)]


def planned(bench: Bench, request: StepRequest) -> None:
    """Write deletions down, as an expiry does before it commits."""
    bench.store.ledger.plan(request.job_id, request.base.ref, FILES, LedgerState.PLANNED, bench.clock.now())


def finishing(bench: Bench) -> list[str]:
    """Let the engine finish what was planned, and say so in the ledger; returns the jobs that it finished."""
    finished: list[str] = []

    def resume(unfinished: Unfinished, *, outside: bool = True) -> Outcome:
        finished.append(unfinished.job_id)
        states = {f.path: LedgerState.DELETED for f in unfinished.files}
        bench.store.ledger.record(unfinished.job_id, states, bench.clock.now())
        return committed(unfinished.operations[-1], f"finished {len(states)}", {})

    bench.engine.resume = resume  # type: ignore[method-assign]
    return finished


def test_cancel_between_operations(bench: Bench) -> None:
    """The operation that runs ends in peace, those after it are put off, and the table is free again."""
    bench.rot(bench.table())

    def after(request: StepRequest) -> None:
        bench.store.jobs.request_cancel(request.job_id, bench.clock.now())

    bench.after = after
    result = bench.run(COMPACT, MANIFESTS, EXPIRE)
    done, deferral = OperationState.COMMITTED, OperationState.DEFERRED
    assert result.state is JobState.CANCELLED
    assert states(result) == {COMPACT: done, MANIFESTS: deferral, EXPIRE: deferral}
    assert bench.asked == [("orders", COMPACT)]
    assert bench.store.tables.list()[0].job_id is None
    assert bench.store.jobs.count_consecutive(REF, JobState.FAILED) == 0


def stopped(request: StepRequest) -> bool:
    """Whether the engine is told to stop."""
    try:
        request.check()
    except (Cancelled, LeaseLost):
        return True
    return False


def test_the_engine_hears_of_a_cancel(bench: Bench) -> None:
    """In the middle of a long call too."""
    bench.table()
    heard: list[bool] = []

    def before(request: StepRequest) -> None:
        heard.append(stopped(request))
        bench.store.jobs.request_cancel(request.job_id, bench.clock.now())
        heard.append(stopped(request))

    bench.before = before
    bench.run(EXPIRE)
    assert heard == [False, True]


def test_the_time_out(bench: Bench) -> None:
    """A job that ran too long is cancelled before its next operation, and says why."""
    bench.rot(bench.table())
    bench.settings["execute.timeout_seconds"] = 60
    bench.after = lambda _: bench.clock.sleep(61)
    result = bench.run(COMPACT, EXPIRE)
    assert (result.state, bench.asked) == (JobState.CANCELLED, [("orders", COMPACT)])
    ended = bench.store.jobs.get(str(result.job_id))
    assert ended is not None
    assert "timeout" in ended.summary + result.reason


def test_the_engine_hears_of_the_time_out(bench: Bench) -> None:
    """A call that blocks for longer than the job may run is told to stop, as by a cancel."""
    bench.table()
    bench.settings["execute.timeout_seconds"] = 60
    heard: list[bool] = []

    def before(request: StepRequest) -> None:
        heard.append(stopped(request))
        bench.clock.advance(seconds=61)
        heard.append(stopped(request))

    bench.before = before
    bench.run(EXPIRE)
    assert heard == [False, True]


@pytest.mark.cases(80)
def test_a_lost_lease_stops_the_job(bench: Bench) -> None:
    """Another process took the job for dead: nothing more is started, and the job ends without an exception."""
    bench.rot(bench.table())

    def after(_: StepRequest) -> None:
        bench.store.jobs.end_interrupted(bench.clock.now() + timedelta(hours=1), lambda _: False)

    bench.after = after
    result = bench.run(COMPACT, MANIFESTS, EXPIRE)
    assert bench.asked == [("orders", COMPACT)]
    assert result.state is not JobState.SUCCEEDED
    assert job_states(bench) == [JobState.INTERRUPTED]


@pytest.mark.cases(80)
def test_the_engine_hears_of_a_lost_lease(bench: Bench) -> None:
    """So that it stops before it commits."""
    bench.table()
    heard: list[bool] = []

    def before(request: StepRequest) -> None:
        bench.store.jobs.end_interrupted(bench.clock.now() + timedelta(hours=1), lambda _: False)
        heard.append(stopped(request))

    bench.before = before
    bench.run(EXPIRE)
    assert heard == [True]


@pytest.mark.cases(80)
def test_a_lost_lease_does_not_abort_the_pass(bench: Bench) -> None:
    """The other tables' jobs are done and reported."""
    bench.rot(bench.table("a"))
    bench.table("b")

    def before(request: StepRequest) -> None:
        if request.base.ref.name == "a":
            bench.store.jobs.finish(request.job_id, JobState.INTERRUPTED, "", bench.clock.now())
            raise LeaseLost("another process owns the table")

    bench.before = before
    assert {job.ref.name for job in bench.cycle().jobs} == {"a", "b"}


def test_an_invariant_seen_by_the_engine_pauses_the_table(bench: Bench) -> None:
    """The operation failed, the reason stands at the table, and the next operation does not make it worse."""
    bench.rot(bench.table())

    def after(_: StepRequest) -> None:
        raise InvariantViolated("rows were lost")

    bench.after = after
    result = bench.run(COMPACT, EXPIRE)
    assert "rows were lost; the table is paused" in result.summary
    assert bench.store.tables.list()[0].paused == "verification failed: rows were lost"
    assert bench.asked == [("orders", COMPACT)]


def test_an_invariant_seen_after_the_commit_pauses_the_table(bench: Bench) -> None:
    """What the commit must have kept is read back from the catalog."""
    bench.rot(ref := bench.table())

    def after(_: StepRequest) -> None:
        now = bench.catalog.load(ref)
        last = now.snapshots[-1]
        broken = replace(last, summary={**last.summary, "added-records": "9"})
        bench.catalog.concurrently(ref, snapshots=(*now.snapshots[:-1], broken))

    bench.after = after
    result = bench.run(COMPACT)
    assert result.state is JobState.FAILED
    paused = bench.store.tables.list()[0].paused
    assert paused is not None
    assert paused.startswith("verification failed: ")
    assert "lost 1 of 10 records" in paused


def test_a_writer_that_drops_a_ref_meanwhile_is_no_fault_of_the_job(bench: Bench) -> None:
    """No rewrite drops refs: one that is gone afterwards is told, and the table goes on being maintained."""
    bench.rot(ref := bench.table())
    made = bench.catalog.load(ref)
    bench.catalog.concurrently(ref, refs=(*made.refs, SnapshotRef("q1", RefKind.TAG, 9)))

    def after(_: StepRequest) -> None:
        now = bench.catalog.load(ref)
        bench.catalog.concurrently(ref, refs=tuple(r for r in now.refs if r.name != "q1"))

    bench.after = after
    result = bench.run(COMPACT)
    assert result.state is JobState.SUCCEEDED
    assert "q1 is gone" in str(result.outcomes[0].notes)
    assert bench.store.tables.list()[0].paused is None


def test_deletions_of_a_table_whose_verification_failed_wait(bench: Bench) -> None:
    """Nothing is deleted while it is paused: somebody may want to roll it back. After the resume they are finished."""
    bench.table()
    bench.before = lambda a: planned(bench, a)

    def after(_: StepRequest) -> None:
        raise InvariantViolated("a snapshot is gone; nothing deleted")

    bench.after = after
    finished = finishing(bench)
    result = bench.run(EXPIRE)
    bench.settle()
    assert finished == []
    bench.store.tables.pause(REF, None)
    bench.settle()
    assert finished == [result.job_id]


def test_settling_finishes_what_was_planned(bench: Bench) -> None:
    """Deletions of interrupted jobs are finished once; those of a table that is gone for a week are kept."""
    for name in ("a", "b", "c"):
        bench.table(name)
    bench.store.tables.record_listing("lake", bench.catalog.pointers(), bench.clock.now())
    jobs = []
    for row in bench.store.tables.list():
        jobs.append(bench.store.jobs.claim(row.ref, "u", (EXPIRE,), bench.runtime().trigger, bench.clock.now()))
        files = [FileAction(f"{row.ref.name}/{n}", 1, "data") for n in range(2)]
        bench.store.ledger.plan(str(jobs[-1]), row.ref, files, LedgerState.PLANNED, bench.clock.now())
    finished = finishing(bench)
    resume = bench.engine.resume

    def gone(unfinished: Unfinished, *, outside: bool = True) -> Outcome:
        if unfinished.ref.name == "b":
            raise TableNotFound(f"{unfinished.ref} is gone")
        return resume(unfinished, outside=outside)

    bench.engine.resume = gone  # type: ignore[method-assign]
    assert reconcile_interrupted(bench.runtime()) == []
    bench.clock.advance(days=8)
    said = bench.settle()
    assert [finished, [row.job_id for row in bench.store.tables.list()]] == [[jobs[0], jobs[2]], [None] * 3]
    assert sum("interrupted" in line for line in said) == 3
    assert "lake.sales.b is gone" in said
    assert {f["state"] for f in bench.store.ledger.files(str(jobs[1]))} == {"kept"}
    assert bench.settle() == []
    assert job_states(bench) == [JobState.INTERRUPTED] * 3


def test_an_unexpected_error_in_one_job_does_not_abort_the_pass(bench: Bench) -> None:
    """A bug of ours in one table's job is that job's failure; the others are done and reported."""
    for name in ("a", "b", "c"):
        bench.table(name)

    def before(request: StepRequest) -> None:
        if request.base.ref.name == "b":
            raise ValueError("a bug")

    bench.before = before
    result = bench.cycle()
    assert {job.ref.name for job in result.jobs} == {"a", "b", "c"}
    assert [row.job_id for row in bench.store.tables.list()] == [None] * 3


def test_the_pause_of_a_moment_ago_holds(bench: Bench) -> None:
    """Paused after it was planned and before it was started: nothing runs."""
    bench.table("a")
    bench.table("b")

    def before(_: StepRequest) -> None:
        for row in bench.store.tables.list():
            bench.store.tables.pause(row.ref, "stop")

    bench.before = before
    bench.limits = type(bench.limits)(total=1)
    result = bench.cycle()
    assert [name for name, _ in bench.asked] == ["a"]
    assert [states(job) for job in result.jobs if job.ref.name == "b"] in ([], [{}])
