"""Changes of metadata files, field by field: what each sets, leaves and refuses, in files of older writers too."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import pytest

from icewright.adapters.metadata.changes import Restored, apply_change, restoration, restore, unrestorable
from icewright.adapters.metadata.document import Editor, decode, encode
from icewright.core.errors import Refused
from icewright.core.table import RefKind, SnapshotRef
from icewright.ports import AddSnapshot, Change, RemoveSnapshots, RestoreSnapshots, SetRefs, SetStatistics
from tests.adapters.test_metadata import NOW, document

IDS = [snapshot["snapshot-id"] for snapshot in document()["snapshots"]]
FIRST, SECOND, HEAD = IDS
MILLIS = int(NOW.timestamp() * 1000)
SPECS = [{"spec-id": 0, "fields": []}, {"spec-id": 1, "fields": [{"name": "x", "doc": None}]}]
SCHEMAS = [{"schema-id": 0, "fields": []}, {"schema-id": 1, "fields": [{"name": "x"}]}]
BRANCH, TAG = RefKind.BRANCH, RefKind.TAG
Json = Mapping[str, Any]


def without(*names: str, **more: Any) -> dict[str, Any]:
    """A file of a writer that leaves these fields out."""
    return {name: value for name, value in document(**more).items() if name not in names}


def changed(before: Json, change: Change) -> dict[str, Any]:
    """The file after a change."""
    found = apply_change(decode(json.dumps(before).encode(), "m0"), "m0", change, NOW)
    after: dict[str, Any] = json.loads(encode(found))
    return after


def removal(*ids: int, refs: tuple[str, ...] = (), specs: tuple[int, ...] = (), schemas: tuple[int, ...] = ()) -> Any:
    """The removal of these."""
    return RemoveSnapshots(frozenset(ids), frozenset(refs), frozenset(specs), frozenset(schemas))


def main(snapshot_id: int, **more: Any) -> dict[str, Any]:
    """Main, and nothing else."""
    return {"main": {"snapshot-id": snapshot_id, "type": "branch", **more}}


ADDED = {"snapshot-id": 5, "timestamp-ms": 1, "manifest-list": "x"}


@pytest.mark.parametrize("refs", [{}, {"refs": None}, {"refs": {}}])
@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (removal(FIRST), {}),
        (AddSnapshot(ADDED, "dev"), {"dev": {"snapshot-id": 5, "type": "branch"}}),
        (AddSnapshot(ADDED, "main"), main(5)),
        (SetRefs((SnapshotRef("v1", TAG, FIRST),)), {"v1": {"snapshot-id": FIRST, "type": "tag"}}),
        (RestoreSnapshots("u", (), {"v1": {"snapshot-id": FIRST}}), {"v1": {"snapshot-id": FIRST}}),
    ],
    ids=["expiry", "commit to a branch", "commit", "tag", "undo"],
)
def test_main_is_named_where_an_older_writer_named_no_ref(refs: Json, change: Change, expected: Json) -> None:
    """Iceberg takes main from the current snapshot only where there is no list of refs: an empty one has no main."""
    assert changed({**without("refs"), **refs}, change)["refs"] == {**main(HEAD), **expected}


def test_a_table_without_snapshots_has_no_main() -> None:
    """An expiry of unused specs and schemas names none, whether the writer says -1 or nothing, and adds no list."""
    for nothing in ({"current-snapshot-id": -1}, {"current-snapshot-id": None}, {}):
        before = {**without("refs", "snapshots", "current-snapshot-id", "snapshot-log"), **nothing}
        after = changed({**before, "partition-specs": SPECS, "schemas": SCHEMAS}, removal(specs=(1,), schemas=(0,)))
        assert (after["refs"], after["partition-specs"], after["schemas"]) == ({}, SPECS[:1], SCHEMAS[1:])
        assert "snapshots" not in after
        assert changed(before, AddSnapshot(ADDED, "main"))["refs"] == main(5)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (removal(FIRST, refs=("main",)), "main cannot be removed"),
        (removal(HEAD), f"snapshot {HEAD} is still referenced by main"),
        (removal(FIRST), f"snapshot {FIRST} is still referenced by v1"),
        (SetRefs((), frozenset({"main"})), "main cannot be removed"),
        (SetRefs((SnapshotRef("v2", TAG, 7),)), "tag v2 cannot be set: the table has no snapshot 7"),
        (SetStatistics(7), "statistics cannot be set: the table has no snapshot 7"),
        (
            AddSnapshot(ADDED, "main"),
            f"^s3://b/t: main is of snapshot {SECOND}, the current one is {HEAD}, and which of them",
        ),
    ],
)
def test_what_is_refused(change: Change, words: str) -> None:
    """The current snapshot is main's, whatever main itself says, and nothing leads to a snapshot that is not there."""
    refs = {**main(SECOND), "v1": {"snapshot-id": FIRST, "type": "tag"}}
    with pytest.raises(Refused, match=words):
        changed(document(refs=refs), change)
    assert changed(document(refs=refs), AddSnapshot(ADDED, "dev"))["refs"]["main"] == refs["main"]


