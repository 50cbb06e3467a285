"""Catalogs of type `rest`: whatever speaks Iceberg's REST protocol. Pure.

Properties have Iceberg's names (`uri`, `warehouse`, `credential`, `token`, `oauth2-server-uri`, `scope`, `header.*`,
`rest.auth.*`, `rest.sigv4-enabled`); where Java and Python differ, they are said in either's words.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from icewright.adapters.catalogs.translate import storage
from icewright.adapters.catalogs.translate.base import CatalogProperties, host_of
from icewright.core.errors import ConfigError

DELEGATION = "header.X-Iceberg-Access-Delegation"
_VENDED = "vended-credentials"
_OWN_CREDENTIALS = ("s3.access-key-id", "client.access-key-id", "gcs.oauth2.token", "adls.account-key")
_AUTH = "rest.auth.type"
_AUTH_TYPES = ("none", "basic", "oauth2", "sigv4")
_SIGV4_RETRIES = "rest.sigv4.max-retries"  # of requests that end without a reply: ten, after each other, by default
# as for requests of ours; Java's client waits for ever for a reply by default
_JAVA_TIME_OUTS = {"rest.client.connection-timeout-ms": "10000", "rest.client.socket-timeout-ms": "90000"}
_USER, _PASSWORD = "rest.auth.basic.username", "rest.auth.basic.password"
_OWN_PROPERTIES = frozenset({"uri", "warehouse", _AUTH, _USER, _PASSWORD, "ssl.cabundle"})


@dataclass(frozen=True, slots=True)
class RestCatalogProperties(CatalogProperties):
    """A catalog of type `rest`; its warehouse is a name or a location, as the server wants it, or blank."""

    uri: str
    auth: str  # one of none, basic, oauth2, sigv4
    secrets: Mapping[str, str] = field(repr=False)

    @property
    def asks_for_credentials(self) -> bool:
        """Return whether the server is asked for credentials per table."""
        return bool(self.extra.get(DELEGATION))

    @property
    def catalog_hosts(self) -> dict[str, str]:
        """Return the server's host by the setting that names it."""
        return {"uri": host_of(self.uri)}

    def pyiceberg_properties(self) -> dict[str, Any]:
        """Return the properties that `pyiceberg.catalog.rest.RestCatalog` takes."""
        settings = self._with_warehouse({"type": "rest", "uri": self.uri, **storage.pyiceberg_properties(self.extra)})
        match self.auth:
            case "none":
                settings["auth"] = {"type": "noop"}
            case "basic":
                basic = {"username": self.secrets[_USER], "password": self.secrets[_PASSWORD]}
                settings["auth"] = {"type": "basic", "basic": basic}
            case "sigv4":
                settings = {_SIGV4_RETRIES: "0"} | settings | {"rest.sigv4-enabled": "true", "auth": {"type": "noop"}}
        if "ssl.cabundle" in self.secrets:
            settings["ssl"] = {"cabundle": self.secrets["ssl.cabundle"]}
        return settings

    @property
    def _catalog_packages(self) -> tuple[str, ...]:
        """Return S3's package for requests that AWS signs, and where nobody knows the storage."""
        unknown = not storage.stores(self.extra, self.places) and not self.places
        return (storage.ObjectStoreKind.S3.package,) if unknown or self.auth == "sigv4" else ()

    def _spark_settings(self) -> dict[str, str]:
        settings = self._with_warehouse({"type": "rest", "uri": self.uri, **_JAVA_TIME_OUTS})
        if self.auth != "oauth2":
            settings[_AUTH] = self.auth
        return settings | {k: v for k, v in self.secrets.items() if k in (_USER, _PASSWORD)}


def rest_catalog(name: str, properties: Mapping[str, str], locations: Sequence[str] = ()) -> RestCatalogProperties:
    """Parse the properties. Raises `ConfigError` with every fault."""
    path = f"catalogs.{name}.properties"
    faults = []
    uri = properties.get("uri", "").rstrip("/")
    address = urlsplit(uri)
    if not uri:
        faults.append(f"{path}.uri: missing; give the server's address, such as https://host/api/catalog")
    elif address.scheme not in ("http", "https") or not address.hostname:
        faults.append(f"{path}.uri: not the address of a REST catalog; write http://host:port/path or https://...")
    elif "@" in address.netloc:
        faults.append(f"{path}.uri: holds a user or password; give them as rest.auth.basic.username and .password")
    elif address.query or address.fragment:
        faults.append(f"{path}.uri: holds a query; give the address alone, and a token as the property token")
    auth = properties.get(_AUTH) or _implied(properties)
    if auth not in _AUTH_TYPES:
        faults.append(f"{path}.{_AUTH}: {auth} is not supported; use {', '.join(_AUTH_TYPES)}")
    if auth == "basic" and not (properties.get(_USER) and properties.get(_PASSWORD)):
        faults.append(f"{path}.{_USER}: missing, or {_PASSWORD}; {_AUTH} basic needs both")
    if auth == "oauth2" and not (properties.get("credential") or properties.get("token")):
        faults.append(f"{path}.credential: missing; give credential as id:secret, or a token")
    if faults:
        raise ConfigError(faults)
    extra = {k: v for k, v in properties.items() if k not in _OWN_PROPERTIES}
    if not any(properties.get(key) for key in _OWN_CREDENTIALS):
        extra.setdefault(DELEGATION, _VENDED)
    secrets = {k: properties[k] for k in (_USER, _PASSWORD, "ssl.cabundle") if properties.get(k)}
    return RestCatalogProperties(name, properties.get("warehouse", ""), extra, tuple(locations), uri, auth, secrets)


def _implied(properties: Mapping[str, str]) -> str:
    if properties.get("rest.sigv4-enabled", "").lower() == "true":
        return "sigv4"
    return "oauth2" if properties.get("credential") or properties.get("token") else "none"
