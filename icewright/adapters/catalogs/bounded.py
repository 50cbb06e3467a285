"""PyIceberg's own catalogs, whose requests end; its clients wait for ever for a server that never answers."""

from __future__ import annotations

from collections.abc import Mapping

from pyiceberg.catalog import Catalog, load_catalog

from icewright.adapters.catalogs.rest.client import BoundedRestCatalog
from icewright.adapters.postgresql import give_up_lost_servers


def load_bounded_catalog(name: str, properties: Mapping[str, str]) -> Catalog:
    """Return PyIceberg's catalog of these properties."""
    match properties["type"]:
        case "rest":
            return BoundedRestCatalog(name, **properties)
        case "sql":
            return _sql_catalog(name, properties)
        case "hive":
            return _hive_catalog(name, properties)
        case _:  # clients that limit their waits themselves
            return load_catalog(name, **properties)


def _sql_catalog(name: str, properties: Mapping[str, str]) -> Catalog:
    from pyiceberg.catalog.sql import SqlCatalog  # noqa: PLC0415 - takes long to load

    class BoundedSqlCatalog(SqlCatalog):
        def _init_catalog(self) -> None:
            give_up_lost_servers(self.engine)
            super()._init_catalog()

    return BoundedSqlCatalog(name, **properties)


def _hive_catalog(name: str, properties: Mapping[str, str]) -> Catalog:
    from pyiceberg.catalog.hive import HiveCatalog  # noqa: PLC0415 - an extra

    from icewright.adapters.catalogs.hive_client import bounded_connection  # noqa: PLC0415

    catalog = HiveCatalog(name, **properties)
    catalog._client = bounded_connection(properties["uri"].split(",")[0], properties)  # noqa: SLF001 - nothing is sent
    return catalog
