"""Work whose thread hangs is given up: table and slot are free, and what the thread brings back does not count."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from types import FunctionType
from typing import Any

import pytest

from icewright.app.worker import Worker
from icewright.core.capacity import Limits
from icewright.core.errors import LeaseLost
from icewright.core.runs import JobState, OperationState
from icewright.core.table import TableMetadata, TableRef
from icewright.flow.evaluator import Evaluator, evaluate_due
from icewright.flow.lease import Lease
from icewright.flow.queue import Planning
from icewright.flow.runtime import Runtime
from icewright.ports import StepRequest
from icewright.ports.work import SupervisedWork, WorkerThreads, current_work, progress
from tests.flow.bench import Bench, detect_due, job_states
from tests.waiting import until

pytestmark = pytest.mark.cases(115)
NEVER = 60.0  # seconds that a thread may hang before a broken test ends


class Hang:
    """A call that does not return until the test releases it."""

    def __init__(self) -> None:
        self.reached, self.released, self.calls = threading.Event(), threading.Event(), 0

    def __call__(self, *_: Any) -> None:
        """Block until the test ends."""
        self.calls += 1
        self.reached.set()
        self.released.wait(NEVER)


class Seconds:
    """A monotonic clock that the test advances."""

    now = 0.0

    def __call__(self) -> float:
        """Return the seconds that the test has let pass."""
        return self.now


@pytest.fixture
def hang() -> Iterator[Hang]:
    """A hanging call, released at the end of the test."""
    call = Hang()
    yield call
    call.released.set()


@contextmanager
def hanging_job(bench: Bench, hang: Hang) -> Iterator[tuple[Worker, Seconds]]:
    """Run a worker of one slot whose first job hangs in the engine; at the end wait for the job's thread."""
    runtime, seconds = bench.runtime(), Seconds()
    detect_due(runtime)
    evaluate_due(runtime, ["lake"])
    Planning(runtime).due()
    bench.before = partial(_hang_before_the_commit, hang)
    worker = Worker(runtime, 1, lambda: None, seconds)
    threads = set(threading.enumerate())
    assert worker.start_queued() == 1
    assert hang.reached.wait(NEVER)
    bench.before = lambda _: None
    yield worker, seconds
    hang.released.set()
    for thread in set(threading.enumerate()) - threads:
        thread.join(NEVER)


def _hang_before_the_commit(hang: Hang, request: StepRequest) -> None:
    hang()
    request.check()  # as engines do before each commit


def made_by(module: str, call: Callable[..., Any]) -> Callable[..., Any]:
    """The call, as if a function of this module made it."""

    def made(*arguments: Any) -> Any:
        return call(*arguments)

    return FunctionType(made.__code__, {"__name__": module}, closure=made.__closure__)


def hang_loads(bench: Bench, hang: Hang, catalog: str, module: str = "icewright.adapters.catalogs.fake") -> None:
    """Let requests for a table, which this module makes, have no answer until the test releases them."""
    load = bench.catalogs[catalog].load

    def hanging(ref: TableRef) -> TableMetadata:
        hang()
        return load(ref)

    bench.catalogs[catalog].load = made_by(module, hanging)  # type: ignore[method-assign]


def pass_seconds(worker: Worker, seconds: Seconds, count: float) -> None:
    """Let time pass without progress, with two looks of the supervisor."""
    for _ in range(2):
        seconds.now += count / 2
        worker.supervise()


def _time_out(bench: Bench, _worker: Worker, _seconds: Seconds) -> None:
    bench.clock.advance(hours=2)


def _cancel(bench: Bench, _worker: Worker, _seconds: Seconds) -> None:
    (job,) = bench.store.jobs.list()
    assert bench.store.jobs.request_cancel(job.job_id, bench.clock.now())


def _stall(_bench: Bench, worker: Worker, seconds: Seconds) -> None:
    pass_seconds(worker, seconds, 1790)
    assert worker.busy == 1


