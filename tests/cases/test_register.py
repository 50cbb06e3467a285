"""Tables that are registered from their files alone: nothing is guessed, and no second name of a table is made."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from pyiceberg.catalog.sql import SqlCatalog

from icewright.core.errors import IcewrightError, Refused, UsageError
from icewright.core.paths import local_path
from icewright.core.registering import RegisterResult
from icewright.flow.cycle import detect_and_evaluate
from icewright.flow.register import register
from tests.cases.conftest import ground, workspace
from tests.cases.test_copy import copy
from tests.cases.test_open_world import ROWS, quickly_located
from tests.cases.workspace import BY_PART, NAME, Workspace, edit, ref

pytestmark = pytest.mark.external  # makes a lakehouse or a store for each test

__all__ = ["ground", "workspace"]


def go(
    workspace: Workspace, place: Path | str, *, name: str = NAME, catalog: str = "lake", **how: bool
) -> RegisterResult:
    """Register a table from a folder or file."""
    return register(workspace.app.runtime, ref(name, catalog), f"file://{place}", **how)


def bare(workspace: Workspace) -> Path:
    """A table of three versions that no catalog names any more."""
    folder = workspace.table(spec=BY_PART)
    table = workspace.icebergs["lake"].load_table(NAME)
    table.append(table.scan().to_arrow())
    table.append(table.scan().to_arrow())
    return folder


def test_a_table_comes_back_from_a_bare_bucket(workspace: Workspace) -> None:
    """The dry run names the newest version and changes nothing; then all snapshots read as before."""
    folder = bare(workspace)
    rows, location = workspace.read(), workspace.metadata().metadata_location
    workspace.unregister(NAME)
    planned = go(workspace, folder, dry_run=True)
    assert (planned.metadata_location, planned.notes) == (location, ())
    with pytest.raises(IcewrightError):
        workspace.metadata()
    assert go(workspace, folder).metadata_location == location
    assert workspace.read() == rows


def test_the_newest_of_several_copies_is_registered(workspace: Workspace) -> None:
    """The folder of an incremental copy has the metadata files of all of them."""
    folder = bare(workspace)
    first = copy(workspace)
    table = workspace.icebergs["lake"].load_table(NAME)
    table.append(table.scan().to_arrow())
    second = copy(workspace)
    workspace.icebergs["pond"].create_namespace_if_not_exists("sales")
    result = go(workspace, workspace.home / "copy", catalog="pond")
    assert first.metadata_location != result.metadata_location == second.metadata_location
    assert workspace.read(catalog="pond") == workspace.read()
    assert workspace.metadata(catalog="pond").metadata_log == (first.metadata_location,)
    assert folder.exists()


def _registered(workspace: Workspace, folder: Path) -> None:
    workspace.register(NAME, f"file://{workspace.home}/elsewhere/00000-a.metadata.json")


def _by_another_name(workspace: Workspace, folder: Path) -> None:
    workspace.register("sales.other", f"file://{newest(folder)}")


def _in_another_catalog(workspace: Workspace, folder: Path) -> None:
    workspace.register("sales.other", f"file://{newest(folder)}", "pond")


def _a_race(workspace: Workspace, folder: Path) -> None:
    path = newest(folder)
    path.with_name(f"{path.name[:5]}-of-a-commit-that-lost.metadata.json").write_bytes(path.read_bytes())


def _a_lost_file(workspace: Workspace, folder: Path) -> None:
    max((folder / "data").rglob("*.parquet"), key=lambda path: path.stat().st_mtime_ns).unlink()


def _moved(workspace: Workspace, folder: Path) -> None:
    edit(newest(folder), lambda document: document.update(location=f"file://{workspace.home}/before"))


def _moved_and_named_there(workspace: Workspace, folder: Path) -> None:
    table = workspace.icebergs["lake"].register_table("sales.other", f"file://{newest(folder)}")
    quickly_located(table, workspace.home / "warehouse" / "there")
    with table.transaction() as transaction:
        transaction.set_properties({"write.metadata.previous-versions-max": "1"})
    for _ in range(2):
        table.append(ROWS)
    detect_and_evaluate(workspace.app.runtime, ["lake"], force=True)


def _copied_by_other_means(workspace: Workspace, folder: Path) -> None:
    path = newest(folder)
    away = f"file://{workspace.home}/before"
    edit(path, lambda d: d.update(location=away, properties={"write.data.path": f"file://{folder}/data"}))


def _with_one_of_another_table(workspace: Workspace, folder: Path) -> None:
    path = newest(folder)
    document = json.loads(path.read_text()) | {"table-uuid": str(uuid4()), "metadata-log": [], "last-updated-ms": 1}
    path.with_name("00000-other.metadata.json").write_text(json.dumps(document), encoding="utf-8")


def _broken(workspace: Workspace, folder: Path) -> None:
    newest(folder).with_name("00099-cut.metadata.json").write_text("{", encoding="utf-8")


def newest(folder: Path) -> Path:
    """The metadata file with the highest number."""
    return max(folder.rglob("*.metadata.json"))


_DOUBTFUL = (
    *(_registered, _by_another_name, _in_another_catalog, _moved_and_named_there),
    *(_a_race, _a_lost_file, _moved, _copied_by_other_means, _with_one_of_another_table, _broken),
)


@pytest.mark.parametrize("prepare", _DOUBTFUL)
def test_doubtful_tables_are_not_registered(workspace: Workspace, prepare: Callable[[Workspace, Path], None]) -> None:
    """A name that is taken, a table that has one, two newest versions, a file that is gone, paths that lead away."""
    folder = bare(workspace)
    workspace.unregister(NAME)
    prepare(workspace, folder)
    pointers = [catalog.pointers() for catalog in workspace.app.runtime.catalogs.values()]
    with pytest.raises(Refused):
        go(workspace, folder)
    assert [catalog.pointers() for catalog in workspace.app.runtime.catalogs.values()] == pointers


def _earlier_version(workspace: Workspace, path: Path) -> None:
    away = workspace.home / "away" / path.name
    away.parent.mkdir()
    log = json.loads(path.read_text())["metadata-log"]
    earlier = Path(local_path(log[-1]["metadata-file"]) or "").rename(away)
    edit(path, lambda d: d["metadata-log"][-1].update({"metadata-file": f"file://{earlier}"}))
    workspace.register("sales.other", f"file://{earlier}")


def _another_table(workspace: Workspace, path: Path) -> None:
    workspace.icebergs["lake"].create_table("sales.other", ROWS.schema, location=f"file://{path.parent.parent}")


@pytest.mark.parametrize("prepare", [_earlier_version, _another_table])
def test_no_second_name_of_what_was_never_evaluated(
    workspace: Workspace, prepare: Callable[[Workspace, Path], None]
) -> None:
    """A catalog names an earlier version, in another place, or another table in the same place."""
    path = newest(bare(workspace))
    workspace.unregister(NAME)
    prepare(workspace, path)
    with pytest.raises(Refused, match=r"is the place of lake\.sales\.other"):
        go(workspace, path)


def test_who_registers_at_the_same_time_is_told(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody else's table has the name by the end: the command does not say that it registered its own."""
    path = newest(bare(workspace))
    workspace.unregister(NAME)
    other = f"file://{newest(workspace.table('sales.other'))}"

    def register(*_: object, **__: object) -> None:
        workspace.register(NAME, other)

    monkeypatch.setattr(workspace.app.runtime.catalogs["lake"], "register", register)
    with pytest.raises(Refused, match="somebody else registered it"):
        go(workspace, path)


