"""The check of files that Spark wrote: footers and deletion vectors against their entries."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from icewright.core.cost import SERVICE_MEMORY_GB
from icewright.core.integrity import CheckLevel, FileFaultKind
from icewright.core.policy import Operation
from icewright.core.repair import RepairKind
from icewright.core.runs import OperationState
from icewright.flow.detect import detect
from icewright.flow.repair import repair
from tests.cases.tampering import in_map, rewrite, tamper_manifest
from tests.integration.bench import Bench
from tests.integration.javacore import JavaTable
from tests.integration.tables import create, insert
from tests.integration.test_v3 import MERGE_ON_READ

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("quick_spark")]
COLUMNS = (
    "id int, part string, flag boolean, big bigint, price decimal(20,3), small decimal(5,1), ratio double, day date, "
    "at timestamp, local timestamp_ntz, raw binary, nested struct<a: int, b: array<string>>"
)
ROW = (
    "{id}, 'p', true, {id}00000000000, -{id}.125, {id}.5, double('NaN'), DATE '1969-12-2{id}', "
    "TIMESTAMP '1900-01-01 00:00:0{id}', null, X'ff{id}0', named_struct('a', {id}, 'b', array(repeat('x', 40)))"
)


def test_deletion_vectors_are_checked_against_their_entries(bench: Bench, new_name: Callable[[str], str]) -> None:
    """A table with values of many types and with deletion vectors has no fault until an entry says otherwise."""
    name = new_name("checked")
    quoted = create(bench, name, COLUMNS, "part", MERGE_ON_READ, version=3)
    insert(bench, quoted, *(", ".join(f"({ROW.format(id=number)})" for number in two) for two in ((0, 1), (2, 3))))
    bench.sql(f"DELETE FROM {quoted} WHERE id = 1")  # noqa: S608 - quoted

    def kinds() -> set[FileFaultKind]:
        return {fault.kind for fault in bench.app.runtime.engine.check(bench.ref(name), CheckLevel.FOOTERS).faults}

    assert kinds() == set()
    folder = bench.folder(name) / "metadata"
    (manifest,) = [
        folder / row["path"].rsplit("/", 1)[1]
        for row in bench.sql(f"SELECT path FROM {quoted}.manifests WHERE content = 1")  # noqa: S608 - quoted
    ]

    def wrong(change: Callable[[Any], None]) -> set[FileFaultKind]:
        def changed(entries: list[Any]) -> None:
            kept.extend([dict(entry["data_file"]) for entry in entries])
            change(entries[0]["data_file"])

        def restored(entries: list[Any]) -> None:
            for entry, data_file in zip(entries, kept, strict=True):
                entry["data_file"] = data_file

        kept: list[Any] = []
        tamper_manifest(folder, manifest, changed)
        found = kinds()
        tamper_manifest(folder, manifest, restored)
        return found

    assert wrong(lambda file: file.update(content_offset=file["content_offset"] + 1)) == {FileFaultKind.WRONG_VECTOR}
    assert FileFaultKind.WRONG_VECTOR in wrong(lambda file: file.update(record_count=file["record_count"] + 1))
    assert wrong(lambda file: file.update(referenced_data_file="elsewhere.parquet")) == {FileFaultKind.WRONG_VECTOR}
    assert FileFaultKind.WRONG_PARTITION in wrong(lambda file: file.update(partition={"part": "elsewhere"}))
    assert kinds() == set()
    tamper_manifest(folder, manifest, lambda entries: [entry.update(sequence_number=1) for entry in entries].clear())
    assert FileFaultKind.WRONG_SEQUENCE in kinds()
    for first in (7, 0):
        for manifest_list in folder.glob("snap-*.avro"):
            rewrite(manifest_list, partial(_with_row_ids, first))
        assert FileFaultKind.WRONG_ROW_IDS in kinds(), first


def test_spark_reads_rows_as_the_service_does(bench: Bench, new_name: Callable[[str], str]) -> None:
    """Of all types, transforms and deletes: no fault at first, then a damaged page and a position that is no row."""
    name = new_name("read")
    spec = "bucket(4, part), truncate(1, part), days(later), bucket(4, unit)"
    quoted = create(bench, name, f"{COLUMNS}, later timestamp, unit int", spec, MERGE_ON_READ)
    row = f"({ROW}, TIMESTAMP '2026-11-26 0{{id}}:00:00', 7)"
    insert(bench, quoted, *(", ".join(row.format(id=number) for number in some) for some in ((0, 1, 2), (2, 3), (4,))))
    bench.sql(f"DELETE FROM {quoted} WHERE id = 2")  # noqa: S608 - quoted

    def found(engine: str) -> list[str]:
        done = bench.run(name, Operation.CHECK, {"check.level": "rows", "check.engine": engine})
        assert done.state is OperationState.COMMITTED, done
        spark = done.metrics["gb_hours"] > done.metrics["duration_ms"] / 3_600_000 * SERVICE_MEMORY_GB * 2
        assert spark is (engine == "spark"), done.metrics
        assert done.metrics["files_read"] == len(list(bench.folder(name).rglob("*.parquet")))
        return sorted(note.partition("; snapshots")[0] for note in done.notes)

    assert (found("service"), found("spark")) == ([], [])
    deletes = min(bench.folder(name).rglob("*deletes.parquet"))
    table = pq.read_table(deletes)
    positions: list[int] = table["pos"].to_pylist()
    beyond = pa.array([position + 7 for position in positions])
    pq.write_table(table.set_column(1, table.schema.field(1), beyond), deletes)

    def grown(entries: list[Any], **more: None) -> None:
        for entry in entries:
            if entry["data_file"]["file_path"].endswith(deletes.name):
                entry["data_file"].update(file_size_in_bytes=deletes.stat().st_size, **more)

    manifests = bench.sql(f"SELECT path FROM {quoted}.manifests WHERE content = 1")  # noqa: S608 - quoted
    for change in (grown, partial(grown, lower_bounds=None, upper_bounds=None)):
        for manifest in manifests:
            folder = bench.folder(name) / "metadata"
            tamper_manifest(folder, folder / manifest["path"].rsplit("/", 1)[1], change)
        kinds = {fault.kind for fault in bench.app.runtime.engine.check(bench.ref(name), CheckLevel.FOOTERS).faults}
        assert kinds == ({FileFaultKind.WRONG_BOUNDS} if change is grown else set())
    damaged = max(path for path in bench.folder(name).rglob("*.parquet") if "deletes" not in path.name)
    content = bytearray(damaged.read_bytes())
    content[4:60] = b"\xff" * 56
    damaged.write_bytes(content)
    faults = found("service")
    assert [fault.split(" ")[0] for fault in faults] == ["unreadable", "wrong_positions"], faults
    assert found("spark") == faults


@pytest.mark.parametrize("version", [1, 2])
def test_spark_reads_a_repaired_table(version: int, bench: Bench, new_name: Callable[[str], str]) -> None:
    """With values of many types, deletes and two specs: all versions as before, also where bounds hid rows."""
    name = new_name("repaired")
    quoted = create(bench, name, COLUMNS, "part", MERGE_ON_READ if version > 1 else {}, version=version)
    insert(bench, quoted, *(", ".join(f"({ROW.format(id=number)})" for number in two) for two in ((0, 1), (2, 3))))
    bench.sql(f"ALTER TABLE {quoted} ADD PARTITION FIELD bucket(2, id)")
    insert(bench, quoted, f"({ROW.format(id=4)})")
    bench.sql(f"DELETE FROM {quoted} WHERE id = 1")  # noqa: S608 - quoted
    insert(bench, quoted, f"({ROW.format(id=5)})")
    before = bench.read(name, bench.versions(name))
    folder = bench.folder(name) / "metadata"
    rows = bench.sql(f"SELECT path FROM {quoted}.manifests WHERE content = 0")  # noqa: S608 - quoted

    def lie(entries: list[Any]) -> None:
        for entry in entries:
            file = entry["data_file"]
            file["lower_bounds"] = in_map(file["lower_bounds"], 1, b"\x7f\x00\x00\x00")
            file["null_value_counts"] = in_map(file["null_value_counts"], 1, 1)

    for row in rows:
        tamper_manifest(folder, folder / row["path"].rsplit("/", 1)[1], lie)
    for checksum in folder.glob(".*.crc"):  # Hadoop's, of the files as they were
        checksum.unlink()
    assert bench.sql(f"SELECT * FROM {quoted} WHERE id = 5") == []  # noqa: S608 - quoted
    lists = {s.snapshot_id: folder / str(s.manifest_list).rsplit("/", 1)[1] for s in bench.metadata(name).snapshots}
    lists[bench.metadata(name).snapshots[0].snapshot_id].unlink()
    detect(bench.runtime, ["lake"])
    done = repair(bench.runtime, bench.ref(name))
    assert {one.reason.partition(";")[0] for one in done.plan.unrepaired} <= {"main does not need it"}
    assert len(bench.sql(f"SELECT * FROM {quoted} WHERE id = 5")) == 1  # noqa: S608 - quoted
    after = bench.read(name, bench.versions(name))
    assert {version: after[version] for version in before} == before
    assert bench.lake.catalog.load_table(name).scan().to_arrow().num_rows == after["main"][0]
    insert(bench, quoted, f"({ROW.format(id=6)})")
    head = bench.metadata(name).current_snapshot
    assert head is not None
    (folder / str(head.manifest_list).rsplit("/", 1)[1]).unlink()
    assert [action.kind for action in repair(bench.runtime, bench.ref(name)).plan.actions] == [RepairKind.REBUILD]
    bench.sql(f"REFRESH TABLE {quoted}")
    bench.sql(f"DELETE FROM {quoted} WHERE id = 2")  # noqa: S608 - quoted
    assert bench.read(name)["main"][0] == after["main"][0]


def _with_row_ids(first: int, rows: list[Any]) -> None:
    for row in rows:
        row["first_row_id"] = None if row["content"] else first


def test_a_data_file_that_comes_back_after_its_deletes(bench: Bench, new_name: Callable[[str], str]) -> None:
    """The deletion vector that a tag keeps is no fault: it applies to the file of before alone."""
    name = new_name("returned")
    quoted = create(bench, name, "id int, part string", "", MERGE_ON_READ, version=3)
    java = JavaTable.load(bench, name)
    java.append(file := java.data({"id": [1, 2], "part": ["a", "a"]}))
    bench.sql(f"DELETE FROM {quoted} WHERE id = 1")  # noqa: S608 - quoted
    bench.sql(f"ALTER TABLE {quoted} CREATE TAG deleted")
    java = JavaTable.load(bench, name)
    java.table.newDelete().deleteFile(file).commit()
    java.append(file)
    assert bench.sql(f"SELECT count(*) AS n FROM {quoted}")[0]["n"] == 2  # noqa: S608 - quoted
    assert bench.app.runtime.engine.check(bench.ref(name), CheckLevel.ROWS).faults == ()
