"""What every catalog does: commit a change to exactly the metadata that it was planned from, or not at all."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from icewright.app.demo.craft import Craft
from icewright.core.allowlist import Allowlist
from icewright.core.errors import IcewrightError, Refused
from icewright.core.table import MAIN, TableMetadata
from icewright.ports import AddSnapshot, Change
from tests.contracts.bench import (
    CHANGES,
    NOW,
    Bench,
    addition,
    each_change,
    edit,
    file_of,
    json_of,
    only_sql,
    removal,
    removes,
)
from tests.contracts.rest_bench import RestBench


def _rows(bench: Bench) -> list[Any]:
    ids: list[Any] = bench.read("sales", "orders").scan().to_arrow()["id"].to_pylist()
    return sorted(ids)


@removes
def test_removed_snapshots_are_gone(bench: Bench) -> None:
    """After the removal of snapshots PyIceberg reads the same rows, and the others' history."""
    base = bench.craft("sales.orders", 5)
    before = _rows(bench)
    after = bench.catalog.commit(base, removal(base, 0, 2))
    assert [s.snapshot_id for s in after.snapshots] == [base.snapshots[i].snapshot_id for i in (1, 3, 4)]
    assert after == bench.catalog.load(base.ref)
    theirs = bench.read("sales", "orders")
    assert [s.snapshot_id for s in theirs.snapshots()] == [s.snapshot_id for s in after.snapshots]
    assert theirs.metadata_location == after.metadata_location
    assert _rows(bench) == before == list(range(5))
    assert theirs.scan(snapshot_id=base.snapshots[1].snapshot_id).to_arrow().num_rows == 2
    theirs.append(theirs.scan().to_arrow().slice(0, 1))
    assert len(_rows(bench)) == 6


def test_an_added_snapshot_is_current(bench: Bench) -> None:
    """After the addition of a snapshot PyIceberg reads it, and can write on top of it."""
    base = bench.craft("sales.orders", 3)
    after = bench.catalog.commit(base, addition(base))
    assert (after.current_snapshot_id, after.last_sequence_number) == (4711, base.last_sequence_number + 1)
    theirs = bench.read("sales", "orders")
    assert theirs.metadata.current_snapshot_id == 4711
    assert [entry.snapshot_id for entry in theirs.history()] == [*(s.snapshot_id for s in base.snapshots), 4711]
    assert _rows(bench) == [0, 1, 2]
    theirs.append(theirs.scan().to_arrow().slice(0, 1))
    assert len(_rows(bench)) == 4


def test_a_snapshot_on_a_branch_leaves_main_alone(bench: Bench) -> None:
    """The branch moves and keeps its retention; main and its log stay."""

    def branched(craft: Craft) -> None:
        first = craft.snapshots[0]["snapshot-id"]
        craft.refs["dev"] = {"snapshot-id": first, "type": "branch", "min-snapshots-to-keep": 7}

    base = bench.craft("sales.orders", 3, branched)
    after = bench.catalog.commit(base, AddSnapshot(addition(base).snapshot, "dev"))
    refs = {ref.name: ref for ref in after.refs}
    assert (refs["dev"].snapshot_id, refs["dev"].min_snapshots_to_keep) == (4711, 7)
    assert refs[MAIN].snapshot_id == after.current_snapshot_id == base.current_snapshot_id
    before, now = json_of(base.metadata_location), json_of(after.metadata_location)
    assert now["snapshot-log"] == before["snapshot-log"]


@only_sql
def test_of_two_names_of_one_file_one_is_committed_to(bench: Bench) -> None:
    """A metadata file that was registered twice leads two tables on: each commit is of the table that it names."""
    base = bench.craft("sales.orders")
    bench.insert("sales", "copy", base.metadata_location)
    after = bench.catalog.commit(base, addition(base))
    assert bench.rows() == {
        ("sales", "orders"): (after.metadata_location, base.metadata_location),
        ("sales", "copy"): (base.metadata_location, None),
    }


def test_a_table_outside_of_the_allowlist_gets_no_commit(bench: Bench) -> None:
    """The configuration declares other places: the commit is refused, and no file is written."""
    base = bench.craft("sales.orders")
    rows, files = bench.rows(), sorted(bench.warehouse.rglob("*"))
    bench.catalog.allowlist = Allowlist(locations=("s3://qa/",))
    with pytest.raises(Refused, match=r"lake\.sales\.orders: .* lies outside of catalogs\.lake\.environment"):
        bench.catalog.commit(base, addition(base))
    assert (bench.rows(), sorted(bench.warehouse.rglob("*"))) == (rows, files)


