"""What a table holds, read by fastavro from its manifests: the referee between both sides."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import fastavro

from benchmarks.kit.lake import Saved, local

Entry = tuple[str, int, int]  # path, sequence number, snapshot id
_DELETED = 2


@dataclass(frozen=True, slots=True)
class LiveFile:
    """What a manifest says of a data file."""

    part: int | None
    rows: int
    size: int


def manifests(saved: Saved) -> list[dict[str, Any]]:
    """The rows of the current manifest list."""
    metadata = saved.lake.metadata(saved.table)
    current = metadata["current-snapshot-id"]
    return _records(next(s["manifest-list"] for s in metadata["snapshots"] if s["snapshot-id"] == current))


def live_entries(saved: Saved) -> frozenset[Entry]:
    """The live entries of the current snapshot, with what they inherit."""
    found = set()
    for row, entry in _live(saved):
        sequence, snapshot = entry["sequence_number"], entry["snapshot_id"]
        found.add(
            (
                entry["data_file"]["file_path"],
                row["sequence_number"] if sequence is None else sequence,
                row["added_snapshot_id"] if snapshot is None else snapshot,
            )
        )
    return frozenset(found)


def live_files(saved: Saved) -> dict[str, LiveFile]:
    """The live data files of the current snapshot by path."""
    files = [entry["data_file"] for row, entry in _live(saved) if not row.get("content")]
    return {
        file["file_path"]: LiveFile(file["partition"].get("part"), file["record_count"], file["file_size_in_bytes"])
        for file in files
    }


def _live(saved: Saved) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    for row in manifests(saved):
        for entry in _records(row["manifest_path"]):
            if entry["status"] != _DELETED:
                yield row, entry


def _records(uri: str) -> list[dict[str, Any]]:
    with local(uri).open("rb") as content:
        return [record for record in fastavro.reader(content) if isinstance(record, dict)]
