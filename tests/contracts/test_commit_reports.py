"""Tables of commit reports, as PyIceberg reads them from a real catalog."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pyarrow as pa
import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField, StringType, TimestamptzType

from icewright.adapters.catalogs.reports import IcebergReports
from icewright.adapters.catalogs.rest import client
from icewright.adapters.catalogs.translate import sql_catalog
from icewright.core.errors import CatalogUnavailable, MetadataUnreadable, TableNotFound
from icewright.ports import NewReports
from tests.contracts.bench import Bench, by_pyiceberg, file_of

SCHEMA = Schema(NestedField(1, "table_name", StringType()), NestedField(2, "committed_at", TimestamptzType()))


@pytest.fixture
def reports(bench: Bench) -> Iterator[IcebergReports]:
    """A table of commit reports without a row."""
    bench.iceberg.create_namespace("ops")
    bench.iceberg.create_table("ops.commits", SCHEMA)
    made = IcebergReports("lake", bench.client, ("ops", "commits"))
    yield made
    made.close()


def append(bench: Bench, *names: str | None) -> int:
    """One snapshot of reports."""
    table = bench.read("ops", "commits")
    table.append(
        pa.table({"table_name": pa.array(names, pa.string()), "committed_at": [None] * len(names)}, SCHEMA.as_arrow())
    )
    snapshot = table.current_snapshot()
    assert snapshot is not None
    return int(snapshot.snapshot_id)


@by_pyiceberg
def test_each_snapshot_is_read_once(bench: Bench, reports: IcebergReports) -> None:
    """Each name once, blanks left out; nothing while there is nothing new."""
    assert reports.since(None) == NewReports(None)
    first = append(bench, "sales.orders")
    assert reports.since(None) == NewReports(first, gap=True)
    assert reports.since(first) == NewReports(first)
    append(bench, "sales.orders", "sales.orders", None, "")
    last = append(bench, "lake.sales.customers")
    assert reports.since(first) == NewReports(last, ("lake.sales.customers", "sales.orders"))


@by_pyiceberg
def test_rows_that_were_rewritten_are_no_reports(bench: Bench, reports: IcebergReports) -> None:
    """Nor are those that were taken away."""
    first = append(bench, "sales.orders", "sales.customers")
    table = bench.read("ops", "commits")
    table.delete("table_name == 'sales.orders'")
    snapshot = table.current_snapshot()
    assert snapshot is not None
    assert reports.since(first) == NewReports(snapshot.snapshot_id)


@by_pyiceberg
def test_where_the_reading_ended_is_not_known_any_more(bench: Bench, reports: IcebergReports) -> None:
    """Because it expired, or the table was rolled back or made anew: there may be reports that nobody read."""
    last = append(bench, "sales.orders")
    assert reports.since(4711) == NewReports(last, gap=True)


@by_pyiceberg
def test_what_is_no_table_of_commit_reports(bench: Bench, reports: IcebergReports) -> None:
    """Is named, with what must be changed."""
    bench.iceberg.create_table("ops.other", Schema(NestedField(1, "table_name", LongType())))
    other = IcebergReports("lake", reports.properties, ("ops", "other"))
    missing = IcebergReports("lake", reports.properties, ("ops", "none"))
    with pytest.raises(MetadataUnreadable, match=r"lake.ops.other: .* needs a column table_name of type string"):
        other.since(None)
    with pytest.raises(TableNotFound, match=r"lake.ops.none: .* correct catalogs\.lake\.commit_reports"):
        missing.since(None)
    other.close()
    missing.close()


@by_pyiceberg
def test_files_that_are_missing(bench: Bench, reports: IcebergReports) -> None:
    """Reports that cannot be read are an error, never fewer reports."""
    first = append(bench, "sales.orders")
    append(bench, "sales.customers")
    for file in file_of(bench.read("ops", "commits").location()).rglob("*.parquet"):
        file.unlink()
    with pytest.raises(CatalogUnavailable, match=r"lake.ops.commits: commit reports cannot be read: "):
        reports.since(first)


def test_a_catalog_that_does_not_answer() -> None:
    """Is an error, and shows no password."""
    uri = "postgresql+psycopg://me:hush-4711@127.0.0.1:1/none"
    found = IcebergReports(
        "lake", sql_catalog("lake", {"uri": uri, "warehouse": "/w"}).pyiceberg_properties(), ("a", "b")
    )
    with pytest.raises(CatalogUnavailable, match=r"lake.a.b") as caught:
        found.since(None)
    assert "hush-4711" not in str(caught.value)
    assert "hush-4711" not in repr(found)


def test_a_catalog_that_never_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The round ends with the time of a request, and not with the process."""
    monkeypatch.setattr(client, "_SECONDS", (5.0, 0.1))
    with socket.create_server(("127.0.0.1", 0)) as server:
        silent = {"type": "rest", "uri": f"http://127.0.0.1:{server.getsockname()[1]}"}
        with pytest.raises(CatalogUnavailable, match=r"cannot be read: .*Read timed out"):
            IcebergReports("lake", silent, ("ops", "commits")).since(None)
