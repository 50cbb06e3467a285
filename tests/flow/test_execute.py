"""One job: its operations in order, each judged on the table as it then is, and whatever can go wrong between them."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from icewright.core.errors import (
    CatalogUnavailable,
    EngineUnavailable,
    IcewrightError,
    MetadataUnreadable,
    Refused,
    StorageUnavailable,
)
from icewright.core.layering import PolicyRule
from icewright.core.runs import JobState, OperationState
from icewright.core.table import TableRef
from icewright.flow.execute import execute
from icewright.flow.operation import Request
from icewright.ports import StepRequest
from icewright.testing import REF
from tests.flow.bench import COMPACT, EXPIRE, MANIFESTS, ORPHANS, YOUNG, Bench, job_states, states

COMMITTED, SKIPPED, FAILED, DEFERRED = OperationState


def raise_next(errors: list[IcewrightError]) -> None:
    """Raise the next error, until none is left."""
    if errors:
        raise errors.pop(0)


@pytest.mark.cases(90)
def test_a_failing_operation_does_not_stop_the_next(bench: Bench) -> None:
    """The job is partial then, with a result for each operation and the error in its summary."""
    bench.rot(bench.table())

    def before(request: StepRequest) -> None:
        if request.operation is COMPACT:
            raise MetadataUnreadable("a manifest is missing")

    bench.before = before
    result = bench.run(COMPACT, MANIFESTS, EXPIRE)
    assert result.state is JobState.PARTIAL
    assert states(result) == {COMPACT: FAILED, MANIFESTS: COMMITTED, EXPIRE: COMMITTED}
    assert result.summary.startswith("compact: failed: a manifest is missing; rewrite_manifests: done")
    assert [run["state"] for run in bench.store.runs.list(str(result.job_id))] == ["failed", "committed", "committed"]


def test_each_operation_sees_the_table_as_it_then_is(bench: Bench) -> None:
    """The second operation's base is what the first one left, and its own commit is no conflict."""
    bench.rot(bench.table())
    result = bench.run(COMPACT, EXPIRE)
    first, second = bench.engine.requests
    assert first.base.metadata_location != second.base.metadata_location
    assert first.base.metadata_location in second.base.metadata_log
    assert result.state is JobState.SUCCEEDED


@pytest.mark.cases(82)
@pytest.mark.parametrize("what", ["dropped", "renamed", "replaced"])
def test_the_table_is_not_there_any_more(bench: Bench, what: str) -> None:
    """Dropped, renamed or replaced since it was planned: skipped with the reason, and no job was started."""
    ref = bench.table()
    bench.store.tables.record_listing("lake", bench.catalog.pointers(), bench.clock.now())
    made = bench.catalog.tables.pop(ref)
    if what == "renamed":
        bench.catalog.put(replace(made, ref=replace(ref, name="renamed")))
    if what == "replaced":
        bench.table(table_uuid="another")
    result = execute(bench.runtime(), Request(ref, (EXPIRE,), made.table_uuid))
    assert (result.state, result.job_id, bench.asked) == (JobState.SKIPPED, None, [])
    assert str(ref) in result.summary
    assert ("uuid changed" in result.summary) == (what == "replaced")


@pytest.mark.cases(82)
def test_the_table_is_replaced_while_the_job_runs(bench: Bench) -> None:
    """What was planned on the earlier table is not done to the later one, and the table is not held."""
    bench.rot(bench.table())

    def after(request: StepRequest) -> None:
        if request.operation is COMPACT:
            bench.table(table_uuid="another")

    bench.after = after
    result = bench.run(COMPACT, EXPIRE)
    assert bench.asked == [("orders", COMPACT)]
    assert all("replaced" in o.reason or "another table" in o.reason for o in result.outcomes)
    assert len(bench.catalog.load(REF).snapshots) == 10
    assert [row.job_id for row in bench.store.tables.list()] == [None]


@pytest.mark.parametrize("error", [CatalogUnavailable("catalog is down"), MetadataUnreadable("file is gone")])
def test_a_table_that_cannot_be_loaded_is_a_result(bench: Bench, error: IcewrightError) -> None:
    """`execute` never raises for what is wrong with the table."""
    bench.table()
    bench.store.tables.record_listing("lake", bench.catalog.pointers(), bench.clock.now())
    bench.catalog.down = error
    result = bench.run(EXPIRE)
    assert result.state in (JobState.FAILED, JobState.SKIPPED)
    assert str(error) in result.summary


@pytest.mark.cases(80, 92)
def test_a_table_that_another_job_holds(bench: Bench) -> None:
    """Nothing is started on it."""
    bench.table()
    unknown = execute(bench.runtime(), Request(REF, (EXPIRE,), manual=True))
    assert "does not know lake." in unknown.reason
    held: list[str] = []
    bench.after = lambda _: held.append(bench.run(EXPIRE).reason)
    assert bench.run(EXPIRE).state is JobState.SUCCEEDED
    assert [reason.partition(":")[0] for reason in held] == ["another job holds the table"]


