"""How Parquet stores the types of columns, and which types columns had before a table was replaced."""

from __future__ import annotations

import re
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from typing import Any

from icewright.core.table import columns

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


def physical_types(kind: Any) -> AbstractSet[str] | None:  # noqa: ANN401 - text, or JSON of a nested type
    """Return the types by which Parquet stores a type; None where any may be."""
    return _PHYSICAL.get(re.split(r"\W", kind, maxsplit=1)[0]) if isinstance(kind, str) else None


def replaced_types(document: Mapping[str, Any], types: Mapping[int, Any]) -> Mapping[int, Mapping[int, Any]]:
    """Return the types of columns by snapshot, where its schema has some that the current ones do not read.

    A table that is replaced gives a column of a name that it had the same id, whatever its type.
    """
    by_schema = {}
    for schema in document.get("schemas") or ():
        others = {number: kind for number, _, kind in columns(schema) if not _reads(types[number], kind)}
        if others:
            by_schema[schema["schema-id"]] = {**types, **others}
    snapshots = document.get("snapshots") or ()
    return {one["snapshot-id"]: by_schema[one["schema-id"]] for one in snapshots if one.get("schema-id") in by_schema}


def _reads(kind: Any, older: Any) -> bool:  # noqa: ANN401 - as above
    stored, was_stored = physical_types(kind), physical_types(older)
    return stored is None or (was_stored is not None and was_stored <= stored)
