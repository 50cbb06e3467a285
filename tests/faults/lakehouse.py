"""A small lakehouse on local files: made once by PyIceberg, copied back before each trial, and made to look old."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.manifest import DataFile, DataFileContent, ManifestContent, ManifestFile, write_manifest_list
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation, Snapshot, Summary
from pyiceberg.table.statistics import StatisticsFile
from pyiceberg.table.update import AddSnapshotUpdate, AssertRefSnapshotId, SetSnapshotRefUpdate
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import LongType, NestedField, StringType

from tests.adapters.writing import by_fastavro, path_bounds, record
from tests.configuration import CONFIG

NAME = "sales.orders"
SIBLING = "sales.orders_archive"
OLD = timedelta(days=60)
KNOBS: dict[str, Any] = {
    "deletion.delay_hours": 0,
    "expire_snapshots.retention_hours": 24,
    "expire_snapshots.min_snapshots_to_keep": 2,
    "rewrite_manifests.min_manifests": 2,
    "recovery_points.hourly": 3,
    "recovery_points.monthly": 4,
    "remove_orphans.mode": "delete",
    "remove_orphans.older_than_hours": 24,
    "remove_orphans.max_delete_ratio": 1.0,
    "compact.enabled": False,
    "rewrite_deletes.enabled": False,
}
_CONFIG = CONFIG + "policy: [{{set: {knobs}}}]\n"
_SCHEMA = Schema(NestedField(1, "id", LongType()), NestedField(2, "region", StringType()))
_SPEC = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "p1"))


@dataclass(frozen=True)
class Lakehouse:
    """A folder with a configuration, a catalog and its warehouse; `restore` makes it what it was when it was saved."""

    home: Path

    @property
    def folder(self) -> Path:
        """Where the table lies."""
        return self.home / "warehouse" / "sales" / "orders"

    def catalog(self) -> SqlCatalog:
        """The catalog as PyIceberg knows it; close it."""
        home = self.home
        return SqlCatalog("lake", uri=f"sqlite:///{home}/catalog.db", warehouse=f"file://{home}/warehouse")

    def save(self) -> None:
        """Keep a copy to restore from, in place of any earlier one."""
        shutil.rmtree(self._copy, ignore_errors=True)
        shutil.copytree(self.home, self._copy)

    def restore(self) -> None:
        """Make every file, and both databases, what they were; the manifest cache is empty again."""
        shutil.rmtree(self.home)
        shutil.copytree(self._copy, self.home)

    @property
    def _copy(self) -> Path:
        return self.home.with_name(f"{self.home.name}-saved")

    def files(self) -> set[str]:
        """Every file below the table's location."""
        return {str(path) for path in self.folder.rglob("*") if path.is_file()}

    def metadata_file(self, name: str = NAME) -> Path:
        """The metadata file of a table that the catalog names."""
        query = "SELECT metadata_location FROM iceberg_tables WHERE table_namespace || '.' || table_name = ?"
        with closing(sqlite3.connect(self.home / "catalog.db")) as database:
            (location,) = database.execute(query, (name,)).fetchone()
        return Path(str(location).removeprefix("file://"))

    def age(self, by: timedelta = OLD) -> None:
        """Let everything that the table is made of have happened so much earlier."""
        shift = by // timedelta(milliseconds=1)
        for file in self.metadata_file().parent.glob("*.metadata.json"):
            document = json.loads(file.read_text(encoding="utf-8"))
            for entry in (document, *document["snapshots"], *document["snapshot-log"], *document["metadata-log"]):
                for key in ("timestamp-ms", "last-updated-ms"):
                    if key in entry:
                        entry[key] -= shift
            file.write_text(json.dumps(document), encoding="utf-8")
        make_old(self.folder, by)


def make_old(place: Path, by: timedelta = OLD) -> None:
    """Let a file, or all files below a folder, look as if last written so much earlier."""
    for path in [place] if place.is_file() else place.rglob("*"):
        if path.is_file():
            at = path.stat().st_mtime - by.total_seconds()
            os.utime(path, (at, at))


def rows(ids: Sequence[int]) -> pa.Table:
    """Rows of these ids; even ones are in region `a`, odd ones in `b`."""
    return pa.table({"id": pa.array(ids, pa.int64()), "region": pa.array(["ab"[i % 2] for i in ids])})


