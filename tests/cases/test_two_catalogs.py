"""Tables that share a place, in one catalog or in two: nothing of either may be deleted on behalf of the other."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from icewright.app.demo.craft import Craft
from icewright.core.policy import Operation
from icewright.core.runs import OperationState
from tests.cases.house import EXPIRE, NAME, ORPHANS, House

SPELLINGS: tuple[Callable[[Path], str], ...] = (
    lambda path: f"file://{path}",
    lambda path: f"file:{path}",
    str,
    lambda path: f"file://{path.parent.parent}//metadata//{path.name}",
)


@pytest.mark.cases(63, "T19")
@pytest.mark.parametrize("catalog", ["lake", "pond"])
def test_a_table_registered_twice_keeps_its_orphans(house: House, catalog: str) -> None:
    """Whichever catalog holds the twin, never evaluated, and however it is spelt: refused with the twin's name."""
    folder = house.table()
    house.plant(folder, "data/orphan.parquet")
    for spelling in SPELLINGS:
        house.register("sales.twin", spelling(house.metadata_file()), catalog)
        house.refused(ORPHANS, f"{catalog}.sales.twin")
        house.refused(ORPHANS, f"lake.{NAME}", name="sales.twin", catalog=catalog)
        house.unregister("sales.twin", catalog)


@pytest.mark.cases(63, "T19")
@pytest.mark.parametrize("catalog", ["lake", "pond"])
def test_a_table_registered_twice_keeps_its_history(house: House, catalog: str) -> None:
    """Expiry under one name would take the files that the other name still reads: refused with the twin's name."""
    house.table()
    house.register("sales.twin", f"file:{house.metadata_file()}", catalog)
    before = house.read("sales.twin", catalog)
    house.refused(EXPIRE, f"{catalog}.sales.twin")
    assert house.read("sales.twin", catalog) == before


@pytest.mark.cases(63, "T19")
@pytest.mark.parametrize("operation", [EXPIRE, ORPHANS])
@pytest.mark.parametrize("catalog", ["lake", "pond"])
def test_a_twin_whose_metadata_lies_elsewhere(house: House, catalog: str, operation: Operation) -> None:
    """With write.metadata.path the twin's metadata is not below the location, and what it has written since is its."""
    craft = house.craft(write_metadata_path=f"file://{house.home}/journal")
    house.commits(craft, [400, 300, 200, 100])
    metadata = _moved(house, craft)
    for name, holder in ((NAME, "lake"), ("sales.twin", catalog)):
        house.register(name, f"file://{metadata}", holder)
    twin = house.icebergs[catalog].load_table(("sales", "twin"))
    twin.append(twin.scan().to_arrow())
    house.grow_old(house.home)
    before = house.read("sales.twin", catalog)
    house.refused(operation, f"{catalog}.sales.twin")
    assert house.read("sales.twin", catalog) == before


def _moved(house: House, craft: Craft) -> Path:
    """The metadata file of a table, not registered yet, in a place of its own."""
    path = craft.publish(register=False)
    elsewhere = house.home / "journal" / path.name
    elsewhere.parent.mkdir()
    return path.rename(elsewhere)


@pytest.mark.cases(63)
@pytest.mark.parametrize("catalog", ["lake", "pond"])
def test_two_tables_in_one_place(house: House, catalog: str) -> None:
    """Another table that was made in the same folder is named, whichever catalog has it, and loses no file."""
    house.table()
    house.table(salt="other", catalog="pond") if catalog == "pond" else _second(house)
    before = house.read("sales.orders" if catalog == "pond" else "sales.other", catalog)
    other = f"pond.{NAME}" if catalog == "pond" else "lake.sales.other"
    house.refused(ORPHANS, other)
    assert house.read(other.split(".", 1)[1], catalog) == before


def _second(house: House) -> None:
    """A table of another uuid in the same folder and catalog."""
    craft = house.craft(salt="other")
    house.commits(craft, [50, 40])
    house.register("sales.other", f"file://{craft.publish(register=False)}")
    house.grow_old(craft.folder)


@pytest.mark.cases(64)
@pytest.mark.parametrize(("catalog", "inner"), [("lake", "orders/data"), ("pond", "orders/data"), ("pond", "orders")])
def test_nested_tables(house: House, catalog: str, inner: str) -> None:
    """A table inside another one stops the cleaning of both, whichever catalog holds it, and each names the other."""
    folder = house.table()
    house.table("in.ner", catalog=catalog, place=f"warehouse/sales/{inner}")
    house.plant(folder, "data/orphan.parquet")
    before = house.read("in.ner", catalog)
    house.refused(ORPHANS, f"{catalog}.in.ner")
    house.refused(ORPHANS, f"lake.{NAME}", name="in.ner", catalog=catalog)
    assert house.read("in.ner", catalog) == before


@pytest.mark.cases(64, "T19")
@pytest.mark.parametrize("catalog", ["lake", "pond"])
def test_a_nested_table_whose_metadata_lies_elsewhere(house: House, catalog: str) -> None:
    """A table inside, not evaluated yet, whose metadata folder is elsewhere: its files are no orphans of the outer."""
    folder = house.table()
    craft = house.craft("in.ner", catalog=catalog, place="warehouse/sales/orders")
    house.commits(craft, [50, 40])
    house.register("in.ner", f"file://{_moved(house, craft)}", catalog)
    house.grow_old(folder)
    house.refused(ORPHANS, f"{catalog}.in.ner")


@pytest.mark.cases(62, "T6")
def test_siblings_whose_names_begin_alike(house: House) -> None:
    """`orders` is cleaned though `orders_archive` and `order` stand beside it, and nothing of these is touched."""
    folder = house.table()
    for name, catalog in (("sales.orders_archive", "lake"), ("sales.order", "pond")):
        house.plant(house.table(name, catalog=catalog, place="warehouse"), "data/orphan.parquet")
    house.removes(house.plant(folder, "data/orphan.parquet"))


@pytest.mark.cases(63)
def test_a_catalog_that_does_not_answer(house: House) -> None:
    """While one catalog cannot say what it holds, nobody knows who shares the place: the run fails, nothing goes."""
    folder = house.table()
    house.plant(folder, "data/orphan.parquet")
    (house.home / "pond.db").rename(house.home / "pond.away")
    files = house.files()
    done = house.run(ORPHANS)
    (house.home / "pond.away").rename(house.home / "pond.db")
    assert done.state is OperationState.FAILED
    assert "pond" in done.reason
    assert house.files() == files


@pytest.mark.cases(63, "T19")
def test_a_table_that_no_catalog_knows_any_more(house: House) -> None:
    """Metadata of another uuid in the folder, registered nowhere, tells of a second table: refused with the file."""
    folder = house.table()
    document = json.loads(house.metadata_file().read_text()) | {"table-uuid": "0b5dc7d0-1ed4-4c34-9b58-77c2e5a8bd3a"}
    house.plant(folder, "data/orphan.parquet")
    house.plant(folder, "metadata/00001-x.metadata.json", content=json.dumps(document).encode())
    house.refused(ORPHANS, "00001-x.metadata.json", "0b5dc7d0")


@pytest.mark.cases(62)
@pytest.mark.parametrize(
    "location", ["hdfs://bucket/t/metadata/v1.metadata.json", "file:///nowhere/t/metadata/v1.json"]
)
def test_a_table_that_nobody_here_can_read_hinders_no_other(house: House, location: str) -> None:
    """A neighbour on a storage that is not supported, or whose metadata is gone, lies where its metadata does."""
    folder = house.table()
    house.register("sales.remote", location)
    house.removes(house.plant(folder, "data/orphan.parquet"))
