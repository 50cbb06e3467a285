"""The one free text that reaches SQL: a user's `where`, refused unless it is one predicate over the table's columns."""

from __future__ import annotations

import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError

from icewright.core.errors import Refused
from icewright.core.predicates import column_names
from icewright.core.table import TableMetadata

_FORBIDDEN = (exp.Query, exp.DML, exp.DDL, exp.Command, exp.AggFunc, exp.Window, exp.Placeholder, exp.Parameter)


def checked(metadata: TableMetadata, where: str) -> str:
    """The predicate as it was given. Raises `Refused` with what is wrong with it."""
    known = {".".join(path).lower() for path in column_names(metadata.schema).values()}
    known |= {path[0].lower() for path in column_names(metadata.schema).values()}
    try:
        parsed = sqlglot.parse(where, read="spark")
    except SqlglotError as error:
        raise Refused(f"compact.where {where!r} cannot be parsed: {str(error).splitlines()[0]}") from error
    tree = parsed[0] if len(parsed) == 1 else None
    if tree is None or not isinstance(tree, exp.Predicate | exp.Connector | exp.Not | exp.Paren):
        raise Refused(
            f"compact.where {where!r} is not one predicate, such as: event_date >= CURRENT_DATE - INTERVAL 2 DAYS"
        )
    for node in tree.walk():
        if isinstance(node, _FORBIDDEN):
            raise Refused(f"compact.where {where!r} may compare columns with values only, not use {node.key}")
        if isinstance(node, exp.Column):
            name = ".".join(part.name for part in node.parts).lower()
            if name not in known:
                raise Refused(f"compact.where {where!r}: {metadata.ref} has no column {name}")
    return where
