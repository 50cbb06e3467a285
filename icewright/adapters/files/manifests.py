"""Manifests and manifest lists read into columns. Neither changes once written, so each manifest is read once."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC
from functools import partial
from typing import Any, TypeVar

import polars as pl
import pyarrow as pa

from icewright.adapters.files import avro
from icewright.adapters.files.avro import container, read_isolating_errors, translating_errors
from icewright.adapters.files.cache import Cache
from icewright.adapters.files.manifest_lists import SCHEMA, read_list, read_lists
from icewright.core import field_ids as ids
from icewright.core.errors import MetadataUnreadable
from icewright.core.partitions import date_of, moment_of, partition_text
from icewright.core.table import ManifestContent, ManifestFile, Snapshot
from icewright.core.writer_state import total_files
from icewright.ports import Storage
from icewright.ports.work import WorkerThreads

Result = TypeVar("Result")
ADDED, EXISTING, DELETED = 1, 0, 2  # status of an entry (spec, Manifests)
DATA, POSITION_DELETES, EQUALITY_DELETES = 0, 1, 2  # content of a file
# One entry. Sequence numbers and snapshot id are null where the entry inherits them from the manifest list.
ENTRY = pa.schema(
    [
        ("status", pa.int8()),
        ("snapshot_id", pa.int64()),
        ("sequence_number", pa.int64()),
        ("content", pa.int8()),
        ("path", pa.string()),
        ("format", pa.string()),
        ("partition", pa.string()),
        ("records", pa.int64()),
        ("bytes", pa.int64()),
        ("referenced", pa.string()),  # the one data file that a position delete file or deletion vector is of
        ("content_bytes", pa.int64()),  # length of a deletion vector in its Puffin file
    ]
)
_OF_AN_ENTRY = (
    *(ids.STATUS, ids.SNAPSHOT_ID, ids.SEQUENCE_NUMBER),
    *(ids.CONTENT, ids.FILE_PATH, ids.FILE_FORMAT, ids.PARTITION, ids.RECORD_COUNT, ids.FILE_SIZE),
    *(ids.REFERENCED_DATA_FILE, ids.CONTENT_SIZE),
)
_REQUIRED = (ids.STATUS, ids.FILE_PATH, ids.FILE_SIZE)
_LARGEST = 1 << 46  # bytes or rows of one file: with more, sums over a table's files would leave 64 bits
_COUNTS = (ids.VALUE_COUNTS, ids.NULL_COUNTS)
_LIVE = ("path", "bytes", "content", "format")
_CORES = os.cpu_count() or 1
_TASKS = 4  # at most, which decode; `read_ahead` waits for slow files
# bytes of manifests that one task reads, some five times as many once inflated: with more, most processor time goes
# into pages of memory that are new each time
_BYTES_PER_TASK = 1 << 20
_MANIFESTS_PER_TASK = 128  # manifests
_TASKS_PER_CHUNK = 16  # tasks whose results are in memory together


def partition_texts(tuples: pl.Series) -> pl.Series:
    """Return partition tuples (structs, or nothing without partitions) as text, each distinct one converted once."""
    if not isinstance(tuples.dtype, pl.Struct) or not tuples.dtype.fields:
        return pl.Series("partition", ["[]"] * len(tuples), pl.String)
    values = pl.DataFrame([tuples.struct.field(f.name).alias(str(i)) for i, f in enumerate(tuples.dtype.fields)])
    signs = pl.selectors.float().pow(-1).name.prefix("1/")  # of zeros: two partitions, which Polars takes for equal
    frame = values.with_columns(signs)
    keys = list(frame.columns)
    distinct = frame.unique(maintain_order=True)
    rows = zip(*map(_values, distinct.select(values.columns).get_columns()), strict=True)
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


@dataclass(frozen=True)
class ManifestReader:
    """Reads through the cache. Raises `MetadataUnreadable` naming the file that is missing or broken."""

    storage: Storage
    cache: Cache

    def manifests(self, snapshot: Snapshot) -> tuple[ManifestFile, ...]:
        """Return the rows of one manifest list."""
        return listed(self.manifest_lists([snapshot]))

    def manifest_lists(self, snapshots: Sequence[Snapshot], *, totals: bool = False) -> pl.DataFrame:
        """Return the manifests that the snapshots list, each once; columns named as `ManifestFile`'s fields."""
        lists = {s.manifest_list: total_files(s) if totals else None for s in snapshots if s.manifest_list is not None}
        listed_rows = read_lists(self.storage, lists)
        embedded = [self._embedded(s) for s in snapshots if s.manifest_list is None and s.manifests]
        return pl.concat([listed_rows, *embedded]).unique("path", maintain_order=True) if embedded else listed_rows

    def _embedded(self, snapshot: Snapshot) -> pl.DataFrame:
        """Return manifests that format v1 names in the metadata file; a list's columns are read from the manifests."""
        rows = []
        for path in snapshot.manifests:
            file = container(self.storage, path)
            with translating_errors([path]):
                status = avro.read(file.schema, avro.decompressed([file]), [ids.STATUS])[str(ids.STATUS)]
            counts = [int((status == s).sum()) for s in (ADDED, EXISTING, DELETED)]
            spec = int(file.meta.get("partition-spec-id", b"0"))
            size = self.storage.size(path) or 0
            rows.append((path, size, spec, 0, 0, 0, snapshot.snapshot_id, *counts))
        return pl.DataFrame(rows, schema=SCHEMA, orient="row")

    def entries(self, manifests: Sequence[ManifestFile]) -> pa.Table:
        """Return all entries with inherited values, and `spec_id` and `manifest` (index) of their manifest."""
        batches_by_path = self.cache.load([_cache_key(m) for m in manifests])
        missing = [m for m in manifests if m.path not in batches_by_path]
        for tasks in _chunks(missing):
            read = {m.path: batch for part in _in_parallel(self._batches, tasks) for m, batch in part}
            self.cache.save({_cache_key(m): read[m.path] for task in tasks for m in task})
            batches_by_path |= read
        batches = [_complete(m, batches_by_path[m.path]) for m in manifests]
        table = pa.Table.from_batches(batches, ENTRY).combine_chunks()
        return _inherit(table, manifests, [b.num_rows for b in batches])

    def live_files(self, manifests: Sequence[ManifestFile], *, spare_cores: int = 0) -> Iterator[pl.DataFrame]:
        """Yield `path`, `bytes`, `content`, `format` and `manifest` (index) of live entries in chunks: bounded memory.

        A path may come more than once. Complete or an error: an unreadable manifest ends the iteration by raising.
        """
        start = 0
        for tasks in _chunks(manifests):
            cached = self.cache.load([_cache_key(m) for task in tasks for m in task])
            for task, frame in zip(tasks, _in_parallel(partial(self._live, cached), tasks, spare_cores), strict=True):
                yield frame.with_columns(pl.col("manifest") + start)
                start += len(task)

    def bounds(self, manifests: Sequence[ManifestFile], field_ids: Sequence[int]) -> pl.DataFrame:
        """Return `path`, `bytes`, `spec_id`, `partition` of each live data file, and three columns for each field.

        They are both bounds, null where unknown, and whether all values are known to be null. The manifests are read
        past the cache, which has no bounds.
        """
        data = [m for m in manifests if m.content is ManifestContent.DATA]
        schema = {"path": pl.String, "bytes": pl.Int64, "spec_id": pl.Int32, "partition": pl.String}
        frames = [pl.DataFrame(schema=schema).with_columns(_bounds_of(field_ids))]
        for tasks in _chunks(data):
            frames += [f for part in _in_parallel(lambda some: self._read_bounds(some, field_ids), tasks) for f in part]
        return pl.concat(frames)

    def _read_bounds(self, manifests: Sequence[ManifestFile], field_ids: Sequence[int]) -> list[pl.DataFrame]:
        frames: list[pl.DataFrame] = []
        for schema, group in self._by_schema(manifests):
            with translating_errors(m.path for m, _ in group):
                blocks = avro.decompressed(c for _, c in group)
                fields = (ids.STATUS, ids.FILE_PATH, ids.FILE_SIZE, ids.PARTITION)
                raw = avro.read(schema, blocks, (*fields, *_COUNTS, ids.LOWER_BOUNDS, ids.UPPER_BOUNDS))
            specs = pl.Series("spec_id", [m.spec_id for m, c in group for _ in range(c.records)], pl.Int32)
            texts = partition_texts(raw[str(ids.PARTITION)]).alias("partition")
            frames.append(
                raw.with_columns(specs, texts)
                .filter(pl.col(str(ids.STATUS)) != DELETED)
                .select(_path(), _bytes(), "spec_id", "partition", *_bounds_of(field_ids, raw.schema))
            )
        return frames

    def plan(self, snapshot: Snapshot) -> None:
        """Read the manifests that planning a full scan reads, past the cache, and discard them."""
        path = snapshot.manifest_list
        manifests = self.manifests(snapshot) if path is None else listed(read_list(self.storage, path))
        for tasks in _chunks(manifests):
            _in_parallel(self._decode, tasks)

    def _decode(self, manifests: Sequence[ManifestFile]) -> None:
        for schema, group in self._by_schema(manifests):
            with translating_errors(m.path for m, _ in group):
                blocks = avro.decompressed(c for _, c in group)
                avro.read(schema, blocks, _OF_AN_ENTRY, _REQUIRED)

    def _batches(self, manifests: Sequence[ManifestFile]) -> list[tuple[ManifestFile, pa.RecordBatch]]:
        """Return the entries of each manifest as `ENTRY` says."""
        return read_isolating_errors(self._read_batches, manifests, lambda manifest: self._read_batches([manifest]))

    def _read_batches(self, manifests: Sequence[ManifestFile]) -> list[tuple[ManifestFile, pa.RecordBatch]]:
        result: list[tuple[ManifestFile, pa.RecordBatch]] = []
        for schema, group in self._by_schema(manifests):
            with translating_errors(m.path for m, _ in group):
                batch = _entries(schema, [c for _, c in group])
            start = 0
            for manifest, file in group:
                result.append((manifest, batch.slice(start, file.records)))
                start += file.records
        return result

    def _live(self, cached: Mapping[str, pa.RecordBatch], manifests: Sequence[ManifestFile]) -> pl.DataFrame:
        read = partial(self._read_live, cached)
        return read_isolating_errors(read, manifests, lambda manifest: read([manifest]))

    def _read_live(self, cached: Mapping[str, pa.RecordBatch], manifests: Sequence[ManifestFile]) -> pl.DataFrame:
        number_of = {m.path: number for number, m in enumerate(manifests)}
        frames: list[pl.DataFrame] = []
        if known := {m.path: _complete(m, cached[m.path]) for m in manifests if m.path in cached}:
            table = pa.Table.from_batches(known.values(), ENTRY).select(["status", *_LIVE]).combine_chunks()
            numbers = _numbers((number_of[path], batch.num_rows) for path, batch in known.items())
            live = pl.DataFrame(pl.from_arrow(table)).with_columns(numbers).filter(pl.col("status") != DELETED)
            frames.append(live.select(*_LIVE, "manifest"))
        for schema, group in self._by_schema([m for m in manifests if m.path not in cached]):
            for manifest, file in group:
                _require_count(manifest, file.records)
            with translating_errors(m.path for m, _ in group):
                blocks = avro.decompressed(c for _, c in group)
                raw = avro.read(
                    schema, blocks, (ids.STATUS, ids.FILE_PATH, ids.FILE_SIZE, ids.CONTENT, ids.FILE_FORMAT), _REQUIRED
                )
                numbers = _numbers((number_of[m.path], c.records) for m, c in group)
                live = raw.with_columns(numbers).filter(pl.col(str(ids.STATUS)) != DELETED)
                frames.append(live.select(_path(), _bytes(), _content(), _format(), "manifest"))
        return pl.concat(frames, rechunk=True)

    def _by_schema(
        self, manifests: Sequence[ManifestFile]
    ) -> Iterator[tuple[bytes, list[tuple[ManifestFile, avro.Container]]]]:
        groups: dict[bytes, list[tuple[ManifestFile, avro.Container]]] = {}
        read = avro.containers(self.storage, [(manifest.path, manifest.length) for manifest in manifests])
        for manifest, file in zip(manifests, read, strict=True):
            groups.setdefault(file.schema, []).append((manifest, file))
        yield from groups.items()


