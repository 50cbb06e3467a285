"""Read a Spark stream's checkpoint for the snapshot that is to be pinned for the stream."""

from __future__ import annotations

import re
from collections.abc import Iterator

from icewright.core.checkpoints import snapshot_to_pin, source_offsets
from icewright.core.errors import FolderMissing, UsageError
from icewright.core.table import TableMetadata
from icewright.ports import Storage

_FIRST = re.compile(r"(\d{1,4})/offsets/0")
_BATCH = re.compile(r"\d{1,18}")


def checkpoint_snapshot(files: Storage, folder: str, metadata: TableMetadata, *, available_now: bool) -> int:
    """Return the snapshot to pin for the stream whose checkpoint lies in the folder.

    The stream may run meanwhile: what is read is a place where it was. Raises `UsageError`, `StorageUnavailable`.
    """
    folder = folder.rstrip("/")
    first = {}
    for name in _names(files, f"{folder}/sources"):
        if match := _FIRST.fullmatch(name):
            first[int(match[1])] = files.read(f"{folder}/sources/{name}").decode("utf-8", "replace")
    if not first:
        raise UsageError(
            f"{folder} is no checkpoint of a Spark stream that reads Iceberg: it has no sources/0/offsets/0"
        )
    done = [int(name) for name in _names(files, f"{folder}/commits") if _BATCH.fullmatch(name)]
    path = f"{folder}/offsets/{max(done, default=0)}"
    batch = files.read(path).decode("utf-8", "replace") if done else None
    return snapshot_to_pin(metadata, source_offsets(first, path, batch), available_now=available_now)


def _names(files: Storage, folder: str) -> Iterator[str]:
    """Yield the files below a folder, named from there; none when there is no such folder."""
    try:
        for batch in files.listing(folder):
            yield from (str(path).removeprefix(f"{folder}/") for path in batch.column("path").to_pylist())
    except FolderMissing:
        return
