"""The locations and hosts that a catalog's declared environment allows."""

from __future__ import annotations

import pytest

from icewright.core.allowlist import Allowlist, require_hosts, require_inside
from icewright.core.errors import Refused
from icewright.testing import metadata

LAKE = Allowlist(
    ("*.internal", "127.0.0.1"), ("s3://qa-*/lake/", "file:///data/qa", "abfs://c@acc.dfs.core.windows.net/")
)


@pytest.mark.parametrize(
    "path",
    [
        "s3://qa-1/lake/t/a.parquet",
        "s3a://qa-eu/lake",
        "file:/data/qa/t/x",
        "/data/qa/t",
        "file://localhost/data/qa",
        "//data/qa/t",
        "abfss://c@acc.dfs.core.windows.net/t",
        "wasb://c@acc.blob.core.windows.net/t",
        "wasbs://c@acc.blob.core.windows.net/t",
    ],
)
def test_a_declared_location_contains_paths_however_they_are_spelt(path: str) -> None:
    """Spellings of the scheme, of Azure's host and of slashes make no difference."""
    assert LAKE.contains(path)


@pytest.mark.parametrize(
    "path",
    [
        "s3://prod/lake/t",
        "s3://qa-1/lakehouse/t",
        "s3://qa-1/",
        "s3://qa-1/lake/../prod/t",
        "/data/qa-old/t",
        "/data/qa/../prod/t",
        "gs://qa-1/lake/t",
        "/lake/t",
        "file://nas/data/qa/t",
        "//localhost/data/qa/t",
        "abfs://c@other.dfs.core.windows.net/t",
        "wasbs://c@other.blob.core.windows.net/t",
        "wasbs://other@acc.blob.core.windows.net/t",
        "wasbs://c@acc.blob.example.net/t",
    ],
)
def test_other_stores_siblings_and_parents_lie_outside(path: str) -> None:
    """So do another container, account or host, another scheme, and a path that leads up by `..`."""
    assert not LAKE.contains(path)
    assert LAKE.outside([path]) == [path]


def test_a_location_is_taken_as_it_is_spelt() -> None:
    """A folder whose name begins alike is another one, and only a local file's host may be left out."""
    assert not Allowlist(None, ("s3://qa/lakeX/",)).contains("s3://qa/lake/t")
    assert not Allowlist(None, ("hdfs:///data",)).contains("hdfs://localhost/data/t")


def test_hosts_and_locations_that_are_not_declared_are_not_limited() -> None:
    """Hosts match wildcards in any case. None declared allows all, an empty list allows nothing."""
    assert LAKE.knows_host("Catalog.QA.internal")
    assert not LAKE.knows_host("catalog.prod.example")
    assert Allowlist().knows_host("anything")
    assert Allowlist().contains("s3://anything/")
    assert not Allowlist((), ()).knows_host("anything")
    assert not Allowlist((), ()).contains("s3://anything/")


def test_a_table_outside_is_refused() -> None:
    """Location, metadata file, write paths and named files must all lie inside, where an environment is declared."""
    inside, outside = "s3://qa-1/lake/t", "s3://prod/lake/t"
    require_inside(LAKE, "lake", metadata(location=inside, metadata_location=f"{inside}/1.json"), [f"{inside}/a"])
    require_inside(None, "lake", metadata(location=outside))
    elsewhere = {"write.format.default": "parquet", "write.data.path": "", "backup.path": outside}
    require_inside(LAKE, "lake", metadata(location=inside, metadata_location=inside, properties=elsewhere))
    for table, files in (
        (metadata(location=outside, metadata_location=f"{inside}/1.json"), []),
        (metadata(location=inside, metadata_location=f"{outside}/1.json"), []),
        (metadata(location=inside, metadata_location=inside, properties={"write.data.path": outside}), []),
        (metadata(location=inside, metadata_location=inside), [f"{outside}/a"]),
    ):
        with pytest.raises(Refused, match=r"s3://prod/lake/t.* lies outside of catalogs\.lake\.environment\.locations"):
            require_inside(LAKE, "lake", table, files)


def test_a_server_may_name_only_declared_hosts() -> None:
    """Addresses among the properties that it sends are compared with the declared hosts; other values are ignored."""
    sent = {"uri": "http://a.internal/x", "prefix": "http", "s3.endpoint": "HTTPS://127.0.0.1:9000", "n": 1}
    require_hosts(LAKE, "lake", sent)
    require_hosts(None, "lake", {"s3.endpoint": "http://elsewhere"})
    for scheme in ("https", "http"):
        with pytest.raises(Refused, match=r"its server says s3\.endpoint with the host elsewhere\.example"):
            require_hosts(LAKE, "lake", {**sent, "s3.endpoint": f"{scheme}://elsewhere.example/"})
