"""What snapshots reach, and which of two lists of files are the same whatever way they are spelt."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import astuple, fields, replace
from datetime import UTC, datetime, timedelta
from itertools import product
from pathlib import Path
from typing import Any, NoReturn

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField

from icewright.adapters.engines.service import reachable as sets
from icewright.adapters.files.tables import IcebergFiles, outside_folders
from icewright.adapters.metadata.parsing import parse
from icewright.app.demo.craft import Craft
from icewright.app.demo.lake import Lake
from icewright.core.errors import MetadataUnreadable
from icewright.core.paths import key, local_path
from icewright.core.table import RefKind, SnapshotRef, StatisticsFile, TableRef
from icewright.testing import builders
from tests.adapters.writing import Partitioned, ours, record
from tests.examples import examples

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
SAME = [
    ["file:///w/t/a b.parquet", "file:/w/t/a b.parquet", "/w/t/a b.parquet", "file:///w/t/a%20b.parquet",
     "file://localhost/w/t/a b.parquet", "file:///w//t///a b.parquet", "FILE:/w/t/a%20b.parquet"],
    ["s3://b/w/é%25.parquet", "s3a://b/w/é%25.parquet", "s3n://b//w/e\u0301%25.parquet", "s3://b/w/%C3%A9%.parquet"],
    ["hdfs:///w/x", "hdfs://nn:8020/w/x", "/w/x", "//w/x"[1:]],
    ["s3a://b/w/x", "s3a://b/w/y/../x", "s3a://b/../w/./x", "s3a://b/w/x/.", "s3://b/w/%2E/x"],
    ["file:///w/a+b", "file:/w/a+b", "file:/w/a%2Bb"],
    ["file:///w/#?&=", "file:/w/%23?&="],
]  # fmt: skip


def frame(*paths: str) -> Any:
    """Files of these paths."""
    return sets.files_frame((path, 1, "data") for path in paths)


@pytest.mark.cases(56, 58, 59)
@pytest.mark.parametrize("spellings", SAME, ids=lambda spellings: spellings[0])
def test_spellings_of_one_path_are_equal(spellings: list[str]) -> None:
    """A file is live when any spelling of it is named."""
    for named in spellings:
        assert sets.unreached(frame(*spellings, "file:///w/orphan"), [frame(named)], str)["path"].to_list() == [
            "file:///w/orphan"
        ]


def test_other_files_are_not_taken_for_equal() -> None:
    """Siblings, prefixes, other cases and other folders are other files; what is left keeps its own spelling."""
    live = frame("file:///w/orders/a", "s3://b/w/x")
    others = ["file:/w//orders_archive/a", "/w/orders/A", "/w/orders/a/b", "/w/orders", "s3://b/w/x.crc", "s3://b/x"]
    left = sets.unreached(frame(*others), [live], str)
    assert left["path"].to_list() == others
    assert left.columns == ["path", "bytes", "kind"]


def test_nothing_against_nothing() -> None:
    """Empty frames have nothing in common and lose nothing."""
    assert sets.unreached(frame(), [frame("/a")], str).height == 0
    assert sets.unreached(frame("/a"), [frame()], str)["path"].to_list() == ["/a"]


def test_links_lead_to_one_file() -> None:
    """What lies under a link is the file to which it leads; a path without a folder has none to look up."""
    links = {"/link/": "/w/", "": "/the process's own/"}
    for paths, keys in ((["/link/a%20b", "/w/a b", "x"], ["/w/a b", "/w/a b", "/x"]), (["/link/c"], ["/w/c"])):
        for times in FEW_AND_MANY:
            keyed = sets.with_key(frame(*paths * times), lambda folder: links.get(folder, folder))
            assert keyed["key"].to_list() == keys * times


@pytest.mark.parametrize(
    ("planned", "live", "may_be_one"),
    [
        ("s3://b/TAX/data/x", "/mnt/t/data/X", True),
        ("s3://b/TAX/data/x", "s3://b/TAX2/data/x", True),
        ("s3://b/TAX/data/x", "s3://b/TAX/more/x", False),  # a path of its own, as it lies in the location too
        ("s3://b/elsewhere/x", "s3://b/TAX/more/x", True),
        ("s3://b/TAX/data/x", "/mnt/t/data/y", False),
    ],
)
def test_two_paths_that_may_be_one_file(planned: str, live: str, *, may_be_one: bool) -> None:
    """Names are compared where one of both files lies outside of the location, which may end with a slash."""
    for location in ("s3://b/TAX", "s3://b/TAX/"):
        free, namesakes = sets.without_namesakes(frame(planned), [frame(live)], str, location)
        assert (free.height, namesakes.height) == ((0, 1) if may_be_one else (1, 0))


FEW_AND_MANY = (1, 501)  # Polars makes the keys of many paths
_PARTS = st.one_of(
    st.sampled_from(
        ["file:", "FILE:", "s3a:", "//", "/", "a b", "%20", "%C3%A9", "%2F", "%zz", "é", "e\u0301", "x:/", "/../"]
    ),
    st.sampled_from(["..", "/."]),
    st.sampled_from("b%+:?#.\n\\"),
)


@examples(100)
@given(st.lists(st.lists(_PARTS, max_size=6).map("".join), min_size=1, max_size=20))
def test_columns_and_single_paths_agree(paths: list[str]) -> None:
    """The key of a column of paths, few or many, is the key that `icewright.core.paths` gives to each."""
    resolving: tuple[sets.Canonical, sets.Canonical] = (str, lambda folder: local_path(folder) or folder)
    for times, canonical in product(FEW_AND_MANY, resolving):
        assert sets.with_key(frame(*paths * times), canonical)["key"].to_list() == [key(path) for path in paths] * times


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[Lake]:
    """A lake without Spark."""

    def no_spark() -> NoReturn:
        raise AssertionError

    (tmp_path / "warehouse").mkdir()
    catalog = SqlCatalog("lake", uri=f"sqlite:///{tmp_path}/c.db", warehouse=f"file://{tmp_path}/warehouse")
    yield Lake(catalog, no_spark, tmp_path / "warehouse", NOW)
    catalog.close()


def test_everything_is_reached(lake: Lake, files: IcebergFiles) -> None:
    """What a table reaches is what PyIceberg finds snapshot by snapshot, statistics and metadata files beside it."""
    craft = Craft(lake, "sales.orders", Schema(NestedField(1, "id", LongType())))
    replaced = None
    for hours in (9, 8, 7, 6):
        made = [craft.data({"id": [hours, i]}) for i in range(3)]
        deletes = [craft.equality_deletes({"id": [hours]})] if hours == 7 else []
        replaced = craft.commit(NOW - timedelta(hours=hours), made, replaced=replaced, deletes=deletes)
    path = craft.publish()
    table = lake.catalog.load_table(("sales", "orders"))
    expected = {table.metadata_location} | {e.metadata_file for e in table.metadata.metadata_log}
    for snapshot in table.snapshots():
        expected.add(snapshot.manifest_list)
        for manifest in snapshot.manifests(table.io):
            expected.add(manifest.manifest_path)
            expected |= {e.data_file.file_path for e in manifest.fetch_manifest_entry(table.io)}
    metadata = parse(TableRef("lake", ("sales",), "orders"), f"file://{path}", path.read_bytes())
    reached = pl.concat(sets.reached(files, metadata)).unique("path")
    assert sorted(reached["path"]) == sorted(expected)
    assert set(reached["kind"]) == {"data", "equality deletes", "manifest", "manifest list", "metadata"}
    on_disk = frame(*(f"file:{p}" for p in craft.folder.rglob("*") if p.is_file()))
    assert sets.unreached(on_disk, [reached], files.canonical).height == 0
    last = pl.concat(sets.reached(files, replace(metadata, snapshots=metadata.snapshots[-1:]))).unique("path")
    assert last.filter(kind="data").height == 3
    assert last.filter(kind="manifest list")["path"].to_list() == [metadata.snapshots[-1].manifest_list]


def test_files_outside_are_reported_each_time_and_lists_without_any_read_once(lake: Lake, files: IcebergFiles) -> None:
    """A table that borrows a file of another one, and that other one, whose lists are gone at the second look."""
    schema = Schema(NestedField(1, "id", LongType()))
    crafts = [Craft(lake, name, schema) for name in ("sales.orders", "sales.borrower")]
    lent = crafts[0].data({"id": [1]})
    for craft in crafts:
        craft.commit(NOW, [lent])
    paths = [craft.publish() for craft in crafts]
    own, borrower = (parse(TableRef("lake", ("sales",), p.parts[-3]), f"file://{p}", p.read_bytes()) for p in paths)
    folder = lent.path.parent.as_uri()
    assert (files.outside(own, own.snapshots), files.outside(borrower, borrower.snapshots)) == ((), (folder,))
    for snapshot in own.snapshots:
        Path(str(snapshot.manifest_list).removeprefix("file:")).unlink()
    assert (files.outside(own, own.snapshots), files.outside(borrower, borrower.snapshots)) == ((), (folder,))


def test_deleted_entries_reach_nothing(files: IcebergFiles, tmp_path: Path) -> None:
    """Of each manifest the live files count, each once, deletion vectors and deletes by their kind."""
    table = Partitioned(tmp_path, ())
    vector = record("file:///t/dv.puffin", content=1, file_format="puffin", referenced_data_file="file:///t/a")
    rows = [
        table.crafted(3, [record("file:///t/a"), record("file:///t/gone", status=2)]),
        table.crafted(3, [record("file:///t/a", status=0, sequence=1, snapshot_id=1), record("file:///t/b")]),
        table.crafted(3, [vector, vector, record("file:///t/p", content=1), record("file:///t/e", content=2)]),
        table.crafted(3, [record("file:///t/of a later spec", content=7)]),
    ]
    listed = [ours(row) for row in rows]
    names = [f.name for f in fields(listed[0])]
    manifests = pl.DataFrame([astuple(one) for one in listed], schema=names, orient="row")
    found = pl.concat(sets.content_of(files, manifests)).unique()
    assert {p: k for p, _, k in found.rows()} == {
        "file:///t/a": "data",
        "file:///t/b": "data",
        "file:///t/dv.puffin": "deletion vectors",
        "file:///t/p": "position deletes",
        "file:///t/e": "equality deletes",
        "file:///t/of a later spec": "data",
    }
    assert found.height == 6


def test_metadata_of_some_snapshots() -> None:
    """Their refs and statistics stay with them, and those of others do not; former versions are the table's."""
    snapshots, refs = builders.lineage([2, 1]), [SnapshotRef(str(n), RefKind.TAG, n) for n in (1, 2)]
    statistics = tuple(StatisticsFile(n, f"s3://b/{n}", 1) for n in (1, 2))
    both: Any = {"snapshots": snapshots, "statistics": statistics, "partition_statistics": statistics}
    both["refs"] = tuple(refs)
    table = replace(builders.metadata(), metadata_log=("s3://b/former.metadata.json",), **both)
    for n, chosen in enumerate(([1], [2])):
        assert sets.of_snapshots(table, chosen) == replace(
            table, **{name: all_[n : n + 1] for name, all_ in both.items()}
        )
    assert sets.metadata_files_of(table)["kind"].to_list() == ["metadata", "metadata"]


