"""The distinct keys of equality deletes, each with the newest delete of it, in shares of bounded memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import polars as pl
import pyarrow as pa

from icewright.adapters.engines.arrow.equality import find_keys, key_bytes, key_columns_of, read_keys
from icewright.adapters.engines.arrow.opening import Opener
from icewright.adapters.engines.arrow.tasks import Layout
from icewright.adapters.engines.arrow.types import Field

_MEMORY_SHARE = 8  # of the memory, for the keys of a share; finding the distinct ones takes some times as much
_BYTES_OF_A_KEY = 24  # beside its values: sequence number, hash and place in a table of hashes
_SEQUENCE = "sequence number"
# bytes of a bound by type; values of other types are not compared with bounds
_BOUND_BYTES: Mapping[str, tuple[int, ...]] = {"int": (4,), "long": (4, 8), "date": (4,)} | dict.fromkeys(
    ("timestamp", "timestamptz", "timestamp_ns", "timestamptz_ns"), (8,)
)
Bounds = Mapping[int, tuple[bytes | None, bytes | None, int | None]]  # lower and upper bound, nulls, by field id


@dataclass(frozen=True)
class KeySequences:
    """Distinct keys on the same columns, sorted by hash, each with the greatest sequence number of its deletes."""

    columns: tuple[Field, ...]
    keys: pl.DataFrame
    hashes: pl.Series  # ascending, each once
    sequences: pl.Series
    seed: int

    @cached_property
    def newest(self) -> int:
        """Return the greatest sequence number of all keys."""
        return int(self.sequences.max())  # type: ignore[arg-type] # there are keys, and they are numbers

    def deleted_rows(self, columns: Mapping[int, pa.Array], sequence: int) -> pl.Series:
        """Return the numbers of the rows of a file of this sequence number that a newer delete names.

        `columns` are by field id. Null equals null, NaN equals NaN, and zero is not minus zero, as in Iceberg's reader.
        """
        rows, at = find_keys(columns, self.columns, self.keys, self.hashes, self.seed)
        return rows.filter(self.sequences.gather(at) > sequence)

    def may_match(self, sequence: int, bounds: Bounds) -> bool:
        """Return whether a file of this sequence number and these bounds may hold a row that a delete names."""
        return self.newest > sequence and all(
            self._may_hold(column, bounds.get(column["id"], (None, None, None))) for column in self.columns
        )

    def _may_hold(self, column: Field, bounds: tuple[bytes | None, bytes | None, int | None]) -> bool:
        lower, upper, nulls = bounds
        sizes = _BOUND_BYTES.get(column["type"], ())
        if lower is None or upper is None or len(lower) not in sizes or len(upper) not in sizes:
            return True
        values, has_null = self._values[str(column["id"])]
        first, last = (int.from_bytes(bound, "little", signed=True) for bound in (lower, upper))
        between = values.search_sorted(first, side="left") < values.search_sorted(last, side="right")
        return bool(between) or (has_null and nulls != 0)

    @cached_property
    def _values(self) -> Mapping[str, tuple[pl.Series, bool]]:
        """Return the values of each key column, ascending, and whether there is a null."""
        return {
            column.name: (column.to_physical().cast(pl.Int64).drop_nulls().sort(), column.null_count() > 0)
            for column in self.keys
            if column.dtype.is_integer() or column.dtype.is_temporal()
        }


def read_key_sequences(
    layout: Layout, opener: Opener, ids: Sequence[int], deletes: Iterable[tuple[str, int]]
) -> Iterator[KeySequences]:
    """Yield the keys of delete files on the columns `ids`, by path and sequence number, in shares that fit into memory.

    A row is deleted when any share says so. Raises `UnsupportedByArrow` for keys that Arrow cannot read.
    """
    key_columns = key_columns_of(layout, ids)
    frames: list[pl.DataFrame] = []
    most, size = layout.memory_bytes // _MEMORY_SHARE, 0.0
    for path, sequence in deletes:
        for keys in read_keys(layout, opener, key_columns, path):
            frames.append(keys.with_columns(pl.lit(sequence, pl.Int64).alias(_SEQUENCE)))
            size += _size(frames[-1])
            if size > most:
                frames = [_newest(frames)]
                size = _size(frames[0])
                if size > most // 2:
                    yield _sorted(key_columns, frames[0])
                    frames, size = [], 0.0
    if any(frame.height for frame in frames):
        yield _sorted(key_columns, _newest(frames))


def _size(frame: pl.DataFrame) -> float:
    return key_bytes(frame) + _BYTES_OF_A_KEY * frame.height


def _newest(frames: Sequence[pl.DataFrame]) -> pl.DataFrame:
    """Return each key once, with its greatest sequence number; null equals null."""
    keys = pl.concat(frames)
    return keys.group_by([name for name in keys.columns if name != _SEQUENCE]).agg(pl.col(_SEQUENCE).max())


def _sorted(key_columns: tuple[Field, ...], newest: pl.DataFrame) -> KeySequences:
    """Return the keys by the first seed for which no two have the same hash."""
    keys, sequences, seed = newest.drop(_SEQUENCE), newest[_SEQUENCE], 0
    while (hashes := keys.hash_rows(seed)).n_unique() < len(hashes):
        seed += 1
    order = hashes.arg_sort()
    return KeySequences(key_columns, keys.gather(order), hashes.gather(order), sequences.gather(order), seed)