@only_sql
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_unknown_fields_survive(bench: Bench, change: Callable[[TableMetadata], Change]) -> None:
    """What this program does not know, such as fields of format v3, stands in the new file as in the old one."""
    base = bench.craft("sales.orders")
    document = json_of(base.metadata_location)
    for number, snapshot in enumerate(document["snapshots"]):
        snapshot |= {"first-row-id": number * 10, "added-rows": 10, "key-id": "k", "future": {"a": [number]}}
    refs = {"main": {**document["refs"]["main"], "future-ref": 1}}
    keys = [{"key-id": "k", "encrypted-key-metadata": "eA=="}]
    edit(
        base.metadata_location,
        **{"format-version": 3, "next-row-id": 40, "encryption-keys": keys, "x-vendor": {"deep": [1, None, "é"]}},
        snapshots=document["snapshots"],
        refs=refs,
    )
    base = bench.catalog.load(base.ref)
    after = bench.catalog.commit(base, change(base))
    old, new = json_of(base.metadata_location), json_of(after.metadata_location)
    touched = {"snapshots", "refs", "snapshot-log", "metadata-log", "last-updated-ms"}
    touched |= {"current-snapshot-id", "last-sequence-number", "next-row-id"}
    assert {k: v for k, v in new.items() if k not in touched} == {k: v for k, v in old.items() if k not in touched}
    assert new["next-row-id"] >= 40
    assert new["refs"]["main"]["future-ref"] == 1
    kept = {s["snapshot-id"]: s for s in new["snapshots"]}
    assert all(kept.get(s["snapshot-id"], s) == s for s in old["snapshots"])


@pytest.mark.cases(144)
def test_a_snapshot_of_v3_takes_no_row_ids(bench: Bench) -> None:
    """A snapshot that adds no rows begins at the table's next row id and takes none, in every catalog."""
    base = bench.craft("sales.orders")
    ids = [{"first-row-id": 10 * number, "added-rows": 10} for number in range(len(base.snapshots))]
    snapshots = [snapshot | ids[number] for number, snapshot in enumerate(json_of(base.metadata_location)["snapshots"])]
    edit(base.metadata_location, **{"format-version": 3, "next-row-id": 40}, snapshots=snapshots)
    base = bench.catalog.load(base.ref)
    added = {n: v for n, v in addition(base).snapshot.items() if n not in ids[0]}
    after = json_of(bench.catalog.commit(base, AddSnapshot(added, MAIN)).metadata_location)
    (new,) = (snapshot for snapshot in after["snapshots"] if snapshot["snapshot-id"] == 4711)
    assert (new["first-row-id"], new["added-rows"], after["next-row-id"]) == (40, 0, 40)


@each_change
def test_the_metadata_log_grows(bench: Bench, change: Callable[[TableMetadata], Change]) -> None:
    """The log ends with the replaced file and its time; the database names it as the previous one."""
    base = bench.craft("sales.orders")
    after = bench.catalog.commit(base, change(base))
    old, new = json_of(base.metadata_location), json_of(after.metadata_location)
    last = {"metadata-file": base.metadata_location, "timestamp-ms": old["last-updated-ms"]}
    assert new["metadata-log"] == [*old.get("metadata-log", []), last]
    assert after.metadata_log == (*base.metadata_log, base.metadata_location)
    assert bench.rows()["sales", "orders"] == (after.metadata_location, base.metadata_location)
    assert after.last_updated == NOW or isinstance(bench, RestBench)  # whose server has a clock of its own


@removes
@pytest.mark.parametrize(("limit", "kept"), [("3", 3), ("1", 1), ("0", 1), (None, 7)])
def test_the_metadata_log_is_bounded(bench: Bench, limit: str | None, kept: int) -> None:
    """`write.metadata.previous-versions-max` bounds the log, the newest are kept; without it there is room for 100."""
    base = bench.craft("sales.orders", 8)
    if limit is not None:
        edit(base.metadata_location, properties={"write.metadata.previous-versions-max": limit})
    seen = []
    for number in range(7):
        seen.append(base.metadata_location)
        base = bench.catalog.commit(base, removal(base, 0))
        assert list(base.metadata_log) == seen[-kept:], number


@only_sql
def test_a_bound_that_is_no_number_is_an_error_on_purpose(bench: Bench) -> None:
    """A property that makes no sense does not end in a stack trace, whatever else becomes of the commit."""
    base = bench.craft("sales.orders")
    edit(base.metadata_location, properties={"write.metadata.previous-versions-max": "many"})
    try:
        bench.catalog.commit(bench.catalog.load(base.ref), removal(base, 0))
    except IcewrightError as error:
        assert "previous-versions-max" in str(error)  # noqa: PT017 - going on with the default is right too


