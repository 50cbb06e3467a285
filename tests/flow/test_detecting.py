"""What detection makes of catalogs that answer oddly, and of tables that are out of sight for a while."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

import pytest

from icewright.flow.evaluate import evaluate_due
from icewright.flow.runtime import Scope
from icewright.ports import Pointer
from icewright.testing import NOW, REF, partition
from tests.flow.bench import Bench, detect_due
from tests.flow.test_loops import looked

AGEING = tuple(100 - hours for hours in range(10))  # snapshots that are due for expiry in three days


@pytest.mark.cases(150)
def test_a_table_of_more_bytes_than_a_store_can_count(bench: Bench) -> None:
    """It is unreadable, and says why; the evaluation of others goes on."""
    huge, well = bench.table("huge"), bench.table("well")
    bench.files.partitions[huge] = (partition(files=1, mb=1 << 45),)
    detect_due(bench.runtime())
    assert set(evaluate_due(bench.runtime(), ["lake"])) == {huge, well}
    rows = {row.ref: row for row in bench.store.tables.list()}
    assert "OverflowError" in (rows[huge].error or "")
    assert (rows[well].error, rows[well].health is not None) == (None, True)


def test_a_fault_of_ours_with_one_catalog_is_none_of_the_others(bench: Bench) -> None:
    """It is told as if the catalog had failed, which is asked again after a while."""
    bench.table()
    bench.table(catalog="pond")

    def odd() -> Sequence[Pointer]:
        raise ValueError("an answer that nobody foresaw")

    bench.catalog.pointers = odd  # type: ignore[method-assign]
    found = detect_due(bench.runtime())
    said = "catalog lake could not be listed: unexpected ValueError: an answer that nobody foresaw"
    assert (found.tables, found.errors) == (1, (("lake", said),))
    assert {row.ref.catalog for row in bench.store.tables.list()} == {"pond"}
    assert {row.name: row.failures for row in bench.store.catalogs.list()} == {"lake": 1, "pond": 0}


def test_a_table_that_comes_back_into_scope_is_looked_at(bench: Bench) -> None:
    """Though neither the policy nor, perhaps, the table is another: time alone makes it due."""
    ref = bench.table(ages=AGEING)
    looked(bench)
    bench.scopes["lake"] = Scope(enabled=True, tables="other*")
    for _ in range(4):
        bench.clock.advance(hours=12)
        looked(bench)
    bench.catalog.concurrently(ref, properties={"moved": "meanwhile"})
    bench.scopes.clear()
    bench.clock.advance(hours=12)
    looked(bench)
    row = bench.store.tables.get(ref)
    assert row is not None
    assert row.evaluated_location == row.metadata_location
    assert row.evaluate_at is not None


def test_a_table_that_is_gone_for_a_moment_is_looked_at_again(bench: Bench) -> None:
    """Renamed and renamed back between two listings, it has not moved in any of them."""
    ref = bench.table(ages=AGEING)
    looked(bench)
    row = bench.store.tables.get(ref)
    assert row is not None
    assert row.evaluate_at is not None
    bench.clock.time = row.evaluate_at
    away = bench.catalog.tables.pop(ref)
    evaluate_due(bench.runtime(), ["lake"])
    bench.catalog.tables[ref] = away
    for _ in range(8):
        bench.clock.advance(hours=12)
        looked(bench)
    row = bench.store.tables.get(REF)
    assert row is not None
    assert row.evaluated_at is not None
    assert row.evaluated_at > NOW + timedelta(days=3)
