"""Attempts of a stranger to make Icewright delete what somebody reads, or refuse for ever."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.table import StaticTable, Table

from icewright.core.paths import local_path
from icewright.core.policy import Operation
from icewright.flow.cycle import detect_and_evaluate
from tests.cases.test_open_world import ROWS, elsewhere, later, quickly_located, reads
from tests.cases.workspace import EXPIRE, MANIFESTS, NAME, ORPHANS, Workspace, edit, quickly

COLUMNS = "catalog_name, table_namespace, table_name, metadata_location, iceberg_type"


def there(location: str) -> Path:
    """The path of a local file."""
    return Path(local_path(location) or "")


def source_and_borrower(workspace: Workspace, borrower: str = "lake") -> tuple[Table, Table, list[str]]:
    """A table, another that may borrow its files, and these files."""
    source = workspace.icebergs["lake"].create_table("sales.source", ROWS.schema)
    source.append(ROWS)
    borrowed = source.inspect.files()["file_path"].to_pylist()
    other = workspace.icebergs[borrower].create_table("sales.borrower", ROWS.schema)
    return source, other, borrowed


def shift(table: Table, hours: int) -> Table:
    """The table as if its newest version had been written by a clock that is so far ahead."""

    def change(document: dict[str, Any]) -> None:
        document["last-updated-ms"] += hours * 3_600_000
        for snapshot in document["snapshots"][-1:]:
            snapshot["timestamp-ms"] = document["last-updated-ms"]

    edit(there(table.metadata_location), change)
    return table.catalog.load_table(table.name())


def expire_and_clean(workspace: Workspace, name: str) -> list[object]:
    """Expire the snapshots of a table, and remove its orphans."""
    return [workspace.run(EXPIRE, name=name), workspace.run(ORPHANS, name=name, remove_orphans__max_delete_ratio=1)]


@pytest.mark.parametrize("operation", [EXPIRE, ORPHANS])
def test_a_dry_run_on_the_borrower_hides_nothing_that_it_borrowed(workspace: Workspace, operation: Operation) -> None:
    """A dry run evaluates the borrower before it borrows; what it borrows later still stays."""
    source, other, borrowed = source_and_borrower(workspace)
    other.add_files(borrowed)
    source.overwrite(ROWS)
    later(workspace)
    workspace.run(operation, name="sales.borrower", dry_run=True)
    expire_and_clean(workspace, "sales.source")
    assert reads(other)


def test_files_borrowed_and_replaced_since_the_last_evaluation(workspace: Workspace) -> None:
    """What a tag of the borrower holds stays, although no evaluation has seen it and the head reads other files."""
    source, other, borrowed = source_and_borrower(workspace)
    other.append(ROWS)
    detect_and_evaluate(workspace.app.runtime, ["lake", "pond"], force=True)
    other.add_files(borrowed)
    other.manage_snapshots().create_tag(other.snapshots()[-1].snapshot_id, "keep").commit()
    other.overwrite(ROWS)
    source.overwrite(ROWS)
    later(workspace)
    expire_and_clean(workspace, "sales.source")
    assert reads(other)


@pytest.mark.parametrize("how", ["tag", "", "behind", "ahead before"])
def test_files_borrowed_and_replaced_between_two_evaluations(workspace: Workspace, how: str) -> None:
    """Both evaluations saw heads without the borrowed files, and an older snapshot or a tag reads them.

    The time of that snapshot is no evidence, as a writer's clock may be wrong.
    """
    source, other, borrowed = source_and_borrower(workspace)
    other = shift(other, 48) if how == "ahead before" else other
    if how != "ahead before":
        other.append(ROWS)
    detect_and_evaluate(workspace.app.runtime, ["lake", "pond"], force=True)
    other.add_files(borrowed)
    other = shift(other, -5) if how == "behind" else other
    if how == "tag":
        other.manage_snapshots().create_tag(other.snapshots()[-1].snapshot_id, "keep").commit()
    other.overwrite(ROWS)
    detect_and_evaluate(workspace.app.runtime, ["lake", "pond"], force=True)
    source.overwrite(ROWS)
    later(workspace)
    expire_and_clean(workspace, "sales.source")
    assert reads(other)


@pytest.mark.parametrize("catalog", ["lake", "pond", "hidden"])
def test_a_copy_under_a_new_uuid_keeps_its_manifests(workspace: Workspace, catalog: str) -> None:
    """A copy of the metadata file elsewhere shares manifests and data with the table, and all of them stay."""
    workspace.table()
    path = workspace.metadata_file()
    document = json.loads(path.read_text())
    place = workspace.home / "warehouse" / "copy"
    document |= {
        "table-uuid": "11111111-1111-4111-8111-111111111111",
        "location": f"file://{place}",
        "metadata-log": [],
    }
    new = place / "metadata" / "00000-x.metadata.json"
    new.parent.mkdir(parents=True)
    new.write_text(json.dumps(document))
    if catalog == "hidden":
        quickly(
            workspace.home / "lake.db",
            f"INSERT INTO iceberg_tables ({COLUMNS}) VALUES ('backup','sales','copy',?,'TABLE')",  # noqa: S608 - constants
            f"file://{new}",
        )
    else:
        workspace.register("sales.copy", f"file://{new}", catalog)
    copy = StaticTable.from_metadata(f"file://{new}")
    workspace.run(EXPIRE)
    workspace.run(ORPHANS, remove_orphans__max_delete_ratio=1)
    for s in copy.snapshots():
        assert there(s.manifest_list).exists(), "manifest list gone"
        for m in s.manifests(copy.io):
            assert there(m.manifest_path).exists(), "manifest gone"
    assert [row for s in copy.snapshots() for row in copy.scan(snapshot_id=s.snapshot_id).to_arrow().to_pylist()]


def test_a_clone_that_cannot_be_read_now(workspace: Workspace) -> None:
    """What a clone needs stays while its metadata file cannot be read."""
    workspace.table()
    clone = elsewhere(workspace, "sales.clone", "pond")
    quickly_located(clone, workspace.home / "warehouse" / "clone")
    clone = workspace.icebergs["pond"].load_table("sales.clone")
    clone.append(ROWS)
    detect_and_evaluate(workspace.app.runtime, ["lake", "pond"], force=True)
    workspace.run(ORPHANS, dry_run=True)
    clone.append(ROWS)
    current = there(clone.metadata_location)
    away = current.rename(current.with_suffix(".away"))
    current.mkdir()
    workspace.grow_old(workspace.home)
    workspace.run(EXPIRE)
    workspace.run(ORPHANS, remove_orphans__max_delete_ratio=1)
    current.rmdir()
    away.rename(current)
    assert reads(clone)
    for s in workspace.icebergs["pond"].load_table("sales.clone").snapshots():
        assert there(s.manifest_list).exists(), "manifest list gone"


@pytest.mark.parametrize("operation", [EXPIRE, ORPHANS])
@pytest.mark.parametrize("keep", [1, 100])
def test_a_fork_of_a_version_that_our_log_has_dropped(workspace: Workspace, operation: Operation, keep: int) -> None:
    """The log of the table does not reach back to the fork, whose files stay all the same."""
    table = workspace.icebergs["lake"].create_table(
        "sales.orders", ROWS.schema, properties={"write.metadata.previous-versions-max": str(keep)}
    )
    table.append(ROWS)
    fork = elsewhere(workspace)
    for _ in range(2):
        fork.append(ROWS)
    fork = workspace.icebergs["pond"].load_table("sales.moved")
    before = reads(fork)
    workspace.unregister("sales.moved", "pond")
    for _ in range(3):
        table.overwrite(ROWS)
    later(workspace)
    # keep relative order of mtimes
    import os

    for i, p in enumerate(
        sorted(
            (Path(p) for p in workspace.files() if p.name.endswith("metadata.json")),
            key=lambda p: json.loads(p.read_text())["last-updated-ms"],
        )
    ):
        t = p.stat().st_mtime + i
        os.utime(p, (t, t))
    workspace.run(operation, remove_orphans__max_delete_ratio=1)
    assert reads(fork, registered=False) == before
    assert there(fork.metadata_location).exists()


@pytest.mark.parametrize("operation", [EXPIRE, ORPHANS])
@pytest.mark.parametrize("commits", [2, 4])
def test_a_fork_that_set_properties_only(workspace: Workspace, operation: Operation, commits: int) -> None:
    """A fork that has no snapshot of its own reads the files of the snapshots that it shares."""
    table = workspace.icebergs["lake"].create_table("sales.orders", ROWS.schema)
    table.append(ROWS)
    fork = elsewhere(workspace)
    for n in range(commits):
        with fork.transaction() as t:
            t.set_properties({"n": str(n)})
    fork = workspace.icebergs["pond"].load_table("sales.moved")
    before = reads(fork)
    workspace.unregister("sales.moved", "pond")
    table.overwrite(ROWS)
    later(workspace)
    workspace.run(operation, remove_orphans__max_delete_ratio=1)
    assert reads(fork, registered=False) == before
    assert there(fork.metadata_location).exists()


@pytest.mark.parametrize("commits", [0, 2])
def test_a_catalog_of_our_name_in_another_database(workspace: Workspace, commits: int) -> None:
    """pond.db is a copy of lake.db: its rows bear the catalog_name lake."""
    workspace.table()
    location = f"file://{workspace.metadata_file()}"
    quickly(
        workspace.home / "pond.db",
        f"INSERT INTO iceberg_tables ({COLUMNS}) VALUES ('lake','sales','orders',?,'TABLE')",  # noqa: S608 - constants
        location,
    )
    if commits:
        craft = workspace.icebergs["lake"].load_table("sales.orders")
        craft.append(ROWS)  # the old entry goes on, the copy stays
        later(workspace)
    files = workspace.files()
    workspace.run(EXPIRE)
    assert files <= workspace.files()


def test_metadata_below_a_folder_named_metadata_claims_nothing_above_it(workspace: Workspace) -> None:
    """A write.metadata.path in a folder of that name does not make the folder above it the table's."""
    props = {"write.metadata.path": f"file://{workspace.home}/warehouse/metadata/first"}
    table = workspace.icebergs["lake"].create_table("sales.first", ROWS.schema, properties=props)
    table.append(ROWS)
    folder = workspace.table()
    workspace.removes(workspace.plant(folder, "data/orphan.parquet"))


