"""The only place that builds and wires adapters: takes a configuration and returns an `Application`."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from icewright.adapters.catalogs.opening import open_catalog
from icewright.adapters.catalogs.staging import MetadataFiles, NamedFiles
from icewright.adapters.catalogs.translate import CatalogProperties, catalog_properties
from icewright.adapters.clock import SharedClock
from icewright.adapters.engines.spark.pool import SparkPool
from icewright.adapters.notify.apprise_channels import open_channels
from icewright.adapters.read_limits import ReadLimits, set_read_limits
from icewright.adapters.store.database import (
    check_address,
    is_current,
    is_new,
    is_writable,
    open_database,
    server_time,
)
from icewright.adapters.store.revisions import newest_revision
from icewright.adapters.store.sql import SqlStore
from icewright.adapters.store.upgrading import upgrade
from icewright.app.config import Checks, Config, load_config
from icewright.app.entries import CatalogConfig, PoolConfig, allowlist_faults, is_allowed
from icewright.app.identity import holder, is_dead, user
from icewright.app.lineage import with_lineage
from icewright.app.tracing import with_tracing
from icewright.core.errors import ConfigError, IcewrightError, PackagesMissing, StorageUnavailable, requires_extra
from icewright.core.events.directory import CatalogEntry, Directory
from icewright.core.layering import Policy
from icewright.core.paths import is_location, local_path
from icewright.core.places import Spelling
from icewright.core.polaris import Served
from icewright.core.table import TableRef
from icewright.flow.alert import Alerting
from icewright.flow.archive import Archiving, LazyArchive
from icewright.flow.calibration import Calibration
from icewright.flow.limits import CurrentLimits
from icewright.flow.runtime import Listener, Runtime
from icewright.flow.scopes import StoredScopes
from icewright.ports import Archive, Clock, CommitReports, Engine, Trigger, VendedCredentials

if TYPE_CHECKING:
    from icewright.adapters.catalogs.opening import AnyCatalog
    from icewright.adapters.catalogs.rest import RestCatalog
    from icewright.adapters.engines.dispatch import Engines
    from icewright.adapters.files.tables import IcebergFiles
    from icewright.ports.archive import OldHistory

T = TypeVar("T")
_SPELLING = Spelling()


class _OnDemand(Generic[T]):
    """An adapter that is built, and whose libraries are loaded, when it is first used."""

    def __init__(self, build: Callable[[], T]) -> None:
        self._build, self._lock, self._built = build, threading.Lock(), cast("T | None", None)

    def __call__(self) -> T:
        with self._lock:
            if self._built is None:
                with requires_extra("engine", "reading tables", PackagesMissing):
                    self._built = self._build()
            return self._built

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - any attribute of the adapter
        return getattr(self(), name)


@dataclass(frozen=True)
class Application:
    """The runtime with its adapters, and the parts that only commands, service and web use."""

    config: Config
    runtime: Runtime
    pools: Mapping[str, SparkPool]
    built_engines: Callable[[], Engines]
    shared_clock: SharedClock
    archiving: Archiving | None  # None: no archive is configured
    alerting: Alerting
    directory: Directory
    reports: Mapping[str, CommitReports]
    store_faults: Callable[[], Sequence[str]]

    @property
    def engines(self) -> Engines:
        """Return the engines, which are built at the first use."""
        return self.built_engines()

    def orphans(self, ref: TableRef, older_than: datetime) -> int:
        """Return the number of files under the table's location that are old and that no metadata of it reaches."""
        return self.engines.orphans.count(self.runtime.catalog(ref).load(ref), older_than)

    def catalog_checks(self, name: str) -> Iterator[tuple[str, Callable[[], str]]]:
        """Yield the name and the function of each check of a REST catalog; a function returns its result or raises."""
        if self.config.catalogs[name].type != "rest":
            return
        catalog = cast("RestCatalog", self.runtime.catalogs[name])

        def loads() -> str:
            table = _any_table(catalog)
            return "there is no table yet" if table is None else f"{catalog.load(table).ref} loads"

        def commits() -> str:
            table = _any_table(catalog)
            return "there is no table to try it with" if table is None else catalog.may_commit(table)

        yield "server", catalog.connected
        yield "a table", loads
        yield "commits", commits


