"""Lists: filtered, sorted and cut into pages by the database."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from icewright.adapters.store.database import Database
from icewright.adapters.store.health import health_trend
from icewright.adapters.store.jobs import job_of
from icewright.adapters.store.ledger import PLANNED_BY, waiting_deletions, waiting_of
from icewright.adapters.store.measures import IS_BLOCKING, STATE, overview, trend
from icewright.adapters.store.schema import DELETIONS, EVENTS, JOBS, RUNS, TABLES, VERDICTS
from icewright.adapters.store.statements import (
    NAME,
    UNDONE_JOBS,
    Key,
    cursor,
    of_table,
    order_by,
    ref_of,
    seek,
    visible,
)
from icewright.adapters.store.tables import table_of
from icewright.core.permissions import VisibilityFilter
from icewright.core.policy import Operation
from icewright.core.runs import JobState
from icewright.core.table import TableRef
from icewright.ports import Views
from icewright.ports.rows import WaitingDeletions
from icewright.ports.views import (
    After,
    DeletionQuery,
    FleetOverview,
    JobItem,
    JobQuery,
    Page,
    RunQuery,
    TableItem,
    TableQuery,
    TableSort,
    Trend,
    TrendStep,
    WaitingItem,
    WaitingQuery,
)

_SORTS: Mapping[TableSort, tuple[sa.ColumnElement[Any], type]] = {
    TableSort.HEALTH: (TABLES.c.health, int),
    TableSort.FILES: (TABLES.c.files, int),
    TableSort.BYTES: (TABLES.c.bytes, int),
    TableSort.QUERIES: (TABLES.c.queries_per_day, float),
    TableSort.EVALUATED: (TABLES.c.evaluated_at, datetime),
    TableSort.SUCCEEDED: (TABLES.c.succeeded_at, datetime),
    TableSort.DUE_SINCE: (TABLES.c.due_since, datetime),
    TableSort.NEXT: (TABLES.c.evaluate_at, datetime),
}

_OPEN = (JobState.RUNNING, JobState.QUEUED)
_STEPS = ("operation_started", "progress", "operation_finished")  # events of a job between its beginning and its end
_LATER = EVENTS.alias()
_HAS_ENDED = sa.exists().where(_LATER.c.job_id == EVENTS.c.job_id, _LATER.c.kind == "job_finished")


@dataclass
class SqlViews(Views):
    """The Views port on a database."""

    db: Database

    def list_tables(
        self, query: TableQuery, visibility: VisibilityFilter, after: After | None, limit: int
    ) -> Page[TableItem]:
        keys = _table_keys(query)
        with self.db.reading() as connection:
            conditions = sa.and_(visible(connection, visibility), *_table_conditions(query))
            total = connection.execute(sa.select(sa.func.count()).select_from(TABLES).where(conditions)).scalar_one()
            tables = sa.select(TABLES, STATE.label("state")).where(conditions)
            page: Page[Any] = _page(connection, tables, keys, after, limit, total=total)
            verdicts = _verdicts(connection, [row.id for row in page.items])
        return replace(page, items=[_item(row, verdicts[row.id]) for row in page.items])

    def table_item(self, ref: TableRef) -> TableItem | None:
        with self.db.reading() as connection:
            row = connection.execute(sa.select(TABLES, STATE.label("state")).where(*of_table(ref))).first()
            return None if row is None else _item(row, _verdicts(connection, [row.id])[row.id])

    def list_jobs(
        self, query: JobQuery, visibility: VisibilityFilter, after: After | None, limit: int
    ) -> Page[JobItem]:
        keys = (Key(JOBS.c.created, datetime, descending=True), Key(JOBS.c.job_id, str, descending=True))
        with self.db.reading() as connection:
            jobs = _jobs().where(visible(connection, visibility), *_job_conditions(query))
            return _page(connection, jobs, keys, after, limit, _job_item)

    def list_runs(
        self, query: RunQuery, visibility: VisibilityFilter, after: After | None, limit: int
    ) -> Page[Mapping[str, Any]]:
        keys = (Key(RUNS.c.id, int, descending=True),)
        conditions = _in_place(query.ref, query.catalog)
        if query.operation:
            conditions.append(RUNS.c.operation == query.operation)
        if query.states:
            conditions.append(RUNS.c.state.in_(query.states))
        if query.since:
            conditions.append(RUNS.c.finished >= query.since)
        undone = RUNS.c.job_id.in_(UNDONE_JOBS) & (RUNS.c.operation == Operation.EXPIRE_SNAPSHOTS)
        runs = sa.select(RUNS, undone.label("undone"), *NAME).join_from(RUNS, TABLES, RUNS.c.table_id == TABLES.c.id)
        with self.db.reading() as connection:
            runs = runs.where(visible(connection, visibility), *conditions)
            return _page(connection, runs, keys, after, limit, _with_ref)

    def list_queue(self, query: JobQuery, visibility: VisibilityFilter, limit: int) -> Sequence[JobItem]:
        running = sa.case((JOBS.c.state == JobState.RUNNING, 0), else_=1)
        order = (running, JOBS.c.score.desc(), JOBS.c.created, JOBS.c.job_id)
        with self.db.reading() as connection:
            conditions = (visible(connection, visibility), JOBS.c.state.in_(_OPEN), *_job_conditions(query))
            rows = connection.execute(_jobs().where(*conditions).order_by(*order).limit(limit))
            return [_job_item(row) for row in rows]

    def list_waiting(
        self, query: WaitingQuery, visibility: VisibilityFilter, after: After | None, limit: int
    ) -> Page[WaitingItem]:
        keys = (
            Key(VERDICTS.c.position, int, nullable=True),
            Key(VERDICTS.c.table_id, int),
            Key(VERDICTS.c.operation, str),
        )
        due = sa.select(VERDICTS, *NAME, TABLES.c.due_since).join_from(VERDICTS, TABLES)
        conditions = [VERDICTS.c.verdict == "due", TABLES.c.held_by.is_(None), ~TABLES.c.dropped]
        conditions += _in_place(query.ref, query.catalog)
        if query.operation:
            conditions.append(VERDICTS.c.operation == query.operation)
        if query.search:
            conditions.append(_matches_search(query.search))
        with self.db.reading() as connection:
            condition = sa.and_(visible(connection, visibility), *conditions)
            count = sa.select(sa.func.count()).select_from(VERDICTS.join(TABLES)).where(condition)
            total = connection.execute(count).scalar_one()
            page: Page[Any] = _page(connection, due.where(condition), keys, after, limit, total=total)
        rows = page.items
        if page.after is not None:  # what the last table has may go on: the next page begins with it
            last = rows[-1].position, rows[-1].table_id
            rows = [row for row in rows if (row.position, row.table_id) != last] or rows
            page = replace(page, after=cursor([getattr(rows[-1], key.column.name) for key in keys]))
        return replace(page, items=[_waiting(row) for row in rows])

    def list_files(self, job_id: str, after: After | None, limit: int) -> Page[Mapping[str, Any]]:
        times = ("planned_at", "settled_at", "delete_after", "reason", "operation")
        columns = ("id", "path", "bytes", "kind", "state", *times)
        return self._of_job(DELETIONS, columns, job_id, after, limit)

    def list_deletions(
        self, query: DeletionQuery, visibility: VisibilityFilter, after: After | None, limit: int
    ) -> Page[WaitingDeletions]:
        keys = (Key(JOBS.c.created, datetime), Key(JOBS.c.job_id, str), Key(PLANNED_BY, str))
        conditions = _in_place(query.ref, query.catalog)
        if query.job_id is not None:
            conditions.append(JOBS.c.job_id == query.job_id)
        with self.db.reading() as connection:
            waiting = waiting_deletions().where(visible(connection, visibility), *conditions)
            return _page(connection, waiting, keys, after, limit, waiting_of)

    def list_events(self, job_id: str, after: After | None, limit: int) -> Page[Mapping[str, Any]]:
        return self._of_job(EVENTS, ("id", "at", "kind", "details"), job_id, after, limit)

    def list_activity(
        self,
        kind: str | None,
        visibility: VisibilityFilter,
        after: After | None,
        limit: int,
        *,
        search: str | None = None,
        since: datetime | None = None,
        steps: bool = True,
    ) -> Page[Mapping[str, Any]]:
        keys = (Key(EVENTS.c.id, int, descending=True),)
        columns = [EVENTS.c[name] for name in ("id", "at", "kind", "details", "job_id")]
        query = sa.select(*columns, *NAME).join_from(EVENTS, TABLES, EVENTS.c.table_id == TABLES.c.id, isouter=True)
        conditions = [] if kind is None else [EVENTS.c.kind == kind]
        conditions += [] if search is None else [_matches_search(search)]
        conditions += [] if since is None else [EVENTS.c.at >= since]
        conditions += [] if steps else [EVENTS.c.kind.not_in(_STEPS), (EVENTS.c.kind != "job_started") | ~_HAS_ENDED]
        with self.db.reading() as connection:
            query = query.where(visible(connection, visibility), *conditions)
            return _page(connection, query, keys, after, limit, _with_ref)

    def overview(self, visibility: VisibilityFilter, since: datetime) -> FleetOverview:
        """Return the overview, read in one transaction, so that its numbers belong together."""
        with self.db.reading() as connection:
            return overview(connection, visibility, since)

    def trend(self, visibility: VisibilityFilter, since: datetime, step: TrendStep, query: RunQuery) -> Trend:
        with self.db.reading() as connection:
            condition = sa.and_(visible(connection, visibility), *_in_place(query.ref, query.catalog))
            points = trend(connection, condition, since, step)
            return Trend(points, health_trend(connection, condition, since.date()))

    def _of_job(
        self, table: sa.Table, columns: Sequence[str], job_id: str, after: After | None, limit: int
    ) -> Page[Mapping[str, Any]]:
        query = sa.select(*(table.c[name] for name in columns)).where(table.c.job_id == job_id)
        with self.db.reading() as connection:
            return _page(connection, query, (Key(table.c.id, int),), after, limit, sa.Row._asdict)


def _page(
    connection: sa.Connection,
    query: sa.Select[Any],
    keys: Sequence[Key],
    after: After | None,
    limit: int,
    item: Callable[[Any], Any] = lambda row: row,
    total: int | None = None,
) -> Page[Any]:
    """Return a page of the query's rows as items; one row more than the limit means that there is another page."""
    page = query.where(seek(keys, after)).order_by(*order_by(keys)).limit(limit + 1)
    rows = connection.execute(page).all()
    items = [item(row) for row in rows[:limit]]
    if len(rows) <= limit:
        return Page(items, None, total)
    return Page(items, cursor([getattr(rows[limit - 1], key.column.name) for key in keys]), total)


