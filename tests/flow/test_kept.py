"""What a step had committed before it failed is kept, told, verified and recorded."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from icewright.core.errors import Cancelled, CommitConflict, EngineUnavailable, IcewrightError, LeaseLost
from icewright.core.policy import Operation
from icewright.core.runs import JobState, OperationState, committed, skipped
from icewright.ports import StepRequest
from icewright.testing import partition
from tests.flow.bench import COMPACT, EXPIRE, Bench

METRICS = {"files_merged": 4, "files_written": 1, "bins": 1, "gb_hours": 0.5}
SOME = committed(Operation.COMPACT, "compacted 4 files into 1 in 1 group", METRICS)


def failing(bench: Bench, *errors: IcewrightError) -> Callable[[StepRequest], None]:
    """An engine that commits something, tells it, and raises; after the last error it works."""
    waiting = list(errors)

    def before(request: StepRequest) -> None:
        if request.operation is COMPACT and waiting:
            request.on_partial_result(SOME)
            raise waiting.pop(0)

    return before


@pytest.mark.parametrize(
    ("error", "state"),
    [
        (Cancelled("it was asked to stop"), JobState.CANCELLED),
        (LeaseLost("another process owns the table"), JobState.INTERRUPTED),
    ],
)
@pytest.mark.cases(79)
def test_a_stopped_job_tells_what_it_did(error: IcewrightError, state: JobState, bench: Bench) -> None:
    """The job ends at once; its run is recorded with what was committed and why it ended."""
    bench.rot(bench.table())
    bench.before = failing(bench, error)
    result = bench.run(COMPACT, EXPIRE)
    assert (result.state, bench.asked) == (state, [("orders", COMPACT)])
    outcome, *left = result.outcomes
    assert outcome.state is OperationState.FAILED
    assert {deferral.state for deferral in left} <= {OperationState.DEFERRED}
    assert outcome.metrics["files_merged"] == 4
    assert outcome.summary == f"compacted 4 files into 1 in 1 group; failed: stopped: {error}"
    run, *_ = bench.store.runs.list(str(result.job_id))
    assert run["metrics"]["files_merged"] == 4


def test_a_stopped_job_that_did_nothing_says_so(bench: Bench) -> None:
    """Files that were left uncommitted are in the run's notes."""
    bench.rot(bench.table())

    def before(request: StepRequest) -> None:
        request.on_partial_result(
            skipped(COMPACT, "nothing was committed", notes=("2 uncommitted files are in the ledger",))
        )
        raise Cancelled("it was asked to stop")

    bench.before = before
    (outcome,) = bench.run(COMPACT).outcomes
    assert "2 uncommitted files are in the ledger" in outcome.notes
    assert outcome.metrics == {}


@pytest.mark.cases(75, 79)
def test_a_retry_adds_to_what_was_kept(bench: Bench) -> None:
    """After a conflict, or when Spark died, the rest is planned anew and the numbers are summed."""
    bench.rot(bench.table())
    bench.before = failing(bench, EngineUnavailable("Spark died"), CommitConflict("a writer"))
    result = bench.run(COMPACT)
    assert result.state is JobState.SUCCEEDED
    assert result.outcomes[0].metrics["files_merged"] == 8


@pytest.mark.cases(75)
def test_lost_attempts_are_charged_and_compared_with_the_first_prediction(bench: Bench) -> None:
    """A commit that was lost has cost what it cost; what the last attempt expected is only what others had left."""
    ref = bench.table()
    bench.rot(ref)
    lost = skipped(COMPACT, "nothing was committed", metrics={"gb_hours": 0.25, "files_left": 3})

    def before(request: StepRequest) -> None:
        request.on_partial_result(lost)
        bench.before = lambda _: None
        bench.files.partitions[ref] = (partition(files=100, mb=1),)
        raise CommitConflict("a writer was first")

    bench.before = before
    works = bench.engine.function
    bench.engine.function = lambda request: replace(works(request), metrics=METRICS)
    (outcome,) = bench.run(COMPACT).outcomes
    assert outcome.state is OperationState.COMMITTED
    assert outcome.metrics["gb_hours"] == 0.25 + METRICS["gb_hours"]
    assert outcome.metrics["files_predicted"] == 9  # of ten files, as the first attempt found them
    assert "files_left" not in outcome.metrics


def test_failing_for_good_is_partial_when_something_was_done(bench: Bench) -> None:
    """A job that committed some of its work and failed then did not fail as a whole."""
    bench.rot(bench.table())
    bench.before = failing(bench, *(EngineUnavailable("Spark died") for _ in range(9)))
    assert bench.run(COMPACT).state is JobState.PARTIAL


@pytest.mark.cases(79)
def test_what_was_kept_is_verified(bench: Bench) -> None:
    """A commit that lost rows pauses the table also when the step failed afterwards."""
    bench.rot(ref := bench.table())

    def before(request: StepRequest) -> None:
        now = bench.catalog.load(ref)
        head = now.snapshots[-1]
        summary = {"operation": "replace", "added-records": "1", "deleted-records": "9"}
        lost = replace(head, snapshot_id=999, operation="replace", summary=summary)
        bench.catalog.concurrently(ref, snapshots=(*now.snapshots, lost))
        request.on_partial_result(SOME)
        raise EngineUnavailable("Spark died")

    bench.before = before
    result = bench.run(COMPACT)
    assert "lost 8 of 9 records" in result.summary
    assert "verification failed" in str(bench.store.tables.list()[0].paused)
