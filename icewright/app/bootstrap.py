"""The only place that builds and wires adapters: configuration in, a World out."""

from __future__ import annotations

import getpass
import os
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from icewright.adapters.catalogs.sql import SqlCatalog
from icewright.adapters.catalogs.translate import (
    SqlCatalogProperties,
    pyiceberg_properties,
    spark_conf,
    spark_packages,
    sql_catalog,
)
from icewright.adapters.clock import SharedClock
from icewright.adapters.engines.dispatch import Engines
from icewright.adapters.engines.service.deletion import Deletion
from icewright.adapters.engines.service.expire_snapshots import ExpireInService
from icewright.adapters.engines.service.guard import Guard
from icewright.adapters.engines.service.remove_orphans import RemoveOrphansInService
from icewright.adapters.engines.service.rewrite_manifests import RewriteManifestsInService
from icewright.adapters.engines.spark.engine import SparkEngine
from icewright.adapters.engines.spark.pool import SparkPool
from icewright.adapters.files.cache import Cache
from icewright.adapters.files.local import LocalStorage
from icewright.adapters.files.manifests import ENTRY, ManifestReader
from icewright.adapters.files.objects import bucket_storage
from icewright.adapters.files.storage import Storages
from icewright.adapters.files.tables import TableFiles
from icewright.adapters.store.archive import SqlOldHistory
from icewright.adapters.store.database import check_address, is_current, open_database, server_time, upgrade
from icewright.adapters.store.sql import SqlStore
from icewright.app.config import CatalogConfig, Checks, Config, PoolConfig, load_config
from icewright.core.errors import ConfigError
from icewright.core.layering import Policy, Rule
from icewright.core.policy import KERNEL
from icewright.core.steps import Kernel
from icewright.core.table import Hold, TableMetadata, TableRef
from icewright.flow.archive import Archiving
from icewright.flow.world import Listener, World
from icewright.ports import Batch, Clock, Pointer, Trigger

if TYPE_CHECKING:
    import pyarrow as pa

    from icewright.adapters.archive import IcebergArchive


@dataclass(frozen=True)
class Application:
    """A wired world, and what only the edges need."""

    config: Config
    world: World
    pools: Mapping[str, SparkPool]
    engines: Engines
    shared_clock: SharedClock
    archiving: Archiving | None  # None: no archive is configured

    def orphans(self, ref: TableRef, older_than: datetime) -> int:
        """How many old files under the table's location nothing of it reaches."""
        return self.engines.orphans.count(self.world.catalog(ref).load(ref), older_than)


class _Archive:
    """The archive's tables, opened when the first batch goes there: PyIceberg takes a second to load."""

    def __init__(self, catalog: CatalogConfig, namespace: str) -> None:
        self._catalog, self._namespace = catalog, tuple(namespace.split("."))
        self._opened: IcebergArchive | None = None

    def write(self, batch: Batch, rows: pa.Table) -> None:
        """Add the rows, unless the table has the batch."""
        if self._opened is None:
            from icewright.adapters.archive import IcebergArchive  # noqa: PLC0415 - see above

            properties = pyiceberg_catalog_properties(self._catalog)
            self._opened = IcebergArchive(self._catalog.name, properties, self._namespace)
        self._opened.write(batch, rows)

    def close(self) -> None:
        """Give connections back."""
        if self._opened is not None:
            self._opened.close()


@contextmanager
def _archiving(config: Config, store: SqlStore) -> Iterator[Archiving | None]:
    said = config.archive
    if said is None:
        yield None
        return
    archive = _Archive(config.catalogs[said.catalog], said.namespace)
    try:
        yield Archiving(SqlOldHistory(store.engine), archive, timedelta(days=said.after_days))
    finally:
        archive.close()


def _files(config: Config) -> TableFiles:
    storage = Storages(LocalStorage(), bucket_storage(_stores(config)))
    return TableFiles(storage, ManifestReader(storage, Cache(config.cache_folder, config.cache_bytes, ENTRY)))


def _catalogs_without_arrow(config: Config) -> tuple[Rule, ...]:
    """What is said of catalogs whose pool is a Connect server, so that verdicts say it too."""
    return tuple(
        Rule((name,), {KERNEL.name: Kernel.SPARK.value}, f"pool {entry.pool} is a Spark Connect server")
        for name, entry in config.catalogs.items()
        if config.pools[entry.pool].remote is not None
    )


def check_catalog(catalog: CatalogConfig) -> None:
    """Raise `ConfigError` with the faults of a catalog's properties."""
    sql_catalog(catalog.name, catalog.properties)


def _evaluated(store: SqlStore) -> dict[Pointer, tuple[str, ...]]:
    """Where the tables lie that were evaluated."""
    rows = [row for row in store.tables() if not row.dropped]
    return {
        Pointer(row.ref, row.evaluated_location): (row.location, *row.write_paths)
        for row in rows
        if row.location and row.evaluated_location and row.write_paths is not None
    }


