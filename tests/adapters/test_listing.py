"""Listings compared with what a table reaches: nothing reached is an orphan, in whatever spelling and number."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from icewright.adapters.engines.service import listing as module
from icewright.adapters.engines.service.listing import LocationListing, PathHashes
from icewright.adapters.files.storage import listed
from icewright.core.errors import (
    AccessDenied,
    FileMissing,
    FolderMissing,
    IcewrightError,
    MetadataUnreadable,
    Refused,
    UnsupportedTable,
)
from icewright.core.paths import key
from icewright.ports import FileStat
from icewright.testing import metadata
from icewright.testing.builders import LOCATION
from tests.examples import examples

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
OLD = int((NOW - timedelta(days=9)).timestamp() * 1_000_000)


def orphans(paths: Sequence[str], reached: Iterable[str], root: str = "file:///w/t") -> list[str]:
    """What of old listed files is orphaned, by batches of three."""
    with closing(LocationListing(metadata([1]), NOW - timedelta(days=3), str)) as listing:
        for start in range(0, len(paths), 3):
            part = paths[start : start + 3]
            listing.add(root, listed(part, list(range(start, start + len(part))), [OLD] * len(part)))
        named = PathHashes.of([pl.DataFrame({"path": list(reached)}, schema={"path": pl.String})], str)
        found = [path for chunk in listing.orphans(named) for path in chunk["path"]]
        assert listing.files == len(set(map(key, paths)))
    return found


_NAMES = st.text(st.sampled_from("ab%é +#?"), min_size=1, max_size=6)


@examples(40)
@given(st.lists(_NAMES, unique=True, max_size=30), st.data())
def test_orphans_are_what_nothing_reaches(names: list[str], data: st.DataObject) -> None:
    """Of any listed files, those are orphans whose path is not among the reached, however these are spelt."""
    live = data.draw(st.sets(st.sampled_from(names))) if names else set()
    found = orphans([f"file:///w/t/{n}" for n in names], [f"file:/w//t/{n}" for n in live])
    assert not {f"file:///w/t/{n}" for n in live} & set(found)
    plain = {n for n in names if "%" not in n}  # percent signs may make two names one: then both stay
    assert set(found) >= {f"file:///w/t/{n}" for n in plain - live if not any("%" in other for other in live)}


@pytest.mark.parametrize("in_memory", [1, 1 << 25])
def test_many_files_go_to_disk(in_memory: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """What does not fit into memory is written to a temporary file, and the orphans are the same."""
    monkeypatch.setattr(module, "_IN_MEMORY", in_memory)
    paths = [f"file:///w/t/data/{n}.parquet" for n in range(200)]
    assert orphans(paths, paths[::2]) == paths[1::2]


@pytest.mark.parametrize("again", [1, 4])  # within a batch, and in a later one
def test_what_a_store_lists_twice(again: int) -> None:
    """Each file is one orphan, or none, and counts once."""
    paths = [f"file:///w/t/data/{n}.parquet" for n in range(8)]
    twice = [path for i in range(0, 8, again) for path in (*paths[i : i + again], *paths[i : i + again])]
    assert orphans(twice, paths[::2]) == paths[1::2]


def test_folders_above_a_table_hide_nothing() -> None:
    """Whatever their names are, and whether the place is told with a slash at its end or not."""
    for root in ("file:///_delta_log/_TAX", "file:///_delta_log/_TAX/"):
        place = root.rstrip("/")
        assert orphans([f"{place}/a", f"{place}/_b/c"], [], root) == [f"{place}/a"]


@pytest.mark.parametrize(
    "name",
    [
        *("_delta_log/0.json", ".hoodie/x", "x/_hudi/y", "_versions/1", "_spark_metadata/0", "x.lance/1"),
        *("snapshot/LATEST", "snapshot/snapshot-1", "ducklake-1.parquet"),
    ],
)
def test_a_dataset_of_another_format_in_the_place_ends_the_listing(name: str) -> None:
    """Its files are no orphans, whatever the table says."""
    with pytest.raises(Refused, match=rf"file:///w/t/{name} belongs to a dataset of another format .*\[other_format\]"):
        orphans(["file:///w/t/x", f"file:///w/t/{name}"], [])


def test_what_links_lead_to_is_no_orphan() -> None:
    """Who opens the link reads the file; links come without a time, in any batch of the listing."""
    links = {f"file:///w/t/{name}": f"file:///w/t/data/{name}/" for name in ("TAX", "b")}
    files = [*links.values(), "file:///w/t/data/c"]
    with closing(LocationListing(metadata([1]), NOW, lambda path: links.get(path, path))) as listing:
        listing.add("file:///w/t", listed([path.rstrip("/") for path in files], [1] * 3, [OLD] * 3))
        for link in links:
            listing.add("file:///w/t", listed([link], [1], [None]))
        assert [path for chunk in listing.orphans(PathHashes()) for path in chunk["path"]] == files[2:]


def test_metadata_files_that_the_table_does_not_reach() -> None:
    """Of all batches, each with the time when it was written."""
    names = ["1.metadata.json", "2.metadata.json.gz", "3.metadata.json", "4.metadata.json", "5.json"]
    paths = [f"s3://b/t/{name}" for name in names]
    with closing(LocationListing(metadata([1]), NOW, str)) as listing:
        assert listing.unreferenced_metadata(PathHashes()) == []
        for part in (paths[:3], paths[3:]):
            listing.add("s3://b/t", listed(part, [1] * len(part), [OLD] * len(part)))
        reached = PathHashes.of([pl.DataFrame({"path": paths[2:3]})], str)
        found = [(one.path, one.modified) for one in listing.unreferenced_metadata(reached)]
        assert found == [(path, NOW - timedelta(days=9)) for path in (*paths[:2], paths[3])]


def test_parts_of_what_is_reached_are_joined() -> None:
    """Each path keeps its prefix, and takes ten bytes; a part, or a chunk of one, may have none."""
    chunks = [
        pl.DataFrame({"path": paths}, schema={"path": pl.String})
        for paths in ([], ["s3://b/x", "gs://c/x"], ["s3a://b/y", "gs://c/z"])
    ]
    parts = [PathHashes.of([chunk], str) for chunk in chunks]
    for named in (PathHashes.of(chunks, str), PathHashes.joined(parts)):
        assert sorted(named.prefixes) == ["gs://c", "s3://b", "s3a://b"]
        assert [named.prefixes[code] for code in named.frame()["code"]] == ["s3://b", "gs://c", "s3a://b", "gs://c"]
        assert named.frame()["hash"].to_list() == [value for part in parts for value in part.frame()["hash"]]
    assert PathHashes().frame().schema == named.frame().schema == {"hash": pl.UInt64, "code": pl.UInt16}


def test_nothing_listed_nothing_reached() -> None:
    """Without files there is no orphan; without anything reached all are, and the caller's brake decides."""
    assert orphans([], ["file:///w/t/x"]) == []
    assert orphans(["file:///w/t/x"], []) == ["file:///w/t/x"]


