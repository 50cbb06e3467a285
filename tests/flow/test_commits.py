"""Commits that are lost, or whose reply is lost: planned again, deferred, or left for the next start to look at."""

from __future__ import annotations

from dataclasses import replace

import pytest

from icewright.core.errors import CatalogUnavailable, CommitConflict, CommitStateUnknown, IcewrightError
from icewright.core.runs import JOB_ID, FileAction, JobState, OperationState
from icewright.core.steps import ExpireSnapshots, RewriteDataFiles
from icewright.core.table import RefKind, SnapshotRef
from icewright.flow.reconcile import end_interrupted
from icewright.flow.unknown_commit import landed_metrics
from icewright.ports import AddSnapshot, LedgerState, StepRequest
from icewright.testing import REF, metadata, partition, spec
from tests.flow.bench import COMPACT, EXPIRE, YOUNG, Bench, states

COMMITTED, SKIPPED, FAILED, DEFERRED = OperationState


def raise_next(errors: list[IcewrightError]) -> None:
    """Raise the next error, until none is left."""
    if errors:
        raise errors.pop(0)


@pytest.mark.cases(75, 76)
def test_a_lost_commit_is_planned_again(bench: Bench) -> None:
    """From fresh metadata, after 50 ms, 100 ms and so on; what another writer committed is kept."""
    ref = bench.table()
    errors = [CommitConflict("somebody was first") for _ in range(3)]

    def before(_: StepRequest) -> None:
        if errors:
            bench.catalog.concurrently(ref, properties={"left": str(len(errors))})
        raise_next(list[IcewrightError](errors[:1]) if errors and errors.pop() else [])

    bench.before = before
    result = bench.run(EXPIRE)
    assert states(result) == {EXPIRE: COMMITTED}
    assert bench.clock.slept == [0.05, 0.1, 0.2]
    assert len({a.base.metadata_location for a in bench.engine.requests}) == 4
    assert bench.catalog.load(ref).properties == {"left": "1"}


@pytest.mark.cases(76)
@pytest.mark.parametrize(("retries", "slept"), [(5, [0.05, 0.1, 0.2, 0.4, 0.8]), (1, [0.05]), (0, [])])
def test_too_many_lost_commits_defer_the_operation(bench: Bench, retries: int, slept: list[float]) -> None:
    """After max_commit_retries the operation gives way to the writers; the table is as it was, and not paused."""
    ref = bench.table()
    bench.settings["execute.max_commit_retries"] = retries

    def before(_: StepRequest) -> None:
        raise CommitConflict("somebody was first")

    bench.before = before
    result = bench.run(EXPIRE)
    (outcome,) = result.outcomes
    assert outcome.state is DEFERRED
    assert outcome.reason == f"lost the commit {retries + 1} times to other writers: somebody was first"
    assert bench.clock.slept == slept
    assert len(bench.catalog.load(ref).snapshots) == 10
    assert bench.store.jobs.count_consecutive(REF, JobState.FAILED) == 0


@pytest.mark.cases("T16")
def test_compaction_yields_after_two_conflicts(bench: Bench) -> None:
    """It does not fight the writer: after two conflicts the job is deferred."""
    bench.rot(bench.table(ages=YOUNG))

    def before(_: StepRequest) -> None:
        raise CommitConflict("a writer")

    bench.before = before
    assert states(bench.run(COMPACT)) == {COMPACT: DEFERRED}
    assert len(bench.asked) == 2


@pytest.mark.cases(77, "T15")
@pytest.mark.parametrize("landed", [True, False])
def test_an_unknown_commit_state_cleans_nothing(bench: Bench, landed: bool) -> None:
    """The reply was lost: no second try; if the table shows that it landed, planned deletions are finished."""
    ref = bench.table()

    def before(request: StepRequest) -> None:
        files = [FileAction("s3://lake/sales/orders/data/1", 1, "data")]
        bench.store.ledger.plan(request.job_id, ref, files, LedgerState.PLANNED, bench.clock.now())
        if not landed:
            raise CommitStateUnknown("the reply was lost")

    def after(_: StepRequest) -> None:
        raise CommitStateUnknown("the reply was lost")

    bench.before, bench.after = before, after
    result = bench.run(EXPIRE)
    assert states(result) == {EXPIRE: COMMITTED if landed else FAILED}
    assert ("the table shows that it landed" if landed else "nothing was cleaned up") in result.summary
    assert (len(bench.asked), bench.clock.slept) == (1, [])
    assert [f["state"] for f in bench.store.ledger.files(str(result.job_id))] == ["planned"]
    assert [u.job_id for u in bench.engine.resumed] == ([result.job_id] if landed else [])
    bench.settle()
    assert bench.engine.resumed[-1].job_id == result.job_id


