"""The archive's Iceberg tables: a batch is there once, whatever became of commits, replies and snapshots."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import date, timedelta
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table
from pyiceberg.transforms import DayTransform, IdentityTransform

from icewright.adapters.archive import IcebergArchive
from icewright.adapters.catalogs.bounded import load_bounded_catalog
from icewright.adapters.catalogs.rest import client
from icewright.adapters.catalogs.translate import sql_catalog
from icewright.core.errors import (
    CatalogUnavailable,
    CommitConflict,
    CommitStateUnknown,
    InvariantViolated,
    Refused,
    StorageUnavailable,
)
from icewright.ports import Batch
from icewright.ports.archive import BATCH_ID
from icewright.testing import NOW
from tests.integration.disks import full_disk

NAME = ("ops", "history", "events")


@pytest.fixture
def properties(tmp_path: Path) -> dict[str, str]:
    """A catalog in a file, with its warehouse."""
    where = {"uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": f"file://{tmp_path}/warehouse"}
    return sql_catalog("lake", where).pyiceberg_properties()


@pytest.fixture
def archive(properties: dict[str, str]) -> Iterator[IcebergArchive]:
    """An archive that has no tables yet."""
    made = opened(properties)
    yield made
    made.close()


@pytest.fixture
def catalog(properties: dict[str, str]) -> Iterator[SqlCatalog]:
    """Somebody else's client of the same catalog."""
    made = SqlCatalog("lake", **properties)
    yield made
    made.close()


def opened(properties: dict[str, str]) -> IcebergArchive:
    """One more archive over the same tables."""
    return IcebergArchive("lake", partial(load_bounded_catalog, "lake", properties), NAME[:-1])


def batch(name: str = "b1", rows: int = 3, planned: timedelta = timedelta(0)) -> Batch:
    """A batch of events."""
    return Batch(name, "events", rows, NOW + planned, written=False)


def rows(of: Batch, **columns: list[Any]) -> pa.Table:
    """Its rows: events of three days, nine hours apart."""
    numbers = list(range(of.rows))
    made = {
        "batch": pa.array([of.batch_id] * of.rows, pa.string()),
        "table_name": pa.array([None] * of.rows, pa.string()),
        "id": pa.array(numbers, pa.int64()),
        "at": pa.array([NOW + timedelta(hours=9 * n) for n in numbers], pa.timestamp("us", "UTC")),
        "details": pa.array(['{"ü": 1}'] * of.rows, pa.string()),
        "cost": pa.array([0.5] * of.rows, pa.float64()),
        "late": pa.array([True] * of.rows, pa.bool_()),
    }
    return pa.table(made | columns)


def there(catalog: SqlCatalog) -> list[tuple[str, int]]:
    """Batch and id of every row of the table."""
    found = catalog.load_table(NAME).scan().to_arrow()
    return sorted(zip(found["batch"].to_pylist(), found["id"].to_pylist(), strict=True))


def expire(table: Table, *names: str) -> None:
    """Drop the snapshots that batches of these names made."""
    gone = [s.snapshot_id for s in table.snapshots() if s.summary and s.summary.get(BATCH_ID) in names]
    assert len(gone) == len(names)
    table.maintenance.expire_snapshots().by_ids(gone).commit()


def test_a_table_is_made_when_it_is_missing(archive: IcebergArchive, catalog: SqlCatalog) -> None:
    """By day of its time, its columns typed and numbered, with every value that was given."""
    archive.write(batch(), rows(batch()))
    table = catalog.load_table(NAME)
    assert table.scan().to_arrow().sort_by("id").to_pylist() == rows(batch()).to_pylist()
    assert {f.name: (f.field_id, str(f.field_type)) for f in table.schema().fields}["at"] == (4, "timestamptz")
    assert [(f.name, f.source_id, f.transform) for f in table.spec().fields] == [("at_day", 4, DayTransform())]
    days = sorted(file["partition"]["at_day"] for file in table.inspect.files().to_pylist())
    assert days == [date(2026, 11, 21), date(2026, 11, 22)]
    assert table.properties["icewright.compact.min_input_files"] == "2"
    assert [s.summary.get(BATCH_ID) for s in table.snapshots() if s.summary] == ["b1"]