def listed(frame: pl.DataFrame) -> tuple[ManifestFile, ...]:
    """Return the rows of a frame of manifests as `ManifestFile` values."""
    return tuple(ManifestFile.of(row) for row in frame.select(SCHEMA.names()).iter_rows())


def _cache_key(manifest: ManifestFile) -> tuple[str, int]:
    """Return the path and the fingerprint of a manifest in the cache.

    A table that was created again may have another manifest with the same path and length, but not by the same
    snapshot.
    """
    return manifest.path, manifest.length ^ manifest.added_snapshot_id


def _chunks(manifests: Sequence[ManifestFile]) -> Iterator[list[list[ManifestFile]]]:
    """Yield tasks of some megabytes each, in chunks that are in memory together."""
    tasks: list[list[ManifestFile]] = [[]]
    task_bytes = 0
    for manifest in manifests:
        if tasks[-1] and (task_bytes + manifest.length > _BYTES_PER_TASK or len(tasks[-1]) == _MANIFESTS_PER_TASK):
            if len(tasks) == _TASKS_PER_CHUNK:
                yield tasks
                tasks = []
            tasks.append([])
            task_bytes = 0
        tasks[-1].append(manifest)
        task_bytes += manifest.length
    if tasks[-1]:
        yield tasks


def _in_parallel(
    read: Callable[[Sequence[ManifestFile]], Result], tasks: Sequence[Sequence[ManifestFile]], spare_cores: int = 0
) -> list[Result]:
    if len(tasks) == 1:
        return [read(tasks[0])]
    with WorkerThreads(min(_TASKS, max(1, _CORES - spare_cores))) as pool:
        return list(pool.map(read, tasks))


