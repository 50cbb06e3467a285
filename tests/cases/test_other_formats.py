"""Tables of other formats: one that shares its files with a table of Iceberg, and those that a metastore lists."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from icewright.adapters.catalogs.sql import SqlCatalog
from icewright.adapters.engines.service.deletion import JobDeletion
from icewright.adapters.engines.service.other_formats import markers_of_other_formats
from icewright.adapters.files.local import LocalStorage
from icewright.core.policy import Operation
from icewright.core.runs import OperationState
from icewright.core.table import TableRef
from icewright.flow.adopt import adopt
from icewright.flow.reconcile import reconcile_interrupted
from icewright.ports import Dataset
from icewright.testing import metadata
from tests.cases.test_open_world import ROWS, crash, later
from tests.cases.workspace import EXPIRE, MANIFESTS, NAME, ORPHANS, Workspace, ref

MARKERS = {
    "_delta_log/_last_checkpoint": "Delta Lake",
    "_delta_log/00000000000000000000.json": "Delta Lake",
    "_delta_log/00000000000000000007.checkpoint.parquet": "Delta Lake",
    ".hoodie/hoodie.properties": "Apache Hudi",
    "schema/schema-0": "Apache Paimon",
    "snapshot/LATEST": "Apache Paimon",
}
HIVE = TableRef("lake", ("raw",), "events")


def lists(monkeypatch: pytest.MonkeyPatch, *folders: Path) -> None:
    """Let each catalog list one more table, of Hive, as a metastore does."""

    def listing(self: SqlCatalog) -> Any:
        return self.pointers(), [Dataset(HIVE, tuple(f"file://{folder}" for folder in folders))]

    monkeypatch.setattr(SqlCatalog, "listing", listing, raising=False)


@pytest.mark.parametrize(("marker", "name"), MARKERS.items())
@pytest.mark.parametrize("operation", [EXPIRE, ORPHANS, MANIFESTS])
def test_a_table_that_another_format_maintains_is_left_alone(
    workspace: Workspace, operation: Operation, marker: str, name: str
) -> None:
    """No operation commits to it or deletes of it, as the other format's log names the files; a dry run says so too."""
    workspace.plant(workspace.table(), marker)
    before = workspace.metadata()
    adopt_it = f"`icewright adopt {ref(NAME)}`"
    workspace.refused(operation, marker.partition("/")[0], f"a table of {name} ", adopt_it, "[other_format]")
    assert workspace.metadata() == before


def test_a_log_without_its_first_version_is_one_marker(tmp_path: Path) -> None:
    """Delta Lake cleans old versions away: a person adopts the log, and not its files one by one."""
    (tmp_path / "_delta_log").mkdir()
    assert markers_of_other_formats(LocalStorage(), metadata(location=f"file://{tmp_path}")) == {}
    for number in (7, 8):
        (tmp_path / "_delta_log" / f"{number:020}.json").touch()
    found = markers_of_other_formats(LocalStorage(), metadata(location=f"file://{tmp_path}"))
    assert found == {f"file://{tmp_path}/_delta_log": "Delta Lake"}


@pytest.mark.parametrize("end", ["", "/"])
def test_the_marker_lies_at_the_location(tmp_path: Path, end: str) -> None:
    """Whatever letter the folder's name ends with, and whether or not a slash follows."""
    (tmp_path / "INDEX" / "snapshot").mkdir(parents=True)
    (tmp_path / "INDEX" / "snapshot" / "LATEST").touch()
    found = markers_of_other_formats(LocalStorage(), metadata(location=f"file://{tmp_path}/INDEX{end}"))
    assert found == {f"file://{tmp_path}/INDEX/snapshot/LATEST": "Apache Paimon"}


def test_what_is_left_of_a_converted_table_is_adopted(workspace: Workspace) -> None:
    """A person says that nobody uses the old log any more, and expiry goes on; another format's log is refused anew."""
    folder = workspace.table()
    (marker,) = workspace.plant(folder, "_delta_log/_last_checkpoint")
    workspace.detect()
    assert adopt(workspace.app.runtime, ref(NAME)).files == (f"file://{marker}",)
    assert workspace.run(EXPIRE).metrics["snapshots_expired"] == 3
    assert marker.exists()
    workspace.plant(folder, ".hoodie/hoodie.properties")
    workspace.refused(MANIFESTS, "Hudi")