def test_a_batch_is_added_once(archive: IcebergArchive, catalog: SqlCatalog, properties: dict[str, str]) -> None:
    """Whoever writes it again finds it: the same process, or another that goes on after a crash."""
    other = opened(properties)
    for writer in (archive, archive, other):
        writer.write(batch(), rows(batch()))
        writer.write(batch("b2"), rows(batch("b2")))
    assert there(catalog) == [(name, n) for name in ("b1", "b2") for n in range(3)]
    other.close()


@pytest.mark.parametrize("gone", [("b1",), ("b2",), ("b1", "b2")])
@pytest.mark.parametrize("planned", [timedelta(0), timedelta(days=3650)], ids=["long ago", "after every snapshot"])
def test_expired_snapshots(
    archive: IcebergArchive, catalog: SqlCatalog, planned: timedelta, gone: tuple[str, ...]
) -> None:
    """Where the snapshot that made a batch may be gone, its rows tell; older ones than the plan need not be read."""
    for name in ("b1", "b2", "b3"):
        archive.write(batch(name), rows(batch(name)))
    expire(catalog.load_table(NAME), *gone)
    for name in ("b1", "b2") if not planned else ():
        archive.write(batch(name), rows(batch(name)))
    archive.write(batch("b4", planned=planned), rows(batch("b4")))
    assert there(catalog) == [(name, n) for name in ("b1", "b2", "b3", "b4") for n in range(3)]


def test_a_part_of_a_batch(archive: IcebergArchive, catalog: SqlCatalog) -> None:
    """Rows that somebody deleted from the archive before the store was pruned: nothing goes on."""
    for name in ("b1", "b2"):
        archive.write(batch(name), rows(batch(name)))
    table = catalog.load_table(NAME)
    table.delete("batch == 'b1' and id == 2")
    expire(table, "b1")
    with pytest.raises(InvariantViolated, match="has 2 of the 3 rows of batch b1"):
        archive.write(batch(), rows(batch()))