def _require_count(manifest: ManifestFile, records: int) -> None:
    """Raise unless the manifest list counts as many entries: with fewer, live files would look unreached."""
    expected = manifest.added_files + manifest.existing_files + manifest.deleted_files
    if expected and expected != records:  # lists of format v1 may leave the counts out
        raise MetadataUnreadable(f"{manifest.path} has {records} entries where its manifest list says {expected}")


def _complete(manifest: ManifestFile, batch: pa.RecordBatch) -> pa.RecordBatch:
    _require_count(manifest, batch.num_rows)
    return batch


def _numbers(counts: Iterable[tuple[int, int]]) -> pl.Series:
    """Return each number as often as its count says."""
    frame = pl.DataFrame(list(counts), {"manifest": pl.UInt32, "count": pl.UInt32}, orient="row")
    return frame.select(pl.col("manifest").repeat_by("count").explode(empty_as_null=False)).to_series()


def _path() -> pl.Expr:
    return pl.col(str(ids.FILE_PATH)).cast(pl.String).alias("path")


def _bytes() -> pl.Expr:
    return pl.col(str(ids.FILE_SIZE)).cast(pl.Int64).alias("bytes")


def _content() -> pl.Expr:
    return pl.col(str(ids.CONTENT)).cast(pl.Int8).fill_null(DATA).alias("content")


