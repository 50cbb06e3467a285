"""Catalogs of type `hive`: a Hive metastore of version 2.3 or 3, spoken to by Thrift. Pure.

`uri` is `thrift://host:9083`, or several with commas, of which the first that answers is taken. Locks are taken unless
`engine.hive.lock-enabled` is false, or a table says so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from urllib.parse import SplitResult, urlsplit

from icewright.adapters.catalogs.translate import storage
from icewright.core.errors import ConfigError
from icewright.core.paths import is_location

LOCK_ENABLED = "engine.hive.lock-enabled"  # Iceberg's property of tables; here for all that do not say
LOCK_TIMEOUT = "iceberg.hive.lock-timeout-ms"
KERBEROS = "hive.kerberos-authentication"
_LOCK_TIMEOUT_MS = 180_000  # Iceberg's default
_FLAGS = ("true", "false")
_OWN_PROPERTIES = frozenset({"uri", "warehouse", LOCK_ENABLED, LOCK_TIMEOUT})


@dataclass(frozen=True, slots=True)
class HiveCatalogProperties:
    """A catalog of type `hive`."""

    name: str
    uris: tuple[str, ...]
    warehouse: str  # a location; blank: each database has the location of its tables
    locks: bool
    lock_timeout_seconds: float
    extra: Mapping[str, str] = field(repr=False)
    locations: tuple[str, ...] = ()

    @property
    def uri(self) -> str:
        """Return the addresses of all metastores, separated by commas."""
        return ",".join(self.uris)

    @property
    def hosts(self) -> dict[str, str]:
        """Return the host of each address, by a name for it."""
        named = (("uri" if n == 0 else f"uri[{n}]", urlsplit(uri).hostname or "") for n, uri in enumerate(self.uris))
        return dict(named)

    @property
    def places(self) -> tuple[str, ...]:
        """Return the locations of the tables' files, as far as the configuration names them."""
        return (*((self.warehouse,) if self.warehouse else ()), *self.locations)


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
    return HiveCatalogProperties(name, uris, warehouse, locks, int(timeout) / 1000, extra, tuple(locations))


def _is_thrift(uri: str) -> bool:
    try:
        address: SplitResult = urlsplit(uri)
        return address.scheme == "thrift" and bool(address.hostname) and address.port is not None
    except ValueError:  # a port that is none
        return False


def pyiceberg_properties(catalog: HiveCatalogProperties) -> dict[str, str]:
    """Return the properties that `pyiceberg.catalog.hive.HiveCatalog` takes."""
    warehouse = {"warehouse": catalog.warehouse} if catalog.warehouse else {}
    return {"type": "hive", "uri": catalog.uri, **warehouse, **storage.pyiceberg_properties(catalog.extra)}


def spark_packages(catalog: HiveCatalogProperties) -> tuple[str, ...]:
    """Return the Maven coordinates of Iceberg's runtime and the storage; Spark ships the metastore's client."""
    return (storage.ICEBERG_RUNTIME, *storage.spark_packages(catalog.extra, catalog.places))


def spark_settings(catalog: HiveCatalogProperties) -> dict[str, str]:
    """Return the catalog as `spark.sql.catalog.NAME.*` has it."""
    settings = {
        "type": "hive",
        "uri": catalog.uri,
        "cache-enabled": "false",  # others commit too: a cached table is a stale plan
        f"hadoop.{LOCK_TIMEOUT}": str(int(catalog.lock_timeout_seconds * 1000)),
        **storage.spark_settings(catalog.extra, catalog.places),
    }
    if not catalog.locks:
        settings[f"hadoop.iceberg.{LOCK_ENABLED}"] = "false"
    if catalog.warehouse:
        settings["warehouse"] = catalog.warehouse
    return settings