def build(home: Path) -> Lakehouse:
    """Make the lakehouse: a table with a long past, tag, branch, deletes, statistics and orphans, and a neighbour."""
    (home / "warehouse").mkdir(parents=True)
    (home / "icewright.yaml").write_text(_CONFIG.format(home=home, knobs=json.dumps(KNOBS)), encoding="utf-8")
    workspace = Lakehouse(home)
    catalog = workspace.catalog()
    catalog.create_namespace("sales")
    catalog.create_table(SIBLING, _SCHEMA).append(rows([900]))
    patience = {"commit.retry.min-wait-ms": "1", "commit.retry.max-wait-ms": "1"}
    table = catalog.create_table(NAME, _SCHEMA, partition_spec=_SPEC, properties=patience)
    _history(table, workspace)
    _plant(workspace)
    workspace.age()
    table = catalog.load_table(NAME)
    table.append(rows([100, 101]))
    (workspace.folder / "data" / "young.parquet").write_bytes(b"a writer is about to commit it")
    catalog.close()
    return workspace


def _history(table: Table, workspace: Lakehouse) -> None:
    """Eleven commits: appends, row-level and whole-file deletes, a branch of its own, one commit rolled back."""
    table.append(rows([0, 1, 2, 3]))
    _statistics(table, workspace, "gone.puffin")
    table.append(rows([4, 5]))
    table.manage_snapshots().create_tag(_head(table), "v1").commit()
    delete_rows(table, workspace.folder, "file of id 0", [0])
    table.append(rows([6]))
    table.manage_snapshots().create_branch(_head(table), "dev").commit()
    table.append(rows([7]), branch="dev")
    table.delete("id == 6")
    table.append(rows([8]))
    table.append(rows([9]))
    kept = _head(table)
    table.append(rows([99]))
    table.manage_snapshots().rollback_to_snapshot(kept).commit()
    table.append(rows([10, 11]))
    _statistics(table, workspace, "kept.puffin")


def _head(table: Table) -> int:
    snapshot = table.current_snapshot()
    assert snapshot is not None
    return snapshot.snapshot_id


def _statistics(table: Table, workspace: Lakehouse, name: str) -> None:
    path = workspace.folder / "metadata" / name
    path.write_bytes(b"sketches")
    said = {"snapshot-id": _head(table), "statistics-path": f"file://{path}", "file-size-in-bytes": path.stat().st_size}
    file = StatisticsFile.model_validate({**said, "file-footer-size-in-bytes": 1, "blob-metadata": []})
    with table.update_statistics() as update:
        update.set_statistics(file)


def delete_rows(
    table: Table,
    folder: Path,
    name: str,
    positions: Sequence[int],
    *,
    single: bool = True,
    stored: Schema | None = None,
) -> None:
    """Delete rows of the first live file of region `a` by a position delete file, as PyIceberg itself cannot.

    `single`: its bounds say that it names no other file. `stored`: by which its partition is written.
    """
    target = _first_file(table)
    path = folder / "data" / f"{name}-deletes.parquet"
    schema = pa.schema(
        [
            pa.field("file_path", pa.string(), nullable=False, metadata={"PARQUET:field_id": "2147483546"}),
            pa.field("pos", pa.int64(), nullable=False, metadata={"PARQUET:field_id": "2147483545"}),
        ]
    )
    pq.write_table(pa.table({"file_path": [target.file_path] * len(positions), "pos": positions}, schema), path)
    about: dict[str, Any] = {"content": int(DataFileContent.POSITION_DELETES), "key_metadata": None}
    about |= {
        "record_count": len(positions),
        "file_size_in_bytes": path.stat().st_size,
        **path_bounds(target.file_path, target.file_path if single else f"{target.file_path}~"),
    }
    _commit_deletes(table, folder, path, target, about, stored)


