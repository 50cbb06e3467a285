"""What every store measures: tables, verdicts, the queue, alerts, and sums that outlive the history."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from icewright.adapters.store.health import health_trend
from icewright.adapters.store.schema import DELETIONS, HEALTH_DAYS, JOBS, RUNS, TABLES, VERDICTS
from icewright.adapters.store.sql import SqlStore
from icewright.core.alerts import AlertRule, Begin, Condition, Severity
from icewright.core.plan import PlannedJob
from icewright.core.policy import Operation
from icewright.core.runs import JobState, OperationState, Outcome
from icewright.core.table import TableRef
from icewright.core.tally import Total
from icewright.ports import Distribution, Measures, Pointer, QueueMeasure, RunRow, Trigger
from icewright.testing import NOW, REF

COMPACT, EXPIRE = Operation.COMPACT, Operation.EXPIRE_SNAPSHOTS
HOUR, MINUTE = timedelta(hours=1), timedelta(minutes=1)
POINTS, SECONDS = (50, 90), (3600, 86400)
MOST_STATEMENTS, MOST_ROWS = 20, 200
WORKS, WAITS = Trigger("cycle", "me", "host:1:2"), Trigger("cycle", "me", "")


def measured(store: SqlStore) -> Measures:
    """The measures of now."""
    return store.measures.read(NOW, POINTS, SECONDS)


def rows(store: SqlStore, *tables: dict[str, Any], catalog: str = "lake") -> None:
    """Tables with these columns."""
    same = {"catalog": catalog, "namespace": json.dumps(["sales"]), "metadata_location": "m1", "first_seen": NOW}
    with store.engine.begin() as connection:
        for number, values in enumerate(tables):
            connection.execute(sa.insert(TABLES).values({**same, "name": f"t{number}", "dropped": False, **values}))


def ran(store: SqlStore, state: OperationState, seconds: float = 1.0, **metrics: float) -> str:
    """A job with one compaction."""
    job_id = store.jobs.claim(REF, "u1", (COMPACT,), WORKS, NOW)
    assert job_id is not None
    outcome = Outcome(COMPACT, state, metrics=metrics)
    finished = NOW + timedelta(seconds=seconds)
    store.runs.record(RunRow(job_id, outcome, NOW, finished, "m2", "p1", {}, {}), REF)
    store.jobs.finish(job_id, JobState.SUCCEEDED, "", finished)
    return job_id


def test_nothing(store: SqlStore) -> None:
    """An empty store has nothing to count."""
    assert measured(store) == Measures()


def test_tables_by_state(store: SqlStore) -> None:
    """Each table counts once, in the first state that holds."""
    looked = {"evaluated_at": NOW, "evaluated_location": "m1"}
    rows(
        store,
        {},
        looked,
        {**looked, "due_since": NOW},
        {**looked, "due_since": NOW, "metadata_location": "m2"},
        {**looked, "held_by": "j1", "due_since": NOW},
        {**looked, "held_by": "j2", "paused": "by hand"},
        {**looked, "paused": "by hand", "error": "broken"},
        {**looked, "dropped": True, "error": "broken"},
    )
    rows(store, looked, looked, catalog="pond")
    states = ("new", "healthy", "due", "changed", "busy", "paused", "unreadable", "dropped")
    assert measured(store).tables == {**{("lake", state): 1 for state in states}, ("pond", "healthy"): 2}


def test_how_numbers_are_distributed(store: SqlStore) -> None:
    """Each bound counts what is below it too; unknown numbers and dropped tables count nowhere."""
    rows(
        store,
        {"health": 50, "succeeded_at": NOW - HOUR, "due_since": NOW - 9 * HOUR},
        {"health": 51, "succeeded_at": NOW - 2 * HOUR, "due_since": NOW - HOUR},
        {"health": 91, "due_since": NOW - 30 * HOUR, "paused": "by hand"},
        {"succeeded_at": NOW - 25 * HOUR},
        {"health": 0, "succeeded_at": NOW, "due_since": NOW, "dropped": True},
    )
    found = measured(store)
    assert found.health == {"lake": Distribution((1, 2), 3, 192)}
    success, overdue = found.success["lake"], found.overdue["lake"]
    assert [(d.at_most, d.count) for d in (success, overdue)] == [((1, 2), 3), ((2, 2), 3)]
    assert [success.sum, overdue.sum] == pytest.approx([28 * 3600, 32 * 3600], abs=0.1)


def test_verdicts(store: SqlStore) -> None:
    """By catalog, operation and kind; those that wait are counted beside."""
    rows(store, {}, {}, {})
    with store.engine.begin() as connection:
        for table, operation, verdict, waits, since in (
            (1, COMPACT, "due", "the limit is reached", NOW),
            (2, COMPACT, "due", None, NOW - HOUR),
            (3, COMPACT, "blocked", None, None),
            (3, EXPIRE, "not_due", None, None),
        ):
            row = {"table_id": table, "operation": operation, "verdict": verdict, "waits": waits, "since": since}
            connection.execute(sa.insert(VERDICTS).values(**row, reason="", at=NOW))
    found = measured(store)
    assert found.verdicts == {
        ("lake", "compact", "due"): 2,
        ("lake", "compact", "blocked"): 1,
        ("lake", "expire_snapshots", "not_due"): 1,
    }
    assert found.deferred == {("lake", "compact"): 1}
    assert found.due_since == {("lake", "compact"): NOW - HOUR}


def test_the_queue(store: SqlStore) -> None:
    """A job counts for each of its operations; the oldest that waits is the queue's age."""
    refs = [TableRef("lake", ("sales",), f"t{n}") for n in range(3)]
    store.tables.record_listing("lake", [Pointer(ref, "m1") for ref in refs], NOW)
    for number, ref in enumerate(refs):
        job = PlannedJob(ref, "u1", (COMPACT, EXPIRE)[number:] or (COMPACT,), 1.0, 1.0, 1.0, "due")
        assert store.jobs.enqueue(job, WAITS, NOW + number * MINUTE)
    store.jobs.dequeue("host:1:2", ["lake"], NOW + HOUR, 1)
    assert measured(store).queue == {
        "compact": QueueMeasure(queued=1, running=1, oldest_queued=NOW + 2 * MINUTE),
        "expire_snapshots": QueueMeasure(queued=1, running=1, oldest_queued=NOW + MINUTE),
    }