@removes
def test_statistics_of_removed_snapshots_go(bench: Bench) -> None:
    """Statistics and partition statistics go with their snapshot; those of the others stay whole."""
    base = bench.craft("sales.orders", 3)
    ids = [s.snapshot_id for s in base.snapshots]
    table = [
        {
            "snapshot-id": i,
            "statistics-path": f"file:///s{i}",
            "file-size-in-bytes": 5,
            "file-footer-size-in-bytes": 1,
            "blob-metadata": [],
        }
        for i in ids
    ]
    partitions = [{"snapshot-id": i, "statistics-path": f"file:///p{i}", "file-size-in-bytes": 7} for i in ids]
    edit(base.metadata_location, statistics=table, partition_statistics=partitions)
    after = bench.catalog.commit(bench.catalog.load(base.ref), removal(base, 0, 1))
    assert [s.path for s in after.statistics] == [f"file:///s{ids[2]}"]
    assert [s.path for s in after.partition_statistics] == [f"file:///p{ids[2]}"]
    new = json_of(after.metadata_location)
    assert (new["statistics"], new["partition-statistics"]) == (table[2:], partitions[2:])


@removes
@pytest.mark.parametrize(("removed", "logged"), [((0, 1), (2, 3, 4)), ((2,), (3, 4)), ((1, 3), (4,)), ((), range(5))])
def test_the_snapshot_log_has_no_gaps(bench: Bench, removed: tuple[int, ...], logged: tuple[int, ...]) -> None:
    """The log begins after the last removed snapshot: across a gap, time travel would read a wrong snapshot."""
    base = bench.craft("sales.orders", 5)
    after = bench.catalog.commit(base, removal(base, *removed))
    log = json_of(after.metadata_location)["snapshot-log"]
    assert [e["snapshot-id"] for e in log] == [base.snapshots[i].snapshot_id for i in logged]


@only_sql
def test_the_clock_never_runs_back(bench: Bench) -> None:
    """A clock an hour behind the last writer's does not make the table older than it was."""
    base = bench.craft("sales.orders")
    bench.clock.time = NOW - timedelta(days=1)
    assert bench.catalog.commit(base, removal(base, 0)).last_updated == base.last_updated


@only_sql
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_gzip_stays_gzip(bench: Bench, change: Callable[[TableMetadata], Change]) -> None:
    """A table whose metadata is compressed is loaded, and its next metadata file is compressed and named so."""
    base = bench.craft("sales.orders")
    edit(base.metadata_location, properties={"write.metadata.compression-codec": "gzip"})
    packed = base.metadata_location.replace(".metadata.json", ".gz.metadata.json")
    file_of(packed).write_bytes(gzip.compress(file_of(base.metadata_location).read_bytes()))
    bench.execute("UPDATE iceberg_tables SET metadata_location = :now", now=packed)
    loaded = bench.catalog.load(base.ref)
    assert loaded.metadata_length == file_of(packed).stat().st_size
    after = bench.catalog.commit(loaded, change(loaded))
    assert after.metadata_location.endswith(".gz.metadata.json")
    assert file_of(after.metadata_location).read_bytes()[:2] == b"\x1f\x8b"
    assert bench.read("sales", "orders").metadata.current_snapshot_id == after.current_snapshot_id
    assert _rows(bench) == [0, 1, 2, 3]


@removes
def test_main_is_not_removed(bench: Bench) -> None:
    """The ref main cannot be taken from a table that has a current snapshot."""
    base = bench.craft("sales.orders")
    try:
        after = bench.catalog.commit(base, removal(base, 0, refs=(MAIN,)))
    except Refused:
        return
    assert "main" in json_of(after.metadata_location)["refs"]


@pytest.mark.parametrize("folder", ["elsewhere", "with space & 100%/ä"])
def test_metadata_goes_where_the_table_wants_it(bench: Bench, folder: str) -> None:
    """`write.metadata.path` says where the next metadata file lies; its number counts on."""
    base = bench.craft("sales.orders")
    place = f"file://{bench.warehouse}/{folder}"
    edit(base.metadata_location, properties={"write.metadata.path": place + "/"})
    after = bench.catalog.commit(base, addition(base))
    assert str(file_of(after.metadata_location)).startswith(f"{bench.warehouse}/{folder}/00005-")
    assert bench.read("sales", "orders").metadata_location == after.metadata_location
