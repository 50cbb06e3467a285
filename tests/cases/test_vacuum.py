"""Vacuum of a catalog without branches: expiry and orphan removal of all its tables, with one answer."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from icewright.core.errors import Refused, UsageError
from icewright.core.runs import JobState
from icewright.flow.runtime import Scope
from icewright.flow.vacuum import vacuum
from tests.cases.house import House


def test_every_table_is_expired_and_cleaned(house: House) -> None:
    """The dry run names exactly what then goes; a second run finds nothing."""
    orders = house.table("sales.orders")
    house.table("sales.returns")
    house.plant(orders, "data/lost.parquet")
    runtime = house.runtime({"expire_snapshots.min_snapshots_to_keep": 1, "deletion.delay_hours": 0})
    before = house.files()
    dry = vacuum(runtime, "lake", dry_run=True)
    assert house.files() == before
    done = vacuum(runtime, "lake")
    assert done.state is JobState.SUCCEEDED
    assert (done.files, done.bytes) == (dry.files, dry.bytes)
    counts = done.counts
    assert (counts.num_tables, counts.num_total_snapshots, counts.num_table_expiry) == (2, 8, 2)
    assert counts.num_expired_snapshots == 6
    assert not (orders / "data/lost.parquet").exists()
    house.clock.advance(minutes=1)
    assert vacuum(runtime, "lake").files == 0


def test_an_unreadable_table_is_a_partial_failure(house: House) -> None:
    """None of its files is touched; the other tables go on."""
    torn = house.table("sales.torn")
    house.table("sales.whole")
    house.metadata_file("sales.torn").unlink()
    before = house.files(torn)
    done = vacuum(house.runtime({"expire_snapshots.min_snapshots_to_keep": 1, "deletion.delay_hours": 0}), "lake")
    assert done.state is JobState.PARTIAL
    counts = done.counts
    assert (counts.num_not_found, counts.num_access_denied, counts.num_partial_failures) == (1, 0, 1)
    assert house.files(torn) == before
    assert done.files > 0


def test_tables_out_of_scope_stay(house: House) -> None:
    """Vacuum keeps to the scope of the catalog."""
    other = house.table("sales.other")
    house.table("sales.orders")
    before = house.files(other)
    runtime = house.runtime({"expire_snapshots.min_snapshots_to_keep": 1})
    scoped = replace(runtime, scopes={**runtime.scopes, "lake": Scope(enabled=True, tables="orders")})
    done = vacuum(scoped, "lake")
    assert [job.ref.name for job in done.jobs] == ["orders"]
    assert house.files(other) == before


def test_who_may_not_vacuum_changes_nothing(house: House) -> None:
    """Owner and admin alone may: the check comes before anything is read."""
    house.table()
    before = house.files()

    def nobody(catalog: str) -> None:
        raise Refused(f"only an owner of {catalog} or an admin may vacuum it")

    with pytest.raises(Refused, match="owner of lake"):
        vacuum(house.app.runtime, "lake", allowed=nobody)
    assert house.files() == before


def test_one_vacuum_at_a_time(house: House) -> None:
    """Another process that is at it is told, and let be."""
    now = house.clock.now()
    house.app.runtime.store.acquire_lease("vacuum lake", "elsewhere:1:1", now, now + timedelta(hours=1))
    with pytest.raises(Refused, match="another process"):
        vacuum(house.app.runtime, "lake")


def test_an_unknown_catalog_is_named(house: House) -> None:
    """With those that there are."""
    with pytest.raises(UsageError, match="there is no catalog sea; there is: lake, pond"):
        vacuum(house.app.runtime, "sea")
