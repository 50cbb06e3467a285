"""Catalogs of type `nessie`: one branch of a Nessie server, by its own API and by its Iceberg REST side. Pure.

`uri` is either of `http://host:19120/api/v2` and `http://host:19120/iceberg`; the other is derived from `uri`, or given
by `api`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, urlsplit

from icewright.adapters.catalogs.translate import storage
from icewright.adapters.catalogs.translate.base import CatalogProperties, host_of
from icewright.core.errors import ConfigError
from icewright.core.paths import is_location

_NATIVE, _REST = "/api/v2", "/iceberg"
_CLIENTS = ("native", "rest")
_OWN_PROPERTIES = frozenset({"uri", "api", "ref", "warehouse", "token", "client"})


@dataclass(frozen=True, slots=True)
class NessieCatalogProperties(CatalogProperties):
    """A catalog of type `nessie`."""

    api: str
    iceberg: str
    ref: str
    client: str  # by which Spark commits: "native" or "rest"
    token: str | None = field(repr=False)

    @property
    def catalog_hosts(self) -> dict[str, str]:
        """Return the hosts of Nessie's own API and of its REST side."""
        return {"uri": host_of(self.api), "iceberg": host_of(self.iceberg)}

    def pyiceberg_properties(self) -> dict[str, Any]:
        """Return what `pyiceberg.catalog.rest.RestCatalog` takes: PyIceberg supports the REST side only."""
        token = {"token": self.token} if self.token else {}
        return {"type": "rest", "uri": self._rest_uri, **storage.pyiceberg_properties(self.extra), **token}

    def _spark_settings(self) -> dict[str, str]:
        """Return the settings of a client: the native one keeps a table's snapshots, the REST side only the newest."""
        if self.client == "rest":
            return {"type": "rest", "uri": self._rest_uri, **({"token": self.token} if self.token else {})}
        bearer = {"authentication.type": "BEARER", "authentication.token": self.token} if self.token else {}
        return {
            "catalog-impl": "org.apache.iceberg.nessie.NessieCatalog",
            "uri": self.api,
            "ref": self.ref,
            "warehouse": self.warehouse,
            "client-api-version": "2",
            **bearer,
        }

    @property
    def _rest_uri(self) -> str:
        warehouse = "" if is_location(self.warehouse) or not self.warehouse else f"|{self.warehouse}"
        return f"{self.iceberg}/{quote(self.ref + warehouse, safe='')}"


def nessie_catalog(name: str, properties: Mapping[str, str], locations: Sequence[str] = ()) -> NessieCatalogProperties:
    """Parse the properties. Raises `ConfigError` with every fault."""
    path, faults = f"catalogs.{name}.properties", []
    uri = properties.get("uri", "").rstrip("/")
    address, own = urlsplit(uri), urlsplit(properties.get("api", ""))
    if not uri:
        faults.append(f"{path}.uri: missing; give the server's address, such as http://host:19120/api/v2")
    elif address.scheme not in ("http", "https") or not address.hostname:
        faults.append(f"{path}.uri: not the address of a Nessie server; write http://host:19120/api/v2")
    elif "@" in address.netloc or address.query or address.fragment:
        faults.append(f"{path}.uri: holds a user, password or query; give a token as the property token")
    elif not uri.endswith((_NATIVE, _REST)) and not properties.get("api"):
        faults.append(f"{path}.uri: end it with {_NATIVE} or {_REST}, or give the address of Nessie's API as api")
    if "@" in own.netloc or own.query or own.fragment:
        faults.append(f"{path}.api: holds a user, password or query; give a token as the property token")
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
    return NessieCatalogProperties(name, warehouse, extra, tuple(locations), api, iceberg, ref, client, token)
