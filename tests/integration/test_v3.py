"""Format v3: deletion vectors that share a Puffin file, and row lineage, through every kind of maintenance."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import Row

from icewright.app.demo.files import local
from icewright.core.policy import Operation
from icewright.core.runs import OperationState
from tests.integration.bench import Bench, make_old, paths
from tests.integration.compacting import KNOBS
from tests.integration.expiring import expired
from tests.integration.javacore import JavaTable
from tests.integration.planting import plant, remove
from tests.integration.tables import backdate_all, create, insert

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("quick_spark")]

MERGE_ON_READ = {f"write.{verb}.mode": "merge-on-read" for verb in ("delete", "update", "merge")}
MANIFESTS: Mapping[str, object] = {"rewrite_manifests.min_manifests": 2}


def lineage(bench: Bench, name: str) -> list[Row]:
    """Every row with its id and the commit that last changed it."""
    return bench.sql(
        "SELECT id, part, _row_id AS row, _last_updated_sequence_number AS changed "  # noqa: S608 - quoted
        f"FROM {bench.lake.quoted(name)} ORDER BY id"
    )


def delete_files(bench: Bench, name: str) -> list[Row]:
    """The live delete files."""
    return bench.sql(
        "SELECT file_path AS path, file_format AS format, referenced_data_file AS data, record_count AS count "  # noqa: S608
        f"FROM {bench.lake.quoted(name)}.delete_files"
    )


def document(bench: Bench, name: str) -> dict[str, Any]:
    """The metadata file."""
    found: dict[str, Any] = json.loads(local(bench.metadata(name).metadata_location).read_text(encoding="utf-8"))
    return found


def kept_files_are_no_orphans(bench: Bench, name: str) -> None:
    """With every file old, exactly a planted one is an orphan."""
    make_old(bench.folder(name))
    planted = plant(bench.folder(name), "data/orphan.puffin")
    found = remove(bench, name)
    assert paths(f.path for f in found.files) == paths(map(str, planted))


def run(bench: Bench, name: str, operation: Operation, knobs: Mapping[str, object]) -> None:
    """Icewright does something; how many rows there are and what they hold stays."""
    read = bench.read(name)
    done = bench.run(name, operation, knobs)
    assert done.state is OperationState.COMMITTED, done
    assert bench.read(name) == read


@pytest.mark.cases(36, 19)
def test_a_puffin_file_stays_for_its_other_vectors(bench: Bench, new_name: Callable[[str], str]) -> None:
    """A Puffin file with the vectors of two data files lives on when one is compacted, and goes with the other."""
    name = new_name("puffin")
    quoted = create(bench, name, "id int, part string", "part", MERGE_ON_READ, version=3)
    insert(bench, quoted, "(1, 'a'), (2, 'a'), (3, 'b'), (4, 'b')", "(5, 'a'), (6, 'b')")
    java = JavaTable.load(bench, name)
    chosen = [live for live in java.live() if live.rows == 2]
    vectors = java.vectors({live: [0] for live in chosen})
    java.row_delta(deletes=vectors)
    (puffin,) = {str(Path(local(row["path"]))) for row in delete_files(bench, name)}
    assert len(delete_files(bench, name)) == len(chosen) == 2
    assert [row["id"] for row in lineage(bench, name)] == [2, 4, 5, 6]
    backdate_all(bench, name, 90, 20)
    for part, left in (("a", 1), ("b", 0)):
        before = lineage(bench, name)
        run(bench, name, Operation.COMPACT, {**KNOBS, "compact.where": f"part = '{part}'"})
        assert len(delete_files(bench, name)) == left
        backdate_all(bench, name, 90, 20)
        gone = expired(bench, name, 10, 1)
        assert any(f"part={part}" in path for path in gone)
        assert Path(puffin).exists() == (puffin not in gone) == bool(left)
        kept_files_are_no_orphans(bench, name)
        assert lineage(bench, name) == before


@pytest.mark.cases(37)
def test_position_deletes_of_v2_become_one_vector_a_file(bench: Bench, new_name: Callable[[str], str]) -> None:
    """After an upgrade and more deletes, rewriting leaves one vector a data file, and the same rows deleted."""
    name = new_name("upgraded")
    shared = {**MERGE_ON_READ, "write.delete.granularity": "partition"}
    quoted = create(bench, name, "id int, part string", "part", shared)
    for first in (0, 20):
        insert(bench, quoted, ", ".join(f"({n}, '{'ab'[n % 2]}')" for n in range(first, first + 20)))
    for remainder in range(4):
        bench.sql(f"DELETE FROM {quoted} WHERE id % 10 = {remainder}")  # noqa: S608 - quoted
    old = paths(row["path"] for row in delete_files(bench, name))
    bench.sql(f"ALTER TABLE {quoted} SET TBLPROPERTIES ('format-version' = '3')")
    bench.sql(f"DELETE FROM {quoted} WHERE id IN (4, 14)")  # noqa: S608 - quoted
    rewriting = {**KNOBS, "compact.delete_file_threshold": 99, "compact.delete_ratio_threshold": 1.0}
    assert {row["format"] for row in delete_files(bench, name)} == {"PARQUET", "PUFFIN"}
    run(bench, name, Operation.REWRITE_DELETES, rewriting)
    left = delete_files(bench, name)
    assert {row["format"] for row in left} == {"PUFFIN"}
    assert set(Counter(row["data"] for row in left).values()) == {1}
    assert sum(row["count"] for row in left) == 40 - bench.read(name)["main"][0] == 18
    backdate_all(bench, name, 90, 20)
    assert old <= paths(expired(bench, name, 10, 1))
    kept_files_are_no_orphans(bench, name)


@pytest.mark.parametrize(
    ("change", "least"),
    [("'format-version' = '3'", 1), ("'write.delete.granularity' = 'partition'", 2)],
    ids=["v3", "partition"],
)
def test_deletes_of_single_files_are_rewritten_as_spark_does(
    change: str, least: int, bench: Bench, new_name: Callable[[str], str]
) -> None:
    """Each becomes a vector after an upgrade to v3, or all become one where the table asks for that."""
    name = new_name("single")
    quoted = create(bench, name, "id int", "", {**MERGE_ON_READ, "write.delete.granularity": "file"})
    for first in (0, 20):
        bench.sql(f"INSERT INTO {quoted} SELECT id FROM range({first}, {first + 20}, 1, 1)")  # noqa: S608 - quoted
        bench.sql(f"DELETE FROM {quoted} WHERE id = {first}")  # noqa: S608 - quoted
    assert len(delete_files(bench, name)) == 2
    bench.sql(f"ALTER TABLE {quoted} SET TBLPROPERTIES ({change})")
    saved = bench.save(name)
    bench.call("rewrite_position_delete_files", name, "options => map('rewrite-all', 'true')")
    by_spark = Counter((row["format"], row["data"], row["count"]) for row in delete_files(bench, name))
    saved.restore()
    rewriting = {**KNOBS, "compact.delete_file_threshold": 99, "compact.delete_ratio_threshold": 1.0}
    rewriting["rewrite_deletes.min_delete_files"] = least
    run(bench, name, Operation.REWRITE_DELETES, rewriting)
    assert Counter((row["format"], row["data"], row["count"]) for row in delete_files(bench, name)) == by_spark
    assert bench.run(name, Operation.REWRITE_DELETES, rewriting).state is OperationState.SKIPPED


@pytest.mark.cases(38, 19)
def test_lineage_outlives_all_maintenance(bench: Bench, new_name: Callable[[str], str]) -> None:
    """Rewriting manifests, compaction and expiry leave each row its id and the commit that last changed it."""
    name = new_name("lineage")
    quoted = create(bench, name, "id int, part string", "part", MERGE_ON_READ, version=3)
    insert(bench, quoted, "(1, 'a'), (2, 'b')", "(3, 'a'), (4, 'b')", "(5, 'a'), (6, 'b')", "(7, 'a')")
    bench.sql(f"UPDATE {quoted} SET part = 'c' WHERE id IN (2, 3)")  # noqa: S608 - quoted
    bench.sql(f"DELETE FROM {quoted} WHERE id = 6")  # noqa: S608 - quoted
    before, next_row = lineage(bench, name), document(bench, name)["next-row-id"]
    assert len({row["row"] for row in before}) == len(before) == 6
    assert len({row["changed"] for row in before}) > 3
    forced = bench.run(name, Operation.REWRITE_MANIFESTS, {**MANIFESTS, "rewrite_manifests.engine": "service"})
    assert forced.state is OperationState.SKIPPED
    assert "v3" in forced.reason
    backdate_all(bench, name, 90, 20)
    rewritten = bench.run(name, Operation.REWRITE_MANIFESTS, MANIFESTS)
    data_files = [path for content, path in bench.live(name) if content == 0]
    assert rewritten.metrics["entries_total"] == len(data_files), rewritten  # the one manifest of deletes stays
    assert lineage(bench, name) == before
    run(bench, name, Operation.COMPACT, KNOBS)
    assert lineage(bench, name) == before
    backdate_all(bench, name, 90, 20)
    assert expired(bench, name, 10, 1)
    assert lineage(bench, name) == before
    assert document(bench, name)["next-row-id"] >= next_row
    insert(bench, quoted, "(8, 'd')")
    assert lineage(bench, name)[:-1] == before
    assert lineage(bench, name)[-1]["row"] >= next_row
    kept_files_are_no_orphans(bench, name)


@pytest.mark.cases(39)
@pytest.mark.parametrize("written", [False, True], ids=["at once", "after a commit"])
def test_an_upgrade_invents_no_row_ids(written: bool, bench: Bench, new_name: Callable[[str], str]) -> None:
    """Rows of v2 have no ids until a commit of v3 gives each one of its own; rewriting manifests changes none."""
    name = new_name("upgraded")
    quoted = create(bench, name, "id int, part string", "part")
    insert(bench, quoted, "(1, 'a'), (2, 'b')", "(3, 'a')", "(4, 'c')", "(5, 'a')")
    bench.sql(f"ALTER TABLE {quoted} SET TBLPROPERTIES ('format-version' = '3')")
    assert {row["row"] for row in lineage(bench, name)} == {None}
    if written:
        insert(bench, quoted, "(6, 'b')")
    before = lineage(bench, name)
    run(bench, name, Operation.REWRITE_MANIFESTS, MANIFESTS)
    after, said = lineage(bench, name), document(bench, name)
    ids = [row["row"] for row in after]
    assert len(set(ids)) == len(ids)
    assert max(ids) < said["next-row-id"]
    assert after == before or not written
    backdate_all(bench, name, 90, 20)
    assert expired(bench, name, 10, 1)
    assert lineage(bench, name) == after
    kept_files_are_no_orphans(bench, name)
