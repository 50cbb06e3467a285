"""Conversion of columns of partition tuples into columns of text."""

from __future__ import annotations

import polars as pl

from icewright.core.partitions import partition_text


def partition_texts(tuples: pl.Series) -> pl.Series:
    """Return partition tuples (structs, or nothing without partitions) as text, each distinct one converted once."""
    if not isinstance(tuples.dtype, pl.Struct) or not tuples.dtype.fields:
        return pl.Series("partition", ["[]"] * len(tuples), pl.String)
    frame = pl.DataFrame([tuples.struct.field(f.name).alias(str(i)) for i, f in enumerate(tuples.dtype.fields)])
    keys = list(frame.columns)
    distinct = frame.unique(maintain_order=True)
    texts = pl.Series("partition", [partition_text(row) for row in distinct.iter_rows()], pl.String)
    joined = frame.join(distinct.with_columns(texts), on=keys, how="left", nulls_equal=True, maintain_order="left")
    return joined["partition"]
