"""Checks as an operation: on a schedule, with history and an alert, reading again only what is new; and rows."""

from __future__ import annotations

import math
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.orc
import pyarrow.parquet as pq
import pytest
from pyiceberg.partitioning import PartitionField as Partition
from pyiceberg.partitioning import PartitionSpec as PyicebergSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import DecimalType, LongType, NestedField

from icewright.adapters.engines.arrow.opening import Opener
from icewright.adapters.engines.service.column_faults import ColumnContent, column_faults
from icewright.adapters.engines.service.content_faults import check_content
from icewright.adapters.engines.service.content_file import ContentFile
from icewright.adapters.engines.service.row_faults import RowCheck
from icewright.app.demo.files import WrittenFile
from icewright.core.alerts import AlertRule
from icewright.core.field_ids import DELETED_PATH
from icewright.core.integrity import CheckLevel, FileFaultKind
from icewright.core.policy import Operation
from icewright.core.runs import JobState
from icewright.core.table import PartitionField, PartitionSpec
from icewright.flow.alert import Alerting, alert_due
from icewright.flow.execute import JobResult, execute
from icewright.flow.operation import Request
from tests.cases.conftest import ground, workspace
from tests.cases.test_integrity import check
from tests.cases.workspace import BY_PART, NAME, Workspace, ref

pytestmark = pytest.mark.external  # makes a lakehouse or a store for each test

__all__ = ["ground", "workspace"]


def by_itself(workspace: Workspace, *, dry_run: bool = False, **knobs: object) -> JobResult:
    """The operation as the service runs it."""
    workspace.detect()
    runtime = workspace.runtime({"check.enabled": True} | {k.replace("__", "."): v for k, v in knobs.items()})
    return execute(runtime, Request(ref(NAME), (Operation.CHECK,), dry_run=dry_run))


def append(workspace: Workspace, number: int) -> None:
    """Commit a file as another writer does."""
    table = workspace.icebergs["lake"].load_table(tuple(NAME.split(".")))
    schema = table.schema().as_arrow()
    table.append(schema.empty_table().from_pylist([{"id": number, "part": f"p{number}"}], schema=schema))


def test_a_check_goes_on_from_the_last_one(workspace: Workspace) -> None:
    """A dry run says what is read; a day later only new files are; nothing is before its time; a full check in time."""
    workspace.table(spec=BY_PART)
    said = by_itself(workspace, dry_run=True).outcomes[0]
    first = by_itself(workspace).outcomes[0]
    same = ("files_checked", "snapshots_checked", "files_read", "bytes_read")
    assert [said.metrics[name] for name in same] == [first.metrics[name] for name in same]
    assert (first.metrics["files_read"], first.metrics["full_hours"], first.metrics["faults_found"]) == (4, 0, 0)
    assert not by_itself(workspace).outcomes[0].tried
    append(workspace, 9)
    workspace.clock.advance(hours=25)
    assert by_itself(workspace, dry_run=True).outcomes[0].metrics["files_read"] == 1
    second = by_itself(workspace).outcomes[0]
    assert (second.metrics["files_read"], second.metrics["full_hours"]) == (1, 25)
    assert second.metrics["files_checked"] == first.metrics["files_checked"] + 3
    workspace.clock.advance(hours=25)
    assert by_itself(workspace, check__full_days=2).outcomes[0].metrics["files_read"] == 5


def test_a_fault_is_an_alert_until_a_check_finds_none(workspace: Workspace) -> None:
    """The job is partial, the next check reads all again, and a file that is back resolves the alert."""
    folder = workspace.table(spec=BY_PART)
    by_itself(workspace)
    alerting, lost = Alerting(), min(folder.glob("data/**/*.parquet"))
    alert_due(workspace.app.runtime, alerting)
    assert workspace.app.runtime.store.alerts.unresolved() == []
    content = lost.read_bytes()
    lost.unlink()
    for _ in range(2):
        workspace.clock.advance(hours=25)
        job = by_itself(workspace)
        assert job.state is JobState.PARTIAL
        assert job.outcomes[0].metrics["faults_found"] == 1
        assert job.outcomes[0].notes[0].startswith(f"missing data file://{lost}: there is no such file; snapshots ")
        alert_due(workspace.app.runtime, alerting)
    (alert,) = workspace.app.runtime.store.alerts.unresolved()
    assert (alert.rule, alert.ref) == (AlertRule.CHECK_FAILED, ref(NAME))
    assert lost.name in alert.message
    assert job.outcomes[0].metrics["full_hours"] == 0
    lost.write_bytes(content)
    workspace.clock.advance(hours=25)
    assert by_itself(workspace).state is JobState.SUCCEEDED
    alert_due(workspace.app.runtime, alerting)
    assert workspace.app.runtime.store.alerts.unresolved() == []


