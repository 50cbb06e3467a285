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
from icewright.flow.cycle import look
from tests.cases.house import EXPIRE, NAME, ORPHANS, House, quickly
from tests.cases.test_open_world import ROWS, elsewhere, later, quickly_located, reads

COLUMNS = "catalog_name, table_namespace, table_name, metadata_location, iceberg_type"


def there(location: str) -> Path:
    """The path of a local file."""
    return Path(local_path(location) or "")


def source_and_borrower(house: House, borrower: str = "lake") -> tuple[Table, Table, list[str]]:
    """A table, another that may borrow its files, and these files."""
    source = house.icebergs["lake"].create_table("sales.source", ROWS.schema)
    source.append(ROWS)
    lent = source.inspect.files()["file_path"].to_pylist()
    other = house.icebergs[borrower].create_table("sales.borrower", ROWS.schema)
    return source, other, lent


def expire_and_clean(house: House, name: str) -> list[object]:
    """Expire the snapshots of a table, and remove its orphans."""
    return [
        house.run(EXPIRE, name=name),
        house.run(ORPHANS, name=name, remove_orphans__max_delete_ratio=1),
    ]


@pytest.mark.parametrize("operation", [EXPIRE, ORPHANS])
def test_a_dry_run_on_the_borrower_hides_nothing_that_it_borrowed(house: House, operation: Operation) -> None:
    """A dry run evaluates the borrower before it borrows; what it borrows later still stays."""
    source, other, lent = source_and_borrower(house)
    other.add_files(lent)
    source.overwrite(ROWS)
    later(house)
    house.run(operation, name="sales.borrower", dry_run=True)
    expire_and_clean(house, "sales.source")
    assert reads(other)


def test_files_borrowed_and_replaced_since_the_last_evaluation(house: House) -> None:
    """What a tag of the borrower holds stays, although no evaluation has seen it and the head reads other files."""
    source, other, lent = source_and_borrower(house)
    other.append(ROWS)
    look(house.app.runtime, ["lake", "pond"], force=True)
    other.add_files(lent)
    other.manage_snapshots().create_tag(other.snapshots()[-1].snapshot_id, "keep").commit()
    other.overwrite(ROWS)
    source.overwrite(ROWS)
    later(house)
    expire_and_clean(house, "sales.source")
    assert reads(other)


@pytest.mark.parametrize("tag", ["tag", ""])
def test_files_borrowed_and_replaced_between_two_evaluations(house: House, tag: str) -> None:
    """Both evaluations saw heads without the borrowed files, and an older snapshot or a tag reads them."""
    source, other, lent = source_and_borrower(house)
    other.append(ROWS)
    look(house.app.runtime, ["lake", "pond"], force=True)
    other.add_files(lent)
    if tag:
        other.manage_snapshots().create_tag(other.snapshots()[-1].snapshot_id, "keep").commit()
    other.overwrite(ROWS)
    look(house.app.runtime, ["lake", "pond"], force=True)
    source.overwrite(ROWS)
    later(house)
    expire_and_clean(house, "sales.source")
    assert reads(other)


@pytest.mark.parametrize("catalog", ["lake", "pond", "hidden"])
def test_a_copy_under_a_new_uuid_keeps_its_manifests(house: House, catalog: str) -> None:
    """A copy of the metadata file elsewhere shares manifests and data with the table, and all of them stay."""
    house.table()
    path = house.metadata_file()
    document = json.loads(path.read_text())
    place = house.home / "warehouse" / "copy"
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
            house.home / "lake.db",
            f"INSERT INTO iceberg_tables ({COLUMNS}) VALUES ('backup','sales','copy',?,'TABLE')",  # noqa: S608 - constants
            f"file://{new}",
        )
    else:
        house.register("sales.copy", f"file://{new}", catalog)
    copy = StaticTable.from_metadata(f"file://{new}")
    house.run(EXPIRE)
    house.run(ORPHANS, remove_orphans__max_delete_ratio=1)
    for s in copy.snapshots():
        assert there(s.manifest_list).exists(), "manifest list gone"
        for m in s.manifests(copy.io):
            assert there(m.manifest_path).exists(), "manifest gone"
    assert [row for s in copy.snapshots() for row in copy.scan(snapshot_id=s.snapshot_id).to_arrow().to_pylist()]


