"""Orphan removal and the ways in which a path is spelt: no live file is ever taken for another one."""

from __future__ import annotations

import os
import shutil
import threading
from datetime import timedelta
from pathlib import Path

import pytest
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import LongType, NestedField, StringType

from icewright.adapters.engines.service import registry
from icewright.app.demo.craft import Craft
from icewright.app.demo.files import WrittenFile
from icewright.core.policy import Operation
from icewright.core.runs import OperationState
from tests.cases.workspace import EXPIRE, ORPHANS, Workspace, edit

ODD = {
    "blank": "a b",
    "plus": "a+b",
    "percent": "100%",
    "escape": "a%20b",
    "escaped slash": "a%2Fb",
    "composed": "\u00e9t\u00e9",
    "decomposed": "e\u0301te\u0301",
    "hash": "a#b",
    "question mark": "a?b=c",
    "quotes": 'it\'s "x" `y`',
    "backslash": "a\\b",
    "brackets": "[x]{y}(z)*",
    "colon": "a:b",
    "equals": "a=b&c",
    "long": "n" * 200,
}


def spelt(craft: Craft, file: WrittenFile, spelling: str) -> WrittenFile:
    """The file as a writer that spells its path otherwise would name it."""
    return WrittenFile(
        file.path, dict(file.record) | {"file_path": spelling.format(path=file.path, folder=craft.folder)}
    )


PLACES = ["plain", "a b+c", "100% a%20b%2Fc", "e\u0301 \u00e9", "a#b?c=d&e", 'it\'s "x" [y]{z}* a:b\\c']


@pytest.mark.cases(59)
@pytest.mark.parametrize("place", PLACES)
def test_odd_names(workspace: Workspace, place: str) -> None:
    """In the location, in folders and in names of files: live files stay, the orphans beside them go."""
    craft = workspace.craft(place=f"warehouse/{place}")
    plain, files = craft.data({"id": [1], "part": ["a"]}), []
    for odd in ODD.values():
        path = craft.folder / "data" / odd / odd
        path.parent.mkdir()
        shutil.copyfile(plain.path, path)
        files.append(WrittenFile(path, dict(plain.record) | {"file_path": f"file://{path}"}))
    craft.commit(workspace.clock.now(), [plain, *files])
    folder = workspace.publish(craft)
    orphans = [f"data/{odd}/orphan-{odd[:9]}" for odd in ODD.values() if odd not in ("a b", "e\u0301te\u0301")]
    planted = workspace.plant(folder, *orphans, "data/a")
    workspace.finds(planted, remove_orphans__max_delete_ratio=0.6)
    if place == PLACES[-1]:
        workspace.removes(planted, remove_orphans__max_delete_ratio=0.6)


SPELLINGS = ("file:{path}", "{path}", "file://{folder}//data///{path.name}", "file://localhost{path}", "FILE://{path}")


@pytest.mark.cases(58, 59)
def test_other_spellings_of_live_files(workspace: Workspace) -> None:
    """Data files that the manifest spells in another way than the listing does are live for all that."""
    craft = workspace.craft()
    files = [spelt(craft, craft.data({"id": [1], "part": ["a"]}), spelling) for spelling in SPELLINGS]
    craft.commit(workspace.clock.now(), files)
    workspace.finds(workspace.plant(workspace.publish(craft), "data/orphan.parquet"))


@pytest.mark.cases(59)
def test_encoded_and_composed_names_of_live_files(workspace: Workspace) -> None:
    """Named percent-encoded, or in the other Unicode form than the disk has: live; so is all that may be meant."""
    craft = workspace.craft()
    names = {"a b.parquet": "a%20b.parquet", "e\u0301.parquet": "\u00e9.parquet", "\u00fc.parquet": "%C3%BC.parquet"}
    files = []
    for name, said in names.items():
        file = craft.data({"id": [1], "part": ["a"]})
        moved = file.path.rename(file.path.with_name(name))
        files.append(WrittenFile(moved, dict(file.record) | {"file_path": f"file://{moved.parent}/{said}"}))
    craft.commit(workspace.clock.now(), files)
    folder = workspace.publish(craft)
    workspace.plant(folder, "data/a%20b.parquet")  # one of the two is meant, and nobody knows which: both stay
    workspace.removes(workspace.plant(folder, "data/a+b.parquet"))


