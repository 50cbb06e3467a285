"""The SQL store passes the suites of its ports, and does what only a look at its tables shows."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor, wait
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import sqlalchemy as sa

from icewright.adapters.store.schema import TABLES
from icewright.adapters.store.sql import SqlStore
from icewright.adapters.store.statements import namespace_text
from icewright.core.runs import FileAction
from icewright.ports import LedgerState, Store
from icewright.testing import NOW, REF
from icewright.testing.contracts import (
    AccessTests,
    AlertStoreTests,
    BreakersTests,
    CatalogScheduleTests,
    DeletionLedgerTests,
    EventInboxTests,
    JobQueueTests,
    LeasesTests,
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
    StoreSuite,
    evaluated,
    known_table,
    record_tables,
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
    @pytest.mark.cases(80)
    @pytest.mark.parametrize("workers", [2, 16])
    def test_one_of_concurrent_claims_wins(self, store: Store, workers: int) -> None:
        """Of many claims of one table at the same time, one succeeds."""
        super().test_one_of_concurrent_claims_wins(store, workers)


class TestLoops(
    SqlStores, CatalogScheduleTests, LeasesTests, BreakersTests, ProcessRegistryTests, EventInboxTests, AlertStoreTests
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
                wait(begun, 1)  # it waits in turn, where the row is locked

        store.tables.record_evaluation(evaluated(), NOW)
    begun[0].result()
    assert (table_row(store).evaluated_location, table_row(store).evaluated_at) == ("m2", later)


def test_the_ledger_as_parquet(store: SqlStore, tmp_path: Path) -> None:
    """Every file of a job with its state and times; where nothing can be written, the answer says so."""
    uuid = known_table(store)
    job = store.jobs.claim(REF, uuid, [EXPIRE], ME, NOW)
    assert job is not None
    files = [FileAction("file:///t/a b", 5, "data"), FileAction("file:///t/m", None, "manifest list")]
    store.ledger.plan(job, REF, files, LedgerState.PLANNED, NOW)
    store.ledger.record(job, {"file:///t/a b": LedgerState.DELETED}, NOW + timedelta(seconds=3))
    store.ledger.exports = tmp_path / "made" / "here"
    said = store.ledger.export(job)
    assert said == f"ledger: {tmp_path}/made/here/{job}.parquet"
    rows = pq.read_table(said.removeprefix("ledger: ")).to_pylist()
    assert [(r["table"], r["path"], r["bytes"], r["kind"], r["state"]) for r in rows] == [
        (str(REF), "file:///t/a b", 5, "data", "deleted"),
        (str(REF), "file:///t/m", None, "manifest list", "planned"),
    ]
    assert [(r["planned_at"], r["settled_at"]) for r in rows] == [(NOW, NOW + timedelta(seconds=3)), (NOW, None)]
    (tmp_path / "taken").touch()
    store.ledger.exports = tmp_path / "taken"
    assert "could not be exported" in store.ledger.export(job)


def test_health_is_counted_by_tens(store: SqlStore) -> None:
    """Each ten begins at its own number, on every database, and the last includes 100."""
    points, refs = [0, 9, 10, 49, 50, 89, 90, 100], table_refs(8)
    record_tables(store, *refs)
    with store.engine.begin() as connection:
        for ref, health in zip(refs, points, strict=True):
            mine = (TABLES.c.name == ref.name) & (TABLES.c.namespace == namespace_text(ref.namespace))
            connection.execute(sa.update(TABLES).where(mine).values(health=health))
    assert store.views.overview(None, NOW).health == [2, 1, 0, 0, 1, 1, 0, 0, 1, 2]
