"""Copies that Spark reads and writes: by Icewright, and what `rewrite_table_path` makes of the same table."""

from __future__ import annotations

import csv
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from icewright.app.demo.files import local
from icewright.core.integrity import CheckLevel
from icewright.flow.copy import copy_table
from icewright.flow.detect import detect
from tests.integration.bench import Bench
from tests.integration.tables import create, insert
from tests.integration.test_restore import evolved
from tests.integration.test_v3 import MERGE_ON_READ
from tests.nightly import nightly

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("quick_spark")]


def copied(bench: Bench, name: str, place: Path) -> str:
    """Copy the table to a folder by Icewright, and register the copy; its name."""
    detect(bench.runtime, ["lake"])
    result = copy_table(bench.runtime, bench.ref(name), f"file://{place}")
    if bench.lake.catalog.table_exists(f"{name}-copy"):
        bench.lake.catalog.drop_table(f"{name}-copy")
    bench.lake.catalog.register_table(f"{name}-copy", result.metadata_location)
    return f"{name}-copy"


@contextmanager
def gone(*folders: Path) -> Iterator[None]:
    """Folders are elsewhere in the block."""
    for folder in folders:
        folder.rename(folder.with_name(f"{folder.name}-away"))
    try:
        yield
    finally:
        for folder in folders:
            folder.with_name(f"{folder.name}-away").rename(folder)


@pytest.mark.parametrize("version", [nightly(1), nightly(2), 3])
def test_spark_reads_and_writes_a_copy_without_the_table(
    version: int, bench: Bench, new_name: Callable[[str], str], tmp_path: Path
) -> None:
    """With deletes, a branch, a moved write path and two specs; a second copy has the commits since, deletes too.

    Meanwhile the write path has moved back, and a commit has merged manifests of data, but none of older deletes.
    """
    name = new_name("copied")
    evolved(bench, name, version)
    quoted, folder = bench.lake.quoted(name), bench.folder(name)
    elsewhere = folder.with_name(f"{name}-elsewhere")
    for _ in range(2):
        copy = copied(bench, name, tmp_path / "copy")
        versions = bench.versions(name)
        expected = bench.read(name, versions)
        with gone(folder, elsewhere):
            assert bench.read(copy, versions) == expected
            assert bench.runtime.engine.check(bench.ref(copy), CheckLevel.FOOTERS).faults == ()
            pyiceberg = bench.lake.catalog.load_table(copy)
            assert version == 3 or pyiceberg.scan().to_arrow().num_rows == expected["main"][0]
        bench.sql(f"ALTER TABLE {quoted} UNSET TBLPROPERTIES IF EXISTS ('write.data.path')")
        bench.sql(f"ALTER TABLE {quoted} SET TBLPROPERTIES ('commit.manifest.min-count-to-merge' = '2')")
        insert(bench, quoted, "(8, 'a', 80), (9, 'c', 90)")
        bench.sql(f"DELETE FROM {quoted} WHERE id = 8")  # noqa: S608 - quoted
    own = bench.lake.quoted(copy)
    before = bench.read(copy)["main"][0]
    with gone(folder, elsewhere):
        insert(bench, own, "(10, 'd', 100)")
        bench.sql(f"DELETE FROM {own} WHERE id = 7")  # noqa: S608 - quoted
        assert bench.read(copy)["main"][0] == before
        files = {row["file_path"] for row in bench.sql(f"SELECT file_path FROM {own}.all_files")}  # noqa: S608 - quoted
    assert all(str(tmp_path / "copy") in path for path in files)


@pytest.mark.parametrize("version", [2, nightly(3)])
def test_a_copy_reads_as_what_spark_makes(
    version: int, bench: Bench, new_name: Callable[[str], str], tmp_path: Path
) -> None:
    """Rows of all versions, and the live files with all that entries say of them but lengths of rewritten ones."""
    name = new_name("rewritten")
    quoted = create(bench, name, "id int, part string", "part", MERGE_ON_READ, version=version)
    insert(bench, quoted, "(1, 'a'), (2, 'a'), (3, 'b')", "(4, 'b'), (5, 'c')")
    bench.sql(f"DELETE FROM {quoted} WHERE id IN (1, 4)")  # noqa: S608 - quoted
    bench.sql(f"ALTER TABLE {quoted} CREATE TAG kept")
    insert(bench, quoted, "(6, 'a')")
    place, staging = tmp_path / "copy", tmp_path / "staging"
    source = bench.metadata(name).location
    (row,) = bench.call(
        "rewrite_table_path",
        name,
        f"source_prefix => '{source}', target_prefix => 'file://{place}', staging_location => 'file://{staging}'",
    )
    for path, target in csv.reader(local(row["file_list_location"]).read_text(encoding="utf-8").splitlines()):
        local(target).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(local(path), local(target))
    (metadata,) = place.rglob(row["latest_version"])
    bench.lake.catalog.register_table(f"{name}-theirs", f"file://{metadata}")
    theirs = [bench.read(f"{name}-theirs", bench.versions(name)), _entries(bench, f"{name}-theirs")]
    bench.lake.catalog.drop_table(f"{name}-theirs")
    shutil.rmtree(place)
    ours = copied(bench, name, place)
    assert [bench.read(ours, bench.versions(name)), _entries(bench, ours)] == theirs


def _entries(bench: Bench, name: str) -> list[dict[str, object]]:
    """What entries of all live files say, but for lengths and offsets in rewritten ones."""
    columns = "content, file_path, file_format, spec_id, record_count, value_counts, null_value_counts"
    rows = bench.sql(f"SELECT {columns} FROM {bench.lake.quoted(name)}.all_files ORDER BY file_path")  # noqa: S608
    return [{**row.asDict(), "file_path": str(local(row["file_path"]))} for row in rows]
