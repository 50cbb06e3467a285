"""Checks that the rows of data and delete files are what their entries say, by reading each file whole.

It runs in the service and in Python tasks on Spark's executors alike, so that there is one way to compare.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from icewright.adapters.engines.arrow.batch_rows import batch_rows_of
from icewright.adapters.engines.arrow.deletes import POSITION_COLUMNS
from icewright.adapters.engines.arrow.opening import Opener, UnreadableFile
from icewright.adapters.engines.arrow.resolve import UnsupportedByArrow, field_id, plain_values, with_ids
from icewright.adapters.engines.service.column_faults import ColumnContent, Fault, column_faults, is_ordered
from icewright.adapters.engines.service.content_file import ContentFile, misspelt
from icewright.core.integrity import FileFaultKind
from icewright.core.paths import Location, canonical, split
from icewright.core.table import PartitionSpec

_PAGE_BYTES = 512 << 20  # of a row group; larger ones are not read
_SAMPLE = 1_000  # values of a column whose partition values are computed
_TEXTS = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view, pa.types.is_binary_view)
Answer = tuple[int, list[Fault], str | None]  # number of the file, its faults, why it was not read


@dataclass(frozen=True)
class RowCheck:
    """Compare the rows of files with the table's metadata."""

    types: Mapping[int, Any]  # by column id
    specs: Mapping[int, PartitionSpec]
    name_mapping: str | None
    records: Mapping[str, int]  # rows of data files, by path
    replaced: Mapping[str, Mapping[int, Any]]  # types by manifest where they are others

    def answers(self, opener: Opener, files: Iterable[tuple[int, ContentFile]]) -> Iterator[Answer]:
        """Yield the faults of each file."""
        for number, entry in files:
            try:
                yield number, list(self._faults(opener, entry)), None
            except UnreadableFile as error:
                yield number, [(FileFaultKind.UNREADABLE, str(error))], None
            except (UnsupportedByArrow, pa.ArrowNotImplementedError) as error:
                yield number, [], str(error)

    def _faults(self, opener: Opener, entry: ContentFile) -> Iterator[Fault]:
        spec, types, rows = self.specs.get(entry.spec_id), self.replaced.get(entry.manifest, self.types), 0
        sources = {partition.source_id for partition in spec.fields} if spec else set()
        deleted: dict[str, int] = {}
        with opener.parquet(entry.path, entry.bytes, _PAGE_BYTES) as source:
            schema, metadata = source.schema_arrow, source.metadata
            try:
                schema = with_ids(schema, self.name_mapping)
            except UnsupportedByArrow:  # whose columns Spark finds by their place: the rows are counted
                tallies = {}
            else:
                tallies = {
                    steps: _Tally(number, types[number], sampled=number in sources)
                    for steps, number in _leaves(schema)
                    if isinstance(types.get(number), str)
                }
            groups = range(metadata.num_row_groups)
            size = batch_rows_of(source.source, metadata, groups) if groups else 1
            for batch in source.iter_batches(size, use_threads=False):
                rows += batch.num_rows
                for steps, tally in tallies.items():
                    tally.add(_leaf(batch, steps))
                if schema.names[:2] == [*POSITION_COLUMNS]:
                    path, position = POSITION_COLUMNS
                    frame = pl.DataFrame(batch.select([path, position])).drop_nulls()
                    last = frame.group_by(path).agg(pl.col(position).max())
                    deleted |= {name: max(number, deleted.get(name, 0)) for name, number in last.iter_rows()}
        if rows != entry.records:
            yield FileFaultKind.WRONG_COUNT, f"it has {rows} rows, not {entry.records}"
        columns = {tally.number: tally.column() for tally in tallies.values()}
        yield from column_faults(entry, columns, types, spec)
        yield from self._position_faults(deleted)

    def _position_faults(self, deleted: Mapping[str, int]) -> Iterator[Fault]:
        """Yield data files without the greatest position that is deleted, and files that no path spells so."""
        for path, position in sorted(deleted.items()):
            if path not in self.records:
                if (other := self._spelt.get(canonical(split(path)))) is not None:
                    yield misspelt(path, other)
            elif position >= self.records[path]:
                detail = f"it deletes position {position} of {path}, which has {self.records[path]} rows"
                yield FileFaultKind.WRONG_POSITIONS, detail

    @cached_property
    def _spelt(self) -> Mapping[Location, str]:
        return {canonical(split(path)): path for path in self.records}


