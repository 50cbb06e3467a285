"""Decide which columns have a dictionary: one that overflows costs time and stores both codes and values."""

from __future__ import annotations

import math

import pyarrow as pa
import pyarrow.compute as pc

_SAMPLES, _SAMPLE_ROWS = 16, 512  # sampled slices of a row group, and rows of each at most
_SAMPLE_BYTES = 16 << 20  # of all slices, about: counting distinct values copies them


def dictionary_pays(column: pa.ChunkedArray, limit: int) -> bool:
    """Return whether the dictionary of the column is estimated to stay within `limit` bytes.

    The estimate assumes equally frequent values: a sample of n out of d distinct values has about n - n²/2d distinct
    ones. Columns that Arrow cannot count, such as nested columns, have a dictionary.
    """
    if not len(column) or pa.types.is_nested(column.type):
        return True
    sample = _sample(column).drop_null()
    if not len(sample):
        return True
    if isinstance(column.type, pa.BaseExtensionType):
        sample = pa.chunked_array([chunk.storage for chunk in sample.chunks], column.type.storage_type)
    sampled, distinct = len(sample), int(pc.count_distinct(sample).as_py())
    width = float(sample.nbytes / sampled)
    if sampled == len(column):
        codes = sampled * math.ceil(math.log2(distinct + 1)) / 8
        return distinct * width + codes < sampled * width
    estimated = sampled**2 / (2 * max(sampled - distinct, 1))
    return estimated * width <= limit


def _sample(column: pa.ChunkedArray) -> pa.ChunkedArray:
    rows = max(1, min(_SAMPLE_ROWS, _SAMPLE_BYTES * len(column) // max(column.nbytes, 1) // _SAMPLES))
    if len(column) <= _SAMPLES * rows:
        return column
    step = len(column) // _SAMPLES
    chunks = [chunk for number in range(_SAMPLES) for chunk in column.slice(number * step, rows).chunks]
    return pa.chunked_array(chunks, column.type)