def test_prefixes_of_files_in_both() -> None:
    """Scheme and authority are compared for files that are listed and reached, and for no others."""
    with closing(LocationListing(metadata([1]), NOW, str)) as listing:
        listing.add("s3://b/t", listed(["s3://b/t/x", "s3://b/t/y"], [1, 1], [OLD, OLD]))
        named = PathHashes.of([pl.DataFrame({"path": ["s3a://b/t/x", "gs://other/z", "s3://b/elsewhere"]})], str)
        assert listing.mismatches(named, lambda one, other: one == other) == [("s3://b", "s3a://b")]
        assert listing.mismatches(named, lambda _, other: other != "gs://other") == []


@dataclass
class Bucket:
    """Which objects of a store are there, with the days since they were written."""

    there: Mapping[str, float]
    asked: list[str] = field(default_factory=list)

    def stat(self, paths: Sequence[str], concurrency: int) -> Mapping[str, FileStat | None]:
        """Return what is there."""
        assert concurrency
        self.asked += paths
        days = {path: self.there.get(path) for path in paths}
        return {path: None if age is None else FileStat(1, NOW - timedelta(days=age)) for path, age in days.items()}


@pytest.mark.parametrize(
    ("scheme", "by_store", "there", "lost"),
    [
        ("s3", True, {"t/Lost": 9}, "t/Lost"),
        ("s3", True, {"t/Lost": 3}, None),  # it may be newer than the listing
        ("s3", True, {}, None),
        ("s3", True, {"elsewhere/x": 9}, None),
        ("s3", False, {"t/Lost": 9}, None),  # an inventory
        ("file", True, {"t/Lost": 9}, None),  # a file system may have two names for one file
    ],
)
def test_what_a_listing_lost(scheme: str, by_store: bool, there: dict[str, float], lost: str | None) -> None:
    """A listing that lacks an old file which the bucket has is not whole; else the names of all others are told."""
    root = f"{scheme}://{'' if scheme == 'file' else 'b'}/t"
    base = root.removesuffix("/t")
    bucket = Bucket({f"{base}/{path}": age for path, age in there.items()})
    reached = pl.DataFrame({"path": [f"{root}/x", f"{root}/Lost", f"{base}/elsewhere/x"]})
    with closing(LocationListing(metadata([1]), NOW - timedelta(days=3), str)) as listing:
        listing.add_all(root, [listed([f"{root}/x"], [1], [OLD])])
        files: Any = bucket if by_store else None

        def names() -> set[str]:
            return set(listing.names_not_listed(PathHashes.of([reached], str), lambda: [reached[:1], reached], files))

        if lost is None:
            assert names() == {"lost", "x"}
        else:
            with pytest.raises(Refused, match=rf"{base}/{lost} is there, and the listing .* \[incomplete_listing\]"):
                names()
        assert set(bucket.asked) == ({f"{root}/Lost"} if by_store and scheme == "s3" else set())
        none = listing.names_not_listed(PathHashes.of([reached[:1]], str), list, files)
        assert module.namesakes(reached, none)[1].equals(reached)