@pytest.mark.cases(59)
@pytest.mark.parametrize("location", ["file://{0}//", "file:{0}", "{0}", "file://{0.parent}//{0.name}"])
def test_spellings_of_the_location(workspace: Workspace, location: str) -> None:
    """A location with slashes at its end, doubled ones, one or no scheme lists the same files."""
    craft = workspace.craft()
    workspace.commits(craft, [400, 300])

    def change(document: dict[str, object]) -> None:
        document["location"] = location.format(craft.folder)

    folder = workspace.publish(craft, change)
    workspace.plant(folder, "data/.hidden", "_tmp/x", "metadata/version-hint.text")
    workspace.finds(workspace.plant(folder, "data/orphan.parquet"))


@pytest.mark.cases(57, 59)
def test_a_live_file_that_is_named_by_way_of_a_link(workspace: Workspace) -> None:
    """A folder of tables known under two paths, one a link to the other: what is live under either stays."""
    (workspace.home / "mounted").symlink_to(workspace.home / "warehouse")
    craft = workspace.craft()
    files = [craft.data({"id": [number], "part": ["a"]}) for number in range(3)]
    linked = str(files[0].path).replace("/warehouse/", "/mounted/")
    craft.commit(workspace.clock.now(), [spelt(craft, files[0], f"file://{linked}"), *files[1:]])
    workspace.publish(craft)
    before = workspace.read()
    workspace.run(ORPHANS)
    assert files[0].path.exists(), "a live file was deleted"
    assert workspace.read() == before


@pytest.mark.cases(57, 59)
@pytest.mark.parametrize("linked", ["write path", "folder"])
def test_a_disk_that_is_away_has_the_link_by_which_another_table_is_here(workspace: Workspace, linked: str) -> None:
    """Where its write path led, or a folder of its files, when it was seen, its files stay while it cannot be read."""
    mine, disk = workspace.table(), workspace.home / "disk"
    disk.mkdir()
    (disk / "pool").symlink_to(mine / "data")
    pool = {"write.data.path": f"file://{disk}/pool"} if linked == "write path" else {}
    theirs = workspace.craft("sales.theirs", catalog="pond", place="disk")
    theirs.properties.update(pool)
    file = theirs.data({"id": [1], "part": ["a"]})
    (live := mine / "data" / file.path.name).write_bytes(file.path.read_bytes())
    workspace.age(live, 30)
    theirs.commit(workspace.clock.now(), [spelt(theirs, file, f"file://{disk}/pool/{live.name}")])
    workspace.publish(theirs)
    workspace.detect()
    workspace.run(ORPHANS, dry_run=True)
    disk.rename(workspace.home / "away")
    result = workspace.run(ORPHANS)
    assert live.exists(), result
    assert "cannot be read" in " ".join(result.notes)


