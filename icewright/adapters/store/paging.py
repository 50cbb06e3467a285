"""Pages after the values of the last item (keyset pagination): rows that come or go shift no page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import sqlalchemy as sa

from icewright.adapters.store.schema import TABLES
from icewright.adapters.store.statements import namespace_of
from icewright.core.errors import UsageError
from icewright.core.permissions import VisibilityFilter, covers
from icewright.ports.views import After

_INTEGER_LIMIT = 2**63  # above the largest integer of the databases


@dataclass(frozen=True)
class Key:
    """A column of the sort order. All keys of an order together are unique."""

    column: sa.ColumnElement[Any]
    kind: type
    descending: bool = False
    nullable: bool = False  # rows without a value come last


def order_by(keys: Sequence[Key]) -> list[sa.ColumnElement[Any]]:
    """Return the ORDER BY of the keys."""
    columns: list[sa.ColumnElement[Any]] = []
    for key in keys:
        if key.nullable:
            columns.append(sa.case((key.column.is_(None), 1), else_=0))
        columns.append(key.column.desc() if key.descending else key.column.asc())
    return columns


def seek(keys: Sequence[Key], after: After | None) -> sa.ColumnElement[bool]:
    """Return the condition of rows after these values. Raises `UsageError` when they are not of these keys."""
    if after is None:
        return sa.true()
    if len(after) != len(keys):
        raise UsageError("the cursor is of another list: begin again without it")
    later: list[sa.ColumnElement[bool]] = []
    same: list[sa.ColumnElement[bool]] = []
    for key, given_value in zip(keys, after, strict=True):
        if given_value is None and key.nullable:
            same.append(key.column.is_(None))
            continue
        value = _value(key, given_value)
        more = key.column < value if key.descending else key.column > value
        later.append(sa.and_(*same, (more | key.column.is_(None)) if key.nullable else more))
        same.append(key.column == value)
    return sa.or_(sa.false(), *later)


def _value(key: Key, value: Any) -> Any:  # noqa: ANN401 - what a client sent
    if key.kind is datetime and isinstance(value, str):
        try:
            time = datetime.fromisoformat(value)
        except ValueError:
            time = None
        if time is not None and time.tzinfo is not None:
            return time.astimezone(UTC)
    elif key.kind is float and type(value) in (int, float) and abs(value) < float("inf"):
        return float(value)
    elif (
        type(value) is key.kind
        and not (isinstance(value, int) and abs(value) >= _INTEGER_LIMIT)
        and "\0" not in str(value)
    ):
        return value
    raise UsageError("the cursor is not one of this list: begin again without it")


def cursor(values: Sequence[Any]) -> After:
    """Return sorting values as plain values of JSON."""
    return tuple(value.isoformat() if isinstance(value, datetime) else value for value in values)


def visible(connection: sa.Connection, sight: VisibilityFilter, table: sa.Table = TABLES) -> sa.ColumnElement[bool]:
    """Return the condition of rows that somebody may see; patterns are expanded to the namespaces that exist."""
    if sight is None:
        return sa.true()
    places = connection.execute(sa.select(table.c.catalog, table.c.namespace).distinct())
    namespaces = [
        (row.catalog, row.namespace)
        for row in places
        if row.catalog is not None
        and any(covers(scope, (row.catalog, *namespace_of(row.namespace))) for scope in sight)
    ]
    return sa.tuple_(table.c.catalog, table.c.namespace).in_(namespaces) if namespaces else sa.false()
