"""The check that every file of a table is there: planted faults are found and named, healthy tables have none."""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from struct import pack
from typing import Any, cast

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from icewright.adapters.engines.arrow.live_deletes import LiveFiles
from icewright.adapters.engines.arrow.small_table_limits import manifest_reader
from icewright.adapters.engines.service import integrity
from icewright.adapters.engines.service.checked_entries import CheckedEntries
from icewright.adapters.files import read_ahead
from icewright.adapters.files.local import LocalStorage
from icewright.core.integrity import CheckLevel, FileFaultKind, IntegrityReport
from icewright.core.table import ManifestContent
from icewright.ports import FileStat, TableFiles
from tests.cases.conftest import ground, workspace
from tests.cases.tampering import in_map, rewrite, tamper_manifest
from tests.cases.workspace import BY_PART, MANIFESTS, NAME, Workspace, edit, ref

pytestmark = pytest.mark.external  # makes a lakehouse or a store for each test

__all__ = ["ground", "workspace"]


def check(workspace: Workspace, level: CheckLevel = CheckLevel.EXISTS, name: str = NAME) -> IntegrityReport:
    """The report on a table."""
    return workspace.app.runtime.engine.check(ref(name), level)


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-7])


def _scrambled(path: Path) -> None:
    path.write_bytes(b"x" * path.stat().st_size)