@pytest.mark.parametrize(
    ("end", "state", "reason"),
    [
        (_time_out, JobState.CANCELLED, "cancelled: it ran longer than execute.timeout_seconds (3600); its thread"),
        (_cancel, JobState.CANCELLED, "cancelled: it was asked to stop; its thread hangs in"),
        (_stall, JobState.INTERRUPTED, "stopped: it made no progress for execute.stall_seconds (1800); its thread"),
    ],
)
def test_a_job_whose_thread_hangs_past_its_end_frees_its_slot_and_its_table(
    bench: Bench, hang: Hang, end: Callable[[Bench, Worker, Seconds], None], state: JobState, reason: str
) -> None:
    """The job is recorded with the place where it hangs; the thread comes back to nothing that it may write."""
    ref = bench.table()
    with hanging_job(bench, hang) as (worker, seconds):
        pass_seconds(worker, seconds, 4)
        end(bench, worker, seconds)
        pass_seconds(worker, seconds, 12)
        assert worker.busy == 1, "the thread has ten seconds to end by itself"
        pass_seconds(worker, seconds, 20)
        assert worker.busy == 0
        (job,) = bench.store.jobs.list()
        assert job.state is state
        assert job.summary.startswith(reason)
        row = bench.store.tables.get(ref)
        assert row is not None
        assert row.job_id is None
        recorded = bench.store.runs.list(job.job_id)
        assert {run["state"] for run in recorded} == {OperationState.DEFERRED}
    (job,) = bench.store.jobs.list()
    assert job.state is state
    assert bench.store.runs.list(job.job_id) == recorded
    assert bench.events("job_returned") == [{"job_id": job.job_id, "table": str(ref)}]
    assert not bench.events("job_crashed")


def test_a_table_whose_earlier_job_hangs_costs_no_second_thread(bench: Bench, hang: Hang) -> None:
    """The next job ends at once, deferred; when the thread is back, jobs run again."""
    ref = bench.table()
    with hanging_job(bench, hang) as (worker, seconds):
        _time_out(bench, worker, seconds)
        pass_seconds(worker, seconds, 40)
        runtime = bench.runtime()
        evaluate_due(runtime, ["lake"])
        bench.clock.advance(hours=3)
        assert Planning(runtime).due() == 1
        worker.start_queued()
        assert hang.calls == 1
        job = bench.store.jobs.list(ref)[0]
        assert job.summary.startswith("cancelled: an earlier job on the table,")
    bench.clock.advance(hours=3)
    runtime = bench.runtime()
    evaluate_due(runtime, ["lake"])
    assert Planning(runtime).due() == 1
    worker.start_queued()
    assert worker.wait(timedelta(seconds=NEVER))
    assert job_states(bench)[-1] is JobState.SUCCEEDED


def test_a_job_that_works_when_its_process_ends_blames_no_storage(bench: Bench, hang: Hang) -> None:
    """It is given up too, and is due again for the others; only a thread that did nothing for seconds hangs."""
    ref = bench.table()
    with hanging_job(bench, hang) as (worker, _):
        worker.give_up_all()
    (job,) = bench.store.jobs.list(ref)
    assert (job.state, job.summary) == (JobState.CANCELLED, "cancelled: the process that runs it stops")
    assert not bench.store.breakers.list()


def test_a_job_that_makes_progress_past_its_end_is_left_to_end_by_itself(bench: Bench, hang: Hang) -> None:
    """Its thread finds the end at its next check; only a thread that does nothing is given up."""
    bench.table()
    with hanging_job(bench, hang) as (worker, seconds):
        _time_out(bench, worker, seconds)
        for _ in range(20):
            seconds.now += 4
            worker._running[0].lease.work.progress()
            worker.supervise()
        assert worker.busy == 1


@pytest.mark.cases(114, 115)
@pytest.mark.parametrize(
    ("module", "resource"),
    [("icewright.adapters.catalogs.fake", "catalog pond"), ("icewright.adapters.files.local", "storage s3://pond")],
    ids=["catalog", "storage"],
)
def test_jobs_that_wait_for_an_answer_take_no_slots_from_the_tables_of_others(
    bench: Bench, hang: Hang, module: str, resource: str
) -> None:
    """For five seconds all slots and all room of the limits is theirs; after a minute they are given up."""
    refs = [bench.table(f"t{number}", catalog="pond") for number in range(3)]
    bench.limits, seconds = Limits(total=3), Seconds()
    runtime = bench.runtime()
    detect_due(runtime)
    evaluate_due(runtime, ["pond"])
    assert Planning(runtime).due() == 3
    hang_loads(bench, hang, "pond", module)
    worker = Worker(runtime, 3, lambda: None, seconds)
    threads = set(threading.enumerate())
    assert worker.start_queued() == 3
    until(lambda: hang.calls == 3)
    bench.table("well")
    bench.clock.advance(minutes=2)
    detect_due(runtime)
    evaluate_due(runtime, ["lake"])
    assert (Planning(runtime).due(), worker.start_queued()) == (0, 0)
    seconds.now += 6
    worker.supervise()
    assert [(breaker.resource, breaker.failures) for breaker in bench.store.breakers.list()] == [(resource, 3)]
    assert (Planning(runtime).due(), worker.start_queued()) == (1, 1)
    until(lambda: JobState.SUCCEEDED in job_states(bench))
    pass_seconds(worker, seconds, 50)
    until(lambda: worker.busy == 3)  # the thread of the well table ends after its job
    pass_seconds(worker, seconds, 30)
    assert worker.busy == 0
    for ref in refs:
        (job,) = bench.store.jobs.list(ref)
        assert job.state is JobState.CANCELLED
        assert job.summary.startswith(f"cancelled: unavailable: {resource} does not answer; its thread hangs in")
    hang.released.set()
    for thread in set(threading.enumerate()) - threads:
        thread.join(NEVER)


