"""Wires the engines. Only what runs steps loads this module, as Arrow, Polars and the engines take long to import."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING

from icewright.adapters.catalogs.nessie import NessieCatalog
from icewright.adapters.engines.arrow.convert_deletes import ConvertInService
from icewright.adapters.engines.arrow.statistics import StatisticsInService
from icewright.adapters.engines.arrow.theta import RewrittenSketches
from icewright.adapters.engines.dispatch import Engines
from icewright.adapters.engines.service.deletion import Deletion
from icewright.adapters.engines.service.expire_snapshots import ExpireInService
from icewright.adapters.engines.service.guard import DeletionGuard
from icewright.adapters.engines.service.nessie_live import NessieLiveSet
from icewright.adapters.engines.service.proof import Holds
from icewright.adapters.engines.service.registry import TableRegistry
from icewright.adapters.engines.service.remove_orphans import RemoveOrphansInService
from icewright.adapters.engines.service.rewrite_manifests import RewriteManifestsInService
from icewright.adapters.engines.service.vacuum import BranchVacuum
from icewright.adapters.engines.spark.engine import SparkEngine
from icewright.adapters.engines.spark.pool import SparkPool
from icewright.adapters.files.tables import IcebergFiles
from icewright.adapters.store.sql import SqlStore
from icewright.app.config import Config
from icewright.core.breakers import failing_catalogs
from icewright.core.layering import Policy
from icewright.core.places import Spelling
from icewright.core.policy import EQUAL_AUTHORITIES, EQUAL_SCHEMES
from icewright.core.table import TableRef
from icewright.flow.reconcile import FORGET_AFTER
from icewright.ports import Clock, ProcessRow
from icewright.ports.deadlines import CatalogCalls

if TYPE_CHECKING:
    from icewright.adapters.catalogs.opening import AnyCatalog


def build_engines(
    config: Config,
    catalogs: Mapping[str, AnyCatalog],
    pools: Mapping[str, SparkPool],
    files: IcebergFiles,
    store: SqlStore,
    policy: Callable[[], Policy],
    clock: Clock,
    storage_time: Callable[[str], datetime],
) -> Engines:
    """Return the engines over the adapters of an application."""
    allowed = {name: entry.allowed_locations for name, entry in config.catalogs.items()}
    places = {name: entry.table_places for name, entry in config.catalogs.items()}
    failing = lambda: failing_catalogs(store.breakers.list(), clock.now())  # noqa: E731
    calls = CatalogCalls({name: entry.scope.timeout for name, entry in config.catalogs.items()})
    aliases = {alias for entry in config.catalogs.values() for alias in entry.aliases}
    state, together, deadly = store.registrations, store.reading_together, store.tables.deadly
    elsewhere = lambda: _catalogs_elsewhere(store.processes.list(), {*catalogs, *aliases}, clock.now())  # noqa: E731
    registry = TableRegistry(
        catalogs, files, state, clock, calls, places, aliases, failing, together, deadly, elsewhere
    )
    guard = DeletionGuard(registry, allowed, partial(_spelling, policy))
    rewritten = RewrittenSketches()
    deletion, pinned = Deletion(files, store.ledger, clock, store.writing_together), store.pins.holds
    return Engines(
        catalogs=catalogs,
        deletion=deletion,
        guard=guard,
        spark=SparkEngine(
            {name: pools[entry.pool] for name, entry in config.catalogs.items()}, files, store.ledger, clock, rewritten
        ),
        expire=ExpireInService(deletion, guard, pinned),
        orphans=RemoveOrphansInService(deletion, guard, pinned, storage_time),
        manifests=RewriteManifestsInService(files, clock),
        conversion=ConvertInService(files, clock),
        statistics=StatisticsInService(files, clock, rewritten),
        allowlists={name: c.environment for name, c in config.catalogs.items() if c.environment is not None},
        vacuums=_vacuums(catalogs, deletion, guard, policy, pinned, storage_time),
    )


def _vacuums(
    catalogs: Mapping[str, AnyCatalog],
    deletion: Deletion,
    guard: DeletionGuard,
    policy: Callable[[], Policy],
    pinned: Holds,
    storage_time: Callable[[str], datetime],
) -> dict[str, BranchVacuum]:
    """Return the vacuum of each Nessie catalog; catalogs of one server do not block each other's deletions."""
    vacuums: dict[str, BranchVacuum] = {}
    for name, catalog in catalogs.items():
        if isinstance(catalog, NessieCatalog):
            same_server = {
                n for n, c in catalogs.items() if isinstance(c, NessieCatalog) and c.server == catalog.server
            }
            vacuums[name] = BranchVacuum(
                catalog,
                deletion,
                replace(guard, ignoring=frozenset(same_server)),
                NessieLiveSet(catalog, deletion.clock, lambda ref, read: policy().knobs_for(ref, read), pinned),
                lambda name=name: policy().knobs_of_catalog(name),  # type: ignore[misc]
                storage_time,
            )
    return vacuums


def _catalogs_elsewhere(
    processes: Sequence[ProcessRow], own: Container[str], now: datetime
) -> list[tuple[str, Sequence[str]]]:
    """Return the catalogs that other services have and this process does not, with the places of their tables.

    A service that fell silent still counts for a while: it may come back, and its tables are read and written all the
    same. After that nobody need be there to forget it, as where only `cycle` is left.
    """
    counted = [process for process in processes if now - process.heartbeat <= FORGET_AFTER]
    places = [place for process in counted for place in process.details.get("places", {}).items()]
    return [(name, folders) for name, folders in places if name not in own]


def _spelling(policy: Callable[[], Policy], ref: TableRef) -> Spelling:
    """Return which schemes and authorities of paths the table's policy calls equal."""
    knobs = policy().knobs_for(ref, None)
    return Spelling.of(knobs[EQUAL_SCHEMES], knobs[EQUAL_AUTHORITIES])
