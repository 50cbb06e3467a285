"""Metadata files: what is not understood survives, and large ones cost little more than themselves."""

from __future__ import annotations

import gzip
import hashlib
import json
import re
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import LongType, NestedField

from icewright.adapters.catalogs.metadata_files import MetadataCache
from icewright.adapters.catalogs.staging import write_metadata
from icewright.adapters.files.local import LocalStorage
from icewright.adapters.metadata.changes import apply_change
from icewright.adapters.metadata.document import decode, encode, inflate, is_staged_by_us, next_location
from icewright.adapters.metadata.parsing import parse
from icewright.core.errors import MetadataUnreadable
from icewright.core.hotness import history_span, replaced_after
from icewright.core.table import RefKind, SnapshotRef, TableRef
from icewright.ports import AddSnapshot, RemoveSnapshots, SetRefs

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
REF = TableRef("lake", ("sales",), "orders")


def document(snapshots: int = 3, **more: Any) -> dict[str, Any]:
    """A metadata file of format v2 with fields that no version of the spec has."""
    listed = [
        {
            "snapshot-id": 2**62 + i,
            "parent-snapshot-id": 2**62 + i - 1,
            "sequence-number": i,
            "timestamp-ms": 1_700_000_000_000 + i,
            "manifest-list": f"s3://b/t/metadata/snap-{i}.avro",
            "summary": {"operation": "append", "added-records": str(i), "writer.note": "é" * 40},
            "of-the-future": {"deep": [1, 2.5, None]},
        }
        for i in range(snapshots)
    ]
    head = listed[-1]["snapshot-id"]
    return {
        "format-version": 2, "table-uuid": "u", "location": "s3://b/t", "last-updated-ms": 1_700_000_000_000,
        "last-sequence-number": snapshots, "current-snapshot-id": head, "snapshots": listed,
        "refs": {"main": {"snapshot-id": head, "type": "branch", "of-the-future": 1}},
        "snapshot-log": [{"snapshot-id": s["snapshot-id"], "timestamp-ms": s["timestamp-ms"]} for s in listed],
        "metadata-log": [], "properties": {"é": "ü"}, "of-the-future": {"number": 1e3, "big": 2**63},
        "statistics": [{"snapshot-id": listed[0]["snapshot-id"], "statistics-path": "s3://b/t/s", "x": 1}],
        **more,
    }  # fmt: skip


def test_what_is_not_understood_survives() -> None:
    """After an expiry every field but those that it concerns is as it was, of the kept snapshots too."""
    before = document()
    gone = before["snapshots"][0]["snapshot-id"]
    new = apply_change(
        decode(json.dumps(before).encode(), "m0"), "m0", RemoveSnapshots(frozenset({gone}), frozenset()), NOW
    )
    after = json.loads(encode(new))
    assert after["snapshots"] == before["snapshots"][1:]
    assert after["statistics"] == []
    touched = {"snapshots", "statistics", "snapshot-log", "metadata-log", "last-updated-ms"}
    assert {k: v for k, v in after.items() if k not in touched} == {k: v for k, v in before.items() if k not in touched}
    assert after["metadata-log"] == [{"metadata-file": "m0", "timestamp-ms": before["last-updated-ms"]}]
    assert after["last-updated-ms"] == int(NOW.timestamp() * 1000)


def test_a_new_snapshot() -> None:
    """It is the last, the head of main, and main keeps what else it says."""
    before = document()
    added = {"snapshot-id": 5, "timestamp-ms": 1_800_000_000_000, "sequence-number": 9, "manifest-list": "x"}
    after = json.loads(
        encode(apply_change(decode(json.dumps(before).encode(), "m"), "m", AddSnapshot(added, "main"), NOW))
    )
    assert after["snapshots"] == [*before["snapshots"], added]
    assert after["refs"] == {"main": {"type": "branch", "snapshot-id": 5, "of-the-future": 1}}
    assert (after["current-snapshot-id"], after["last-sequence-number"]) == (5, 9)
    assert after["snapshot-log"][-1] == {"snapshot-id": 5, "timestamp-ms": 1_800_000_000_000}