def test_one_job_that_waits_for_a_catalog_is_left_to_end_by_itself(bench: Bench, hang: Hang) -> None:
    """A single slow answer is no fault of the catalog: the breaker stays closed, and the job holds its table."""
    bench.table()
    runtime, seconds = bench.runtime(), Seconds()
    detect_due(runtime)
    evaluate_due(runtime, ["lake"])
    Planning(runtime).due()
    hang_loads(bench, hang, "lake")
    worker = Worker(runtime, 1, lambda: None, seconds)
    worker.start_queued()
    until(lambda: hang.calls == 1)
    for _ in range(20):
        pass_seconds(worker, seconds, 60)
    assert worker.busy == 1
    hang.released.set()
    assert worker.wait(timedelta(seconds=NEVER))
    assert job_states(bench) == [JobState.SUCCEEDED]


def test_jobs_of_a_slow_catalog_leave_a_slot_to_others(bench: Bench, hang: Hang) -> None:
    """Of three slots it has two while another catalog has jobs, though its own were queued before; else all."""
    for number in range(4):
        bench.table(f"t{number}", catalog="pond")
    bench.limits = Limits(total=5)
    runtime, seconds = bench.runtime(), Seconds()
    detect_due(runtime)
    evaluate_due(runtime, ["pond"])
    Planning(runtime).due()
    bench.table("well")
    bench.clock.advance(minutes=2)
    detect_due(runtime)
    evaluate_due(runtime, ["lake"])
    Planning(runtime).due()
    bench.before = partial(_hang_before_the_commit, hang)
    worker = Worker(runtime, 3, lambda: None, seconds)
    assert worker.start_queued() == 3
    until(lambda: hang.calls == 3)
    running = [job.ref.catalog for job in bench.store.jobs.list() if job.state is JobState.RUNNING]
    assert sorted(running) == ["lake", "pond", "pond"]
    hang.released.set()
    assert worker.wait(timedelta(seconds=NEVER))
    assert worker.start_queued() == 2
    assert worker.wait(timedelta(seconds=NEVER))
    assert job_states(bench) == [JobState.SUCCEEDED] * 5


def test_a_job_that_spark_does_not_schedule_leaves_its_slot(bench: Bench, hang: Hang) -> None:
    """The one slot is its own for half a minute; then other tables have it, and the job goes on waiting."""
    bench.table()
    runtime, seconds = bench.runtime(), Seconds()
    detect_due(runtime)
    evaluate_due(runtime, ["lake"])
    Planning(runtime).due()
    bench.before = made_by("icewright.adapters.engines.spark.fake", hang)
    worker = Worker(runtime, 1, lambda: None, seconds)
    assert worker.start_queued() == 1
    until(lambda: hang.calls == 1)
    bench.before = lambda _: None
    bench.table("well")
    bench.clock.advance(minutes=2)
    detect_due(runtime)
    evaluate_due(runtime, ["lake"])
    Planning(runtime).due()
    pass_seconds(worker, seconds, 20)
    assert worker.start_queued() == 0
    pass_seconds(worker, seconds, 20)
    assert worker.start_queued() == 1
    until(lambda: JobState.SUCCEEDED in job_states(bench))
    assert bench.store.breakers.list() == []
    hang.released.set()
    assert worker.wait(timedelta(seconds=NEVER))
    assert job_states(bench) == [JobState.SUCCEEDED] * 2


