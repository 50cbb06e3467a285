"""Erasure: rows are found wherever they are kept, and no certificate says that they are gone before they are."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import threading
from collections import Counter
from contextlib import nullcontext
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField, StringType, StructType, UUIDType

from icewright.adapters.engines.service import row_search
from icewright.adapters.engines.service.row_search import RowSearch, Waiting
from icewright.core.cadence import Cadence
from icewright.core.copying import MARKER
from icewright.core.erasure import RowPlace, RowSearchReport
from icewright.core.errors import Refused, UsageError
from icewright.core.policy import Operation
from icewright.core.recovery import RecoveryPoint
from icewright.core.table import TableMetadata, TableRef
from icewright.flow.erase import certificate, certified, erase, signature
from icewright.ports import SnapshotPin
from tests.cases.conftest import ground, workspace
from tests.cases.test_integrity import DEEPER_FAULTS
from tests.cases.test_writer_states import FLINK
from tests.cases.workspace import BY_PART, EXPIRE, NAME, SCHEMA, Workspace, edit, ref

pytestmark = pytest.mark.external  # makes a lakehouse or a store for each test

__all__ = ["ground", "workspace"]

ANN = "part = 'ann'"
PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "erase-rows.md"
RECHECK = PAGE.read_text(encoding="utf-8").partition("```python\n")[2].partition("```")[0]


def find(workspace: Workspace, predicate: str = ANN) -> RowSearchReport:
    """The report on the table."""
    return workspace.app.runtime.engine.find_rows(ref(NAME), predicate)


def _tag(workspace: Workspace, snapshot_id: int, at: datetime) -> tuple[str, dict[str, Any]]:
    tag = RecoveryPoint(Cadence.DAILY, at.replace(hour=0, minute=0, second=0, microsecond=0), snapshot_id).tag
    assert tag.max_ref_age is not None
    milliseconds = tag.max_ref_age // timedelta(milliseconds=1)
    return tag.name, {"type": "tag", "snapshot-id": snapshot_id, "max-ref-age-ms": milliseconds}


def plant(workspace: Workspace) -> dict[str, Path]:
    """A table that keeps rows of Ann in each place in a file of its own, by the place's name."""
    craft = workspace.craft()
    now = workspace.clock.now()
    planted: dict[str, Path] = {}
    last = None
    for number, (place, ago) in enumerate(
        [("tag", 400), ("branch", 300), ("recovery_point", 200), ("waiting_deletion", 100), ("masked", 9)]
    ):
        file = craft.data({"id": [number, 100], "part": ["ann", "bob"]})
        last = craft.commit(now - timedelta(hours=ago), [file], replaced=last)
        planted[place] = file.path
    file = craft.data({"id": [6], "part": ["ann"]})
    gone = craft.commit(now - timedelta(hours=6), [file])
    planted["snapshot"] = file.path
    keys = craft.equality_deletes({"part": ["ann"]})
    craft.commit(now - timedelta(hours=4), [craft.data({"id": [7], "part": ["cid"]})], deletes=[keys], replaced=gone)
    planted["delete_keys"] = keys.path
    ids = [snapshot["snapshot-id"] for snapshot in craft.snapshots]
    craft.refs["audit"] = {"type": "tag", "snapshot-id": ids[0]}
    craft.refs["work"] = {"type": "branch", "snapshot-id": ids[1]}
    name, tag = _tag(workspace, ids[2], now - timedelta(hours=200))
    craft.refs[name] = tag
    workspace.publish(craft)
    workspace.job(EXPIRE, deletion__delay_hours=24)
    planted["orphan"] = craft.folder / "data" / "nobody.parquet"
    shutil.copy(planted["masked"], planted["orphan"])
    os.utime(planted["orphan"], (now.timestamp() - 360_000,) * 2)
    return planted


