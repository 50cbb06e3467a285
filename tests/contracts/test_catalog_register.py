"""What every catalog does: take a table by its metadata file, under a free name or in the place of a lost one."""

from __future__ import annotations

import pytest

from icewright.core.errors import Refused
from tests.contracts.bench import Bench, by_pyiceberg, file_of


@by_pyiceberg
def test_a_table_is_registered_by_its_metadata_file(bench: Bench) -> None:
    """It is the same table as before it was dropped; a name that is taken, or without a namespace, is refused."""
    before, other = bench.craft("sales.orders"), bench.craft("sales.payments")
    ref = bench.ref("sales", "orders")
    bench.iceberg.drop_table("sales.orders")
    assert [pointer.ref.name for pointer in bench.catalog.pointers()] == ["payments"]
    bench.catalog.register(ref, before.metadata_location)
    after = bench.catalog.load(ref)
    assert (after.metadata_location, after.table_uuid) == (before.metadata_location, before.table_uuid)
    assert (after.snapshots, after.refs) == (before.snapshots, before.refs)
    with pytest.raises(Refused, match="exists already"):
        bench.catalog.register(ref, other.metadata_location)
    with pytest.raises(Refused, match=r"no such namespace: create it, as by CREATE NAMESPACE \w+\.nowhere in Spark"):
        bench.catalog.register(bench.ref("nowhere", "orders"), other.metadata_location)
    assert bench.catalog.load(ref).table_uuid == before.table_uuid


@by_pyiceberg
def test_a_lost_table_is_replaced(bench: Bench) -> None:
    """The entry goes on with another metadata file, and no file of either goes."""
    before, other = bench.craft("sales.orders"), bench.craft("sales.payments")
    files = {path for path in bench.warehouse.rglob("*") if path.is_file()}
    bench.iceberg.drop_table("sales.payments")
    file_of(before.metadata_location).unlink()
    bench.catalog.register(before.ref, other.metadata_location, replace=True)
    assert bench.catalog.load(before.ref).table_uuid == other.table_uuid
    assert {path for path in bench.warehouse.rglob("*") if path.is_file()} == files - {
        file_of(before.metadata_location)
    }
