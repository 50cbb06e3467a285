"""Vacuum of a catalog without branches: expiry and orphan removal of all its tables, with one answer."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from icewright.core.errors import Refused, UsageError
from icewright.core.runs import JobState
from icewright.flow.runtime import Scope
from icewright.flow.vacuum import vacuum
from tests.cases.workspace import Workspace


def test_every_table_is_expired_and_cleaned(workspace: Workspace) -> None:
    """The dry run names exactly what then goes; a second run finds nothing."""
    orders = workspace.table("sales.orders")
    workspace.table("sales.returns")
    workspace.plant(orders, "data/lost.parquet")
    runtime = workspace.runtime({"expire_snapshots.min_snapshots_to_keep": 1, "deletion.delay_hours": 0})
    before = workspace.files()
    dry = vacuum(runtime, "lake", dry_run=True)
    assert workspace.files() == before
    done = vacuum(runtime, "lake")
    assert done.state is JobState.SUCCEEDED
    assert (done.files, done.bytes) == (dry.files, dry.bytes)
    counts = done.counts
    assert (counts.num_tables, counts.num_total_snapshots, counts.num_table_expiry) == (2, 8, 2)
    assert counts.num_expired_snapshots == 6
    assert not (orders / "data/lost.parquet").exists()
    workspace.clock.advance(minutes=1)
    assert vacuum(runtime, "lake").files == 0


def test_an_unreadable_table_is_a_partial_failure(workspace: Workspace) -> None:
    """None of its files is touched; the other tables go on."""
    torn = workspace.table("sales.torn")
    workspace.table("sales.whole")
    workspace.metadata_file("sales.torn").unlink()
    before = workspace.files(torn)
    done = vacuum(workspace.runtime({"expire_snapshots.min_snapshots_to_keep": 1, "deletion.delay_hours": 0}), "lake")
    assert done.state is JobState.PARTIAL
    counts = done.counts
    assert (counts.num_not_found, counts.num_access_denied, counts.num_partial_failures) == (1, 0, 1)
    assert workspace.files(torn) == before
    assert done.files > 0


def test_tables_out_of_scope_stay(workspace: Workspace) -> None:
    """Vacuum keeps to the scope of the catalog."""
    other = workspace.table("sales.other")
    workspace.table("sales.orders")
    before = workspace.files(other)
    runtime = workspace.runtime({"expire_snapshots.min_snapshots_to_keep": 1})
    scoped = replace(runtime, scopes={**runtime.scopes, "lake": Scope(enabled=True, tables="orders")})
    done = vacuum(scoped, "lake")
    assert [job.ref.name for job in done.jobs] == ["orders"]
    assert workspace.files(other) == before


def test_one_vacuum_at_a_time(workspace: Workspace) -> None:
    """Another process that is at it is told, and let be."""
    now = workspace.clock.now()
    workspace.app.runtime.store.leases.acquire("vacuum lake", "elsewhere:1:1", now, now + timedelta(hours=1))
    with pytest.raises(Refused, match="another process"):
        vacuum(workspace.app.runtime, "lake")


def test_an_unknown_catalog_is_named(workspace: Workspace) -> None:
    """With those that there are."""
    with pytest.raises(UsageError, match="there is no catalog sea; there is: lake, pond"):
        vacuum(workspace.app.runtime, "sea")
