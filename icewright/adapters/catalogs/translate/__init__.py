"""Translate one catalog configuration into the properties of PyIceberg and of Spark, one module per type. Pure.

`icewright.adapters.files.objects` translates the same properties for obstore.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import assert_never
from urllib.parse import urlsplit

from icewright.adapters.catalogs.translate import glue, hive, nessie, rest, sql
from icewright.adapters.catalogs.translate.glue import GlueCatalogProperties, glue_catalog
from icewright.adapters.catalogs.translate.hive import HiveCatalogProperties, hive_catalog
from icewright.adapters.catalogs.translate.nessie import NessieCatalogProperties, nessie_catalog
from icewright.adapters.catalogs.translate.rest import RestCatalogProperties, rest_catalog
from icewright.adapters.catalogs.translate.sql import SqlCatalogProperties, sql_catalog
from icewright.core.errors import ConfigError

CatalogProperties = (
    SqlCatalogProperties
    | RestCatalogProperties
    | NessieCatalogProperties
    | HiveCatalogProperties
    | GlueCatalogProperties
)
_ADDRESSES = ("oauth2-server-uri", "s3.endpoint", "gcs.service.host", "adls.blob-storage-authority")


def catalog_properties(
    kind: str, name: str, properties: Mapping[str, str], locations: Sequence[str]
) -> CatalogProperties:
    """Parse the properties of a catalog of any type; `locations` are its tables' locations as far as they are known.

    Raises `ConfigError` with all faults at once.
    """
    match kind:
        case "sql":
            return sql_catalog(name, properties, locations)
        case "rest":
            return rest_catalog(name, properties, locations)
        case "nessie":
            return nessie_catalog(name, properties, locations)
        case "hive":
            return hive_catalog(name, properties, locations)
        case "glue":
            return glue_catalog(name, properties, locations)
    raise ConfigError([f"catalogs.{name}.type: {kind} is not supported; use sql, rest, nessie, hive or glue"])


def hosts(catalog: CatalogProperties) -> dict[str, str]:
    """Return the hosts of the catalog and its storage, by the property that names each."""
    match catalog:
        case SqlCatalogProperties():
            endpoints = {"uri": catalog.url.host or ""}
        case RestCatalogProperties():
            endpoints = {"uri": _host(catalog.uri)}
        case NessieCatalogProperties():
            endpoints = {"uri": _host(catalog.api), "iceberg": _host(catalog.iceberg)}
        case HiveCatalogProperties():
            endpoints = catalog.hosts
        case GlueCatalogProperties():
            endpoints = {"glue.endpoint" if "glue.endpoint" in catalog.extra else "client.region": catalog.host}
        case _:
            assert_never(catalog)
    named = {key: _host(catalog.extra[key]) for key in _ADDRESSES if catalog.extra.get(key)}
    return {key: host for key, host in {**endpoints, **named}.items() if host}


def _host(address: str) -> str:
    return urlsplit(address).hostname or ""


def pyiceberg_properties(catalog: CatalogProperties) -> dict[str, str]:
    """Return the properties that PyIceberg's `load_catalog` takes."""
    match catalog:
        case SqlCatalogProperties():
            return sql.pyiceberg_properties(catalog)
        case RestCatalogProperties():
            return rest.pyiceberg_properties(catalog)
        case NessieCatalogProperties():
            return nessie.pyiceberg_properties(catalog)
        case HiveCatalogProperties():
            return hive.pyiceberg_properties(catalog)
        case GlueCatalogProperties():
            return glue.pyiceberg_properties(catalog)
        case _:
            assert_never(catalog)


def spark_packages(catalog: CatalogProperties) -> tuple[str, ...]:
    """Return the Maven coordinates that Spark needs for this catalog."""
    match catalog:
        case SqlCatalogProperties():
            return sql.spark_packages(catalog)
        case RestCatalogProperties():
            return rest.spark_packages(catalog)
        case NessieCatalogProperties():
            return nessie.spark_packages(catalog)
        case HiveCatalogProperties():
            return hive.spark_packages(catalog)
        case GlueCatalogProperties():
            return glue.spark_packages(catalog)
        case _:
            assert_never(catalog)


def spark_conf(catalog: CatalogProperties) -> dict[str, str]:
    """Return Spark's configuration of the catalog, under the same name."""
    match catalog:
        case SqlCatalogProperties():
            settings = sql.spark_settings(catalog)
        case RestCatalogProperties():
            settings = rest.spark_settings(catalog)
        case NessieCatalogProperties():
            settings = nessie.spark_settings(catalog)
        case HiveCatalogProperties():
            settings = hive.spark_settings(catalog)
        case GlueCatalogProperties():
            settings = glue.spark_settings(catalog)
        case _:
            assert_never(catalog)
    prefix = f"spark.sql.catalog.{catalog.name}"
    return {prefix: "org.apache.iceberg.spark.SparkCatalog"} | {f"{prefix}.{k}": v for k, v in settings.items()}


def driver_properties(catalog: CatalogProperties) -> dict[str, str]:
    """Return system properties for Spark's driver that the Java clients read from nowhere else."""
    return glue.driver_properties(catalog) if isinstance(catalog, GlueCatalogProperties) else {}
