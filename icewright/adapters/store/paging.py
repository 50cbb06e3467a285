"""Pages by the values of the last item that was seen: nothing is missed or doubled while rows come and go."""

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
from icewright.ports.views import (
    After,
)

_WHOLE = 2**63  # beyond which databases count no more


@dataclass(frozen=True)
class Key:
    """A column that is sorted by. Of several keys, all together are unique."""

    column: sa.ColumnElement[Any]
    kind: type
    descending: bool = False
    nullable: bool = False  # rows without it come last


def ordered(keys: Sequence[Key]) -> list[sa.ColumnElement[Any]]:
    """Return the ORDER BY of keys."""
    found: list[sa.ColumnElement[Any]] = []
    for key in keys:
        if key.nullable:
            found.append(sa.case((key.column.is_(None), 1), else_=0))
        found.append(key.column.desc() if key.descending else key.column.asc())
    return found


def seek(keys: Sequence[Key], after: After | None) -> sa.ColumnElement[bool]:
    """Return rows after these values. Raises `UsageError` when they are not of these keys."""
    if after is None:
        return sa.true()
    if len(after) != len(keys):
        raise UsageError("the cursor is of another list: begin again without it")
    later: list[sa.ColumnElement[bool]] = []
    same: list[sa.ColumnElement[bool]] = []
    for key, said in zip(keys, after, strict=True):
        if said is None and key.nullable:
            same.append(key.column.is_(None))
            continue
        value = _value(key, said)
        more = key.column < value if key.descending else key.column > value
        later.append(sa.and_(*same, (more | key.column.is_(None)) if key.nullable else more))
        same.append(key.column == value)
    return sa.or_(sa.false(), *later)


def _value(key: Key, said: Any) -> Any:  # noqa: ANN401 - what a client sent
    if key.kind is datetime and isinstance(said, str):
        try:
            found = datetime.fromisoformat(said)
        except ValueError:
            found = None
        if found is not None and found.tzinfo is not None:
            return found.astimezone(UTC)
    elif key.kind is float and type(said) in (int, float) and abs(said) < float("inf"):
        return float(said)
    elif type(said) is key.kind and not (isinstance(said, int) and abs(said) >= _WHOLE) and "\0" not in str(said):
        return said
    raise UsageError("the cursor is not one of this list: begin again without it")


def cursor(values: Sequence[Any]) -> After:
    """Sorting values as plain ones."""
    return tuple(value.isoformat() if isinstance(value, datetime) else value for value in values)


def in_sight(connection: sa.Connection, sight: VisibilityFilter, of: sa.Table = TABLES) -> sa.ColumnElement[bool]:
    """Return rows of places that somebody sees; patterns are held against the places that there are."""
    if sight is None:
        return sa.true()
    places = connection.execute(sa.select(of.c.catalog, of.c.namespace).distinct())
    seen = [
        (row.catalog, row.namespace)
        for row in places
        if row.catalog is not None
        and any(covers(scope, (row.catalog, *namespace_of(row.namespace))) for scope in sight)
    ]
    return sa.tuple_(of.c.catalog, of.c.namespace).in_(seen) if seen else sa.false()
