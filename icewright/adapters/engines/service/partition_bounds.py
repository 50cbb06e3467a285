"""Bounds of partition fields over the entries of a manifest (spec, field_summary)."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any

from icewright.adapters.engines.service.avro_records import Record
from icewright.core.avro_values import Schema
from icewright.core.single_values import bound, bound_value, is_bound, unscaled_bytes


def partition_fields(partition: Schema) -> list[dict[str, Any]]:
    """Return the partition fields with their types, named types looked up."""
    named: dict[str, Any] = {}
    fields = []
    for field in partition["fields"]:
        kind = field["type"]
        chosen = next((k for k in kind if k != "null"), "null") if isinstance(kind, list) else kind
        if isinstance(chosen, dict) and "name" in chosen:
            named[chosen["name"]] = chosen
        resolved = named.get(chosen, {"type": chosen}) if isinstance(chosen, str) else chosen
        fields.append({"name": field["name"], "type": resolved})
    return fields


def widened(value: Any, kind: Mapping[str, Any]) -> Any:  # noqa: ANN401 - any Avro value
    """Return the value in as many bytes as the type has: a decimal takes more once its column has more digits."""
    if isinstance(value, bytes) and value and kind.get("logicalType") == "decimal":
        return value.rjust(kind.get("size", 0), b"\xff" if value[0] & 0x80 else b"\x00")
    return value


def decimal_fields(partition: Schema) -> list[dict[str, Any]]:
    """Return the decimal fields of partition tuples."""
    return [field for field in partition_fields(partition) if field["type"].get("logicalType") == "decimal"]


def shortest(partition: Record, decimals: Iterable[dict[str, Any]]) -> Record:
    """Return the decimals of a partition tuple in as few bytes as hold them: those of before a promotion had fewer."""
    kinds = {field["name"]: field["type"] for field in decimals if partition[field["name"]] is not None}
    return {name: unscaled_bytes(_comparable(partition[name], kind)) for name, kind in kinds.items()}


def _comparable(value: Any, kind: Mapping[str, Any]) -> Any:  # noqa: ANN401 - any Avro value
    """Return the value in comparable form: decimals as numbers, all others unchanged."""
    if kind.get("logicalType") == "decimal":
        return int.from_bytes(value, "big", signed=True)
    return value


def _type_name(kind: Mapping[str, Any]) -> str:
    return "decimal" if kind.get("logicalType") == "decimal" else kind["type"]


def _order(kind: Mapping[str, Any]) -> Callable[[Any], Any]:
    """Return how Iceberg's Java library, and with it Spark, orders values: UUIDs as two numbers, -0.0 before 0.0."""
    if kind["type"] in ("float", "double"):
        return lambda value: (value, math.copysign(1, value))
    if kind.get("logicalType") == "uuid":
        return lambda value: tuple(int.from_bytes(half, "big", signed=True) for half in (value[:8], value[8:]))
    return lambda value: value


def summaries(fields: list[dict[str, Any]], tuples: Collection[tuple[Any, ...]]) -> list[Record]:
    """Return the summary of each field over partition tuples."""
    return [_summary(field["type"], [values[i] for values in tuples]) for i, field in enumerate(fields)]


def _summary(kind: Mapping[str, Any], values: list[Any]) -> Record:
    real = [v for v in values if v is not None and v == v]  # noqa: PLR0124 - NaN is not itself
    ordered = sorted((_comparable(v, kind) for v in real), key=_order(kind))
    return {
        "contains_null": any(v is None for v in values),
        "contains_nan": any(v is not None and v != v for v in values),  # noqa: PLR0124
        "lower_bound": bound(_type_name(kind), ordered[0]) if ordered else None,
        "upper_bound": bound(_type_name(kind), ordered[-1]) if ordered else None,
    }


def uncovered(
    fields: list[dict[str, Any]], listed: Collection[Record] | None, tuples: Collection[tuple[Any, ...]]
) -> Iterator[str]:
    """Yield what the summaries of a manifest list leave out of its partition tuples: readers would skip their files.

    UUIDs are not compared, as Iceberg's libraries differ in how they order them.
    """
    if listed is None or not tuples:
        return
    if len(listed) < len(fields):
        yield f"its list has summaries of {len(listed)} partition fields, and its entries have {len(fields)}"
    for field, actual, summary in zip(fields, summaries(fields, tuples), listed, strict=False):
        name, kind = field["name"], field["type"]
        if actual["contains_null"] and not summary["contains_null"]:
            yield f"its list says that no partition has null in {name}"
        if actual["contains_nan"] and summary.get("contains_nan") is False:  # null: nobody has looked
            yield f"its list says that no partition has NaN in {name}"
        bounds = [(summary[which], actual[which]) for which in ("lower_bound", "upper_bound")]
        type_name = _type_name(kind)
        if actual["lower_bound"] is None:
            continue
        if any(stated is None or not is_bound(type_name, stated) for stated, _ in bounds):
            yield f"its list has no bounds of {name} that can be read, and its partitions have values"
            continue
        if kind.get("logicalType") == "uuid":
            continue
        (low, least), (high, most) = [tuple(bound_value(type_name, value) for value in pair) for pair in bounds]
        order = _order(kind)
        if order(low) > order(least) or order(high) < order(most):
            yield f"its list says that {name} is from {low!r} to {high!r}, and it is from {least!r} to {most!r}"
