"""Signs of files that are not the table's: which orphans an automatic removal leaves until a person has looked."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import datetime, timedelta

import polars as pl
import pytest

from icewright.adapters.engines.service.doubts import Doubts, require_clocks_agree_at, require_few_orphans
from icewright.core.errors import AccessDenied, FolderMissing, Refused
from icewright.core.table import PartitionField, PartitionSpec, TableMetadata
from icewright.testing import NOW, metadata

TABLE = metadata([24, 2])  # made a day ago, as far as its snapshots tell
LOCATION = TABLE.location
LOG = tuple(f"{LOCATION}/metadata/{n:05}-a.metadata.json" for n in range(2))
OLD_LOG = replace(TABLE, metadata_log=LOG, log_since=NOW - timedelta(hours=48))


def _check(table: TableMetadata, name: str, hours: float, *, adopted: bool = False, documents: bool = False) -> None:
    path = f"{LOCATION}/data/{name}"
    orphans = pl.DataFrame({"path": [path], "modified": [NOW - timedelta(hours=hours)]})
    Doubts(table, frozenset({LOCATION} if adopted else ())).check_files(orphans, [path] if documents else [])


@pytest.mark.parametrize(
    ("table", "name", "hours"),
    [
        (TABLE, "00000-0-a.parquet", 24),
        (TABLE, "00000-0-A.PARQUET", 1),
        (OLD_LOG, "00000-0-a.parquet", 48),
        (replace(OLD_LOG, properties={"write.metadata.previous-versions-max": "2"}), "00000-0-a.parquet", 99),
        (replace(TABLE, metadata_log=LOG * 50), "00000-0-a.parquet", 99),  # its log has as many as Iceberg keeps
        (replace(TABLE, last_updated=NOW - timedelta(hours=30)), "00000-0-a.parquet", 30),
        (replace(TABLE, metadata_log=LOG, log_since=NOW), "00000-0-a.parquet", 24),
    ],
)
def test_files_that_the_table_may_have_written(table: TableMetadata, name: str, hours: float) -> None:
    """They look as Iceberg's writers name them, and are no older than the table; of a cut log nobody knows its age."""
    _check(table, name, hours)


@pytest.mark.parametrize(
    ("table", "name", "hours", "words"),
    [
        (TABLE, "sales.csv", 1, "sales.csv is no file that a writer of Iceberg tables leaves"),
        (TABLE, "part-00000.parquet", 1, "part-00000.parquet is no file that"),
        (TABLE, "00000-0-a.parquet", 24.1, "is older than the table, which was made at 2"),
        (OLD_LOG, "00000-0-a.parquet", 48.1, "is older than the table"),
        (replace(OLD_LOG, properties={"write.metadata.previous-versions-max": "3"}), "a.parquet", 99, "is older than"),
        (replace(TABLE, metadata_log=LOG * 49), "00000-0-a.parquet", 99, "is older than the table"),
        (replace(TABLE, snapshots=(), last_updated=NOW - timedelta(hours=30)), "a.parquet", 31, "is older than"),
    ],
)
def test_files_that_are_hardly_the_table_s(table: TableMetadata, name: str, hours: float, words: str) -> None:
    """The error names the file and how to go on; who has looked may."""
    with pytest.raises(Refused, match=words) as caught:
        _check(table, name, hours)
    assert caught.value.code == "unnamed_files"
    _check(table, name, hours, adopted=True)


DATA, POOL = f"{LOCATION}/data", "s3://pool/files"
OWNED = f"{POOL}/{'/'.join(LOCATION.split('/')[-2:])}"
SPECS = tuple(
    PartitionSpec(n, tuple(PartitionField(1, 1000 + i, name, "identity") for i, name in enumerate(names)))
    for n, names in enumerate([(), ("a b",), ("a b", "c")])
)
PARTED = replace(TABLE, specs=SPECS, properties={"write.data.path": f"{POOL}/"})
HASHED = replace(TABLE, properties={"write.object-storage.enabled": "TRUE"})


def _check_folders(table: TableMetadata, orphans: list[str], live: list[str] | None) -> None:
    def reached() -> list[pl.DataFrame]:
        assert live is not None, "is read where it has to be"
        return [pl.DataFrame({"path": [path]}) for path in live]

    doubts = Doubts(table, frozenset())
    for path in orphans:
        doubts.check_files(pl.DataFrame({"path": [path], "modified": [NOW]}), [])
    doubts.check_folders(reached, lambda folder: folder.replace("/link/", "/data/"))