def _files(config: Config, credentials: Callable[[str, str], VendedCredentials | None]) -> IcebergFiles:
    from icewright.adapters.files.buckets import Buckets  # noqa: PLC0415 - Arrow and Polars take long to load
    from icewright.adapters.files.cache import Cache  # noqa: PLC0415
    from icewright.adapters.files.local import LocalStorage  # noqa: PLC0415
    from icewright.adapters.files.manifests import ENTRY, ManifestReader  # noqa: PLC0415
    from icewright.adapters.files.storage import Storages  # noqa: PLC0415
    from icewright.adapters.files.tables import IcebergFiles  # noqa: PLC0415

    entries = config.catalogs.items()
    storage = Storages(
        LocalStorage(),
        Buckets({n: entry.allowed_locations for n, entry in entries}, {n: entry.properties for n, entry in entries}),
        credentials,
        lambda path: is_allowed(config.catalogs.values(), path),
    )
    return IcebergFiles(storage, ManifestReader(storage, Cache(config.cache_folder, config.cache_bytes, ENTRY)))


def _metadata_files(entry: CatalogConfig, files: MetadataFiles) -> NamedFiles:
    """Return the files as the catalog sees them: without local ones where all of its places are in object stores."""
    places = entry.table_places
    in_object_stores = bool(places) and all(is_location(p) and local_path(p) is None for p in places)
    return NamedFiles(files, entry.name, remote=in_object_stores)


def _reports(config: Config) -> dict[str, CommitReports]:
    reporting = {name: entry for name, entry in config.catalogs.items() if entry.commit_reports is not None}
    if not reporting:
        return {}
    from icewright.adapters.catalogs.reports import IcebergReports  # noqa: PLC0415 - PyIceberg takes long to load

    return {
        name: IcebergReports(name, pyiceberg_catalog_properties(entry), entry.commit_reports)
        for name, entry in reporting.items()
        if entry.commit_reports is not None
    }


@contextmanager
def _archiving(config: Config, store: SqlStore) -> Iterator[Archiving | None]:
    section = config.archive
    if section is None:
        yield None
        return
    entry = config.catalogs[section.catalog]

    def opened() -> Archive:
        from icewright.adapters.archive import IcebergArchive  # noqa: PLC0415 - PyIceberg takes long to load
        from icewright.adapters.catalogs.bounded import load_bounded_catalog  # noqa: PLC0415

        load = partial(load_bounded_catalog, entry.name, pyiceberg_catalog_properties(entry))
        return IcebergArchive(entry.name, load, tuple(section.namespace.split(".")))

    def history() -> OldHistory:
        from icewright.adapters.store.archive import SqlOldHistory  # noqa: PLC0415 - Arrow takes long to load

        return SqlOldHistory(store.db)

    archive = LazyArchive(opened)
    try:
        yield Archiving(cast("OldHistory", _OnDemand(history)), archive, timedelta(days=section.after_days))
    finally:
        archive.close()


def check_catalog(catalog: CatalogConfig) -> None:
    """Raise `ConfigError` with the faults of a catalog's properties and with hosts outside its environment."""
    if faults := allowlist_faults(catalog, _properties(catalog).hosts):
        raise ConfigError(faults)


def check_channels(urls: Sequence[str]) -> None:
    """Raise `ConfigError` with the channels that Apprise does not take."""
    open_channels(urls)


