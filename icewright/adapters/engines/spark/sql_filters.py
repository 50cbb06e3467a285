"""Filters over a table's rows as conditions of Spark SQL."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC
from typing import Any

from pyiceberg.expressions import (
    AlwaysFalse,
    AlwaysTrue,
    And,
    BooleanExpression,
    BoundEqualTo,
    BoundGreaterThan,
    BoundGreaterThanOrEqual,
    BoundIn,
    BoundIsNaN,
    BoundIsNull,
    BoundLessThan,
    BoundLessThanOrEqual,
    BoundLiteralPredicate,
    BoundNotEqualTo,
    BoundNotIn,
    BoundNotNaN,
    BoundNotNull,
    BoundNotStartsWith,
    BoundStartsWith,
    Or,
)
from pyiceberg.types import DateType, FloatType, IcebergType, TimestampType, TimestamptzType

from icewright.core.errors import UsageError
from icewright.core.partitions import date_of, moment_of
from icewright.core.predicates import literal, quoted

Names = Mapping[int, Sequence[str]]  # the path of each column by its id
_OPERATORS: Mapping[type, str] = {
    BoundEqualTo: "=",
    BoundNotEqualTo: "<>",
    BoundLessThan: "<",
    BoundLessThanOrEqual: "<=",
    BoundGreaterThan: ">",
    BoundGreaterThanOrEqual: ">=",
    BoundIsNull: "is null",
    BoundNotNull: "is not null",
}
_CALLS: Mapping[type, str] = {
    BoundIsNaN: "isnan({})",
    BoundNotNaN: "not isnan({})",
    BoundStartsWith: "startswith({}, {})",
    BoundNotStartsWith: "not startswith({}, {})",
    BoundIn: "{} in ({})",
    BoundNotIn: "{} not in ({})",
}


def condition(expression: BooleanExpression, names: Names) -> str:
    """Return a bound expression without `not` as SQL. Raises `UsageError` for values that SQL has no literal of."""
    match expression:
        case And(left=left, right=right):
            return f"({condition(left, names)} and {condition(right, names)})"
        case Or(left=left, right=right):
            return f"({condition(left, names)} or {condition(right, names)})"
        case AlwaysTrue() | AlwaysFalse():
            return str(isinstance(expression, AlwaysTrue)).lower()
    field = expression.term.ref().field  # type: ignore[attr-defined] # all others are predicates of a column
    column = ".".join(map(quoted, names[field.field_id]))
    stored = [expression.literal.value] if isinstance(expression, BoundLiteralPredicate) else []
    if isinstance(expression, BoundIn | BoundNotIn):
        stored = sorted(expression.value_set)
    values = ", ".join(_literal(value, field.field_type) for value in stored)
    if (call := _CALLS.get(type(expression))) is not None:
        return call.format(column, values)
    return f"{column} {_OPERATORS[type(expression)]} {values}".rstrip()


def compared_columns(expression: BooleanExpression, *, only_equal: bool) -> Iterator[int]:
    """Yield the ids of the columns that a bound expression compares with values, or for equality alone, as often."""
    match expression:
        case And(left=left, right=right) | Or(left=left, right=right):
            yield from compared_columns(left, only_equal=only_equal)
            yield from compared_columns(right, only_equal=only_equal)
        case BoundEqualTo(term=term) | BoundIn(term=term):
            yield term.ref().field.field_id
        case BoundLiteralPredicate(term=term) if not only_equal:
            yield term.ref().field.field_id


def _literal(stored: Any, kind: IcebergType) -> str:  # noqa: ANN401 - of the column
    match kind:
        case DateType():
            text = literal(date_of(stored))
        case TimestamptzType():
            text = literal(moment_of(stored, UTC))
        case TimestampType():
            text = (literal(moment_of(stored, None)) or "").replace("timestamp", "timestamp_ntz", 1)
        case FloatType():
            text = (literal(stored) or "").replace("D", "F")
        case _:
            text = literal(stored)
    if not text:
        raise UsageError(
            f"--filters: {stored!r} of type {kind} has no literal in Spark SQL, where layouts are measured"
        )
    return text
