"""Scopes of catalogs as they are set by the API or on a page, in the place of the configuration."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest

from icewright.core.errors import StorageUnavailable
from icewright.core.policy import Operation
from icewright.flow.runtime import Scope
from icewright.flow.scopes import StoredScopes
from icewright.ports import CatalogRow, CatalogSettings
from tests.flow.bench import Bench


class Away:
    """The schedule of catalogs, behind a connection that can break."""

    def __init__(self, real: Any) -> None:
        self.real, self.away = real, False

    def list(self) -> Sequence[CatalogRow]:
        """Every catalog, or an error."""
        if self.away:
            raise StorageUnavailable("the store is away")
        found: Sequence[CatalogRow] = self.real.list()
        return found


def _set(bench: Bench, **settings: Any) -> None:
    bench.store.catalogs.record_settings("lake", CatalogSettings(**settings) if settings else None, bench.clock.now())
    bench.clock.sleep(10)


def test_what_is_set_decides_which_tables_are_maintained(bench: Bench) -> None:
    """A catalog that is disabled, or whose tables are another's choice, has no automatic work; taken back it has."""
    ref = bench.table("orders")
    bench.rot(ref)
    runtime = bench.runtime()
    assert runtime.scopes["lake"].contains(ref)
    _set(bench, enabled=False)
    scope = runtime.scopes["lake"]
    assert (scope.enabled, scope.configured and scope.configured.enabled) == (False, True)
    assert not bench.cycle().jobs
    _set(bench, tables="no_*", namespaces="", interval_seconds=7)
    scope = runtime.scopes["lake"]
    assert (scope.enabled, scope.contains(ref), scope.interval) == (True, False, timedelta(seconds=7))
    assert not bench.cycle().jobs
    _set(bench)
    assert runtime.scopes["lake"] == Scope(enabled=True)
    done = [outcome.operation for job in bench.cycle().jobs for outcome in job.outcomes]
    assert Operation.COMPACT in done


def test_a_store_that_is_away_leaves_the_last_known_scopes(bench: Bench) -> None:
    """Nothing is enabled or disabled because the store does not answer; without a first answer nothing is known."""
    bench.table("orders")
    away = Away(bench.store.catalogs)
    scopes: Any = StoredScopes({"lake": Scope(enabled=True)}, away, bench.clock)  # type: ignore[arg-type]
    _set(bench, enabled=False)
    assert (len(scopes), scopes["lake"].enabled) == (1, False)
    away.away = True
    bench.clock.sleep(60)
    assert not scopes["lake"].enabled
    unread: Any = StoredScopes({"lake": Scope(enabled=True)}, away, bench.clock)  # type: ignore[arg-type]
    with pytest.raises(StorageUnavailable):
        unread["lake"]
