"""Tables that share a place, in one catalog or in two: nothing of either may be deleted on behalf of the other."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, NoReturn, cast

import pytest

from icewright.app.demo.craft import Craft
from icewright.core.policy import Operation
from icewright.core.runs import OperationState
from icewright.core.table import Snapshot, TableMetadata, TableRef
from icewright.flow.breakers import record_failure
from icewright.flow.execute import execute
from icewright.flow.operation import Request
from icewright.ports.deadlines import CatalogCalls
from tests.cases.workspace import EXPIRE, NAME, ORPHANS, Workspace, ref

SPELLINGS: tuple[Callable[[Path], str], ...] = (
    lambda path: f"file://{path}",
    lambda path: f"file:{path}",
    str,
    lambda path: f"file://{path.parent.parent}//metadata//{path.name}",
)


@pytest.mark.cases(63, "T19")
@pytest.mark.parametrize("catalog", ["lake", "pond"])
def test_a_table_registered_twice_keeps_its_orphans(workspace: Workspace, catalog: str) -> None:
    """Whichever catalog holds the twin, never evaluated, and however it is spelt: refused with the twin's name."""
    folder = workspace.table()
    workspace.plant(folder, "data/orphan.parquet")
    for spelling in SPELLINGS:
        workspace.register("sales.twin", spelling(workspace.metadata_file()), catalog)
        workspace.refused(ORPHANS, f"{catalog}.sales.twin")
        workspace.refused(ORPHANS, f"lake.{NAME}", name="sales.twin", catalog=catalog)
        workspace.unregister("sales.twin", catalog)


@pytest.mark.cases(63, "T19")
@pytest.mark.parametrize("catalog", ["lake", "pond"])
def test_a_table_registered_twice_keeps_its_history(workspace: Workspace, catalog: str) -> None:
    """Expiry under one name would take the files that the other name still reads: refused with the twin's name."""
    workspace.table()
    workspace.register("sales.twin", f"file:{workspace.metadata_file()}", catalog)
    before = workspace.read("sales.twin", catalog)
    workspace.refused(EXPIRE, f"{catalog}.sales.twin")
    assert workspace.read("sales.twin", catalog) == before


@pytest.mark.cases(63, "T19")
@pytest.mark.parametrize("operation", [EXPIRE, ORPHANS])
@pytest.mark.parametrize("catalog", ["lake", "pond"])
def test_a_twin_whose_metadata_lies_elsewhere(workspace: Workspace, catalog: str, operation: Operation) -> None:
    """With write.metadata.path the twin's metadata is not below the location, and what it has written since is its."""
    craft = workspace.craft(write_metadata_path=f"file://{workspace.home}/journal")
    workspace.commits(craft, [400, 300, 200, 100])
    metadata = _moved(workspace, craft)
    for name, holder in ((NAME, "lake"), ("sales.twin", catalog)):
        workspace.register(name, f"file://{metadata}", holder)
    twin = workspace.icebergs[catalog].load_table(("sales", "twin"))
    twin.append(twin.scan().to_arrow())
    workspace.grow_old(workspace.home)
    before = workspace.read("sales.twin", catalog)
    workspace.refused(operation, f"{catalog}.sales.twin")
    assert workspace.read("sales.twin", catalog) == before


def _moved(workspace: Workspace, craft: Craft) -> Path:
    """The metadata file of a table, not registered yet, in a place of its own."""
    path = craft.publish(register=False)
    elsewhere = workspace.home / "journal" / path.name
    elsewhere.parent.mkdir()
    return path.rename(elsewhere)


@pytest.mark.cases(63)
@pytest.mark.parametrize("catalog", ["lake", "pond"])
def test_two_tables_in_one_place(workspace: Workspace, catalog: str) -> None:
    """Another table that was made in the same folder is named, whichever catalog has it, and loses no file."""
    workspace.table()
    workspace.table(salt="other", catalog="pond") if catalog == "pond" else _second(workspace)
    before = workspace.read("sales.orders" if catalog == "pond" else "sales.other", catalog)
    other = f"pond.{NAME}" if catalog == "pond" else "lake.sales.other"
    workspace.refused(ORPHANS, other, "move one of the tables to a place of its own; if", "icewright adopt")
    assert workspace.read(other.split(".", 1)[1], catalog) == before


def _second(workspace: Workspace) -> None:
    """A table of another uuid in the same folder and catalog."""
    craft = workspace.craft(salt="other")
    workspace.commits(craft, [50, 40])
    workspace.register("sales.other", f"file://{craft.publish(register=False)}")
    workspace.grow_old(craft.folder)


