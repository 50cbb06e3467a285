"""Tables that are registered from their files alone: nothing is guessed, and no second name of a table is made."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from pyiceberg.catalog.sql import SqlCatalog

from icewright.core.errors import IcewrightError, Refused
from icewright.core.registering import RegisterResult
from icewright.flow.register import register
from tests.cases.conftest import ground, workspace
from tests.cases.test_copy import copy
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


def newest(folder: Path) -> Path:
    """The metadata file with the highest number."""
    return max(folder.rglob("*.metadata.json"))


@pytest.mark.parametrize("prepare", [_registered, _by_another_name, _in_another_catalog, _a_race, _a_lost_file, _moved])
def test_doubtful_tables_are_not_registered(workspace: Workspace, prepare: Callable[[Workspace, Path], None]) -> None:
    """A name that is taken, a table that has one, two newest versions, a file that is gone, paths that lead away."""
    folder = bare(workspace)
    workspace.unregister(NAME)
    prepare(workspace, folder)
    pointers = [catalog.pointers() for catalog in workspace.app.runtime.catalogs.values()]
    with pytest.raises(Refused):
        go(workspace, folder)
    assert [catalog.pointers() for catalog in workspace.app.runtime.catalogs.values()] == pointers


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
