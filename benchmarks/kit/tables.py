"""Writes the history of a format v2 table straight to disk: as its writer would leave it, in seconds."""

from __future__ import annotations

import json
import os
import random
import struct
import time
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any
from uuid import UUID

from benchmarks.kit.lake import Lake
from benchmarks.kit.layouts import layout
from benchmarks.kit.listing import file_name
from benchmarks.kit.rows import COLUMNS, IDS, ROWS, write_rows, write_template

_SCHEMA: Mapping[str, Any] = {
    "type": "struct",
    "schema-id": 0,
    "fields": [
        {"id": i, "name": name, "required": False, "type": kind} for i, (name, kind) in zip(IDS, COLUMNS, strict=True)
    ],
}
_SPEC = [{"name": "part", "transform": "identity", "source-id": 3, "field-id": 1000}]
_NO_NULLS = [{"key": i, "value": 0} for i in IDS]
_NO_NANS = [{"key": i, "value": 0} for i in (7, 8)]
_DAY = 86_400
_AGE = 20 * _DAY  # of the first commit
_BETWEEN_MS = 60_000  # commits
_LINKS = 5_000  # that one inode gets here; copies of the table add as many again, and ext4 allows 65,000
_ADDED, _DELETED = 1, 2


@dataclass(frozen=True, slots=True)
class DataFile:
    """A data file on disk with made-up statistics of all ten columns."""

    number: int
    uri: str
    part: int | None
    size: int
    rows: int = ROWS

    def record(self) -> dict[str, Any]:
        """The file in the words of a manifest."""
        n, part = self.number, self.part or 0
        micros = 1_700_000_000_000_000 + n * 1_000_003
        lower = (
            _long(n * ROWS),
            _long(micros),
            struct.pack("<i", part),
            b"user-%05d" % (n * 7 % 100_000),
            b"buy",
            b"https://example.",
            struct.pack("<d", (n * 37 % 1009) / 100_900),
            struct.pack("<d", (n * 61 % 1013) / 101_300),
            _long(n % 11),
            _long(n * 977_777_777),
        )
        upper = (
            _long(n * ROWS + ROWS - 1),
            _long(micros + 3_600_000_000),
            struct.pack("<i", part),
            b"user-%05d" % (99_999 - n * 13 % 1000),
            b"view",
            b"https://example/",
            struct.pack("<d", 1 - (n * 41 % 1019) / 101_900),
            struct.pack("<d", 1 - (n * 43 % 1021) / 102_100),
            _long(999 - n % 7),
            _long(n * 977_777_777 + 1_000_000_007),
        )
        return {
            "content": 0,
            "file_path": self.uri,
            "file_format": "PARQUET",
            "partition": {} if self.part is None else {"part": self.part},
            "record_count": self.rows,
            "file_size_in_bytes": self.size,
            "column_sizes": [{"key": i, "value": 300 + (n * i) % 97} for i in IDS],
            "value_counts": _counts(self.rows),
            "null_value_counts": _NO_NULLS,
            "nan_value_counts": _NO_NANS,
            "lower_bounds": [{"key": i, "value": value} for i, value in zip(IDS, lower, strict=True)],
            "upper_bounds": [{"key": i, "value": value} for i, value in zip(IDS, upper, strict=True)],
            "key_metadata": None,
            "split_offsets": [4],
            "equality_ids": None,
            "sort_order_id": 0,
        }


@dataclass(frozen=True, slots=True)
class Commit:
    """A commit of one manifest: its sequence number, its row in manifest lists, and its files."""

    sequence: int
    row: bytes
    files: Sequence[DataFile]