@pytest.mark.cases(64)
@pytest.mark.parametrize(("catalog", "inner"), [("lake", "orders/data"), ("pond", "orders/data"), ("pond", "orders")])
def test_nested_tables(workspace: Workspace, catalog: str, inner: str) -> None:
    """A table inside another one stops the cleaning of both, whichever catalog holds it, and each names the other."""
    folder = workspace.table()
    workspace.table("in.ner", catalog=catalog, place=f"warehouse/sales/{inner}")
    workspace.plant(folder, "data/orphan.parquet")
    before = workspace.read("in.ner", catalog)
    workspace.refused(ORPHANS, f"{catalog}.in.ner")
    workspace.refused(ORPHANS, f"lake.{NAME}", name="in.ner", catalog=catalog)
    assert workspace.read("in.ner", catalog) == before


@pytest.mark.cases(64, "T19")
@pytest.mark.parametrize("catalog", ["lake", "pond"])
def test_a_nested_table_whose_metadata_lies_elsewhere(workspace: Workspace, catalog: str) -> None:
    """A table inside, not evaluated yet, whose metadata folder is elsewhere: its files are no orphans of the outer."""
    folder = workspace.table()
    craft = workspace.craft("in.ner", catalog=catalog, place="warehouse/sales/orders")
    workspace.commits(craft, [50, 40])
    workspace.register("in.ner", f"file://{_moved(workspace, craft)}", catalog)
    workspace.grow_old(folder)
    workspace.refused(ORPHANS, f"{catalog}.in.ner")


@pytest.mark.cases(62, "T6")
def test_siblings_whose_names_begin_alike(workspace: Workspace) -> None:
    """`orders` is cleaned though `orders_archive` and `order` stand beside it, and nothing of these is touched."""
    folder = workspace.table()
    for name, catalog in (("sales.orders_archive", "lake"), ("sales.order", "pond")):
        workspace.plant(workspace.table(name, catalog=catalog, place="warehouse"), "data/orphan.parquet")
    workspace.removes(workspace.plant(folder, "data/orphan.parquet"))


@pytest.mark.cases(63)
def test_a_catalog_that_does_not_answer(workspace: Workspace) -> None:
    """While one catalog cannot say what it holds, nobody knows who shares the place: the run waits, nothing goes."""
    folder = workspace.table()
    workspace.plant(folder, "data/orphan.parquet")
    (workspace.home / "pond.db").rename(workspace.home / "pond.away")
    files = workspace.files()
    done = workspace.run(ORPHANS)
    (workspace.home / "pond.away").rename(workspace.home / "pond.db")
    assert done.state is OperationState.DEFERRED
    assert "pond" in done.reason
    assert workspace.files() == files


def narrow(workspace: Workspace, **places: str) -> None:
    """Declare that the tables of catalogs lie in these folders of the workspace."""
    engine: Any = workspace.app.runtime.engine
    engine.orphans.guard.registry.declared = {name: [f"file://{workspace.home}/{p}"] for name, p in places.items()}


@contextmanager
def away(workspace: Workspace) -> Iterator[None]:
    """The catalog `pond` does not answer."""
    database, elsewhere = workspace.home / "pond.db", workspace.home / "pond.away"
    database.rename(elsewhere)
    try:
        yield
    finally:
        elsewhere.rename(database)


def no_answer() -> NoReturn:
    """Nothing should ask this catalog."""
    raise AssertionError


@pytest.mark.cases(104, 113)
@pytest.mark.parametrize("operation", [EXPIRE, ORPHANS])
def test_a_catalog_that_is_away_and_elsewhere(workspace: Workspace, operation: Operation) -> None:
    """A catalog whose places cannot meet the table's is not missed; one whose table was ever seen there is."""
    folder = workspace.table()
    (orphan,) = workspace.plant(folder, "data/orphan.parquet")
    narrow(workspace, pond="pond")
    with away(workspace):
        done = workspace.run(operation)
    assert done.state is OperationState.COMMITTED
    assert orphan.exists() == (operation is EXPIRE)


@pytest.mark.cases(104, 113)
def test_a_catalog_that_is_away_and_once_had_a_table_there(workspace: Workspace) -> None:
    """What it was ever seen to have counts, whatever places its configuration declares."""
    folder = workspace.table()
    workspace.table("sales.guest", catalog="pond", place="warehouse/sales/orders/inner")
    workspace.plant(folder, "data/orphan.parquet")
    workspace.run(EXPIRE, name="sales.guest", catalog="pond")
    narrow(workspace, pond="pond")
    files = workspace.files()
    with away(workspace):
        assert workspace.run(ORPHANS).state is OperationState.DEFERRED
    assert workspace.files() == files