@pytest.mark.parametrize(
    ("transform", "kind", "value", "right", "wrong"),
    [
        ("identity", "string", b"ice", "ice", "ic"),
        ("truncate[2]", "string", b"ice", "ic", "ice"),
        ("truncate[10]", "int", -1, -10, 0),
        ("bucket[16]", "long", 34, 3, 2),
        ("bucket[16]", "string", b"ice", 5, 4),
        ("year", "timestamp_ns", 1_700_000_000_000_000_000, 53, 54),
        ("month", "date", 17486, 574, 575),
        ("day", "timestamptz", 1_700_000_000_000_000, 19675, 19676),
        ("hour", "timestamp", 1_700_000_000_000_000, 472222, None),
    ],
)
def test_partition_values_of_each_transform(transform: str, kind: str, value: Any, right: Any, wrong: Any) -> None:
    """A file whose column has another value than its partition, or a null, is in the wrong partition."""
    by = PartitionSpec(0, (PartitionField(1, 1000, "p", transform),))

    def found(partition: Any, nulls: int = 0, what: str = transform) -> list[FileFaultKind]:
        one = ContentFile("m.avro", 0, 1, 1, {102: {"p": partition}})
        column = ColumnContent(9, nulls, value, value, is_exact=True)
        spec = replace(by, fields=tuple(replace(field, transform=what) for field in by.fields))
        return [kind for kind, _ in column_faults(one, {1: column}, {1: kind}, spec)]

    assert found(right) == []
    assert found(right, nulls=1) == found(wrong) == [FileFaultKind.WRONG_PARTITION]
    assert found(wrong if wrong is not None else 1, what="void") == found(right, what="unheard-of") == []


@pytest.mark.parametrize(
    ("transform", "kind", "value", "partition"),
    [("bucket[4]", "string", b"a\xff", 3), ("truncate[1]", "string", b"\xff", "x"), ("year", "date", 2**31 - 1, 7)],
)
def test_a_partition_that_python_cannot_compute_is_no_fault(
    transform: str, kind: str, value: Any, partition: Any
) -> None:
    """Spark has texts that are not UTF-8, and years above 9999."""
    spec = PartitionSpec(0, (PartitionField(1, 1000, "p", transform),))
    one = ContentFile("m.avro", 0, 1, 1, {102: {"p": partition}})
    assert list(column_faults(one, {1: ColumnContent(9, 0, value, value, is_exact=True)}, {1: kind}, spec)) == []


def test_a_partition_of_nan_has_a_footer_with_nan() -> None:
    """Spark writes NaN for the least and the greatest value of such a column."""
    one = ContentFile("m.avro", 0, 1, 1, {102: {"p": math.nan}})
    spec = PartitionSpec(0, (PartitionField(1, 1000, "p", "identity"),))
    column = ColumnContent(9, 0, math.nan, math.nan, is_exact=True)
    assert list(column_faults(one, {1: column}, {1: "double"}, spec)) == []


@pytest.mark.parametrize("bound", [b"abc", b""])
def test_a_bound_of_nothing_but_nan_that_is_no_number_is_named(bound: bytes) -> None:
    """Other counts of its entry say that there is no number: whatever the bound is, it is compared with none."""
    said = {109: [{"key": 1, "value": 2}], 137: [{"key": 1, "value": 2}], 125: [{"key": 1, "value": bound}]}
    one = ContentFile("m.avro", 0, 1, 1, {102: {}, **said})
    assert [kind for kind, _ in column_faults(one, {}, {1: "double"}, None)] == [FileFaultKind.WRONG_BOUNDS]


