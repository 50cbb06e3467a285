"""Apply equality deletes (spec, Row-level Deletes) by one index of their keys for each set of columns of a bin."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from icewright.adapters.engines.arrow.batch_rows import batch_rows_of
from icewright.adapters.engines.arrow.opening import Opener
from icewright.adapters.engines.arrow.resolve import UnsupportedByArrow, beyond_memory, field_id, resolved, with_ids
from icewright.adapters.engines.arrow.tasks import Layout
from icewright.adapters.engines.arrow.types import Field, arrow_type, storage_array
from icewright.core.kernel import KEY_COLUMN

_FLOAT_BITS = 32
_MEMORY_SHARE = 4  # of the task's memory, for the index; sorting it takes as much again
_BYTES_OF_A_KEY = 16  # beside its values: hash, delete file and prefix count
_BYTES_OF_A_VIEW = 16  # of a text, beside its own, which Polars does not count
_MISJUDGED = ("float", "double", "uuid")  # of whose bounds Iceberg's readers think wrongly


@dataclass(frozen=True)
class EqualityIndex:
    """The keys of delete files on the same columns, sorted by hash; each file is read and hashed once."""

    columns: tuple[Field, ...]
    keys: pl.DataFrame
    hashes: pl.Series  # ascending
    file_numbers: pl.Series  # of the delete file of each key
    numbers: Mapping[str, int]  # by path of the delete file
    seed: int

    def applied(self, paths: Iterable[str]) -> EqualityDeletes:
        """Return the deletes of the delete files that apply to a data file."""
        numbers = {self.numbers[path] for path in paths}
        chosen = pl.Series([number in numbers for number in range(len(self.numbers))], dtype=pl.UInt32)
        counts = chosen.gather(self.file_numbers).cum_sum()
        return EqualityDeletes(self, pl.concat([pl.Series([0], dtype=counts.dtype), counts]))


@dataclass(frozen=True)
class EqualityDeletes:
    """The equality deletes of one data file; `counts[n]` of the first n keys of the index apply to the file."""

    index: EqualityIndex
    counts: pl.Series

    def deleted_rows(self, columns: Mapping[int, pa.Array]) -> pl.Series:
        """Return the numbers of the rows that a delete matches. `columns` are by field id.

        Null equals null, NaN equals NaN, and zero is not minus zero, as in Iceberg's Java reader.
        """
        index = self.index
        if not self.counts[-1]:
            return pl.Series(dtype=pl.UInt32)
        rows, first = find_keys(columns, index.columns, index.keys, index.hashes, index.seed)
        last = index.hashes.search_sorted(index.hashes.gather(first), side="right")
        return rows.filter(self.counts.gather(last) > self.counts.gather(first))


def read_equality_index(layout: Layout, opener: Opener, ids: Sequence[int], paths: Sequence[str]) -> EqualityIndex:
    """Read the delete files on the columns `ids`.

    Raises `UnsupportedByArrow` when their keys do not fit into the memory of a task.
    """
    key_columns = key_columns_of(layout, ids)
    frames = [_key_frame([pa.nulls(0, arrow_type(column["type"])) for column in key_columns], key_columns)]
    file_numbers, size = [pl.Series(dtype=pl.UInt32)], 0.0
    for number, path in enumerate(paths):
        for frame in read_keys(layout, opener, key_columns, path):
            frames.append(frame)
            file_numbers.append(pl.repeat(number, frame.height, dtype=pl.UInt32, eager=True))
            size += key_bytes(frame) + _BYTES_OF_A_KEY * frame.height
            if size > layout.memory_bytes // _MEMORY_SHARE:
                raise beyond_memory("the keys of its equality deletes do")
    numbers = {path: number for number, path in enumerate(paths)}
    return _sorted_index(key_columns, pl.concat(frames), pl.concat(file_numbers), numbers)


def key_bytes(keys: pl.DataFrame) -> float:
    """Return the bytes that keys take in memory."""
    texts = sum(kind == pl.Binary for kind in keys.dtypes)
    return keys.estimated_size() + _BYTES_OF_A_VIEW * texts * keys.height


def key_columns_of(layout: Layout, ids: Sequence[int]) -> tuple[Field, ...]:
    """Return the columns of the keys by their field ids, dropped columns included.

    Raises `UnsupportedByArrow` for those by which Iceberg's reader does not find all rows: of several fixed values it
    keeps the last one for all, and of two values in structs one goes where their hashes are equal.
    """
    fields = (*layout.older_fields.values(), *layout.schema["fields"])
    fields_by_id = {f["id"]: f for f in fields if isinstance(f["type"], str) and not f["type"].startswith("fixed")}
    if others := [number for number in ids if number not in fields_by_id]:
        raise UnsupportedByArrow(KEY_COLUMN(str(others[0])))
    return tuple(fields_by_id[number] for number in ids)


def misjudged_keys(fields: Iterable[Field]) -> frozenset[int]:
    """Return the ids of columns by whose bounds Iceberg's readers may pass over the delete of a key that a row has.

    Bounds of floats say nothing of NaN, and those of uuids are compared as signed numbers.
    """
    return frozenset(field["id"] for field in fields if field["type"] in _MISJUDGED)


def read_keys(layout: Layout, opener: Opener, key_columns: Sequence[Field], path: str) -> Iterator[pl.DataFrame]:
    """Yield the keys of a delete file, in batches.

    Raises `UnsupportedByArrow` when it lacks a column of them, or its pages do not fit into the memory of a task.
    """
    wanted_ids = {column["id"] for column in key_columns}
    with opener.parquet(path, page_memory=layout.page_memory) as source:
        schema = with_ids(source.schema_arrow, None)  # readers map no names in delete files
        fields = [field for field in schema if field_id(field) in wanted_ids]
        if len(fields) < len(wanted_ids):
            raise UnsupportedByArrow(f"equality delete file {path} lacks a column of its keys")
        groups = range(source.num_row_groups)
        rows = batch_rows_of(source.source, source.metadata, groups) if groups else 1
        for batch in source.iter_batches(rows, columns=[f.name for f in fields], use_threads=False):
            yield _key_frame(resolved(batch, fields, key_columns, {}), key_columns)


def _sorted_index(
    key_columns: tuple[Field, ...], keys: pl.DataFrame, file_numbers: pl.Series, numbers: Mapping[str, int]
) -> EqualityIndex:
    """Return the index, by the first seed for which no two different keys have the same hash."""
    seed = 0
    while True:
        hashes = keys.hash_rows(seed)
        order = hashes.arg_sort()
        hashes, keys, file_numbers = hashes.gather(order), keys.gather(order), file_numbers.gather(order)
        repeated = (hashes[1:] == hashes[:-1]).arg_true()
        if equal_rows(keys.gather(repeated), keys.gather(repeated + 1)).all():
            return EqualityIndex(key_columns, keys, hashes, file_numbers, numbers, seed)
        seed += 1


def find_keys(
    columns: Mapping[int, pa.Array], key_columns: tuple[Field, ...], keys: pl.DataFrame, hashes: pl.Series, seed: int
) -> tuple[pl.Series, pl.Series]:
    """Return the numbers of the rows whose keys are among `keys`, and the first index of each in `keys`.

    `columns` are by field id. `keys` are sorted by their hashes, and those of one hash are equal.
    """
    frame = _key_frame([columns[column["id"]] for column in key_columns], key_columns)
    wanted = frame.hash_rows(seed)
    first = hashes.search_sorted(wanted, side="left").clip(0, len(hashes) - 1)
    rows = (hashes.gather(first) == wanted).arg_true()
    first = first.gather(rows)
    equal = equal_rows(frame.gather(rows), keys.gather(first))
    return rows.filter(equal), first.filter(equal)


def equal_rows(left: pl.DataFrame, right: pl.DataFrame) -> pl.Series:
    """Return for each row whether both frames have the same key; null equals null."""
    columns = (left[name].eq_missing(right[name]) for name in left.columns)
    return reduce(lambda matches, equal: matches & equal, columns)


def _key_frame(arrays: Sequence[pa.Array], key_columns: Sequence[Field]) -> pl.DataFrame:
    """Return the key columns as values that are equal exactly where Iceberg's Java reader calls them equal."""
    columns = {str(c["id"]): _comparable(array) for c, array in zip(key_columns, arrays, strict=True)}
    return pl.DataFrame(pl.from_arrow(pa.table(columns)))


def _comparable(array: pa.Array) -> pa.Array:
    """Return floats as their bits with one NaN, and types that Polars lacks as binary."""
    if pa.types.is_floating(array.type):
        nan = pa.scalar(math.nan, array.type)
        array = pc.if_else(pc.is_nan(array), nan, array)
        return array.view(pa.int32() if array.type.bit_width == _FLOAT_BITS else pa.int64())
    return storage_array(array)