def test_a_snapshot_of_an_older_table() -> None:
    """Without a sequence number the table's stays, logs begin, and one of version 3 without row ids begins at 0."""
    before = without("snapshot-log", "last-updated-ms", "metadata-log", "last-sequence-number")
    after = changed(before, AddSnapshot(ADDED, "main"))
    assert after["snapshot-log"] == [{"snapshot-id": 5, "timestamp-ms": 1}]
    assert after["metadata-log"] == [{"metadata-file": "m0", "timestamp-ms": 0}]
    assert after["last-updated-ms"] == MILLIS
    logged = changed({**document(), "metadata-log": [{"metadata-file": "m"}]}, AddSnapshot(ADDED, "main"))
    assert logged["metadata-log"][-1] == {"metadata-file": "m0", "timestamp-ms": 1_700_000_000_000}
    assert "last-sequence-number" not in after
    assert after["snapshots"][-1] == ADDED
    third = changed(without(**{"format-version": 3}), AddSnapshot(ADDED, "main"))
    assert third["snapshots"][-1] == {**ADDED, "first-row-id": 0, "added-rows": 0}


def test_a_snapshot_comes_after_the_others() -> None:
    """In the log of main too, unless it is a branch's; no change makes the table older than it was."""
    before = without(**{"format-version": 3, "next-row-id": 9, "last-updated-ms": MILLIS + 5})
    after = changed(before, AddSnapshot(ADDED, "main"))
    assert after["snapshot-log"] == [*before["snapshot-log"], {"snapshot-id": 5, "timestamp-ms": MILLIS + 5}]
    assert (after["snapshots"][-1]["first-row-id"], after["last-updated-ms"]) == (9, MILLIS + 5)
    branched = changed(before, AddSnapshot(ADDED, "dev"))
    assert (branched["snapshot-log"], branched["current-snapshot-id"]) == (before["snapshot-log"], HEAD)


@pytest.mark.parametrize(("gone", "logged"), [((FIRST,), (SECOND, HEAD)), ((SECOND,), (HEAD,)), ((), IDS)])
def test_what_belongs_to_a_snapshot_goes_with_it(gone: tuple[int, ...], logged: tuple[int, ...]) -> None:
    """Its statistics and tags, and all of the log up to it: across a gap, time travel would read a wrong snapshot."""
    files = [{"snapshot-id": one} for one in IDS]
    tags = {f"t{one}": {"snapshot-id": one, "type": "tag"} for one in IDS}
    before = without(refs={**main(HEAD), **tags}, **{"statistics": files, "partition-statistics": files})
    after = changed(before, removal(*gone, refs=tuple(f"t{one}" for one in gone)))
    left = [one for one in IDS if one not in gone]
    for name in ("snapshots", "statistics", "partition-statistics"):
        assert [item["snapshot-id"] for item in after[name]] == left
    assert list(after["refs"]) == ["main", *(f"t{one}" for one in left)]
    assert [entry["snapshot-id"] for entry in after["snapshot-log"]] == list(logged)


