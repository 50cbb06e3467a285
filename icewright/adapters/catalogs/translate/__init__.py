"""Translate one catalog configuration into the properties of PyIceberg and of Spark, one module per type. Pure.

`icewright.adapters.files.object_stores` translates the same properties for obstore.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from icewright.adapters.catalogs.translate.base import CatalogProperties
from icewright.adapters.catalogs.translate.glue import GlueCatalogProperties, glue_catalog
from icewright.adapters.catalogs.translate.hive import HiveCatalogProperties, hive_catalog
from icewright.adapters.catalogs.translate.nessie import NessieCatalogProperties, nessie_catalog
from icewright.adapters.catalogs.translate.rest import RestCatalogProperties, rest_catalog
from icewright.adapters.catalogs.translate.sql import SqlCatalogProperties, sql_catalog
from icewright.core.errors import ConfigError

_PARSERS = {
    "sql": sql_catalog,
    "rest": rest_catalog,
    "nessie": nessie_catalog,
    "hive": hive_catalog,
    "glue": glue_catalog,
}


def catalog_properties(
    kind: str, name: str, properties: Mapping[str, str], locations: Sequence[str]
) -> CatalogProperties:
    """Parse the properties of a catalog of any type; `locations` are its tables' locations as far as they are known.

    Raises `ConfigError` with all faults at once.
    """
    if kind not in _PARSERS:
        raise ConfigError([f"catalogs.{name}.type: {kind} is not supported; use sql, rest, nessie, hive or glue"])
    return _PARSERS[kind](name, properties, locations)