FAULTS: dict[str, tuple[str, Callable[[Path], None], FileFaultKind, str]] = {
    "a data file is gone": ("data/**/*.parquet", Path.unlink, FileFaultKind.MISSING, "data"),
    "a data file is cut": ("data/**/*.parquet", _cut, FileFaultKind.WRONG_LENGTH, "data"),
    "a manifest is gone": ("metadata/*-m*.avro", Path.unlink, FileFaultKind.MISSING, "manifest"),
    "a manifest is cut": ("metadata/*-m*.avro", _cut, FileFaultKind.WRONG_LENGTH, "manifest"),
    "a manifest is scrambled": ("metadata/*-m*.avro", _scrambled, FileFaultKind.UNREADABLE, "manifest"),
    "a manifest list is gone": ("metadata/snap-*.avro", Path.unlink, FileFaultKind.MISSING, "manifest list"),
    "a manifest list is scrambled": ("metadata/snap-*.avro", _scrambled, FileFaultKind.UNREADABLE, "manifest list"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_named_with_the_snapshots_that_need_it(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    """The file, what is wrong with it, and whom it breaks; the rest of the table is checked all the same.

    Of a table with too many files for their entries to be kept, manifests of files at fault are read again.
    """
    folder = workspace.table(spec=BY_PART)
    assert check(workspace).faults == ()
    pattern, harm, kind, file = FAULTS[fault]
    harmed = min(folder.glob(pattern))
    harm(harmed)
    report = check(workspace)
    (found,) = report.faults
    assert (found.kind, found.file, Path(found.path.removeprefix("file://"))) == (kind, file, harmed), found
    metadata = workspace.metadata()
    needing = set(found.snapshot_ids)
    assert needing
    if file == "manifest list":
        assert needing == {s.snapshot_id for s in metadata.snapshots if str(s.manifest_list).endswith(harmed.name)}
    monkeypatch.setattr(integrity, "_KEPT", 0)
    assert check(workspace) == report


def test_every_file_of_every_snapshot_is_checked(workspace: Workspace) -> None:
    """The number of files is that of lists, manifests and data files; other files in the folder do not matter."""
    folder = workspace.table()
    (folder / "data" / "stranger.parquet").write_bytes(b"x")
    report = check(workspace)
    manifests = {m for s in workspace.metadata().snapshots for m in workspace.app.runtime.files.manifests(s)}
    assert report.faults == ()
    assert report.snapshots == len(workspace.metadata().snapshots)
    assert report.files == report.snapshots + len(manifests) + sum(m.live_files for m in manifests)


def test_files_outside_the_location_are_asked_for(workspace: Workspace) -> None:
    """A folder that is gone as a whole is no listing, and each of its files is missing."""
    folder = workspace.table()
    files = sorted((folder / "data").rglob("*.parquet"))
    for path in files:
        path.rename(workspace.home / path.name)
    assert {fault.kind for fault in check(workspace).faults} == {FileFaultKind.MISSING}
    assert len(check(workspace).faults) == len(files)


def test_a_location_that_files_spell_otherwise_is_listed_again(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where too many paths differ as they are spelt, only files that no spelling shows are asked for one by one."""
    monkeypatch.setattr(integrity, "_FEW", 0)
    craft = workspace.craft(spec=BY_PART)
    workspace.commits(craft, [300, 200])
    spelt = f"file://{craft.folder.parent}//{craft.folder.name}"
    folder = workspace.publish(craft, lambda document: document.update(location=spelt))
    lost = min((folder / "data").rglob("*.parquet"))
    lost.unlink()
    asked: list[str] = []

    class Asked:
        def __getattr__(self, name: str) -> Any:
            return getattr(workspace.app.runtime.files, name)

        def stat(self, paths: Sequence[str], concurrency: int) -> Mapping[str, FileStat | None]:
            asked.extend(paths)
            return workspace.app.runtime.files.stat(paths, concurrency)

    catalog = workspace.app.runtime.catalogs["lake"]
    report = integrity.IntegrityCheck(cast("TableFiles", Asked()), workspace.metadata()).run(catalog.load)
    assert [(fault.kind, fault.path) for fault in report.faults] == [(FileFaultKind.MISSING, f"file://{lost}")]
    assert asked == [f"file://{lost}"]
    assert report.files == check(workspace).files


def _newest(folder: Path) -> Path:
    """The manifest list of the newest snapshot of a crafted table."""
    (metadata,) = folder.glob("metadata/*.metadata.json")
    location = json.loads(metadata.read_bytes())["snapshots"][-1]["manifest-list"]
    return Path(location.removeprefix("file://"))


def changed_row(change: Callable[[Any], None]) -> Callable[[Path], None]:
    """Change the row of a manifest that adds a file, in the newest manifest list."""
    return lambda folder: rewrite(
        _newest(folder), lambda rows: change(next(row for row in rows if row["added_files_count"]))
    )


def changed_entry(change: Callable[[Any], None]) -> Callable[[Path], None]:
    """Change the entry of the manifest that adds the newest file."""

    def changed(folder: Path) -> None:
        with _newest(folder).open("rb") as source:
            rows: list[Any] = list(fastavro.reader(source))
        path = next(row["manifest_path"] for row in rows if row["added_files_count"])
        tamper_manifest(folder / "metadata", folder / "metadata" / Path(path).name, lambda entries: change(entries[0]))

    return changed


def changed_row_and_entry(row: Callable[[Any], None], entry: Callable[[Any], None]) -> Callable[[Path], None]:
    """Change an entry and the newest list's row of its manifest, so that the two agree."""

    def changed(folder: Path) -> None:
        changed_entry(entry)(folder)
        changed_row(row)(folder)

    return changed


def setting(name: str, value: Any) -> Callable[[Any], None]:
    """Set a field of a manifest list's row, or of an entry's data file."""
    return lambda record: record.get("data_file", record).update({name: value})


def _bound(name: str, value: bytes) -> Callable[[Any], None]:
    """Set a bound of the first column of an entry's data file."""
    return lambda entry: entry["data_file"].update({name: in_map(entry["data_file"][name], 1, value)})


def _metadata(change: Callable[[Any], object]) -> Callable[[Path], None]:
    """Change the metadata file."""
    return lambda folder: edit(next(folder.glob("metadata/*.metadata.json")), change)


def _stale_statistics(folder: Path) -> None:
    """Name a file of statistics that is there, of a snapshot that is not."""
    path = _newest(folder)
    known = {"snapshot-id": 7, "statistics-path": f"file://{path}", "file-size-in-bytes": path.stat().st_size}
    named = {"statistics": [{**known, "file-footer-size-in-bytes": 1, "blob-metadata": []}]}
    _metadata(lambda document: document.update(named))(folder)


def _of_spec(number: int) -> Callable[[Path], None]:
    """Let the header of a manifest name another spec than its list."""

    def changed(folder: Path) -> None:
        path = min(folder.glob("metadata/*-m*.avro"))
        header = path.read_bytes().replace(b"\x22partition-spec-id\x020", b"\x22partition-spec-id\x02%d" % number)
        path.write_bytes(header)

    return changed


def _twice(folder: Path) -> None:
    rewrite(_newest(folder), lambda rows: rows.append(rows[0]))


def _scrambled_footer(folder: Path) -> None:
    path = min((folder / "data").rglob("*.parquet"))
    content = path.read_bytes()
    path.write_bytes(content[:-60] + b"x" * 52 + content[-8:])


def _sorted_by(number: int, transform: str = "identity") -> Callable[[Any], None]:
    by = {"transform": transform, "source-id": number, "direction": "asc", "null-order": "nulls-first"}
    return lambda document: document.update(
        {"sort-orders": [{"order-id": 1, "fields": [by]}], "default-sort-order-id": 1}
    )


def _spec_of(number: int, column: int, transform: str) -> Mapping[str, Any]:
    by = {"name": "more", "transform": transform, "source-id": column, "field-id": number}
    return {"spec-id": 1, "fields": [by]}


def _list(number: int, element: int, kind: str = "long") -> Mapping[str, Any]:
    of = {"type": "list", "element-id": element, "element-required": False, "element": kind}
    return {"id": number, "name": "more", "required": False, "type": of}


def _identified_inside(document: Any) -> None:
    """Let a column inside of an optional one identify rows."""
    inner = {"id": 9, "name": "inner", "required": True, "type": "long"}
    outer = {"id": 8, "name": "outer", "required": False, "type": {"type": "struct", "fields": [inner]}}
    document["schemas"][0]["fields"].append(outer)
    document["schemas"][0]["identifier-field-ids"] = [9]
    document["last-column-id"] = 9


def _with_list(folder: Path) -> None:
    """Let the newest data file have a list of texts, where the schema has one of numbers."""

    def listed(entry: Any) -> None:
        path = Path(entry["data_file"]["file_path"].removeprefix("file://"))
        table = pq.read_table(path)
        texts = pa.list_(pa.field("element", pa.string(), metadata={"PARQUET:field_id": "9"}))
        field = pa.field("more", texts, metadata={"PARQUET:field_id": "8"})
        pq.write_table(table.append_column(field, pa.array([["a"]] * table.num_rows, texts)), path)
        entry["data_file"].update(file_size_in_bytes=path.stat().st_size, split_offsets=None)

    changed_entry(listed)(folder)
    _metadata(lambda d: [d.update({"last-column-id": 9}), d["schemas"][0]["fields"].append(_list(8, 9))])(folder)


def _called_deletes(content: int) -> Callable[[Path], None]:
    """Let the newest data file, without its column `id`, be one of deletes."""

    def changed(folder: Path) -> None:
        def deletes(entry: Any) -> None:
            path = Path(entry["data_file"]["file_path"].removeprefix("file://"))
            table = pq.read_table(path)
            pq.write_table(table.select(["part"]), path)
            size = path.stat().st_size
            entry["data_file"].update(content=content, equality_ids=[1], file_size_in_bytes=size, split_offsets=None)

        changed_row_and_entry(setting("content", 1), deletes)(folder)
        _metadata(lambda document: document["snapshots"][-1]["summary"].update({"total-data-files": "0"}))(folder)

    return changed


def _footer(before: bytes, after: bytes) -> Callable[[Path], None]:
    """Change bytes of the footer of a Parquet file."""

    def changed(folder: Path) -> None:
        path = min((folder / "data").rglob("*.parquet"))
        content = path.read_bytes()
        start = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
        path.write_bytes(content[:start] + content[start:].replace(before, after, 1))

    return changed


def _bounds(value: bytes) -> list[dict[str, object]]:
    return [{"contains_null": False, "contains_nan": False, "lower_bound": value, "upper_bound": value}]


def _once_more(names: str) -> Callable[[Any], None]:
    return lambda document: document[names].append(document[names][0])


def _named(kind: str, retention: str, value: int) -> Callable[[Any], None]:
    """Let a ref of the oldest snapshot have a retention."""

    def change(document: Any) -> None:
        oldest = document["snapshots"][0]["snapshot-id"]
        document["refs"]["named"] = {"type": kind, "snapshot-id": oldest, retention: value}

    return change


def _as_existing(row: Any) -> None:
    row.update(existing_files_count=row["added_files_count"], existing_rows_count=row["added_rows_count"])
    row.update(added_files_count=0, added_rows_count=0)


def _statistics(
    names: str, content: bytes, footer_bytes: int | None, blobs: Sequence[object] = ()
) -> Callable[[Path], None]:
    """Let the newest snapshot have a file of statistics, whose length is right."""

    def changed(folder: Path) -> None:
        path = folder / "metadata" / "numbers.stats"
        path.write_bytes(content)
        known = {"statistics-path": f"file://{path}", "file-size-in-bytes": len(content)}
        more = {} if footer_bytes is None else {"file-footer-size-in-bytes": footer_bytes, "blob-metadata": blobs}

        def change(document: Any) -> None:
            document[names] = [{"snapshot-id": document["snapshots"][-1]["snapshot-id"], **known, **more}]

        _metadata(change)(folder)

    return changed


KIND, AT_ENTRIES, AT_FOOTERS = FileFaultKind, CheckLevel.ENTRIES, CheckLevel.FOOTERS
DEEPER_FAULTS: dict[str, tuple[CheckLevel, Callable[[Path], None], FileFaultKind]] = {
    "a list counts other rows": (AT_ENTRIES, changed_row(setting("added_rows_count", 7)), KIND.WRONG_COUNT),
    "a list names an unknown spec": (AT_ENTRIES, changed_row(setting("partition_spec_id", 9)), KIND.WRONG_PARTITION),
    "a list calls data deletes": (AT_ENTRIES, changed_row(setting("content", 1)), KIND.WRONG_CONTENT),
    "a list's least sequence number is too high": (
        AT_ENTRIES,
        changed_row(lambda row: row.update(min_sequence_number=row["sequence_number"] + 1)),
        KIND.WRONG_SEQUENCE,
    ),
    "a list's bounds leave a partition out": (
        AT_ENTRIES,
        changed_row(setting("partitions", _bounds(b"aaa"))),
        KIND.WRONG_BOUNDS,
    ),
    "a list has no bounds of a partition": (
        AT_ENTRIES,
        changed_row(lambda row: row["partitions"][0].update(upper_bound=None)),
        KIND.WRONG_BOUNDS,
    ),
    "a list has no summaries of partitions": (AT_ENTRIES, changed_row(setting("partitions", [])), KIND.WRONG_BOUNDS),
    "a manifest has a key in a plain table": (AT_ENTRIES, changed_row(setting("key_metadata", b"k")), KIND.UNREADABLE),
    "an entry has a status that there is not": (
        AT_ENTRIES,
        changed_entry(lambda entry: entry.update(status=7)),
        KIND.UNREADABLE,
    ),
    "a bound is cut": (AT_FOOTERS, changed_entry(_bound("lower_bounds", b"\x01")), KIND.WRONG_BOUNDS),
    "all values are NaN, with a bound": (
        AT_FOOTERS,
        changed_entry(setting("nan_value_counts", [{"key": 1, "value": 1}])),
        KIND.WRONG_COUNT,
    ),
    "the current schema is gone": (
        AT_ENTRIES,
        _metadata(lambda document: document.update({"current-schema-id": 7})),
        KIND.WRONG_FIELDS,
    ),
    "a column is of a type that there is not": (
        AT_ENTRIES,
        _metadata(lambda document: document["schemas"][0]["fields"][1].update(type="text")),
        KIND.UNREADABLE,
    ),
    "a partition field has the name of another column": (
        AT_ENTRIES,
        _metadata(lambda document: document["partition-specs"][0]["fields"][0].update(name="id")),
        KIND.WRONG_FIELDS,
    ),
    "a list names a manifest twice": (AT_ENTRIES, _twice, KIND.DUPLICATE),
    "an entry's rows are miscounted": (
        AT_FOOTERS,
        changed_row_and_entry(setting("added_rows_count", 2), setting("record_count", 2)),
        KIND.WRONG_COUNT,
    ),
    "a lower bound is too high": (AT_FOOTERS, changed_entry(_bound("lower_bounds", pack("<q", 99))), KIND.WRONG_BOUNDS),
    "an upper bound is too low": (AT_FOOTERS, changed_entry(_bound("upper_bounds", pack("<q", -9))), KIND.WRONG_BOUNDS),
    "nulls are miscounted": (
        AT_FOOTERS,
        changed_entry(
            lambda e: e["data_file"].update(null_value_counts=in_map(e["data_file"]["null_value_counts"], 1, 1))
        ),
        KIND.WRONG_COUNT,
    ),
    "a split offset is inside a row group": (
        AT_FOOTERS,
        changed_entry(setting("split_offsets", [7])),
        KIND.WRONG_OFFSETS,
    ),
    "a partition value is another": (
        AT_FOOTERS,
        changed_row_and_entry(setting("partitions", _bounds(b"zz")), setting("partition", {"part": "zz"})),
        KIND.WRONG_PARTITION,
    ),
    "a list and its manifest name two specs": (AT_ENTRIES, _of_spec(9), KIND.WRONG_PARTITION),
    "a list says that another snapshot added a manifest": (
        AT_ENTRIES,
        changed_row(setting("added_snapshot_id", 7)),
        KIND.WRONG_SNAPSHOT,
    ),
    "a list has lost a manifest": (
        AT_ENTRIES,
        lambda f: rewrite(_newest(f), lambda rows: rows.clear()),
        KIND.WRONG_COUNT,
    ),
    "an entry names an unknown sort order": (AT_ENTRIES, changed_entry(setting("sort_order_id", 9)), KIND.WRONG_ORDER),
    "a file has a key in a plain table": (AT_ENTRIES, changed_entry(setting("key_metadata", b"k")), KIND.UNREADABLE),
    "a branch is of a snapshot that is gone": (
        AT_ENTRIES,
        _metadata(lambda document: document["refs"].update(audit={"snapshot-id": 7, "type": "branch"})),
        KIND.WRONG_SNAPSHOT,
    ),
    "main is not the current snapshot": (
        AT_ENTRIES,
        _metadata(lambda document: document.update({"current-snapshot-id": document["snapshots"][0]["snapshot-id"]})),
        KIND.WRONG_SNAPSHOT,
    ),
    "statistics are of a snapshot that is gone": (AT_ENTRIES, _stale_statistics, KIND.WRONG_SNAPSHOT),
    "a snapshot is of a schema that is gone": (
        AT_ENTRIES,
        _metadata(lambda document: document["snapshots"][-1].update({"schema-id": 7})),
        KIND.WRONG_FIELDS,
    ),
    "a snapshot is older than its parent": (
        AT_ENTRIES,
        _metadata(
            lambda document: document["snapshots"][0].update({"sequence-number": document["last-sequence-number"]})
        ),
        KIND.WRONG_SEQUENCE,
    ),
    "a column is beyond the last id": (
        AT_ENTRIES,
        _metadata(lambda document: document.update({"last-column-id": 1})),
        KIND.WRONG_FIELDS,
    ),
    "a partition field is beyond the last id": (
        AT_ENTRIES,
        _metadata(lambda document: document.update({"last-partition-id": 999})),
        KIND.WRONG_FIELDS,
    ),
    "the table is partitioned by a column that is gone": (
        AT_ENTRIES,
        _metadata(lambda document: document["partition-specs"][0]["fields"][0].update({"source-id": 7})),
        KIND.WRONG_FIELDS,
    ),
    "the table is sorted by a column that is gone": (AT_ENTRIES, _metadata(_sorted_by(7)), KIND.WRONG_FIELDS),
    "the snapshot log goes back in time": (
        AT_ENTRIES,
        _metadata(lambda document: document["snapshot-log"][0].update({"timestamp-ms": 10**15})),
        KIND.WRONG_LOG,
    ),
    "the table was updated before its last snapshot": (
        AT_ENTRIES,
        _metadata(lambda document: document.update({"last-updated-ms": 1})),
        KIND.WRONG_LOG,
    ),
    "row ids of a snapshot are given again": (
        AT_ENTRIES,
        _metadata(
            lambda d: [d.update({"next-row-id": 6}), d["snapshots"][0].update({"first-row-id": 7, "added-rows": 0})]
        ),
        KIND.WRONG_ROW_IDS,
    ),
    "a table of format v2 has a deletion vector": (
        AT_ENTRIES,
        changed_row_and_entry(setting("content", 1), lambda e: e["data_file"].update(content=1, file_format="PUFFIN")),
        KIND.WRONG_CONTENT,
    ),
    "a manifest has other partition fields than its spec": (
        AT_ENTRIES,
        _metadata(lambda document: document["partition-specs"][0]["fields"][0].update({"field-id": 1001})),
        KIND.WRONG_PARTITION,
    ),
    "both bounds are above one another": (
        AT_FOOTERS,
        changed_entry(
            lambda e: e["data_file"].update(
                lower_bounds=in_map(e["data_file"]["lower_bounds"], 2, b"pz"),
                upper_bounds=in_map(e["data_file"]["upper_bounds"], 2, b"p"),
            )
        ),
        KIND.WRONG_BOUNDS,
    ),
    "a column that must be there is in no file": (
        AT_FOOTERS,
        _metadata(
            lambda document: [
                document["schemas"][0]["fields"].append({"id": 3, "name": "more", "type": "long", "required": True}),
                document.update({"last-column-id": 3}),
            ]
        ),
        KIND.WRONG_FIELDS,
    ),
    "a file has a column of another type": (
        AT_FOOTERS,
        _metadata(lambda document: document["schemas"][0]["fields"][0].update(type="string")),
        KIND.WRONG_FIELDS,
    ),
    "position deletes lack their columns": (AT_FOOTERS, _called_deletes(1), KIND.WRONG_FIELDS),
    "equality deletes lack their column": (AT_FOOTERS, _called_deletes(2), KIND.WRONG_FIELDS),
    "a footer counts other rows than its row groups": (
        AT_FOOTERS,
        _footer(b"\x16\x02\x19", b"\x16\x04\x19"),
        KIND.UNREADABLE,
    ),
    "a Parquet file is called ORC": (AT_FOOTERS, changed_entry(setting("file_format", "ORC")), KIND.UNREADABLE),
    "a footer is scrambled": (AT_FOOTERS, _scrambled_footer, KIND.UNREADABLE),
    "two snapshots have one id": (AT_ENTRIES, _metadata(_once_more("snapshots")), KIND.DUPLICATE),
    "two schemas have one id": (AT_ENTRIES, _metadata(_once_more("schemas")), KIND.DUPLICATE),
    "two partition specs have one id": (AT_ENTRIES, _metadata(_once_more("partition-specs")), KIND.DUPLICATE),
    "the snapshot log ends with another snapshot than the current one": (
        AT_ENTRIES,
        _metadata(lambda document: document["snapshot-log"].pop()),
        KIND.WRONG_LOG,
    ),
    "the snapshot log has a snapshot that is gone": (
        AT_ENTRIES,
        _metadata(lambda document: document["snapshot-log"][0].update({"snapshot-id": 7})),
        KIND.WRONG_LOG,
    ),
    "a snapshot comes from one that comes from it": (
        AT_ENTRIES,
        _metadata(lambda d: d["snapshots"][0].update({"parent-snapshot-id": d["snapshots"][-1]["snapshot-id"]})),
        KIND.WRONG_SNAPSHOT,
    ),
    "a snapshot is its own parent": (
        AT_ENTRIES,
        _metadata(lambda d: d["snapshots"][-1].update({"parent-snapshot-id": d["snapshots"][-1]["snapshot-id"]})),
        KIND.WRONG_SNAPSHOT,
    ),
    "a snapshot has an operation that there is not": (
        AT_ENTRIES,
        _metadata(lambda d: d["snapshots"][-1]["summary"].update(operation="merge")),
        KIND.WRONG_SNAPSHOT,
    ),
    "a snapshot has no operation": (
        AT_ENTRIES,
        _metadata(lambda d: d["snapshots"][-1]["summary"].pop("operation")),
        KIND.WRONG_SNAPSHOT,
    ),
    "a snapshot has more rows than its parent and its changes": (
        AT_ENTRIES,
        _metadata(lambda d: d["snapshots"][-1]["summary"].update({"total-records": "77"})),
        KIND.WRONG_COUNT,
    ),
    "statistics are of a column that never was": (
        AT_ENTRIES,
        _statistics(
            "statistics",
            b"",
            0,
            [{"type": "apache-datasketches-theta-v1", "fields": [99], "snapshot-id": 1, "sequence-number": 1}],
        ),
        KIND.WRONG_FIELDS,
    ),
    "the table is sorted by the day of a number": (AT_ENTRIES, _metadata(_sorted_by(1, "day")), KIND.WRONG_FIELDS),
    "an old spec has a transform that there is not": (
        AT_ENTRIES,
        _metadata(lambda document: document["partition-specs"].append(_spec_of(1001, 1, "zorder"))),
        KIND.WRONG_FIELDS,
    ),
    "partition fields of two specs have one id": (
        AT_ENTRIES,
        _metadata(lambda document: document["partition-specs"].append(_spec_of(1000, 1, "identity"))),
        KIND.WRONG_FIELDS,
    ),
    "a text is partitioned by day": (
        AT_ENTRIES,
        _metadata(lambda document: document["partition-specs"][0]["fields"][0].update(transform="day")),
        KIND.WRONG_FIELDS,
    ),
    "there are no buckets": (
        AT_ENTRIES,
        _metadata(lambda document: document["partition-specs"][0]["fields"][0].update(transform="bucket[0]")),
        KIND.WRONG_FIELDS,
    ),
    "an identifier may be null": (
        AT_ENTRIES,
        _metadata(lambda document: document["schemas"][0].update({"identifier-field-ids": [1]})),
        KIND.WRONG_FIELDS,
    ),
    "main is a tag": (
        AT_ENTRIES,
        _metadata(lambda document: document["refs"]["main"].update(type="tag")),
        KIND.WRONG_SNAPSHOT,
    ),
    "two columns have one id": (
        AT_ENTRIES,
        _metadata(lambda d: [s["fields"].append({**s["fields"][0], "name": "again"}) for s in d["schemas"]]),
        KIND.WRONG_FIELDS,
    ),
    "a column and an element of a list have one id": (
        AT_ENTRIES,
        _metadata(lambda d: d["schemas"][0]["fields"].append(_list(9, 1))),
        KIND.WRONG_FIELDS,
    ),
    "a table of format v2 has a type of v3 in a list": (
        AT_ENTRIES,
        _metadata(
            lambda d: [d.update({"last-column-id": 9}), d["schemas"][0]["fields"].append(_list(8, 9, "variant"))]
        ),
        KIND.WRONG_FIELDS,
    ),
    "a file has elements of another type": (AT_FOOTERS, _with_list, KIND.WRONG_FIELDS),
    "an identifier is in a column that may be null": (
        AT_ENTRIES,
        _metadata(_identified_inside),
        KIND.WRONG_FIELDS,
    ),
    "two columns have one name": (
        AT_ENTRIES,
        _metadata(
            lambda d: [
                d.update({"last-column-id": 9}),
                *(s["fields"].append({**s["fields"][0], "id": 9}) for s in d["schemas"]),
            ]
        ),
        KIND.WRONG_FIELDS,
    ),
    "a tag keeps snapshots as branches do": (
        AT_ENTRIES,
        _metadata(_named("tag", "min-snapshots-to-keep", 3)),
        KIND.WRONG_SNAPSHOT,
    ),
    "a branch keeps no snapshot": (
        AT_ENTRIES,
        _metadata(_named("branch", "min-snapshots-to-keep", 0)),
        KIND.WRONG_SNAPSHOT,
    ),
    "a branch has no age": (AT_ENTRIES, _metadata(_named("branch", "max-ref-age-ms", 0)), KIND.WRONG_SNAPSHOT),
    "the mapping of names is cut": (
        AT_ENTRIES,
        _metadata(lambda d: d["properties"].update({"schema.name-mapping.default": "[{"})),
        KIND.WRONG_FIELDS,
    ),
    "the mapping of names has one twice": (
        AT_ENTRIES,
        _metadata(
            lambda d: d["properties"].update(
                {"schema.name-mapping.default": json.dumps([{"field-id": n, "names": ["id"]} for n in (1, 2)])}
            )
        ),
        KIND.WRONG_FIELDS,
    ),
    "an entry of an earlier commit has no sequence number": (
        AT_ENTRIES,
        changed_row_and_entry(
            _as_existing, lambda entry: entry.update(status=0, sequence_number=None, file_sequence_number=None)
        ),
        KIND.WRONG_SEQUENCE,
    ),
    "statistics have a footer of another length": (
        AT_FOOTERS,
        _statistics("statistics", b"PFA1PFA1" + b"{}" + pack("<i", 2) + bytes(4) + b"PFA1", 7),
        KIND.UNREADABLE,
    ),
    "partition statistics are scrambled": (
        AT_FOOTERS,
        _statistics("partition-statistics", b"PAR1 is not all PAR1", None),
        KIND.UNREADABLE,
    ),
}


@pytest.mark.parametrize("fault", DEEPER_FAULTS)
def test_a_fault_in_an_entry_is_found_at_its_level_and_not_before(workspace: Workspace, fault: str) -> None:
    """What the metadata says of files that are all there; a healthy table has no fault at the deepest level."""
    folder = workspace.table(spec=BY_PART)
    assert check(workspace, CheckLevel.FOOTERS).faults == ()
    level, tamper, kind = DEEPER_FAULTS[fault]
    tamper(folder)
    levels = list(CheckLevel)
    assert check(workspace, levels[levels.index(level) - 1]).faults == ()
    found = check(workspace, level).faults
    assert kind in {one.kind for one in found}, found
    assert all(one.snapshot_ids or one.file == "metadata" for one in found), found


def _rewritten(workspace: Workspace) -> Path:
    """The folder of a table whose newest snapshot names its files in one manifest, as earlier ones in theirs."""
    craft = workspace.craft(spec=BY_PART)
    workspace.commits(craft, (400, 300, 200), replacing=False)
    workspace.publish(craft)
    workspace.run(MANIFESTS)
    return craft.folder


def _newest_list(workspace: Workspace) -> Path:
    head = workspace.metadata().current_snapshot
    assert head is not None
    return Path(str(head.manifest_list).removeprefix("file://"))


def _retold(change: Callable[[Any], None]) -> Callable[[Workspace], None]:
    """Change what the manifest of a rewrite says of the oldest file."""

    def changed(workspace: Workspace) -> None:
        folder = _rewritten(workspace) / "metadata"
        with _newest_list(workspace).open("rb") as source:
            rows: list[Any] = list(fastavro.reader(source))
        tamper_manifest(
            folder,
            folder / rows[0]["manifest_path"].rsplit("/", 1)[1],
            lambda entries: change(min(entries, key=lambda entry: entry["sequence_number"])),
        )

    return changed


def _of_another_length(workspace: Workspace) -> None:
    craft = workspace.craft(spec=BY_PART)
    workspace.commits(craft, (400, 300), replacing=False)
    workspace.publish(craft)
    rewrite(_newest_list(workspace), lambda rows: rows[0].update(manifest_length=rows[0]["manifest_length"] + 1))


@pytest.mark.parametrize(
    ("plant", "kind"),
    [
        (_of_another_length, KIND.WRONG_LENGTH),
        (_retold(lambda entry: entry.update(sequence_number=2)), KIND.WRONG_SEQUENCE),
        (_retold(lambda entry: entry["data_file"].update(partition={"part": "p1"})), KIND.WRONG_PARTITION),
    ],
)
def test_lists_and_manifests_contradict_one_another(
    workspace: Workspace, plant: Callable[[Workspace], None], kind: FileFaultKind
) -> None:
    """What two of them say of one file, of which each for itself may be right."""
    plant(workspace)
    assert [one.kind for one in check(workspace, CheckLevel.ENTRIES).faults] == [kind]


def _began_anew(document: Any) -> None:
    """Let the newest summary count as on another branch."""
    document["snapshots"][-1]["summary"].update({"total-records": "7", "total-data-files": "7"})


def _of_version_1(document: Any) -> None:
    """Let the oldest snapshot be of format v1, which asks for no summary."""
    document["snapshots"][0] |= {"sequence-number": 0, "summary": {}}


@pytest.mark.parametrize("change", [_began_anew, _of_version_1])
def test_what_writers_may_leave_out_is_no_fault_of_the_metadata(
    workspace: Workspace, change: Callable[[Any], None]
) -> None:
    """Some writers begin to count on a new branch, and snapshots of format v1 may have no operation."""
    _metadata(change)(workspace.table(spec=BY_PART))
    assert "metadata" not in {one.file for one in check(workspace, CheckLevel.ENTRIES).faults}


def _replaced(document: Any) -> None:
    """Replace the table, as Spark does: main has no snapshot, and columns of the same names keep their ids."""
    (schema,) = document["schemas"]
    for snapshot in document["snapshots"]:
        snapshot["schema-id"] = schema["schema-id"]
    fields = [one | {"type": "double" if one["type"] == "string" else "string"} for one in schema["fields"]]
    document["schemas"].append(schema | {"schema-id": schema["schema-id"] + 1, "fields": fields})
    document |= {"current-schema-id": schema["schema-id"] + 1, "current-snapshot-id": -1, "refs": {}}


def test_a_replaced_table_has_files_of_its_old_types(workspace: Workspace) -> None:
    """Readers of an old snapshot read by the schema of that time; a file of main has to have main's types."""
    folder = workspace.table(spec=BY_PART)
    read = CheckLevel.ROWS
    _metadata(_replaced)(folder)
    assert check(workspace, read).faults == ()
    _metadata(lambda document: document.update({"current-snapshot-id": document["snapshots"][-1]["snapshot-id"]}))(
        folder
    )
    assert KIND.WRONG_FIELDS in {one.kind for one in check(workspace, read).faults}


def test_metadata_of_slow_storage_is_read_several_files_at_once(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By checks, by plans of compactions and by those of deletes: files that follow the first are read together."""
    craft = workspace.craft()
    workspace.commits(craft, range(6, 0, -1), replacing=False)
    workspace.publish(craft)
    metadata, files, read = workspace.metadata(), workspace.app.runtime.files, LocalStorage.read
    assert metadata.current_snapshot is not None
    manifests = files.manifests(metadata.current_snapshot)
    planned = manifest_reader(files, metadata, manifests, ManifestContent.DATA)
    assert planned is not None
    works: Sequence[Callable[[], Sequence[object]]] = (
        lambda: [*CheckedEntries(files, metadata).content_files()],
        lambda: planned.live(manifests),
        lambda: LiveFiles(files, metadata, lambda: None).data(manifests, frozenset(), 1000, None),
    )
    monkeypatch.setattr(read_ahead, "_SLOW_SECONDS", -1.0)
    for work in works:
        together = threading.Event()
        waiting = itertools.count(1)

        def meeting(
            storage: LocalStorage,
            *what: Any,
            together: threading.Event = together,
            waiting: Iterator[int] = waiting,
        ) -> bytes:
            if threading.current_thread() is not threading.main_thread():
                if next(waiting) > 1:
                    together.set()
                assert together.wait(20)
            return read(storage, *what)

        with monkeypatch.context() as patched:
            patched.setattr(LocalStorage, "read", meeting)
            assert len(work()) == len(manifests)
        assert together.is_set()