def _with_ref(row: sa.Row[Any]) -> Mapping[str, Any]:
    """Return a row with the table that it is about, if there is one."""
    return {**row._asdict(), "ref": ref_of(row) if row.catalog is not None else None}


def _job_conditions(query: JobQuery) -> list[sa.ColumnElement[bool]]:
    conditions = _in_place(query.ref, query.catalog)
    if query.job_id is not None:
        conditions.append(JOBS.c.job_id == query.job_id)
    if query.states:
        conditions.append(JOBS.c.state.in_(query.states))
    if query.operation:
        conditions.append(sa.cast(JOBS.c.operations, sa.Text).like(f'%"{query.operation}"%'))
    if query.trigger:
        conditions.append(JOBS.c.trigger == query.trigger)
    if query.search:
        conditions.append(_matches_search(query.search))
    if query.since:
        conditions.append(JOBS.c.created >= query.since)
    return conditions


def _table_keys(query: TableQuery) -> list[Key]:
    names = [Key(column, str, query.descending) for column in NAME]
    if query.sort is TableSort.NAME:
        return names
    column, kind = _SORTS[query.sort]
    return [Key(column, kind, query.descending, nullable=True), Key(TABLES.c.id, int)]


def _table_conditions(query: TableQuery) -> list[sa.ColumnElement[bool]]:
    conditions = _in_place(None, query.catalog)
    if query.namespace is not None:
        conditions.append(TABLES.c.namespace == json.dumps(query.namespace, ensure_ascii=False))
    if query.search:
        conditions.append(_matches_search(query.search))
    if query.states:
        conditions.append(STATE.in_(query.states))
    if not query.states or "dropped" not in query.states:
        conditions.append(~TABLES.c.dropped)
    if query.health_below is not None:
        conditions.append(TABLES.c.health < query.health_below)
    if query.due is not None:
        condition = (VERDICTS.c.table_id == TABLES.c.id, VERDICTS.c.operation == query.due, VERDICTS.c.verdict == "due")
        conditions.append(sa.exists().where(*condition))
    return conditions


