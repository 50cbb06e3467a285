"""Filters over a table's rows, drawn by the templates that scan reports left: values come from a sample of the rows."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from decimal import Decimal
from math import isfinite
from typing import Any

from icewright.adapters.engines.service.layout_trials import LayoutTrials
from icewright.core.filters import Side, filter_columns, filter_of
from icewright.core.partitions import DistantTime, date_of, moment_of
from icewright.core.table import TableMetadata
from icewright.ports import TableFiles

_DRAWN = 100  # filters, at about
_LONGEST = 1000  # characters of a value
_TYPES = frozenset({"boolean", "int", "long", "float", "double", "date", "timestamp", "timestamptz", "string"})
_Row = Mapping[str, Any]  # values as they are stored: days and microseconds as numbers


def drawn_filters(
    files: TableFiles, metadata: TableMetadata, templates: Mapping[str, float], now: datetime
) -> Sequence[str]:
    """Return some hundred filters by templates and how often each is used.

    Days and times that were so long ago are so long before `now`. Other values are those of a row of the sample, and
    the ends of a range those of two. Templates are left out whose columns the table lacks or have no literals.
    """
    types = {field["name"]: field["type"] for field in metadata.schema["fields"] if _is_usable(field)}
    usable = {template: rate for template, rate in templates.items() if filter_columns(template) <= types.keys()}
    columns = sorted({column for template in usable for column in filter_columns(template)})
    if not columns:
        return ()
    rows = LayoutTrials(files, metadata, [f'"{column}" is not null' for column in columns]).sample
    rng, total = random.Random(4), sum(usable.values())  # noqa: S311 - no secret
    filters = []
    for template, rate in sorted(usable.items()):
        for _ in range(max(1, round(_DRAWN * rate / total)) if rows.height else 0):
            one, other = (rows.row(rng.randrange(rows.height), named=True) for _ in range(2))
            with suppress(LookupError):
                filters.append(filter_of(template, _Values(types, one, other, now).draw))
    return filters


def _is_usable(field: Mapping[str, Any]) -> bool:
    """Return whether filters can name a column and its values; the parser knows no escapes in names."""
    return isinstance(field["type"], str) and field["type"] in _TYPES and not set(field["name"]) & set('".\\')


@dataclass(frozen=True)
class _Values:
    """The values of one filter."""

    types: Mapping[str, str]
    one: _Row
    other: _Row
    now: datetime

    def draw(self, column: str, side: Side, age: timedelta | None) -> str:
        """Return a literal. Raises `LookupError` where a row has no value that can be written."""
        kind = self.types[column]
        if age is not None and kind in {"date", "timestamp", "timestamptz"}:
            moment = (self.now - age).astimezone(UTC)
            return f"'{moment.date() if kind == 'date' else moment.replace(tzinfo=_zone(kind)).isoformat()}'"
        values = [self.one[column], self.other[column]]
        if None in values:
            raise LookupError(column)
        return _literal(values[0] if side is Side.BOTH else min(values) if side is Side.LOWER else max(values), kind)


def _zone(kind: str) -> tzinfo | None:
    return UTC if kind == "timestamptz" else None


def _literal(value: Any, kind: str) -> str:  # noqa: ANN401 - a value of any type
    match kind:
        case "string" if str(value).isprintable() and "\\" not in value and len(value) <= _LONGEST:
            return "'" + str(value).replace("'", "''") + "'"
        case "date" | "timestamp" | "timestamptz":
            moment = date_of(value) if kind == "date" else moment_of(value, _zone(kind))
            if not isinstance(moment, DistantTime):
                return f"'{moment.isoformat()}'"
        case "float" | "double" if isfinite(value):
            digits = format(Decimal(repr(value)), "f")
            return digits if "." in digits else f"{digits}.0"
        case "boolean" | "int" | "long":
            return str(value).lower()
    raise LookupError(value)