def test_refs_are_set() -> None:
    """With the retention that they are given; main's move is logged, and nobody else's is."""
    ages = {"max_snapshot_age": timedelta(milliseconds=2), "max_ref_age": timedelta(milliseconds=3)}
    dev = SnapshotRef("dev", BRANCH, FIRST, min_snapshots_to_keep=4, **ages)
    before = without("snapshot-log", refs={**main(HEAD), "v1": {"snapshot-id": FIRST, "type": "tag"}})
    after = changed(before, SetRefs((dev, SnapshotRef("main", BRANCH, SECOND)), frozenset({"v1", "no such"})))
    kept = {"min-snapshots-to-keep": 4, "max-snapshot-age-ms": 2, "max-ref-age-ms": 3}
    assert after["refs"] == {**main(SECOND), "dev": {"snapshot-id": FIRST, "type": "branch", **kept}}
    assert (after["current-snapshot-id"], str(after["refs"]["dev"]["max-ref-age-ms"])) == (SECOND, "3")
    assert after["snapshot-log"] == [{"snapshot-id": SECOND, "timestamp-ms": MILLIS}]
    again = changed(after, SetRefs((SnapshotRef("main", BRANCH, SECOND, min_snapshots_to_keep=2), dev)))
    assert (again["snapshot-log"], again["refs"]["main"]["min-snapshots-to-keep"]) == (after["snapshot-log"], 2)
    logged = changed(again, SetRefs((SnapshotRef("main", BRANCH, HEAD),)))["snapshot-log"]
    assert [entry["snapshot-id"] for entry in logged] == [SECOND, HEAD]


@pytest.mark.parametrize("name", ["statistics", "partition-statistics"])
def test_statistics_are_set(name: str) -> None:
    """In place of those of the same snapshot; files of other snapshots, and of the other kind, stay."""
    old, others, new = ({"snapshot-id": i, "statistics-path": p} for i, p in ((HEAD, "a"), (FIRST, "b"), (HEAD, "c")))
    before = {**without("statistics"), name: [old, others]}
    after = changed(before, SetStatistics(HEAD, **{name.replace("-", "_"): new}))
    assert after[name] == [others, new]
    assert after.keys() == before.keys()


@pytest.mark.parametrize("ahead", ["last-updated-ms", "snapshot-log", "metadata-log"])
@pytest.mark.parametrize("change", [AddSnapshot(ADDED, "main"), SetRefs((SnapshotRef("main", BRANCH, FIRST),))])
def test_no_time_goes_back_behind_a_writers_clock_that_was_ahead(ahead: str, change: Change) -> None:
    """Iceberg's library would refuse to load the table."""
    later = MILLIS + 7_200_000
    entry = {"snapshot-id": HEAD, "metadata-file": "m", "timestamp-ms": later}
    value: Any = later if ahead == "last-updated-ms" else [entry]
    after = changed(document(**{ahead: value}), change)
    for log in ("snapshot-log", "metadata-log"):
        times = [each["timestamp-ms"] for each in (*after[log], {"timestamp-ms": later})]
        assert times == sorted(times)
    assert after["last-updated-ms"] == later


def test_the_metadata_log_keeps_what_the_table_asks_for() -> None:
    """The newest entries, one at least, and a hundred where no number is said."""
    log = [{"metadata-file": f"m-{n}", "timestamp-ms": n} for n in range(120)]
    for asked, kept in (("3", 3), ("0", 1), ("x", 100), (None, 100)):
        said = {"write.metadata.previous-versions-max": asked} if asked else None
        after = changed(without(**{"metadata-log": log, "properties": said}), removal(FIRST))["metadata-log"]
        assert after == [*log, {"metadata-file": "m0", "timestamp-ms": document()["last-updated-ms"]}][-kept:]


