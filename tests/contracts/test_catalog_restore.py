"""What every catalog does: put back what an expiry removed, as it was, or say before what does not come back."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from pyiceberg.table import Table

from icewright.adapters.catalogs.rest import restoring
from icewright.adapters.metadata.changes import restoration
from icewright.app.demo.craft import Craft
from icewright.core.errors import CommitConflict, InvariantViolated, Refused
from icewright.core.table import MAIN, TableMetadata
from icewright.core.vacuum import Reference
from icewright.ports import RemoveSnapshots, RestoreSnapshots
from tests.contracts.bench import NOW, Bench, edit, file_of, json_of, only_sql, removal, removes, where
from tests.contracts.nessie_bench import NessieBench
from tests.contracts.rest_bench import RestBench

only_rest = where(lambda kind: kind.name == "rest")
only_nessie = where(lambda kind: kind.name == "nessie")
ORDERS = ("sales", "orders")


def _named(craft: Craft) -> None:
    """A tag and a branch on the two oldest snapshots, with retention of their own, and statistics of two."""
    ids = [snapshot["snapshot-id"] for snapshot in craft.snapshots]
    craft.refs["v1"] = {"snapshot-id": ids[0], "type": "tag", "max-ref-age-ms": 5_000_000}
    craft.refs["dev"] = {"snapshot-id": ids[1], "type": "branch", "min-snapshots-to-keep": 7}


def _expiry(base: TableMetadata, *indexes: int, refs: tuple[str, ...] = ("v1", "dev")) -> RemoveSnapshots:
    return removal(base, *(indexes or (0, 1, 3)), refs=refs)


def _undo(base: TableMetadata, change: RemoveSnapshots) -> RestoreSnapshots:
    """The change that undoes an expiry, through JSON as a store keeps it."""
    made = restoration(file_of(base.metadata_location).read_bytes(), base.metadata_location, change)
    again = RestoreSnapshots.from_json(json.loads(json.dumps(made.to_json())))
    assert again == made
    return again


def _expired(bench: Bench, base: TableMetadata, change: RemoveSnapshots) -> TableMetadata:
    after: TableMetadata = bench.catalog.commit(base, change)
    assert not change.snapshot_ids & after.by_id.keys()
    return after


def _rows(table: Table) -> dict[Any, list[int]]:
    """The rows of each snapshot and of each ref."""
    ids: dict[Any, int] = {s.snapshot_id: s.snapshot_id for s in table.snapshots()}
    ids |= {name: ref.snapshot_id for name, ref in table.metadata.refs.items()}
    scans = {key: table.scan(snapshot_id=i).to_arrow()["id"].to_pylist() for key, i in ids.items()}
    return {key: sorted(rows) for key, rows in scans.items()}


def _as_of(table: Table) -> list[int | None]:
    """The snapshot that time travel finds at each half hour."""
    times = [NOW - timedelta(minutes=30 * n) for n in range(30)]
    found = [table.snapshot_as_of_timestamp(int(time.timestamp() * 1000)) for time in times]
    return [snapshot.snapshot_id if snapshot else None for snapshot in found]


def _files(bench: Bench) -> set[str]:
    return {str(path) for path in bench.warehouse.rglob("*.metadata.json")}


@removes
def test_what_an_expiry_removed_is_back_as_it_was(bench: Bench) -> None:
    """Every snapshot, tag and branch, as JSON and as PyIceberg reads them; of the rest nothing changed."""
    base = bench.craft("sales.orders", 6, _named)
    theirs = _rows(bench.read(*ORDERS))
    change = _expiry(base)
    undo = _undo(base, change)
    expired = _expired(bench, base, change)
    assert ("history" in bench.catalog.unrestorable(expired, undo)) == isinstance(bench, RestBench)
    after = bench.catalog.commit(expired, undo)
    assert after == bench.catalog.load(base.ref)
    old, now = json_of(base.metadata_location), json_of(after.metadata_location)
    unlike = {"metadata-log", "last-updated-ms"}
    if isinstance(bench, RestBench):  # whose server appends what is added, and writes what it understands of schemas
        unlike |= {"snapshot-log", "schemas"}
        now["snapshots"].sort(key=lambda s: s["sequence-number"])
    assert {k: v for k, v in now.items() if k not in unlike} == {k: v for k, v in old.items() if k not in unlike}
    assert now["last-updated-ms"] >= json_of(expired.metadata_location)["last-updated-ms"]
    assert after.metadata_log == (*base.metadata_log, base.metadata_location, expired.metadata_location)
    assert _rows(bench.read(*ORDERS)) == theirs


@removes
def test_a_second_restore_changes_nothing(bench: Bench) -> None:
    """What is there already is no commit: no file is written, and the same metadata is returned."""
    base = bench.craft("sales.orders", 6, _named)
    change = _expiry(base)
    undo = _undo(base, change)
    after = bench.catalog.commit(_expired(bench, base, change), undo)
    files = _files(bench)
    assert bench.catalog.commit(after, undo) is after
    assert _files(bench) == files
    assert bench.catalog.unrestorable(after, undo) == "" or isinstance(bench, RestBench)
    assert bench.catalog.load(base.ref).metadata_location == after.metadata_location


@removes
def test_the_table_goes_on(bench: Bench) -> None:
    """What was written since the expiry stays current, and the next commit goes on top of it."""
    base = bench.craft("sales.orders", 4, _named)
    change = _expiry(base, 0, 1)
    undo = _undo(base, change)
    _expired(bench, base, change)
    table = bench.read(*ORDERS)
    table.append(table.scan().to_arrow().slice(0, 1))
    since = bench.catalog.load(base.ref)
    after = bench.catalog.commit(since, undo)
    assert after.current_snapshot_id == since.current_snapshot_id != base.current_snapshot_id
    assert after.last_sequence_number == since.last_sequence_number
    assert after.by_id.keys() == base.by_id.keys() | since.by_id.keys()
    theirs = bench.read(*ORDERS)
    theirs.append(theirs.scan().to_arrow().slice(0, 1))
    assert theirs.scan().to_arrow().num_rows == 6
    assert bench.catalog.load(base.ref).last_sequence_number == since.last_sequence_number + 1


@removes
def test_a_ref_whose_name_is_taken_stays_where_it_is(bench: Bench) -> None:
    """It is said before; the others come back."""
    base = bench.craft("sales.orders", 4, _named)
    change = _expiry(base, 0, 1)
    undo = _undo(base, change)
    _expired(bench, base, change)
    bench.read(*ORDERS).manage_snapshots().create_tag(int(base.current_snapshot_id or 0), "v1").commit()
    now = bench.catalog.load(base.ref)
    said = bench.catalog.unrestorable(now, undo)
    assert f"tag v1, as somebody has set v1 on snapshot {base.current_snapshot_id} since" in said
    assert "dev" not in said
    refs = {r.name: r for r in bench.catalog.commit(now, undo).refs}
    assert (refs["v1"].snapshot_id, refs["dev"].snapshot_id) == (
        base.current_snapshot_id,
        base.snapshots[1].snapshot_id,
    )
    assert refs["dev"].min_snapshots_to_keep == 7


@removes
def test_a_ref_whose_snapshot_another_expiry_removed(bench: Bench) -> None:
    """It cannot be back, and that is said."""
    base = bench.craft("sales.orders", 4, _named)
    change = removal(base, refs=("v1",))
    undo = _undo(base, change)
    now = _expired(bench, _expired(bench, base, change), removal(base, 0))
    first = base.snapshots[0].snapshot_id
    assert f"tag v1, as its snapshot {first} is gone by another commit" in bench.catalog.unrestorable(now, undo)
    assert bench.catalog.commit(now, undo) is now


def _restorable(bench: Bench, *, done: bool) -> tuple[TableMetadata, RestoreSnapshots]:
    """Return a table after an expiry and the change that undoes it, or with `done` the table after that too."""
    base = bench.craft("sales.orders", 4, _named)
    change = _expiry(base, 0, 1)
    undo = _undo(base, change)
    old = _expired(bench, base, change)
    return bench.catalog.commit(old, undo) if done else old, undo


@removes
@pytest.mark.parametrize("done", [False, True])
def test_a_restore_on_what_is_not_current_is_a_conflict(bench: Bench, *, done: bool) -> None:
    """Whether there is something to do or not; no file is left behind."""
    old, undo = _restorable(bench, done=done)
    bench.read(*ORDERS).transaction().set_properties({"x": "y"}).commit_transaction()
    files = _files(bench)
    with pytest.raises(CommitConflict):
        bench.catalog.commit(old, undo)
    assert _files(bench) == files


@removes
@pytest.mark.parametrize("done", [False, True])
def test_a_restore_of_a_table_that_is_gone_is_a_conflict(bench: Bench, *, done: bool) -> None:
    """A table that was dropped is no table to restore, whether there is something to do or not."""
    old, undo = _restorable(bench, done=done)
    bench.iceberg.drop_table(ORDERS)
    with pytest.raises(CommitConflict):
        bench.catalog.commit(old, undo)


@removes
def test_another_table_of_the_name_gets_nothing(bench: Bench) -> None:
    """Snapshots of a table that was dropped do not come into the one that has its name now."""
    base = bench.craft("sales.orders", 4, _named)
    undo = _undo(base, _expiry(base, 0, 1))
    bench.iceberg.drop_table(ORDERS)
    bench.create(*ORDERS)
    other = bench.catalog.load(base.ref)
    assert bench.catalog.unrestorable(other, undo).startswith("nothing: ")
    with pytest.raises(Refused, match=f"another table now .*{other.table_uuid}.*{base.table_uuid}"):
        bench.catalog.commit(other, undo)


@removes
def test_statistics_are_back(bench: Bench) -> None:
    """Statistics and partition statistics of the snapshots, whole and once."""
    base = bench.craft("sales.orders", 3)
    ids = [s.snapshot_id for s in base.snapshots]
    one = {"file-size-in-bytes": 5, "file-footer-size-in-bytes": 1, "blob-metadata": []}
    table = [{"snapshot-id": i, "statistics-path": f"file:///s{i}", **one} for i in ids]
    partitions = [{"snapshot-id": i, "statistics-path": f"file:///p{i}", "file-size-in-bytes": 7} for i in ids]
    edit(base.metadata_location, statistics=table, partition_statistics=partitions)
    base = bench.catalog.load(base.ref)
    change = removal(base, 0, 1)
    undo = _undo(base, change)
    after = bench.catalog.commit(_expired(bench, base, change), undo)
    now = json_of(after.metadata_location)
    for name, wanted in (("statistics", table), ("partition-statistics", partitions)):
        assert {f["snapshot-id"]: f for f in now[name]} == {f["snapshot-id"]: f for f in wanted}
    assert bench.catalog.commit(after, undo) is after


def _evolved(bench: Bench) -> TableMetadata:
    """A table whose oldest snapshot alone used partition spec 0 and schema 0."""
    base = bench.craft("sales.orders", 3)
    document = json_of(base.metadata_location)
    (schema,), (spec,) = document["schemas"], document["partition-specs"]
    newer = {
        **spec,
        "spec-id": 1,
        "fields": [{"source-id": 1, "field-id": 1000, "name": "id", "transform": "identity"}],
    }
    edit(
        base.metadata_location,
        schemas=[schema, {**schema, "schema-id": 1}],
        partition_specs=[spec, newer],
        current_schema_id=1,
        default_spec_id=1,
        last_partition_id=1000,
    )
    loaded: TableMetadata = bench.catalog.load(base.ref)
    return loaded


@only_sql
def test_specs_and_schemas_are_back(bench: Bench) -> None:
    """Those that went with the snapshots that used them."""
    base = _evolved(bench)
    change = RemoveSnapshots(frozenset({base.snapshots[0].snapshot_id}), frozenset(), frozenset({0}), frozenset({0}))
    undo = _undo(base, change)
    expired = _expired(bench, base, change)
    assert bench.catalog.unrestorable(expired, undo) == ""
    after = bench.catalog.commit(expired, undo)
    old, now = json_of(base.metadata_location), json_of(after.metadata_location)
    for name, key in (("schemas", "schema-id"), ("partition-specs", "spec-id")):
        assert sorted(now[name], key=lambda item: item[key]) == old[name]
    assert bench.catalog.commit(after, undo) is after


@only_sql
@pytest.mark.parametrize("name", ["schemas", "partition-specs"])
def test_an_id_that_means_something_else_now(bench: Bench, name: str) -> None:
    """Iceberg gives the id of a removed spec or schema again: files that were written by it would be misread."""
    base = _evolved(bench)
    change = RemoveSnapshots(frozenset({base.snapshots[0].snapshot_id}), frozenset(), frozenset({0}), frozenset({0}))
    undo = _undo(base, change)
    expired = _expired(bench, base, change)
    other: dict[str, Any] = {
        "schemas": {
            "type": "struct",
            "schema-id": 0,
            "fields": [{"id": 2, "name": "x", "required": False, "type": "int"}],
        },
        "partition-specs": {
            "spec-id": 0,
            "fields": [{"source-id": 1, "field-id": 1001, "name": "b", "transform": "bucket[4]"}],
        },
    }
    now = json_of(expired.metadata_location)
    edit(expired.metadata_location, **{name: [*now[name], other[name]]})
    expired = bench.catalog.load(base.ref)
    files = _files(bench)
    with pytest.raises(
        Refused, match=r"(schema|partition spec) 0, by which the snapshots are read, is another one now"
    ):
        bench.catalog.commit(expired, undo)
    assert bench.catalog.unrestorable(expired, undo).startswith("nothing: ")
    assert _files(bench) == files


@only_sql
def test_a_table_that_began_anew(bench: Bench) -> None:
    """A snapshot with a number that the table has not reached would make it unreadable."""
    base = bench.craft("sales.orders", 3)
    change = removal(base, 0)
    undo = _undo(base, change)
    expired = _expired(bench, base, change)
    edit(expired.metadata_location, last_sequence_number=0)
    with pytest.raises(Refused, match="which began anew"):
        bench.catalog.commit(bench.catalog.load(base.ref), undo)


@only_sql
@pytest.mark.parametrize("first", ["older", "newer"])
def test_time_travel_reads_no_wrong_snapshot(bench: Bench, first: str) -> None:
    """Two expiries undone in either order: at no moment does a time lead to a snapshot that was not current then."""
    base = bench.craft("sales.orders", 8)
    right = _as_of(bench.read(*ORDERS))
    older = removal(base, 0, 1, 2)
    undo_older = _undo(base, older)
    between = _expired(bench, base, older)
    newer = RemoveSnapshots(frozenset(s.snapshot_id for s in base.snapshots[3:6]), frozenset())
    undo_newer = _undo(between, newer)
    now = _expired(bench, between, newer)
    for undo in (undo_older, undo_newer) if first == "older" else (undo_newer, undo_older):
        said = bench.catalog.unrestorable(now, undo)
        assert ("time travel to before" in said) == (first == "older" and undo is undo_older)
        now = bench.catalog.commit(now, undo)
        for found, wanted in zip(_as_of(bench.read(*ORDERS)), right, strict=True):
            assert found in (wanted, None)
    assert now.by_id.keys() == base.by_id.keys()
    assert [s.snapshot_id for s in now.snapshots] == [s.snapshot_id for s in base.snapshots]
    if first == "newer":
        assert _as_of(bench.read(*ORDERS)) == right
    else:  # the older history finds its place with a second restore
        now = bench.catalog.commit(now, undo_older)
        assert _as_of(bench.read(*ORDERS)) == right
    assert bench.catalog.commit(now, undo_older) is now


@only_sql
@pytest.mark.parametrize("absent", [1, 2])
def test_a_snapshot_that_is_gone_leaves_no_hole_in_the_history(bench: Bench, absent: int) -> None:
    """History before a snapshot that does not return stays away."""
    base = bench.craft("sales.orders", 5)
    change = removal(base, 0, 1, 2)
    whole = _undo(base, change)
    undo = RestoreSnapshots.from_json(
        {**whole.to_json(), "snapshots": [*whole.snapshots[:absent], *whole.snapshots[absent + 1 :]]}
    )
    expired = _expired(bench, base, change)
    first = base.snapshots[absent + 1].timestamp.isoformat(timespec="seconds")
    assert f"time travel to before {first}" in bench.catalog.unrestorable(expired, undo)
    after = bench.catalog.commit(expired, undo)
    log = [entry["snapshot-id"] for entry in json_of(after.metadata_location)["snapshot-log"]]
    assert log == [s.snapshot_id for s in base.snapshots[absent + 1 :]]
    assert bench.catalog.commit(after, undo) is after


@only_sql
@pytest.mark.parametrize("version", [2, 3])
def test_what_is_not_understood_is_back_too(bench: Bench, version: int) -> None:
    """Fields of format v3, and of formats to come, in snapshots and refs, exactly."""
    base = bench.craft("sales.orders", 4, _named)
    document = json_of(base.metadata_location)
    for number, snapshot in enumerate(document["snapshots"]):
        snapshot |= {"future": {"a": [number, 2.5, None, "é"]}, "first-row-id": 10 * number, "added-rows": 10}
    document["refs"]["v1"] |= {"future": [1]}
    edit(
        base.metadata_location,
        **{"format-version": version, "next-row-id": 40},
        snapshots=document["snapshots"],
        refs=document["refs"],
    )
    base = bench.catalog.load(base.ref)
    change = _expiry(base, 0, 1)
    undo = _undo(base, change)
    after = bench.catalog.commit(_expired(bench, base, change), undo)
    old, now = json_of(base.metadata_location), json_of(after.metadata_location)
    assert (now["snapshots"], now["refs"], now["next-row-id"]) == (old["snapshots"], old["refs"], 40)


@only_sql
def test_main_is_named_where_no_ref_said_so(bench: Bench) -> None:
    """Metadata of older writers has no refs: one that is put back does not come without main."""
    base = bench.craft("sales.orders", 3, _named)
    change = removal(base, refs=("v1", "dev"))
    undo = _undo(base, change)
    expired = _expired(bench, base, change)
    document = json_of(expired.metadata_location)
    del document["refs"]
    file_of(expired.metadata_location).write_text(json.dumps(document), encoding="utf-8")
    after = bench.catalog.commit(bench.catalog.load(base.ref), undo)
    refs = json_of(after.metadata_location)["refs"]
    assert refs.keys() == {MAIN, "v1", "dev"}
    assert refs[MAIN]["snapshot-id"] == base.current_snapshot_id


@only_rest
def test_a_rest_server_takes_no_history_back(bench: RestBench) -> None:
    """It is said before; time travel finds nothing then, and no wrong snapshot."""
    base = bench.craft("sales.orders", 4, _named)
    right = _as_of(bench.read(*ORDERS))
    change = _expiry(base, 0, 1)
    undo = _undo(base, change)
    expired = _expired(bench, base, change)
    since = base.snapshots[2].timestamp.isoformat(timespec="seconds")
    said = f"time travel to before {since}: REST servers take no history back"
    assert bench.catalog.unrestorable(expired, undo) == said
    bench.catalog.commit(expired, undo)
    assert all(found in (wanted, None) for found, wanted in zip(_as_of(bench.read(*ORDERS)), right, strict=True))


@only_rest
def test_a_rest_server_numbers_specs_and_schemas_anew(bench: RestBench) -> None:
    """So snapshots that were written by a removed one cannot be read again: it is said before, and refused."""
    base = _evolved(bench)
    change = RemoveSnapshots(frozenset({base.snapshots[0].snapshot_id}), frozenset(), frozenset({0}), frozenset({0}))
    undo = _undo(base, change)
    expired = _expired(bench, base, change)
    assert bench.catalog.unrestorable(expired, undo).startswith("nothing: ")
    with pytest.raises(Refused, match="clean_expired_metadata"):
        bench.catalog.commit(expired, undo)
    assert bench.catalog.load(base.ref) == expired


@only_rest
@pytest.mark.parametrize("which", ["of version 1", "of version 3", "without parents", "whose parents are gone"])
def test_snapshots_that_a_rest_server_would_not_take(bench: RestBench, which: str) -> None:
    """Old numbers, rows that are numbered already, and roots come back all the same, and the table goes on."""
    base = bench.craft("sales.orders", 5, _named)
    document = json_of(base.metadata_location)
    for number, snapshot in enumerate(document["snapshots"]):
        match which:
            case "of version 1":
                snapshot.update({"sequence-number": 0} if number < 3 else {})
            case "of version 3":
                snapshot.update({"first-row-id": number, "added-rows": 1})
            case "without parents":
                snapshot.pop("parent-snapshot-id", None)
    version = {"format-version": 3, "next-row-id": 5} if which == "of version 3" else {}
    edit(base.metadata_location, **version, snapshots=document["snapshots"])
    base = bench.catalog.load(base.ref)
    if which == "whose parents are gone":
        base = _expired(bench, base, _expiry(base, 0, 1))
    change = RemoveSnapshots(
        frozenset(s.snapshot_id for s in base.snapshots[:-2]), frozenset(r.name for r in base.refs) - {MAIN}
    )
    undo = _undo(base, change)
    expired = _expired(bench, base, change)
    assert ("first-row-id" in bench.catalog.unrestorable(expired, undo)) == (which == "of version 3")
    after = bench.catalog.commit(expired, undo)
    assert sorted(after.snapshots, key=lambda s: s.timestamp) == list(base.snapshots)
    assert set(after.refs) == set(base.refs)
    assert after.last_sequence_number == base.last_sequence_number
    assert json_of(after.metadata_location).get("next-row-id") == version.get("next-row-id")
    if which != "of version 3":
        theirs = bench.read(*ORDERS)
        theirs.append(theirs.scan().to_arrow().slice(0, 1))
        assert theirs.scan().to_arrow().num_rows == 6


@only_rest
def test_a_rest_server_that_leaves_what_it_should_remove(bench: RestBench, monkeypatch: pytest.MonkeyPatch) -> None:
    """What does not apply the updates one after the other is told, and no file is deleted."""
    base = bench.craft("sales.orders", 4)
    change = removal(base, 0)
    undo = _undo(base, change)
    expired = _expired(bench, base, change)
    real: Callable[..., list[Any]] = bench.catalog._client.send

    def send(method: str, path: str, *size: Any, **request: Any) -> Any:
        if method == "POST":
            asked = json.loads(request["data"])
            asked["updates"] = [u for u in asked["updates"] if u["action"] != "remove-snapshots"]
            request["data"] = json.dumps(asked).encode()
        return real(method, path, *size, **request)

    monkeypatch.setattr(bench.catalog._client, "send", send)
    with pytest.raises(InvariantViolated, match="no file is deleted"):
        bench.catalog.commit(expired, undo)
    assert restoring.placeholder_ids([]) == set()


@only_nessie
def test_a_branch_gets_its_snapshots_back_by_one_commit(bench: NessieBench) -> None:
    """What a vacuum expired on it; a second restore is no commit."""
    base = bench.craft("sales.orders", 5)
    change = removal(base, 0, 1)
    undo = _undo(base, change)
    bench.catalog.expire(*_head(bench), base, change)
    expired = bench.catalog.load(base.ref)
    assert not expired.by_id.keys() & change.snapshot_ids
    assert bench.catalog.unrestorable(expired, undo) == ""
    before = len(list(bench.catalog.log(_head(bench)[0])))
    after = bench.catalog.commit(expired, undo)
    head, content = _head(bench)
    assert content.metadata_location == after.metadata_location
    assert [s.snapshot_id for s in after.snapshots] == [s.snapshot_id for s in base.snapshots]
    assert len(list(bench.catalog.log(head))) == before + 1
    assert bench.catalog.commit(after, undo) is after
    assert _head(bench)[0] == head
    assert _rows(bench.read(*ORDERS))[base.snapshots[0].snapshot_id] == [0]


@only_nessie
def test_a_branch_that_moved_gets_nothing_back(bench: NessieBench) -> None:
    """A restore on a branch that moved meanwhile is a conflict."""
    base = bench.craft("sales.orders", 5)
    undo = _undo(base, removal(base, 0))
    table = bench.read(*ORDERS)
    table.append(table.scan().to_arrow().slice(0, 1))
    with pytest.raises(CommitConflict):
        bench.catalog.commit(base, undo)


def _head(bench: NessieBench) -> tuple[Reference, Any]:
    (reference,) = bench.catalog.references()
    return reference, bench.catalog.tables(reference)[ORDERS]
