"""Manifest lists and manifests as columns. Both never change once written, so each is read once, ever."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import polars as pl
import pyarrow as pa

from icewright.adapters.files import avro, storage
from icewright.adapters.files.cache import Cache
from icewright.core.errors import MetadataUnreadable
from icewright.core.table import ManifestContent, ManifestFile, Snapshot

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
_FILE_PATH_COLUMN = 2147483546  # the reserved field id of `file_path` in position delete files

# field ids of a manifest list's rows and of a data file (spec, Manifest Lists and Manifests)
_LIST = {
    "path": 500,
    "length": 501,
    "spec_id": 502,
    "content": 517,
    "sequence_number": 515,
    "min_sequence_number": 516,
    "added_snapshot_id": 503,
    "added_files": 504,
    "existing_files": 505,
    "deleted_files": 506,
}
_LIST_ALIASES = {"added_files_count": 504, "existing_files_count": 505, "deleted_files_count": 506}
_LIST_TYPES = {"path": pl.String, "spec_id": pl.Int32, "content": pl.Int8}
_READ_AT_ONCE = 256  # manifests inflated together: bounds the memory


@dataclass(frozen=True)
class ManifestReader:
    """Reads through the cache. Raises `MetadataUnreadable` naming the file that is missing or broken."""

    cache: Cache

    def manifests(self, snapshot: Snapshot) -> tuple[ManifestFile, ...]:
        """The rows of one manifest list."""
        rows = self.manifest_lists([snapshot]).rows()
        return tuple(ManifestFile(p, n, s, ManifestContent(c), *rest) for p, n, s, c, *rest in rows)

    def manifest_lists(self, snapshots: Sequence[Snapshot]) -> pl.DataFrame:
        """The manifests that the snapshots list, each once; columns named as `ManifestFile`'s fields."""
        found = _no_lists()
        for start in range(0, len(snapshots), _READ_AT_ONCE):
            chunk = snapshots[start : start + _READ_AT_ONCE]
            listed = [s for s in chunk if s.manifest_list is not None]
            frames = _lists([s.manifest_list for s in listed if s.manifest_list])
            frames += [self._embedded(s) for s in chunk if s.manifest_list is None and s.manifests]
            # long histories list the same manifests again and again: keeping each once bounds the memory
            found = pl.concat([found, *frames]).unique("path", maintain_order=True)
        return found

    def _embedded(self, snapshot: Snapshot) -> pl.DataFrame:
        """Format v1 may name the manifests in the metadata file: what a list would say is read from themselves."""
        rows = []
        for path in snapshot.manifests:
            container = _container(path)
            status = avro.read_together([container])["status"] if container.records else pl.Series("status", [])
            counts = [int((status == s).sum()) for s in (ADDED, EXISTING, DELETED)]
            spec = int(container.meta.get("partition-spec-id", b"0"))
            size = storage.size(path) or 0
            rows.append((path, size, spec, 0, 0, 0, snapshot.snapshot_id, *counts))
        return pl.DataFrame(rows, schema=_no_lists().schema, orient="row")

    def entries(self, manifests: Sequence[ManifestFile]) -> pa.Table:
        """All entries with what they inherit filled in, and `spec_id` and `manifest` (index) of their manifest."""
        found = self.cache.load([(m.path, m.length) for m in manifests])
        missing = [m for m in manifests if m.path not in found]
        for start in range(0, len(missing), _READ_AT_ONCE):
            read = read_manifests([(m.path, m.length) for m in missing[start : start + _READ_AT_ONCE]])
            self.cache.save({(m.path, m.length): read[m.path] for m in missing[start : start + _READ_AT_ONCE]})
            found |= read
        batches = [_whole(m, found[m.path]) for m in manifests]
        table = pa.Table.from_batches(batches, ENTRY) if batches else ENTRY.empty_table()
        return _inherit(table, manifests, [b.num_rows for b in batches])


def _no_lists() -> pl.DataFrame:
    return pl.DataFrame(schema={name: _LIST_TYPES.get(name, pl.Int64) for name in _LIST})


def _lists(paths: Sequence[str]) -> list[pl.DataFrame]:
    containers = _containers(paths)
    frames = []
    for schema in dict.fromkeys(c.schema for c in containers):
        chosen = {p: c for p, c in zip(paths, containers, strict=True) if c.schema == schema and c.records}
        with _readable(chosen):
            frames += [_list_rows(schema, list(chosen.values()))] if chosen else []
    return frames


def _list_rows(schema: bytes, containers: Sequence[avro.Container]) -> pl.DataFrame:
    raw = avro.read_together(containers)
    ids = {number: name for name, number in _LIST_ALIASES.items() if name in raw.columns}
    ids |= avro.field_names(schema)
    return raw.select(
        (pl.col(ids[number]) if ids.get(number) in raw.columns else pl.lit(None))
        .cast(_LIST_TYPES.get(name, pl.Int64))
        .fill_null("" if name == "path" else 0)
        .alias(name)
        for name, number in _LIST.items()
    )


@contextmanager
def _readable(paths: Iterable[str]) -> Iterator[None]:
    """Whatever the decoder says of broken files becomes `MetadataUnreadable` with their names."""
    try:
        yield
    except (
        pl.exceptions.PolarsError,
        pl.exceptions.PanicException,  # how Polars meets a schema that makes no sense
        KeyError,
        OSError,
        StopIteration,
        ValueError,
    ) as error:
        names = ", ".join(list(paths)[:3])
        raise MetadataUnreadable(
            f"{names}: not readable as Iceberg metadata ({type(error).__name__}: {error})"
        ) from error