def test_a_borrowers_tag_that_is_older_than_the_first_look(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first evaluation reads the newest snapshots alone, and a tag holds an older one that borrowed files."""
    monkeypatch.setattr("icewright.ports.rows.FIRST_LOOK", 3)
    source, other, borrowed = source_and_borrower(workspace)
    other.add_files(borrowed)
    other.manage_snapshots().create_tag(other.snapshots()[-1].snapshot_id, "keep").commit()
    for _ in range(4):
        other.overwrite(ROWS)
    source.overwrite(ROWS)
    later(workspace)
    expire_and_clean(workspace, "sales.source")
    assert reads(other)


@pytest.mark.parametrize("operation", [EXPIRE, ORPHANS])
def test_a_successor_of_which_one_version_is_left(workspace: Workspace, operation: Operation) -> None:
    """It truncates its log, old versions are gone, and it has expired what we have."""
    table = workspace.icebergs["lake"].create_table("sales.orders", ROWS.schema)
    table.append(ROWS)
    table.overwrite(ROWS)
    fork = elsewhere(workspace)
    with fork.transaction() as t:
        t.set_properties({"write.metadata.previous-versions-max": "1"})
    for _ in range(3):
        fork.overwrite(ROWS)
    fork.maintenance.expire_snapshots().by_ids([s.snapshot_id for s in fork.snapshots()][:-1]).commit()
    fork.append(ROWS)
    fork = workspace.icebergs["pond"].load_table("sales.moved")
    workspace.unregister("sales.moved", "pond")
    keep = {
        there(fork.metadata_location),
        workspace.metadata_file(),
        *(there(x) for x in workspace.metadata().metadata_log),
    }
    for p in workspace.files():
        if p.name.endswith(".metadata.json") and p not in keep:
            p.unlink()
    before = reads(fork, registered=False)
    later(workspace)
    workspace.run(operation, remove_orphans__max_delete_ratio=1)
    assert there(fork.metadata_location).exists()
    assert reads(fork, registered=False) == before


def blank(workspace: Workspace, name: str, catalog: str = "lake", **how: Any) -> Path:
    """A v1 table without a uuid."""
    craft = workspace.craft(name, catalog=catalog, **how)
    workspace.commits(craft, (400, 300, 200, 100))

    def change(d: dict[str, Any]) -> None:
        d.pop("table-uuid")
        d["format-version"] = 1

    return workspace.publish(craft, change)


def test_a_moved_copy_of_a_table_without_a_uuid(workspace: Workspace) -> None:
    """A table of format v1 without a uuid is known by its snapshots when it is registered at another location."""
    blank(workspace, NAME)
    doc = json.loads(workspace.metadata_file().read_text())
    place = workspace.home / "warehouse" / "copy"
    new = place / "metadata" / "00000-x.metadata.json"
    new.parent.mkdir(parents=True)
    new.write_text(json.dumps(doc | {"location": f"file://{place}"}))
    workspace.register("sales.copy", f"file://{new}")
    files = workspace.files()
    workspace.run(EXPIRE)
    assert files <= workspace.files()


@pytest.mark.parametrize("how", ["location", "pool"])
def test_a_live_table_that_once_lay_here_hinders_nobody(workspace: Workspace, how: str) -> None:
    """A table lay in another's place by mistake, and moved away for good: a person's word frees the place."""
    from icewright.flow.adopt import adopt
    from tests.cases.workspace import ref

    a = workspace.icebergs["lake"].create_table("sales.orders", ROWS.schema)
    a.append(ROWS)
    place = f"{a.location()}/data/sub" if how == "pool" else f"{a.location()}/sub"
    if how == "pool":
        b = workspace.icebergs["lake"].create_table("sales.b", ROWS.schema, properties={"write.data.path": place})
    else:
        b = workspace.icebergs["lake"].create_table("sales.b", ROWS.schema, location=place)
    b.append(ROWS)
    detect_and_evaluate(workspace.app.runtime, ["lake"], force=True)
    workspace.run(ORPHANS, dry_run=True)
    if how == "pool":
        with b.transaction() as t:
            t.remove_properties("write.data.path")
    else:
        quickly_located(b, workspace.home / "warehouse" / "b")
    b = workspace.icebergs["lake"].load_table("sales.b")
    b.overwrite(ROWS)
    later(workspace)
    workspace.run(EXPIRE, name="sales.b")
    adopt(workspace.app.runtime, ref(NAME))
    orphan = workspace.plant(there(a.location()), "data/orphan.parquet")
    workspace.run(ORPHANS, remove_orphans__max_delete_ratio=1)
    assert not any(p.exists() for p in orphan), "refused for ever"


@pytest.mark.parametrize("when", ["before", "after"])
def test_an_orphan_that_is_borrowed_while_it_waits(workspace: Workspace, when: str) -> None:
    """A file that another table takes in before the end of the delay stays, also when that one has replaced it."""
    from icewright.flow.reconcile import reconcile_interrupted

    _, other, borrowed = source_and_borrower(workspace)
    lost = there(borrowed[0]).with_name("lost.parquet")
    shutil.copyfile(there(borrowed[0]), lost)
    later(workspace)
    workspace.run(ORPHANS, name="sales.source", deletion__delay_hours=24)
    other.add_files([f"file://{lost}"])
    if when == "after":
        other.overwrite(ROWS)
    workspace.clock.advance(hours=30)
    reconcile_interrupted(workspace.app.runtime)
    assert lost.exists()
    assert reads(other)


@pytest.mark.parametrize("how", ["link", "dots", "double-slash", "plain"])
def test_files_borrowed_by_another_spelling_of_their_folder(workspace: Workspace, how: str) -> None:
    """A link, dots or a second slash in the borrower's paths name the same file."""
    source, other, borrowed = source_and_borrower(workspace)
    path = there(borrowed[0])
    mine = there(other.location())
    if how == "link":
        (mine / "data").mkdir(parents=True, exist_ok=True)
        (mine / "data" / "link").symlink_to(path.parent)
        odd = f"file://{mine}/data/link/{path.name}"
    elif how == "dots":
        odd = f"file://{mine}/../source/data/{path.name}"
    elif how == "double-slash":
        odd = f"file://{str(path).replace('/data/', '//data/')}"
    else:
        odd = str(path)
    other.add_files([odd])
    source.overwrite(ROWS)
    later(workspace)
    expire_and_clean(workspace, "sales.source")
    assert path.exists()


def test_a_table_without_a_uuid_is_adopted_alone(workspace: Workspace) -> None:
    """One v1 table adopts what another nameless table left: a third table's invisible neighbour is no longer seen."""
    from icewright.flow.adopt import adopt
    from tests.cases.workspace import ref

    workspace.table()
    workspace.table("sales.other")
    blank(workspace, "in.gone", place="warehouse/sales/orders")
    workspace.run(ORPHANS, dry_run=True)
    workspace.unregister("in.gone")
    adopt(workspace.app.runtime, ref(NAME))
    # later another v1 table of an invisible catalog comes to lie below
    victim = blank(workspace, "in.fresh", place="warehouse/sales/orders")
    workspace.unregister("in.fresh")
    files = workspace.files(victim)
    workspace.run(ORPHANS, remove_orphans__max_delete_ratio=1)
    assert files <= workspace.files()


@pytest.mark.parametrize("operation", [EXPIRE, ORPHANS, MANIFESTS])
def test_a_table_with_two_snapshots_of_one_id_is_left_alone(workspace: Workspace, operation: Operation) -> None:
    """PyIceberg reads the first of them, others the last: what one reader needs looks unreached to the other."""
    folder = workspace.table()
    workspace.plant(folder, "data/orphan.parquet")

    def twin(document: dict[str, Any]) -> None:
        first, *_, last = document["snapshots"]
        document["snapshots"].insert(0, last | {"manifest-list": first["manifest-list"]})

    edit(workspace.metadata_file(), twin)
    before = workspace.metadata()
    workspace.refused(operation, str(before.current_snapshot_id), "an earlier one", "[twin_snapshots]")
    assert workspace.metadata() == before
