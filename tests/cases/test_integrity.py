"""The check that every file of a table is there: planted faults are found and named, healthy tables have none."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from icewright.core.integrity import FileFaultKind, IntegrityReport
from tests.cases.conftest import ground, workspace
from tests.cases.workspace import BY_PART, NAME, Workspace, ref

pytestmark = pytest.mark.external  # makes a lakehouse or a store for each test

__all__ = ["ground", "workspace"]


def check(workspace: Workspace, name: str = NAME) -> IntegrityReport:
    """The report on a table."""
    return workspace.app.runtime.engine.check(ref(name))


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-7])


def _scrambled(path: Path) -> None:
    path.write_bytes(b"x" * path.stat().st_size)


FAULTS: dict[str, tuple[str, Callable[[Path], None], FileFaultKind, str]] = {
    "a data file is gone": ("data/**/*.parquet", Path.unlink, FileFaultKind.MISSING, "data"),
    "a data file is cut": ("data/**/*.parquet", _cut, FileFaultKind.WRONG_LENGTH, "data"),
    "a manifest is gone": ("metadata/*-m*.avro", Path.unlink, FileFaultKind.MISSING, "manifest"),
    "a manifest is cut": ("metadata/*-m*.avro", _cut, FileFaultKind.WRONG_LENGTH, "manifest"),
    "a manifest is scrambled": ("metadata/*-m*.avro", _scrambled, FileFaultKind.UNREADABLE, "manifest"),
    "a manifest list is gone": ("metadata/snap-*.avro", Path.unlink, FileFaultKind.MISSING, "manifest list"),
    "a manifest list is scrambled": ("metadata/snap-*.avro", _scrambled, FileFaultKind.UNREADABLE, "manifest list"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_named_with_the_snapshots_that_need_it(workspace: Workspace, fault: str) -> None:
    """The file, what is wrong with it, and whom it breaks; the rest of the table is checked all the same."""
    folder = workspace.table(spec=BY_PART)
    assert check(workspace).faults == ()
    pattern, harm, kind, file = FAULTS[fault]
    harmed = min(folder.glob(pattern))
    harm(harmed)
    report = check(workspace)
    (found,) = report.faults
    assert (found.kind, found.file, Path(found.path.removeprefix("file://"))) == (kind, file, harmed), found
    metadata = workspace.metadata()
    needing = set(found.snapshot_ids)
    assert needing
    if file == "manifest list":
        assert needing == {s.snapshot_id for s in metadata.snapshots if str(s.manifest_list).endswith(harmed.name)}


def test_every_file_of_every_snapshot_is_checked(workspace: Workspace) -> None:
    """The number of files is that of lists, manifests and data files; other files in the folder do not matter."""
    folder = workspace.table()
    (folder / "data" / "stranger.parquet").write_bytes(b"x")
    report = check(workspace)
    manifests = {m for s in workspace.metadata().snapshots for m in workspace.app.runtime.files.manifests(s)}
    assert report.faults == ()
    assert report.snapshots == len(workspace.metadata().snapshots)
    assert report.files == report.snapshots + len(manifests) + sum(m.live_files for m in manifests)


def test_files_outside_the_location_are_asked_for(workspace: Workspace) -> None:
    """A folder that is gone as a whole is no listing, and each of its files is missing."""
    folder = workspace.table()
    files = sorted((folder / "data").rglob("*.parquet"))
    for path in files:
        path.rename(workspace.home / path.name)
    assert {fault.kind for fault in check(workspace).faults} == {FileFaultKind.MISSING}
    assert len(check(workspace).faults) == len(files)