@dataclass
class Folders:
    """Folders with their files' times, or why they cannot be listed."""

    folders: Mapping[str, Mapping[str, datetime | None] | IcewrightError]
    contents: Mapping[str, bytes | IcewrightError] = field(default_factory=dict)

    def listing(self, folder: str) -> Iterator[pa.RecordBatch]:
        """Yield the files of a folder."""
        found = self.folders.get(folder, FolderMissing(folder))
        if isinstance(found, IcewrightError):
            raise found
        for name, at in found.items():
            yield listed([f"{folder}/{name}"], [1], [None if at is None else int(at.timestamp() * 1_000_000)])

    def stat(self, paths: Sequence[str], _: int) -> Mapping[str, FileStat | None]:
        """Return that there is none of them."""
        return dict.fromkeys(paths)

    def canonical(self, folder: str) -> str:
        """Have no links."""
        return folder

    def read(self, path: str) -> bytes:
        """Return the content of a file."""
        content = self.contents[path]
        if isinstance(content, IcewrightError):
            raise content
        return content


CURRENT, LEFT, NEXT = f"{LOCATION}/metadata", "s3://lake/left", "s3://lake/next"
VERSIONS: Mapping[str, datetime | None] = {
    "00008-c.metadata.json": NOW,  # the current version
    "00005-b.metadata.json": NOW - timedelta(hours=5),  # the oldest that the log names
    "00004-a.metadata.json": NOW - timedelta(hours=6),
    "00007-x.metadata.json": NOW - timedelta(hours=9),
    "00005-x.metadata.json": NOW - timedelta(hours=9),
    "00003-x.metadata.json": NOW - timedelta(hours=9),
    "00003-y.metadata.json": NOW - timedelta(hours=9),  # two of a number: perhaps a fork
    "00002-x.metadata.json": NOW - timedelta(hours=5),
    "00001-x.metadata.json": None,
    "v3.metadata.json": NOW - timedelta(hours=9),
    "x.metadata.json": NOW - timedelta(hours=9),
    "00009-x.json": NOW,
}
LOOKED_AT = {"00007-x", "00005-x", "00003-x", "00003-y", "00002-x", "v3", "00001-x", "x"}


