"""Mode `confirm`: only what two scans, far enough apart, both found to be an orphan is deleted."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path

import pytest

from icewright.core.runs import OperationState, Outcome
from tests.cases.workspace import NAME, ORPHANS, Workspace, ref

CONFIRM = {"remove_orphans__mode": "confirm", "remove_orphans__confirm_hours": 24}


def scan(workspace: Workspace, *, found: int, removed: int, mode: str = "confirm", dry_run: bool = False) -> Outcome:
    """One scan, which must find and remove so many files."""
    done = workspace.run(ORPHANS, dry_run=dry_run, **CONFIRM | {"remove_orphans__mode": mode})
    assert done.state is OperationState.COMMITTED, done
    assert (done.metrics["orphans_found"], done.metrics["orphans_removed"]) == (found, removed), done
    return done


def _found(workspace: Workspace) -> Iterable[str]:
    table_uuid = workspace.app.runtime.catalogs["lake"].load(ref(NAME)).table_uuid
    return workspace.app.runtime.store.ledger.found_orphans(ref(NAME), table_uuid)


def findings(workspace: Workspace) -> set[str]:
    """The names of the files that wait for their confirmation."""
    return {path.rpartition("/")[2] for path in _found(workspace)}


@pytest.mark.cases(73)
def test_the_second_scan_deletes(workspace: Workspace) -> None:
    """Within confirm_hours nothing goes, at confirm_hours what both scans found goes, and a later find waits itself."""
    folder = workspace.table()
    (first,) = workspace.plant(folder, "data/first.parquet")
    assert scan(workspace, found=1, removed=0).summary == "removed 0 orphan files, 1 wait for a second scan"
    workspace.clock.advance(hours=23, minutes=59)
    (second,) = workspace.plant(folder, "data/second.parquet")
    scan(workspace, found=2, removed=0)
    workspace.clock.advance(minutes=1)
    said = scan(workspace, found=2, removed=1, dry_run=True)
    assert [f.path for f in said.files] == [f"file://{first}"]
    assert first.exists()
    assert scan(workspace, found=2, removed=1).files == said.files
    assert (first.exists(), second.exists(), findings(workspace)) == (False, True, {"second.parquet"})
    workspace.clock.advance(hours=24)
    scan(workspace, found=1, removed=1)
    assert findings(workspace) == set()


def test_a_dry_run_is_no_first_scan(workspace: Workspace) -> None:
    """What a dry run saw is not written down, so that the scan after it is the first."""
    workspace.plant(workspace.table(), "data/orphan.parquet")
    scan(workspace, found=1, removed=0, dry_run=True)
    workspace.clock.advance(hours=48)
    scan(workspace, found=1, removed=0)


def test_a_report_is_a_first_scan(workspace: Workspace) -> None:
    """What mode report has listed long enough ago needs one more scan only."""
    workspace.plant(workspace.table(), "data/orphan.parquet")
    scan(workspace, found=1, removed=0, mode="report")
    workspace.clock.advance(hours=24)
    scan(workspace, found=1, removed=1)


def _commit(workspace: Workspace, path: Path) -> None:
    workspace.icebergs["lake"].load_table(("sales", "orders")).add_files([f"file://{path}"])


def _uncommit(workspace: Workspace) -> None:
    """Take the table back to the snapshot before, and the newer one out of it."""
    table = workspace.icebergs["lake"].load_table(("sales", "orders"))
    head = table.current_snapshot()
    assert head is not None
    assert head.parent_snapshot_id is not None
    table.manage_snapshots().rollback_to_snapshot(head.parent_snapshot_id).commit()
    table.maintenance.expire_snapshots().by_id(head.snapshot_id).commit()


@pytest.mark.cases(67)
def test_an_orphan_that_is_reached_in_the_meantime(workspace: Workspace) -> None:
    """A slow writer commits the found file: it stays and its finding is dropped; set free again, it waits anew."""
    craft = workspace.craft()
    workspace.commits(craft, [400, 100])
    late = craft.data({"id": [7], "part": ["late"]}).path
    folder = workspace.publish(craft)
    scan(workspace, found=1, removed=0)
    _commit(workspace, late)
    workspace.clock.advance(hours=48)
    scan(workspace, found=0, removed=0)
    assert (late.exists(), findings(workspace)) == (True, set())
    _uncommit(workspace)
    workspace.grow_old(folder / "data")
    scan(workspace, found=1, removed=0)
    assert late.exists()
    workspace.clock.advance(hours=24)
    scan(workspace, found=1, removed=1)
    assert not late.exists()


@pytest.mark.cases(66)
def test_an_orphan_that_is_written_anew(workspace: Workspace) -> None:
    """A writer's second attempt under the found name is young, so it stays, and its age counts from then on."""
    folder = workspace.table()
    (orphan,) = workspace.plant(folder, "data/orphan.parquet")
    scan(workspace, found=1, removed=0)
    workspace.clock.advance(hours=48)
    workspace.plant(folder, "data/orphan.parquet", days=1)
    scan(workspace, found=0, removed=0)
    workspace.clock.advance(hours=49)
    scan(workspace, found=1, removed=0)
    workspace.clock.advance(hours=24)
    scan(workspace, found=1, removed=1)
    assert not orphan.exists()


@pytest.mark.cases(82)
def test_findings_of_an_earlier_table_of_the_name(workspace: Workspace) -> None:
    """A table that was dropped and made anew in the same place confirms nothing of what was found before."""
    folder = workspace.table()
    workspace.plant(folder, "data/orphan.parquet")
    scan(workspace, found=1, removed=0)
    workspace.unregister(NAME)
    shutil.rmtree(folder)
    workspace.table(salt="anew")
    workspace.plant(folder, "data/orphan.parquet")
    workspace.clock.advance(hours=48)
    scan(workspace, found=1, removed=0)
