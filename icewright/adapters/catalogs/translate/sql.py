"""Catalogs of type `sql`: Iceberg's JDBC catalog, which PyIceberg calls SQL catalog. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError

from icewright.adapters.catalogs.translate import storage
from icewright.adapters.catalogs.translate.base import CatalogProperties
from icewright.core.addresses import address_fault, postgres_time_limits
from icewright.core.errors import ConfigError

LOCK_WAIT_SECONDS = 60  # SQLite: how long a client waits for another's commit (PyIceberg's 5 s are too short)

DRIVERS = {"sqlite": "org.xerial:sqlite-jdbc:3.54.1.0", "postgresql": "org.postgresql:postgresql:42.7.14"}
_OWN_PROPERTIES = frozenset({"uri", "warehouse", "jdbc.user", "jdbc.password"})


@dataclass(frozen=True, slots=True)
class SqlCatalogProperties(CatalogProperties):
    """A catalog of type `sql`."""

    url: URL

    @property
    def places(self) -> tuple[str, ...]:
        """Return the locations of the tables' files; a warehouse may be a relative path."""
        return (self.warehouse, *self.locations)

    @property
    def catalog_hosts(self) -> dict[str, str]:
        """Return the database's host; blank for a file."""
        return {"uri": self.url.host or ""}

    def pyiceberg_properties(self) -> dict[str, Any]:
        """Return the properties that `pyiceberg.catalog.sql.SqlCatalog` takes."""
        uri = self.url.render_as_string(hide_password=False)
        return {"type": "sql", "uri": uri, "warehouse": self.warehouse, **storage.pyiceberg_properties(self.extra)}

    @property
    def _catalog_packages(self) -> tuple[str, ...]:
        return (DRIVERS[self.url.get_backend_name()],)

    def _spark_settings(self) -> dict[str, str]:
        """Return the settings of Java's JDBC catalog, whose name is part of the rows' keys."""
        url = self.url
        settings = {
            "catalog-impl": "org.apache.iceberg.jdbc.JdbcCatalog",
            "jdbc.schema-version": "V1",
            "warehouse": self.warehouse,
        }
        if url.get_backend_name() == "sqlite":
            return settings | {"uri": f"jdbc:sqlite:{url.database}?busy_timeout={LOCK_WAIT_SECONDS * 1000}"}
        port = f":{url.port}" if url.port else ""
        settings["uri"] = f"jdbc:postgresql://{url.host or 'localhost'}{port}/{url.database}"
        login = {"jdbc.user": url.username, "jdbc.password": url.password}
        return settings | {name: str(value) for name, value in login.items() if value}


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
    return SqlCatalogProperties(name, properties["warehouse"], extra, tuple(locations), url)