def _matches_search(text: str) -> sa.ColumnElement[bool]:
    """Return whether name or namespace contain the text, or the full name a text with a dot, in any case.

    Namespaces are compared as JSON.
    """
    inner = sa.func.substr(TABLES.c.namespace, 2, sa.func.length(TABLES.c.namespace) - 2)
    written = json.dumps(text, ensure_ascii=False)[1:-1]
    matches_part = TABLES.c.name.icontains(text, autoescape=True) | inner.icontains(written, autoescape=True)
    if "." not in text:
        return matches_part
    dotted: sa.ColumnElement[str] = TABLES.c.namespace
    for quotes, between in (('["', ""), ('"]', ""), ('", "', ".")):
        dotted = sa.func.replace(dotted, quotes, between)
    full = TABLES.c.catalog + "." + dotted + "." + TABLES.c.name
    return matches_part | full.icontains(text.replace("`", ""), autoescape=True)


def _in_place(ref: TableRef | None, catalog: str | None) -> list[sa.ColumnElement[bool]]:
    if ref is not None:
        return list(of_table(ref))
    return [TABLES.c.catalog == catalog] if catalog is not None else []


def _verdicts(connection: sa.Connection, ids: Sequence[int]) -> Mapping[int, Sequence[Any]]:
    """Return the verdicts of each table on operations that are due or blocked, in the order of operations, by id."""
    # coalesce keeps the database from the index on verdicts, by which it would visit everything that is due
    matters = sa.func.coalesce(VERDICTS.c.verdict, "").in_(("due", "blocked"))
    columns = [VERDICTS.c[name] for name in ("table_id", "operation", "verdict", "reason")]
    query = sa.select(*columns, IS_BLOCKING.label("blocks")).where(VERDICTS.c.table_id.in_(ids), matters)
    order = list(Operation)
    rows_by_table = defaultdict[int, list[Any]](list)
    for row in sorted(connection.execute(query), key=lambda row: order.index(row.operation)):
        rows_by_table[row.table_id].append(row)
    return rows_by_table


