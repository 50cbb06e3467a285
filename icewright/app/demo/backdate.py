"""Makes fresh commits of Spark and PyIceberg look days old, in the metadata and on disk."""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from pyiceberg.manifest import ManifestEntryStatus
from pyiceberg.table import Table

from icewright.app.demo.files import local, millis
from icewright.app.demo.lake import Lake

_MINUTE_MS = 60_000


def backdate(lake: Lake, name: str, times: Sequence[datetime]) -> None:
    """Give the last snapshots of a table these commit times, and the files that they added the same age.

    Earlier snapshots keep their times. The metadata files of the log are corrected in place, so that the history
    tells one story; the result is a new metadata file, to which the catalog is pointed.
    """
    table = lake.catalog.load_table(lake.identifier(name))
    order = [s.snapshot_id for s in sorted(table.metadata.snapshots, key=lambda s: s.sequence_number or 0)]
    fresh = dict(zip(order[-len(times) :], map(millis, times), strict=True))
    when = {s.snapshot_id: s.timestamp_ms for s in table.metadata.snapshots} | fresh
    _age_files(table, fresh)
    logged: dict[str, int] = {}
    for location in [*(entry.metadata_file for entry in table.metadata.metadata_log), table.metadata_location]:
        document = json.loads(local(location).read_text(encoding="utf-8"))
        logged[location] = _redate(document, when, logged, millis(times[0]) - _MINUTE_MS)
        _save(local(location), document, logged[location])
    document["metadata-log"] = [{"metadata-file": path, "timestamp-ms": at} for path, at in logged.items()]
    path = _next(local(table.metadata_location), lake.random(f"{name} backdated").getrandbits(128))
    _save(path, document, logged[table.metadata_location])
    lake.point(name, f"file://{path}")  # a commit could not set these fields


def _redate(document: dict[str, Any], when: Mapping[int, int], logged: Mapping[str, int], before: int) -> int:
    """Replace the times in a metadata file, and the file's own time."""
    for snapshot in document.get("snapshots", []):
        snapshot["timestamp-ms"] = when[snapshot["snapshot-id"]]
    for entry in document.get("snapshot-log", []):
        entry["timestamp-ms"] = when[entry["snapshot-id"]]
    for entry in document.get("metadata-log", []):
        entry["timestamp-ms"] = logged[entry["metadata-file"]]
    current = document.get("current-snapshot-id")
    written = before if current is None else when.get(current, before)  # Java writes -1 when there is none
    document["last-updated-ms"] = written
    return written


def _save(path: Path, document: Mapping[str, Any], at: int) -> None:
    path.unlink(missing_ok=True)  # a server's notes about the old content are the old file's
    path.write_text(json.dumps(document), encoding="utf-8")
    _age(path, at)
    path.with_name(f".{path.name}.crc").unlink(missing_ok=True)  # Hadoop would call the file corrupt


def _next(path: Path, bits: int) -> Path:
    number = int(path.name.partition("-")[0]) + 1
    return path.with_name(f"{number:05d}-{uuid.UUID(int=bits, version=4)}.metadata.json")


def _age_files(table: Table, fresh: Mapping[int, int]) -> None:
    for snapshot in table.metadata.snapshots:
        if snapshot.snapshot_id not in fresh:
            continue
        _age(local(snapshot.manifest_list), fresh[snapshot.snapshot_id])
        for manifest in snapshot.manifests(table.io):
            if manifest.added_snapshot_id != snapshot.snapshot_id:
                continue
            _age(local(manifest.manifest_path), fresh[snapshot.snapshot_id])
            for entry in manifest.fetch_manifest_entry(table.io):
                if entry.status == ManifestEntryStatus.ADDED:
                    _age(local(entry.data_file.file_path), fresh[snapshot.snapshot_id])


def _age(path: Path, at: int) -> None:
    os.utime(path, (at / 1000, at / 1000))
