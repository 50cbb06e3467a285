"""Health and size of tables over time: one row for each day on which a table was evaluated."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date, datetime, timedelta
from typing import Any

import sqlalchemy as sa

from icewright.adapters.store.database import dialect_insert
from icewright.adapters.store.schema import HEALTH_DAYS, TABLES
from icewright.core.verdicts import Evaluation
from icewright.ports.views import HealthPoint

_REMEMBERED = timedelta(days=400)  # a year, and the longest month
_FOUND = ("health", "files", "bytes")


def record_health(
    connection: sa.Connection, table_id: int, evaluation: Evaluation, now: datetime, last: datetime | None
) -> None:
    """Store what an evaluation found as that of its day, and forget days of long ago at the first one of a day.

    `last`: the time of the evaluation before.
    """
    measured = (evaluation.health, evaluation.facts.data_files, evaluation.facts.data_bytes)
    values = {"table_id": table_id, "day": now.date(), **dict(zip(_FOUND, measured, strict=True))}
    insert = dialect_insert(connection, HEALTH_DAYS).values(values)
    later = {name: insert.excluded[name] for name in _FOUND}
    connection.execute(insert.on_conflict_do_update(index_elements=["table_id", "day"], set_=later))
    if last is None or last.date() < now.date():
        forget_health(connection, table_id, (now - _REMEMBERED).date())


def forget_health(connection: sa.Connection, table_id: int, before: date | None = None) -> None:
    """Delete what is stored of a table, of all days or of those before one."""
    delete = sa.delete(HEALTH_DAYS).where(HEALTH_DAYS.c.table_id == table_id)
    connection.execute(delete if before is None else delete.where(HEALTH_DAYS.c.day < before))


def health_trend(connection: sa.Connection, condition: sa.ColumnElement[bool], since: date) -> Sequence[HealthPoint]:
    """Return mean health and sums of the tables by day; what was found counts until something else is found.

    Each row adds the difference to the row before it of the same table, so that the database reads each once.
    """
    day, begun = HEALTH_DAYS.c.day, _first_days(condition, since).c
    order: Mapping[str, Any] = {"partition_by": begun.id, "order_by": day}
    first = sa.case((sa.func.row_number().over(**order) == 1, 1), else_=0).label("tables")
    changes = [
        (HEALTH_DAYS.c[name] - sa.func.coalesce(sa.func.lag(HEALTH_DAYS.c[name]).over(**order), 0)).label(name)
        for name in _FOUND
    ]
    at = sa.case((day < since, since), else_=day).label("day")
    counted = (HEALTH_DAYS.c.table_id == begun.id, day >= begun.day)
    each = sa.select(at, first, *changes).where(*counted).subquery().c
    sums = [sa.func.sum(each[name]) for name in ("tables", *_FOUND)]
    points: list[HealthPoint] = []
    totals = [0] * len(sums)
    for of_day, *added in connection.execute(sa.select(each.day, *sums).group_by(each.day).order_by(each.day)):
        totals = [total + int(more) for total, more in zip(totals, added, strict=True)]
        tables, health, files, size = totals
        points.append(HealthPoint(of_day, tables, health / tables, files, size))
    return points


def _first_days(condition: sa.ColumnElement[bool], since: date) -> sa.CTE:
    """Return the tables, each with the last day up to `since` of which something is stored, else `since` itself.

    Earlier days do not count: a chart of a day would read a year of them.
    """
    day = HEALTH_DAYS.c.day
    last = sa.select(sa.func.max(day)).where(HEALTH_DAYS.c.table_id == TABLES.c.id, day <= since).scalar_subquery()
    tables = sa.select(TABLES.c.id, sa.func.coalesce(last, since).label("day")).where(condition, ~TABLES.c.dropped)
    return tables.cte("begun").prefix_with("MATERIALIZED")
