"""Catalogs of type `hive`: a Hive metastore of version 2.3 to 4, spoken to by Thrift. Pure.

`uri` is `thrift://host:9083`, or several with commas, of which the first that answers is taken. Locks are taken unless
`engine.hive.lock-enabled` is false, or a table says so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import SplitResult, urlsplit

from icewright.adapters.catalogs.translate import storage
from icewright.adapters.catalogs.translate.base import CatalogProperties, host_of
from icewright.core.errors import ConfigError
from icewright.core.paths import is_location

LOCK_ENABLED = "engine.hive.lock-enabled"  # Iceberg's property of tables; here for all that do not say
LOCK_TIMEOUT = "iceberg.hive.lock-timeout-ms"
KERBEROS = "hive.kerberos-authentication"
_LOCK_TIMEOUT_MS = 180_000  # Iceberg's default
_FLAGS = ("true", "false")
_OWN_PROPERTIES = frozenset({"uri", "warehouse", LOCK_ENABLED, LOCK_TIMEOUT})


@dataclass(frozen=True, slots=True)
class HiveCatalogProperties(CatalogProperties):
    """A catalog of type `hive`; with a blank warehouse each database has the location of its tables."""

    uris: tuple[str, ...]
    locks: bool
    lock_timeout_seconds: float

    @property
    def uri(self) -> str:
        """Return the addresses of all metastores, separated by commas."""
        return ",".join(self.uris)

    @property
    def catalog_hosts(self) -> dict[str, str]:
        """Return the host of each address, by a name for it."""
        return {"uri" if n == 0 else f"uri[{n}]": host_of(uri) for n, uri in enumerate(self.uris)}

    def pyiceberg_properties(self) -> dict[str, Any]:
        """Return the properties that `pyiceberg.catalog.hive.HiveCatalog` takes."""
        return self._with_warehouse({"type": "hive", "uri": self.uri, **storage.pyiceberg_properties(self.extra)})

    def _spark_settings(self) -> dict[str, str]:
        settings = {
            "type": "hive",
            "uri": self.uri,
            f"hadoop.{LOCK_TIMEOUT}": str(int(self.lock_timeout_seconds * 1000)),
        }
        if not self.locks:
            settings[f"hadoop.iceberg.{LOCK_ENABLED}"] = "false"
        return self._with_warehouse(settings)


def hive_catalog(name: str, properties: Mapping[str, str], locations: Sequence[str] = ()) -> HiveCatalogProperties:
    """Parse the properties. Raises `ConfigError` with every fault."""
    path, faults = f"catalogs.{name}.properties", []
    uris = tuple(uri.strip().rstrip("/") for uri in properties.get("uri", "").split(",") if uri.strip())
    if not uris:
        faults.append(f"{path}.uri: missing; give the metastore's address, such as thrift://host:9083")
    elif not all(_is_thrift(uri) for uri in uris):
        faults.append(f"{path}.uri: not the address of a metastore; write thrift://host:9083, several with commas")
    warehouse = properties.get("warehouse", "")
    if warehouse and not is_location(warehouse):
        faults.append(f"{path}.warehouse: not a location; write one such as s3://lake/, or leave it out")
    faults += [
        f"{path}.{key}: write true or false"
        for key in (LOCK_ENABLED, KERBEROS)
        if properties.get(key, "true").lower() not in _FLAGS
    ]
    timeout = properties.get(LOCK_TIMEOUT, str(_LOCK_TIMEOUT_MS))
    if not timeout.isdecimal():
        faults.append(f"{path}.{LOCK_TIMEOUT}: write a whole number of milliseconds, such as {_LOCK_TIMEOUT_MS}")
    if faults:
        raise ConfigError(faults)
    locks = properties.get(LOCK_ENABLED, "true").lower() == "true"
    extra = {key: value for key, value in properties.items() if key not in _OWN_PROPERTIES}
    return HiveCatalogProperties(name, warehouse, extra, tuple(locations), uris, locks, int(timeout) / 1000)


def _is_thrift(uri: str) -> bool:
    try:
        address: SplitResult = urlsplit(uri)
        return address.scheme == "thrift" and bool(address.hostname) and address.port is not None
    except ValueError:  # a port that is none
        return False