def delete_keys(table: Table, folder: Path, name: str, ids: Sequence[int]) -> None:
    """Delete the rows of these ids in region `a` by an equality delete file, as Flink's upserts do."""
    path = folder / "data" / f"{name}-deletes.parquet"
    schema = pa.schema([pa.field("id", pa.int64(), metadata={"PARQUET:field_id": "1"})])
    pq.write_table(pa.table({"id": ids}, schema), path)
    about: dict[str, Any] = {"content": int(DataFileContent.EQUALITY_DELETES), "equality_ids": [1]}
    about |= {"record_count": len(ids), "file_size_in_bytes": path.stat().st_size, "key_metadata": None}
    about |= {"lower_bounds": None, "upper_bounds": None}
    _commit_deletes(table, folder, path, _first_file(table), about)


def _first_file(table: Table) -> DataFile:
    """The first live data file, of region `a`."""
    snapshot = table.current_snapshot()
    assert snapshot is not None
    return min(
        (
            e.data_file
            for m in snapshot.manifests(table.io)
            for e in m.fetch_manifest_entry(table.io)
            if e.data_file.content is DataFileContent.DATA
        ),
        key=lambda file: (file.partition[0] or "~", file.file_path),
    )


def _commit_deletes(
    table: Table, folder: Path, path: Path, target: DataFile, about: Mapping[str, Any], stored: Schema | None = None
) -> None:
    """Commit a delete file in the partition of a data file."""
    snapshot = table.current_snapshot()
    assert snapshot is not None
    value = target.partition[0] if stored is None else target.partition[0].encode()
    entry = record(f"file://{path}", [value], **about)
    sequence, new = table.metadata.next_sequence_number(), table.metadata.new_snapshot_id()
    deletes = by_fastavro(folder / "metadata", table.spec(), stored or table.schema(), 2, [entry], (new, sequence))
    commit_manifests(table, new, [deletes, *snapshot.manifests(table.io)], path.stat().st_size)


def drop_delete_files(table: Table) -> None:
    """Commit a snapshot with the data manifests alone, so that rows of position delete files are back."""
    snapshot = table.current_snapshot()
    assert snapshot is not None
    data = [m for m in snapshot.manifests(table.io) if m.content is ManifestContent.DATA]
    commit_manifests(table, table.metadata.new_snapshot_id(), data, 0)


def commit_manifests(table: Table, snapshot_id: int, manifests: list[ManifestFile], size: int) -> None:
    """Commit a snapshot of these manifests to main."""
    sequence, parent = table.metadata.next_sequence_number(), _head(table)
    path = f"{table.location()}/metadata/snap-{snapshot_id}-0-deletes.avro"
    with write_manifest_list(2, table.io.new_output(path), snapshot_id, parent, sequence, "deflate") as writer:
        writer.add_manifests(manifests)
    snapshot = {
        "snapshot-id": snapshot_id,
        "parent-snapshot-id": parent,
        "sequence-number": sequence,
        "timestamp-ms": int(datetime.now(UTC).timestamp() * 1000),
        "manifest-list": path,
        "summary": Summary(Operation.DELETE, **_totals(table, size)),
        "schema-id": table.schema().schema_id,
    }
    main = {"ref-name": "main", "type": "branch", "snapshot-id": snapshot_id}
    updates = (AddSnapshotUpdate(snapshot=Snapshot.model_validate(snapshot)), SetSnapshotRefUpdate.model_validate(main))
    unmoved = AssertRefSnapshotId.model_validate({"ref": "main", "snapshot-id": parent})
    table.catalog.commit_table(table, (unmoved,), updates)
    table.refresh()


def _totals(table: Table, size: int) -> dict[str, str]:
    """What the summary says of the whole table, one delete file of one position more."""
    before = table.current_snapshot()
    assert before is not None
    assert before.summary is not None
    totals = {name: value for name, value in before.summary.additional_properties.items() if name.startswith("total-")}
    more = {"total-delete-files": 1, "total-position-deletes": 1, "total-files-size": size}
    return totals | {name: str(int(totals[name]) + count) for name, count in more.items()}


def _plant(workspace: Lakehouse) -> None:
    """Leave what failed writers leave: files of every kind that nothing names."""
    for name in (
        "data/region=a/lost.parquet",
        "data/lost.parquet",
        "metadata/lost-m0.avro",
        "metadata/snap-1-lost.avro",
    ):
        path = workspace.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"lost")
    lost = workspace.folder / "metadata" / "00003-lost.metadata.json"
    shutil.copy(workspace.metadata_file(), lost)
