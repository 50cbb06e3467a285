"""Conditions and statements that several parts of the store share, and keyset pagination."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeVar

import sqlalchemy as sa

from icewright.adapters.store.database import dialect_insert
from icewright.adapters.store.schema import JOBS, REMOVALS, TABLES, TOTALS, VERDICTS
from icewright.core.errors import UsageError
from icewright.core.permissions import VisibilityFilter, covers
from icewright.core.table import TableRef
from icewright.core.tally import Total
from icewright.ports.views import After

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

_CHUNK = 500

_Item = TypeVar("_Item")

NAME = (TABLES.c.catalog, TABLES.c.namespace, TABLES.c.name)  # of which `ref_of` makes a name

# parameters: `name_columns`
NAMED = tuple(column == sa.bindparam(column.name) for column in NAME)

# the job was on the table that has the name now
SAME_TABLE = TABLES.c.table_uuid.is_(None) | (TABLES.c.table_uuid == JOBS.c.table_uuid)

# of a due operation: in a store of an earlier build some have no `since`
DUE_SINCE = sa.func.coalesce(VERDICTS.c.since, VERDICTS.c.at)

UNDONE_JOBS = sa.select(REMOVALS.c.job_id).where(REMOVALS.c.undone_at.is_not(None))

_BY_NAME = sa.select(TABLES).where(*NAMED)  # built once, as it is executed for every table

_LOCKED = _BY_NAME.with_for_update(key_share=True)  # rows that refer to the table can be inserted meanwhile
_INTEGER_LIMIT = 2**63  # above the largest integer of the databases


def table_row(connection: sa.Connection, ref: TableRef, *, locked: bool = False) -> Any:  # noqa: ANN401 - a result row
    """Return the row of TABLES of this name or None, locked until the transaction ends if asked for."""
    return connection.execute(_LOCKED if locked else _BY_NAME, name_columns(ref)).first()


def of_table(ref: TableRef) -> tuple[sa.ColumnElement[bool], ...]:
    """Return the conditions of the row of TABLES with this name."""
    return tuple(TABLES.c[column] == value for column, value in name_columns(ref).items())


def name_columns(ref: TableRef) -> dict[str, str]:
    """Return the name of a table as values of columns of TABLES."""
    return {"catalog": ref.catalog, "namespace": namespace_text(ref.namespace), "name": ref.name}


@lru_cache(maxsize=4096)  # few namespaces have thousands of tables
def namespace_text(namespace: tuple[str, ...]) -> str:
    """Return a namespace as its column stores it: a JSON list, so that a dot in a name stays one."""
    return json.dumps(namespace, ensure_ascii=False)


@lru_cache(maxsize=4096)
def namespace_of(text: str) -> tuple[str, ...]:
    """Return the namespace that its column stores."""
    return tuple(json.loads(text))


def ref_of(row: Any) -> TableRef:  # noqa: ANN401 - a result row
    """Return the name of the table in a result row."""
    return TableRef(row.catalog, namespace_of(row.namespace), row.name)


def columns_of(table: sa.Table, kind: type[DataclassInstance]) -> list[sa.Column[Any]]:
    """Return the columns that are named as the fields of a dataclass, in the order of the fields."""
    return [table.c[field.name] for field in fields(kind)]


def values_of(row: DataclassInstance, *left_out: str) -> dict[str, Any]:
    """Return the fields of a dataclass by name, but for those that are left out."""
    return {field.name: getattr(row, field.name) for field in fields(row) if field.name not in left_out}


def chunks(items: Sequence[_Item], size: int = _CHUNK) -> Iterator[Sequence[_Item]]:
    """Return parts of the items that are small enough for the parameters of one statement."""
    return (items[i : i + size] for i in range(0, len(items), size))


def values_table(
    connection: sa.Connection, rows: Sequence[Sequence[object]], **columns: type[sa.types.TypeEngine[Any]]
) -> sa.Subquery:
    """Return rows as a table of these columns, which a statement may join: one parameter, however many rows."""
    text = sa.literal(json.dumps(rows, ensure_ascii=False), sa.Text)
    if connection.dialect.name == "postgresql":
        each = sa.func.json_array_elements(sa.cast(text, sa.JSON)).table_valued("value")
        values: list[sa.ColumnElement[Any]] = [
            each.c.value.op("->>")(sa.literal_column(str(n))) for n in range(len(columns))
        ]
    else:
        each = sa.func.json_each(text).table_valued("value")
        values = [sa.func.json_extract(each.c.value, sa.literal_column(f"'$[{n}]'")) for n in range(len(columns))]
    name_columns = zip(values, columns.items(), strict=True)
    return sa.select(*(sa.cast(value, kind).label(name) for value, (name, kind) in name_columns)).subquery("given")


def lock_tables(connection: sa.Connection, *which: sa.ColumnElement[bool]) -> None:
    """Lock rows of TABLES in the order of their ids, so that no two processes wait for each other."""
    if connection.dialect.name == "postgresql":  # SQLite has one writer at a time
        rows = sa.select(TABLES.c.id).where(*which).order_by(TABLES.c.id)
        connection.execute(rows.with_for_update(of=TABLES, key_share=True)).all()


def lock_rows(connection: sa.Connection, ids: Iterable[int]) -> None:
    """Lock the rows of TABLES with these ids, as `lock_tables` does."""
    for chunk in chunks(sorted(ids)):
        lock_tables(connection, TABLES.c.id.in_(chunk))


def add_totals(connection: sa.Connection, added: Mapping[Total, float]) -> None:
    """Add to the counters, in one order, so that no two processes wait for each other."""
    if not added:
        return
    insert = dialect_insert(connection, TOTALS)
    more = insert.on_conflict_do_update(
        index_elements=list(Total._fields), set_={"value": TOTALS.c.value + insert.excluded.value}
    )
    connection.execute(more, [{**total._asdict(), "value": value} for total, value in sorted(added.items())])


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
            if time.tzinfo is not None:
                return time.astimezone(UTC)
        except (ValueError, OverflowError):
            pass
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


def visible(
    connection: sa.Connection, visibility: VisibilityFilter, table: sa.Table = TABLES
) -> sa.ColumnElement[bool]:
    """Return the condition of rows that somebody may see; patterns are expanded to the namespaces that exist."""
    if visibility is None:
        return sa.true()
    places = connection.execute(sa.select(table.c.catalog, table.c.namespace).distinct())
    namespaces = [
        (row.catalog, row.namespace)
        for row in places
        if row.catalog is not None
        and any(covers(scope, (row.catalog, *namespace_of(row.namespace))) for scope in visibility)
    ]
    return sa.tuple_(table.c.catalog, table.c.namespace).in_(namespaces) if namespaces else sa.false()