def test_files_with_matching_rows_are_read_again_at_once(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    """To tell what of them main shows, which takes as long for each where storage is far."""
    craft = workspace.craft()
    for ago in (3, 2, 1):
        craft.commit(workspace.clock.now() - timedelta(hours=ago), [craft.data({"id": [ago], "part": ["ann"]})])
    workspace.publish(craft)
    live, begun, together = row_search._Round._live, itertools.count(1), threading.Event()

    def meeting(one_round: Any, one: Any) -> int:
        if next(begun) > 1:
            together.set()
        assert together.wait(20)
        return live(one_round, one)

    monkeypatch.setattr(row_search._Round, "_live", meeting)
    assert [one.live_rows for one in find(workspace).found] == [1, 1, 1]


def test_rows_are_found_in_every_place_that_keeps_them(workspace: Workspace) -> None:
    """Each file is named with who keeps it, and each place with what has to happen; nothing is changed."""
    planted = plant(workspace)
    files = workspace.files()
    result = erase(workspace.app.runtime, ref(NAME), ANN, dry_run=True)
    found = {Path(one.path.removeprefix("file://")): one for one in result.after.found if one.file != "manifest"}
    for place, path in planted.items():
        assert RowPlace(place) in found[path].places, (place, found.get(path))
    assert set(found) == set(planted.values())
    assert {one.rows for one in result.after.found} == {1}
    manifests = [one.places for one in result.after.found if one.file == "manifest"]
    assert manifests.count((RowPlace.BOUNDS,)) == 1
    assert [step.place for step in result.steps] == [place for place in RowPlace if place != RowPlace.LIVE]
    now = workspace.clock.now()
    late = [step.place for step in result.steps if step.is_late(now + timedelta(hours=30))]
    assert late == [RowPlace.BRANCH, RowPlace.TAG, RowPlace.RECOVERY_POINT]
    times = {step.place: step.until for step in result.steps if step.until is not None}
    assert (RowPlace.SNAPSHOT in times, min(times.values()) > now) == (False, True), times  # old enough is now
    assert workspace.files() == files
    with pytest.raises(Refused, match="no certificate"):
        certificate(certified(result), b"key")


@pytest.mark.parametrize("keeper", ["Flink job 54b43d2b, checkpoint 6", "reader audit", "gc.enabled"])
def test_what_is_kept_beyond_its_age_is_late(workspace: Workspace, keeper: str) -> None:
    """No run removes what a writer's state, a reader or the table's property keeps: a person decides, or waits."""
    craft = workspace.craft(gc_enabled=str(keeper != "gc.enabled").lower())
    now = workspace.clock.now()
    first = craft.commit(now - timedelta(hours=90), [craft.data({"id": [1], "part": ["ann"]})])
    craft.snapshots[0]["summary"] |= FLINK if keeper.startswith("Flink") else {}
    craft.commit(now - timedelta(hours=80), [craft.data({"id": [7], "part": ["cid"]})], replaced=first)
    orphan = workspace.publish(craft) / "data" / "nobody.parquet"
    shutil.copy(first.files[0].path, orphan)
    workspace.age(orphan, 2)
    workspace.detect()
    if keeper.startswith("reader"):
        snapshot_id = craft.snapshots[0]["snapshot-id"]
        pin = SnapshotPin(keeper, snapshot_id, now, now + timedelta(days=9), "test")
        assert workspace.app.runtime.store.pins.add(ref(NAME), workspace.metadata().table_uuid, pin)
    steps = erase(workspace.app.runtime, ref(NAME), ANN, dry_run=True).steps
    late = {step.place: step for step in steps if step.is_late(now + timedelta(hours=30))}
    assert late.keys() == {RowPlace.SNAPSHOT, *([] if keeper.startswith("reader") else [RowPlace.ORPHAN])}, steps
    assert all(keeper in step.remedy and step.operation is None for step in late.values()), late


def test_rows_that_main_shows_are_not_deleted(workspace: Workspace) -> None:
    """While there are any, no operation runs: the rows would be rewritten, not erased."""
    workspace.table()
    workspace.detect()
    result = erase(workspace.app.runtime, ref(NAME), "part = 'p3' or part = 'p0'")
    # p0's file is in an old snapshot, and its entry in the manifest that took it out
    assert [(step.place, step.rows) for step in result.steps] == [(RowPlace.LIVE, 1), (RowPlace.SNAPSHOT, 2)]
    assert result.job is None


def test_what_cannot_be_read_is_no_proof(workspace: Workspace) -> None:
    """Files whose names are not known may have the rows: there is no certificate."""
    folder = workspace.table(spec=BY_PART)
    assert find(workspace, "part = 'zoe'").is_clean
    DEEPER_FAULTS["an entry has a status that there is not"][1](folder)
    (unread,) = find(workspace, "part = 'zoe'").unread
    assert unread.endswith(".avro")
    edit(workspace.metadata_file(), lambda document: document.pop("last-partition-id"))
    assert list(find(workspace, "part = 'zoe'").unread) == [workspace.metadata().metadata_location]


def test_a_paused_table_is_left_alone(workspace: Workspace) -> None:
    """Who paused a table wants no operation on it; a dry run still finds."""
    workspace.table()
    workspace.detect()
    workspace.app.runtime.store.tables.pause(ref(NAME), "we look into it")
    files = workspace.files()
    with pytest.raises(Refused, match="we look into it"):
        erase(workspace.app.runtime, ref(NAME), "part = 'p0'")
    assert erase(workspace.app.runtime, ref(NAME), "part = 'p0'", dry_run=True).after.found
    assert workspace.files() == files


def test_an_erasure_ends_with_a_certificate_that_names_every_file(
    workspace: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Old snapshots and orphans go by the operations that remove them, whatever the table's own settings keep.

    The script of the documentation agrees, until somebody changes the certificate or brings back a file, which may be
    one that it cannot read. Statistics of partitions, whose columns have ids of their own, are no rows of the table.
    """
    folder = workspace.table(spec=BY_PART)
    shutil.copy(min((folder / "data").rglob("*.parquet")), folder / "data" / "nobody.parquet")
    os.utime(folder / "data" / "nobody.parquet", (workspace.clock.now().timestamp() - 360_000,) * 2)
    assert workspace.run(Operation.COMPUTE_STATISTICS).metrics["partitions_counted"]
    result = erase(workspace.app.runtime, ref(NAME), "part in ('p0', 'p1')")
    assert result.job is not None
    assert [str(outcome.operation) for outcome in result.job.outcomes] == ["expire_snapshots", "remove_orphans"]
    assert Counter(one.file for one in result.before.found) == {"data": 3, "manifest": 2}
    assert not result.after.found
    content = certificate(certified(result), b"key")
    (live,) = (folder / "data").rglob("*.parquet")
    assert [file["path"] for file in content["files"]] == [f"file://{live}"]
    assert len(content["removed"]) == 5
    assert "statistics in Puffin files" in " ".join(content["not_searched"])
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ICEWRIGHT_ERASURE_KEY", "key")
    changes: list[dict[str, Any]] = [{"files": [], "folders": []}, {"predicate": "id = 9"}, {}]
    for changed in changes:
        (tmp_path / "erasure.json").write_text(json.dumps({**content, **changed}), encoding="utf-8")
        with pytest.raises(AssertionError, match="not the certificate") if changed else nullcontext():
            exec(RECHECK, {})  # noqa: S102 - our own page
    pq.write_table(pa.table({"id": [0], "part": ["p0"]}), folder / "data" / "back.parquet")
    with pytest.raises(AssertionError, match=r"back\.parquet has 1 matching rows"):
        exec(RECHECK, {})  # noqa: S102 - our own page
    for name in ("back.orc", "00000-0-back.avro"):
        (folder / "data" / name).write_bytes(b"")
        with pytest.raises(AssertionError, match=f"not read, as only Parquet is: .*{name}"):
            exec(RECHECK, {})  # noqa: S102 - our own page
    signed = content.pop("signature")
    assert (signature(content, b"key"), signature(content, b"other") == signed) == (signed, False)


def test_keys_that_may_name_a_row_count_as_found(workspace: Workspace) -> None:
    """Equality deletes on some of the predicate's columns match when these columns do; on none of them, never."""
    craft = workspace.craft()
    now = workspace.clock.now()
    craft.commit(now - timedelta(hours=9), [craft.data({"id": [1], "part": ["bob"]})])
    for hours, keys in ((8, {"id": [5]}), (7, {"id": [6]}), (6, {"part": ["ann"]})):
        more = [craft.data({"id": [hours + 10], "part": ["bob"]})]
        craft.commit(now - timedelta(hours=hours), more, deletes=[craft.equality_deletes(keys)])
    workspace.publish(craft)
    assert [(one.places[0], one.rows) for one in find(workspace, "part = 'ann' and id = 5").found] == [
        (RowPlace.DELETE_KEYS, 1)
    ] * 2
    assert [one.rows for one in find(workspace, "id = 6").found] == [1]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("data/nobody.parquet", b"PAR1 but cut"),
        ("data/nobody.orc", b"ORC..."),
        ("export.csv", b"1,ann"),
        ("n.avro", b"Obj\x01"),
    ],
)
def test_what_cannot_be_read_is_told_and_never_certified(workspace: Workspace, name: str, content: bytes) -> None:
    """A file in the table's folder may hold rows whatever it is."""
    folder = workspace.table()
    (folder / name).write_bytes(content)
    result = erase(workspace.app.runtime, ref(NAME), ANN, dry_run=True)
    assert [Path(path).name for path in result.after.unread] == [Path(name).name]
    assert not result.after.found
    with pytest.raises(Refused, match="1 file not read"):
        certificate(certified(result), b"key")


