"""Where orphan removal stops because it cannot be sure, and what it promises of dry and second runs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from icewright.core.policy import Operation
from icewright.core.runs import OperationState
from tests.cases.workspace import EXPIRE, MANIFESTS, NAME, ORPHANS, SCHEMA, Workspace, edit

FOREIGN = (
    *("_delta_log/00000.json", "data/delta/_delta_log/0.json", "data/.hoodie/x", "a.lance/_versions/1.manifest"),
    *("events/snapshot/snapshot-1", "sink/_spark_metadata/0", "data/ducklake-019a.parquet"),
)


@pytest.mark.cases(65)
def test_datasets_of_other_formats(workspace: Workspace) -> None:
    """Datasets of other formats, and a stream's output, at the location or below it stop the run by their names."""
    folder = workspace.table()
    workspace.plant(folder, "data/orphan.parquet")
    for foreign in FOREIGN:
        (path,) = workspace.plant(folder, foreign)
        workspace.refused(ORPHANS, foreign.removesuffix("/00000.json"))  # a Delta log is known by its folder
        path.unlink()


def _deep(folder: Path) -> None:
    """Make folders so deep that no path can name the last one."""
    here = os.open(folder, os.O_RDONLY)
    for _ in range(20):
        os.mkdir("d" * 250, dir_fd=here)
        below = os.open("d" * 250, os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.close(here)


@pytest.mark.cases(69)
def test_a_folder_that_cannot_be_listed(workspace: Workspace) -> None:
    """One folder that fails ends the whole scan: nothing is deleted, not even what was listed before it."""
    folder = workspace.table()
    workspace.plant(folder, "data/orphan.parquet", "a/orphan.parquet", "z/orphan.parquet")
    files = workspace.files()
    _deep(folder / "data")
    done = workspace.run(ORPHANS)
    assert done.state is OperationState.DEFERRED  # a fault of the storage, not of the table
    assert "could not be listed" in done.reason
    assert all(path.exists() for path in files)


@pytest.mark.cases(70)
def test_the_share_of_orphans(workspace: Workspace) -> None:
    """Half of the files may be orphans, one more stops the run with the numbers and the way to look at them."""
    folder = workspace.table()
    live = len(workspace.files(folder))
    orphans = workspace.plant(folder, *(f"data/{number}.parquet" for number in range(live + 1)))
    workspace.refused(ORPHANS, f"{live + 1} of {2 * live + 1} files", "max_delete_ratio", "--dry-run")
    workspace.plant(folder, "data/0.parquet", days=0)
    workspace.removes(p for p in orphans if p.name != "0.parquet")


@pytest.mark.cases(70)
def test_a_table_that_nobody_has_committed_to(workspace: Workspace) -> None:
    """What its first writer left goes as of any table; no snapshot reaches a file, and the metadata file stays."""
    table = workspace.icebergs["lake"].create_table(NAME, SCHEMA)
    orphans = workspace.plant(workspace.home / "warehouse/sales/orders", "data/00000-0-lost.parquet")
    workspace.removes(orphans)
    assert workspace.icebergs["lake"].load_table(NAME).metadata_location == table.metadata_location


@pytest.mark.cases(70)
def test_no_live_file_in_the_location(workspace: Workspace) -> None:
    """When nothing that is listed is reached, as after a change of the location, the run stops, few files as it saw."""
    folder = workspace.table()
    empty = folder.with_name("new")
    edit(workspace.metadata_file(), lambda d: d.update({"location": f"file://{empty}"}))
    workspace.plant(empty, "data/orphan.parquet")
    workspace.refused(ORPHANS, "1 of 1 files")


@pytest.mark.cases(71)
def test_more_orphans_than_one_run_takes(workspace: Workspace) -> None:
    """As many go as the cap says, the note counts the rest, and the next run takes that."""
    folder = workspace.table()
    orphans = workspace.plant(folder, *(f"data/{number}.parquet" for number in range(600)))
    knobs = {"remove_orphans__max_delete_ratio": 1, "remove_orphans__max_files": 400}
    first = workspace.run(ORPHANS, **knobs)
    assert first.summary == "removed 400 orphan files"
    assert first.metrics["orphans_found"] == 600
    assert "200 more orphans wait for the next run" in first.notes
    assert sum(path.exists() for path in orphans) == 200
    assert workspace.run(ORPHANS, **knobs).summary == "removed 200 orphan files"
    workspace.removes([])


@pytest.mark.cases(72)
def test_gc_disabled(workspace: Workspace) -> None:
    """Under gc.enabled=false no operation deletes a file; manifests are rewritten, the old ones stay."""
    craft = workspace.craft(gc_enabled="false")
    workspace.commits(craft, [400, 300, 200], replacing=False)
    workspace.plant(workspace.publish(craft), "data/orphan.parquet")
    files, read = workspace.files(), workspace.read()
    states = {o.operation: (o.state, o.reason) for o in workspace.job(EXPIRE, ORPHANS, MANIFESTS).outcomes}
    blocked = (OperationState.SKIPPED, "gc.enabled is false on the table")
    assert states == {MANIFESTS: (OperationState.COMMITTED, ""), EXPIRE: blocked, ORPHANS: blocked}
    assert files <= workspace.files()
    assert read.items() <= workspace.read().items()


@pytest.mark.cases(73, 74, 93, "T17")
@pytest.mark.parametrize("operation", [EXPIRE, ORPHANS, MANIFESTS])
def test_a_dry_run_then_a_run_then_another(workspace: Workspace, operation: Operation) -> None:
    """A dry run changes nothing and lists what the run takes; the run after that has nothing to do, and says so."""
    craft = workspace.craft()
    workspace.commits(craft, [400, 300, 200, 100], replacing=operation == EXPIRE)
    workspace.plant(workspace.publish(craft), "data/orphan.parquet", "metadata/x-m0.avro")
    files, metadata = workspace.files(), workspace.metadata()
    result = workspace.run(operation, dry_run=True)
    assert (workspace.files(), workspace.metadata(), workspace.app.runtime.store.jobs.list()) == (files, metadata, [])
    done = workspace.run(operation)
    assert done.state is OperationState.COMMITTED, done
    assert result.files == done.files != ()
    if operation != MANIFESTS:
        assert {f.path for f in done.files} == {f"file://{p}" for p in files - workspace.files()}
    files, metadata = workspace.files(), workspace.metadata()
    again = workspace.run(operation)
    assert (again.files, workspace.files(), workspace.metadata()) == ((), files, metadata)
    assert again.state is (OperationState.COMMITTED if operation == ORPHANS else OperationState.SKIPPED)
    assert again.reason or again.summary == "removed 0 orphan files"
