"""Orphans where `write.data.path` leads: scanned when the place is the table's own, told and left alone when not."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog

from icewright.app.bootstrap import pyiceberg_catalog_properties, read_config
from tests.cli.workspace import Workspace

pytestmark = pytest.mark.external  # makes a lakehouse or a store for each test

ROWS = pa.table({"id": pa.array(range(3), pa.int64())})
REMOVE = (
    "--op",
    "remove_orphans",
    "--json",
    "--files",
    "--set",
    "remove_orphans.mode=delete",
    "--set",
    "deletion.delay_hours=0",
)


@pytest.fixture
def catalog(workspace: Workspace) -> Iterator[SqlCatalog]:
    """The house's catalog for a writer."""
    made = SqlCatalog("lake", **pyiceberg_catalog_properties(read_config(workspace.path).catalogs["lake"]))
    made.create_namespace("sales")
    yield made
    made.close()


def table(workspace: Workspace, catalog: SqlCatalog, name: str, place: Path) -> None:
    """A table whose data files lie in `place`, old ones all of them, an orphan among them."""
    made = catalog.create_table(f"sales.{name}", ROWS.schema, properties={"write.data.path": f"file://{place}"})
    for _ in range(3):
        made.append(ROWS)
    (place / "orphan.parquet").write_bytes(b"x")
    then = time.time() - 9 * 86_400
    for path in [*place.rglob("*"), *(workspace.home / "warehouse" / "sales").rglob("*")]:
        os.utime(path, (then, then))


def removed(workspace: Workspace, name: str) -> tuple[list[str], str]:
    """The names of the files that a removal deleted, and its notes."""
    (operation,) = workspace("run", f"lake.sales.{name}", *REMOVE).json["operations"]
    notes = " ".join(note for note in operation["notes"] if not note.startswith("ledger"))
    return [Path(file["path"]).name for file in operation.get("files", [])], notes


@pytest.mark.cases(61)
def test_a_place_of_its_own_is_cleaned(workspace: Workspace, catalog: SqlCatalog) -> None:
    """Live files there are live, the orphan goes, and the table reads as before."""
    place = workspace.home / "warehouse" / "elsewhere" / "orders"
    table(workspace, catalog, "orders", place)
    assert removed(workspace, "orders") == (["orphan.parquet"], "")
    assert not (place / "orphan.parquet").exists()
    assert catalog.load_table("sales.orders").scan().to_arrow().num_rows == 9


@pytest.mark.cases(61)
@pytest.mark.parametrize("there", ["shared", "shared/nested", "."])
def test_a_place_that_another_table_writes_to(workspace: Workspace, catalog: SqlCatalog, there: str) -> None:
    """It is not scanned, whether the other table is maintained or not, and the run says whose it is."""
    shared = workspace.home / "warehouse" / "shared"
    table(workspace, catalog, "orders", shared)
    table(workspace, catalog, "others", shared.parent / "shared" / "nested" if there == "." else shared.parent / there)
    files, notes = removed(workspace, "orders")
    assert files == []
    assert "is not scanned: it overlaps the place" in notes
    assert "lake.sales.others" in notes
    assert (shared / "orphan.parquet").exists()


@pytest.mark.cases(61, 64)
def test_a_table_that_another_writes_into(workspace: Workspace, catalog: SqlCatalog) -> None:
    """A table whose own location holds another's data files is refused: they would look like orphans."""
    inside = workspace.home / "warehouse" / "sales" / "orders" / "data"
    table(workspace, catalog, "others", inside)
    made = catalog.create_table("sales.orders", ROWS.schema, location=f"file://{workspace.home}/warehouse/sales/orders")
    made.append(ROWS)
    (operation,) = workspace("run", "lake.sales.orders", *REMOVE).json["operations"]
    assert operation["state"] == "skipped"
    assert "lake.sales.others" in operation["reason"]
    assert (inside / "orphan.parquet").exists()


@pytest.mark.cases(61)
def test_a_place_outside_the_allowed_locations(workspace: Workspace, catalog: SqlCatalog) -> None:
    """Nothing is deleted outside them, so nothing is scanned there either."""
    place = workspace.home / "outside"
    table(workspace, catalog, "orders", place)
    files, notes = removed(workspace, "orders")
    assert files == []
    assert "is not scanned: it lies outside the allowed_locations of catalog lake" in notes
    assert (place / "orphan.parquet").exists()
