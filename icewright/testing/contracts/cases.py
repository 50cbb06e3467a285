"""Tables, jobs and runs that the suites of the store share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from threading import Barrier
from typing import TypeVar

import pytest

from icewright.core.effective import Knobs
from icewright.core.plan import PlannedJob
from icewright.core.policy import Operation
from icewright.core.runs import OperationState, Outcome, committed
from icewright.core.table import TableRef
from icewright.core.verdicts import Evaluation, evaluate
from icewright.ports import Pointer, RunRow, Store, TableRow, Trigger
from icewright.testing import NOW, REF, facts, metadata

_Result = TypeVar("_Result")
OTHER = TableRef("lake", ("sales",), "other")
ODD = [
    TableRef("lake", ("a.b", "c"), "d.e"),
    TableRef("lake", ("a",), "b.c.d.e"),
    TableRef("lake", ("it's",), 'dou"ble'),
    TableRef("lake", ("grün", "表"), "e\u0301 ☃"),
    TableRef("lake", ("100%",), "a_b%c :x"),
    TableRef("lake", ("100%",), "aXbYc :x"),
    TableRef("lake", ("[1]", '","'), "back`tick\\ {}"),
]
EXPIRE, COMPACT = Operation.EXPIRE_SNAPSHOTS, Operation.COMPACT
ME = Trigger("cycle", "me", "host:1:2")


def evaluated(ref: TableRef = REF, uuid: str = "u1", at: str = "m1", now: datetime = NOW) -> Evaluation:
    """Return an evaluation of a small table for which an orphan scan is due."""
    base = metadata(ref=ref, table_uuid=uuid, metadata_location=at, location="file:///w/t")
    return evaluate(facts(of=base), Knobs(), {}, now)


def record_tables(store: Store, *names: TableRef, at: str = "m1", now: datetime = NOW) -> int:
    """Record a listing of the catalog `lake` with these tables alone."""
    return store.tables.record_listing("lake", [Pointer(name, at) for name in names or (REF,)], now)


def table_row(store: Store, ref: TableRef = REF) -> TableRow:
    """Return the row of a table that the store knows."""
    return next(r for r in store.tables.list() if r.ref == ref)


def start_job(store: Store, ref: TableRef = REF, now: datetime = NOW, uuid: str = "u1") -> str:
    """Start a job on a table, and return its id."""
    job_id = store.jobs.claim(ref, uuid, (COMPACT, EXPIRE), ME, now)
    assert job_id is not None
    return job_id


def run_row(job_id: str, operation: Operation = EXPIRE, now: datetime = NOW, **more: float) -> RunRow:
    """Return the record of one committed operation of a job."""
    outcome = Outcome(operation, OperationState.COMMITTED, "", "done", more, statements=("CALL 1",), notes=("n",))
    return RunRow(job_id, outcome, now, now, "m2", "p1", {"files": 2}, {"files": 1})


def known_table(store: Store) -> str:
    """Record one table, and return its uuid."""
    store.tables.record_listing("lake", [Pointer(REF, "m1")], NOW)
    return "uuid-1"


PLANNER = Trigger("service", "me", "planner:1:1")
MINUTE = timedelta(minutes=1)
WORKER = "worker:1:1"


def table_refs(count: int) -> list[TableRef]:
    """Return the names of `count` tables."""
    return [TableRef("lake", ("sales",), f"t{number:03d}") for number in range(count)]


def planned_job(ref: TableRef, score: float = 1.0, operations: tuple[Operation, ...] = (COMPACT,)) -> PlannedJob:
    """Return a job as the planner admits it."""
    return PlannedJob(ref, f"u-{ref.name}", operations, score, 1.0, 0.25, "due", "default", on_pool=True)


def enqueue_jobs(store: Store, tables: Sequence[TableRef]) -> list[str]:
    """Queue a job for each table, the last with the best score. Return their ids."""
    job_ids = [store.jobs.enqueue(planned_job(ref, score), PLANNER, NOW) for score, ref in enumerate(tables)]
    return [job_id for job_id in job_ids if job_id is not None]


def concurrently(count: int, work: Callable[[int], _Result]) -> list[_Result]:
    """Run the function in so many threads at one moment. Return their results."""
    gate = Barrier(count)

    def begin(number: int) -> _Result:
        gate.wait()
        return work(number)

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(begin, range(count)))


def record_cost(store: Store, job_id: str, ref: TableRef, operation: Operation, spent: float, hours: float = 0) -> None:
    """Record a run of a job that cost so many GB-hours."""
    outcome: Outcome = committed(operation, "done", {"gb_hours": spent})
    assert outcome.state is OperationState.COMMITTED
    at = NOW + timedelta(hours=hours)
    store.runs.record(RunRow(job_id, outcome, at, at, "m2", "", {}, {}), ref)


def begin_expiry(store: Store, ref: TableRef = REF, now: datetime = NOW, operation: Operation = EXPIRE) -> str:
    """Record the table and start a job on it. Return the id of the job."""
    store.tables.record_listing(ref.catalog, [Pointer(ref, "m1")], now)
    job_id = store.jobs.claim(ref, "u1", (operation,), ME, now)
    assert job_id is not None
    return job_id


def at_once(*actions: Callable[[], object]) -> None:
    """Run the actions at one moment; an error of any of them is raised."""
    concurrently(len(actions), lambda number: actions[number]())


class StoreSuite:
    """The base of the suites: a subclass defines the fixture `store`."""

    @pytest.fixture
    def store(self) -> Store:
        """Return an empty store, for one test."""
        raise NotImplementedError