@pytest.mark.parametrize(
    ("table", "orphan", "live"),
    [
        (TABLE, f"{LOCATION}/x.parquet", None),
        (replace(TABLE, location=f"{LOCATION}X/"), f"{LOCATION}X/data/x.parquet", [f"{DATA}/y.parquet"]),
        (TABLE, f"{LOCATION}/metadata/x.avro", None),
        (TABLE, f"{LOCATION}/link/x.parquet", None),
        (PARTED, f"{POOL}/x.parquet", None),
        (PARTED, f"{OWNED}/x.parquet", None),
        (replace(PARTED, location=f"{LOCATION}/"), f"{OWNED}/x.parquet", None),
        (PARTED, f"{DATA}/a+b=1/x.parquet", None),
        (PARTED, f"{DATA}/a+b=1=2/x.parquet", None),
        (PARTED, f"{OWNED}/a%20b=1/c=/x.parquet", None),
        (TABLE, f"{DATA}/0101/1010/0000/11110000/x.parquet", None),
        (TABLE, f"{DATA}/0101/1010/0000/x.parquet", None),
        (TABLE, f"{DATA}/2025cafe/x.parquet", None),
        (HASHED, f"{DATA}/aB_-9A/x.parquet", None),
        (TABLE, f"{DATA}/own/x.parquet", [f"{DATA}/y.parquet", f"{DATA}/own/y.parquet"]),
        (PARTED, f"{DATA}/own/a+b=1/c=2/x.parquet", [f"{DATA}/own/a+b=3/y.parquet"]),
        (PARTED, f"{DATA}/k=1/own/a+b=1/x.parquet", [f"{DATA}/k=1/own/a+b=3/y.parquet"]),
        (TABLE, f"{LOCATION}/link/own/x.parquet", [f"{DATA}/own/y.parquet"]),
    ],
)
def test_folders_in_which_the_table_writes(table: TableMetadata, orphan: str, live: list[str] | None) -> None:
    """Its own, those of partitions and hashes below, and any in which it has a file; nothing is read without need."""
    _check_folders(table, [orphan, f"{DATA}/0.parquet"], live)


@pytest.mark.parametrize(
    ("table", "folder"),
    [
        (TABLE, "s3://elsewhere/files"),
        (TABLE, f"{DATA}/other"),
        (TABLE, f"{DATA}/a+b=1"),
        (TABLE, f"{DATA}/X"),
        (PARTED, f"{DATA}/c=1"),
        (PARTED, f"{DATA}/a+b"),
        (PARTED, f"{DATA}/a+b=1/deeper"),
        (PARTED, f"{DATA}/c=1/a+b=1"),
        (PARTED, f"{POOL}/orders"),
        (TABLE, f"{DATA}/aB_-9A"),
        (HASHED, f"{DATA}/orders"),
        (HASHED, f"{DATA}/20260131"),
    ],
)
def test_folders_in_which_the_table_has_no_file(table: TableMetadata, folder: str) -> None:
    """The first of them is named, and a file of the table in one does not speak for another."""
    orphans = [f"{folder}/zz/x.parquet", f"{folder}/x.parquet", f"{LOCATION}/own/x.parquet"]
    with pytest.raises(Refused, match=rf"no file of the table lies in {re.escape(folder)}, so") as caught:
        _check_folders(table, orphans, [f"{LOCATION}/own/y.parquet", f"{DATA}/y.parquet"])
    assert caught.value.code == "unnamed_files"
    assert f"icewright adopt {table.ref}" in str(caught.value)


def test_a_document_that_is_named_as_metadata() -> None:
    """It describes something else, so that the rest of the folder may be somebody's too."""
    with pytest.raises(Refused, match="is no file that a writer of Iceberg tables leaves"):
        _check(TABLE, "v1.metadata.json", 1, documents=True)
    _check(TABLE, "v1.metadata.json", 1)


def test_no_orphans_raise_no_doubt() -> None:
    """There is nothing to look at."""
    Doubts(TABLE, frozenset()).check_files(pl.DataFrame(schema={"path": pl.String, "modified": pl.Datetime}), [])


def test_a_share_of_orphans_that_is_not_plausible() -> None:
    """The error says how to see them, by the caller's words where it has any; of no files none is too many."""
    require_few_orphans(TABLE, 1, 2, 0.5)
    require_few_orphans(TABLE, 0, 0, 0.0)
    for look, words in (
        ("", "icewright run lake.sales.orders --op remove_orphans --dry-run"),
        ("see them", "see them"),
    ):
        with pytest.raises(Refused, match=rf"2 of 2 files look like orphans.*: (look at `)?{words}") as caught:
            require_few_orphans(TABLE, 2, 2, 0.5, look)
        assert caught.value.code == "max_delete_ratio"


@pytest.mark.cases(112)
@pytest.mark.parametrize(
    ("planned", "behind", "agrees"),
    [(None, 1, True), (None, 1.01, False), (None, -1, True), (None, -1.01, False), (2, 0, False), (-2, 0, True)],
)
def test_by_how_much_our_clock_may_differ_from_the_storage_s(
    planned: float | None, behind: float, *, agrees: bool
) -> None:
    """By an hour, as it is now and as it was for the plan, of each place that is there."""

    def time(root: str) -> datetime:
        if root == "missing":
            raise FolderMissing(root)
        return NOW - timedelta(hours=behind if root == "write path" else 0)

    planned_at = None if planned is None else NOW + timedelta(hours=planned)
    roots = ["missing", LOCATION, "write path"]
    if agrees:
        require_clocks_agree_at(TABLE, roots, NOW, time, planned_at=planned_at)
        return
    with pytest.raises(Refused, match=r"clock here says 2.* and that of the storage 2") as caught:
        require_clocks_agree_at(TABLE, roots, NOW, time, planned_at=planned_at)
    assert caught.value.code == "clock_skew"


def test_where_nothing_may_be_written_nothing_is_deleted() -> None:
    """The storage's clock cannot be asked there, and what deletes nothing goes by ours."""

    def time(root: str) -> datetime:
        raise AccessDenied(root)

    require_clocks_agree_at(TABLE, [LOCATION], NOW, time, deletes=False)
    with pytest.raises(Refused, match=r"\[read_only_storage\]"):
        require_clocks_agree_at(TABLE, [LOCATION], NOW, time)