@contextmanager
def application(
    config: Config,
    *,
    kind: str,
    command: Mapping[str, Any] | None = None,
    tell: Listener | None = None,
    clock: Clock | None = None,
) -> Iterator[Application]:
    """Everything wired; Spark, if it was started, ends with the block. `command` is what --set says."""
    store = open_store(config)
    shared = SharedClock(lambda: server_time(store.engine))
    clock = clock or shared
    files = _files(config)
    catalogs = {name: SqlCatalog(_sql(entry), files, clock) for name, entry in config.catalogs.items()}
    pools = {name: _pool(config, pool) for name, pool in config.pools.items()}

    fixed = (*_catalogs_without_arrow(config), *config.policy.rules)

    def policy() -> Policy:
        return replace(config.policy, rules=(*fixed, *store.rules()), command=command or {})

    def held(metadata: TableMetadata) -> list[Hold]:
        return [pin.hold() for pin in store.pins(metadata.ref, metadata.table_uuid)]

    allowed = {name: entry.allowed_locations for name, entry in config.catalogs.items()}
    guard = Guard(catalogs, allowed, files.canonical, lambda: _evaluated(store))
    deletion = Deletion(files, store, clock)
    engine = Engines(
        catalogs=catalogs,
        spark=SparkEngine({name: pools[entry.pool] for name, entry in config.catalogs.items()}, files, store, clock),
        expire=ExpireInService(deletion, guard, held),
        orphans=RemoveOrphansInService(deletion, guard),
        manifests=RewriteManifestsInService(files, clock),
    )
    world = World(
        catalogs=catalogs,
        files=files,
        engine=engine,
        store=store,
        clock=clock,
        policy=policy,
        scopes={name: entry.scope for name, entry in config.catalogs.items()},
        limits=config.limits,
        trigger=Trigger(kind, _user(), holder()),
    )
    told = replace(world, tell=tell) if tell else world
    try:
        with _archiving(config, store) as archiving:
            yield Application(config, told, pools, engine, shared, archiving)
    finally:
        for pool in pools.values():
            pool.stop()
        for catalog in catalogs.values():
            catalog.close()
        store.engine.dispose()


def read_config(path: Any) -> Config:  # noqa: ANN401 - a path
    """The configuration, its catalogs' properties checked too."""
    return load_config(path, Checks(check_catalog, check_address))


def open_store(config: Config) -> SqlStore:
    """The state store. SQLite is brought to the newest revision by itself, a shared database by `db upgrade` alone."""
    engine = open_database(config.state)
    if not is_current(engine):
        if engine.dialect.name != "sqlite":
            engine.dispose()
            raise ConfigError(["state: the database has an older shape; run `icewright db upgrade`"])
        upgrade(engine)
    return SqlStore(engine, config.ledger_folder)


def upgrade_store(config: Config) -> None:
    """Bring the state store to the newest revision."""
    engine = open_database(config.state)
    try:
        upgrade(engine)
    finally:
        engine.dispose()


def pyiceberg_catalog_properties(catalog: CatalogConfig) -> dict[str, str]:
    """The same catalog for PyIceberg."""
    return pyiceberg_properties(_sql(catalog))


def holder() -> str:
    """This process, as leases name it."""
    return f"{socket.gethostname()}:{os.getpid()}:{_started(os.getpid())}"


def is_dead(name: str) -> bool:
    """Whether a holder's process is surely gone: it ran on this host, and runs no more."""
    host, pid, started = name.rsplit(":", 2)
    return host == socket.gethostname() and _started(int(pid)) != started


def _started(pid: int) -> str:
    """When a process began (Linux: in ticks since boot), so that a reused number is not taken for it."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as stat:  # noqa: PTH123
            return stat.read().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return "0" if _alive(pid) else "gone"


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "unknown"


def _stores(config: Config) -> list[tuple[str, Mapping[str, str]]]:
    """Which catalog's properties open which place."""
    return [(p, c.properties) for c in config.catalogs.values() for p in c.allowed_locations]


def _sql(catalog: CatalogConfig) -> SqlCatalogProperties:
    return sql_catalog(catalog.name, catalog.properties)


def _pool(config: Config, pool: PoolConfig) -> SparkPool:
    """The pool knows every catalog that uses it."""
    mine: Sequence[CatalogConfig] = [c for c in config.catalogs.values() if c.pool == pool.name]
    conf: dict[str, str] = {}
    packages: set[str] = set()
    for catalog in mine:
        conf |= spark_conf(_sql(catalog))
        packages |= set(spark_packages(_sql(catalog)))
    return SparkPool(
        name=pool.name,
        master=pool.master,
        conf=pool.conf,
        catalog_conf=conf,
        packages=tuple(sorted(packages)),
        java=config.java_home,
        cache=config.cache_folder,
        log=config.cache_folder / "logs" / f"spark-{pool.name}.log",
        max_concurrent=pool.max_concurrent,
        remote=pool.remote,
    )