@pytest.mark.cases(57, 59)
def test_a_disk_that_hangs_holds_up_no_deletion_elsewhere(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Links of its tables cannot be followed: where they led when they were seen counts."""
    mine, disk = workspace.table(), workspace.home / "disk"
    (orphan,) = workspace.plant(mine, "data/orphan.parquet")
    disk.mkdir()
    workspace.table("sales.theirs", catalog="pond", place="disk")
    workspace.detect()
    workspace.run(ORPHANS, dry_run=True)
    freed, follow = threading.Event(), os.path.islink

    def hangs(path: str) -> bool:
        if path.startswith(f"{disk}/"):
            assert threading.current_thread() is not threading.main_thread(), "the job itself hangs"
            freed.wait(60)
        return follow(path)

    monkeypatch.setattr(os.path, "islink", hangs)
    monkeypatch.setattr(registry, "mounts", lambda: frozenset({str(disk)}))
    monkeypatch.setattr(registry, "_LOOK_LIMIT", timedelta(seconds=0.05))
    try:
        done = workspace.run(ORPHANS)
    finally:
        freed.set()
    assert not orphan.exists(), done


@pytest.mark.cases(57)
@pytest.mark.parametrize(
    ("prefix", "what"),
    [("s3://bucket", "data"), ("s3a://bucket", "log"), ("hdfs://nn:8020", "data"), ("hdfs://", "log")],
)
def test_another_scheme_or_authority(workspace: Workspace, prefix: str, what: str) -> None:
    """A live file that is named under a prefix which nobody declared equal to the listing's: refused, both said."""
    workspace.plant(_foreign(workspace, prefix, what), "data/orphan.parquet")
    workspace.refused(ORPHANS, "file://", prefix, "equal_schemes")


@pytest.mark.cases(57)
def test_a_scheme_that_is_declared_equal(workspace: Workspace) -> None:
    """Once a policy says that the schemes mean the same, the live file is live and the orphan goes."""
    folder = _foreign(workspace, "s3://bucket", "data")
    orphans = workspace.plant(folder, "data/orphan.parquet")
    workspace.removes(orphans, remove_orphans__equal_schemes={"s3": "file"})


@pytest.mark.cases(57)
def test_a_mismatch_that_is_ignored(workspace: Workspace) -> None:
    """What is named under another prefix stays, and the run says so; the orphan beside it goes."""
    orphans = workspace.plant(_foreign(workspace, "s3://bucket", "data"), "data/orphan.parquet")
    done = workspace.removes(orphans, remove_orphans__prefix_mismatch="ignore")
    assert "files under file:// stay: the table names them under s3://bucket" in done.notes


def _foreign(workspace: Workspace, prefix: str, what: str) -> Path:
    """A table of which one file is named under another prefix."""
    craft = workspace.craft()
    file = craft.data({"id": [1], "part": ["a"]})
    craft.commit(workspace.clock.now(), [spelt(craft, file, prefix + "{path}") if what == "data" else file])
    if what == "data":
        return workspace.publish(craft)
    former = craft.folder / "metadata" / "00000-x.metadata.json"
    folder = workspace.publish(
        craft, lambda d: d.update({"metadata-log": [{"metadata-file": f"{prefix}{former}", "timestamp-ms": 1}]})
    )
    workspace.plant(folder, f"metadata/{former.name}", content=workspace.metadata_file().read_bytes())
    return folder


@pytest.mark.cases(10, 58, 59)
def test_an_expired_file_that_a_kept_snapshot_spells_otherwise(workspace: Workspace) -> None:
    """Two spellings of one path, one in a snapshot that goes and one in a snapshot that stays: the file stays."""
    craft = workspace.craft()
    files = [craft.data({"id": [1], "part": ["a"]}) for _ in SPELLINGS]
    first = craft.commit(workspace.clock.now().replace(year=2025), files)
    craft.commit(
        workspace.clock.now(), [spelt(craft, f, s) for f, s in zip(files, SPELLINGS, strict=True)], replaced=first
    )
    workspace.publish(craft)
    done = workspace.run(EXPIRE)
    assert (done.state, done.metrics["snapshots_expired"]) == (OperationState.COMMITTED, 1), done
    assert all(file.path.exists() for file in files)


HIDDEN = Schema(
    NestedField(1, "id", LongType()), NestedField(2, "_c2", StringType()), NestedField(3, ".c3", LongType())
)
BY_HIDDEN = PartitionSpec(
    PartitionField(2, 1000, IdentityTransform(), "_c2"), PartitionField(3, 1001, IdentityTransform(), ".c3")
)


@pytest.mark.cases(60)
def test_hidden_folders(workspace: Workspace) -> None:
    """Partition folders that begin with `_` or `.` are scanned, all other hidden places are left alone."""
    craft = workspace.craft(spec=BY_HIDDEN, schema=HIDDEN)
    folder = craft.folder / "data" / "_c2=x" / ".c3=1"
    folder.mkdir(parents=True)
    file = craft.data({"id": [1], "_c2": ["x"], ".c3": [1]}, **{"_c2": "x", ".c3": 1})
    craft.commit(workspace.clock.now(), [file])
    workspace.publish(craft)
    workspace.plant(
        craft.folder, "_c22=x/f", "data/_c3=1/f", "data/_c2/f", "data/.c3=1/_tmp/f", "_SUCCESS", "data/.f.crc"
    )
    workspace.plant(craft.folder, "metadata/version-hint.text")
    workspace.removes(workspace.plant(craft.folder, "data/_c2=x/.c3=1/orphan.parquet", "data/_c2=y/orphan.parquet"))


@pytest.mark.cases(53, 54, 55)
def test_the_metadata_of_the_table_itself(workspace: Workspace) -> None:
    """Current and logged metadata, gzipped in either spelling, and the hint stay; only what is not logged goes."""
    craft = workspace.craft()
    workspace.commits(craft, [400, 300])
    logged = ["00000-a.gz.metadata.json", "v1.metadata.json.gz", "00001-b.metadata.json"]
    names = [{"metadata-file": f"file:{craft.folder}/metadata/{n}", "timestamp-ms": i} for i, n in enumerate(logged)]
    folder = workspace.publish(craft, lambda d: d.update({"metadata-log": names}))
    content = workspace.metadata_file().read_bytes()
    workspace.plant(folder, *(f"metadata/{name}" for name in (*logged, "version-hint.text")), content=content)
    workspace.removes(
        workspace.plant(folder, "metadata/00000-lost.metadata.json", "metadata/x-m0.avro", content=content)
    )
    edit(workspace.metadata_file(), lambda d: d.update({"metadata-log": names[1:]}))
    workspace.removes({folder / "metadata" / logged[0]})


@pytest.mark.cases("T13")
@pytest.mark.parametrize("operation", [EXPIRE, ORPHANS])
@pytest.mark.parametrize("spelling", ["data/{path.name}", "{path.name}", "file:data/{path.name}"])
def test_relative_paths_delete_nothing(workspace: Workspace, operation: Operation, spelling: str) -> None:
    """A writer names data files as they lie below the location: they look unreached, and none of them goes."""
    craft = workspace.craft()
    for hours in (400, 300):
        file = spelt(craft, craft.data({"id": [1], "part": ["a"]}), spelling)
        craft.commit(workspace.clock.now() - timedelta(hours=hours), [file])
    folder = workspace.publish(craft)
    before = workspace.files(folder)
    done = workspace.run(operation, remove_orphans__max_delete_ratio=1)
    assert (done.state, "names files by scheme" in done.reason) == (OperationState.FAILED, True), done
    assert workspace.files(folder) == before


def test_a_place_that_goes_by_two_names(workspace: Workspace) -> None:
    """A gateway's or mount's name leads to the location, which nobody here can know: live files stay by their names."""
    craft = workspace.craft()
    files = [craft.data({"id": [1], "part": ["a"]}) for _ in range(2)]
    named = [spelt(craft, file, f"file:///mnt/Gateway/{file.path.name.upper()}") for file in files]
    craft.commit(workspace.clock.now(), named)
    folder = workspace.publish(craft)
    done = workspace.removes(workspace.plant(folder, "data/orphan.parquet"))
    assert any(str(files[0].path) in note and "under another path" in note for note in done.notes), done.notes


@pytest.mark.parametrize("how", ["same", "other name", "other size"])
@pytest.mark.parametrize("expires", ["here", "at the gateway"])
def test_a_live_file_that_goes_by_two_names_does_not_expire(workspace: Workspace, expires: str, how: str) -> None:
    """One snapshot has it by its own path, another by a gateway's: it stays. Of another name or size it is another."""
    craft = workspace.craft()
    file = craft.data({"id": [1], "part": ["a"]})
    alias = workspace.home / "Gateway" / (file.path.name.upper() if how != "other name" else "x.parquet")
    alias.parent.mkdir()
    alias.hardlink_to(file.path)
    size = int(file.record["file_size_in_bytes"]) + (1 if how == "other size" else 0)
    there = {"file_path": f"file://{alias}", "file_size_in_bytes": size}
    versions = [file, WrittenFile(file.path, dict(file.record) | there)]
    old, new = versions if expires == "here" else reversed(versions)
    first = craft.commit(workspace.clock.now() - timedelta(hours=400), [old])
    craft.commit(workspace.clock.now() - timedelta(hours=300), [new], replaced=first)
    workspace.publish(craft)
    done = workspace.run(EXPIRE, expire_snapshots__outside_location="delete")
    assert (done.state, done.metrics["snapshots_expired"]) == (OperationState.COMMITTED, 1), done
    kept = how == "same" or (how, expires) == ("other size", "at the gateway")  # that size is not the file's
    assert (file.path if expires == "here" else alias).exists() == kept, done
    assert any("a live file elsewhere has the same name and size" in note for note in done.notes) == (how == "same")


def test_files_of_one_name_in_two_partitions_are_two(workspace: Workspace) -> None:
    """Where both lie in the location, name and size say nothing: that which only old snapshots have expires."""
    craft = workspace.craft()
    live = craft.data({"id": [1], "part": ["a"]})
    old = craft.folder / "data" / "part=b" / live.path.name
    old.parent.mkdir()
    shutil.copyfile(live.path, old)
    first = craft.commit(workspace.clock.now() - timedelta(hours=400), [spelt(craft, live, f"file://{old}")])
    craft.commit(workspace.clock.now() - timedelta(hours=300), [live], replaced=first)
    workspace.publish(craft)
    workspace.run(EXPIRE)
    assert (live.path.exists(), old.exists()) == (True, False)
