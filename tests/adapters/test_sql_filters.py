"""Filters as conditions of Spark SQL: each kind, with literals of the columns' types, and what has none."""

from __future__ import annotations

from typing import Any

import pytest
import sqlglot

from icewright.adapters.engines.service.row_predicate import RowPredicate
from icewright.adapters.engines.spark.sql_filters import condition
from icewright.core.errors import UsageError
from icewright.core.predicates import column_names

TYPES = ["long", "string", "double", "float", "decimal(9, 2)", "date", "timestamp", "timestamptz", "boolean", "uuid"]
NAMES = ["id", "name", "x", "y", "price", "day", "at", "seen", "ok", "raw"]
SCHEMA: dict[str, Any] = {
    "type": "struct",
    "fields": [
        {"id": number, "name": name, "type": kind, "required": False}
        for number, (name, kind) in enumerate(zip(NAMES, TYPES, strict=True), 1)
    ],
}


def sql(text: str) -> str:
    """The condition of a filter, which Spark's grammar accepts."""
    predicate = RowPredicate.of(text, [SCHEMA], "--filters")
    found = condition(predicate.bound, column_names(SCHEMA))
    assert sqlglot.parse_one(found, read="spark")
    return found


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("id = 3", "`id` = 3"),
        ("id != 3 and id is not null", "(`id` <> 3 and `id` is not null)"),
        ("not (id < 3 or id >= 9)", "(`id` >= 3 and `id` < 9)"),
        ("id in (3, 1)", "`id` in (1, 3)"),
        ("name not in ('a', 'it''s')", "`name` not in ('a', 'it\\'s')"),
        ("name like 'a%'", "startswith(`name`, 'a')"),
        ("name not like 'a%'", "not startswith(`name`, 'a')"),
        ("x > 1.5", "`x` > 1.5D"),
        ("y <= 0.5", "`y` <= 0.5F"),
        ("x is nan", "isnan(`x`)"),
        ("y is not nan", "not isnan(`y`)"),
        ("price = 1.50", "`price` = 1.50BD"),
        ("day = '2026-11-27'", "`day` = date'2026-11-27'"),
        ("at > '2026-11-27T01:02:03.5'", "`at` > timestamp_ntz'2026-11-27 01:02:03.500000'"),
        ("seen > '2026-11-27T01:02:03+00:00'", "`seen` > timestamp'2026-11-27 01:02:03+00:00'"),
        ("ok = true", "`ok` = true"),
        ("x is null", "`x` is null"),
    ],
)
def test_each_kind(text: str, expected: str) -> None:
    """Names are quoted, and values are literals of the column's type, by which Iceberg skips files."""
    assert sql(text) == expected


def test_what_has_no_literal_is_named() -> None:
    """A filter that Spark cannot be told is refused, and not run without."""
    with pytest.raises(UsageError, match="of type uuid has no literal"):
        sql("raw = '12345678-1234-5678-1234-567812345678'")
