"""Filters of queries as scan reports tell of them: columns, comparisons and how long ago, but no other value.

Iceberg's clients replace values before they report (`ExpressionUtil.sanitize`): numbers by their count of digits, texts
by a hash, days and times of the last 90 days by their age. Other clients may report values, which are left out here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from datetime import timedelta
from enum import StrEnum
from typing import Any

_AGE = re.compile(r"\((?:date|timestamp)-(?:(\d{1,6})-(hours|days)-(ago|from-now)|today|about-now)\)")
_COMPARISONS = {"eq": "=", "lt": "<", "lt-eq": "<=", "gt": ">", "gt-eq": ">="}
_DEEPEST, _LONGEST, _MOST_VALUES = 30, 1000, 20


class Side(StrEnum):
    """Which end of a range a value is."""

    LOWER = "lower"
    UPPER = "upper"
    BOTH = "both"


Draw = Callable[[str, Side, timedelta | None], str]  # of a column's value as a literal; the age where one is known


def filter_template(expression: object) -> str:
    """Return what bounds of files can use of an expression in Iceberg's JSON, without values; empty for nothing.

    The template is such an expression too, and equal for filters that differ in values alone.
    """
    template = _template(expression, 0)
    text = "" if template is None else json.dumps(template, separators=(",", ":"), sort_keys=True)
    return text if len(text) <= _LONGEST else ""


def filter_of(template: str, draw: Draw) -> str:
    """Return a filter over rows that has the template's form. Raises what `draw` raises."""
    return _filter(json.loads(template), draw)


def filter_columns(template: str) -> frozenset[str]:
    """Return the columns that a template names."""
    columns: set[str] = set()

    def note(column: str, _side: Side, _age: timedelta | None) -> str:
        columns.add(column)
        return "0"

    filter_of(template, note)
    return frozenset(columns)


def _template(expression: object, depth: int) -> Mapping[str, Any] | None:
    if depth > _DEEPEST:
        return None
    match expression:
        case {"type": "and" | "or" as kind, "left": left, "right": right}:
            parts = [_template(part, depth + 1) for part in (left, right)]
            known = [part for part in parts if part is not None]
            if len(known) == len(parts):
                return {"type": kind, "left": known[0], "right": known[1]}
            return known[0] if known and kind == "and" else None  # what is left out of an `or` lets every row in
        case {"term": {"type": "reference", "term": str(term)}, **others}:
            return _template({"term": term, **others}, depth + 1)
        case {"type": "in", "term": str(term), "values": list(values)} if values and term:
            return {"type": "in", "term": term, "values": min(len(values), _MOST_VALUES)}
        case {"type": str(kind), "term": str(term), "value": value} if kind in _COMPARISONS and term:
            return {"type": kind, "term": term, **_age(value)}
    return None


def _age(value: object) -> Mapping[str, int]:
    """Return the seconds that a day or time was ago, when the client says so."""
    match = _AGE.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        return {}
    count, unit, direction = match.groups()
    age = timedelta(**{unit: int(count)}) if count else timedelta()
    return {"age": round(age.total_seconds()) * (-1 if direction == "from-now" else 1)}


def _filter(template: Mapping[str, Any], draw: Draw) -> str:
    match template:
        case {"left": left, "right": right}:
            return f"({_filter(left, draw)} {template['type']} {_filter(right, draw)})"
        case {"values": values}:
            drawn = dict.fromkeys(draw(template["term"], Side.BOTH, None) for _ in range(values))
            return f'"{template["term"]}" in ({", ".join(drawn)})'
    kind, age = template["type"], template.get("age")
    side = Side.BOTH if kind == "eq" else Side.UPPER if kind.startswith("lt") else Side.LOWER
    value = draw(template["term"], side, None if age is None else timedelta(seconds=age))
    return f'"{template["term"]}" {_COMPARISONS[kind]} {value}'
