"""What every state store does for loops and workers: turns, leases, and a queue from which each job is taken once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from threading import Barrier

import pytest

from icewright.adapters.store.jobs import LEASE
from icewright.adapters.store.sql import SqlStore
from icewright.core.plan import Active, Deferred, PlannedJob
from icewright.core.policy import Operation
from icewright.core.runs import JobState, OperationState, Outcome, committed
from icewright.core.table import TableRef
from icewright.core.tally import Total
from icewright.core.verdicts import evaluate
from icewright.ports import LeaseStatus, Pointer, ProcessRow, RunRow, SnapshotPin, Trigger
from icewright.testing import NOW, REF, facts, knobs, metadata, partition

COMPACT, EXPIRE = Operation.COMPACT, Operation.EXPIRE_SNAPSHOTS
PLANNER = Trigger("service", "me", "planner:1:1")
ME = "worker:1:1"
MINUTE = timedelta(minutes=1)


def refs(count: int) -> list[TableRef]:
    """So many tables."""
    return [TableRef("lake", ("sales",), f"t{number:03d}") for number in range(count)]


def seen(store: SqlStore, tables: Sequence[TableRef]) -> None:
    """The catalog lists them."""
    store.tables.record_listing("lake", [Pointer(ref, "m1") for ref in tables], NOW)


def planned(ref: TableRef, score: float = 1.0, operations: tuple[Operation, ...] = (COMPACT,)) -> PlannedJob:
    """What a plan admits."""
    return PlannedJob(ref, f"u-{ref.name}", operations, score, 1.0, 0.25, "due", "default", on_pool=True)


def queued(store: SqlStore, tables: Sequence[TableRef]) -> list[str]:
    """Each table has a job that waits, the last ones the best."""
    made = [store.jobs.enqueue(planned(ref, score), PLANNER, NOW) for score, ref in enumerate(tables)]
    return [job_id for job_id in made if job_id is not None]


def together(count: int, work: Callable[[int], object]) -> list[object]:
    """What so many threads answer that begin at one moment."""
    gate = Barrier(count)

    def begin(number: int) -> object:
        gate.wait()
        return work(number)

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(begin, range(count)))


def test_the_best_job_is_taken_first_and_each_once(store: SqlStore) -> None:
    """By score; what is taken runs, has its worker's name, and is nobody else's."""
    tables = refs(5)
    seen(store, tables)
    jobs = queued(store, tables)
    first = store.jobs.dequeue(ME, ["lake"], NOW + MINUTE, 2)
    assert [job.job_id for job in first] == [jobs[4], jobs[3]]
    assert [(job.state, job.holder, job.started) for job in first] == [(JobState.RUNNING, ME, NOW + MINUTE)] * 2
    assert len(store.jobs.dequeue("other:1:1", ["lake"], NOW, 10)) == 3
    assert not store.jobs.dequeue(ME, ["lake"], NOW, 10)
    assert not store.jobs.dequeue(ME, ["pond"], NOW, 10)


def test_workers_that_take_at_one_moment_share_the_queue(store: SqlStore) -> None:
    """No job is taken twice and none is left, however many take."""
    tables = refs(40)
    seen(store, tables)
    jobs = queued(store, tables)

    def work(number: int) -> list[str]:
        mine: list[str] = []
        while taken := store.jobs.dequeue(f"w:{number}:1", ["lake"], NOW, 3):
            mine += [job.job_id for job in taken]
        return mine

    counts = Counter(job_id for mine in together(6, work) for job_id in mine)  # type: ignore[attr-defined]
    assert counts == Counter(dict.fromkeys(jobs, 1))


def test_a_table_is_queued_once(store: SqlStore) -> None:
    """Of many that queue a job for one table at one moment, one does; while it is open nobody else can."""
    seen(store, [REF])
    for _ in range(3):
        made = together(6, lambda _: store.jobs.enqueue(planned(REF), PLANNER, NOW))
        (job_id,) = [job for job in made if job is not None]
        assert store.jobs.enqueue(planned(REF), PLANNER, NOW) is None
        (job,) = store.jobs.dequeue(ME, ["lake"], NOW, 9)
        assert job.job_id == job_id
        store.jobs.finish(job.job_id, JobState.SUCCEEDED, "", NOW)


def test_what_is_not_known_or_dropped_is_not_queued(store: SqlStore) -> None:
    """A job needs a table."""
    assert store.jobs.enqueue(planned(REF), PLANNER, NOW) is None
    seen(store, [REF])
    seen(store, [])
    assert store.jobs.enqueue(planned(REF), PLANNER, NOW) is None


def test_a_job_that_begins_at_once_takes_the_place_of_one_that_waits(store: SqlStore) -> None:
    """But never of one that runs; and of a claim and a taking at one moment one wins."""
    seen(store, [REF])
    for _ in range(5):
        (waits,) = queued(store, [REF])
        claim, took = together(
            2,
            lambda number: (
                store.jobs.dequeue(ME, ["lake"], NOW, 1)
                if number
                else store.jobs.claim(REF, "u", (EXPIRE,), PLANNER, NOW)
            ),
        )
        assert (claim is None) == bool(took)
        row = store.tables.get(REF)
        assert row is not None
        assert row.held_by == (waits if took else claim)
        found = store.jobs.get(waits)
        assert found is not None
        assert found.state is (JobState.RUNNING if took else JobState.CANCELLED)
        store.jobs.finish(str(row.held_by), JobState.SUCCEEDED, "", NOW)


def test_a_queued_job_lets_readers_pin(store: SqlStore) -> None:
    """Only one that runs may be about to expire what the reader asks for."""
    seen(store, [REF])
    queued(store, [REF])
    pin = SnapshotPin("reader", 1, NOW, NOW + MINUTE, "me")
    assert store.pins.add(REF, "u", pin)
    (job,) = store.jobs.dequeue(ME, ["lake"], NOW, 1)
    assert not store.pins.add(REF, "u", pin)
    assert store.pins.add(REF, "u", pin, job_id=job.job_id)
    store.jobs.finish(job.job_id, JobState.SUCCEEDED, "", NOW)
    assert store.pins.add(REF, "u", pin)


def test_cancelling(store: SqlStore) -> None:
    """What waits ends at once and frees its table; what runs is asked; what has ended cannot be. Each counts once."""
    tables = refs(2)
    seen(store, tables)
    first, second = queued(store, tables)
    assert store.jobs.request_cancel(first, NOW)
    found = store.jobs.get(first)
    assert found is not None
    assert (found.state, found.finished) == (JobState.CANCELLED, NOW)
    (job,) = store.jobs.dequeue(ME, ["lake"], NOW, 9)
    assert job.job_id == second
    assert store.jobs.request_cancel(second, NOW)
    assert store.jobs.heartbeat(second, NOW) is LeaseStatus.CANCELLED
    store.jobs.finish(second, JobState.CANCELLED, "", NOW)
    assert not store.jobs.request_cancel(second, NOW)
    assert [row.held_by for row in store.tables.list()] == [None, None]
    assert store.measures.read(NOW, (), ()).totals == {Total("jobs", label="cancelled"): 2}


def test_only_what_runs_can_be_interrupted(store: SqlStore) -> None:
    """A job that waits for days is not lost: its lease begins when it is taken."""
    tables = refs(2)
    seen(store, tables)
    queued(store, tables)
    late = NOW + timedelta(days=3)
    assert store.jobs.end_interrupted(late, lambda _: True) == []
    (job,) = store.jobs.dequeue(ME, ["lake"], late, 1)
    assert store.jobs.end_interrupted(late + LEASE, lambda _: False) == []
    (lost,) = store.jobs.end_interrupted(late + LEASE + MINUTE, lambda _: False)
    assert lost.job_id == job.job_id
    row = store.tables.get(job.ref)
    assert row is not None
    assert (row.held_by, row.evaluate_at) == (None, late + LEASE + MINUTE)


def test_usage(store: SqlStore) -> None:
    """What waits and runs, and what was spent today: by catalog all of it, by pool what Spark did."""
    tables = refs(3)
    seen(store, tables)
    for ref in tables:
        store.jobs.enqueue(planned(ref), PLANNER, NOW)
    (job,) = store.jobs.dequeue(ME, ["lake"], NOW, 1)
    _ran(store, job.job_id, job.ref, COMPACT, 0.5)
    _ran(store, job.job_id, job.ref, COMPACT, 0.25, hours=-20)  # of yesterday
    assert len(store.planning.usage(NOW).active) == 3
    store.jobs.finish(job.job_id, JobState.SUCCEEDED, "", NOW)
    manual = store.jobs.claim(job.ref, "u", (EXPIRE,), PLANNER, NOW, "default")
    assert manual is not None
    _ran(store, manual, job.ref, EXPIRE, 0.125)
    found = store.planning.usage(NOW.replace(hour=0))
    assert (found.spent_by_pool, found.spent_by_catalog) == ({"default": 0.5}, {"lake": 0.625})
    waiting = {Active(ref, "default", (COMPACT,), on_pool=True, cost=0.25) for ref in tables if ref != job.ref}
    runs = Active(job.ref, "default", (EXPIRE,), on_pool=False, cost=0.0)
    assert set(found.active) == {*waiting, runs}


def _ran(store: SqlStore, job_id: str, ref: TableRef, operation: Operation, spent: float, hours: float = 0) -> None:
    outcome: Outcome = committed(operation, "done", {"gb_hours": spent})
    assert outcome.state is OperationState.COMMITTED
    at = NOW + timedelta(hours=hours)
    store.runs.record(RunRow(job_id, outcome, at, at, "m2", "", {}, {}), ref)


def test_candidates_and_what_they_wait_for(store: SqlStore) -> None:
    """The due verdicts of the last evaluation with their terms; what the plan said of them is kept until it changes."""
    seen(store, [REF])
    said = knobs({"importance": "high", "windows": "sat", "compact.min_input_files": 2})
    old = metadata([1000 - hours for hours in range(10)], ref=REF)
    store.tables.record_evaluation(evaluate(facts(partition(files=10, mb=1), of=old), said, {}, NOW), NOW)
    (found,) = store.planning.candidates(["lake"])
    assert found.wishes.keys() >= {COMPACT, EXPIRE}
    assert (found.wishes[COMPACT].on_pool, found.wishes[EXPIRE].on_pool) == (True, False)
    assert (found.importance, found.windows, found.heat, found.blocked, found.due_since) == (
        "high",
        "sat",
        1,
        None,
        NOW,
    )
    store.planning.record_deferred([Deferred(REF, COMPACT, "global limit (1) reached", 3.0, 1)])
    store.planning.record_deferred([Deferred(REF, COMPACT, "global limit (1) reached", 3.0, 1)])
    assert store.planning.candidates(["pond"]) == []
    store.tables.pause(REF, "somebody looks")
    (found,) = store.planning.candidates(["lake"])
    assert found.blocked == "paused: somebody looks"


def test_leases(store: SqlStore) -> None:
    """One holder at a time, until it gives back or its time is over; it may renew."""
    until = NOW + MINUTE
    holders = together(5, lambda number: store.leases.acquire("plan", f"h:{number}:1", NOW, until))
    assert len(set(holders)) == 1
    holder = str(holders[0])
    assert store.leases.acquire("plan", holder, NOW, until + MINUTE) == holder
    assert store.leases.acquire("plan", "other", until, until + MINUTE) == holder
    assert store.leases.acquire("other thing", "other", NOW, until) == "other"
    store.leases.release("plan", "other")
    assert store.leases.acquire("plan", "other", NOW, until) == holder
    store.leases.release("plan", holder)
    assert store.leases.acquire("plan", "other", NOW, until) == "other"
    assert store.leases.acquire("plan", holder, until, until + MINUTE) == holder


def test_catalogs_take_turns(store: SqlStore) -> None:
    """Each is asked by one process, and again when it is time, or when somebody says that something moved."""
    names = ["lake", "pond"]
    mine = together(4, lambda number: store.catalogs.claim(names, f"h:{number}:1", NOW, NOW + MINUTE))
    assert sorted(row.name for rows in mine for row in rows) == names  # type: ignore[attr-defined]
    store.catalogs.record_read("lake", NOW, NOW, NOW + 5 * MINUTE)
    store.catalogs.record_failure("pond", "down", NOW + 2 * MINUTE)
    found = {row.name: (row.failures, row.error, row.detected_at) for row in store.catalogs.list()}
    assert found == {"lake": (0, None, NOW), "pond": (1, "down", None)}
    again = store.catalogs.claim(names, ME, NOW + 2 * MINUTE, NOW + 3 * MINUTE)
    assert [row.name for row in again] == ["pond"]
    store.catalogs.detect_soon(["lake"], NOW + 3 * MINUTE)
    assert {row.name for row in store.catalogs.claim(names, ME, NOW + 3 * MINUTE, NOW + 4 * MINUTE)} == {"lake", "pond"}


@pytest.mark.parametrize("dead", [True, False])
def test_what_a_process_had_claimed(store: SqlStore, dead: bool) -> None:
    """It is free again when the process is known to have ended, else when its time is over."""
    seen(store, refs(3))
    store.catalogs.claim(["lake"], ME, NOW, NOW + MINUTE)
    assert len(store.tables.claim_evaluations(["lake"], ME, NOW, NOW + MINUTE, 9)) == 3
    store.processes.release_claims(lambda holder: dead and holder == ME)
    assert len(store.tables.claim_evaluations(["lake"], "other", NOW, NOW + MINUTE, 9)) == (3 if dead else 0)
    assert len(store.catalogs.claim(["lake"], "other", NOW, NOW + MINUTE)) == (1 if dead else 0)
    assert len(store.tables.claim_evaluations(["lake"], "third", NOW + MINUTE, NOW + 2 * MINUTE, 2)) == 2


def test_a_table_that_is_worked_on_is_not_evaluated(store: SqlStore) -> None:
    """Its job does so at its end; one whose job waits is."""
    seen(store, [REF])
    queued(store, [REF])
    assert len(store.tables.claim_evaluations(["lake"], ME, NOW, NOW, 9)) == 1
    store.jobs.dequeue(ME, ["lake"], NOW, 1)
    assert store.tables.claim_evaluations(["lake"], ME, NOW, NOW + MINUTE, 9) == []


def test_processes_and_pools(store: SqlStore) -> None:
    """What each said last, until it says that it is gone."""
    row = ProcessRow(ME, "worker", NOW, NOW, 2, {"pools": {}})
    later = ProcessRow(ME, "worker", NOW + MINUTE, NOW + MINUTE, 3, {"pools": {"default": {"cores": 2}}})
    store.processes.record_heartbeat(row)
    store.processes.record_heartbeat(later)
    (found,) = store.processes.list()
    assert (found.started, found.heartbeat, found.slots, found.details) == (NOW, NOW + MINUTE, 3, later.details)
    store.processes.deregister([ME])
    assert store.processes.list() == []
    store.planning.set_pool_limit("default", 2, NOW)
    store.planning.set_pool_limit("default", 1, NOW)
    assert store.planning.pool_limits() == {"default": 1}