def test_a_ref_that_is_set() -> None:
    """It says what it is set to and what is not understood, and no more what it said before."""
    before = document()
    before["refs"]["main"]["min-snapshots-to-keep"] = 3
    first = before["snapshots"][0]["snapshot-id"]
    main = SnapshotRef("main", RefKind.BRANCH, first, max_ref_age=timedelta(days=1))
    after = json.loads(encode(apply_change(decode(json.dumps(before).encode(), "m"), "m", SetRefs((main,)), NOW)))
    expected = {"type": "branch", "snapshot-id": first, "max-ref-age-ms": 86_400_000, "of-the-future": 1}
    assert after["refs"] == {"main": expected}
    assert after["current-snapshot-id"] == first


def test_gzipped() -> None:
    """A gzipped file is read whatever its name is; the next one is gzipped when the table asks for it."""
    packed = gzip.compress(json.dumps(document()).encode())
    assert parse(REF, "m.metadata.json", packed).table_uuid == "u"
    asked = document(properties={"write.metadata.compression-codec": "gzip"})
    asked_document = decode(json.dumps(asked).encode(), "m")
    assert encode(asked_document)[:2] == b"\x1f\x8b"
    assert next_location(asked_document, "s3://b/t/metadata/00007-a.metadata.json").endswith(".gz.metadata.json")
    assert encode(asked_document)[4:8] == bytes(4)  # the time, which would make each copy of a file another one


def test_the_name_of_the_next_file() -> None:
    """It counts on, lies where the table wants it, and tells whose it is; nobody else's name does."""
    uuid = "[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}"
    theirs, others = "s3://b/t/metadata/00007-7d2f2a3e-0000-4000-8000-000000000000.metadata.json", "v7.metadata.json"
    gzipped = {"write.metadata.compression-codec": "GZIP"}
    for properties, location, current, expected in (
        ({}, "s3://b/tX/", theirs, f"s3://b/tX/metadata/00008-{uuid}.metadata.json"),
        (None, "s3://b/t", others, f"s3://b/t/metadata/00001-{uuid}.metadata.json"),
        (gzipped, "s3://b/t", f"s3://b/{others}", f"s3://b/t/metadata/00001-{uuid}.gz.metadata.json"),
        ({"write.metadata.path": "s3://m"}, "s3://b/t", theirs, f"s3://m/00008-{uuid}.metadata.json"),
    ):
        made = decode(json.dumps(document(location=location, properties=properties)).encode(), "m")
        name = next_location(made, current)
        assert re.fullmatch(expected, name)
        assert is_staged_by_us(name)
        assert is_staged_by_us(name.rsplit("/", 1)[-1])
        at = name.index("-4") + 6
        assert not is_staged_by_us(f"{name[:at]}{'0' if name[at] != '0' else '1'}{name[at + 1 :]}")
    assert not any(map(is_staged_by_us, (theirs, others, "", "00008-.metadata.json")))


def test_how_far_a_gzipped_file_inflates(monkeypatch: pytest.MonkeyPatch) -> None:
    """To a size that files have, or to a multiple of its own, in room that is reserved before: more is a bomb."""
    reserved: list[int] = []
    monkeypatch.setattr("icewright.adapters.metadata.document.ROOM", SimpleNamespace(reserve=reserved.append))
    monkeypatch.setattr("icewright.adapters.metadata.document.MOST_INFLATED_BYTES", 10_000)
    noise = bytes(hashlib.sha256(bytes([n % 251, n % 7])).digest()[0] for n in range(20_000))
    for content in (bytes(10_000), noise):
        assert inflate(gzip.compress(content), "m") == content
        assert sum(reserved) == len(content)
        reserved.clear()
    with pytest.raises(MetadataUnreadable, match=r"s3://b/m: \d+ bytes inflate to more than 10000: no metadata file"):
        inflate(gzip.compress(bytes(10_001)), "s3://b/m")


@pytest.mark.parametrize("ids", [{"current-schema-id": 3, "default-spec-id": 2, "default-sort-order-id": 1}, {}])
def test_the_file_that_a_commit_writes(tmp_path: Path, ids: dict[str, int]) -> None:
    """It says which ids are in force, 0 for those that version 1 leaves out; a change without effect writes none."""
    path, files = tmp_path / "00007-a.metadata.json", LocalStorage()
    path.write_text(json.dumps(document(location=f"file://{tmp_path}", **ids)), encoding="utf-8")
    base = parse(REF, str(path), path.read_bytes())
    assert write_metadata(files, base, SetRefs(base.refs), NOW) is None
    assert list(tmp_path.rglob("*.json")) == [path]
    staged = write_metadata(files, base, RemoveSnapshots(frozenset({base.snapshots[0].snapshot_id}), frozenset()), NOW)
    assert staged is not None
    assert parse(REF, staged.location, files.read(staged.location)) == staged.after
    expected = {"current-schema-id": 0, "default-spec-id": 0, "default-sort-order-id": 0}
    assert staged.ids == expected | ids


