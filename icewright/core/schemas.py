"""Schemas as the spec's JSON has them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

NAME_MAPPING = "schema.name-mapping.default"  # property: names of columns in files without field ids
_INNER = {"list": ("element",), "map": ("key", "value")}


def columns(schema: Mapping[str, Any], *, elements: bool = False) -> Iterator[tuple[int, tuple[str, ...], Any]]:
    """Yield id, path and type of each column of a schema, through structs, a struct before what is in it.

    With `elements`, those of lists and maps too, by the names that Iceberg gives them.
    """
    pending: list[tuple[tuple[str, ...], Any]] = [((), field) for field in reversed(schema.get("fields", ()))]
    while pending:
        parents, field = pending.pop()
        path, kind = (*parents, str(field["name"])), field["type"]
        yield int(field["id"]), path, kind
        if isinstance(kind, Mapping) and (elements or kind.get("type") == "struct"):
            pending += [(path, inner) for inner in reversed(inner_fields(kind))]


def inner_fields(kind: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    """Return the fields of a struct, the element of a list, or key and value of a map, as the spec's JSON of fields."""
    if kind["type"] == "struct":
        fields: Sequence[Mapping[str, Any]] = kind["fields"]
        return fields
    return [
        {"id": kind[f"{name}-id"], "name": name, "required": kind.get(f"{name}-required", True), "type": kind[name]}
        for name in _INNER.get(kind["type"], ())
    ]