def _whole(manifest: ManifestFile, batch: pa.RecordBatch) -> pa.RecordBatch:
    """The batch, if it has as many entries as the manifest list says: fewer would make live files look unreached."""
    listed = manifest.added_files + manifest.existing_files + manifest.deleted_files
    if listed and listed != batch.num_rows:  # lists of format v1 may leave the counts out
        raise MetadataUnreadable(f"{manifest.path} has {batch.num_rows} entries where its manifest list says {listed}")
    return batch


def read_manifests(manifests: Sequence[tuple[str, int]]) -> dict[str, pa.RecordBatch]:
    """The entries of manifests (path and length) by path, as `ENTRY` says."""
    lengths = dict(manifests)
    containers = dict(zip([p for p, _ in manifests], _containers([p for p, _ in manifests], lengths), strict=True))
    result: dict[str, pa.RecordBatch] = {}
    for schema in dict.fromkeys(c.schema for c in containers.values()):
        group = {path: c for path, c in containers.items() if c.schema == schema}
        with _readable(group):
            batch = _entries(schema, list(group.values()))
        start = 0
        for path, container in group.items():
            result[path] = batch.slice(start, container.records)
            start += container.records
    return result


def _containers(paths: Sequence[str], lengths: Mapping[str, int] | None = None) -> list[avro.Container]:
    lengths = lengths or {}
    if len(paths) < 4:  # noqa: PLR2004 - threads pay from a few files on
        return [_container(p, lengths.get(p)) for p in paths]
    with ThreadPoolExecutor(8) as pool:
        return list(pool.map(_container, paths, (lengths.get(p) for p in paths)))


def _container(path: str, length: int | None = None) -> avro.Container:
    content = storage.read(path)
    if length and length != len(content):
        raise MetadataUnreadable(f"{path} has {len(content)} bytes where its manifest list says {length}")
    try:
        return avro.parse(content)
    except ValueError as error:
        raise MetadataUnreadable(f"{path}: {error}") from error


def _entries(schema: bytes, containers: Sequence[avro.Container]) -> pa.RecordBatch:
    raw = avro.read_together(containers)
    entry, data = avro.field_names(schema), avro.field_names(schema, "data_file")

    def top(number: int, kind: type[pl.DataType]) -> pl.Expr:
        name = entry.get(number)
        return (pl.col(name) if name in raw.columns else pl.lit(None)).cast(kind)

    def of_file(number: int, kind: type[pl.DataType]) -> pl.Expr:
        name = data.get(number)
        return (pl.col(entry[2]).struct.field(name) if name else pl.lit(None)).cast(kind)

    frame = raw.select(
        top(0, pl.Int8).alias("status"),
        top(1, pl.Int64).alias("snapshot_id"),
        top(3, pl.Int64).alias("sequence_number"),
        of_file(134, pl.Int8).fill_null(DATA).alias("content"),
        of_file(100, pl.String).alias("path"),
        of_file(101, pl.String).str.to_uppercase().alias("format"),
        of_file(103, pl.Int64).alias("records"),
        of_file(104, pl.Int64).alias("bytes"),
        pl.coalesce(of_file(143, pl.String), _single_file(raw, entry, data)).alias("referenced"),
        of_file(145, pl.Int64).alias("content_bytes"),
    ).with_columns(_partitions(raw, entry, data))
    table = frame.select(ENTRY.names).to_arrow().cast(ENTRY).combine_chunks()
    return table.to_batches()[0] if table.num_rows else pa.RecordBatch.from_pylist([], ENTRY)


def _single_file(raw: pl.DataFrame, entry: Mapping[int, str], data: Mapping[int, str]) -> pl.Expr:
    """The one data file whose path is both bounds of a position delete file's `file_path` column."""

    def bound(number: int) -> pl.Expr:
        pairs = pl.col(entry[2]).struct.field(data[number])
        own = pl.element().filter(pl.element().struct.field("key") == _FILE_PATH_COLUMN)
        return pairs.list.eval(own.struct.field("value")).list.first().cast(pl.Binary)

    if 125 not in data or 128 not in data or 134 not in data:  # noqa: PLR2004 - lower and upper bounds, content
        return pl.lit(None, pl.String)
    if not raw.select((pl.col(entry[2]).struct.field(data[134]) == POSITION_DELETES).any()).item():
        return pl.lit(None, pl.String)
    kind = raw.schema[entry[2]]
    bounds = {f.name: f.dtype for f in kind.fields}[data[125]] if isinstance(kind, pl.Struct) else None
    if not isinstance(bounds, pl.List):
        return pl.lit(None, pl.String)
    lower, upper = bound(125), bound(128)
    of_positions = pl.col(entry[2]).struct.field(data[134]) == POSITION_DELETES
    return pl.when(of_positions & (lower == upper)).then(lower.cast(pl.String))


def _partitions(raw: pl.DataFrame, entry: Mapping[int, str], data: Mapping[int, str]) -> pl.Series:
    """Partition tuples as text, made once for each distinct tuple."""
    tuples = raw[entry[2]].struct.field(data[102]) if raw.height else pl.Series([], dtype=pl.Struct([]))
    if not isinstance(tuples.dtype, pl.Struct) or not tuples.dtype.fields:
        return pl.Series("partition", ["[]"] * raw.height, pl.String)
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
