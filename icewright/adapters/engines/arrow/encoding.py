"""Which columns are worth a dictionary: one that overflows costs time and leaves both codes and values."""

from __future__ import annotations

import math

import pyarrow as pa
import pyarrow.compute as pc

_SAMPLES, _OF_ROWS = 16, 512  # slices of a row group


def repeats(column: pa.ChunkedArray, limit: int) -> bool:
    """Return whether the values come again so often that their dictionary is small: within `limit` bytes.

    The number of different values is estimated from a sample as if all were as frequent: of n drawn from d, about
    n - n²/2d are different. Columns that Arrow cannot count, such as nested ones, are taken to repeat.
    """
    sample = _sample(column).drop_null()
    if not len(sample) or pa.types.is_nested(column.type):
        return True
    if isinstance(column.type, pa.BaseExtensionType):
        sample = pa.chunked_array([chunk.storage for chunk in sample.chunks], column.type.storage_type)
    drawn, different = len(sample), int(pc.count_distinct(sample).as_py())
    width = float(sample.nbytes / drawn)
    if drawn == len(column):
        codes = drawn * math.ceil(math.log2(different + 1)) / 8
        return different * width + codes < drawn * width
    estimated = drawn**2 / (2 * max(drawn - different, 1))
    return estimated * width <= limit


def _sample(column: pa.ChunkedArray) -> pa.ChunkedArray:
    if len(column) <= _SAMPLES * _OF_ROWS:
        return column
    step = len(column) // _SAMPLES
    chunks = [chunk for number in range(_SAMPLES) for chunk in column.slice(number * step, _OF_ROWS).chunks]
    return pa.chunked_array(chunks, column.type)