@pytest.mark.parametrize("error", [EngineUnavailable("Spark died"), StorageUnavailable("throttled")])
def test_the_retry_limit(bench: Bench, error: IcewrightError) -> None:
    """What may go away is tried again once, after a moment; then the operation waits for what is away."""
    bench.table()
    errors = [error]
    bench.before = lambda _: raise_next(errors)
    assert bench.run(EXPIRE).state is JobState.SUCCEEDED
    bench.table()
    errors += [error, error]
    result = bench.run(EXPIRE)
    summary = f"expire_snapshots: deferred: unavailable: {error}"
    assert (result.state, result.summary) == (JobState.SKIPPED, summary)
    assert bench.clock.slept == [0.05, 0.05]


def test_a_terminal_error_is_not_tried_again(bench: Bench) -> None:
    """An operation that fails by a terminal error is tried once."""
    bench.table()
    errors: list[IcewrightError] = [MetadataUnreadable("gone")]
    bench.before = lambda _: raise_next(errors)
    assert bench.run(EXPIRE).state is JobState.FAILED
    assert len(bench.asked) == 1


def test_limits_of_a_job_may_be_set_on_the_table(bench: Bench) -> None:
    """Where a rule allows it, table properties set the knobs of execution too, as `config explain` says."""
    bench.settings |= {"properties.allow": "execute.*"}
    bench.table(properties={"icewright.execute.retry_limit": "3"})
    errors: list[IcewrightError] = [EngineUnavailable("Spark died")] * 3
    bench.before = lambda _: raise_next(errors)
    assert bench.run(EXPIRE).state is JobState.SUCCEEDED


def test_a_refusal_is_a_skip_with_its_reason(bench: Bench) -> None:
    """A safety rule stopped the operation: no failure, and the next pass does not try again at once."""
    bench.table(ages=YOUNG)
    bench.settings = {}
    errors: list[IcewrightError] = [Refused("another table lies there")]
    bench.before = lambda _: raise_next(errors)
    result = bench.cycle()
    assert [job.summary for job in result.jobs] == ["remove_orphans: refused: another table lies there"]
    assert result.jobs[0].state is JobState.SKIPPED
    bench.clock.advance(hours=2)
    assert bench.cycle().run == 0
    assert bench.run(ORPHANS).state is JobState.SUCCEEDED


def test_three_failures_in_a_row_pause_the_table(bench: Bench) -> None:
    """With a reason that says how to go on; then nothing runs by itself until it is resumed."""
    bench.table()

    def before(_: StepRequest) -> None:
        raise MetadataUnreadable("broken")

    bench.before = before
    for _ in range(5):
        bench.cycle()
        bench.clock.advance(hours=2)
    assert job_states(bench) == [JobState.FAILED] * 3
    (row,) = bench.store.tables.list()
    assert row.paused == f"3 jobs failed in a row; `icewright resume {REF}` when it is fixed"
    assert bench.events("paused") == [{"table": str(REF), "jobs": 3, "state": JobState.FAILED}]
    bench.store.tables.pause(REF, None)
    bench.before = lambda _: None
    assert bench.cycle().run == 1


def test_a_job_by_hand_ignores_cadence_and_cooldown(bench: Bench) -> None:
    """Neither the last scan nor the cooldown nor the catalog's switch holds it; guardrails do."""
    bench.table(ages=YOUNG)
    assert [bench.run(ORPHANS).state for _ in range(2)] == [JobState.SUCCEEDED] * 2
    bench.rules.append(PolicyRule(("lake",), {"remove_orphans.every_hours": 1000}))
    assert bench.run(ORPHANS).state is JobState.SUCCEEDED


def test_nothing_to_do_is_a_skip(bench: Bench) -> None:
    """Not a success: the engine is not asked, and the reason is said word for word."""
    bench.table(ages=YOUNG)
    result = bench.run(EXPIRE)
    assert (result.state, result.summary) == (JobState.SKIPPED, "expire_snapshots: no snapshots to expire")
    assert bench.asked == []


def test_jobs_on_different_tables_do_not_hinder_one_another(bench: Bench) -> None:
    """One failing table is one failed job among many."""
    for number in range(6):
        bench.table(f"t{number}")

    def before(request: StepRequest) -> None:
        if request.base.ref.name == "t3":
            raise MetadataUnreadable("broken")

    bench.before = before
    result = bench.cycle()
    assert {job.ref.name: job.state.value for job in result.jobs} == {
        f"t{number}": "failed" if number == 3 else "succeeded" for number in range(6)
    }


def test_history_of_an_earlier_table_of_the_name_does_not_count(bench: Bench) -> None:
    """A recreated table has no cooldown from the one before it."""
    bench.table()
    bench.cycle()
    ref: TableRef = bench.table(table_uuid="another")
    bench.clock.advance(minutes=11)
    assert bench.clock.now() - bench.store.jobs.list()[0].created < timedelta(minutes=60)
    assert [job.ref for job in bench.cycle().jobs] == [ref]
