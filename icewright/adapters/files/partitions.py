"""Partition tuples as text, one canonical form for every writer."""

from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import polars as pl


def partition_texts(tuples: pl.Series) -> pl.Series:
    """Partition tuples (a struct each, or nothing where the table has no partitions), each distinct one made once."""
    if not isinstance(tuples.dtype, pl.Struct) or not tuples.dtype.fields:
        return pl.Series("partition", ["[]"] * len(tuples), pl.String)
    frame = pl.DataFrame([tuples.struct.field(f.name).alias(str(i)) for i, f in enumerate(tuples.dtype.fields)])
    keys = list(frame.columns)
    distinct = frame.unique(maintain_order=True)
    texts = pl.Series("partition", [partition_text(row) for row in distinct.iter_rows()], pl.String)
    joined = frame.join(distinct.with_columns(texts), on=keys, how="left", nulls_equal=True, maintain_order="left")
    return joined["partition"]


def partition_text(values: Iterable[Any]) -> str:
    """A partition tuple as canonical JSON; types that JSON lacks are tagged."""
    return json.dumps([_tagged(v) for v in values], ensure_ascii=False, separators=(",", ":"))


def partition_values(text: str) -> tuple[Any, ...]:
    """The tuple back from its text."""
    return tuple(_untagged(v) for v in json.loads(text))


def _tagged(value: Any) -> Any:  # noqa: ANN401 - any partition value
    match value:
        case datetime():
            return {"timestamp": value.isoformat()}
        case date():
            return {"date": value.isoformat()}
        case time():
            return {"time": value.isoformat()}
        case timedelta():
            return {"duration": value // timedelta(microseconds=1)}
        case Decimal():
            return {"decimal": str(value)}
        case bytes():
            return {"binary": value.hex()}
    return value


def _untagged(value: Any) -> Any:  # noqa: ANN401 - any partition value
    if not isinstance(value, dict):
        return value
    ((tag, said),) = value.items()
    match tag:
        case "timestamp":
            return datetime.fromisoformat(said)
        case "date":
            return date.fromisoformat(said)
        case "time":
            return time.fromisoformat(said)
        case "duration":
            return timedelta(microseconds=said)
        case "decimal":
            return Decimal(said)
        case "uuid":
            return UUID(said)
        case "binary":
            return bytes.fromhex(said)
    raise ValueError(f"unknown tag {tag} in a partition tuple")
