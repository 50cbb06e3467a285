"""The check of files that Spark wrote: footers and deletion vectors against their entries."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from icewright.core.integrity import CheckLevel, FileFaultKind
from tests.cases.tampering import rewrite, tamper_manifest
from tests.integration.bench import Bench
from tests.integration.tables import create, insert
from tests.integration.test_v3 import MERGE_ON_READ

pytestmark = pytest.mark.spark
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
    assert kinds() == set()
    for manifest_list in folder.glob("snap-*.avro"):
        rewrite(manifest_list, _later_row_ids)
    assert FileFaultKind.WRONG_ROW_IDS in kinds()


def _later_row_ids(rows: list[Any]) -> None:
    for row in rows:
        row["first_row_id"] = None if row["content"] else 7