def test_a_clone_that_cannot_be_read_now(house: House) -> None:
    """What a clone needs stays while its metadata file cannot be read."""
    house.table()
    clone = elsewhere(house, "sales.clone", "pond")
    quickly_located(clone, house.home / "warehouse" / "clone")
    clone = house.icebergs["pond"].load_table("sales.clone")
    clone.append(ROWS)
    look(house.app.runtime, ["lake", "pond"], force=True)
    house.run(ORPHANS, dry_run=True)
    clone.append(ROWS)
    current = there(clone.metadata_location)
    away = current.rename(current.with_suffix(".away"))
    current.mkdir()
    house.grow_old(house.home)
    house.run(EXPIRE)
    house.run(ORPHANS, remove_orphans__max_delete_ratio=1)
    current.rmdir()
    away.rename(current)
    assert reads(clone)
    for s in house.icebergs["pond"].load_table("sales.clone").snapshots():
        assert there(s.manifest_list).exists(), "manifest list gone"


@pytest.mark.parametrize("operation", [EXPIRE, ORPHANS])
@pytest.mark.parametrize("keep", [1, 100])
def test_a_fork_of_a_version_that_our_log_has_dropped(house: House, operation: Operation, keep: int) -> None:
    """The log of the table does not reach back to the fork, whose files stay all the same."""
    table = house.icebergs["lake"].create_table(
        "sales.orders", ROWS.schema, properties={"write.metadata.previous-versions-max": str(keep)}
    )
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

    for i, p in enumerate(
        sorted(
            (Path(p) for p in house.files() if p.name.endswith("metadata.json")),
            key=lambda p: json.loads(p.read_text())["last-updated-ms"],
        )
    ):
        t = p.stat().st_mtime + i
        os.utime(p, (t, t))
    house.run(operation, remove_orphans__max_delete_ratio=1)
    assert reads(fork, registered=False) == before
    assert there(fork.metadata_location).exists()


@pytest.mark.parametrize("operation", [EXPIRE, ORPHANS])
@pytest.mark.parametrize("commits", [2, 4])
def test_a_fork_that_set_properties_only(house: House, operation: Operation, commits: int) -> None:
    """A fork that has no snapshot of its own reads the files of the snapshots that it shares."""
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
    house.run(operation, remove_orphans__max_delete_ratio=1)
    assert reads(fork, registered=False) == before
    assert there(fork.metadata_location).exists()


@pytest.mark.parametrize("commits", [0, 2])
def test_a_catalog_of_our_name_in_another_database(house: House, commits: int) -> None:
    """pond.db is a copy of lake.db: its rows bear the catalog_name lake."""
    house.table()
    location = f"file://{house.metadata_file()}"
    quickly(
        house.home / "pond.db",
        f"INSERT INTO iceberg_tables ({COLUMNS}) VALUES ('lake','sales','orders',?,'TABLE')",  # noqa: S608 - constants
        location,
    )
    if commits:
        craft = house.icebergs["lake"].load_table("sales.orders")
        craft.append(ROWS)  # the old entry goes on, the copy stays
        later(house)
    files = house.files()
    house.run(EXPIRE)
    assert files <= house.files()


def test_metadata_below_a_folder_named_metadata_claims_nothing_above_it(house: House) -> None:
    """A write.metadata.path in a folder of that name does not make the folder above it the table's."""
    props = {"write.metadata.path": f"file://{house.home}/warehouse/metadata/first"}
    table = house.icebergs["lake"].create_table("sales.first", ROWS.schema, properties=props)
    table.append(ROWS)
    folder = house.table()
    house.removes(house.plant(folder, "data/orphan.parquet"))