class Seed:
    """A new table: files, commits of them, and at the end its metadata file and its row in the catalog."""

    def __init__(
        self,
        lake: Lake,
        table: str,
        layout_name: str = "spark",
        *,
        partitioned: bool = False,
        codec: str | None = "zstd",
    ) -> None:
        self.lake, self.table = lake, table
        spec = _SPEC if partitioned else []
        self.layout = lake.laid(layout(layout_name, _SCHEMA, spec))
        self.folder = lake.folder(table)
        (self.folder / "data").mkdir(parents=True)
        (self.folder / "metadata").mkdir()
        self.live: deque[bytes] = deque()  # rows of the current manifest list, the newest first
        self._random = random.Random(table)
        self._links = self._count = self._sequence = 0
        self._totals = Counter[str]()
        self._folders: set[str] = set()
        self._snapshots: list[dict[str, Any]] = []
        self._started = int((time.time() - _AGE) * 1000)
        self._threads = ThreadPoolExecutor(2)
        self._writing: list[Future[None]] = []
        self._published = False
        self.uuid = self._uuid()
        self._metadata: Mapping[str, Any] = {
            "format-version": 2,
            "table-uuid": self.uuid,
            "location": lake.location(table),
            "last-column-id": len(COLUMNS),
            "current-schema-id": 0,
            "schemas": [_SCHEMA],
            "default-spec-id": 0,
            "partition-specs": [{"spec-id": 0, "fields": spec}],
            "last-partition-id": 1000 if spec else 999,
            "default-sort-order-id": 0,
            "sort-orders": [{"order-id": 0, "fields": []}],
            "properties": {"owner": "root"} | ({"write.parquet.compression-codec": codec} if codec else {}),
            "statistics": [],
            "partition-statistics": [],
            "metadata-log": [],
        }

    def file(self, part: int | None = None) -> DataFile:
        """A data file on disk, in no snapshot yet: one more link to a template."""
        if self._links == _LINKS:
            self._links = 0
            del self._made
        file = self.unlinked(part)
        os.link(self._made[0], self.local(file))
        self._links += 1
        return file

    @cached_property
    def _made(self) -> tuple[Path, int]:
        """A template, and its size."""
        path = self.lake.home / f"{self.table}-{self._count}.parquet"
        return path, write_template(path, _AGE)

    def written(self, rows: int, part: int | None = None) -> DataFile:
        """A data file of rows of its own, in no snapshot yet: what rewrites can read."""
        file = self._named(part, 0)
        size = write_rows(Path(self.local(file)), rows, part, file.number)
        return replace(file, rows=rows, size=size)

    def commits(self, number: int, rows: int, files: int = 1) -> None:
        """Add so many commits, each of so many written files of so many rows, in no partition."""
        for _ in range(number):
            self.commit([self.written(rows) for _ in range(files)])

    def unlinked(self, part: int | None = None) -> DataFile:
        """A data file that manifests may name, but which is not there."""
        return self._named(part, self._made[1])

    def _named(self, part: int | None, size: int) -> DataFile:
        folder = f"{self.folder}/data" + ("" if part is None else f"/part={part}")
        if folder not in self._folders:
            self._folders.add(folder)
            Path(folder).mkdir(exist_ok=True)
        number, self._count = self._count, self._count + 1
        return DataFile(number, self.layout.uri(f"{folder}/{file_name(number)}"), part, size)

    def local(self, file: DataFile) -> str:
        """Where a data file lies."""
        return self.layout.local(file.uri)

    def until_now(self, commits: int) -> None:
        """Let as many commits more be those of the last minutes."""
        self._started = int(time.time() * 1000) - (self._sequence + commits) * _BETWEEN_MS

    def commit(self, added: Sequence[DataFile], replaced: Commit | None = None, *, listed: bool = True) -> Commit:
        """Add files in one manifest; take out those of an earlier commit. Not `listed`: expired since."""
        entries, fields = self.layout.manifests, {"snapshot_id": self._begin(), "sequence_number": None}
        encoded = [
            entries.record({"status": _ADDED, "file_sequence_number": None, "data_file": file.record(), **fields})
            for file in added
        ]
        made = self._manifest(encoded, added)
        commit = Commit(self._sequence, made, added)
        self.live.appendleft(commit.row)
        rows, summary = list(self.live), {"operation": "append", **_said("added", _sums(added))}
        if replaced is not None:
            rows.remove(replaced.row)
            self.live.remove(replaced.row)
            rows.insert(*self._removed(replaced, len(rows)))
            summary |= {"operation": "overwrite", **_said("deleted", _sums(replaced.files))}
            self._totals.subtract(_sums(replaced.files))
        self._totals.update(_sums(added))
        if listed:
            self.snapshot(rows, summary)
        return commit

    def _begin(self) -> int:
        """The id of the next snapshot."""
        self._sequence += 1
        self._snapshot = self._random.getrandbits(62) | 1
        return self._snapshot

    def _removed(self, replaced: Commit, end: int) -> tuple[int, bytes]:
        """The manifest of entries taken out: Spark leaves it in place, at the end, PyIceberg puts it beside the new."""
        entries = [
            self.layout.manifests.record(
                {
                    "status": _DELETED,
                    "snapshot_id": self._snapshot,
                    "sequence_number": replaced.sequence,
                    "file_sequence_number": replaced.sequence,
                    "data_file": file.record(),
                }
            )
            for file in replaced.files
        ]
        row = self._manifest(entries, replaced.files, deleted=True)
        return (end if self.layout.name == "spark" else 1), row

    def _manifest(self, entries: Sequence[bytes], files: Sequence[DataFile], *, deleted: bool = False) -> bytes:
        """Write a manifest; its row in manifest lists."""
        path = f"{self.folder}/metadata/{self._uuid()}-m{int(deleted)}.avro"
        content = self.layout.manifests.file(entries, self._random.randbytes(16), {})
        Path(path).write_bytes(content)
        bounds = [f.part for f in files if f.part is not None]
        rows = sum(f.rows for f in files)
        counts = (0, len(entries)) if deleted else (len(entries), 0)
        return self.layout.lists.record(
            {
                "manifest_path": self.layout.uri(path),
                "manifest_length": len(content),
                "partition_spec_id": 0,
                "content": 0,
                "sequence_number": self._sequence,
                "min_sequence_number": self._sequence,
                "added_snapshot_id": self._snapshot,
                "added_files_count": counts[0],
                "existing_files_count": 0,
                "deleted_files_count": counts[1],
                "added_rows_count": 0 if deleted else rows,
                "existing_rows_count": 0,
                "deleted_rows_count": rows if deleted else 0,
                "partitions": [
                    {
                        "contains_null": False,
                        "contains_nan": False,
                        "lower_bound": struct.pack("<i", min(bounds)),
                        "upper_bound": struct.pack("<i", max(bounds)),
                    }
                ]
                if bounds
                else [],
            }
        )

    def bulk(self, files: Sequence[DataFile]) -> None:
        """Many added files in one more manifest, quickly: without statistics, and all their paths of one length."""
        if not self.live:
            self._begin()
        hole = "?" * len(files[0].uri)
        entry: dict[str, Any] = {"status": _ADDED, "snapshot_id": self._snapshot}
        data = {"content": 0, "file_path": hole, "file_format": "PARQUET", "partition": {}, "record_count": ROWS}
        entry["data_file"] = data | {"file_size_in_bytes": self._made[1]}
        before, after = self.layout.manifests.record(entry).split(hole.encode())
        made = self._manifest([before + f.uri.encode() + after for f in files], files)
        self.live.appendleft(made)
        self._totals.update(_sums(files))

    def snapshot(self, rows: Sequence[bytes] = (), summary: Mapping[str, str] | None = None) -> None:
        """A snapshot of these manifests, else of all that are live."""
        path = f"{self.folder}/metadata/snap-{self._snapshot}-{self.layout.attempt}-{self._uuid()}.avro"
        parent = {"parent-snapshot-id": self._snapshots[-1]["snapshot-id"]} if self._snapshots else {}
        meta = {
            "snapshot-id": str(self._snapshot),
            "parent-snapshot-id": str(parent.get("parent-snapshot-id", "null")),
            "sequence-number": str(self._sequence),
        }
        sync, chosen = self._random.randbytes(16), rows or list(self.live)
        self._writing.append(self._threads.submit(self._write_list, path, chosen, sync, meta))
        self._snapshots.append(
            {
                "sequence-number": self._sequence,
                "snapshot-id": self._snapshot,
                **parent,
                "timestamp-ms": self._started + self._sequence * _BETWEEN_MS,
                "summary": {
                    "operation": "append",
                    **(summary or {}),
                    **_said("total", self._totals),
                    "total-delete-files": "0",
                    "total-position-deletes": "0",
                    "total-equality-deletes": "0",
                    **self.layout.summary,
                },
                "manifest-list": self.layout.uri(path),
                "schema-id": 0,
            }
        )

    def _write_list(self, path: str, rows: Sequence[bytes], sync: bytes, meta: Mapping[str, str]) -> None:
        Path(path).write_bytes(self.layout.lists.file(rows, sync, meta))

    def publish(self, *, checked: bool = True) -> str:
        """Write a metadata file of the history so far, register it if it is the first, and return its location.

        Not `checked`: PyIceberg does not read it first, which takes longer than all else of a small table.
        """
        for writing in self._writing:
            writing.result()
        last = self._snapshots[-1]
        times = [{key: s[key] for key in ("timestamp-ms", "snapshot-id")} for s in self._snapshots]
        document = {
            **self._metadata,
            "last-sequence-number": self._sequence,
            "last-updated-ms": last["timestamp-ms"],
            "current-snapshot-id": last["snapshot-id"],
            "refs": {"main": {"snapshot-id": last["snapshot-id"], "type": "branch"}},
            "snapshots": self._snapshots,
            "snapshot-log": times,
        }
        path = f"{self.folder}/metadata/{self._sequence:05d}-{self._uuid()}.metadata.json"
        Path(path).write_text(json.dumps(document, separators=(",", ":")), encoding="utf-8")
        location = self.layout.uri(path)
        if not self._published:
            register = self.lake.register if checked else self.lake.add
            register(self.table, location)
        self._published = True
        return location

    def _uuid(self) -> str:
        return str(UUID(int=self._random.getrandbits(128), version=4))


@cache
def _counts(rows: int) -> list[dict[str, int]]:
    return [{"key": i, "value": rows} for i in IDS]


def _sums(files: Sequence[DataFile]) -> Counter[str]:
    return Counter(
        {"data-files": len(files), "records": sum(f.rows for f in files), "files-size": sum(f.size for f in files)}
    )


def _said(what: str, sums: Mapping[str, int]) -> dict[str, str]:
    """How snapshot summaries say numbers of files, rows and bytes."""
    sizes = "removed-files-size" if what == "deleted" else f"{what}-files-size"
    return {
        f"{what}-data-files": str(sums["data-files"]),
        f"{what}-records": str(sums["records"]),
        sizes: str(sums["files-size"]),
    }


def _long(value: int) -> bytes:
    return struct.pack("<q", value)