def test_somebody_else_commits_in_between(
    archive: IcebergArchive, catalog: SqlCatalog, properties: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that slept through its lease, and another that took the batch up: it is committed by one of them."""
    archive.write(batch("b0"), rows(batch("b0")))
    real, other = archive._files, opened(properties)

    def slowly(*arguments: Any) -> Any:
        files = real(*arguments)
        other.write(batch(), rows(batch()))
        return files

    monkeypatch.setattr(archive, "_files", slowly)
    with pytest.raises(CommitConflict, match=r"archive table lake\.ops\.history\.events: another writer committed"):
        archive.write(batch(), rows(batch()))
    archive.write(batch(), rows(batch()))
    assert there(catalog) == [(name, n) for name in ("b0", "b1") for n in range(3)]
    listed = catalog.load_table(NAME).inspect.files()["file_path"].to_pylist()
    on_disk = {f"file://{path}" for path in Path(properties["warehouse"].removeprefix("file://")).rglob("*.parquet")}
    assert on_disk == set(listed)
    other.close()


@pytest.mark.parametrize("landed", [True, False])
def test_a_reply_that_is_lost(
    archive: IcebergArchive, catalog: SqlCatalog, monkeypatch: pytest.MonkeyPatch, landed: bool
) -> None:
    """Nobody knows whether the commit landed, until the batch is written again."""
    archive.write(batch("b0"), rows(batch("b0")))
    real: Callable[..., Any] = archive._catalog().commit_table

    def losing(*arguments: Any) -> Any:
        if landed:
            real(*arguments)
        raise OSError("connection reset by peer\nand more")

    monkeypatch.setattr(archive._catalog(), "commit_table", losing)
    with pytest.raises(CommitStateUnknown, match=r"batch b1 is not known: OSError: connection reset by peer$"):
        archive.write(batch(), rows(batch()))
    monkeypatch.undo()
    archive.write(batch(), rows(batch()))
    assert there(catalog) == [(name, n) for name in ("b0", "b1") for n in range(3)]


def test_columns_come_and_go(archive: IcebergArchive, catalog: SqlCatalog) -> None:
    """A later version adds its columns to the table; what it has no more is empty from then on."""
    archive.write(batch("b1", 1), rows(batch("b1", 1)))
    archive.write(batch("b2", 1), rows(batch("b2", 1), fresh=["new"]).drop_columns(["cost"]))
    found = catalog.load_table(NAME).scan().to_arrow().sort_by("batch")
    assert found["fresh"].to_pylist() == [None, "new"]
    assert found["cost"].to_pylist() == [0.5, None]


def test_another_partitioning(archive: IcebergArchive, catalog: SqlCatalog) -> None:
    """An owner may let go of the partitions; another partitioning than by day is refused, and how to mend it said."""
    archive.write(batch("b1"), rows(batch("b1")))
    with catalog.load_table(NAME).update_spec() as spec:
        spec.remove_field("at_day")
    archive.write(batch("b2"), rows(batch("b2")))
    with catalog.load_table(NAME).update_spec() as spec:
        spec.add_field("table_name", IdentityTransform(), "table")
    with pytest.raises(
        Refused, match=r"lake\.ops\.history\.events is partitioned by .*: let it be day\(at\) or nothing"
    ):
        archive.write(batch("b3"), rows(batch("b3")))
    assert there(catalog) == [(name, n) for name in ("b1", "b2") for n in range(3)]


def test_somebody_elses_table(archive: IcebergArchive, catalog: SqlCatalog) -> None:
    """A table of the name that was there before stays as it is."""
    catalog.create_namespace("ops.history")
    table = catalog.create_table(NAME, pa.schema([("id", pa.int64())]))
    with pytest.raises(Refused, match=r"is another application's table: give archive\.namespace another name"):
        archive.write(batch(), rows(batch()))
    assert table.refresh().current_snapshot() is None
    assert [column.name for column in table.schema().fields] == ["id"]


def test_a_catalog_that_does_not_answer(tmp_path: Path) -> None:
    """The error names the table, and never the password."""
    where = {"uri": "postgresql://me:hush-4711@127.0.0.1:1/db", "warehouse": f"file://{tmp_path}"}
    away = opened(sql_catalog("lake", where).pyiceberg_properties())
    with pytest.raises(CatalogUnavailable, match=r"archive table lake\.ops\.history\.events cannot") as caught:
        away.write(batch(), rows(batch()))
    assert "hush-4711" not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_catalog_that_never_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The batch ends with the time of a request; PyIceberg's own client and the service's loop would wait for ever."""
    monkeypatch.setattr(client, "_SECONDS", (5.0, 0.1))
    with socket.create_server(("127.0.0.1", 0)) as server:
        properties = {"type": "rest", "uri": f"http://127.0.0.1:{server.getsockname()[1]}"}
        with pytest.raises(CatalogUnavailable, match=r"cannot be archived to: .*Read timed out"):
            opened(properties).write(batch(), rows(batch()))


def test_a_disk_without_room(tmp_path: Path) -> None:
    """Nothing of the batch stays on it, so that tries take no room; once there is room, the batch is there once."""
    where = {"uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": f"file://{tmp_path}/disk/warehouse"}
    properties = sql_catalog("lake", where).pyiceberg_properties()
    full, noise = opened(properties), Random(1)
    large = rows(batch(), details=["small", noise.randbytes(2_500_000).hex(), "small"])
    with full_disk(tmp_path / "disk", os.getpid()) as disk:
        full.write(batch("b0"), rows(batch("b0")))
        before = files(tmp_path / "disk")
        disk.fill()
        for _ in range(2):
            with pytest.raises(StorageUnavailable, match=rf"its files cannot be written: .*{disk.message}"):
                full.write(batch(), large)
            assert files(tmp_path / "disk") - before <= {tmp_path / "disk" / "filler"}
        disk.free()
        full.write(batch(), large)
        with closing(SqlCatalog("lake", **properties)) as catalog:
            assert there(catalog) == [(name, number) for name in ("b0", "b1") for number in range(3)]
    full.close()


def test_manifests_that_cannot_be_written_leave_no_data_files(
    archive: IcebergArchive, catalog: SqlCatalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk is full once the data are there: nothing was committed, and each try would leave as much again."""
    archive.write(batch("b0"), rows(batch("b0")))
    before = {file for file in files(tmp_path) if file.suffix == ".parquet"}

    def full(*_: Any, **__: Any) -> Any:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("pyiceberg.table.update.snapshot.write_manifest_list", full)
    with pytest.raises(StorageUnavailable, match=r"its manifests cannot be written: .*No space left on device"):
        archive.write(batch(), rows(batch()))
    assert {file for file in files(tmp_path) if file.suffix == ".parquet"} == before
    monkeypatch.undo()
    archive.write(batch(), rows(batch()))
    assert there(catalog) == [(name, n) for name in ("b0", "b1") for n in range(3)]


def files(folder: Path) -> set[Path]:
    """All files below a folder."""
    return {path for path in folder.rglob("*") if path.is_file()}
