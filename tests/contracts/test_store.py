"""The SQL store passes the suites of its ports, and does what only a look at its tables shows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import sqlalchemy as sa

from icewright.adapters.store import database
from icewright.adapters.store.schema import TABLES
from icewright.adapters.store.sql import SqlStore
from icewright.adapters.store.statements import namespace_text
from icewright.core.errors import SchemaMismatch, StoreUnavailable
from icewright.core.runs import FileAction, JobState
from icewright.ports import LeaseStatus, LedgerState, SnapshotPin, Store
from icewright.testing import NOW, REF
from icewright.testing.contracts import (
    AccessTests,
    AlertStoreTests,
    BreakersTests,
    CatalogScheduleTests,
    DeletionLedgerTests,
    EventInboxTests,
    FleetPausesTests,
    JobQueueTests,
    LeasesTests,
    LimitSettingsTests,
    PlanningStateTests,
    PolicyRulesTests,
    ProcessRegistryTests,
    RegistrationsTests,
    RunHistoryTests,
    SnapshotPinsTests,
    TableStateTests,
    ViewsTests,
)
from icewright.testing.contracts.cases import (
    EXPIRE,
    ME,
    MINUTE,
    OTHER,
    PLANNER,
    WORKER,
    StoreSuite,
    begin_expiry,
    enqueue_jobs,
    evaluated,
    known_table,
    planned_job,
    record_tables,
    start_job,
    table_refs,
    table_row,
)


class SqlStores(StoreSuite):
    """The suites run over SQLite and PostgreSQL."""

    @pytest.fixture
    def store(self, store: SqlStore) -> SqlStore:
        """Return the store of `tests/contracts/conftest.py`, over each database."""
        return store


class TestTables(SqlStores, TableStateTests, SnapshotPinsTests, RegistrationsTests):
    @pytest.mark.cases(59)
    def test_odd_names_are_told_apart(self, store: Store) -> None:
        """Names with odd characters have rows of their own."""
        super().test_odd_names_are_told_apart(store)


class TestJobs(SqlStores, JobQueueTests, PlanningStateTests, RunHistoryTests, DeletionLedgerTests):
    @pytest.mark.cases(80, "T9")
    @pytest.mark.parametrize("workers", [2, 16])
    def test_one_of_concurrent_claims_wins(self, store: Store, workers: int) -> None:
        """Of many claims of one table at the same time, one succeeds."""
        super().test_one_of_concurrent_claims_wins(store, workers)


class TestLoops(
    SqlStores,
    CatalogScheduleTests,
    LeasesTests,
    BreakersTests,
    FleetPausesTests,
    LimitSettingsTests,
    ProcessRegistryTests,
    EventInboxTests,
    AlertStoreTests,
):
    pass


class TestAccess(SqlStores, AccessTests, PolicyRulesTests):
    pass


class TestViews(SqlStores, ViewsTests):
    pass


def test_an_older_evaluation_overwrites_no_newer_one(store: SqlStore) -> None:
    """Though the newer one comes to its end while the older has looked at the row, and not written it yet."""
    record_tables(store)
    later, begun = NOW + timedelta(minutes=1), list[Future[None]]()

    with ThreadPoolExecutor(1) as thread:

        @sa.event.listens_for(store.engine, "before_cursor_execute")
        def _meanwhile(_connection: Any, _cursor: Any, statement: str, *_more: Any) -> None:
            if statement.startswith("UPDATE tables") and not begun:
                begun.append(thread.submit(store.tables.record_evaluation, evaluated(at="m2", now=later), later))
                wait(begun, 0.3)  # it waits in turn, where the row is locked

        store.tables.record_evaluation(evaluated(), NOW)
    begun[0].result()
    assert (table_row(store).evaluated_location, table_row(store).evaluated_at) == ("m2", later)


def test_a_job_that_begins_sees_the_pin_that_came_first(store: SqlStore) -> None:
    """Though it begins after the pin has found no job at work, and before the pin is written."""
    uuid = known_table(store)
    pin = SnapshotPin("reader a", 7, NOW, NOW + timedelta(hours=1), "me")
    begun = list[Future[Sequence[SnapshotPin]]]()

    def begin() -> Sequence[SnapshotPin]:
        assert store.jobs.claim(REF, uuid, [EXPIRE], ME, NOW)
        return store.pins.list(REF, uuid)

    with ThreadPoolExecutor(1) as thread:

        @sa.event.listens_for(store.engine, "before_cursor_execute")
        def _meanwhile(_connection: Any, _cursor: Any, statement: str, *_more: Any) -> None:
            if statement.startswith("INSERT INTO pins") and not begun:
                begun.append(thread.submit(begin))
                wait(begun, 0.3)  # it waits in turn

        assert store.pins.add(REF, uuid, pin)
    assert list(begun[0].result()) == [pin]


def test_reads_of_one_thread_share_a_transaction_and_others_do_not(store: SqlStore) -> None:
    """In the block a thread begins one transaction and writes nothing; other threads write, as do later blocks."""
    begun: list[sa.Connection] = []
    sa.event.listen(store.engine, "begin", begun.append)
    with store.reading_together(), store.reading_together():
        assert (store.fleet.get(), store.rules.list(), store.breakers.list()) == (None, [], [])
        assert len(begun) == 1
        with pytest.raises(RuntimeError, match="before it ends"):
            store.activity.record("x", NOW)
        with ThreadPoolExecutor(1) as pool:
            pool.submit(store.activity.record, "elsewhere", NOW).result()
    with pytest.raises(StoreUnavailable), store.reading_together():
        store.db.reading().__enter__().exec_driver_sql("select broken")
    store.activity.record("later", NOW)
    assert [event["kind"] for event in store.activity.list()] == ["later", "elsewhere"]


def test_writes_of_one_thread_share_a_transaction_all_of_them_or_none(store: SqlStore) -> None:
    """The block reads what it wrote; an error in it, of whatever call, leaves nothing of it; later calls go on."""
    uuid = known_table(store)
    begun: list[sa.Connection] = []
    sa.event.listen(store.engine, "begin", begun.append)
    with store.writing_together(), store.writing_together(), store.reading_together():
        job = store.jobs.claim(REF, uuid, [EXPIRE], ME, NOW)
        store.activity.record("x", NOW)
        assert job is not None
        assert [event["kind"] for event in store.activity.list()] == ["x"]
        assert store.jobs.heartbeat(job, NOW) is LeaseStatus.HELD
        assert store.jobs.dequeue("me", ["lake"], NOW, 1) == []
        assert len(begun) == 1

    def written_before(error: Callable[[], object]) -> None:
        with store.writing_together():
            store.activity.record("y", NOW)
            with suppress(StoreUnavailable):  # nobody goes on in a transaction that has failed
                error()

    with pytest.raises(StoreUnavailable):
        written_before(lambda: store.db.reading().__enter__().exec_driver_sql("select broken"))
    with pytest.raises(StopIteration):
        written_before(lambda: next(iter(())))
    with store.reading_together(), pytest.raises(RuntimeError, match="before it ends"), store.writing_together():
        pass
    store.activity.record("later", NOW)
    assert [event["kind"] for event in store.activity.list()] == ["later", "x"]


EXPORTED = ["job_id", "table", "path", "bytes", "kind", "state", "planned_at", "settled_at", "delete_after", "reason"]


def test_the_ledger_as_parquet(store: SqlStore, tmp_path: Path) -> None:
    """Every file of a job with its state and times; where nothing can be written, the answer says so."""
    uuid = known_table(store)
    job = store.jobs.claim(REF, uuid, [EXPIRE], ME, NOW)
    assert job is not None
    files = [FileAction("file:///t/a b", 5, "data"), FileAction("file:///t/m", None, "manifest list")]
    store.ledger.plan(job, REF, files, LedgerState.PLANNED, NOW)
    store.ledger.record(job, {"file:///t/a b": LedgerState.DELETED}, NOW + timedelta(seconds=3))
    store.ledger.abandon(job, later := NOW + timedelta(seconds=4))
    store.ledger.plan(job, REF, [FileAction("file:///t/z", 1, "data")], LedgerState.PLANNED, NOW, later)
    folder = tmp_path / "made" / "here"
    store.ledger.exports = folder
    other = begin_expiry(store, OTHER)
    store.ledger.plan(other, OTHER, [FileAction("file:///o/a", 1, "data")], LedgerState.PLANNED, NOW)
    for _ in range(2):
        said = store.ledger.export(job)
    assert said == f"ledger: {folder}/{job}.parquet"
    table = pq.read_table(said.removeprefix("ledger: "))
    at, text = pa.timestamp("us", "UTC"), pa.string()
    types = [text, text, text, pa.int64(), text, text, at, at, at, text]
    assert dict(zip(table.column_names, table.schema.types, strict=True)) == dict(zip(EXPORTED, types, strict=True))
    rows = table.to_pylist()
    assert [(r["table"], r["path"], r["bytes"], r["kind"], r["state"]) for r in rows] == [
        (str(REF), "file:///t/a b", 5, "data", "deleted"),
        (str(REF), "file:///t/m", None, "manifest list", "given up"),
        (str(REF), "file:///t/z", 1, "data", "planned"),
    ]
    assert [(r["settled_at"], r["delete_after"]) for r in rows] == [
        (NOW + timedelta(seconds=3), None),
        (later, None),
        (None, later),
    ]
    assert {(r["job_id"], r["planned_at"], r["reason"]) for r in rows} == {(job, NOW, None)}
    (folder / f"{job}.parquet").unlink()
    (folder / f"{job}.parquet").mkdir()
    assert store.ledger.export(job) == f"the ledger could not be exported to {folder}: Is a directory"
    assert [path.name for path in folder.iterdir()] == [f"{job}.parquet"]


def test_health_is_counted_by_tens(store: SqlStore) -> None:
    """Each ten begins at its own number, on every database, and the last includes 100."""
    points, refs = [0, 9, 10, 49, 50, 89, 90, 100], table_refs(8)
    record_tables(store, *refs)
    with store.engine.begin() as connection:
        for ref, health in zip(refs, points, strict=True):
            mine = (TABLES.c.name == ref.name) & (TABLES.c.namespace == namespace_text(ref.namespace))
            connection.execute(sa.update(TABLES).where(mine).values(health=health))
    assert store.views.overview(None, NOW).health == [2, 1, 0, 0, 1, 1, 0, 0, 1, 2]


@pytest.mark.external
@pytest.mark.cases(120)
def test_a_table_that_an_administrator_locks_is_said(
    server: Callable[[], sa.Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No transaction waits for ever for the lock: so connections are left, and probes and logs say what is wrong."""
    monkeypatch.setattr(database, "_LOCK_LIMIT", "50ms")
    store = SqlStore(server())
    with store.engine.begin() as administrator:
        administrator.execute(sa.text("LOCK TABLE tables IN ACCESS EXCLUSIVE MODE"))
        for call in (store.tables.list, lambda: store.tables.pause(REF, "by hand")):
            with pytest.raises(StoreUnavailable, match="lock timeout"):
                call()
    assert store.tables.list() == []