@pytest.mark.parametrize("missing", ["null", "absent"])
def test_optional_fields(missing: str) -> None:
    """What the spec makes optional may be missing or null."""
    optional = ["snapshots", "refs", "metadata-log", "statistics", "partition-statistics", "properties", "sort-orders"]
    made = document()
    for name in optional:
        made.pop(name, None)
        if missing == "null":
            made[name] = None
    made["current-snapshot-id"] = None
    field = {"source-id": 1, "name": "id", "transform": "identity"}
    made["partition-spec"] = [field | {"field-id": None} if missing == "null" else field]
    found = parse(REF, "m", json.dumps(made).encode())
    assert [field.field_id for field in found.specs[0].fields] == [1000]  # those of format v1 have no ids
    assert (found.snapshots, found.refs, found.statistics, found.properties) == ((), (), (), {})


def test_a_snapshot_without_files_and_one_that_names_none() -> None:
    """Version 1 may list no manifest; what a snapshot reads whose manifest list was left out nobody knows."""
    made = document()
    made["snapshots"][0] |= {"manifest-list": None, "manifests": []}
    assert parse(REF, "m", json.dumps(made).encode()).snapshots[0].manifests == ()
    del made["snapshots"][0]["manifests"]
    with pytest.raises(MetadataUnreadable, match="neither a manifest list nor manifests"):
        parse(REF, "m", json.dumps(made).encode())


@pytest.mark.parametrize(("age", "days"), [(-(2**63), 0), (2**63 - 1, 36_500)])
def test_ages_that_no_calendar_has(age: int, days: int) -> None:
    """An age beyond what can be reckoned with is the nearest that can."""
    made = document()
    made["refs"]["audit"] = {**made["refs"]["main"], "max-ref-age-ms": age, "max-snapshot-age-ms": age}
    audit = next(ref for ref in parse(REF, "m", json.dumps(made).encode()).refs if ref.name == "audit")
    assert audit.max_ref_age == audit.max_snapshot_age == timedelta(days=days)


@pytest.mark.parametrize(
    "change",
    [
        *({"location": place} for place in ("", "/", "file:///", "s3://", "file:///a/..")),
        *({"format-version": number} for number in (0, -1)),
        {"snapshots": [document()["snapshots"][0] | {"snapshot-id": 2**63}]},
        {"snapshot-log": "none"},
        {"snapshot-log": [{"snapshot-id": 1}]},
        {"last-sequence-number": 2**63 - 1},  # the next commit's is one more
    ],
    ids=lambda change: str(change)[:24],
)
def test_values_that_no_table_has(change: dict[str, Any]) -> None:
    """A location that is no folder above all: new files would be written to the root of the machine."""
    with pytest.raises(MetadataUnreadable, match=r"s3://b/m\.json: not as the spec has it"):
        parse(REF, "s3://b/m.json", json.dumps(document() | change).encode())


@pytest.mark.parametrize("milliseconds", [-(2**62), -30_610_224_000_001, 221_845_392_000_000, 2**62])
def test_a_time_at_the_ends_of_the_calendar_is_named_by_its_field(milliseconds: int) -> None:
    """Ages are added to times and taken from them, and a commit is a millisecond later than the one before."""
    at = {"timestamp-ms": milliseconds}
    changes: list[dict[str, Any]] = [
        {"last-updated-ms": milliseconds},
        {"snapshots": [document()["snapshots"][0] | at]},
        {"metadata-log": [{"metadata-file": "s3://b/0.json"} | at]},
    ]
    changes += [{"snapshot-log": [{"snapshot-id": 1} | at]}] if milliseconds > 0 else []
    for change in changes:
        field = "last-updated-ms" if "last-updated-ms" in change else "timestamp-ms"
        with pytest.raises(MetadataUnreadable, match=rf"s3://b/m\.json: not as the spec has it .*{field}"):
            parse(REF, "s3://b/m.json", json.dumps(document() | change).encode())


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b"null", b"\x1f\x8bbroken", b'{"format-version": 2}', b'{"location": "s3://b/t"}', b"\xff{}"],
)
def test_what_is_no_metadata(content: bytes) -> None:
    """Anything else is an error that names the file."""
    for read in (lambda: parse(REF, "s3://b/m.json", content), lambda: decode(content, "s3://b/m.json")):
        with pytest.raises(MetadataUnreadable, match=r"s3://b/m\.json"):
            read()


