"""Two spellings of one path are one path; two paths that only look alike are two."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icewright.core.errors import UsageError
from icewright.core.paths import (
    Location,
    canonical,
    data_folder,
    directory_key,
    folders_overlap,
    is_location,
    key,
    local_path,
    metadata_folder,
    named_place,
    same_place,
    split,
    stray_local_file,
)

S3: Mapping[str, str] = {"s3a": "s3", "s3n": "s3"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("s3://bucket/a/b", Location("s3", "bucket", "/a/b")),
        ("S3A://bucket/a/b", Location("s3a", "bucket", "/a/b")),
        ("s3://bucket", Location("s3", "bucket", "/")),
        ("file:/a/b", Location("file", "", "/a/b")),
        ("file:///a/b", Location("file", "", "/a/b")),
        ("file:////X/a/", Location("file", "", "/X/a/")),
        ("file://localhost/a", Location("file", "localhost", "/a")),
        ("hdfs://nn:8020/a", Location("hdfs", "nn:8020", "/a")),
        ("hdfs:///a", Location("hdfs", "", "/a")),
        ("abfss://box@account.dfs.core.windows.net/a", Location("abfss", "box@account.dfs.core.windows.net", "/a")),
        ("/a/b:c", Location("", "", "/a/b:c")),
        ("//a/b", Location("", "", "/a/b")),
        ("a/b", Location("", "", "/a/b")),
        ("file:/a\nb", Location("file", "", "/a\nb")),
    ],
)
def test_split(text: str, expected: Location) -> None:
    """A path is scheme, authority and an absolute path; what the writer left out is empty."""
    assert split(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("s3n://bucket/a", Location("s3", "bucket", "/a")),
        ("gcs://bucket/a", Location("gs", "bucket", "/a")),
        ("/a", Location("file", "", "/a")),
        ("file://localhost/a", Location("file", "", "/a")),
        ("s3://localhost/a", Location("s3", "localhost", "/a")),  # a bucket may be called so
        ("file://nas/a", Location("file", "nas", "/a")),
        ("wasbs://c@one.blob.core.windows.net/a.blob.b", Location("abfs", "c@one.dfs.core.windows.net", "/a.blob.b")),
        ("abfss://c@one.blob.x.blob.y/a", Location("abfs", "c@one.dfs.x.blob.y", "/a")),
        ("s3://one.blob.two/a", Location("s3", "one.blob.two", "/a")),
        ("abfss://c@One.DFS.core.windows.net/a", Location("abfs", "c@one.dfs.core.windows.net", "/a")),
        ("s3n://id:secret@bucket/a", Location("s3", "bucket", "/a")),
        ("s3a://bucket:443/a", Location("s3", "bucket", "/a")),
        ("webhdfs://nn:9870/a", Location("hdfs", "nn:9870", "/a")),
        ("oss://bucket/a", Location("oss", "bucket", "/a")),
    ],
)
def test_one_spelling_stands_for_all(text: str, expected: Location) -> None:
    """Schemes of one store are one, and so are both hosts of an Azure account; nothing else is."""
    assert canonical(split(text)) == expected


@pytest.mark.parametrize(
    ("owner", "paths", "stray"),
    [
        ("s3://b/t/m.json", ["s3://b/t/1.avro", "file:///etc/passwd"], "file:///etc/passwd"),
        ("s3://b/t/m.json", ["FILE:///etc/passwd"], "FILE:///etc/passwd"),
        ("s3://b/t/m.json", ["/etc/passwd", "/etc/hosts"], "/etc/passwd"),
        ("s3://b/t/m.json", ["file:/etc/passwd"], "file:/etc/passwd"),
        ("s3://b/t/m.json", ["file://localhost/etc/passwd"], "file://localhost/etc/passwd"),
        ("s3://b/t/m.json", ["s3a://b/t/1.avro", "gs://c/file:///x"], None),
        ("s3://b/t/m.json", ["file:/x://../../etc/passwd"], "file:/x://../../etc/passwd"),
        ("s3://b/t/m.json", ["/x://../../etc/passwd"], "/x://../../etc/passwd"),
        ("s3://b/t/m.json", ["file://nas/share"], None),
        ("hdfs:/t/m.json", ["/t/1.avro"], None),  # both by the default file system
        ("s3://b/t/m.json", [], None),
        ("file:///t/m.json", ["file:///etc/passwd"], None),
        ("/t/m.json", ["/etc/passwd"], None),
        ("file:/t/m.json", ["/etc/passwd"], None),
    ],
)
def test_local_files_that_an_object_store_names(owner: str, paths: list[str], stray: str | None) -> None:
    """A metadata file in an object store names none; one on this machine may."""
    assert stray_local_file(owner, paths) == stray


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("/a/b", "/a/b"),
        ("file:/a/b", "/a/b"),
        ("file:///a/b", "/a/b"),
        ("file://localhost/a/b", "/a/b"),
        ("file://other/a/b", None),
        ("s3://bucket/a/b", None),
        ("hdfs:///a", None),
    ],
)
def test_local_path(text: str, path: str | None) -> None:
    """Only a path of this machine is one of its file system."""
    assert local_path(text) == path


@pytest.mark.parametrize(
    ("one", "other"),
    [
        pytest.param("s3a://b/t/f", "s3://b/t/f", marks=pytest.mark.cases(56)),
        pytest.param("s3n://b/t/f", "s3://b/t/f", marks=pytest.mark.cases(56)),
        pytest.param("file:/t/f", "file:///t/f", marks=pytest.mark.cases(58)),
        pytest.param("/t/f", "file:///t/f", marks=pytest.mark.cases(58)),
        pytest.param("hdfs:///t/f", "hdfs://nn/t/f", marks=pytest.mark.cases(58)),
        pytest.param("s3://b//t///f", "s3://b/t/f", marks=pytest.mark.cases(59)),
        pytest.param("s3://b/a%20b/f", "s3://b/a b/f", marks=pytest.mark.cases(59)),
        pytest.param("s3://b/%E8%A1%A8/f", "s3://b/表/f", marks=pytest.mark.cases(59)),
        pytest.param("s3://b/e\u0301/f", "s3://b/\u00e9/f", marks=pytest.mark.cases(59)),
        pytest.param("s3://b/e%CC%81/f", "s3://b/\u00e9/f", marks=pytest.mark.cases(59)),
        pytest.param("s3a://b/x/../t/./f", "s3a://b/t/f", marks=pytest.mark.cases(59)),
        pytest.param("s3a://b/../t/f/.", "s3a://b/t/f", marks=pytest.mark.cases(59)),
        pytest.param("s3a://b/t/x/../", "s3a://b/t/", marks=pytest.mark.cases(59)),
    ],
)
def test_spellings_share_a_key(one: str, other: str) -> None:
    """Schemes, slashes, percent signs, composed characters, `.` and `..` do not make another file of a path."""
    assert key(one) == key(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("s3://b/t/a+b", "s3://b/t/a b"),
        ("s3://b/t/a#b", "s3://b/t/a"),
        ("s3://b/t/a?b", "s3://b/t/a"),
        ("s3://b/t/A", "s3://b/t/a"),
        ("s3://b/t/f", "s3://b/t/f/"),
        ("s3://b/t/.f", "s3://b/t/f"),
        ("s3://b/t/..f", "s3://b/f"),
        ("s3://b/orders/f", "s3://b/orders_archive/f"),
    ],
)
@pytest.mark.cases(59, 62)
def test_different_files_have_different_keys(one: str, other: str) -> None:
    """`+`, `#`, `?` and case are part of a name."""
    assert key(one) != key(other)


@given(st.text())
def test_any_text_has_a_key(text: str) -> None:
    """No path, however odd, stops a scan: its key is an absolute path, and the same for the same text."""
    assert key(text).startswith("/")
    assert key(text) == key(text)


@given(st.text(alphabet="abé表 %2/.+#?", max_size=20), st.sampled_from(["s3://b/", "s3a://b//", "s3n://b/"]))
@pytest.mark.cases(56, 59)
def test_the_scheme_never_matters_for_the_key(tail: str, prefix: str) -> None:
    """Whatever follows, s3, s3a and s3n name one file."""
    assert key(prefix + tail) == key("s3://b/" + tail)


@pytest.mark.parametrize("spelling", ["s3://b/orders", "s3://b/orders/", "s3a://b//orders//"])
@pytest.mark.cases(62)
def test_a_folder_does_not_hold_its_sibling(spelling: str) -> None:
    """/orders holds its own files and none of /orders_archive."""
    folder = directory_key(spelling)
    assert key("s3://b/orders/data/f").startswith(folder)
    assert not key("s3://b/orders_archive/data/f").startswith(folder)
    assert directory_key("s3://b") == "/"
    assert directory_key("s3://b/ordersX/") == "/ordersX/"


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        pytest.param("s3a://b/f", "s3://b/f", True, marks=pytest.mark.cases(56)),
        pytest.param("s3a://b/f", "s3n://b/f", True, marks=pytest.mark.cases(56)),
        pytest.param("gs://b/f", "s3://b/f", False, marks=pytest.mark.cases(57)),
        pytest.param("s3://b/f", "s3://c/f", False, marks=pytest.mark.cases(57)),
        pytest.param("s3://old/f", "s3://b/f", True, marks=pytest.mark.cases(57)),
        pytest.param("file:/f", "file:///f", True, marks=pytest.mark.cases(58)),
        pytest.param("/f", "file:///f", True, marks=pytest.mark.cases(58)),
        pytest.param("hdfs:///f", "hdfs://nn/f", True, marks=pytest.mark.cases(58)),
        pytest.param("/f", "hdfs://nn/f", True, marks=pytest.mark.cases(58)),
        pytest.param("file://localhost/f", "file://nas/f", True, marks=pytest.mark.cases(58)),
        pytest.param("file:///f", "s3://b/f", False, marks=pytest.mark.cases(57)),
    ],
)
def test_same_place(one: str, other: str, same: bool) -> None:
    """Scheme and authority agree when equal, when declared equal, or when one side leaves them out."""
    assert same_place(split(one), split(other), S3, {"old": "b"}) is same
    assert same_place(split(other), split(one), S3, {"old": "b"}) is same


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("s3://b/f", True),
        ("/data/f", True),
        ("file:/data/f", True),
        ("oss://b/f", True),
        ("data/f", False),
        ("arn:aws:s3tables:eu-west-1:1:bucket/b", False),
        ("123456789012", False),
    ],
)
def test_places_are_told_from_names(text: str, place: bool) -> None:
    """A place is a path from a root, or has a scheme; an id, a name or an ARN is none."""
    assert is_location(text) is place


@pytest.mark.parametrize(
    ("properties", "folder"),
    [
        ({}, "s3://b/t/metadata"),
        ({"write.metadata.path": "s3://c/elsewhereX//"}, "s3://c/elsewhereX"),
        ({"write.metadata.path": "/elsewhere"}, "/elsewhere"),
        ({"write.metadata.path": ""}, "s3://b/t/metadata"),
    ],
)
def test_where_metadata_is_written(properties: dict[str, str], folder: str) -> None:
    """Below the location, unless the table says where."""
    assert metadata_folder("s3://b/t", properties) == folder


def test_only_slashes_are_taken_from_the_front_of_a_path() -> None:
    """A folder of one letter stays in front."""
    assert split("s3://bucket//X/y").path == "/X/y"


@pytest.mark.parametrize(
    ("properties", "folder"),
    [
        ({}, "s3://b/t/data"),
        ({"write.data.path": "", "write.folder-storage.path": "s3://c/oldX/"}, "s3://c/oldX"),
        ({"write.data.path": "s3://c/new", "write.folder-storage.path": "s3://c/old"}, "s3://c/new"),
    ],
)
def test_where_data_files_go(properties: Mapping[str, str], folder: str) -> None:
    """By the newer of two properties, by the older one, or below the location."""
    assert data_folder("s3://b/t", properties) == folder


def test_folders_overlap_when_one_holds_the_other() -> None:
    """Whichever of both, and not when their names only begin alike."""
    assert folders_overlap(["/a/", "/t/data/"], ["/t/"])
    assert folders_overlap(["/t/"], ["/a/", "/t/data/"])
    assert not folders_overlap(["/t/"], ["/t_old/"])
    assert not folders_overlap(["/t/"], [])


@pytest.mark.parametrize(
    "text", ["", "copy", "./copy", "lake.a.b", "/a/../b", "s3://b/./a", "s3://", "s3:///a", "/a\0b"]
)
def test_a_place_is_named_whole(text: str) -> None:
    """Else it would be taken for a folder of the root, or hide where it leads to."""
    with pytest.raises(UsageError, match="names no place"):
        named_place(text)


@pytest.mark.parametrize(
    "text", ["/a b/ü%20'", "file:/a", "file:///a", "s3://b", "s3a://b/a..b", "gs://b/..a", "s3://b/X"]
)
def test_a_whole_place_stays_as_it_is(text: str) -> None:
    """But for slashes at its end."""
    assert named_place(f"{text}//") == text
