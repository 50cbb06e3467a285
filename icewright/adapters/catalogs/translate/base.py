"""Properties that catalogs of all types have, and the settings with which PyIceberg and Spark open them. Pure."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from icewright.adapters.catalogs.translate import storage
from icewright.core.paths import is_location

_ADDRESSES = ("oauth2-server-uri", "s3.endpoint", "gcs.service.host", "adls.blob-storage-authority")


@dataclass(frozen=True, slots=True)
class CatalogProperties(ABC):
    """The parsed properties of a catalog."""

    name: str
    warehouse: str  # blank, or where new tables go: a location, or the name that a server has for one
    extra: Mapping[str, str] = field(repr=False)  # passed on to both, such as s3.endpoint
    locations: tuple[str, ...]  # of its tables, as far as they are known

    @property
    def places(self) -> tuple[str, ...]:
        """Return the locations of the tables' files, as far as the configuration names them."""
        return (*((self.warehouse,) if is_location(self.warehouse) else ()), *self.locations)

    @property
    @abstractmethod
    def catalog_hosts(self) -> dict[str, str]:
        """Return the hosts of the catalog's own addresses, by the property that names each; some may be blank."""

    @property
    def hosts(self) -> dict[str, str]:
        """Return the hosts of the catalog and its storage, by the property that names each."""
        named = {key: host_of(self.extra[key]) for key in _ADDRESSES if self.extra.get(key)}
        return {key: host for key, host in {**self.catalog_hosts, **named}.items() if host}

    @abstractmethod
    def pyiceberg_properties(self) -> dict[str, Any]:
        """Return what PyIceberg's `load_catalog` takes; a few values are no text, whatever its annotations say."""

    def spark_conf(self) -> dict[str, str]:
        """Return Spark's configuration of the catalog, under the same name."""
        prefix = f"spark.sql.catalog.{self.name}"
        settings = {
            "cache-enabled": "false",  # others commit too: a cached table is a stale plan
            "rest-metrics-reporting-enabled": "false",  # scans of ours are no queries, by which we would judge
            **self._spark_settings(),
            **self._spark_storage(),
        }
        return {prefix: "org.apache.iceberg.spark.SparkCatalog"} | {f"{prefix}.{k}": v for k, v in settings.items()}

    def spark_packages(self) -> tuple[str, ...]:
        """Return the Maven coordinates of Iceberg's runtime, and of what catalog and storage need beside it."""
        files = storage.spark_packages(self.extra, self.places)
        return tuple(dict.fromkeys((storage.ICEBERG_RUNTIME, *self._catalog_packages, *files)))

    def driver_properties(self) -> dict[str, str]:
        """Return system properties for Spark's driver that the Java clients read from nowhere else."""
        return {}

    @property
    def _catalog_packages(self) -> tuple[str, ...]:
        return ()

    @abstractmethod
    def _spark_settings(self) -> dict[str, str]:
        """Return the catalog as `spark.sql.catalog.NAME.*` has it, without storage."""

    def _spark_storage(self) -> dict[str, str]:
        return storage.spark_settings(self.extra, self.places)

    def _with_warehouse(self, settings: dict[str, Any]) -> dict[str, Any]:
        return settings | {"warehouse": self.warehouse} if self.warehouse else settings


def host_of(address: str) -> str:
    """Return the host of an address; blank where it has none."""
    return urlsplit(address).hostname or ""