def _format() -> pl.Expr:
    return pl.col(str(ids.FILE_FORMAT)).cast(pl.String).str.to_uppercase().alias("format")


def _entries(schema: bytes, containers: Sequence[avro.Container]) -> pa.RecordBatch:
    blocks = avro.decompressed(containers)
    raw = avro.read(schema, blocks, _OF_AN_ENTRY, _REQUIRED)
    frame = raw.select(
        pl.col(str(ids.STATUS)).cast(pl.Int8).alias("status"),
        pl.col(str(ids.SNAPSHOT_ID)).cast(pl.Int64).alias("snapshot_id"),
        pl.col(str(ids.SEQUENCE_NUMBER)).cast(pl.Int64).alias("sequence_number"),
        _content(),
        _path(),
        _format(),
        partition_texts(raw[str(ids.PARTITION)]).alias("partition"),
        pl.col(str(ids.RECORD_COUNT)).cast(pl.Int64).alias("records"),
        _bytes(),
        pl.col(str(ids.REFERENCED_DATA_FILE)).cast(pl.String).alias("referenced"),
        pl.col(str(ids.CONTENT_SIZE)).cast(pl.Int64).alias("content_bytes"),
    )
    for name, field in (("bytes", "file_size_in_bytes"), ("records", "record_count")):
        if (largest := frame.select(pl.max(name)).item() or 0) > _LARGEST:
            raise ValueError(f"an entry has a {field} of {largest}: `icewright repair` corrects it by the file")
    if (frame["content"] == POSITION_DELETES).any():
        single = _single_file(avro.read(schema, blocks, (ids.LOWER_BOUNDS, ids.UPPER_BOUNDS)))
        single = pl.select(pl.when(frame["content"] == POSITION_DELETES).then(single)).to_series()
        frame = frame.with_columns(referenced=pl.coalesce("referenced", single))
    table = frame.select(ENTRY.names).to_arrow().cast(ENTRY).combine_chunks()
    return table.to_batches()[0] if table.num_rows else pa.RecordBatch.from_pylist([], ENTRY)