@pytest.mark.parametrize("operation", [EXPIRE, ORPHANS])
@pytest.mark.parametrize("how", ["below", "same", "above"])
def test_the_folder_of_a_hive_table_is_shared(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch, operation: Operation, how: str
) -> None:
    """Its engine reads whatever lies in its folder: nothing of it is deleted, and the reason names the table."""
    folder = workspace.table()
    (orphan,) = workspace.plant(folder, "data/orphan.parquet")
    place = {"below": folder / "data", "same": folder, "above": folder.parent}[how]
    lists(monkeypatch, place)
    data = workspace.files(folder / "data")
    outcome = workspace.run(operation)
    assert operation is not ORPHANS or "its engine reads all files there" in outcome.reason
    may_read = "may read them; if that one is gone for good, `icewright adopt"
    because = {"below": "they lie in the place of lake.raw.events"}.get(how, may_read)
    assert operation is not EXPIRE or any(because in note and "lake.raw.events" in note for note in outcome.notes)
    assert "lake.raw.events" in " ".join((outcome.reason, *outcome.notes)), outcome
    assert workspace.files(folder / "data") == data
    assert orphan.exists()


def test_a_hive_table_elsewhere_stops_nothing(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder whose name begins alike is another folder."""
    folder = workspace.table()
    lists(monkeypatch, folder.with_name("orders_archive"), workspace.home / "raw")
    workspace.removes(workspace.plant(folder, "data/orphan.parquet"))


def test_a_hive_table_that_nobody_reads_is_adopted(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    """A person says that the entry is dead; one with other folders is refused anew."""
    folder = workspace.table()
    lists(monkeypatch, folder)
    orphans = workspace.plant(folder, "data/orphan.parquet")
    workspace.refused(ORPHANS, "lake.raw.events", "adopt")
    (taken,) = adopt(workspace.app.runtime, ref(NAME)).tables
    assert "lake.raw.events" in taken
    lists(monkeypatch, folder / "data")
    workspace.refused(ORPHANS, "lake.raw.events")
    lists(monkeypatch, folder)
    workspace.removes(orphans)


def test_files_of_a_hive_table_outlive_the_table_that_took_them_in(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even where a policy lets files outside of all tables' places go: this place is the Hive table's."""
    landing = workspace.home / "landing"
    source = workspace.icebergs["lake"].create_table("sales.source", ROWS.schema)
    source.append(ROWS)
    landing.mkdir()
    (path,) = (Path(p.removeprefix("file://")) for p in source.inspect.files()["file_path"].to_pylist())
    landed = path.rename(landing / path.name)
    table = workspace.icebergs["lake"].create_table(NAME, ROWS.schema)
    table.add_files([f"file://{landed}"])
    workspace.unregister("sales.source")
    table.overwrite(ROWS)
    later(workspace)
    lists(monkeypatch, landing)
    outcome = workspace.run(EXPIRE, expire_snapshots__outside_location="delete")
    assert landed.exists()
    assert any("lake.raw.events" in note for note in outcome.notes), outcome


@pytest.mark.parametrize("operation", [EXPIRE, ORPHANS])
@pytest.mark.parametrize("what", ["a format's log", "a Hive table"])
@pytest.mark.parametrize("crashed", [False, True])
def test_another_format_that_comes_before_the_deletion(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch, operation: Operation, what: str, crashed: bool
) -> None:
    """What was planned before it stays, in the run itself and when a later process finishes the run."""
    folder = workspace.table()
    workspace.plant(folder, "data/orphan.parquet")

    def comes() -> None:
        if what == "a Hive table":
            lists(monkeypatch, folder)
        else:
            workspace.plant(folder, "_delta_log/_last_checkpoint")

    data = workspace.files(folder / "data")
    if crashed:
        crash(workspace, monkeypatch, operation)
        comes()
        reconcile_interrupted(replace(workspace.app.runtime, process_has_ended=lambda _: True))
    else:
        real = JobDeletion.carry_out

        def meanwhile(*args: Any, **options: Any) -> object:
            comes()
            return real(*args, **options)

        monkeypatch.setattr(JobDeletion, "carry_out", meanwhile)
        outcome = workspace.run(operation)
        assert outcome.state is OperationState.COMMITTED
        assert ("Delta Lake" if what == "a format's log" else "lake.raw.events") in " ".join(outcome.notes)
    assert workspace.files(folder / "data") == data
