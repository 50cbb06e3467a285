"""Manifest lists into columns: which manifests snapshots list, each once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from hashlib import blake2b

import polars as pl

from icewright.adapters.files import avro
from icewright.adapters.files.reading import container, pinpointed, readable
from icewright.adapters.files.storage import Storage

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


def read_lists(storage: Storage, paths: Sequence[str]) -> pl.DataFrame:
    """The manifests that the lists at `paths` name, each once. Raises `MetadataUnreadable`, `StorageUnavailable`."""
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
    seen: set[bytes] = field(default_factory=set)

    def read(self, paths: Sequence[str]) -> pl.DataFrame:
        """The rows of the blocks that are new."""
        return pinpointed(self._new_rows, paths, lambda path: _Reader(self.storage).read([path]))

    def _new_rows(self, paths: Sequence[str]) -> pl.DataFrame:
        by_schema: dict[tuple[bytes, str], list[avro.Block]] = {}
        for path in paths:
            one = container(self.storage, path)
            blocks = by_schema.setdefault((one.schema, one.codec), [])
            for block in one.blocks:
                digest = blake2b(block.content, digest_size=16, salt=block.records.to_bytes(8, "big")).digest()
                if block.records and digest not in self.seen:
                    self.seen.add(digest)
                    blocks.append(block)
        with readable(paths):
            frames = [_rows(schema, codec, blocks) for (schema, codec), blocks in by_schema.items() if blocks]
        return pl.concat(frames).unique("path", maintain_order=True) if frames else SCHEMA.to_frame()


def _rows(schema: bytes, codec: str, blocks: Sequence[avro.Block]) -> pl.DataFrame:
    body = b"".join(avro.inflated(codec, b) for b in blocks)
    ids = [number for number, _ in _FIELDS.values()]
    raw = avro.read(schema, sum(b.records for b in blocks), body, ids, _REQUIRED)
    return raw.select(
        (pl.col(str(number)).cast(kind) if number in _REQUIRED else pl.col(str(number)).cast(kind).fill_null(0)).alias(
            name
        )
        for name, (number, kind) in _FIELDS.items()
    )
