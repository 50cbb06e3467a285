"""Conversion of columns of partition tuples into columns of text."""

from __future__ import annotations

from datetime import UTC
from typing import Any

import polars as pl

from icewright.core.partitions import date_of, moment_of, partition_text


def partition_texts(tuples: pl.Series) -> pl.Series:
    """Return partition tuples (structs, or nothing without partitions) as text, each distinct one converted once."""
    if not isinstance(tuples.dtype, pl.Struct) or not tuples.dtype.fields:
        return pl.Series("partition", ["[]"] * len(tuples), pl.String)
    frame = pl.DataFrame([tuples.struct.field(f.name).alias(str(i)) for i, f in enumerate(tuples.dtype.fields)])
    keys = list(frame.columns)
    distinct = frame.unique(maintain_order=True)
    rows = zip(*map(_values, distinct.get_columns()), strict=True)
    texts = pl.Series("partition", [partition_text(row) for row in rows], pl.String)
    joined = frame.join(distinct.with_columns(texts), on=keys, how="left", nulls_equal=True, maintain_order="left")
    return joined["partition"]


def _values(column: pl.Series) -> list[Any]:
    """Return the values; dates and moments are made from their numbers, as Polars fails at years beyond 9999."""
    kind = column.dtype
    if kind == pl.Date:
        return [None if days is None else date_of(days) for days in column.to_physical()]
    if isinstance(kind, pl.Datetime) and kind.time_unit == "us":
        zone = UTC if kind.time_zone else None
        return [None if micros is None else moment_of(micros, zone) for micros in column.to_physical()]
    return column.to_list()
