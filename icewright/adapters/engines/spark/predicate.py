"""Check of a user's `where`, the only free text that reaches SQL: one predicate over the table's columns."""

from __future__ import annotations

import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError

from icewright.core.errors import Refused
from icewright.core.predicates import column_names
from icewright.core.table import TableMetadata
from icewright.core.words import first_line

_EXAMPLE = "such as: event_date >= CURRENT_DATE - INTERVAL 2 DAYS"
_FORBIDDEN = (exp.Query, exp.DML, exp.DDL, exp.Command, exp.Window, exp.Placeholder, exp.Parameter, exp.Star)
# functions of their arguments alone: none reads files, runs code or is nondeterministic
OF_VALUES = (
    exp.Connector, exp.Predicate, exp.Cast, exp.CurrentDate, exp.CurrentTimestamp, exp.DateAdd, exp.DateSub,
    exp.DateTrunc, exp.Date, exp.TimestampTrunc, exp.TsOrDsAdd, exp.TsOrDsToDate,
)  # fmt: skip


def checked(metadata: TableMetadata, where: str) -> str:
    """Return the predicate rendered from its parse, so that no comment or stray bracket survives. Raises `Refused`.

    The error says what is wrong with the predicate.
    """
    lower_names = {
        ".".join(path[:depth]).lower() for path in column_names(metadata.schema).values() for depth in (1, len(path))
    }
    try:
        parsed = sqlglot.parse(where, read="spark")
    except SqlglotError as error:
        raise Refused(f"compact.where {where!r} cannot be parsed: {first_line(error)}") from error
    tree = parsed[0] if len(parsed) == 1 else None
    if tree is None or not isinstance(tree, exp.Predicate | exp.Connector | exp.Not | exp.Paren):
        raise Refused(f"compact.where {where!r} is not one predicate, {_EXAMPLE}")
    columns = 0
    for node in tree.walk():
        called = node.name.lower() if isinstance(node, exp.Anonymous) else node.key
        others = isinstance(node, exp.Func) and not isinstance(node, OF_VALUES) and called != "now"
        if isinstance(node, _FORBIDDEN) or others:
            raise Refused(f"compact.where {where!r} may compare columns with values only, not use {called}, {_EXAMPLE}")
        if isinstance(node, exp.Column):
            columns += 1
            name = ".".join(part.name for part in node.parts).lower()
            if name not in lower_names:
                raise Refused(f"compact.where {where!r}: {metadata.ref} has no column {name}")
    if not columns:
        raise Refused(f"compact.where {where!r} names no column of {metadata.ref}, {_EXAMPLE}")
    return tree.sql(dialect="spark", comments=False)