def test_what_an_expiry_would_take_is_noted() -> None:
    """All of it and nothing else, with the entries of the history up to the first that stays."""
    before = without(
        refs={**main(HEAD), "v1": {"snapshot-id": FIRST, "type": "tag"}},
        **{"partition-specs": SPECS, "schemas": SCHEMAS, "partition-statistics": [{"snapshot-id": SECOND}]},
    )
    content = json.dumps(before).encode()
    found = restoration(content, "m0", removal(FIRST, refs=("v1",), specs=(1,), schemas=(0,)))
    assert found == RestoreSnapshots(
        "u",
        (before["snapshots"][0],),
        {"v1": before["refs"]["v1"]},
        (before["statistics"][0],),
        (),
        (SPECS[1],),
        (SCHEMAS[0],),
        tuple(before["snapshot-log"][:2]),
    )
    assert restoration(content, "m0", removal(SECOND)).history == tuple(before["snapshot-log"])
    assert restoration(content, "m0", removal(77)) == RestoreSnapshots("u", ())
    bare = without("refs", "snapshot-log", "partition-specs", "schemas", "table-uuid", "statistics")
    assert restoration(json.dumps(bare).encode(), "m0", removal(FIRST)) == RestoreSnapshots(
        "", (before["snapshots"][0],)
    )


def restored(before: Json, change: RestoreSnapshots) -> tuple[dict[str, Any], Restored]:
    """The file after a restore, with what was left out."""
    editor = Editor(decode(json.dumps(before).encode(), "m0"))
    found = restore(editor, change)
    return json.loads(encode(editor.document)), found


def test_what_was_removed_is_restored_as_it_was() -> None:
    """Also into the file of an older writer; what is there already is not doubled, empty fields or not."""
    before = without(**{"partition-specs": SPECS, "schemas": SCHEMAS, "partition-statistics": [{"snapshot-id": FIRST}]})
    undo = restoration(json.dumps(before).encode(), "m0", removal(FIRST, specs=(0, 1), schemas=(1,)))
    expired = changed(before, removal(FIRST, specs=(0,), schemas=(1,)))
    expired["partition-specs"] = [{"spec-id": 1, "fields": SPECS[1]["fields"], "note": None}]
    expired["partition-specs"][0]["of-nothing"] = {}
    after, found = restored(expired, undo)
    assert after["partition-specs"] == [expired["partition-specs"][0], SPECS[0]]
    same = ("snapshots", "schemas", "statistics", "partition-statistics", "refs", "snapshot-log")
    assert {name: after[name] for name in same} == {name: before[name] for name in same}
    assert (found.changed, found.left_out) == (True, ())
    assert restored(after, undo) == (after, Restored(changed=False, left_out=()))
    bare = without("schemas", "partition-specs", "snapshot-log", "last-sequence-number", "statistics", "table-uuid")
    old = {"snapshot-id": 1, "timestamp-ms": 1}
    after, found = restored(bare, RestoreSnapshots("", (old,), specs=(SPECS[0],)))
    assert (after["snapshots"], after["partition-specs"]) == ([old, *bare["snapshots"]], SPECS[:1])
    assert after.keys() == {*bare, "partition-specs"}
    assert (
        apply_change(decoded := decode(json.dumps(bare).encode(), "m"), "m", RestoreSnapshots("", ()), NOW) is decoded
    )
    newest = {**old, "sequence-number": before["last-sequence-number"]}
    for uuid in ("U", ""):
        assert newest in restored(document(), RestoreSnapshots(uuid, (newest,)))[0]["snapshots"]
    many = document(5)
    gone = restoration(json.dumps(many).encode(), "m0", removal(FIRST, HEAD, HEAD + 1))
    fewer = {**many, "snapshots": [many["snapshots"][n] for n in (1, 4)]}
    assert restored(fewer, gone)[0]["snapshots"] == many["snapshots"]


