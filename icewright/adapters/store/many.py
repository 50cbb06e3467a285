"""Many rows for one statement: as one parameter, whatever their number, and not as a statement each."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa


def given(
    connection: sa.Connection, rows: Sequence[Sequence[object]], **columns: type[sa.types.TypeEngine[Any]]
) -> sa.Subquery:
    """Return the rows as a table of these columns, which a statement may join."""
    text = sa.literal(json.dumps(rows, ensure_ascii=False), sa.Text)
    if connection.dialect.name == "postgresql":
        each = sa.func.json_array_elements(sa.cast(text, sa.JSON)).table_valued("value")
        values: list[sa.ColumnElement[Any]] = [
            each.c.value.op("->>")(sa.literal_column(str(n))) for n in range(len(columns))
        ]
    else:
        each = sa.func.json_each(text).table_valued("value")
        values = [sa.func.json_extract(each.c.value, sa.literal_column(f"'$[{n}]'")) for n in range(len(columns))]
    named = zip(values, columns.items(), strict=True)
    return sa.select(*(sa.cast(value, kind).label(name) for value, (name, kind) in named)).subquery("given")