def test_files_are_parsed_once() -> None:
    """A file is read again when it is another size or another table's, or when too much else came since."""
    made = {name: json.dumps(document(n)).encode() for n, name in enumerate("abc", 1)}
    asked: list[str] = []

    def read(location: str) -> bytes:
        asked.append(location)
        return made[location]

    memo = MetadataCache(max_bytes=len(made["a"]) + len(made["b"]))
    sizes = {name: len(content) for name, content in made.items()}
    first = memo.parsed(REF, "a", sizes["a"], read)
    assert memo.parsed(REF, "a", sizes["a"], read) is first
    memo.parsed(REF, "b", sizes["b"], read)
    memo.parsed(TableRef("lake", ("sales",), "other"), "a", sizes["a"], read)
    memo.parsed(REF, "a", sizes["a"] + 1, read)
    memo.parsed(REF, "a", None, read)
    memo.parsed(REF, "c", sizes["c"], read)
    memo.parsed(REF, "c", sizes["c"], read)
    assert asked == ["a", "b", "a", "a", "a", "c"]


_MEASURED = """
import resource, sys
from datetime import UTC, datetime, timedelta
from icewright.adapters.metadata import changes, document, parsing
from icewright.core.table import RefKind, SnapshotRef, TableRef
from icewright.ports import RemoveSnapshots
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
before, path = peak(), sys.argv[1]
ref = TableRef("lake", ("sales",), "orders")
base = parsing.parse(ref, path, open(path, "rb").read())
change = RemoveSnapshots(frozenset(s.snapshot_id for s in base.snapshots[:int(sys.argv[2])]), frozenset())
fields = document.decode(open(path, "rb").read(), path)
new = changes.apply_change(fields, path, change, datetime.now(UTC))
content = document.encode(new)
del fields, new
after = parsing.parse(ref, path, content)
print(peak() - before, len(after.snapshots))
"""


@pytest.mark.slow
@pytest.mark.parametrize("expired", [10, 4_990])
def test_large_files_cost_little_more_than_themselves(tmp_path: Path, expired: int) -> None:
    """Reading, changing and reading back a file takes less than four times its size, few or many snapshots gone."""
    path = tmp_path / "large.metadata.json"
    made = document(5_000)
    for snapshot in made["snapshots"]:
        snapshot["summary"] |= {f"flink.property-{i}": f"{i:060}" for i in range(30)}
    path.write_text(json.dumps(made))
    command = [sys.executable, "-c", _MEASURED, str(path), str(expired)]
    grown, left = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    assert int(left) == 5_000 - expired
    assert int(grown) < 4 * path.stat().st_size


def test_overwrites_of_pyiceberg_are_seen(tmp_path: Path) -> None:
    """Whoever overwrites one of two partitions again and again, by a delete and an append, keeps files from lasting."""
    catalog = SqlCatalog("lake", uri=f"sqlite:///{tmp_path}/lake.db", warehouse=f"file://{tmp_path}")
    catalog.create_namespace("sales")
    spec = PartitionSpec(PartitionField(1, 1000, IdentityTransform(), "part"))
    table = catalog.create_table("sales.orders", Schema(NestedField(1, "part", LongType())), partition_spec=spec)
    table.append(pa.table({"part": [1, 2]}))
    for _ in range(10):
        table.dynamic_partition_overwrite(pa.table({"part": [2]}))
    catalog.close()

    content = Path(table.metadata_location.removeprefix("file://")).read_bytes()
    found = parse(REF, table.metadata_location, content)
    assert {snapshot.operation for snapshot in found.snapshots} == {"append", "delete"}
    assert replaced_after(found) == history_span(found) / 5
