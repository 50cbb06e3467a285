"""Catalogs of type `sql`: Iceberg's JDBC catalog, which PyIceberg calls SQL catalog. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError

from icewright.adapters.catalogs.translate import storage
from icewright.core.addresses import address_fault, postgres_time_limits
from icewright.core.errors import ConfigError

LOCK_WAIT_SECONDS = 60  # SQLite: how long a client waits for another's commit (PyIceberg's 5 s are too short)

DRIVERS = {"sqlite": "org.xerial:sqlite-jdbc:3.54.1.0", "postgresql": "org.postgresql:postgresql:42.7.14"}
_OWN_PROPERTIES = frozenset({"uri", "warehouse", "jdbc.user", "jdbc.password"})


@dataclass(frozen=True, slots=True)
class SqlCatalogProperties:
    """A catalog of type `sql`."""

    name: str
    url: URL
    warehouse: str
    extra: Mapping[str, str] = field(repr=False)  # passed on to both, such as s3.endpoint
    locations: tuple[str, ...] = ()

    @property
    def places(self) -> tuple[str, ...]:
        """Return the locations of the tables' files."""
        return (self.warehouse, *self.locations)


def sql_catalog(name: str, properties: Mapping[str, str], locations: Sequence[str] = ()) -> SqlCatalogProperties:
    """Parse the properties. Raises `ConfigError` with every fault."""
    faults = [
        f"catalogs.{name}.properties.{key}: missing; {meaning}"
        for key, meaning in {
            "uri": "give a database URL such as sqlite:////data/catalog.db or postgresql+psycopg://user@host/db",
            "warehouse": "give the location where new tables go, such as s3://lake/ or file:///data/warehouse",
        }.items()
        if not properties.get(key)
    ]
    if faults:
        raise ConfigError(faults)
    where = f"catalogs.{name}.properties.uri"
    if fault := address_fault(properties["uri"]):
        raise ConfigError([f"{where}: {fault}"])
    try:
        url = make_url(properties["uri"])
    except (ArgumentError, ValueError):
        raise ConfigError([f"{where}: not a database URL; write sqlite:////path or postgresql+psycopg://..."]) from None
    kind = url.get_backend_name()
    if kind not in DRIVERS:
        raise ConfigError([f"{where}: {kind} is not supported; use sqlite or postgresql"])
    if kind == "sqlite":
        if not url.database or url.database == ":memory:":
            raise ConfigError([f"{where}: name a file, as in sqlite:////data/catalog.db (Spark opens it too)"])
        url = url.update_query_dict({"timeout": str(LOCK_WAIT_SECONDS)})
    else:
        limits = {option: str(value) for option, value in postgres_time_limits(url.query).items()}
        url = url.set(drivername="postgresql+psycopg").update_query_dict(limits)
    extra = {k: v for k, v in properties.items() if k not in _OWN_PROPERTIES}
    return SqlCatalogProperties(name, url, properties["warehouse"], extra, tuple(locations))


def pyiceberg_properties(catalog: SqlCatalogProperties) -> dict[str, str]:
    """Return the properties that `pyiceberg.catalog.sql.SqlCatalog` takes."""
    uri = catalog.url.render_as_string(hide_password=False)
    files = storage.pyiceberg_properties(catalog.extra)
    return {"type": "sql", "uri": uri, "warehouse": catalog.warehouse, **files}


def spark_packages(catalog: SqlCatalogProperties) -> tuple[str, ...]:
    """Return the Maven coordinates of Iceberg's runtime, the database's driver and the storage."""
    driver = DRIVERS[catalog.url.get_backend_name()]
    return (storage.ICEBERG_RUNTIME, driver, *storage.spark_packages(catalog.extra, catalog.places))


def spark_settings(catalog: SqlCatalogProperties) -> dict[str, str]:
    """Return the catalog as `spark.sql.catalog.NAME.*` has it; the name is part of the rows' keys."""
    url = catalog.url
    settings = {
        "catalog-impl": "org.apache.iceberg.jdbc.JdbcCatalog",
        "jdbc.schema-version": "V1",
        "warehouse": catalog.warehouse,
        "cache-enabled": "false",  # others commit too: a cached table is a stale plan
        **storage.spark_settings(catalog.extra, catalog.places),
    }
    if url.get_backend_name() == "sqlite":
        settings["uri"] = f"jdbc:sqlite:{url.database}?busy_timeout={LOCK_WAIT_SECONDS * 1000}"
    else:
        port = f":{url.port}" if url.port else ""
        settings["uri"] = f"jdbc:postgresql://{url.host or 'localhost'}{port}/{url.database}"
        if url.username:
            settings["jdbc.user"] = url.username
        if url.password:
            settings["jdbc.password"] = str(url.password)
    return settings
