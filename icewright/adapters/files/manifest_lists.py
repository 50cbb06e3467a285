"""Manifest lists read into columns: the manifests that snapshots list, each once."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import blake2b

import polars as pl

from icewright.adapters.files import avro
from icewright.adapters.files.avro import container, read_isolating_errors, translating_errors
from icewright.core import field_ids as ids
from icewright.core.avro_values import Skip, skipper
from icewright.core.errors import MetadataUnreadable
from icewright.core.paths import stray_local_file
from icewright.ports import Storage
from icewright.ports.work import WorkerThreads

# field ids of a row (spec, Manifest Lists), in the order of `ManifestFile`'s fields
_FIELDS = {
    "path": (ids.MANIFEST_PATH, pl.String),
    "length": (ids.MANIFEST_LENGTH, pl.Int64),
    "spec_id": (ids.MANIFEST_SPEC_ID, pl.Int32),
    "content": (ids.MANIFEST_CONTENT, pl.Int8),
    "sequence_number": (ids.MANIFEST_SEQUENCE_NUMBER, pl.Int64),
    "min_sequence_number": (ids.MIN_SEQUENCE_NUMBER, pl.Int64),
    "added_snapshot_id": (ids.ADDED_SNAPSHOT_ID, pl.Int64),
    "added_files": (ids.ADDED_FILES, pl.Int64),
    "existing_files": (ids.EXISTING_FILES, pl.Int64),
    "deleted_files": (ids.DELETED_FILES, pl.Int64),
}
_REQUIRED = (ids.MANIFEST_PATH, ids.MANIFEST_LENGTH, ids.MANIFEST_SPEC_ID)
SCHEMA = pl.Schema({name: kind for name, (_, kind) in _FIELDS.items()})
_LISTS_PER_TASK = 128  # lists read by one task, one after the other
_MAX_PENDING_BYTES = 8_000_000  # of records, per task: bounds the memory
_TASKS = 3
_MAX_UNMERGED_ROWS = 200_000  # rows that may hold doubles before they are made one


def read_lists(storage: Storage, lists: Mapping[str, int | None]) -> pl.DataFrame:
    """Return the manifests that the lists name, each once.

    `lists` has the least number of live files that each list must name, by its path; None for any number.
    Raises `MetadataUnreadable`, also for a list that names fewer, and `StorageUnavailable`.
    """
    paths = list(lists)
    tasks = [paths[i : i + _LISTS_PER_TASK] for i in range(0, len(paths), _LISTS_PER_TASK)]
    reader = _Reader(storage)
    manifests, unmerged_rows = SCHEMA.to_frame(), 0
    parts: list[pl.DataFrame] = []
    with WorkerThreads(_TASKS) as pool:
        for frame in pool.map(reader.read, tasks) if len(tasks) > 1 else map(reader.read, tasks):
            parts.append(frame)
            unmerged_rows += frame.height
            if unmerged_rows > max(_MAX_UNMERGED_ROWS, manifests.height):
                manifests, parts, unmerged_rows = _distinct([manifests, *parts]), [], 0
    for path, expected in lists.items():
        reader.check(path, expected)
    distinct = _distinct([manifests, *parts]).fill_null(0)
    for owner in paths[:1]:  # the metadata file was refused unless its lists are all local, or none is
        if (stray := stray_local_file(owner, distinct["path"])) is not None:
            raise MetadataUnreadable(f"{owner} lies in an object store and names a local file, {stray}: it is not read")
    return distinct


def read_list(storage: Storage, path: str) -> pl.DataFrame:
    """Return the manifests that one list names."""
    one = container(storage, path)
    with translating_errors([path]):
        return _rows(one.schema, one.records, one.body()).fill_null(0)


def _rows(schema: bytes, records: int, body: bytes) -> pl.DataFrame:
    raw = avro.read(schema, [avro.Block(records, body)], [number for number, _ in _FIELDS.values()], _REQUIRED)
    rows = raw.select(pl.col(str(number)).cast(kind).alias(name) for name, (number, kind) in _FIELDS.items())
    if not rows["content"].is_between(0, 1).all():
        raise ValueError("it names a manifest neither of data nor of deletes")
    return rows


def _distinct(frames: Iterable[pl.DataFrame]) -> pl.DataFrame:
    """Return the manifests of all frames, each of which names none twice."""
    filled = [frame for frame in frames if frame.height] or [SCHEMA.to_frame()]
    return filled[0] if len(filled) == 1 else pl.concat(filled).unique("path", maintain_order=True)


@dataclass(frozen=True)
class _Records:
    """The decompressed records of one list, and how many of them were read under each key."""

    content: bytes
    parts: Mapping[bytes, int]

    @property
    def count(self) -> int:
        """Return the number of records in the file."""
        return sum(self.parts.values())


_NO_RECORDS = _Records(b"", {})


@dataclass(frozen=True)
class _Reader:
    """Reads the lists of one call and decodes each distinct record once.

    Long histories list the same manifests many times. Where the writer appends rows in blocks of their own, whole
    blocks are repeated byte for byte. Where it puts new rows in front, as Spark does, a list ends with the records of
    the previous one.
    """

    storage: Storage
    parts: dict[str, tuple[bytes, ...]] = field(default_factory=dict)  # keys of what a list consists of, by path
    files: dict[bytes, int | None] = field(default_factory=dict)  # live files by key; None: the writer does not say

    def read(self, paths: Sequence[str]) -> pl.DataFrame:
        """Return the rows that no earlier list had."""
        return read_isolating_errors(self._new_rows, paths, lambda path: _Reader(self.storage).read([path]))

    def check(self, path: str, expected: int | None) -> None:
        """Raise `MetadataUnreadable` when the list names fewer live files than were counted."""
        counts = [self.files[key] for key in self.parts[path]]
        named = sum(count for count in counts if count is not None)
        if expected is not None and None not in counts and named < expected:
            raise MetadataUnreadable(
                f"{path} names {named} live files where its snapshot's summary counts {expected}: if the file was not "
                "cut short, and its writer counts wrongly, set execute.check_totals to false for the table"
            )

    def _new_rows(self, paths: Sequence[str]) -> pl.DataFrame:
        frames = list[pl.DataFrame]()
        schema, before, waiting, waiting_bytes = b"", _NO_RECORDS, list[_Records](), 0
        for path, one in zip(paths, avro.containers(self.storage, [(path, 0) for path in paths]), strict=True):
            if one.schema != schema or waiting_bytes > _MAX_PENDING_BYTES:
                frames.append(self._decoded(schema, waiting, paths))
                schema, before, waiting, waiting_bytes = one.schema, _NO_RECORDS, [], 0
            with translating_errors([path]):
                before = self._collect(path, one, before, waiting)
            waiting_bytes += len(waiting[-1].content)
        return _distinct([*frames, self._decoded(schema, waiting, paths)])

    def _collect(self, path: str, one: avro.Container, before: _Records, waiting: list[_Records]) -> _Records:
        """Return the list's records that no earlier block holds; new ones among them are queued for decoding."""
        # one block, as Spark writes it, has all rows of the list: it comes no second time
        keys = [path.encode()] if len(one.blocks) == 1 else [_digest(one.codec, block) for block in one.blocks]
        blocks = dict(zip(keys, one.blocks, strict=True))
        fresh = {key: block for key, block in blocks.items() if key not in self.files}
        content = avro.inflated((one.codec, block) for block in fresh.values())
        records = new = _Records(content, {key: block.records for key, block in fresh.items()})
        if (ahead := _ahead(one.schema, records, before)) is not None:
            new = _Records(content[:ahead], {path.encode(): records.count - before.count})
            records = _Records(content, {**new.parts, **before.parts})
        waiting.append(new)
        self.files.update(dict.fromkeys(new.parts, 0))  # until they are counted, before anybody asks
        self.parts[path] = (*(key for key in blocks if key not in fresh), *records.parts)
        return records

    def _decoded(self, schema: bytes, waiting: Sequence[_Records], paths: Sequence[str]) -> pl.DataFrame:
        parts = {key: records for new in waiting for key, records in new.parts.items() if records}
        if not parts:
            return SCHEMA.to_frame()
        with translating_errors(paths):
            rows = _rows(schema, sum(parts.values()), b"".join(new.content for new in waiting))
        live, start = rows["added_files"] + rows["existing_files"], 0
        for key, records in parts.items():
            part = live.slice(start, records)
            self.files[key] = None if part.null_count() else int(part.sum())
            start += records
        return rows.unique("path", maintain_order=True)


def _digest(codec: str, block: avro.Block) -> bytes:
    count = block.records.to_bytes(8, "big")
    return blake2b(block.content, digest_size=16, salt=count, key=codec.encode()).digest()


def _ahead(schema: bytes, records: _Records, before: _Records) -> int | None:
    """Return the bytes of the records ahead of those `before`; None where the list does not end with these.

    Equal bytes alone prove nothing; the proof is that the records ahead of them end exactly where they begin.
    """
    ahead, count = len(records.content) - len(before.content), records.count - before.count
    if not 0 <= count <= before.count or not records.content.endswith(before.content):
        return None
    skip, position = _skipper(schema), 0
    for _ in range(count):
        position = skip(records.content, position)
    return ahead if position == ahead else None


@lru_cache(maxsize=64)
def _skipper(schema: bytes) -> Skip:
    return skipper(json.loads(schema), {})
