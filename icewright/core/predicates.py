"""Build the predicates by which Iceberg's procedures select partitions, from typed values."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from datetime import date, datetime, time
from decimal import Decimal
from typing import Any
from uuid import UUID

from icewright.core.partitions import DistantTime
from icewright.core.schemas import columns
from icewright.core.table import PartitionFacts, PartitionField, TableMetadata

_PARAMETERISED = re.compile(r"(bucket|truncate)\[(\d+)\]")
_FUNCTIONS = {"year": "years", "month": "months", "day": "days", "hour": "hours"}


def quoted(name: str) -> str:
    """Return an identifier for Spark SQL."""
    return "`" + name.replace("`", "``") + "`"


def text_literal(text: str) -> str:
    """Return a string literal for Spark SQL, which reads backslashes as escapes."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def literal(value: Any) -> str | None:  # noqa: ANN401 - one line for each type of the spec
    """Return a typed literal for Spark SQL, or None when the value cannot be said as one."""
    match value:
        case bool():
            return "true" if value else "false"
        case int():
            return str(value)
        case float():
            return f"{value!r}D" if math.isfinite(value) else None
        case Decimal():
            return f"{value}BD"
        case str():
            return text_literal(value)
        case datetime():
            return f"timestamp'{value.isoformat(sep=' ')}'"
        case date():
            return f"date'{value.isoformat()}'"
        case DistantTime():
            return f"{'date' if value.unit == 'days' else 'timestamp'}'{value}'"
        case UUID() | time() | bytes():
            return None
    return None


def column_names(schema: Mapping[str, Any]) -> dict[int, tuple[str, ...]]:
    """Return the path of each column by its field id, through structs."""
    return {number: path for number, path, _ in columns(schema)}


def partitions_predicate(metadata: TableMetadata, partitions: Iterable[PartitionFacts]) -> str | None:
    """Return a predicate that holds for exactly the rows of these partitions, or None when it cannot be said.

    The catalog's own transform functions say transforms (`catalog.system.bucket(4, id) = 2`); a void field says
    nothing, so that a spec of void fields alone, or none, has no predicate.
    """
    columns = column_names(metadata.schema)
    values_by_term: dict[str, list[str]] = {}  # term -> values, for specs with one telling field
    alternatives: list[str] = []
    for partition in partitions:
        spec = metadata.spec(partition.spec_id)
        conditions: list[tuple[str, str | None]] = []
        for field, value in zip(spec.fields, partition.values, strict=True):
            if field.transform == "void":
                continue
            term = _term(metadata.ref.catalog, field, columns, is_null=value is None)
            value_literal = None if value is None else literal(value)
            if term is None or (value is not None and value_literal is None):
                return None
            conditions.append((term, value_literal))
        if not conditions:
            return None
        if len(conditions) == 1 and conditions[0][1] is not None:
            values_by_term.setdefault(conditions[0][0], []).append(conditions[0][1])
        else:
            alternatives.append(" and ".join(_condition(term, value_literal) for term, value_literal in conditions))
    for term, values in values_by_term.items():
        listed = f"{term} in ({', '.join(values)})" if len(values) > 1 else f"{term} = {values[0]}"
        alternatives.append(listed)
    if not alternatives:
        return None
    return alternatives[0] if len(alternatives) == 1 else " or ".join(f"({a})" for a in alternatives)


def _condition(term: str, value_literal: str | None) -> str:
    return f"{term} is null" if value_literal is None else f"{term} = {value_literal}"


def _term(catalog: str, field: PartitionField, columns: Mapping[int, tuple[str, ...]], *, is_null: bool) -> str | None:
    path = columns.get(field.source_id)
    if path is None:  # the column was dropped: nothing can name it any more
        return None
    column = ".".join(quoted(p) for p in path)
    if is_null or field.transform == "identity":
        return column
    system = f"{quoted(catalog)}.system"
    if match := _PARAMETERISED.fullmatch(field.transform):
        return f"{system}.{match[1]}({match[2]}, {column})"
    function = _FUNCTIONS.get(field.transform)
    return f"{system}.{function}({column})" if function else None