@contextmanager
def application(
    config: Config,
    *,
    kind: str,
    command: Mapping[str, Any] | None = None,
    listener: Listener | None = None,
    clock: Clock | None = None,
) -> Iterator[Application]:
    """Wire the application for the duration of the block. `command` holds the knobs of --set."""
    with ExitStack() as opened:
        store = open_store(config)
        opened.callback(store.engine.dispose)
        set_read_limits(ReadLimits.of_settings(**config.reading.model_dump()))
        shared = SharedClock(lambda: server_time(store.engine))
        test_clock, clock = clock, clock or shared
        catalogs: dict[str, AnyCatalog] = {}
        on_demand = _OnDemand(lambda: _files(config, partial(_vended_credentials, config, catalogs)))
        files = cast("IcebergFiles", on_demand)
        # a test that sets the clock also sets the age of files
        storage_time = (lambda path: files.time(path)) if test_clock is None else lambda _: test_clock.now()  # noqa: PLW0108 - loads
        for name, entry in config.catalogs.items():
            catalog = open_catalog(_properties(entry), _metadata_files(entry, files), clock, entry.environment)
            catalogs[name] = opened.enter_context(closing(catalog))
        reports = {name: opened.enter_context(closing(source)) for name, source in _reports(config).items()}
        limits = CurrentLimits(config.limits, store.limits.get)
        pools = {name: _pool(config, pool, partial(limits.of_pool, name)) for name, pool in config.pools.items()}
        for pool in pools.values():
            opened.callback(pool.stop)
        policy = partial(_policy, config, store, catalogs, command or {})

        def build() -> Engines:
            from icewright.app.engines import build_engines  # noqa: PLC0415 - Arrow and Polars take long to load

            return build_engines(config, catalogs, pools, on_demand(), store, policy, clock, storage_time)

        engine = _OnDemand(build)
        runtime = Runtime(
            catalogs=catalogs,
            files=files,
            engine=cast(Engine, engine),
            store=store,
            clock=clock,
            policy=policy,
            scopes=StoredScopes({name: entry.scope for name, entry in config.catalogs.items()}, store.catalogs, clock),
            limits=limits,
            trigger=Trigger(kind, user(), holder()),
            vacuums=engine.vacuums if any(c.type == "nessie" for c in config.catalogs.values()) else {},
            process_has_ended=is_dead,
            calibration=Calibration(store.runs, clock, {name: entry.pool for name, entry in config.catalogs.items()}),
        )
        alerting = Alerting(open_channels(config.alerts.channels), config.alerts.rules)
        with (
            with_tracing(config.opentelemetry, runtime, listener or runtime.emit) as traced,
            with_lineage(config.openlineage, config.path.parent, runtime, traced) as emit,
            _archiving(config, store) as archiving,
        ):
            runtime = replace(runtime, emit=emit)
            names, faults = directory(config), partial(store_faults, store)
            yield Application(config, runtime, pools, engine, shared, archiving, alerting, names, reports, faults)


def _policy(config: Config, store: SqlStore, catalogs: Mapping[str, AnyCatalog], command: Mapping[str, Any]) -> Policy:
    """Return the policy as it is now: the file's rules, the store's, and the knobs of the command."""
    rules = (*config.policy.rules, *store.rules.list())
    return replace(config.policy, rules=rules, command=command, served=partial(_catalog_policies, config, catalogs))


def read_config(path: Any, *, without_catalogs: bool = False) -> Config:  # noqa: ANN401 - a path
    """Return the configuration, its catalogs' properties checked too."""
    checks = Checks(check_catalog, check_address, check_channels)
    return load_config(path, checks, without_catalogs=without_catalogs)


def open_store(config: Config) -> SqlStore:
    """Open the state store. A new one is made here; an older one is migrated, if it is shared only by `db upgrade`."""
    engine = open_database(config.state)
    if not is_current(engine):
        if engine.dialect.name != "sqlite" and not is_new(engine):
            engine.dispose()
            raise ConfigError(["state: the database has an older shape; run `icewright db upgrade`"])
        upgrade(engine)
    return SqlStore(engine, config.ledger_folder)


def known_tables(config: Config) -> Sequence[TableRef]:
    """Return the tables of the state store; none where it is not there, of another release or unreachable."""
    try:
        if (path := config.state.removeprefix("sqlite:///")) != config.state and not Path(path).is_file():
            return ()  # opening would make it
        engine = open_database(config.state)
        try:
            return SqlStore(engine, config.ledger_folder).tables.known() if is_current(engine) else ()
        finally:
            engine.dispose()
    except IcewrightError:
        return ()


