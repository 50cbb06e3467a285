"""Catalogs of type `nessie`: one branch of a Nessie server, by its own API and by its Iceberg REST side. Pure.

`uri` is either of `http://host:19120/api/v2` and `http://host:19120/iceberg`; the other is derived from `uri`, or given
by `api`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from urllib.parse import quote, urlsplit

from icewright.adapters.catalogs.translate import storage
from icewright.core.errors import ConfigError
from icewright.core.paths import is_location

_NATIVE, _REST = "/api/v2", "/iceberg"
_CLIENTS = ("native", "rest")
_OWN_PROPERTIES = frozenset({"uri", "api", "ref", "warehouse", "token", "client"})


@dataclass(frozen=True, slots=True)
class NessieCatalogProperties:
    """A catalog of type `nessie`."""

    name: str
    api: str
    iceberg: str
    ref: str
    warehouse: str
    client: str  # by which Spark commits: "native" or "rest"
    extra: Mapping[str, str] = field(repr=False)
    token: str | None = field(default=None, repr=False)
    locations: tuple[str, ...] = ()

    @property
    def places(self) -> tuple[str, ...]:
        """Return the locations of the tables' files."""
        return (*((self.warehouse,) if is_location(self.warehouse) else ()), *self.locations)


def nessie_catalog(name: str, properties: Mapping[str, str], locations: Sequence[str] = ()) -> NessieCatalogProperties:
    """Parse the properties. Raises `ConfigError` with every fault."""
    path, faults = f"catalogs.{name}.properties", []
    uri = properties.get("uri", "").rstrip("/")
    address = urlsplit(uri)
    if not uri:
        faults.append(f"{path}.uri: missing; give the server's address, such as http://host:19120/api/v2")
    elif address.scheme not in ("http", "https") or not address.hostname:
        faults.append(f"{path}.uri: not the address of a Nessie server; write http://host:19120/api/v2")
    elif address.username or address.password:
        faults.append(f"{path}.uri: holds a user or password; give a token as the property token")
    elif not uri.endswith((_NATIVE, _REST)) and not properties.get("api"):
        faults.append(f"{path}.uri: end it with {_NATIVE} or {_REST}, or give the address of Nessie's API as api")
    client = properties.get("client", "native")
    if client not in _CLIENTS:
        faults.append(f"{path}.client: {client} is not supported; use {' or '.join(_CLIENTS)}")
    warehouse = properties.get("warehouse", "")
    if client == "native" and not is_location(warehouse):
        faults.append(
            f"{path}.warehouse: give the location where new tables go, such as s3://lake/, or use client rest"
        )
    if faults:
        raise ConfigError(faults)
    root = uri.removesuffix(_NATIVE).removesuffix(_REST)
    api = properties.get("api", "").rstrip("/") or root + _NATIVE
    iceberg = uri if uri.endswith(_REST) else root + _REST
    extra = {k: v for k, v in properties.items() if k not in _OWN_PROPERTIES}
    token, ref = properties.get("token") or None, properties.get("ref") or "main"
    return NessieCatalogProperties(name, api, iceberg, ref, warehouse, client, extra, token, tuple(locations))


def pyiceberg_properties(catalog: NessieCatalogProperties) -> dict[str, str]:
    """Return the properties of `pyiceberg.catalog.rest.RestCatalog`: PyIceberg supports the REST side only."""
    settings = {"type": "rest", "uri": _rest_uri(catalog), **storage.pyiceberg_properties(catalog.extra)}
    return settings | ({"token": catalog.token} if catalog.token else {})


def spark_packages(catalog: NessieCatalogProperties) -> tuple[str, ...]:
    """Return the Maven coordinates of Iceberg's runtime, which includes Nessie's client, and of the storage."""
    return (storage.ICEBERG_RUNTIME, *storage.spark_packages(catalog.extra, catalog.places))


def spark_settings(catalog: NessieCatalogProperties) -> dict[str, str]:
    """Return the catalog as `spark.sql.catalog.NAME.*` has it.

    The native client keeps the snapshots of a table's metadata file; the REST side leaves only the newest.
    """
    files = storage.spark_settings(catalog.extra, catalog.places)
    if catalog.client == "rest":
        token = {"token": catalog.token} if catalog.token else {}
        return {"type": "rest", "uri": _rest_uri(catalog), "cache-enabled": "false", **token, **files}
    bearer = {"authentication.type": "BEARER", "authentication.token": catalog.token} if catalog.token else {}
    return {
        "catalog-impl": "org.apache.iceberg.nessie.NessieCatalog",
        "uri": catalog.api,
        "ref": catalog.ref,
        "warehouse": catalog.warehouse,
        "client-api-version": "2",
        "cache-enabled": "false",  # others commit too: a cached table is a stale plan
        **bearer,
        **files,
    }


def _rest_uri(catalog: NessieCatalogProperties) -> str:
    warehouse = "" if is_location(catalog.warehouse) or not catalog.warehouse else f"|{catalog.warehouse}"
    return f"{catalog.iceberg}/{quote(catalog.ref + warehouse, safe='')}"
