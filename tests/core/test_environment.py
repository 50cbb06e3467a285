"""What a declared environment holds."""

from __future__ import annotations

import pytest

from icewright.core.environment import Environment

LAKE = Environment(
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
        "abfss://c@acc.dfs.core.windows.net/t",
    ],
)
def test_inside(path: str) -> None:
    """However scheme and slashes are spelt."""
    assert LAKE.holds(path)


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
        "abfs://c@other.dfs.core.windows.net/t",
    ],
)
def test_outside(path: str) -> None:
    """Another bucket, a sibling, a way up, another scheme."""
    assert not LAKE.holds(path)
    assert LAKE.outside([path]) == [path]


def test_hosts() -> None:
    """Wildcards count, and case does not; what is not declared is not limited."""
    assert LAKE.knows_host("Catalog.QA.internal")
    assert not LAKE.knows_host("catalog.prod.example")
    assert Environment().knows_host("anything")
    assert Environment().holds("s3://anything/")
    assert not Environment((), ()).knows_host("anything")
    assert not Environment((), ()).holds("s3://anything/")