@pytest.mark.cases("T13")
@pytest.mark.parametrize(
    ("owner", "path", "means_one"),
    [
        ("s3://b/t/metadata/1.json", "s3a://b/t/x.puffin", True),
        ("s3://b/t/metadata/1.json", "/b/t/x.puffin", False),  # as the server's own file system has it
        ("s3://b/t/metadata/1.json", "metadata/x.puffin", False),
        ("hdfs://nn/t/metadata/1.json", "/t/metadata/x.puffin", True),
        ("/t/metadata/1.json", "file:/t/metadata/x.puffin", True),
        ("/t/metadata/1.json", "metadata/x.puffin", False),
    ],
)
def test_a_path_that_may_mean_several_files_is_refused(owner: str, path: str, *, means_one: bool) -> None:
    """Its file would look unreached under the path by which it is listed."""
    metadata = replace(builders.metadata(), metadata_location=owner, statistics=(StatisticsFile(1, path, 10),))
    if means_one:
        assert sets.statistics_of(metadata)["path"].to_list() == [path]
    else:
        with pytest.raises(MetadataUnreadable, match=path):
            sets.statistics_of(metadata)


def test_a_path_that_climbs_out_of_the_location_lies_outside() -> None:
    """Its text begins as the location does, and Hadoop's clients read it in another table's folder."""
    metadata = replace(builders.metadata(), location="s3a://b/w/t")
    paths = pl.Series(["s3a://b/w/t/../u/data/f", "s3a://b/w/t/data/f", "s3a://b/w/t/x/../data/f"])
    assert outside_folders(paths, metadata, str) == ("s3a://b/w/t/../u/data",)


@pytest.mark.parametrize(
    ("owner", "path", "folder"),
    [
        ("s3a://b/w/t/metadata/1.json", "../u/data/f", "s3a://b/w/t/../u/data"),
        ("s3a://b/w/t/metadata/1.json", "/w/u/data/f", "s3a://b/w/u/data"),
        ("s3a://b/w/t/metadata/1.json", "s3://b/w/u/data/f", "s3://b/w/u/data"),
        ("s3a://b/w/t/metadata/1.json", "data/f", ""),
        ("s3a://b/w/t/metadata/1.json", "/w/t/data/f", ""),
        ("file:/w/t/metadata/1.json", "../u/data/f", "file:/w/t/../u/data"),
        ("file:/w/t/metadata/1.json", "/w/u/data/f", "/w/u/data"),
    ],
)
def test_a_path_that_may_mean_several_files_claims_one(owner: str, path: str, folder: str) -> None:
    """Of another table, a path without a bucket is one of its own bucket, and a relative one begins at its location."""
    location = owner.partition("/metadata")[0]
    metadata = replace(builders.metadata(), location=location, metadata_location=owner)
    assert outside_folders(pl.Series([path]), metadata, str) == ((folder,) if folder else ())