def test_values_in_bounds_of_files_that_are_gone_go_with_their_manifest(workspace: Workspace) -> None:
    """An entry of a file that a commit took out keeps its least and greatest values: the manifest is rewritten."""
    craft = workspace.craft()
    now = workspace.clock.now()
    gone = craft.commit(now - timedelta(hours=50), [craft.data({"id": [1, 2], "part": ["ann", "bob"]})])
    craft.commit(now - timedelta(hours=40), [craft.data({"id": [2], "part": ["bob"]})], replaced=gone)
    workspace.publish(craft)
    workspace.detect()
    (bounds,) = [one for one in find(workspace).found if RowPlace.BOUNDS in one.places]
    assert (bounds.file, bounds.rows) == ("manifest", 1)
    for predicate, found in [("id = 1", 1), ("id = 3", 0), ("id = 1 and part = 'cid'", 0), ("part is null", 0)]:
        places = [one.places for one in find(workspace, predicate).found]
        assert sum(RowPlace.BOUNDS in one for one in places) == found, predicate
    result = erase(workspace.app.runtime, ref(NAME), ANN)
    assert result.job is not None
    assert [str(outcome.operation) for outcome in result.job.outcomes] == ["rewrite_manifests", "expire_snapshots"]
    assert result.after.is_clean
    assert not [path for path in workspace.files() if path.suffix == ".avro" and _names_ann(path)]


