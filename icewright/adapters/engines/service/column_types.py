"""How Parquet stores the types of columns, and which types columns had before a table was replaced."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from functools import lru_cache
from typing import Any

from icewright.core.schemas import columns

_INTEGERS, _TEXTS = {"INT32", "INT64", "INT96"}, {"BYTE_ARRAY", "FIXED_LEN_BYTE_ARRAY"}
# also before they were promoted; types that writers store in many ways are left out
_PHYSICAL = {
    "boolean": {"BOOLEAN"},
    "int": {"INT32"},
    "float": {"FLOAT"},
    "double": {"FLOAT", "DOUBLE"},
    "date": {"INT32"},
    "string": {"BYTE_ARRAY"},
    "binary": _TEXTS,
    "fixed": _TEXTS,
    "decimal": {"INT32", "INT64"} | _TEXTS,
    **dict.fromkeys(("long", "time", "timestamp", "timestamptz", "timestamp_ns", "timestamptz_ns"), _INTEGERS),
}

# Parquet's logical types that Iceberg's readers take for a type. A type that is left out has any.
_LOGICAL = {
    "int": {"None", "Int"},
    "long": {"None", "Int", "Timestamp", "Time"},
    "decimal": {"Decimal"},
    "string": {"String", "Enum", "JSON"},
    "binary": {"None", "JSON", "BSON"},
}
_PROMOTED = {"long": "int", "double": "float", "timestamp": "date", "timestamp_ns": "date"}


def physical_types(kind: Any) -> AbstractSet[str] | None:  # noqa: ANN401 - text, or JSON of a nested type
    """Return the types by which Parquet stores a type; None where any may be."""
    return _PHYSICAL.get(re.split(r"\W", kind, maxsplit=1)[0]) if isinstance(kind, str) else None


@lru_cache(maxsize=1_000)
def is_read_as(kind: str, physical: str, annotation: str) -> bool:
    """Return whether readers find values of a type in what Parquet stores; `annotation` is the logical type as JSON.

    Otherwise Iceberg's readers find no values or wrong values: they read the digits of a decimal at the type's scale,
    and take nanoseconds, or milliseconds that are encoded by a dictionary, for microseconds.
    """
    stored, logical = physical_types(kind), json.loads(annotation)
    if stored is None or logical["Type"] == "Null":  # Parquet's type of null, at which Spark's reader of columns fails
        return bool(logical["Type"] != "Null")
    if physical not in stored or logical["Type"] not in _LOGICAL.get(kind.partition("(")[0], {logical["Type"]}):
        return False
    match logical:
        case {"Type": "Int", "isSigned": signed}:
            return bool(signed)
        case {"Type": "Decimal", "precision": precision, "scale": scale}:
            return _reads(kind, f"decimal({precision},{scale})")
        case {"Type": "Timestamp", "timeUnit": unit}:
            return kind not in ("timestamp", "timestamptz") or bool(unit == "microseconds")
    return True


def replaced_types(document: Mapping[str, Any], types: Mapping[int, Any]) -> Mapping[int, Mapping[int, Any]]:
    """Return column types by snapshot, for those whose schema has types that readers of the current one misread.

    A table that is replaced gives a column of a name that it had the same id, whatever its type.
    """
    by_schema = {}
    for schema in document.get("schemas") or ():
        others = {number: kind for number, _, kind in columns(schema, elements=True) if not _reads(types[number], kind)}
        if others:
            by_schema[schema["schema-id"]] = {**types, **others}
    snapshots = document.get("snapshots") or ()
    return {s["snapshot-id"]: by_schema[s["schema-id"]] for s in snapshots if s.get("schema-id") in by_schema}


def _reads(kind: Any, older: Any) -> bool:  # noqa: ANN401 - as above
    """Return whether readers that expect a type read values of the older type right."""
    if physical_types(kind) is None or kind == older or _PROMOTED.get(kind) == older:
        return True
    now, before = (
        [int(n) for n in re.findall(r"\d+", str(decimal)) if str(decimal).startswith("decimal")]
        for decimal in (kind, older)
    )
    return bool(now and before) and now[1] == before[1] and now[0] >= before[0]
