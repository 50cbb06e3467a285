"""Tables whose data or metadata lie outside their location: these files are the table's, and not another one's."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from icewright.app.demo.craft import Craft
from icewright.app.demo.files import WrittenFile
from icewright.core.policy import Operation
from icewright.core.runs import OperationState
from icewright.flow.adopt import adopt
from tests.cases.test_open_world import ROWS
from tests.cases.workspace import EXPIRE, MANIFESTS, NAME, ORPHANS, Workspace, ref


def put(workspace: Workspace, craft: Craft, folder: Path, part: str = "a") -> WrittenFile:
    """Write a data file of the table into a folder of its own choice."""
    file = craft.data({"id": [1], "part": [part]})
    folder.mkdir(parents=True, exist_ok=True)
    path = workspace.age(file.path.rename(folder / file.path.name), 30)
    return WrittenFile(path, dict(file.record) | {"file_path": f"file://{path}"})


def elsewhere(workspace: Workspace, folder: Path) -> list[WrittenFile]:
    """Make a table whose files lie in folders below `folder`, each in place of the one before; return the files."""
    craft = workspace.craft(write_data_path=f"file://{folder}")
    files, last = [], None
    for days in (40, 30, 20, 10):
        files.append(put(workspace, craft, folder / f"days={days}"))
        last = craft.commit(workspace.clock.now() - timedelta(days=days), [files[-1]], replaced=last)
    workspace.publish(craft)
    return files


@pytest.mark.cases(61, "T6")
@pytest.mark.parametrize("name", ["data of orders", "sales/orders_data"])
def test_data_elsewhere_is_scanned_as_the_location_is(workspace: Workspace, name: str) -> None:
    """Live files in a write.data.path of the table's own stay, orphans go; a name that begins alike is no inside."""
    place = workspace.home / "warehouse" / name
    live = elsewhere(workspace, place)
    folder = workspace.home / "warehouse" / "sales" / "orders"
    workspace.removes([*workspace.plant(place, "orphan.parquet"), *workspace.plant(folder, "data/orphan.parquet")])
    assert all(f.path.exists() for f in live)


@pytest.mark.cases(61)
def test_an_expiry_deletes_what_lies_elsewhere(workspace: Workspace) -> None:
    """Files of expired snapshots go from write.data.path as from the location; the live one stays."""
    *expired, live = elsewhere(workspace, workspace.home / "warehouse" / "data of orders")
    before = workspace.files()
    done = workspace.run(EXPIRE)
    assert done.state is OperationState.COMMITTED, done
    assert {f.path for f in expired} == {p for p in before - workspace.files() if p.suffix == ".parquet"}
    assert live.path.exists()


@pytest.mark.cases(61)
def test_an_expiry_keeps_what_lies_outside_the_allowed_locations(workspace: Workspace, tmp_path: Path) -> None:
    """Nothing is deleted outside allowed_locations: the snapshots go, these files stay, and the note counts them."""
    expired = elsewhere(workspace, tmp_path / "private")
    done = workspace.run(EXPIRE)
    assert (done.state, done.metrics["snapshots_expired"]) == (OperationState.COMMITTED, 3), done
    assert all(f.path.exists() for f in expired)
    assert any("3 files" in note and "outside the allowed_locations" in note for note in done.notes)


@pytest.mark.cases(61)
def test_a_write_path_outside_the_allowed_locations_is_not_scanned(workspace: Workspace, tmp_path: Path) -> None:
    """Orphan removal lists no folder in which nothing may be deleted, and a note names the folder."""
    elsewhere(workspace, tmp_path / "private")
    (orphan,) = workspace.plant(tmp_path / "private", "orphan.parquet")
    done = workspace.run(ORPHANS)
    assert orphan.exists()
    assert any(f"{tmp_path}/private is not scanned: it lies outside the allowed" in note for note in done.notes), done


@pytest.mark.cases(61, 63)
@pytest.mark.parametrize("catalog", ["lake", "pond"])
def test_data_of_another_table_in_the_location(workspace: Workspace, catalog: str) -> None:
    """Another table's write.data.path leads into this one's location: its live files are no orphans here."""
    folder = workspace.table()
    guest = workspace.craft("sales.guest", catalog=catalog, write_data_path=f"file://{folder}/data/guest")
    guest.commit(workspace.clock.now() - timedelta(days=9), [put(workspace, guest, folder / "data" / "guest")])
    workspace.publish(guest)
    workspace.plant(folder, "data/orphan.parquet")
    before = workspace.read("sales.guest", catalog)
    workspace.refused(ORPHANS, f"{catalog}.sales.guest")
    assert workspace.read("sales.guest", catalog) == before


@pytest.mark.cases(61)
def test_an_object_store_layout(workspace: Workspace) -> None:
    """Data in hashed folders below the location is live there, and an orphan in such a folder goes."""
    craft = workspace.craft(write_object__storage_enabled="true")
    folder = craft.folder / "data" / "0101" / "1100" / "1010" / "11010001"
    craft.commit(workspace.clock.now(), [put(workspace, craft, folder)])
    workspace.publish(craft)
    workspace.removes(workspace.plant(folder, "orphan.parquet"))


@pytest.mark.cases(61, "T10")
@pytest.mark.parametrize("operation", [MANIFESTS, EXPIRE])
def test_new_metadata_goes_where_the_table_wants_it(workspace: Workspace, operation: Operation) -> None:
    """Under write.metadata.path every file that a commit of ours writes lies there, manifest lists too."""
    place = workspace.home / "warehouse" / "metadata of orders"
    craft = workspace.craft(write_metadata_path=f"file://{place}")
    workspace.commits(craft, [400, 300, 200], replacing=False)
    workspace.publish(craft)
    before = workspace.files()
    done = workspace.run(operation)
    assert done.state is OperationState.COMMITTED, done
    written = workspace.files() - before
    assert {path.parent for path in written} == {place}, sorted(written)
    assert {r for rows in workspace.read().values() for r in rows} == {
        str({"id": n, "part": f"p{n}"}) for n in range(3)
    }


def test_tables_whose_metadata_lies_in_one_folder(workspace: Workspace) -> None:
    """Each leaves the metadata of the other alone, which hinders no scan of its own location."""
    for name in (NAME, "sales.other"):
        paths = {"data": f"{name} data", "metadata": "metadata of all"}
        properties = {f"write.{kind}.path": f"file://{workspace.home}/{folder}" for kind, folder in paths.items()}
        table = workspace.icebergs["lake"].create_table(name, ROWS.schema, properties=properties)
        table.append(ROWS)
    orphans = workspace.plant(workspace.home / "sales.other data", "orphan.parquet")
    orphans |= workspace.plant(workspace.home / "warehouse/sales/other", "data/orphan.parquet")
    done = workspace.removes(orphans, name="sales.other", remove_orphans__max_delete_ratio=1)
    assert any("metadata of all is not scanned: it overlaps the place of lake.sales.orders" in n for n in done.notes)


def test_a_table_all_of_whose_files_lie_elsewhere(workspace: Workspace) -> None:
    """Nothing was ever written to its location, which is told; its write path is scanned, and it can be adopted."""
    paths = {f"write.{kind}.path": f"file://{workspace.home}/{kind}" for kind in ("data", "metadata")}
    table = workspace.icebergs["lake"].create_table(NAME, ROWS.schema, properties=paths)
    table.append(ROWS)
    adopt(workspace.app.runtime, ref(NAME))
    done = workspace.removes(workspace.plant(workspace.home / "data", "orphan.parquet"))
    assert f"{table.location()} is not scanned: there is no such folder" in done.notes