def test_the_lease_of_work_without_progress_is_not_renewed(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where nobody supervises the work, as with `icewright run`: others may take the table after a while."""
    monkeypatch.setattr("icewright.flow.lease.HEARTBEAT_SECONDS", 0.001)
    bench.table()
    runtime, seconds = bench.runtime(), Seconds()
    renewed = threading.Event()

    def heartbeat(*_: Any) -> object:
        renewed.set()
        raise LeaseLost("not of interest")

    bench.store.jobs.heartbeat = heartbeat  # type: ignore[assignment,method-assign]
    lease = Lease(runtime, "job", timedelta(hours=1), SupervisedWork("job", seconds))
    with lease.heartbeat():
        assert renewed.wait(NEVER)
        seconds.now += 1801
        (thread,) = (thread for thread in threading.enumerate() if thread.name == "heartbeat job")
        thread.join(NEVER)
        assert not thread.is_alive()


@contextmanager
def hanging_tables(bench: Bench, hang: Hang, names: set[str]) -> Iterator[Runtime]:
    """Let reads of these tables hang until the test releases them."""
    facts = bench.files.facts

    def read(metadata: Any, thresholds: Any) -> Any:
        if metadata.ref.name in names:
            hang()
        return facts(metadata, thresholds)

    bench.files.facts = read  # type: ignore[method-assign]
    yield bench.runtime()


@pytest.mark.usefixtures("short_rounds")
def test_tables_that_hang_stop_no_evaluation_of_others(bench: Bench, hang: Hang) -> None:
    """More of them than there are threads: each is unreadable after its time-out, and its thread is replaced."""
    hung = {bench.table(f"hung{number}").name for number in range(6)}
    bench.table("well")
    with hanging_tables(bench, hang, hung) as runtime:
        detect_due(runtime)
        evaluator = Evaluator(runtime, ["lake"])
        evaluator.due()
        until(lambda: hang.calls == 4)
        bench.clock.advance(seconds=901)
        evaluator.due()
        until(lambda: hang.calls == 6 and "well" in evaluated(bench))
        bench.clock.advance(seconds=901)
        evaluator.due()
        rows = {row.ref.name: row for row in bench.store.tables.list()}
        assert rows["well"].evaluated_at is not None
        assert rows["well"].error is None
        for name in hung:
            message = f"lake.sales.{name}: the evaluation did not finish within 900 s (evaluate.timeout_seconds)"
            assert message in str(rows[name].error)
        for _ in range(3):  # every retry is refused while the threads hang
            bench.clock.advance(hours=2)
            evaluator.due()
        assert hang.calls == len(hung)
        hang.released.set()
        _until_evaluated(bench, evaluator, hung)
        evaluator.close()


def evaluated(bench: Bench) -> set[str]:
    """Return the names of the tables that were evaluated."""
    return {row.ref.name for row in bench.store.tables.list() if row.evaluated_at is not None}


def until_well_is_evaluated(bench: Bench, hang: Hang, runtime: Runtime) -> Evaluator:
    """Evaluate until all threads hang, and then until the table `well`, the last that is due, is evaluated."""
    seconds = Seconds()
    evaluator = Evaluator(runtime, ["lake", "pond"], seconds)
    evaluator.due()
    until(lambda: hang.calls == 4)
    for _ in range(2):
        seconds.now += 6
        evaluator.due()
    until(lambda: evaluated(bench) == {"well"})
    return evaluator


@pytest.mark.cases(114)
@pytest.mark.usefixtures("short_rounds")
def test_a_catalog_that_hangs_stops_no_evaluation_of_the_tables_of_others(bench: Bench, hang: Hang) -> None:
    """Its tables take all threads, for five seconds; then the rest is put off, and one of them probes the catalog."""
    hung = {bench.table(f"t{number}", catalog="pond").name for number in range(6)}
    bench.table("well")
    hang_loads(bench, hang, "pond")
    runtime = bench.runtime()
    detect_due(runtime)
    bench.store.tables.schedule_evaluation([TableRef("lake", ("sales",), "well")], bench.clock.now())  # the last
    evaluator = until_well_is_evaluated(bench, hang, runtime)
    assert [breaker.resource for breaker in bench.store.breakers.list()] == ["catalog pond"]
    bench.clock.advance(minutes=1)
    evaluator.due()
    evaluator.due()
    until(lambda: hang.calls == 5)
    hang.released.set()
    for _ in range(30):
        evaluator.due()
    assert evaluated(bench) == {"well", *hung}
    assert not bench.store.breakers.list()
    evaluator.close()


@pytest.mark.cases(115)
@pytest.mark.usefixtures("short_rounds")
def test_a_storage_place_that_hangs_stops_no_evaluation_elsewhere(bench: Bench, hang: Hang) -> None:
    """Twenty of its tables hang: after five seconds the rest is put off, and comes when the place answers."""
    hung = {bench.table(f"t{number}", catalog="pond").name for number in range(20)}
    bench.table("well")
    runtime = bench.runtime()
    detect_due(runtime)
    hang_loads(bench, hang, "pond", "icewright.adapters.files.local")
    bench.clock.advance(seconds=1)
    bench.store.tables.schedule_evaluation([TableRef("lake", ("sales",), "well")], bench.clock.now())  # the last
    evaluator = until_well_is_evaluated(bench, hang, runtime)
    assert [breaker.resource for breaker in bench.store.breakers.list()] == ["storage s3://pond"]
    hang.released.set()
    for _ in range(30):
        bench.clock.advance(minutes=1)
        evaluator.due()
    until(lambda: evaluated(bench) == {"well", *hung})
    evaluator.close()


def _until_evaluated(bench: Bench, evaluator: Evaluator, names: set[str]) -> None:
    def all_evaluated() -> bool:
        evaluator.due()
        return all(row.error is None for row in bench.store.tables.list() if row.ref.name in names)

    until(all_evaluated, "the evaluation of tables that are readable again")


@pytest.mark.usefixtures("short_rounds")
def test_an_evaluation_that_returns_late_is_not_recorded(bench: Bench, hang: Hang) -> None:
    """Nor is its error: the record of the time-out stays until a new evaluation."""
    ref = bench.table("hung")
    with hanging_tables(bench, hang, {"hung"}) as runtime:
        detect_due(runtime)
        threads = set(threading.enumerate())
        evaluator = Evaluator(runtime, ["lake"])
        evaluator.due()
        bench.clock.advance(seconds=901)
        evaluator.due()
        evaluator.close()
        hang.released.set()
        for thread in set(threading.enumerate()) - threads:
            thread.join(NEVER)
    row = bench.store.tables.get(ref)
    assert row is not None
    assert "did not finish within" in str(row.error)


def test_jobs_for_which_the_process_has_no_threads_are_due_again_at_once(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They hold no slot and no table, and blame none; the loop fails, and waits for longer each time."""
    bench.table(), bench.table("other")
    runtime, ended = bench.runtime(), list[None]()
    detect_due(runtime)
    evaluate_due(runtime, ["lake"])
    planning, worker = Planning(runtime), Worker(runtime, 2, lambda: ended.append(None))
    assert planning.due() == 2

    def refuse(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError, match="new thread"):
            worker.start_queued()
    assert (worker.busy, job_states(bench)) == (0, [JobState.INTERRUPTED] * 2)
    for job in bench.store.jobs.list():
        assert job.summary == "stopped: can't start new thread"
        assert bench.store.jobs.count_consecutive(job.ref, JobState.INTERRUPTED) == 0
    ended.clear()
    bench.clock.advance(seconds=1)
    evaluate_due(runtime, ["lake"])
    assert (planning.due(), worker.start_queued()) == (2, 2)
    until(lambda: len(ended) == 2)
    assert sorted(job_states(bench)) == [JobState.INTERRUPTED] * 2 + [JobState.SUCCEEDED] * 2


def test_threads_of_a_pool_belong_to_the_work_that_made_the_pool() -> None:
    """They mark its progress, they are barred with it, and they tell where it hangs."""
    work, before = SupervisedWork("some work"), current_work()
    with work.attached(), WorkerThreads(1) as pool:
        assert pool.submit(current_work).result() is work
        work.abandon()
        with pytest.raises(LeaseLost, match="some work was given up while its thread hung"):
            pool.submit(progress).result()
    assert current_work() is before


LOOK_DURING_COLLECTIONS = """
import gc, threading
from icewright.ports.work import SupervisedWork

def begin_a_thread(phase, info):  # takes the interpreter's lock of its threads, as some destructors do
    if looks:
        threading.Thread(target=int).start()

looks, ends, work = False, threading.Event(), SupervisedWork("job")
gc.callbacks.append(begin_a_thread)
with work.attached():
    for _ in range(12):
        threading.Thread(target=ends.wait, daemon=True).start()
    gc.set_threshold(1)
    looks = True
    site = work.call_site()
    looks = False
assert site is None, site
assert gc.isenabled()
"""


def test_a_look_at_threads_during_a_garbage_collection_does_not_stop_the_process() -> None:
    """The interpreter would wait for a lock that it holds: no thread goes on, and SIGTERM ends nothing."""
    done = subprocess.run([sys.executable, "-c", LOOK_DURING_COLLECTIONS], timeout=20, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