def store_faults(store: SqlStore) -> Sequence[str]:
    """Return the faults that make the state store unusable; empty while it is usable."""
    try:
        if (fault := store.db.schema_fault()) is not None:
            return (fault,)
        writable = is_writable(store.engine)
    except StorageUnavailable as error:
        return (str(error),)
    return (
        ()
        if writable
        else ("state: the database takes no writes: is it a standby, or a file without the right to write it?",)
    )


def directory(config: Config) -> Directory:
    """Return the catalogs with their aliases, as senders of events name them."""
    return Directory({name: CatalogEntry(c.aliases, c.allowed_locations) for name, c in config.catalogs.items()})


def upgrade_store(config: Config) -> str:
    """Migrate the state store to the newest revision, and return that revision."""
    engine = open_database(config.state)
    try:
        upgrade(engine)
    finally:
        engine.dispose()
    return newest_revision()


def pyiceberg_catalog_properties(catalog: CatalogConfig) -> dict[str, str]:
    """Return the same catalog for PyIceberg."""
    return _properties(catalog).pyiceberg_properties()


def _any_table(catalog: RestCatalog) -> TableRef | None:
    return next((pointer.ref for pointer in catalog.pointers()), None)


def _properties(catalog: CatalogConfig) -> CatalogProperties:
    return catalog_properties(catalog.type, catalog.name, catalog.properties, catalog.allowed_locations)


def _catalog_policies(config: Config, catalogs: Mapping[str, AnyCatalog], ref: TableRef) -> Served:
    """Return the policies that the table's own catalog, such as Polaris, holds for it."""
    if ref.catalog not in catalogs or config.catalogs[ref.catalog].type != "rest":
        return Served()
    catalog = cast("RestCatalog", catalogs[ref.catalog])
    source = config.catalogs[ref.catalog].policies
    if source == "polaris" or (source == "auto" and catalog.policies.are_offered()):
        return catalog.policies.of(ref)
    return Served()


def _vended_credentials(
    config: Config, catalogs: Mapping[str, AnyCatalog], path: str, named_by: str
) -> VendedCredentials | None:
    """Return the credentials that a REST catalog vends for a file: those of the catalog that named it, if it vends any.

    A catalog that declares the file's place opens it by its own properties, whatever others vend.
    """
    from icewright.adapters.catalogs.rest import RestCatalog  # noqa: PLC0415 - PyIceberg takes long to load

    rest = {name: catalog for name, catalog in catalogs.items() if isinstance(catalog, RestCatalog)}
    own = rest.pop(named_by, None)
    if own is not None and (granted := own.grant(path)) is not None:
        return granted
    vended = next((grant for catalog in rest.values() if (grant := catalog.grant(path)) is not None), None)
    declared = config.catalogs[named_by].allowed_locations if vended is not None and named_by in config.catalogs else ()
    return None if any(_SPELLING.place(path).within(_SPELLING.place(place)) for place in declared) else vended


def _pool(config: Config, pool: PoolConfig, max_concurrent: Callable[[], int]) -> SparkPool:
    """Return a pool that knows every catalog that uses it."""
    users: Sequence[CatalogConfig] = [c for c in config.catalogs.values() if c.pool == pool.name]
    conf: dict[str, str] = {}
    packages: set[str] = set()
    driver: dict[str, str] = {}
    for catalog in users:
        properties = _properties(catalog)
        conf |= properties.spark_conf()
        packages |= set(properties.spark_packages())
        for key, value in properties.driver_properties().items():
            if driver.setdefault(key, value) != value:
                raise ConfigError(
                    [f"catalogs.{catalog.name}.pool: pool {pool.name} has AWS keys of another catalog; give it its own"]
                )
    return SparkPool(
        name=pool.name,
        master=pool.master,
        conf=pool.conf,
        catalog_conf=conf,
        packages=tuple(sorted(packages)),
        java=config.java_home,
        cache=config.cache_folder,
        log=config.cache_folder / "logs" / f"spark-{pool.name}.log",
        max_concurrent=max_concurrent,
        remote=pool.remote,
        driver=driver,
    )