def test_what_a_manifest_keeps_of_files_that_are_gone_is_found_in_structs_and_partitions(workspace: Workspace) -> None:
    """A bound of a column in a struct is a value as any other, and so is the partition of a file without bounds."""
    now = workspace.clock.now()
    for name, partition in (("sales.nested", {}), ("sales.parted", {"part": "ann"})):
        who = StructType(NestedField(4, "email", StringType()))
        schema = SCHEMA if partition else Schema(*SCHEMA.fields, NestedField(3, "who", who))
        craft = workspace.craft(name, schema=schema, spec=BY_PART if partition else UNPARTITIONED_PARTITION_SPEC)
        more = {} if partition else {"who": [{"email": "ann"}]}
        files = [craft.data({"id": [n], "part": ["ann"], **more}, **partition) for n in (1, 2)]
        bounds = None if partition else [{"key": 4, "value": b"ann"}]
        files[0] = replace(files[0], record={**files[0].record, "lower_bounds": bounds, "upper_bounds": bounds})
        gone = craft.commit(now - timedelta(hours=50), files[:1])
        craft.commit(now - timedelta(hours=40), files[1:], replaced=gone)
        workspace.publish(craft)
        report = workspace.app.runtime.engine.find_rows(ref(name), ANN if partition else "who.email = 'ann'")
        assert [one.rows for one in report.found if RowPlace.BOUNDS in one.places] == [1], name


def test_a_manifest_list_that_nobody_names_is_searched(workspace: Workspace) -> None:
    """It keeps the least and greatest values of the partitions of its manifests."""
    folder = workspace.table(spec=BY_PART)
    (kept,) = (path for path in folder.rglob("snap-*.avro") if path.name in str(workspace.metadata().snapshots[0]))
    shutil.copy(kept, folder / "metadata" / "snap-7-of-nobody.avro")
    for value, rows in ("p0", [1]), ("p1", []):
        found = [one for one in find(workspace, f"part = '{value}'").found if RowPlace.ORPHAN in one.places]
        assert [one.rows for one in found] == rows


def test_a_manifest_with_bounds_that_are_no_values_is_no_proof(workspace: Workspace) -> None:
    """What a writer cut is part of any value: the search goes on, and there is no certificate."""
    craft, now = workspace.craft(), workspace.clock.now()
    file, cut = craft.data({"id": [1], "part": ["bob"]}), [{"key": 1, "value": b"123"}, {"key": 2, "value": b"\xc3"}]
    gone = craft.commit(now - timedelta(hours=50), [replace(file, record={**file.record, "lower_bounds": cut})])
    craft.commit(now - timedelta(hours=40), [craft.data({"id": [2], "part": ["bob"]})], replaced=gone)
    workspace.publish(craft)
    for predicate in (ANN, "id = 7"):
        assert ["no value of its column" in why for why in find(workspace, predicate).unread.values()] == [True]