def test_a_borrowers_tag_that_is_older_than_the_first_look(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first evaluation reads the newest snapshots alone, and a tag holds an older one that borrowed files."""
    monkeypatch.setattr("icewright.ports.rows.FIRST_LOOK", 3)
    source, other, lent = source_and_borrower(house)
    other.add_files(lent)
    other.manage_snapshots().create_tag(other.snapshots()[-1].snapshot_id, "keep").commit()
    for _ in range(4):
        other.overwrite(ROWS)
    source.overwrite(ROWS)
    later(house)
    expire_and_clean(house, "sales.source")
    assert reads(other)


@pytest.mark.parametrize("operation", [EXPIRE, ORPHANS])
def test_a_successor_of_which_one_version_is_left(house: House, operation: Operation) -> None:
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
    keep = {
        there(fork.metadata_location),
        house.metadata_file(),
        *(there(x) for x in house.metadata().metadata_log),
    }
    for p in house.files():
        if p.name.endswith(".metadata.json") and p not in keep:
            p.unlink()
    before = reads(fork, registered=False)
    later(house)
    house.run(operation, remove_orphans__max_delete_ratio=1)
    assert there(fork.metadata_location).exists()
    assert reads(fork, registered=False) == before


def blank(house: House, name: str, catalog: str = "lake", **how: Any) -> Path:
    """A v1 table without a uuid."""
    craft = house.craft(name, catalog=catalog, **how)
    house.commits(craft, (400, 300, 200, 100))

    def change(d: dict[str, Any]) -> None:
        d.pop("table-uuid")
        d["format-version"] = 1

    return house.publish(craft, change)


def test_a_moved_copy_of_a_table_without_a_uuid(house: House) -> None:
    """A table of format v1 without a uuid is known by its snapshots when it is registered at another location."""
    blank(house, NAME)
    doc = json.loads(house.metadata_file().read_text())
    place = house.home / "warehouse" / "copy"
    new = place / "metadata" / "00000-x.metadata.json"
    new.parent.mkdir(parents=True)
    new.write_text(json.dumps(doc | {"location": f"file://{place}"}))
    house.register("sales.copy", f"file://{new}")
    files = house.files()
    house.run(EXPIRE)
    assert files <= house.files()


@pytest.mark.parametrize("how", ["location", "pool"])
def test_a_live_table_that_once_lay_here_hinders_nobody(house: House, how: str) -> None:
    """A table lay in another's place by mistake, and moved away for good: a person's word frees the place."""
    from icewright.flow.adopt import adopt
    from tests.cases.house import ref

    a = house.icebergs["lake"].create_table("sales.orders", ROWS.schema)
    a.append(ROWS)
    place = f"{a.location()}/data/sub" if how == "pool" else f"{a.location()}/sub"
    if how == "pool":
        b = house.icebergs["lake"].create_table("sales.b", ROWS.schema, properties={"write.data.path": place})
    else:
        b = house.icebergs["lake"].create_table("sales.b", ROWS.schema, location=place)
    b.append(ROWS)
    look(house.app.runtime, ["lake"], force=True)
    house.run(ORPHANS, dry_run=True)
    if how == "pool":
        with b.transaction() as t:
            t.remove_properties("write.data.path")
    else:
        quickly_located(b, house.home / "warehouse" / "b")
    b = house.icebergs["lake"].load_table("sales.b")
    b.overwrite(ROWS)
    later(house)
    house.run(EXPIRE, name="sales.b")
    adopt(house.app.runtime, ref(NAME))
    orphan = house.plant(there(a.location()), "data/orphan.parquet")
    house.run(ORPHANS, remove_orphans__max_delete_ratio=1)
    assert not any(p.exists() for p in orphan), "refused for ever"


@pytest.mark.parametrize("when", ["before", "after"])
def test_an_orphan_that_is_borrowed_while_it_waits(house: House, when: str) -> None:
    """A file that another table takes in before the end of the delay stays, also when that one has replaced it."""
    from icewright.flow.reconcile import reconcile_interrupted

    _, other, lent = source_and_borrower(house)
    lost = there(lent[0]).with_name("lost.parquet")
    shutil.copyfile(there(lent[0]), lost)
    later(house)
    house.run(ORPHANS, name="sales.source", deletion__delay_hours=24)
    other.add_files([f"file://{lost}"])
    if when == "after":
        other.overwrite(ROWS)
    house.clock.advance(hours=30)
    reconcile_interrupted(house.app.runtime)
    assert lost.exists()
    assert reads(other)


@pytest.mark.parametrize("how", ["link", "dots", "double-slash", "plain"])
def test_files_borrowed_by_another_spelling_of_their_folder(house: House, how: str) -> None:
    """A link, dots or a second slash in the borrower's paths name the same file."""
    source, other, lent = source_and_borrower(house)
    path = there(lent[0])
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
    later(house)
    expire_and_clean(house, "sales.source")
    assert path.exists()


def test_a_table_without_a_uuid_is_adopted_alone(house: House) -> None:
    """One v1 table adopts what another nameless table left: a third table's invisible neighbour is no longer seen."""
    from icewright.flow.adopt import adopt
    from tests.cases.house import ref

    house.table()
    house.table("sales.other")
    blank(house, "in.gone", place="warehouse/sales/orders")
    house.run(ORPHANS, dry_run=True)
    house.unregister("in.gone")
    adopt(house.app.runtime, ref(NAME))
    # later another v1 table of an invisible catalog comes to lie below
    victim = blank(house, "in.fresh", place="warehouse/sales/orders")
    house.unregister("in.fresh")
    files = house.files(victim)
    house.run(ORPHANS, remove_orphans__max_delete_ratio=1)
    assert files <= house.files()
