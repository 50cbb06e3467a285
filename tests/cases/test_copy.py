"""The copy of a table: whole or not registrable, and nothing of it leads back to the table."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from struct import pack
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from icewright.adapters.files.local import LocalStorage
from icewright.core.copying import MARKER, CopyResult
from icewright.core.errors import IcewrightError, MetadataUnreadable, Refused, UnsupportedTable, UsageError
from icewright.core.integrity import CheckLevel, FileFaultKind
from icewright.flow.copy import copy_table, restore_beside
from icewright.flow.cycle import detect_and_evaluate
from icewright.ports import CopyRequest, RemoveSnapshots
from tests.cases.conftest import ground, workspace
from tests.cases.tampering import tamper_manifest
from tests.cases.test_integrity import DEEPER_FAULTS, FAULTS, changed_entry, changed_row, changed_row_and_entry, setting
from tests.cases.test_open_world import ROWS
from tests.cases.workspace import BY_PART, EXPIRE, NAME, Workspace, edit, ref

pytestmark = pytest.mark.external  # makes a lakehouse or a store for each test

__all__ = ["ground", "workspace"]


def copy(workspace: Workspace, place: str = "copy", *, dry_run: bool = False) -> CopyResult:
    """Copy the table to a folder beside the lake's."""
    workspace.detect()
    return copy_table(workspace.app.runtime, ref(NAME), f"file://{workspace.home}/{place}", dry_run=dry_run)


def registered(workspace: Workspace, copied: CopyResult) -> dict[str, list[Any]]:
    """What PyIceberg reads of the copy, in another catalog, while the table itself is out of reach."""
    catalog, away = workspace.icebergs["pond"], workspace.home / "away"
    catalog.create_namespace_if_not_exists("sales")
    if catalog.table_exists(NAME):
        catalog.drop_table(NAME)
    catalog.register_table(NAME, copied.metadata_location)
    (workspace.home / "warehouse").rename(away)
    try:
        return workspace.read(catalog="pond")
    finally:
        away.rename(workspace.home / "warehouse")


def metadata_files(workspace: Workspace) -> list[Path]:
    """The copy's metadata files, without which no catalog takes it."""
    return list((workspace.home / "copy").rglob("*.metadata.json"))


def test_a_copy_reads_as_the_table_and_grows_by_what_is_new(workspace: Workspace) -> None:
    """Every snapshot, tag and branch; the second copy copies the files of the commits since, and no other.

    A summary that miscounts rows goes with it, as no read of files asks for it.
    """
    craft = workspace.craft(spec=BY_PART)
    workspace.commits(craft, [400, 300, 200])
    DEEPER_FAULTS["a snapshot has more rows than its parent and its changes"][1](workspace.publish(craft))
    planned = copy(workspace, dry_run=True)
    assert not (workspace.home / "copy").exists()
    first = copy(workspace)
    assert (first.files, first.bytes, first.present) == (planned.files, planned.bytes, 0)
    assert "; 1 fault of its metadata came along: check" in first.summary
    assert registered(workspace, first) == workspace.read()
    assert copy(workspace).files == 0
    table = workspace.icebergs["lake"].load_table(NAME)
    table.append(table.scan().to_arrow())
    with table.manage_snapshots() as change:
        change.create_tag(workspace.metadata().snapshots[0].snapshot_id, "kept")
    second = copy(workspace)
    assert (second.files, second.table_uuid) == (3, first.table_uuid)  # a data file, a manifest and its list
    assert registered(workspace, second) == workspace.read()
    assert first.table_uuid != workspace.metadata().table_uuid


