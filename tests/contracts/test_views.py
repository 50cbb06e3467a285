"""Lists, access and rules of the store, over SQLite and PostgreSQL."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import sqlalchemy as sa

from icewright.adapters.store.schema import TABLES
from icewright.adapters.store.sql import SqlStore
from icewright.adapters.store.statements import namespace_text
from icewright.core.errors import UsageError
from icewright.core.permissions import Grant, Role
from icewright.core.policy import Operation
from icewright.core.runs import JobState, committed
from icewright.core.table import TableRef
from icewright.core.verdicts import evaluate, thresholds
from icewright.ports import Pointer, RunRow, Trigger
from icewright.ports.access import Answered, AuditRow, SessionRow, TokenRow
from icewright.ports.views import JobQuery, RunQuery, Savings, TableQuery, TableSort
from icewright.testing import facts, knobs, manifests, metadata, partition

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
REFS = [TableRef("lake", (space,), f"t{n}") for space in ("hr", "sales") for n in range(4)]
SALES = (("lake", "sales"),)
BAD_CURSORS: tuple[tuple[Any, ...], ...] = (("x",), (1, 2, 3, 4), ({}, 1, 1), (2**70, 2**70), ("\0", "a", "b"))


@pytest.fixture(autouse=True)
def _tables(store: SqlStore) -> None:
    """Eight tables, of which every second is evaluated, and has something due."""
    store.tables.record_listing("lake", [Pointer(ref, f"s3://w/{ref}/1") for ref in REFS], NOW)
    for i, ref in enumerate(REFS[::2]):
        of = metadata((50, 2, 1), ref=ref, metadata_location=f"s3://w/{ref}/1", table_uuid=f"u{i}")
        found = facts(
            partition(files=10 + i, mb=1), of=of, thresholds=thresholds(knobs()), manifests_of=(manifests(20),)
        )
        store.tables.record_evaluation(evaluate(found, knobs(), {}, NOW), NOW + timedelta(seconds=i))


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("sort", TableSort)
def test_tables_page_by_page(store: SqlStore, sort: TableSort, descending: bool) -> None:
    """Each once, in order, those without a value last; what has no such cursor is refused."""
    query, after, seen = TableQuery(sort=sort, descending=descending), None, []
    while True:
        page = store.views.list_tables(query, None, after, 3)
        assert page.total == 8
        seen += [item.row.ref for item in page.items]
        if page.after is None:
            break
        after = page.after
    assert sorted(seen) == REFS
    if sort not in (TableSort.NAME, TableSort.QUERIES, TableSort.SUCCEEDED):
        assert set(seen[:4]) == set(REFS[::2])
    for bad in BAD_CURSORS:
        with pytest.raises(UsageError, match="cursor"):
            store.views.list_tables(query, None, bad, 3)


def test_health_by_tens(store: SqlStore) -> None:
    """Each ten begins at its own number, on every database; the last takes 100 too."""
    points = [0, 9, 10, 49, 50, 89, 90, 100]
    with store.engine.begin() as connection:
        for ref, health in zip(REFS, points, strict=True):
            mine = (TABLES.c.name == ref.name) & (TABLES.c.namespace == namespace_text(ref.namespace))
            connection.execute(sa.update(TABLES).where(mine).values(health=health))
    assert store.views.overview(None, NOW).health == [2, 1, 0, 0, 1, 1, 0, 0, 1, 2]


def test_what_is_in_sight(store: SqlStore) -> None:
    """Somebody bound to a namespace sees its tables, jobs and numbers alone."""
    trigger = Trigger("cycle", "me", "host:1:2")
    jobs = [store.jobs.claim(ref, "u", (Operation.COMPACT,), trigger, NOW) for ref in REFS]
    seen = store.views.list_tables(TableQuery(), SALES, None, 50)
    assert [item.row.ref for item in seen.items] == REFS[4:]
    assert seen.total == 4
    assert sorted(str(i.job.job_id) for i in store.views.list_jobs(JobQuery(), SALES, None, 50).items) == sorted(
        map(str, jobs[4:])
    )
    assert len(store.views.list_queue(SALES, 50)) == 4
    assert store.views.list_tables(TableQuery(), (), None, 50).items == []
    assert store.views.overview(SALES, NOW).tables == 4
    assert store.views.overview(None, NOW).jobs == {"running": 8}
    store.jobs.finish(str(jobs[0]), JobState.SUCCEEDED, "", NOW)
    assert [i.ref for i in store.views.list_waiting(SALES, None, 50).items] == []
    waiting = store.views.list_waiting(None, None, 1)
    assert waiting.items[0].ref == REFS[0]
    assert waiting.after is not None
    rest = store.views.list_waiting(None, waiting.after, 50).items
    assert len(rest) + 1 == waiting.total
    assert store.views.list_runs(RunQuery(), None, None, 10).items == []


def test_what_waits_of_one_table(store: SqlStore) -> None:
    """Its own due operations, and nothing of others."""
    found = store.views.list_waiting(None, None, 50, REFS[2])
    assert {item.ref for item in found.items} == {REFS[2]}
    assert found.total == len(found.items) > 1
    assert store.views.list_waiting(None, None, 50, REFS[1]).items == []
    assert store.views.list_waiting(SALES, None, 50, REFS[2]).items == []


def test_activity(store: SqlStore) -> None:
    """Newest first, page by page, of one kind, and of tables in sight; what is of no table is for who sees all."""
    store.activity.record("scan_started", NOW, catalogs=["lake"])
    for n, ref in enumerate(REFS):
        store.activity.record("paused", NOW + timedelta(seconds=n), ref, jobs=n)
    first = store.views.list_activity(None, None, None, 5)
    rest = store.views.list_activity(None, None, first.after, 5)
    assert [item["ref"] for item in (*first.items, *rest.items)] == [*reversed(REFS), None]
    assert rest.after is None
    assert first.items[0]["details"] == {"jobs": 7}
    assert [item["ref"] for item in store.views.list_activity(None, SALES, None, 9).items] == REFS[:3:-1]
    assert [item["kind"] for item in store.views.list_activity("scan_started", None, None, 9).items] == ["scan_started"]
    with pytest.raises(UsageError, match="cursor"):
        store.views.list_activity(None, None, ("x",), 5)


def test_what_was_saved(store: SqlStore) -> None:
    """The sums of what runs did since then, in the places that somebody sees; of what failed nothing but its cost."""
    metrics: dict[Operation, dict[str, float]] = {
        Operation.COMPACT: {"files_merged": 100, "files_written": 4, "gb_hours": 0.5},
        Operation.REWRITE_DELETES: {"files_rewritten": 9, "files_written": 3},
        Operation.REWRITE_MANIFESTS: {"manifests_rewritten": 20, "manifests_written": 2},
        Operation.EXPIRE_SNAPSHOTS: {"snapshots_expired": 7, "files_deleted": 30, "bytes_deleted": 2**40},
        Operation.REMOVE_ORPHANS: {"orphans_removed": 5, "bytes_deleted": 1024},
    }
    for ref, when in ((REFS[4], NOW), (REFS[5], NOW - timedelta(days=30)), (REFS[0], NOW)):
        job = store.jobs.claim(ref, "u", tuple(metrics), Trigger("cycle", "me", "host:1:2"), when)
        assert job is not None
        for operation, said in metrics.items():
            run = RunRow(job, committed(operation, "", said), when, when, "m", "p", {}, {})
            store.runs.record(run, ref)
        store.jobs.finish(job, JobState.SUCCEEDED, "", when)
    saved = store.views.overview(SALES, NOW - timedelta(days=1)).saved
    assert saved == Savings(5, 0.5, 96, 18, 7, 35, 2**40 + 1024)
    assert store.views.overview(None, NOW - timedelta(days=1)).saved.runs == 10
    assert store.views.overview((), NOW - timedelta(days=1)).saved == Savings()


def test_searching(store: SqlStore) -> None:
    """By a part of the name or namespace; signs of patterns stand for themselves."""
    for text, count in (("T1", 2), ("ALE", 4), ("%", 0), ("_", 0), ('"', 0), ("[", 0), ("\\", 0)):
        assert store.views.list_tables(TableQuery(search=text), None, None, 50).total == count, text
    assert store.views.list_tables(TableQuery(due=Operation.COMPACT, states=("due",)), None, None, 50).total == 4


def test_tokens_sessions_and_audit(store: SqlStore) -> None:
    """Are kept as they were given; the log is read by place, newest first."""
    token = TokenRow("a1", "digest", "ci", (Grant(Role.OWNER, SALES),), "me", NOW, NOW + timedelta(days=1))
    store.access.add_token(token)
    assert store.access.token("a1") == token
    store.access.record_token_use("a1", NOW)
    assert store.access.revoke_token("a1", NOW)
    assert not store.access.revoke_token("a1", NOW)
    assert [(row.used, row.revoked) for row in store.access.tokens()] == [(NOW, NOW)]
    session = SessionRow("d", "ann", (Grant(Role.ADMIN),), NOW, NOW, NOW + timedelta(hours=1), "a1")
    store.access.add_session(session)
    assert store.access.session("d") == session
    store.access.end_session("d")
    assert store.access.session("d") is None
    for place in (None, ("lake", "sales"), ("lake", "hr")):
        store.audit.append(AuditRow(NOW, "me", "token", "jobs.run", "x", place, False, "here", {"k": 1}))
    assert [row.place for row in store.audit.entries(None, None, 10)] == [("lake", "hr"), ("lake", "sales"), None]
    (mine,) = store.audit.entries(SALES, None, 10, actor="me", refused=False)
    assert store.audit.entries(SALES, mine.id, 10) == []


def test_requests_are_done_once(store: SqlStore) -> None:
    """The first goes on; later ones hear what became of it; one that was refused or left is begun anew."""
    assert store.requests.begin("r", "b", NOW) is None
    assert store.requests.begin("r", "b", NOW) == Answered("b", None)
    store.requests.end("r", {"job_id": "j"})
    assert store.requests.begin("r", "c", NOW) == Answered("b", {"job_id": "j"})
    store.requests.end("r", None)
    assert store.requests.begin("r", "b", NOW) is None
    assert store.requests.begin("r", "b", NOW + timedelta(minutes=2)) is None


def test_rules_are_changed_by_who_saw_the_newest(store: SqlStore) -> None:
    """Another version is not overwritten."""
    assert store.rules.put(("lake",), {"importance": "high"}, "a", NOW, 0) == 1
    assert store.rules.put(("lake",), {"importance": "low"}, "b", NOW, 0) is None
    assert store.rules.put(("lake",), {}, "b", NOW, 1) == 2
    assert [(v.version, v.author, dict(v.settings)) for v in store.rules.versions(("lake",))] == [
        (2, "b", {}),
        (1, "a", {"importance": "high"}),
    ]