def test_an_upper_bound_that_was_cut_has_to_be_raised() -> None:
    """Also where the footer's own greatest value was cut and raised; what it cuts at its end proves nothing."""

    def found(most: bytes, upper: bytes) -> list[FileFaultKind]:
        one = ContentFile("m.avro", 0, 1, 1, {102: {}, 128: [{"key": 1, "value": upper}]})
        column = ColumnContent(9, 0, b"a", most, is_exact=False)
        return [kind for kind, _ in column_faults(one, {1: column}, {1: "string"}, None)]

    assert found(b"n" * 31 + b"o", b"n" * 15 + b"o") == found(b"n" * 31 + b"o", b"n" * 32) == []
    assert found(b"n" * 31 + b"o", b"n" * 16) == [FileFaultKind.WRONG_BOUNDS]


def test_deletes_of_one_data_file_are_of_that_file() -> None:
    """Readers look for them at the file that their entry names, and nowhere else."""
    one = ContentFile("m.avro", 0, 1, 1, {101: "PARQUET", 102: {}, 134: 1, 143: "b.parquet"})

    def found(path: bytes) -> list[FileFaultKind]:
        return [kind for kind, _ in column_faults(one, {DELETED_PATH: ColumnContent(1, 0, path, path, True)}, {}, None)]

    assert (found(b"b.parquet"), found(b"c.parquet")) == ([], [FileFaultKind.WRONG_BOUNDS])


def _damaged(path: Path) -> None:
    content = bytearray(path.read_bytes())
    chunk = pq.read_metadata(path).row_group(0).column(0)
    start = chunk.dictionary_page_offset or chunk.data_page_offset
    content[start : start + chunk.total_compressed_size] = b"\xff" * chunk.total_compressed_size
    path.write_bytes(content)


def _other_rows(path: Path) -> None:
    """Let the footer of a file speak for values that its pages do not have."""
    table, before = pq.read_table(path), path.read_bytes()
    pq.write_table(
        table.set_column(0, table.schema.field(0), [[value + 5 for value in table["id"].to_pylist()]]),
        path,
        compression="zstd",
    )
    after, footer = path.read_bytes(), int.from_bytes(before[-8:-4], "little") + 8
    assert len(after) == len(before)
    path.write_bytes(after[:-footer] + before[-footer:])


@pytest.mark.parametrize(
    ("harm", "kind"), [(_damaged, FileFaultKind.UNREADABLE), (_other_rows, FileFaultKind.WRONG_BOUNDS)]
)
def test_rows_are_read(workspace: Workspace, harm: Any, kind: FileFaultKind) -> None:
    """A page that was damaged, or has other values than entry and footer say, is found at the level of rows alone."""
    folder = workspace.table(spec=BY_PART)
    report = check(workspace, CheckLevel.ROWS)
    assert (report.faults, report.read, report.unread) == ((), 4, {})
    assert report.bytes_read == sum(path.stat().st_size for path in folder.rglob("*.parquet"))
    harmed = min(folder.rglob("*.parquet"))
    harm(harmed)
    assert check(workspace, CheckLevel.FOOTERS).faults == ()
    found = check(workspace, CheckLevel.ROWS).faults
    assert (kind, f"file://{harmed}") in {(one.kind, one.path) for one in found}, found


def test_a_file_of_another_format_is_no_fault(workspace: Workspace) -> None:
    """The rows of an ORC file are not read, and the report says so instead of calling the file unreadable."""
    craft = workspace.craft()
    plain = craft.data({"id": [1], "part": ["a"]})
    path = craft.folder / "data" / "rows.orc"
    pyarrow.orc.write_table(pq.read_table(plain.path), path)
    entry = {"file_path": f"file://{path}", "file_format": "ORC", "file_size_in_bytes": path.stat().st_size}
    craft.commit(
        workspace.clock.now(), [plain, WrittenFile(path, dict(plain.record) | entry | {"split_offsets": None})]
    )
    workspace.publish(craft)
    report = check(workspace, CheckLevel.ROWS)
    assert (report.faults, report.unread) == ((), {f"file://{path}": "only Parquet is read, not ORC"})


