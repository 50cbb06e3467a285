"""A reader of tables that shares nothing with Icewright: what the metadata names, followed file by file."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import fastavro
from pyiceberg.catalog.sql import SqlCatalog

from tests.faults.lakehouse import NAME, Lakehouse

LiveFile = tuple[int, str, int]  # content, path, sequence number
_DELETED, _DATA = 2, 0


@dataclass
class Reading:
    """Everything that a table's current metadata leads to; `missing` says what of it is gone or not whole."""

    document: Mapping[str, Any]
    live: dict[int, frozenset[LiveFile]] = field(default_factory=dict)  # by snapshot
    manifests: dict[int, int] = field(default_factory=dict)  # how many of data, by snapshot
    order: dict[str, int] = field(default_factory=dict)  # every file that is named, numbered as they were met
    missing: list[str] = field(default_factory=list)

    @property
    def reached(self) -> set[str]:
        """Every file that is named."""
        return set(self.order)

    @property
    def snapshots(self) -> frozenset[int]:
        """The ids of all snapshots."""
        return frozenset(self.live)

    @property
    def refs(self) -> dict[str, int]:
        """Tags and branches with their snapshots."""
        return {name: ref["snapshot-id"] for name, ref in self.document["refs"].items()}

    @property
    def statistics(self) -> set[int]:
        """The snapshots that have statistics of columns."""
        return {one["snapshot-id"] for one in self.document.get("statistics", ())}

    @property
    def head(self) -> int:
        """The current snapshot."""
        return int(self.document["current-snapshot-id"])

    def reach(self, location: str, size: int | None = None) -> Path | None:
        """Note that a file is named; where it is, if it is there and whole."""
        path = Path(location.removeprefix("file://"))
        self.order.setdefault(str(path), len(self.order))
        if not path.is_file():
            self.missing.append(f"{path} is gone")
            return None
        if size is not None and path.stat().st_size != size:
            self.missing.append(f"{path} has {path.stat().st_size} bytes, not {size}")
        return path


def read(workspace: Lakehouse, name: str = NAME) -> Reading:
    """Follow the metadata file that the catalog names to the last data file of every snapshot."""
    file = workspace.metadata_file(name)
    found = Reading(json.loads(file.read_text(encoding="utf-8")))
    found.reach(str(file))
    for entry in found.document["metadata-log"]:
        found.reach(entry["metadata-file"])
    for kind in ("statistics", "partition-statistics"):
        for one in found.document.get(kind, ()):
            found.reach(one["statistics-path"], one["file-size-in-bytes"])
    for snapshot in found.document.get("snapshots", ()):
        rows = list(_rows(found, snapshot["manifest-list"]))
        live = frozenset(one for row in rows for one in _live(found, row))
        found.live[snapshot["snapshot-id"]] = live
        found.manifests[snapshot["snapshot-id"]] = sum(row.get("content", _DATA) == _DATA for row in rows)
    lost = {name for name, snapshot_id in found.refs.items() if snapshot_id not in found.live}
    found.missing += [f"the snapshot of ref {name} is gone" for name in sorted(lost)]
    return found


def _rows(found: Reading, location: str) -> Iterator[Mapping[str, Any]]:
    path = found.reach(location)
    return iter(_records(path) if path else ())


def _live(found: Reading, row: Mapping[str, Any]) -> Iterator[LiveFile]:
    path = found.reach(row["manifest_path"], row["manifest_length"])
    for entry in _records(path) if path else ():
        if entry["status"] == _DELETED:
            continue
        file, sequence = entry["data_file"], entry["sequence_number"]
        found.reach(file["file_path"], file["file_size_in_bytes"])
        yield file.get("content", _DATA), file["file_path"], row["sequence_number"] if sequence is None else sequence


def _records(path: Path) -> tuple[Any, ...]:
    stat = path.stat()
    return _decoded(path, stat.st_size, stat.st_mtime_ns)


@cache
def _decoded(path: Path, _size: int, _time: int) -> tuple[Any, ...]:
    with path.open("rb") as file:
        return tuple(fastavro.reader(file))


def scanned(catalog: SqlCatalog, name: str = NAME) -> dict[str, list[int]]:
    """The ids that PyIceberg reads of every tag and branch of a table, after its own rules, deletes applied."""
    table = catalog.load_table(name)
    return {
        ref: sorted(table.scan(snapshot_id=to.snapshot_id, selected_fields=("id",)).to_arrow()["id"].to_pylist())
        for ref, to in table.refs().items()
    }
