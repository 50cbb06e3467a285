"""Places: scheme, authority and folder together, as cases."""

from __future__ import annotations

import pytest

from icewright.core.places import Index, Spelling, is_object_store

PLAIN = Spelling()


@pytest.mark.cases(56, 57, 58, 100, 105)
@pytest.mark.parametrize(
    ("one", "other", "within", "meet"),
    [
        ("s3://a/wh/t", "s3://a/wh", True, True),
        ("s3://a/wh", "s3://a/wh/t", False, True),
        ("s3a://a/wh/t", "s3://a/wh", True, True),
        ("s3n://a/wh/t", "s3a://a/wh", True, True),
        ("s3://b/wh/t", "s3://a/wh", False, False),
        ("s3://b/", "s3://a/", False, False),
        ("s3://a/wh/t", "s3://a/", True, True),
        ("s3://a/wh/t_archive", "s3://a/wh/t", False, False),
        ("gs://a/wh/t", "s3://a/wh", False, False),
        ("abfss://c@one.dfs.core.windows.net/t", "abfs://c@one.dfs.core.windows.net/", True, True),
        ("abfss://c@one.dfs.core.windows.net/t", "abfss://c@two.dfs.core.windows.net/", False, False),
        ("wasbs://c@one.blob.core.windows.net/t", "abfss://c@one.dfs.core.windows.net/", True, True),
        ("abfss://c@ONE.dfs.core.windows.net/t", "abfss://c@one.dfs.core.windows.net/", True, True),
        ("s3a://a:443/wh/t", "s3://a/wh", True, True),
        ("abfss://c@one-secondary.dfs.core.windows.net/t", "abfss://c@one.dfs.core.windows.net/", True, True),
        ("abfs://c/t", "abfss://c@one.dfs.core.windows.net/", False, True),  # the configuration names the account
        ("abfs://c/t", "abfs://c/", True, True),
        ("abfs://c/t", "abfss://d@one.dfs.core.windows.net/", False, False),
        ("gs://c/t", "abfss://c@one.dfs.core.windows.net/", False, False),
        ("wasb://c@two.blob.core.windows.net/t", "abfss://c@one.dfs.core.windows.net/", False, False),
        ("file:/data/t", "file:///data", True, True),
        ("/data/t", "file://localhost/data", True, True),
        ("//data/t", "file:///data", True, True),
        ("s3:///wh/t", "s3://a/wh", False, False),  # a bucket that is left out is no bucket
        ("s3://localhost/wh/t", "s3:///wh", False, False),
        ("file://nas/data/t", "/data", False, False),
        ("hdfs://nn/data/t", "hdfs://nn/data", True, True),
        ("hdfs://nn1/data/t", "hdfs://nn2/data", False, True),  # one file system may go by two names
        ("hdfs:///data/t", "hdfs://nn/data", True, True),
        ("swebhdfs://nn:9871/data/t", "hdfs://nn/data", False, True),  # one file system behind two protocols
        ("s3://orders-x1y2-s3alias/wh/t", "s3://a/wh", False, True),  # an access point may be any bucket's
        ("s3://m1.mrap/wh/t", "s3a://orders--ol-s3/wh", False, True),
        ("s3://arn:aws:s3:eu-1:12:accesspoint:ap/wh/t", "s3://a/wh", False, True),
        ("gs://orders/wh/t", "s3://orders-x1y2-s3alias/wh", False, False),
        ("s3://a//wh/t", "s3://a/wh", True, True),
        ("s3://a/wh%20x/t", "s3://a/wh x", True, True),
    ],
)
def test_places_contain_and_overlap_one_another(one: str, other: str, within: bool, meet: bool) -> None:
    """Deletions need a place that is surely within another; other tables must not even possibly overlap."""
    a, b = PLAIN.place(one), PLAIN.place(other)
    assert (a.within(b), a.may_meet(b), b.may_meet(a)) == (within, meet, meet)


def test_spellings_that_a_policy_declares() -> None:
    """Authorities and schemes that mean the same are one store."""
    spelling = Spelling.of({"oss": "s3"}, {"alias": "bucket"})
    assert spelling.place("oss://alias/t").within(spelling.place("s3://bucket/"))


def test_the_index_finds_every_place_above() -> None:
    """The outermost place comes first; places beside, below or in another bucket are left out."""
    names = ["s3://a/", "s3://a/wh/", "s3://a/wh/t/data/", "s3://a/wh/t2/", "s3://b/wh/"]
    index = Index((PLAIN.place(name), name) for name in names)
    assert [name for _, name in index.holding(PLAIN.place("s3://a/wh/t"))] == ["s3://a/", "s3://a/wh/"]
    assert [name for _, name in index.holding(PLAIN.place("s3://b/wh"))] == ["s3://b/wh/"]
    assert index.holding(PLAIN.place("gs://a/wh")) == []


@pytest.mark.parametrize(
    ("location", "expected"),
    [("s3a://b/t", True), ("abfss://c@one/t", True), ("HDFS://n/t", False), ("webhdfs://n/t", False), ("/t", False)],
)
def test_object_stores_are_told_from_file_systems_however_the_scheme_is_spelt(location: str, expected: bool) -> None:
    """The scheme counts in any case, and by the one that it stands for."""
    assert is_object_store(location) is expected