def test_values_of_a_dropped_column_are_found_by_a_name_that_another_has_now(workspace: Workspace) -> None:
    """Files keep the values of the dropped column; rows written since, which have none there, do not match."""
    workspace.table()

    def replace_part(document: dict[str, Any]) -> None:
        (old,) = document["schemas"]
        again = {"id": 9, "name": "part", "type": "long", "required": False}
        document["schemas"].append({**old, "schema-id": 7, "fields": [old["fields"][0], again]})
        document |= {"current-schema-id": 7, "last-column-id": 9}

    edit(workspace.metadata_file(), replace_part)
    edit(workspace.metadata_file(), lambda document: document["schemas"][0]["fields"][1].update(type="string"))
    for text, rows in [("part = '5'", 0), ("part is null", 4), ("part is null and id = 7", 0), ("id = 2", 1)]:
        report = find(workspace, text)
        assert sum(one.rows for one in report.found if one.file == "data") == rows, text
        assert report.earlier_columns == (({"part": 2},) if text == "part = '5'" else report.earlier_columns)
    with pytest.raises(UsageError, match="--where part = 5"):
        find(workspace, "part = 5")


def test_files_with_a_former_type_of_a_column_are_not_read(workspace: Workspace) -> None:
    """A table that is replaced gives a column the id that it had, whatever its type: there is no certificate."""
    workspace.table()

    def replace_type(document: dict[str, Any]) -> None:
        (old,) = document["schemas"]
        fields = [old["fields"][0], {**old["fields"][1], "type": "double"}]
        document["schemas"].append({**old, "schema-id": 7, "fields": fields})
        document["current-schema-id"] = 7

    edit(workspace.metadata_file(), replace_type)
    report = find(workspace, "part = 5.0")
    unread = [path for path, why in report.unread.items() if why == "a file has a column of large_string for double"]
    assert (len(unread), report.searched) == (4, ())


def test_a_former_partition_column_that_no_schema_has_any_more_is_no_obstacle(workspace: Workspace) -> None:
    """An expiry has removed the schemas that no snapshot names; the partition spec of the files is there still."""
    workspace.table(spec=BY_PART, hours=[100])

    def drop(document: dict[str, Any]) -> None:
        kept = [field for field in document["schemas"][0]["fields"] if field["name"] != "part"]
        document["schemas"][0]["fields"] = kept
        document["partition-specs"].append({"spec-id": 1, "fields": []})
        document["default-spec-id"] = 1

    edit(workspace.metadata_file(), drop)
    (found,) = find(workspace, "id = 0").found
    assert (found.rows, found.live_rows) == (1, 1)


def test_values_of_a_dropped_column_in_a_struct_are_found(workspace: Workspace) -> None:
    """A predicate may name it together with a column that the struct has got since."""
    struct = NestedField(2, "who", StructType(NestedField(3, "email", StringType())))
    craft = workspace.craft(schema=Schema(NestedField(1, "id", LongType()), struct))
    craft.commit(workspace.clock.now(), [craft.data({"id": [1, 2], "who": [{"email": "ann"}, None]})])
    workspace.publish(craft)

    def replace_email(document: dict[str, Any]) -> None:
        (old,) = document["schemas"]
        fields = [
            {"id": n, "name": name, "type": "string", "required": False} for n, name in ((9, "email"), (10, "tel"))
        ]
        who = {**old["fields"][1], "type": {"type": "struct", "fields": fields}}
        document["schemas"].append({**old, "schema-id": 7, "fields": [old["fields"][0], who]})
        document |= {"current-schema-id": 7, "last-column-id": 10}

    edit(workspace.metadata_file(), replace_email)
    for text, rows in [
        ("who.email = 'ann'", 1),
        ("who.email = 'ann' and who.tel is null", 1),
        ("who.tel = 'ann'", 0),
        ("who is null and id = 2", 1),
    ]:
        assert sum(one.rows for one in find(workspace, text).found) == rows, text


def test_an_orphan_without_the_column_of_its_partition_may_hold_the_row(workspace: Workspace) -> None:
    """Hive's writers leave that column out of the file: what else the predicate says tells which rows may match."""
    folder = workspace.table(spec=BY_PART)
    number = pa.field("id", pa.int64(), metadata={"PARQUET:field_id": "1"})
    pq.write_table(pa.table({"id": [8, 9]}, schema=pa.schema([number])), folder / "data" / "nobody.parquet")
    for text, rows in [(ANN, 2), ("part = 'ann' and id = 8", 1), ("part = 'ann' and id = 5", 0), ("id = 9", 1)]:
        assert [one.rows for one in find(workspace, text).found if RowPlace.ORPHAN in one.places] == [rows][: rows > 0]


