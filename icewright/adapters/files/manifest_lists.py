"""Manifest lists into columns: which manifests snapshots list, each once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from hashlib import blake2b

import polars as pl

from icewright.adapters.files import avro
from icewright.adapters.files.reading import container, pinpointed, readable
from icewright.core.errors import MetadataUnreadable
from icewright.ports import Storage

# field ids of a row (spec, Manifest Lists), in the order of `ManifestFile`'s fields
_FIELDS = {
    "path": (500, pl.String),
    "length": (501, pl.Int64),
    "spec_id": (502, pl.Int32),
    "content": (517, pl.Int8),
    "sequence_number": (515, pl.Int64),
    "min_sequence_number": (516, pl.Int64),
    "added_snapshot_id": (503, pl.Int64),
    "added_files": (504, pl.Int64),
    "existing_files": (505, pl.Int64),
    "deleted_files": (506, pl.Int64),
}
_REQUIRED = (500, 501, 502)
SCHEMA = pl.Schema({name: kind for name, (_, kind) in _FIELDS.items()})
_A_TASK = 16  # lists read by one task: bounds the memory
_TASKS = 4
_ROWS_KEPT = 200_000  # rows that may hold doubles before they are made one


def read_lists(storage: Storage, lists: Mapping[str, int | None]) -> pl.DataFrame:
    """The manifests that the lists name, each once. `lists` says how many live files each must name, None: any number.

    Raises `MetadataUnreadable`, also for a list that names fewer, and `StorageUnavailable`.
    """
    paths = list(lists)
    tasks = [paths[i : i + _A_TASK] for i in range(0, len(paths), _A_TASK)]
    reader = _Reader(storage)
    found, fresh = SCHEMA.to_frame(), 0
    parts: list[pl.DataFrame] = []
    with ThreadPoolExecutor(_TASKS) as pool:
        for frame in pool.map(reader.read, tasks) if len(tasks) > 1 else map(reader.read, tasks):
            parts.append(frame)
            fresh += frame.height
            if fresh > max(_ROWS_KEPT, found.height):
                found, parts, fresh = _distinct([found, *parts]), [], 0
    for path, said in lists.items():
        reader.check(path, said)
    return _distinct([found, *parts])


def _distinct(frames: Iterable[pl.DataFrame]) -> pl.DataFrame:
    return pl.concat(frames).unique("path", maintain_order=True)


@dataclass(frozen=True)
class _Reader:
    """Reads lists for one call, each distinct block once.

    Long histories list the same manifests again and again; where the writer appends rows in blocks of their own, whole
    blocks come again, byte for byte, and what they say is known.
    """

    storage: Storage
    blocks: dict[str, list[bytes]] = field(default_factory=dict)  # digests by list
    files: dict[bytes, int | None] = field(default_factory=dict)  # live files by digest; None: the writer does not say

    def read(self, paths: Sequence[str]) -> pl.DataFrame:
        """The rows of the blocks that are new."""
        return pinpointed(self._new_rows, paths, lambda path: _Reader(self.storage).read([path]))

    def check(self, path: str, said: int | None) -> None:
        """Raise `MetadataUnreadable` when the list names fewer live files than were counted."""
        counts = [self.files[digest] for digest in self.blocks[path]]
        named = sum(count for count in counts if count is not None)
        if said is not None and None not in counts and named < said:
            raise MetadataUnreadable(
                f"{path} names {named} live files where its snapshot's summary counts {said}: if the file was not cut "
                "short, and its writer counts wrongly, set execute.check_totals to false for the table"
            )

    def _new_rows(self, paths: Sequence[str]) -> pl.DataFrame:
        new: dict[tuple[bytes, str], dict[bytes, avro.Block]] = {}
        for path in paths:
            one = container(self.storage, path)
            blocks = new.setdefault((one.schema, one.codec), {})
            self.blocks[path] = []
            for block in one.blocks:
                count = block.records.to_bytes(8, "big")
                digest = blake2b(block.content, digest_size=16, salt=count, key=one.codec.encode()).digest()
                self.blocks[path].append(digest)
                if digest not in self.files:
                    self.files[digest] = 0  # until it is counted below, before anybody asks
                    blocks[digest] = block
        with readable(paths):
            frames = [self._rows(schema, codec, blocks) for (schema, codec), blocks in new.items() if blocks]
        return _distinct(frames) if frames else SCHEMA.to_frame()

    def _rows(self, schema: bytes, codec: str, blocks: Mapping[bytes, avro.Block]) -> pl.DataFrame:
        body = b"".join(avro.inflated(codec, b) for b in blocks.values())
        ids = [number for number, _ in _FIELDS.values()]
        raw = avro.read(schema, sum(b.records for b in blocks.values()), body, ids, _REQUIRED)
        rows = raw.select(pl.col(str(number)).cast(kind).alias(name) for name, (number, kind) in _FIELDS.items())
        live, start = rows["added_files"] + rows["existing_files"], 0
        for digest, block in blocks.items():
            part = live.slice(start, block.records)
            self.files[digest] = None if part.null_count() else int(part.sum())
            start += block.records
        return rows.fill_null(0)