@contextmanager
def foreign_schema(store: SqlStore) -> Iterator[None]:
    """Let the store have a revision that this program does not know, as after a migration by a newer version."""
    with store.engine.begin() as connection:
        known = connection.execute(sa.text("SELECT version_num FROM alembic_version")).scalar_one()
        connection.execute(sa.text("UPDATE alembic_version SET version_num = '9999'"))
    try:
        yield
    finally:
        with store.engine.begin() as connection:
            connection.execute(sa.text("UPDATE alembic_version SET version_num = :known"), {"known": known})


@pytest.mark.cases(116)
def test_a_process_takes_no_work_from_a_store_of_another_version(store: SqlStore) -> None:
    """Nothing is claimed on a foreign schema, work that was taken before ends, and all goes on when both agree."""
    running, queued, free = table_refs(3)
    record_tables(store, running, queued, free)
    job_id = start_job(store, running)
    store.ledger.plan(job_id, running, [FileAction("file:///t/a", 5, "data")], LedgerState.PLANNED, NOW)
    enqueue_jobs(store, [queued])
    until = NOW + MINUTE
    takes: Sequence[Callable[[], object]] = (
        lambda: store.jobs.dequeue(WORKER, ["lake"], NOW, 1),
        lambda: store.jobs.claim(free, "u", (EXPIRE,), ME, NOW),
        lambda: store.jobs.enqueue(planned_job(free), PLANNER, NOW),
        lambda: store.ledger.claim(job_id, ["file:///t/a"]),
        lambda: store.tables.claim_evaluations(["lake"], WORKER, NOW, until, 1),
        lambda: store.catalogs.claim(["lake"], WORKER, NOW, until),
        lambda: store.leases.acquire("plan", WORKER, NOW, until),
        lambda: store.alerts.claim_deliveries(["slack"], NOW, until),
    )
    with foreign_schema(store):
        for take in takes:
            with pytest.raises(SchemaMismatch, match="revision 9999"):
                take()
        assert store.jobs.heartbeat(job_id, NOW) is LeaseStatus.HELD
        store.jobs.finish(job_id, JobState.SUCCEEDED, "", NOW)
    assert [job.state for job in store.jobs.list(queued)] == [JobState.QUEUED]
    assert [file["state"] for file in store.ledger.files(job_id)] == [LedgerState.PLANNED]
    assert store.jobs.list(free) == []
    assert [job.ref for job in store.jobs.dequeue(WORKER, ["lake"], NOW, 9)] == [queued]
    assert store.ledger.claim(job_id, ["file:///t/a"]) == {"file:///t/a"}


