"""A store that fails for a moment costs no table anything: what was begun is taken up again as soon as it answers."""

from __future__ import annotations

import threading
from typing import NoReturn

import pytest
from psycopg.errors import DiskFull
from sqlalchemy.exc import OperationalError

from icewright.adapters.store.coordination import SqlFleetPauses
from icewright.adapters.store.failures import unavailable
from icewright.adapters.store.history import SqlRuns
from icewright.adapters.store.registrations import SqlRegistrations
from icewright.app.worker import Worker
from icewright.core.errors import StoreUnavailable
from icewright.core.runs import JobState
from icewright.core.table import TableRef
from icewright.flow.evaluator import Evaluator, evaluate_due
from icewright.flow.queue import Planning
from icewright.ports import FleetPause, RunRow, StepRequest
from icewright.ports.rows import Registration
from tests.flow.bench import EXPIRE, Bench, detect_due, job_states

pytestmark = pytest.mark.cases(120)


def fail_once(bench: Bench) -> None:
    """Let the store fail the next evaluation of a table."""
    faults = [StoreUnavailable("away")]

    class Away(SqlRegistrations):
        def get(self, ref: TableRef, table_uuid: str) -> Registration | None:
            if faults:
                raise faults.pop()
            return super().get(ref, table_uuid)

    bench.store.registrations = Away(bench.store.db)


def test_a_store_that_fails_during_an_evaluation_makes_no_table_unreadable(bench: Bench) -> None:
    """The table is evaluated in the next round, by the process that has it: nothing waits for the end of its claim."""
    ref, runtime = bench.table(), bench.runtime()
    detect_due(runtime)
    fail_once(bench)
    evaluator = Evaluator(runtime, ["lake"])
    with pytest.raises(StoreUnavailable):
        evaluator.round()
    (row,) = bench.store.tables.list()
    assert (row.error, bench.events("unreadable")) == (None, [])
    assert evaluator.round() == [ref]
    (row,) = bench.store.tables.list()
    assert row.due_since is not None
    evaluator.close()


def test_a_store_that_fails_after_a_job_keeps_no_table_unevaluated(bench: Bench) -> None:
    """The job's own commit is no change that is looked at again."""
    ref = bench.table()
    fail_once(bench)
    assert bench.run(EXPIRE, ref=ref).state is JobState.SUCCEEDED
    (row,) = bench.store.tables.list()
    assert (row.error, row.due_since, row.evaluated_location) == (None, None, bench.catalog.load(ref).metadata_location)


@pytest.mark.parametrize("begun", [False, True])
def test_a_job_during_which_the_store_is_away_is_planned_again_at_once(bench: Bench, *, begun: bool) -> None:
    """Before its operation begins, or within: it blames no table, and holds none until its lease is over."""
    bench.table()
    runtime, ended = bench.runtime(), threading.Event()
    detect_due(runtime)
    evaluate_due(runtime, ["lake"])
    planning = Planning(runtime)
    assert planning.due() == 1

    class Away(SqlFleetPauses):
        def get(self) -> FleetPause | None:
            raise StoreUnavailable("away")

    def fail(_request: StepRequest) -> NoReturn:
        raise StoreUnavailable("away")

    there = bench.store.fleet, bench.engine.function
    if begun:
        bench.engine.function = fail
    else:
        bench.store.fleet = Away(bench.store.db)
    assert Worker(runtime, 1, ended.set).start_queued() == 1
    assert ended.wait(60)
    bench.store.fleet, bench.engine.function = there
    (job,) = bench.store.jobs.list()
    assert (job.state, job.summary, bench.events("job_crashed")) == (JobState.INTERRUPTED, "stopped: away", [])
    assert bench.store.jobs.count_consecutive(job.ref, JobState.INTERRUPTED) == 0
    bench.clock.advance(seconds=1)
    evaluate_due(runtime, ["lake"])
    assert planning.due() == 1
    (again,) = bench.store.jobs.dequeue("host:1:2", ["lake"], bench.clock.now(), 1)
    assert again.operations == (EXPIRE,)
    assert set(job_states(bench)) == {JobState.INTERRUPTED, JobState.RUNNING}


def test_a_job_whose_run_the_store_does_not_take_counts_for_no_table(bench: Bench) -> None:
    """Its end says that the store was at fault, so that no number of them pauses the table."""
    ref = bench.table()

    class Away(SqlRuns):
        def record(self, row: RunRow, ref: TableRef) -> None:
            raise StoreUnavailable("away")

    bench.store.runs = Away(bench.store.db)
    with pytest.raises(StoreUnavailable):
        bench.run(EXPIRE, ref=ref)
    assert job_states(bench) == [JobState.INTERRUPTED]
    assert bench.store.jobs.count_consecutive(ref, JobState.INTERRUPTED) == 0


def test_a_full_disk_of_the_store_is_named_with_its_remedy(bench: Bench) -> None:
    """By a cycle in the words of the store, as nothing about it is unexpected."""
    bench.table()
    full = unavailable(bench.store.db.engine, OperationalError("", {}, DiskFull("No space left on device")))

    class Full(SqlRuns):
        def record(self, row: RunRow, ref: TableRef) -> None:
            raise full

    bench.store.runs = Full(bench.store.db)
    (job,) = bench.cycle().jobs
    assert job.reason == str(full)
    assert job.reason.endswith(" failed: No space left on device; make room on its disk")
