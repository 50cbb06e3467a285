"""Manifest lists read into columns: the manifests that snapshots list, each once."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import sha256

import polars as pl

from icewright.adapters.files import avro
from icewright.adapters.files.avro import container, read_isolating_errors, translating_errors
from icewright.core import field_ids as ids
from icewright.core.avro_values import Skip, skipper
from icewright.core.errors import MetadataUnreadable
from icewright.core.paths import stray_local_file
from icewright.ports import Storage

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
_LISTS_AT_ONCE = 256  # which are read one by one when one of them is broken, to name it
_MAX_PENDING_BYTES = 8_000_000  # of records: bounds the memory
_MAX_UNMERGED_ROWS = 200_000  # rows that may hold doubles before they are made one


def read_lists(storage: Storage, lists: Mapping[str, int | None]) -> pl.DataFrame:
    """Return the manifests that the lists name, each once.

    `lists` has the least number of live files that each list must name, by its path; None for any number.
    Raises `MetadataUnreadable`, also for a list that names fewer, and `StorageUnavailable`.
    """
    if not lists:
        return SCHEMA.to_frame()
    paths = list(lists)
    reader = _Reader(storage)
    manifests, unmerged_rows = SCHEMA.to_frame(), 0
    parts: list[pl.DataFrame] = []
    for start in range(0, len(paths), _LISTS_AT_ONCE):  # in this thread: others would wait for the interpreter
        parts.append(reader.read(paths[start : start + _LISTS_AT_ONCE]))
        unmerged_rows += parts[-1].height
        if unmerged_rows > max(_MAX_UNMERGED_ROWS, manifests.height):
            manifests, parts, unmerged_rows = _distinct([manifests, *parts]), [], 0
    for path, expected in lists.items():
        reader.check(path, expected)
    distinct = _distinct([manifests, *parts]).fill_null(0)
    owner = paths[0]  # the metadata file was refused unless its lists are all local, or none is
    if (stray := stray_local_file(owner, distinct["path"])) is not None:
        raise MetadataUnreadable(f"{owner} lies in an object store and names a local file, {stray}: it is not read")
    return distinct


def read_list(storage: Storage, path: str) -> pl.DataFrame:
    """Return the manifests that one list names."""
    file = container(storage, path)
    with translating_errors([path]):
        return _rows(file.schema, file.records, file.body()).fill_null(0)


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


@dataclass(frozen=True, slots=True)
class _Records:
    """The decompressed records of one list, without those of blocks that earlier lists have."""

    path: str | None
    content: bytes
    count: int


_NO_RECORDS = _Records(None, b"", 0)


@dataclass(frozen=True, slots=True)
class _NewRecords:
    """Decompressed records that no earlier list has, and how many of them were read under each key."""

    content: bytes
    counts: Mapping[bytes, int]


@dataclass(frozen=True, slots=True)
class _Parts:
    """The keys of what one list consists of, and the list all of whose `_Records` it has too."""

    repeated: Sequence[bytes]  # blocks of earlier lists
    new: Sequence[bytes]
    follows: str | None


@dataclass(frozen=True)
class _Reader:
    """Reads the lists of one call and decodes each distinct record once.

    Long histories list the same manifests many times. Where the writer appends rows in blocks of their own, whole
    blocks are repeated byte for byte. Where it puts new rows in front, as Spark does, a list ends with the records of
    the previous one.
    """

    storage: Storage
    parts: dict[str, _Parts] = field(default_factory=dict)  # by path
    files: dict[bytes, int | None] = field(default_factory=dict)  # live files by key; None: the writer does not say
    files_of_records: dict[str, int | None] = field(default_factory=dict)  # live files of `_Records` by path

    def read(self, paths: Sequence[str]) -> pl.DataFrame:
        """Return the rows that no earlier list had."""
        return read_isolating_errors(self._new_rows, paths, lambda path: _Reader(self.storage).read([path]))

    def check(self, path: str, expected: int | None) -> None:
        """Raise `MetadataUnreadable` when the list names fewer live files than were counted.

        All lists are checked in the order in which they were read.
        """
        parts = self.parts[path]
        followed = 0 if parts.follows is None else self.files_of_records[parts.follows]
        in_records = self.files_of_records[path] = _total([followed, *map(self.files.__getitem__, parts.new)])
        named = _total([in_records, *map(self.files.__getitem__, parts.repeated)])
        if expected is not None and named is not None and named < expected:
            raise MetadataUnreadable(
                f"{path} names {named} live files where its snapshot's summary counts {expected}: if the file was not "
                "cut short, and its writer counts wrongly, set execute.check_totals to false for the table"
            )

    def _new_rows(self, paths: Sequence[str]) -> pl.DataFrame:
        frames = list[pl.DataFrame]()
        schema, before, waiting, waiting_bytes = b"", _NO_RECORDS, list[_NewRecords](), 0
        for path, file in zip(paths, avro.containers(self.storage, [(path, 0) for path in paths]), strict=True):
            if file.schema != schema or waiting_bytes > _MAX_PENDING_BYTES:
                frames.append(self._decoded(schema, waiting, paths))
                schema, before, waiting, waiting_bytes = file.schema, _NO_RECORDS, [], 0
            with translating_errors([path]):
                before = self._collect(path, file, before, waiting)
            waiting_bytes += len(waiting[-1].content)
        return _distinct([*frames, self._decoded(schema, waiting, paths)])

    def _collect(self, path: str, file: avro.Container, before: _Records, waiting: list[_NewRecords]) -> _Records:
        """Return the list's records that no earlier block holds; new ones among them are queued for decoding."""
        # one block, as Spark writes it, has all rows of the list: it comes no second time
        keys = [path.encode()] if len(file.blocks) == 1 else [_digest(file.codec, block) for block in file.blocks]
        blocks = dict(zip(keys, file.blocks, strict=True))
        fresh = {key: block for key, block in blocks.items() if key not in self.files}
        content = avro.inflated((file.codec, block) for block in fresh.values())
        records = _Records(path, content, sum(block.records for block in fresh.values()))
        ahead = _ahead(file.schema, records, before)
        if ahead is None:
            new = _NewRecords(content, {key: block.records for key, block in fresh.items()})
        else:
            new = _NewRecords(content[:ahead], {path.encode(): records.count - before.count})
        waiting.append(new)
        self.files.update(dict.fromkeys(new.counts, 0))  # until they are counted, before anybody asks
        repeated = [key for key in blocks if key not in fresh]
        self.parts[path] = _Parts(repeated, [*new.counts], None if ahead is None else before.path)
        return records

    def _decoded(self, schema: bytes, waiting: Sequence[_NewRecords], paths: Sequence[str]) -> pl.DataFrame:
        parts = {key: records for new in waiting for key, records in new.counts.items() if records}
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


def _total(counts: Sequence[int | None]) -> int | None:
    """Return the sum; None where one of the counts is unknown."""
    known = [count for count in counts if count is not None]
    return sum(known) if len(known) == len(counts) else None


def _digest(codec: str, block: avro.Block) -> bytes:
    digest = sha256(f"{codec} {block.records} ".encode())
    digest.update(block.content)
    return digest.digest()


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
