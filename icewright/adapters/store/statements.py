"""Conditions and statements that several parts of the store share."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, TypeVar

import sqlalchemy as sa

from icewright.adapters.store.database import dialect_insert
from icewright.adapters.store.schema import JOBS, REMOVALS, TABLES, TOTALS, VERDICTS
from icewright.core.table import TableRef
from icewright.core.tally import Total

_CHUNK = 500

_Item = TypeVar("_Item")

NAMED = tuple(
    TABLES.c[name] == sa.bindparam(name) for name in ("catalog", "namespace", "name")
)  # parameters: `name_columns`

SAME_TABLE = TABLES.c.table_uuid.is_(None) | (
    TABLES.c.table_uuid == JOBS.c.table_uuid
)  # the job was on the table that has the name now

# of a due operation: processes of versions before 0010 write no `since`
DUE_SINCE = sa.func.coalesce(VERDICTS.c.since, VERDICTS.c.at)

UNDONE_JOBS = sa.select(REMOVALS.c.job_id).where(REMOVALS.c.undone_at.is_not(None))

_BY_NAME = sa.select(TABLES).where(*NAMED)  # built once, as it is executed for every table

_LOCKED = _BY_NAME.with_for_update(key_share=True)  # rows that refer to the table can be inserted meanwhile


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


def chunks(items: Sequence[_Item]) -> Iterator[Sequence[_Item]]:
    """Return parts of the items that are small enough for the parameters of one statement."""
    return (items[i : i + _CHUNK] for i in range(0, len(items), _CHUNK))


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


def add_totals(connection: sa.Connection, added: Mapping[Total, float]) -> None:
    """Add to the counters, in one order, so that no two processes wait for each other."""
    if not added:
        return
    insert = dialect_insert(connection, TOTALS)
    more = insert.on_conflict_do_update(
        index_elements=list(Total._fields), set_={"value": TOTALS.c.value + insert.excluded.value}
    )
    connection.execute(more, [{**total._asdict(), "value": value} for total, value in sorted(added.items())])