def test_a_crash_at_any_write_leaves_no_copy_to_register(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    """The metadata file is the last that is written; the copy asked for again goes on where the crash was."""
    workspace.table(hours=(300, 200))
    rows, write = workspace.read(), LocalStorage.write
    written: list[str] = []

    class Crash(BaseException):
        pass

    def crashing(storage: LocalStorage, path: str, content: bytes | Iterator[bytes]) -> None:
        if moment % 2 and len(written) == moment // 2:
            raise Crash
        write(storage, path, content)
        written.append(path)
        if len(written) > moment // 2:
            raise Crash

    moment = 0
    while True:
        shutil.rmtree(workspace.home / "copy", ignore_errors=True)
        written.clear()
        with monkeypatch.context() as patched:
            patched.setattr(LocalStorage, "write", crashing)
            with pytest.raises(Crash):
                copy(workspace)
        last = bool(metadata_files(workspace))
        files = {path: path.stat().st_mtime_ns for path in (workspace.home / "copy").rglob("*.*")}
        copied = copy(workspace)
        assert {path: path.stat().st_mtime_ns for path in files} == files, "a file that was there was written again"
        if last:
            break
        moment += 1
    assert moment > 10
    assert written[0].endswith(MARKER)
    assert written[-1] == copied.metadata_location
    assert registered(workspace, copied) == rows


@pytest.mark.parametrize("fault", [fault for fault in FAULTS if "list" not in fault])
def test_a_table_with_a_fault_is_not_copied(workspace: Workspace, fault: str) -> None:
    """What is lost, cut or scrambled is named, and the copy has no metadata file."""
    folder = workspace.table(spec=BY_PART)
    pattern, harm, _, _ = FAULTS[fault]
    harm(min(folder.glob(pattern)))
    with pytest.raises(IcewrightError):
        copy(workspace)
    assert metadata_files(workspace) == []


def test_the_copy_is_checked_before_it_is_whole(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that the storage loses during the copy is missed, and the next copy brings it."""
    workspace.table()
    rows, write = workspace.read(), LocalStorage.write

    def losing(storage: LocalStorage, path: str, content: bytes | Iterator[bytes]) -> None:
        write(storage, path, content)
        if path.endswith(".parquet"):
            Path(path.removeprefix("file://")).unlink()

    with monkeypatch.context() as patched:
        patched.setattr(LocalStorage, "write", losing)
        with pytest.raises(MetadataUnreadable, match="in the copy"):
            copy(workspace)
    assert metadata_files(workspace) == []
    assert registered(workspace, copy(workspace)) == rows


def test_snapshots_that_expire_meanwhile_are_left_out(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    """Icewright itself expires none, as they are pinned; when another system does, the others are copied."""
    folder = workspace.table(hours=(400, 300, 200, 100))
    write, catalog = LocalStorage.write, workspace.app.runtime.catalogs["lake"]
    base = workspace.metadata()
    oldest = base.snapshots[0]
    pinned: list[int] = []

    def expiring(storage: LocalStorage, path: str, content: bytes | Iterator[bytes]) -> None:
        if path.endswith(MARKER):
            pins = workspace.app.runtime.store.pins.list(ref(NAME), base.table_uuid)
            pinned.extend(pin.snapshot_id for pin in pins)
            catalog.commit(base, RemoveSnapshots(frozenset({oldest.snapshot_id}), frozenset()))
            (folder / "metadata" / str(oldest.manifest_list).rpartition("/")[2]).unlink()
        write(storage, path, content)

    with monkeypatch.context() as patched:
        patched.setattr(LocalStorage, "write", expiring)
        copied = copy(workspace)
    assert pinned == [oldest.snapshot_id]
    assert not workspace.app.runtime.store.pins.list(ref(NAME), base.table_uuid)
    assert copied.snapshots == len(base.snapshots) - 1
    assert registered(workspace, copied) == workspace.read()


def test_of_two_copies_to_one_place_one_is_whole(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both found the place empty; the one whose mark was overwritten does not end."""
    workspace.table()
    write, place = LocalStorage.write, workspace.home / "copy"

    def marking(storage: LocalStorage, path: str, content: bytes | Iterator[bytes]) -> None:
        write(storage, path, content)
        if path.endswith(MARKER):
            _of_another_table(workspace)

    with monkeypatch.context() as patched:
        patched.setattr(LocalStorage, "write", marking)
        with pytest.raises(Refused, match="a copy of another table"):
            copy(workspace)
    assert place.exists()
    assert metadata_files(workspace) == []


def test_a_state_is_restored_beside_the_table(workspace: Workspace) -> None:
    """Of the copy main alone reads, as the table did then; the table stays, and a name or place that is taken too."""
    workspace.table(spec=BY_PART)
    runtime, before, rows = workspace.app.runtime, workspace.metadata(), workspace.read()
    then = str(before.snapshots[1].snapshot_id)
    workspace.detect()
    files = workspace.files()
    for name, dry_run in (("nowhere.then", True), ("nowhere.then", False), ("sales.a/b", False)):
        with pytest.raises(IcewrightError, match=r"no such namespace|without a slash"):
            restore_beside(runtime, ref(NAME), then, ref(name), dry_run=dry_run)
    assert workspace.files() == files
    planned = restore_beside(runtime, ref(NAME), then, ref("sales.then"), dry_run=True)
    done = restore_beside(runtime, ref(NAME), then, ref("sales.then"))
    assert (
        (planned.files, planned.snapshots) == (done.files, done.snapshots) == (4, 1)
    )  # of data, two manifests, a list
    assert workspace.read("sales.then") == {then: rows[then], "main": rows[then]}
    assert workspace.metadata() == before
    table = workspace.icebergs["lake"].load_table("sales.then")
    table.append(table.scan().to_arrow())
    for name in ("sales.then", NAME):
        with pytest.raises(Refused, match="exists already"):
            restore_beside(runtime, ref(NAME), then, ref(name))
    workspace.unregister("sales.then")
    with pytest.raises(Refused):
        restore_beside(runtime, ref(NAME), "main", ref("sales.then"))


def _stranger(workspace: Workspace) -> None:
    workspace.plant(workspace.home / "copy", "photo.jpg")


def _of_another_table(workspace: Workspace) -> None:
    workspace.plant(workspace.home / "copy", MARKER, content=json.dumps({"table-uuid": "x", "location": "y"}).encode())


def _grown(workspace: Workspace) -> None:
    copied = copy(workspace)
    Path(copied.metadata_location.removeprefix("file://")).unlink()
    file = min((workspace.home / "copy" / "data").rglob("*.parquet"))
    file.write_bytes(file.read_bytes() + b"x")


def _other_metadata(workspace: Workspace) -> None:
    copied = copy(workspace)
    Path(copied.metadata_location.removeprefix("file://")).write_text("{}", encoding="utf-8")


@pytest.mark.parametrize("prepare", [_stranger, _of_another_table, _grown, _other_metadata])
def test_nothing_at_the_place_is_overwritten(workspace: Workspace, prepare: Callable[[Workspace], None]) -> None:
    """A place that holds anything but a copy of this table, as it was made, is refused and stays as it is."""
    workspace.table()
    prepare(workspace)
    place = workspace.home / "copy"
    before = {path: path.read_bytes() for path in place.rglob("*.*")}
    with pytest.raises(Refused):
        copy(workspace)
    assert {path: path.read_bytes() for path in place.rglob("*.*")} == before


@pytest.mark.parametrize("place", ["warehouse", f"warehouse/{NAME.replace('.', '/')}/copy", "link/copy"])
def test_no_table_is_copied_into_its_own_place_or_around_it(workspace: Workspace, place: str) -> None:
    """The files of the copy would be orphans of the table, or the table's those of the copy; links are followed."""
    (workspace.home / "link").symlink_to(workspace.table())
    with pytest.raises(Refused, match="meet"):
        copy(workspace, place)


@pytest.mark.parametrize("place", ["warehouse/sales/other/data/copy", "pool/copy", "link/copy"])
def test_no_table_is_copied_into_a_place_of_another(workspace: Workspace, place: str) -> None:
    """Orphan removal there would find the copy: neither in its location nor in a folder that it once wrote to."""
    workspace.table()
    other = workspace.icebergs["lake"].create_table(
        "sales.other", ROWS.schema, properties={"write.data.path": f"file://{workspace.home}/pool"}
    )
    (workspace.home / "link").symlink_to(workspace.home / "warehouse" / "sales" / "other")
    detect_and_evaluate(workspace.app.runtime, ["lake"], force=True)
    with other.transaction() as transaction:
        transaction.remove_properties("write.data.path")
    with pytest.raises(Refused, match=r"place of lake\.sales\.other meet"):
        copy(workspace, place)
    assert not (workspace.home / place).exists()
    workspace.unregister("sales.other")
    workspace.icebergs["lake"].create_table("sales.other", ROWS.schema, location=f"file://{workspace.home}/anew")
    copy(workspace, place)


@pytest.mark.parametrize("place", ["copies#1", "copies?1/orders", "copies\t1"])
def test_no_table_is_copied_where_readers_cut_paths(workspace: Workspace, place: str) -> None:
    """PyIceberg and S3FileIO take the rest for a fragment or a query, and would find none of the files."""
    workspace.table()
    with pytest.raises(UsageError, match="end a path"):
        copy(workspace, place, dry_run=True)


def test_a_copy_with_commits_of_its_own_is_not_copied_to(workspace: Workspace) -> None:
    """The files that an expiry of the copy lets go are there still, and a further copy would take them as its own."""
    workspace.table()
    first = copy(workspace)
    catalog = workspace.icebergs["pond"]
    catalog.register_table(NAME, first.metadata_location)
    table = workspace.icebergs["lake"].load_table(NAME)
    table.append(table.scan().to_arrow())
    copy(workspace, dry_run=True)
    workspace.run(EXPIRE, catalog="pond", deletion__delay_hours=24)
    with pytest.raises(Refused, match="commits of its own"):
        copy(workspace)
    assert len(metadata_files(workspace)) == 2


def test_a_copy_goes_on_where_the_table_has_moved(workspace: Workspace) -> None:
    """An error on a table that stays is raised at once; on one that others change all the time, after five attempts."""
    workspace.table()
    runtime, catalog = workspace.app.runtime, workspace.icebergs["lake"]
    workspace.detect()

    @dataclass
    class Failing:
        moving: bool
        attempts: int = 0

        def copy(self, request: CopyRequest) -> CopyResult:
            self.attempts += 1
            if self.moving:
                table = catalog.load_table(NAME)
                table.append(table.scan().to_arrow())
            raise MetadataUnreadable(f"{request.base.ref} cannot be read")

    for moving, attempts in ((False, 1), (True, 5)):
        engine: Any = Failing(moving)
        with pytest.raises(MetadataUnreadable):
            copy_table(replace(runtime, engine=engine), ref(NAME), f"file://{workspace.home}/copy")
        assert engine.attempts == attempts
    assert not runtime.store.pins.list(ref(NAME), workspace.metadata().table_uuid)


def test_beside_a_table_that_is_a_whole_bucket_is_no_place(workspace: Workspace) -> None:
    """The name of the new table would be that of another bucket."""
    craft = workspace.craft()
    workspace.commits(craft, [3])
    workspace.publish(craft, lambda document: document.update(location="s3://lake"))
    with pytest.raises(Refused, match="no place beside it"):
        restore_beside(workspace.app.runtime, ref(NAME), "main", ref("sales.then"), dry_run=True)


def test_a_snapshot_that_has_expired_is_not_copied(workspace: Workspace) -> None:
    """It went between the moment at which a person named it and the copy."""
    workspace.table()
    with pytest.raises(Refused, match="has expired meanwhile"):
        copy_table(workspace.app.runtime, ref(NAME), f"file://{workspace.home}/copy", snapshot_id=1)


@pytest.mark.parametrize("logged", [True, False])
def test_a_registered_copy_without_commits_is_copied_to(workspace: Workspace, logged: bool) -> None:
    """The table's log names the version that was copied, whose file is gone; or that is there, and the log is short."""
    workspace.table()
    table = workspace.icebergs["lake"].load_table(NAME)
    with table.transaction() as transaction:
        transaction.set_properties({"write.metadata.previous-versions-max": "100" if logged else "1"})
    first, old = copy(workspace), workspace.metadata_file()
    workspace.icebergs["pond"].register_table(NAME, first.metadata_location)
    for _ in range(2):
        table.append(table.scan().to_arrow())
    if logged:
        old.unlink()
    assert (old.name in " ".join(workspace.metadata().metadata_log)) is logged
    assert copy(workspace).files == 6


def test_an_encrypted_table_is_not_copied(workspace: Workspace) -> None:
    """Paths inside of encrypted files cannot be changed."""
    workspace.table()
    edit(workspace.metadata_file(), lambda document: document.update({"encryption-keys": [{"key-id": "1"}]}))
    with pytest.raises(UnsupportedTable):
        copy(workspace)


def _tampered_deletes(change: Callable[[bytes], bytes], **entry: Any) -> Callable[[Path], None]:
    """Let the newest file be one of position deletes, with another content and entry."""

    def tamper(folder: Path) -> None:
        def changed(record: Any) -> None:
            path = Path(record["data_file"]["file_path"].removeprefix("file://"))
            content = change(path.read_bytes())
            path.write_bytes(content)
            record["data_file"].update({"content": 1, "file_size_in_bytes": len(content)} | entry)

        changed_row_and_entry(setting("content", 1), changed)(folder)

    return tamper


_COMPRESSED = b"PFA1PFA1" + b"{}" + pack("<i", 2) + bytes([1, 0, 0, 0]) + b"PFA1"


@pytest.mark.parametrize(
    ("tamper", "error"),
    [
        pytest.param(changed_entry(setting("key_metadata", b"k")), UnsupportedTable, id="a file has a key"),
        pytest.param(changed_row(setting("key_metadata", b"k")), UnsupportedTable, id="a manifest has a key"),
        pytest.param(
            _tampered_deletes(lambda content: content, file_size_in_bytes=9**6),
            MetadataUnreadable,
            id="deletes are cut",
        ),
        pytest.param(
            _tampered_deletes(lambda content: b"Obj\x01" + content[4:]),
            UnsupportedTable,
            id="deletes in another format",
        ),
        pytest.param(
            _tampered_deletes(lambda _: _COMPRESSED, file_format="PUFFIN"), UnsupportedTable, id="a compressed footer"
        ),
    ],
)
def test_files_that_name_others_in_an_unknown_way_are_not_copied(
    workspace: Workspace, tamper: Callable[[Path], None], error: type[Exception]
) -> None:
    """Paths in them cannot be changed: nothing of the copy can be registered, and the error says why."""
    tamper(workspace.table(spec=BY_PART))
    with pytest.raises(error):
        copy(workspace)
    assert metadata_files(workspace) == []


def test_what_a_crash_hides_at_the_place_is_no_file_of_others(workspace: Workspace) -> None:
    """A write that died leaves a hidden file; the copy begins all the same."""
    workspace.table()
    workspace.plant(workspace.home / "copy", ".00000-half-written.avro.tmp")
    assert copy(workspace).present == 0


def test_statistics_are_those_of_the_snapshots_that_are_copied(workspace: Workspace) -> None:
    """Of one snapshot, its own; statistics of partitions too."""
    folder = workspace.table()
    snapshots = [one.snapshot_id for one in workspace.metadata().snapshots]
    known: dict[str, list[dict[str, Any]]] = {"statistics": [], "partition-statistics": []}
    for names, named in known.items():
        for number in snapshots[:2]:
            (path,) = workspace.plant(folder / "metadata", f"{number}.{names}")
            more = {"file-footer-size-in-bytes": 1, "blob-metadata": []} if names == "statistics" else {}
            size = {"file-size-in-bytes": 1, **more}
            named.append({"snapshot-id": number, "statistics-path": f"file://{path}", **size})
    edit(workspace.metadata_file(), lambda document: document.update(known))
    then = restore_beside(workspace.app.runtime, ref(NAME), str(snapshots[0]), ref("sales.then"))
    beside = workspace.metadata("sales.then")
    assert [one.snapshot_id for one in (*beside.statistics, *beside.partition_statistics)] == [snapshots[0]] * 2
    assert then.files == 5  # data, its manifest and list, and both statistics


def test_deletes_that_no_reader_applies_delete_nothing_in_the_copy(workspace: Workspace) -> None:
    """Readers compare paths letter for letter: `file:/x` in a position delete is not the data file `file:///x`."""
    craft, hour = workspace.craft(), timedelta(hours=1)
    data, deletes = craft.data({"id": [1, 2], "part": ["a", "b"]}), craft.equality_deletes({"id": [1]})
    craft.commit(workspace.clock.now() - 3 * hour, [data])
    craft.commit(workspace.clock.now() - 2 * hour, [craft.data({"id": [3], "part": ["c"]})], deletes=[deletes])
    pq.write_table(pa.table({"file_path": [f"file:{data.path}"], "pos": [0]}), deletes.path)
    size = deletes.path.stat().st_size

    def positions(entries: list[Any]) -> None:
        for entry in entries:
            if entry["data_file"]["content"]:
                entry["data_file"].update(content=1, equality_ids=None, file_size_in_bytes=size, split_offsets=None)

    metadata = workspace.publish(craft) / "metadata"
    for manifest in metadata.glob("*-m*.avro"):
        tamper_manifest(metadata, manifest, positions)
    (fault,) = workspace.app.runtime.engine.check(ref(NAME), CheckLevel.ROWS).faults
    assert (fault.kind, fault.path) == (FileFaultKind.WRONG_POSITIONS, f"file://{deletes.path}")
    rows = workspace.read()
    assert len(rows["main"]) == 3
    assert registered(workspace, copy(workspace)) == rows


def test_a_table_that_nobody_evaluated_is_not_copied_into_its_own_folders(workspace: Workspace) -> None:
    """Its properties say where it writes, and no catalog shows that."""
    home = f"file://{workspace.home}"
    places = {"write.data.path": f"{home}/pool", "write.metadata.path": f"{home}/versions"}
    table = workspace.icebergs["lake"].create_table(NAME, ROWS.schema, location=f"{home}/own", properties=places)
    table.append(ROWS)
    for place in ("own", "pool"):
        with pytest.raises(Refused, match="the table's own place"):
            copy_table(workspace.app.runtime, ref(NAME), f"{home}/{place}/copy")
