"""Attacks."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from pyiceberg.table import StaticTable, Table

from icewright.core.paths import local_path
from icewright.core.runs import OperationState
from icewright.flow.cycle import look
from tests.cases.house import EXPIRE, NAME, ORPHANS, House, edit, quickly
from tests.cases.test_open_world import ROWS, elsewhere, later, quickly_located, reads

COLUMNS = "catalog_name, table_namespace, table_name, metadata_location, iceberg_type"


def source_and_borrower(house: House, borrower: str = "lake") -> tuple[Table, Table, list[str]]:
    source = house.icebergs["lake"].create_table("sales.source", ROWS.schema)
    source.append(ROWS)
    lent = source.inspect.files()["file_path"].to_pylist()
    other = house.icebergs[borrower].create_table("sales.borrower", ROWS.schema)
    return source, other, lent


def expire_and_clean(house: House, name: str) -> list[object]:
    return [
        house.run(EXPIRE, name=name),
        house.run(ORPHANS, name=name, remove_orphans__max_delete_ratio=1),
    ]


@pytest.mark.parametrize("operation", [EXPIRE, ORPHANS])
def test_t1_a_dry_run_on_the_borrower_hides_what_it_borrowed(house: House, operation) -> None:
    source, other, lent = source_and_borrower(house)
    other.add_files(lent)
    source.overwrite(ROWS)
    later(house)
    house.run(operation, name="sales.borrower", dry_run=True)
    print(expire_and_clean(house, "sales.source"))
    assert reads(other)


def test_t2_borrowed_and_let_go_between_two_looks(house: House) -> None:
    source, other, lent = source_and_borrower(house)
    other.append(ROWS)
    look(house.app.world, ["lake", "pond"], force=True)
    other.add_files(lent)
    other.manage_snapshots().create_tag(other.current_snapshot().snapshot_id, "keep").commit()
    other.overwrite(ROWS)
    source.overwrite(ROWS)
    later(house)
    print(expire_and_clean(house, "sales.source"))
    assert reads(other)


@pytest.mark.parametrize("tag", ["tag", ""])
def test_t2b_borrowed_on_a_branch_and_evaluated(house: House, tag: str) -> None:
    source, other, lent = source_and_borrower(house)
    other.append(ROWS)
    look(house.app.world, ["lake", "pond"], force=True)
    other.add_files(lent)
    if tag:
        other.manage_snapshots().create_tag(other.current_snapshot().snapshot_id, "keep").commit()
    other.overwrite(ROWS)
    look(house.app.world, ["lake", "pond"], force=True)
    source.overwrite(ROWS)
    later(house)
    print(expire_and_clean(house, "sales.source"))
    assert reads(other)


@pytest.mark.parametrize("catalog", ["lake", "pond", "hidden"])
def test_t3_a_copy_under_a_new_uuid_elsewhere(house: House, catalog: str) -> None:
    house.table()
    path = house.metadata_file()
    document = json.loads(path.read_text())
    place = house.home / "warehouse" / "copy"
    document |= {"table-uuid": "11111111-1111-4111-8111-111111111111", "location": f"file://{place}", "metadata-log": []}
    new = place / "metadata" / "00000-x.metadata.json"
    new.parent.mkdir(parents=True)
    new.write_text(json.dumps(document))
    if catalog == "hidden":
        quickly(house.home / "lake.db", f"INSERT INTO iceberg_tables ({COLUMNS}) VALUES ('backup','sales','copy',?,'TABLE')", f"file://{new}")
    else:
        house.register("sales.copy", f"file://{new}", catalog)
    copy = StaticTable.from_metadata(f"file://{new}")
    print(house.run(EXPIRE), house.run(ORPHANS, remove_orphans__max_delete_ratio=1))
    for s in copy.snapshots():
        assert Path(local_path(s.manifest_list)).exists(), "manifest list gone"
        for m in s.manifests(copy.io):
            assert Path(local_path(m.manifest_path)).exists(), "manifest gone"
    assert [row for s in copy.snapshots() for row in copy.scan(snapshot_id=s.snapshot_id).to_arrow().to_pylist()]


@pytest.mark.parametrize("known", ["known", "unknown"])
def test_t4_a_clone_that_cannot_be_read_now(house: House, known: str) -> None:
    house.table()
    clone = elsewhere(house, "sales.clone", "pond")
    quickly_located(clone, house.home / "warehouse" / "clone")
    clone = house.icebergs["pond"].load_table("sales.clone")
    clone.append(ROWS)
    if known == "known":
        look(house.app.world, ["lake", "pond"], force=True)
        house.run(ORPHANS, dry_run=True)
        clone.append(ROWS)
    current = Path(local_path(clone.metadata_location))
    away = current.rename(current.with_suffix(".away"))
    current.mkdir()
    house.grow_old(house.home)
    print(house.run(EXPIRE), house.run(ORPHANS, remove_orphans__max_delete_ratio=1))
    current.rmdir()
    away.rename(current)
    assert reads(clone)
    for s in house.icebergs["pond"].load_table("sales.clone").snapshots():
        assert Path(local_path(s.manifest_list)).exists(), "manifest list gone"


@pytest.mark.parametrize("operation", [EXPIRE, ORPHANS])
@pytest.mark.parametrize("keep", [1, 100])
def test_t5_a_fork_and_our_log_is_short(house: House, operation, keep: int) -> None:
    table = house.icebergs["lake"].create_table("sales.orders", ROWS.schema, properties={"write.metadata.previous-versions-max": str(keep)})
    table.append(ROWS)
    fork = elsewhere(house)
    for _ in range(2):
        fork.append(ROWS)
    fork = house.icebergs["pond"].load_table("sales.moved")
    before = reads(fork)
    house.unregister("sales.moved", "pond")
    for _ in range(3):
        table.overwrite(ROWS)
    later(house)
    # keep relative order of mtimes
    import os
    for i, p in enumerate(sorted((Path(p) for p in house.files() if p.name.endswith("metadata.json")), key=lambda p: json.loads(p.read_text())["last-updated-ms"])):
        t = p.stat().st_mtime + i
        os.utime(p, (t, t))
    print(house.run(operation, remove_orphans__max_delete_ratio=1))
    assert reads(fork, registered=False) == before
    assert Path(local_path(fork.metadata_location)).exists()


@pytest.mark.parametrize("operation", [EXPIRE, ORPHANS])
@pytest.mark.parametrize("commits", [1, 2, 4])
def test_t6_a_successor_that_set_properties_only(house: House, operation, commits: int) -> None:
    table = house.icebergs["lake"].create_table("sales.orders", ROWS.schema)
    table.append(ROWS)
    fork = elsewhere(house)
    for n in range(commits):
        with fork.transaction() as t:
            t.set_properties({"n": str(n)})
    fork = house.icebergs["pond"].load_table("sales.moved")
    before = reads(fork)
    house.unregister("sales.moved", "pond")
    table.overwrite(ROWS)
    later(house)
    print(house.run(operation, remove_orphans__max_delete_ratio=1))
    assert reads(fork, registered=False) == before
    assert Path(local_path(fork.metadata_location)).exists()


def test_t7_the_only_commit_of_the_successor_is_icewrights(house: House) -> None:
    house.table()
    old = f"file://{house.metadata_file()}"
    fork = elsewhere(house)
    house.unregister(NAME)
    done = house.run(EXPIRE, name="sales.moved", catalog="pond", deletion__delay_hours=24)
    assert done.state is OperationState.COMMITTED, done
    fork = house.icebergs["pond"].load_table("sales.moved")
    before = reads(fork)
    house.unregister("sales.moved", "pond")
    house.register(NAME, old)
    house.grow_old(house.home)
    print(house.run(ORPHANS, remove_orphans__max_delete_ratio=1))
    assert Path(local_path(fork.metadata_location)).exists()
    assert reads(fork, registered=False) == before


@pytest.mark.parametrize("commits", [0, 2])
def test_t8_the_same_names_in_another_database(house: House, commits: int) -> None:
    """pond.db is a copy of lake.db: its rows bear the catalog_name lake."""
    house.table()
    location = f"file://{house.metadata_file()}"
    quickly(house.home / "pond.db", f"INSERT INTO iceberg_tables ({COLUMNS}) VALUES ('lake','sales','orders',?,'TABLE')", location)
    if commits:
        craft = house.icebergs["lake"].load_table("sales.orders")
        craft.append(ROWS)  # the old entry goes on, the copy stays
        later(house)
    files = house.files()
    print(house.run(EXPIRE))
    assert files <= house.files()


def test_t9_metadata_in_a_folder_named_metadata(house: House) -> None:
    props = {"write.metadata.path": f"file://{house.home}/warehouse/metadata/first"}
    table = house.icebergs["lake"].create_table("sales.first", ROWS.schema, properties=props)
    table.append(ROWS)
    folder = house.table()
    house.removes(house.plant(folder, "data/orphan.parquet"))


def test_t10_a_tag_older_than_the_first_look(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("icewright.ports.rows.FIRST_LOOK", 3)
    source, other, lent = source_and_borrower(house)
    other.add_files(lent)
    other.manage_snapshots().create_tag(other.current_snapshot().snapshot_id, "keep").commit()
    for _ in range(4):
        other.overwrite(ROWS)
    source.overwrite(ROWS)
    later(house)
    print(expire_and_clean(house, "sales.source"))
    assert reads(other)


@pytest.mark.parametrize("operation", [EXPIRE, ORPHANS])
def test_t11_a_successor_of_which_one_version_is_left(house: House, operation) -> None:
    """It truncates its log, old versions are gone, and it has expired what we have."""
    table = house.icebergs["lake"].create_table("sales.orders", ROWS.schema)
    table.append(ROWS)
    table.overwrite(ROWS)
    fork = elsewhere(house)
    with fork.transaction() as t:
        t.set_properties({"write.metadata.previous-versions-max": "1"})
    for _ in range(3):
        fork.overwrite(ROWS)
    fork.maintenance.expire_snapshots().by_ids([s.snapshot_id for s in fork.snapshots()][:-1]).commit()
    fork.append(ROWS)
    fork = house.icebergs["pond"].load_table("sales.moved")
    house.unregister("sales.moved", "pond")
    keep = {Path(local_path(fork.metadata_location)), house.metadata_file(), *(Path(local_path(x)) for x in house.metadata().metadata_log)}
    for p in house.files():
        if p.name.endswith(".metadata.json") and p not in keep:
            p.unlink()
    before = reads(fork, registered=False)
    later(house)
    print(house.run(operation, remove_orphans__max_delete_ratio=1))
    assert Path(local_path(fork.metadata_location)).exists()
    assert reads(fork, registered=False) == before