def test_alerts(store: SqlStore) -> None:
    """Open ones by rule and severity, and what each channel has not taken."""
    conditions = [Condition(AlertRule.CATALOG_UNREACHABLE, name, "away") for name in "abc"]
    changes = [Begin(c, Severity.CRITICAL, raised=c.subject != "c") for c in conditions]
    store.alerts.record_changes(changes, ["slack"], NOW)
    found = measured(store)
    assert found.alerts == {("catalog_unreachable", "critical"): 2}
    assert found.undelivered == {"slack": 2}


def test_sums_outlive_the_history(store: SqlStore) -> None:
    """Runs, jobs and errors add to sums that pruning the history leaves alone."""
    store.tables.record_listing("lake", [Pointer(REF, "m1")], NOW)
    ran(store, OperationState.COMMITTED, 0.5, files_merged=10, bytes_rewritten=2**40, gb_hours=0.25)
    ran(store, OperationState.COMMITTED, 2.0, files_merged=5, gb_hours=0.5)
    ran(store, OperationState.FAILED, 9000.0)
    for _ in range(2):
        store.catalogs.record_failure("pond", "away", NOW)
    with store.engine.begin() as connection:
        for table in (DELETIONS, RUNS, JOBS):
            connection.execute(sa.delete(table))
    assert measured(store).totals == {
        Total("runs", "lake", "compact", "committed"): 2,
        Total("runs", "lake", "compact", "failed"): 1,
        Total("run_seconds", "", "compact"): 9002.5,
        Total("runs_by_seconds", "", "compact", "1.0"): 1,
        Total("runs_by_seconds", "", "compact", "3.0"): 1,
        Total("runs_by_seconds", "", "compact", "+Inf"): 1,
        Total("files_rewritten", "lake", "compact"): 15,
        Total("bytes_rewritten", "lake", "compact"): 2**40,
        Total("gb_hours", "lake", "compact"): 0.75,
        Total("jobs", label="succeeded"): 3,
        Total("catalog_errors", "pond"): 2,
    }


def test_the_last_success(store: SqlStore) -> None:
    """A run that did its work sets it; one that failed, skipped or gave way does not."""
    store.tables.record_listing("lake", [Pointer(REF, "m1")], NOW)
    for state in OperationState:
        ran(store, state, {OperationState.COMMITTED: 60.0}.get(state, 3600.0))
    with store.engine.begin() as connection:
        assert connection.execute(sa.select(TABLES.c.succeeded_at)).scalar() == NOW + MINUTE