def _item(row: Any, verdicts: Sequence[Any]) -> TableItem:  # noqa: ANN401 - a result row
    names = ("state", "importance", "queries_per_day", "files", "bytes", "succeeded_at")
    due = tuple(Operation(verdict.operation) for verdict in verdicts if verdict.verdict == "due")
    reasons = [f"{verdict.operation}: {verdict.reason}" for verdict in verdicts if verdict.blocks]
    blocked = "; ".join(reasons) if row.state == "blocked" else None
    return TableItem(row=table_of(row), due=due, blocked=blocked, **{name: getattr(row, name) for name in names})


def _jobs() -> sa.Select[Any]:
    metrics = {name: RUNS.c.metrics[name].as_float() for name in ("gb_hours_driver", "money")}
    costs = [
        sa.select(sa.func.sum(cost)).where(RUNS.c.job_id == JOBS.c.job_id).scalar_subquery().label(name)
        for name, cost in ({"gb_hours": RUNS.c.gb_hours} | metrics).items()
    ]
    return sa.select(JOBS, *NAME, *costs).join_from(JOBS, TABLES)


def _job_item(row: Any) -> JobItem:  # noqa: ANN401 - a result row
    return JobItem(
        job_of(row),
        row.pool,
        row.on_pool,
        row.score,
        row.cost,
        gb_hours=(row.gb_hours or 0.0) + row.spent,
        gb_hours_driver=row.gb_hours_driver or 0.0,
        money=row.money,
    )


def _waiting(row: Any) -> WaitingItem:  # noqa: ANN401 - a result row
    numbers = {"position": row.position, "score": row.score, "benefit": row.benefit, "cost": row.cost}
    operation = Operation(row.operation)
    return WaitingItem(ref_of(row), operation, row.reason, row.waits, due_since=row.due_since, **numbers)