def test_a_catalog_that_is_known_to_be_down_is_not_asked(workspace: Workspace) -> None:
    """While its breaker is open a job does not wait for it again."""
    workspace.table()
    workspace.detect()
    runtime = workspace.runtime({"remove_orphans.mode": "delete", "deletion.delay_hours": 0})
    record_failure(runtime, "catalog pond", "", "it hangs")
    runtime.catalogs["pond"].pointers = no_answer  # type: ignore[method-assign]
    (done,) = execute(runtime, Request(ref(NAME), (ORPHANS,), manual=True)).outcomes
    assert done.state is OperationState.DEFERRED
    assert "pond" in done.reason
    assert "it hangs" in done.reason


@pytest.mark.cases(63, "T19")
def test_a_table_that_no_catalog_knows_any_more(workspace: Workspace) -> None:
    """Metadata of another uuid in the folder, registered nowhere, tells of a second table: refused with the file."""
    folder = workspace.table()
    document = json.loads(workspace.metadata_file().read_text()) | {
        "table-uuid": "0b5dc7d0-1ed4-4c34-9b58-77c2e5a8bd3a"
    }
    workspace.plant(folder, "data/orphan.parquet")
    workspace.plant(folder, "metadata/00001-x.metadata.json", content=json.dumps(document).encode())
    workspace.refused(ORPHANS, "00001-x.metadata.json", "0b5dc7d0")


@pytest.mark.cases(62)
@pytest.mark.parametrize(
    "location", ["hdfs://bucket/t/metadata/v1.metadata.json", "file:///nowhere/t/metadata/v1.json"]
)
def test_a_table_that_nobody_here_can_read_hinders_no_other(workspace: Workspace, location: str) -> None:
    """A neighbour on a storage that is not supported, or whose metadata is gone, lies where its metadata does."""
    folder = workspace.table()
    workspace.register("sales.remote", location)
    workspace.removes(workspace.plant(folder, "data/orphan.parquet"))


@pytest.mark.cases(115)
def test_a_table_whose_manifest_lists_hang_hinders_only_those_that_could_share_its_place(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its metadata is read, and then nothing returns: deletions elsewhere go on, those around it are refused."""
    folder, released = workspace.table(), threading.Event()
    workspace.table("sales.around")
    workspace.table("sales.hung", place="warehouse/sales/around/inner")
    engine: Any = workspace.app.runtime.engine
    registry = engine.orphans.guard.registry
    outside, read = type(registry.files).outside, CatalogCalls.read

    def briefly(calls: CatalogCalls, of: TableRef, reading: Callable[[], Any], limit: timedelta) -> Any:
        return read(calls, of, reading, timedelta(milliseconds=200) if of.name == "hung" else limit)

    def hanging(self: object, metadata: TableMetadata, snapshots: Sequence[Snapshot]) -> tuple[str, ...]:
        if metadata.ref.name == "hung":
            assert released.wait(20), "somebody waits for it"
        return outside(self, metadata, snapshots)  # type: ignore[no-any-return]

    monkeypatch.setattr(type(registry.files), "outside", hanging)
    monkeypatch.setattr(CatalogCalls, "read", briefly)
    try:
        workspace.removes(workspace.plant(folder, "data/orphan.parquet"))
        workspace.refused(ORPHANS, "sales.hung", "place of its own (", "not answer", name="sales.around")
    finally:
        released.set()


@pytest.mark.cases(115)
def test_a_place_that_hangs_is_not_waited_for_table_by_table(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After as many reads of the place as begin together hang, a deletion elsewhere waits for no further one."""
    folder, released, begun = workspace.table(), threading.Event(), []
    for number in range(40):
        workspace.register(f"sales.hung{number}", f"file://{workspace.home}/away/t{number}/metadata/v1.metadata.json")
    registry = cast("Any", workspace.app.runtime.engine).orphans.guard.registry
    load = type(registry.catalogs["lake"]).load

    def hanging(self: object, table: TableRef) -> TableMetadata:
        if table.name.startswith("hung"):
            begun.append(table.name)
            released.wait(20)
        return load(self, table)  # type: ignore[no-any-return]

    monkeypatch.setattr(type(registry.catalogs["lake"]), "load", hanging)
    monkeypatch.setattr("icewright.adapters.engines.service.registry._READ_LIMIT", timedelta(milliseconds=200))
    try:
        workspace.removes(workspace.plant(folder, "data/orphan.parquet"))
        assert len(begun) < 16
    finally:
        released.set()