def _bounds_of(field_ids: Sequence[int], schema: Mapping[str, pl.DataType] | None = None) -> list[pl.Expr]:
    """Return both bounds of each field from the maps by field id, and whether all values are null."""
    expressions = []
    for number in field_ids:
        lower, upper, values, nulls = (
            _of_field(number, which) if schema is not None and isinstance(schema[str(which)], pl.List) else pl.lit(None)
            for which in (ids.LOWER_BOUNDS, ids.UPPER_BOUNDS, *_COUNTS)
        )
        expressions += [lower.cast(pl.Binary).alias(f"{number} lower"), upper.cast(pl.Binary).alias(f"{number} upper")]
        expressions.append(
            (values.cast(pl.Int64) == nulls.cast(pl.Int64)).fill_null(value=False).alias(f"{number} nulls")
        )
    return expressions


def _of_field(field_id: int, which: int) -> pl.Expr:
    own = pl.element().filter(pl.element().struct.field("key") == field_id)
    return pl.col(str(which)).list.eval(own.struct.field("value")).list.first()


def _single_file(bounds: pl.DataFrame) -> pl.Series:
    """Return the one data file whose path is both bounds of a position delete file's `file_path` column."""
    if not all(isinstance(kind, pl.List) for kind in bounds.dtypes):
        return pl.Series([None] * bounds.height, dtype=pl.String)

    lower, upper = (
        _of_field(ids.DELETED_PATH, which).cast(pl.Binary) for which in (ids.LOWER_BOUNDS, ids.UPPER_BOUNDS)
    )
    same = pl.when(lower == upper).then(lower.cast(pl.String))
    return bounds.select(same.alias("single")).to_series()


def _inherit(table: pa.Table, manifests: Sequence[ManifestFile], counts: Sequence[int]) -> pa.Table:
    """Fill in what entries inherit (spec, Sequence Number Inheritance) and say which manifest each came from."""
    index = pl.Series("manifest", range(len(manifests)), pl.Int32)
    per_manifest = pl.DataFrame(
        {
            "manifest": index,
            "spec_id": pl.Series([m.spec_id for m in manifests], dtype=pl.Int32),
            "_sequence": pl.Series([m.sequence_number for m in manifests], dtype=pl.Int64),
            "_snapshot": pl.Series([m.added_snapshot_id for m in manifests], dtype=pl.Int64),
            "_count": pl.Series(counts, dtype=pl.UInt32),
        }
    )
    repeated = per_manifest.select(pl.exclude("_count").repeat_by("_count").explode(empty_as_null=False))
    frame = pl.concat([pl.DataFrame(pl.from_arrow(table)), repeated], how="horizontal")
    frame = frame.with_columns(
        pl.coalesce("sequence_number", "_sequence").alias("sequence_number"),
        pl.coalesce("snapshot_id", "_snapshot").alias("snapshot_id"),
    ).drop("_sequence", "_snapshot")
    return frame.to_arrow()