@pytest.mark.cases(120)
def test_a_transaction_that_cannot_begin_is_tried_again(store: SqlStore) -> None:
    """Two calls in three fail before anything was asked, and nobody notices; what was asked is never asked twice.

    What was read is not lost with a connection that fails afterwards.
    """
    calls = {"begin": 0, "asked": 0}

    def ask() -> None:
        with store.db.begin() as connection:
            calls["asked"] += 1
            connection.execute(sa.text("SELECT no_such_function()"))

    def lost(_connection: sa.Connection) -> None:
        raise sa.exc.OperationalError("", None, Exception("the connection is lost"))

    def fails(connection: sa.Connection) -> None:
        calls["begin"] += 1
        if calls["begin"] % 3:
            lost(connection)

    sa.event.listen(store.engine, "begin", fails, insert=True)
    try:
        record_tables(store, REF)
        assert [row.ref for row in store.tables.list()] == [REF]
        with pytest.raises(StoreUnavailable):
            ask()
        sa.event.listen(store.engine, "commit", lost)
        assert [row.ref for row in store.tables.list()] == [REF]
        with pytest.raises(StoreUnavailable):
            store.tables.pause(REF, "by hand")
    finally:
        sa.event.remove(store.engine, "begin", fails)
        sa.event.remove(store.engine, "commit", lost)
        store.engine.dispose()  # of connections whose transactions the failing commits left open
    assert calls == {"begin": 15, "asked": 1}