@pytest.mark.parametrize(
    ("before", "undo", "words"),
    [
        (document(), RestoreSnapshots("other", ()), r"s3://b/t: it is another table now \(uuid u, not other\)"),
        (without("table-uuid"), RestoreSnapshots("u", ()), r"another table now \(uuid , not u\)"),
        (
            document(),
            RestoreSnapshots("u", ({"snapshot-id": 1, "sequence-number": 4},)),
            "s3://b/t: snapshot 1 is newer than the table",
        ),
        (
            without("last-sequence-number"),
            RestoreSnapshots("u", ({"snapshot-id": 1, "sequence-number": 1},)),
            "snapshot 1 is newer than the table",
        ),
        (
            without(**{"partition-specs": [{**SPECS[0], "fields": [1]}]}),
            RestoreSnapshots("u", ({"snapshot-id": 1},), specs=(SPECS[0],)),
            "s3://b/t: partition spec 0, by which the snapshots are read, is another one now",
        ),
        (
            document(schemas=[{**SCHEMAS[1], "fields": [1]}]),
            RestoreSnapshots("u", ({"snapshot-id": 1},), schemas=(SCHEMAS[1],)),
            "s3://b/t: schema 1, by which",
        ),
    ],
)
def test_what_would_not_be_what_was_removed_is_not_restored(before: Json, undo: RestoreSnapshots, words: str) -> None:
    """The message names the table."""
    with pytest.raises(Refused, match=words):
        restored(before, undo)
    assert re.match(f"nothing: .*{words}", unrestorable(decode(json.dumps(before).encode(), "m0"), undo))


def test_refs_that_cannot_be_restored() -> None:
    """Those whose name or snapshot is somebody else's by now. A ref is as it was whatever its empty fields."""
    refs = {
        **main(HEAD),
        "v1": {"snapshot-id": FIRST, "type": "tag", "max-ref-age-ms": None},
        "v2": {"snapshot-id": HEAD},
    }
    undo = {
        "v1": {"snapshot-id": FIRST, "type": "tag"},
        "v2": {"snapshot-id": FIRST},
        "v3": {"snapshot-id": 7, "type": "tag"},
    }
    after, found = restored(document(refs=refs), RestoreSnapshots("u", (), undo))
    assert after["refs"] == refs
    assert found == Restored(
        changed=False,
        left_out=(
            f"ref v2, as somebody has set v2 on snapshot {HEAD} since",
            "tag v3, as its snapshot 7 is gone by another commit",
        ),
    )
    said = unrestorable(decode(json.dumps(document(refs=refs)).encode(), "m0"), RestoreSnapshots("u", (), undo))
    assert said == "; ".join(found.left_out)


@pytest.mark.parametrize(
    ("log", "absent", "after", "gap"),
    [
        ([2], (), [0, 1, 2], None),
        ([2], (0,), [1, 2], 1),
        ([2], (1,), [2], 2),
        ([1, 2], (), [1, 2], None),  # as it was done before
        ([3], (), [3], 3),  # others have cut it since
        ([], (), [], 2),
        (None, (), None, 2),
    ],
)
def test_the_history_has_no_gap(
    log: list[int] | None, absent: tuple[int, ...], after: list[int] | None, gap: int | None
) -> None:
    """Entries return up to the first whose snapshot is gone; the note says from when on time travel reads right."""
    entries = [
        {"snapshot-id": one, "timestamp-ms": 1000 * number} for number, one in enumerate((FIRST, SECOND, HEAD, 9))
    ]
    before = without("snapshot-log") | ({} if log is None else {"snapshot-log": [entries[n] for n in log]})
    before["snapshots"] = [s for n, s in enumerate(before["snapshots"]) if n not in absent]
    made, found = restored(before, RestoreSnapshots("u", (), history=tuple(entries[:3])))
    assert made.get("snapshot-log") == (None if after is None else [entries[n] for n in after])
    assert found.changed == (log == [2] and after != [2])
    said = f"time travel to before 1970-01-01T00:00:0{gap}+00:00: other snapshots of that time are gone"
    assert found.left_out == (() if gap is None else (said,))