def test_sums_of_processes_at_the_same_time(store: SqlStore) -> None:
    """No increment is lost, and nobody waits for ever."""
    refs = [TableRef("lake", ("sales",), f"t{n}") for n in range(8)]
    store.tables.record_listing("lake", [Pointer(ref, "m1") for ref in refs], NOW)

    def work(ref: TableRef) -> None:
        job_id = store.jobs.claim(ref, "u1", (COMPACT,), WORKS, NOW)
        assert job_id is not None
        for number, operation in enumerate((COMPACT, EXPIRE, COMPACT)):
            outcome = Outcome(operation, OperationState.COMMITTED, metrics={"files_merged": 1, "gb_hours": 1})
            store.runs.record(RunRow(job_id, outcome, NOW, NOW + number * MINUTE, "m2", "p1", {}, {}), ref)
        store.jobs.finish(job_id, JobState.SUCCEEDED, "", NOW)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, refs))
    totals = measured(store).totals
    assert totals[Total("runs", "lake", "compact", "committed")] == 16
    assert totals[Total("gb_hours", "lake", "expire_snapshots")] == 8
    assert totals[Total("jobs", label="succeeded")] == 8


@pytest.mark.external
def test_a_scrape_of_a_large_fleet(store: SqlStore) -> None:
    """10,000 tables, 60,000 verdicts and 100,000 jobs are counted in the database: few statements bring few rows."""
    when = [NOW - timedelta(minutes=n) for n in range(100)]
    location = "s3://lake/warehouse/sales/table/metadata/00001-0b7a3b8e-6a8f-4d3e-9d1c-5f0a2c4e6b18.metadata.json"
    with store.engine.begin() as connection:
        looked = {"metadata_location": location, "evaluated_location": location, "evaluated_at": NOW, "dropped": False}
        same = {**looked, "namespace": json.dumps(["sales"]), "first_seen": NOW}
        tables = [
            {**same, "catalog": f"lake{n % 4}", "name": f"t{n}", "health": n % 101, "succeeded_at": when[n % 100]}
            for n in range(10_000)
        ]
        verdicts = [
            {"table_id": n + 1, "operation": op, "verdict": ("due", "not_due")[n % 2], "reason": "x" * 60, "at": NOW}
            for n in range(10_000)
            for op in Operation
        ]
        jobs = [
            {"job_id": f"j{n:07}", "table_id": n % 10_000 + 1, "table_uuid": "u", "operations": ["compact"]}
            | {"state": "succeeded" if n % 1000 else "queued", "trigger": "cycle", "actor": "me", "holder": ""}
            | {"heartbeat": NOW, "created": when[n % 100], "summary": "y" * 80}
            for n in range(100_000)
        ]
        for table, made in ((TABLES, tables), (VERDICTS, verdicts), (JOBS, jobs)):
            connection.execute(sa.insert(table), made)
    ran: list[tuple[str, Any]] = []

    def heard(_connection: Any, _cursor: Any, statement: str, parameters: Any, *_: Any) -> None:
        if "SELECT" in statement:
            ran.append((statement, parameters))

    sa.event.listen(store.engine, "after_cursor_execute", heard)
    found = store.measures.read(NOW, (10, 25, 50, 75, 90, 100), (3600, 21600, 86400, 259200, 604800, 2592000))
    assert sum(found.tables.values()) == 10_000
    assert found.queue["compact"].queued == 100
    sa.event.remove(store.engine, "after_cursor_execute", heard)
    with store.engine.begin() as connection:
        brought = [
            connection.exec_driver_sql(f"SELECT count(*) FROM ({statement}) AS counted", parameters).scalar_one()  # noqa: S608
            for statement, parameters in ran
        ]
    assert len(brought) < MOST_STATEMENTS
    assert max(brought) < MOST_ROWS


def test_a_chart_of_a_day_reads_no_year(copied_store: Callable[[Path], sa.Engine], tmp_path: Path) -> None:
    """Of the days before a chart's first, SQLite looks at the last one of each table alone."""
    store, days, tables = SqlStore(copied_store(tmp_path / "state.db")), 300, 20
    rows(store, *({} for _ in range(tables)))
    since = NOW.date() - timedelta(days=days)
    found = {"health": 50, "files": 1, "bytes": 1}
    each = [
        {"table_id": table, "day": since + timedelta(days=day), **found}
        for table in range(1, tables + 1)
        for day in range(days)
    ]
    with store.engine.begin() as connection:
        connection.execute(sa.insert(HEALTH_DAYS), each)
        driver: Any = connection.connection.dbapi_connection
        steps = []
        for first in (since, NOW.date() - timedelta(days=1)):
            counted: list[int] = []
            driver.set_progress_handler(lambda counted=counted: counted.append(1), 100)
            points = health_trend(connection, sa.true(), first)
            driver.set_progress_handler(None, 0)
            steps.append(len(counted))
            assert {point.tables for point in points} == {tables}
    store.engine.dispose()
    assert steps[1] * 20 < steps[0], steps