def answers_of(opener: Opener, check: RowCheck, bins: Iterable[Sequence[tuple[int, ContentFile]]]) -> Iterator[Answer]:
    """Yield the faults of the files of each bin, in a task of Spark."""
    for files in bins:
        yield from check.answers(opener, files)


@dataclass
class _Tally:
    """The counts and bounds of a column in the rows that were read so far."""

    number: int
    kind: str
    sampled: bool
    values: int = 0
    nulls: int = 0
    nans: int | None = None
    ends: list[Any] = field(default_factory=list)
    sample: set[Any] = field(default_factory=set)

    def add(self, array: pa.Array) -> None:
        """Count values, nulls and NaN, and keep the least and the greatest value."""
        array = plain_values(array)
        self.values += len(array)
        self.nulls += array.null_count
        if pa.types.is_floating(array.type):
            self.nans = (self.nans or 0) + (pc.sum(pc.is_nan(array)).as_py() or 0)
        if not is_ordered(self.kind):
            return
        plain = _plain(array, self.kind)
        extremes = pc.min_max(plain).as_py()
        known = [end for end in (extremes["min"], extremes["max"]) if end is not None and end == end]  # noqa: PLR0124 - NaN
        self.ends = [pick([*self.ends, *map(_number, known)]) for pick in (min, max)] if self.ends or known else []
        if self.sampled and len(self.sample) < _SAMPLE:
            self.sample |= {_number(v) for v in plain.unique()[:_SAMPLE].to_pylist() if v is not None and v == v}  # noqa: PLR0124

    def column(self) -> ColumnContent:
        """Return what the whole file says of the column."""
        least, most = self.ends or (None, None)
        return ColumnContent(
            self.values, self.nulls, least, most, is_exact=True, nans=self.nans, sample=tuple(self.sample)
        )


def _plain(array: pa.Array, kind: str) -> pa.Array:
    """Return times as the integers, and texts as the bytes, that bounds are."""
    match array.type:
        case stamp if pa.types.is_timestamp(stamp):
            unit = "ns" if kind.endswith("_ns") else "us"
            return array.cast(pa.timestamp(unit, stamp.tz), safe=False).cast(pa.int64())
        case time if pa.types.is_time(time):
            return array.cast(pa.time64("us"), safe=False).cast(pa.int64())
        case date if pa.types.is_date32(date):
            return array.cast(pa.int32())
        case flag if pa.types.is_boolean(flag):
            return array.cast(pa.int8())
        case text if any(is_text(text) for is_text in _TEXTS):
            return array.cast(pa.large_binary())
    return array


def _number(value: Any) -> Any:  # noqa: ANN401 - any value of a column
    """Return a decimal as its unscaled integer, as bounds have it; all else unchanged."""
    if not hasattr(value, "as_tuple"):
        return value
    sign, digits, _ = value.as_tuple()
    return int("".join(map(str, digits))) * (-1 if sign else 1)


def _leaves(fields: Iterable[pa.Field], steps: tuple[int, ...] = ()) -> Iterator[tuple[tuple[int, ...], int]]:
    """Yield the way to each leaf outside of lists and maps, and its id."""
    for index, child in enumerate(fields):
        if pa.types.is_struct(child.type):
            yield from _leaves([child.type.field(i) for i in range(child.type.num_fields)], (*steps, index))
        elif (number := field_id(child)) is not None and not pa.types.is_nested(child.type):
            yield (*steps, index), number


def _leaf(batch: pa.RecordBatch, steps: tuple[int, ...]) -> pa.Array:
    column = batch.column(steps[0])
    return pc.struct_field(column, list(steps[1:])) if len(steps) > 1 else column