@pytest.mark.parametrize("anew", [True, False])
def test_a_table_that_is_dropped_before_a_lost_reply_is_looked_at(bench: Bench, anew: bool) -> None:
    """The outcome says so, and counts against nobody; files stay, as the table may have another name by now."""
    ref = bench.table()

    def after(_: StepRequest) -> None:
        bench.catalog.tables.pop(ref)
        if anew:
            bench.table(table_uuid="another")
        raise CommitStateUnknown("the reply was lost")

    bench.after = after
    (outcome,) = bench.run(EXPIRE).outcomes
    assert (outcome.state, outcome.fault) == (DEFERRED, None)
    assert "dropped, renamed or replaced while the commit was under way" in outcome.reason
    assert "the reply was lost" in outcome.reason


def test_an_expiry_of_refs_alone_landed_when_they_are_gone() -> None:
    """No snapshot of it is left in the table, as it never meant to expire one."""
    tag = SnapshotRef("old", RefKind.TAG, 1)
    step = ExpireSnapshots((), ("old",), delete_files=True, max_concurrent_deletes=1, by_spark=False)
    assert landed_metrics(step, metadata((24, 2), refs=[tag]), "job", frozenset({1, 2})) is None
    assert landed_metrics(step, metadata((24, 2)), "job", frozenset({1, 2})) == {
        "snapshots_expired": 0,
        "refs_removed": 1,
    }


@pytest.mark.cases(77, 103)
def test_a_job_that_lost_its_table_before_a_reply_was_lost(bench: Bench) -> None:
    """Its planned deletions wait for whoever settles: until then readers may have pinned what the commit let go of."""
    ref = bench.table()

    def after(request: StepRequest) -> None:
        files = [FileAction("s3://lake/sales/orders/data/1", 1, "data")]
        bench.store.ledger.plan(request.job_id, ref, files, LedgerState.PLANNED, bench.clock.now())
        end_interrupted(replace(bench.runtime(), process_has_ended=lambda _: True))
        raise CommitStateUnknown("the reply was lost")

    bench.after = after
    (outcome,) = bench.run(EXPIRE).outcomes
    assert (outcome.state, outcome.metrics["files_failed"], bench.engine.resumed) == (COMMITTED, 1, [])
    assert any("1 planned deletion waiting for the next start: job" in note for note in outcome.notes)


def test_the_catalog_fails_after_the_commit(bench: Bench) -> None:
    """What was committed stays the outcome, though the proof after it had to wait for the catalog."""
    bench.table()

    def after(_: StepRequest) -> None:
        bench.catalog.down = CatalogUnavailable("gone for a moment")

    bench.after = after
    bench.clock.sleep = lambda seconds: setattr(bench.catalog, "down", None)  # type: ignore[method-assign]
    result = bench.run(EXPIRE)
    assert states(result)[EXPIRE] in (COMMITTED, FAILED)
    assert len(bench.catalog.commits) == 1


def test_a_lost_commit_in_the_second_step_keeps_the_first(bench: Bench) -> None:
    """A compaction of two steps whose second is planned again reports the files of both."""
    bench.table(ages=YOUNG, specs=(spec(region="identity"),))
    small = partition("eu", files=10, mb=1)
    dead = partition("us", files=4, mb=500, position_delete_files=4, deleted_rows=3000, max_delete_ratio_of_a_file=0.9)
    bench.files.partitions[REF] = (small, dead)
    errors: list[IcewrightError] = [CommitConflict("a writer")]

    def before(request: StepRequest) -> None:
        if len(bench.asked) == 2:
            raise_next(errors)

    def after(request: StepRequest) -> None:
        step = request.step
        assert isinstance(step, RewriteDataFiles)
        bench.files.partitions[REF] = (partition("eu", files=1, mb=500),) if step.by_deletes else (dead,)

    bench.before, bench.after = before, after
    result = bench.run(COMPACT)
    assert len(bench.asked) == 3
    assert result.outcomes[0].metrics["n"] == 2


def test_what_an_earlier_operation_committed_proves_nothing_of_a_later_one(bench: Bench) -> None:
    """The compaction of the job landed and left its mark; the expiry, whose reply was lost, did not."""
    ref = bench.table()
    bench.rot(ref)
    snapshots = len(bench.catalog.load(ref).snapshots)

    def before(request: StepRequest) -> None:
        if request.operation is EXPIRE:
            raise CommitStateUnknown("the reply was lost")
        base = bench.catalog.load(ref)
        marked = bench.replacement(base)
        marked["summary"][JOB_ID] = request.job_id
        bench.catalog.commit(base, AddSnapshot(marked, "main"))
        raise CommitStateUnknown("the reply was lost")

    bench.before = before
    result = bench.run(COMPACT, EXPIRE)
    assert states(result) == {COMPACT: COMMITTED, EXPIRE: FAILED}
    assert len(bench.catalog.load(ref).snapshots) == snapshots + 1