def test_rows_are_found_by_uuids_and_by_columns_of_any_name(workspace: Workspace) -> None:
    """Also in bounds; and a copy of a table is searched as the table is, whose marker holds no row."""
    one, other = UUID(int=1), UUID(int=2)
    craft = workspace.craft(
        schema=Schema(NestedField(1, "user", UUIDType()), NestedField(2, "e-mail, x", StringType()))
    )
    gone = craft.commit(workspace.clock.now(), [craft.data({"user": [one.bytes], "e-mail, x": ["ann"]})])
    craft.commit(workspace.clock.now(), [craft.data({"user": [other.bytes], "e-mail, x": ["bob"]})], replaced=gone)
    folder = workspace.publish(craft)
    for text in (
        f"user = '{one}'",
        f"user in ('{one}', '{UUID(int=3)}')",
        f"user <= '{one}'",
        "\"e-mail, x\" = 'ann'",
    ):
        assert [each.file for each in find(workspace, text).found] == ["data", "manifest"], text
    (folder / MARKER).write_text("{}")
    assert find(workspace, f"user = '{UUID(int=3)}'").is_clean


def _names_ann(path: Path) -> bool:
    with path.open("rb") as file:
        return any(b"ann" in repr(record).encode() for record in fastavro.reader(file))


@pytest.mark.parametrize("row", [None, [{"id": 1, "part": "ann"}]])
def test_position_deletes_that_keep_deleted_rows_are_never_certified(
    workspace: Workspace, row: list[dict[str, Any]] | None
) -> None:
    """The format lets a position delete file keep the rows that it deletes; without them it has nothing to find."""
    columns = {"file_path": ["data/a.parquet"], "pos": [0]} | ({"row": row} if row else {})
    pq.write_table(pa.table(columns), workspace.table() / "data" / "deletes.parquet")
    report = find(workspace)
    assert {Path(path).name for path in report.unread} == ({"deletes.parquet"} if row else set())
    assert report.is_clean is (row is None)


def test_a_column_is_found_under_the_names_that_it_had(workspace: Workspace) -> None:
    """Files keep a renamed column's old name and a dropped column's values: field ids tell them."""
    workspace.table()

    def evolve(document: dict[str, Any]) -> None:
        old = document["schemas"][0]
        ident, part = old["fields"]
        document["schemas"].append({**old, "schema-id": 7, "fields": [{**ident, "name": "number"}]})
        document["current-schema-id"] = 7
        assert part["name"] == "part"

    edit(workspace.metadata_file(), evolve)
    report = find(workspace, "number = 2 and part = 'p2'")
    assert [(one.file, one.rows) for one in report.found] == [("data", 1), ("manifest", 1)]


def test_files_that_are_committed_during_the_search_are_read(workspace: Workspace) -> None:
    """The state that a report names is that of the table when the search has ended."""
    workspace.table()
    catalog = workspace.app.runtime.catalogs["lake"]
    table = workspace.icebergs["lake"].load_table(NAME)
    loads = []

    class Busy:
        """The catalog, in which a writer commits after the first load."""

        def __getattr__(self, name: str) -> Any:
            return getattr(catalog, name)

        def load(self, one: TableRef) -> TableMetadata:
            loads.append(catalog.load(one))
            if len(loads) == 1:
                table.append(pa.table({"id": pa.array([9], pa.int64()), "part": ["ann"]}))
            return loads[-1]

    nothing = Waiting(frozenset(), (), None)
    search = RowSearch(workspace.app.runtime.files, Busy(), ANN, lambda m: ([m.location], []), lambda _: nothing)
    report = search.run(ref(NAME))
    assert [one.places for one in report.found] == [(RowPlace.LIVE,)]
    assert report.metadata_location == workspace.metadata().metadata_location != loads[0].metadata_location


@pytest.mark.parametrize("text", ["part = ", "nobody = 1", "id = 'x'", "true", "part = 'a'; drop table x"])
def test_a_predicate_that_is_none_is_refused_with_an_example(workspace: Workspace, text: str) -> None:
    """The message says what is wrong, and how a predicate is written."""
    workspace.table()
    with pytest.raises(UsageError, match="--where"):
        find(workspace, text)