def test_a_partition_column_with_more_digits_since_is_no_fault(workspace: Workspace) -> None:
    """Manifests of today store the old values in more bytes: they are the same partitions, in the rewritten one too."""
    lake, fields = (
        workspace.icebergs["lake"],
        [NestedField(1, "id", LongType()), NestedField(2, "amount", DecimalType(4, 2))],
    )
    spec = PyicebergSpec(Partition(2, 1000, IdentityTransform(), "amount"))
    table = lake.create_table(NAME, Schema(*fields), partition_spec=spec)
    for text in ("-99.99", "1.28", "123456789012345678.25"):
        if len(text) > len("-99.99"):
            with table.update_schema() as change:
                change.update_column("amount", DecimalType(20, 2))
        schema = table.schema().as_arrow()
        table.append(pa.Table.from_pylist([{"id": 1, "amount": Decimal(text)}], schema=schema))
    assert workspace.run(Operation.REWRITE_MANIFESTS, rewrite_manifests__min_manifests=2).state.value == "committed"
    assert check(workspace, CheckLevel.ROWS).faults == ()
    assert len(table.refresh().scan("amount = -99.99").to_arrow()) == 1


def test_a_column_that_is_null_has_a_type_that_spark_does_not_read(workspace: Workspace, tmp_path: Path) -> None:
    """Arrow writes a type of its own for a column without a value; its rows can be counted all the same."""
    path, field = tmp_path / "file.parquet", pa.field("c", pa.null(), metadata={"PARQUET:field_id": "1"})
    pq.write_table(pa.Table.from_arrays([pa.nulls(2)], schema=pa.schema([field])), path)
    counts = {109: [{"key": 1, "value": 2}], 110: [{"key": 1, "value": 2}]}
    values = {100: str(path), 101: "PARQUET", 102: {}, 103: 2, 104: path.stat().st_size, **counts}
    one = ContentFile("m.avro", 0, 1, 1, values)
    for kind in ("string", "long", "double"):
        ((_, detail),) = check_content(workspace.app.runtime.files, one, {1: kind}, {}, {}, (1,))
        assert detail == f"column 1 is {kind}, and the file's is INT32 Null"
        ((_, faults, why),) = RowCheck({1: kind}, {}, None, {}, {}).answers(Opener({}), [(0, one)])
        assert (list(faults), why) == ([], None)


@pytest.mark.parametrize(
    ("stored", "kind", "bound", "found"),
    [
        (pa.array(["b", None, "a"]).dictionary_encode(), "string", b"a", [FileFaultKind.WRONG_BOUNDS]),
        (pa.array([2, None, 1], pa.int32()).dictionary_encode(), "int", b"\1\0\0\0", [FileFaultKind.WRONG_BOUNDS]),
        (pa.array([b"b", None, b"a"], pa.binary_view()), "binary", b"b", []),
        (pa.array([1.5, None], pa.float16()), "float", b"\0\0\0\0", "halffloat"),
    ],
    ids=["categories", "categories of numbers", "view", "type that nothing orders"],
)
def test_rows_of_any_arrow_type_are_compared(
    stored: pa.Array, kind: str, bound: bytes, found: list[FileFaultKind] | str, tmp_path: Path
) -> None:
    """A file's Arrow schema may name the types of another library; one that cannot be compared is not read."""
    path, field = tmp_path / "file.parquet", pa.field("c", stored.type, metadata={"PARQUET:field_id": "1"})
    pq.write_table(pa.Table.from_arrays([stored], schema=pa.schema([field])), path)
    values = {100: str(path), 101: "PARQUET", 102: {}, 103: len(stored), 104: path.stat().st_size}
    one = ContentFile("m.avro", 0, 1, 1, {**values, 128: [{"key": 1, "value": bound}]})
    ((_, faults, why),) = RowCheck({1: kind}, {}, None, {}, {}).answers(Opener({}), [(0, one)])
    assert found in (why or "") if isinstance(found, str) else ([fault for fault, _ in faults], why) == (found, None)