def test_a_person_names_the_file_where_it_is_not_certain(workspace: Workspace) -> None:
    """An earlier version too: what came after is not in the table."""
    folder = bare(workspace)
    first = workspace.metadata().metadata_log[-1]
    workspace.unregister(NAME)
    assert go(workspace, first.removeprefix("file://")).metadata_location == first
    assert len(workspace.read()["main"]) == 2
    assert folder.exists()


def test_a_lost_metadata_file_is_replaced_by_the_one_before(workspace: Workspace) -> None:
    """Only when a person says so, and never while the file is there or the name is of a table elsewhere."""
    folder = bare(workspace)
    before, log = workspace.metadata(), workspace.metadata().metadata_log
    with pytest.raises(Refused, match="exists already"):
        go(workspace, folder, replace_lost=True)
    newest(folder).unlink()
    planned = go(workspace, folder, dry_run=True)
    assert (planned.metadata_location, planned.replaced) == (log[-1], before.metadata_location)
    with pytest.raises(Refused, match="--replace-lost"):
        go(workspace, folder)
    done = go(workspace, folder, replace_lost=True)
    assert done.notes
    assert workspace.metadata().metadata_location == log[-1]
    assert len(workspace.read()["main"]) == 2
    table = workspace.icebergs["lake"].load_table(NAME)
    table.append(table.scan().to_arrow())
    assert len(workspace.read()["main"]) == 4