def test_which_metadata_files_may_be_somebodys() -> None:
    """Those that the log does not name and that are not older than it; where two share a number, it may have forked."""
    own = metadata(
        metadata_location=f"{CURRENT}/00008-c.metadata.json",
        metadata_log=(f"{CURRENT}/00005-b.metadata.json", "00007-name-alone.metadata.json"),
    )
    former = ["s3://lake/former/00001-f.metadata.json", own.metadata_location]

    def beside(folders: Mapping[str, Any], **how: Any) -> set[str]:
        found = module.unreferenced_metadata_beside(cast("Any", Folders(folders)), own, **how)
        return {one.path.rpartition("/")[2].removesuffix(".metadata.json") for one in found}

    assert beside({CURRENT: VERSIONS, "": AccessDenied("all disks")}) == LOOKED_AT
    without_oldest = {name: at for name, at in VERSIONS.items() if not name.startswith("00005-b")}
    assert beside({CURRENT: without_oldest}) == LOOKED_AT - {"00002-x"}  # its time is known no more
    assert beside({CURRENT: VERSIONS}, former_versions=former) == {*LOOKED_AT, "00001-f"}
    assert beside({CURRENT: VERSIONS}, scanned=[LOCATION]) == set()
    in_left = {"00008-l.metadata.json": NOW}
    assert beside({CURRENT: VERSIONS, LEFT: in_left}, former_folders=[LEFT, CURRENT]) == {*LOOKED_AT, "00008-l"}
    for error in (AccessDenied("no"), FolderMissing("no"), UnsupportedTable("no")):
        assert beside({CURRENT: VERSIONS, LEFT: error}, former_folders=[LEFT]) == LOOKED_AT
        with pytest.raises(type(error)):
            beside({CURRENT: error})
    new, own = own, replace(own, metadata_log=())
    assert beside({CURRENT: VERSIONS}) == {"00005-b", *LOOKED_AT} - {"00002-x", "00007-x"}
    own = new
    own = replace(own, properties={"write.metadata.path": NEXT})
    assert beside({CURRENT: VERSIONS}) == LOOKED_AT
    assert beside({CURRENT: VERSIONS, NEXT: {}}) == LOOKED_AT
    with pytest.raises(AccessDenied):
        beside({CURRENT: VERSIONS, NEXT: AccessDenied("no")})


@pytest.mark.parametrize(
    ("content", "is_one"),
    [
        (b'{"format-version": 2, "table-uuid": "own"}', True),
        (b'{"format-version": 1}', True),
        (b'{"format-version": 2, "table-uuid": "another"}', False),
        (b"{", True),  # nobody knows
        (MetadataUnreadable("encrypted"), True),
        (FileMissing("gone"), False),
    ],
)
def test_whether_a_version_of_a_table_is_left(content: bytes | IcewrightError, *, is_one: bool) -> None:
    """Its last known file counts as one as long as it may be; another beside it only if it is."""
    last, more = (f"{CURRENT}/{name}.metadata.json" for name in ("00006-c", "00007-x"))
    own = metadata(metadata_location=last)
    beside = dict.fromkeys(["00006-c.metadata.json", "00007-x.metadata.json", "snap-1.avro"], NOW)
    files: Any = Folders({CURRENT: beside}, {more: content})
    assert module.is_version(files, more, "own") == is_one
    if isinstance(content, bytes):
        assert module.has_versions(files, last, "own", own) == (b'"own"' in content)
    assert not module.has_versions(cast("Any", Folders({})), last, "own", own)