def test_a_lost_file_of_a_table_elsewhere_is_not_replaced(workspace: Workspace) -> None:
    """The name is another table's, beside this one: its entry stays, for whoever finds its file again."""
    folder = bare(workspace)
    workspace.unregister(NAME)
    lost = f"file://{folder.parent}/other/metadata/00000-a.metadata.json"
    workspace.register("sales.other", lost)
    with pytest.raises(Refused, match="exists already"):
        go(workspace, folder, name="sales.other", replace_lost=True)
    assert [pointer.metadata_location for pointer in workspace.app.runtime.catalogs["lake"].pointers()] == [lost]


def test_a_person_names_the_file_that_replaces_a_lost_one(workspace: Workspace) -> None:
    """It lies in the place of the lost one, as a folder would."""
    folder = bare(workspace)
    first = workspace.metadata().metadata_log[0]
    newest(folder).unlink()
    go(workspace, first.removeprefix("file://"), replace_lost=True)
    assert workspace.metadata().metadata_location == first


def test_a_table_comes_back_beside_another_of_its_former_name(workspace: Workspace) -> None:
    """Its name was given to a new table meanwhile, in a place of its own."""
    folder = bare(workspace)
    rows = workspace.read()
    detect_and_evaluate(workspace.app.runtime, ["lake"], force=True)
    workspace.unregister(NAME)
    workspace.icebergs["lake"].create_table(NAME, ROWS.schema, location=f"file://{workspace.home}/anew")
    go(workspace, folder, name="sales.back")
    assert workspace.read("sales.back") == rows


def test_a_fault_in_an_earlier_snapshot_is_told(workspace: Workspace) -> None:
    """What the current snapshot needs is there: the table is registered, and the note says to check it."""
    craft = workspace.craft()
    workspace.commits(craft, [400, 300])
    folder = workspace.publish(craft)
    min((folder / "data").rglob("*.parquet"), key=lambda path: path.stat().st_mtime_ns).unlink()
    workspace.unregister(NAME)
    assert go(workspace, folder).notes == ("1 fault in earlier snapshots: check the table",)
    assert workspace.metadata().snapshots


def test_a_table_with_its_metadata_elsewhere_is_registered(workspace: Workspace) -> None:
    """Its properties name that folder as its own."""
    elsewhere = workspace.home / "elsewhere"
    table = workspace.icebergs["lake"].create_table(
        NAME, ROWS.schema, properties={"write.metadata.path": f"file://{elsewhere}"}
    )
    table.append(ROWS)
    workspace.unregister(NAME)
    assert go(workspace, elsewhere).metadata_location.startswith(f"file://{elsewhere}/")
    assert len(workspace.read()["main"]) == 1


def test_a_catalog_that_takes_no_files_is_told(workspace: Workspace) -> None:
    """Of a plug-in that cannot register, the error says so before anything is read."""
    folder = bare(workspace)
    catalogs: dict[str, Any] = {**workspace.app.runtime.catalogs, "lake": object()}
    workspace.app = replace(workspace.app, runtime=replace(workspace.app.runtime, catalogs=catalogs))
    with pytest.raises(UsageError, match="takes no tables by their metadata files"):
        go(workspace, folder)


def test_a_name_without_namespace_is_told_by_the_dry_run(workspace: Workspace) -> None:
    """It says what the run would."""
    folder = bare(workspace)
    for dry_run in (True, False):
        with pytest.raises(Refused, match="no such namespace"):
            go(workspace, folder, name="nowhere.orders", dry_run=dry_run)


def test_a_crash_between_both_steps_of_a_replacement_is_taken_up(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The entry of the lost file is gone then, no file of the table, and the same command registers it."""
    folder = bare(workspace)
    log = workspace.metadata().metadata_log
    newest(folder).unlink()
    files = workspace.files(folder)

    def crash(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(SqlCatalog, "register_table", crash)
        with pytest.raises(KeyboardInterrupt):
            go(workspace, folder, replace_lost=True)
    assert workspace.files(folder) == files
    go(workspace, folder, replace_lost=True)
    assert workspace.metadata().metadata_location == log[-1]
