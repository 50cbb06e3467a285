"""Catalogs of type `rest`: whatever speaks Iceberg's REST protocol. Pure.

Properties have Iceberg's names (`uri`, `warehouse`, `credential`, `token`, `oauth2-server-uri`, `scope`, `header.*`,
`rest.auth.*`, `rest.sigv4-enabled`); where Java and Python differ, they are said in either's words.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from icewright.adapters.catalogs.translate import storage
from icewright.core.errors import ConfigError
from icewright.core.paths import is_location

DELEGATION = "header.X-Iceberg-Access-Delegation"
_VENDED = "vended-credentials"
_OWN_CREDENTIALS = ("s3.access-key-id", "client.access-key-id", "gcs.oauth2.token", "adls.account-key")
_AUTH = "rest.auth.type"
_AUTH_TYPES = ("none", "basic", "oauth2", "sigv4")
_USER, _PASSWORD = "rest.auth.basic.username", "rest.auth.basic.password"
_OWN_PROPERTIES = frozenset({"uri", "warehouse", _AUTH, _USER, _PASSWORD, "ssl.cabundle"})


@dataclass(frozen=True, slots=True)
class RestCatalogProperties:
    """A catalog of type `rest`."""

    name: str
    uri: str
    warehouse: str  # a name or a location, as the server wants it; may be blank
    auth: str  # one of none, basic, oauth2, sigv4
    extra: Mapping[str, str] = field(repr=False)
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)
    locations: tuple[str, ...] = ()

    @property
    def places(self) -> tuple[str, ...]:
        """Return the locations of the tables' files, as far as the configuration names them."""
        return (*((self.warehouse,) if is_location(self.warehouse) else ()), *self.locations)

    @property
    def vended(self) -> bool:
        """Return whether the server is asked for credentials per table."""
        return bool(self.extra.get(DELEGATION))


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
    elif address.username or address.password:
        faults.append(f"{path}.uri: holds a user or password; give them as rest.auth.basic.username and .password")
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
    return RestCatalogProperties(name, uri, properties.get("warehouse", ""), auth, extra, secrets, tuple(locations))


def _implied(properties: Mapping[str, str]) -> str:
    if properties.get("rest.sigv4-enabled", "").lower() == "true":
        return "sigv4"
    return "oauth2" if properties.get("credential") or properties.get("token") else "none"


def pyiceberg_properties(catalog: RestCatalogProperties) -> dict[str, str]:
    """Return the properties of `pyiceberg.catalog.rest.RestCatalog`.

    A few values are mappings despite its annotations.
    """
    settings: dict[str, object] = {"type": "rest", "uri": catalog.uri, **storage.pyiceberg_properties(catalog.extra)}
    if catalog.warehouse:
        settings["warehouse"] = catalog.warehouse
    match catalog.auth:
        case "none":
            settings["auth"] = {"type": "noop"}
        case "basic":
            basic = {"username": catalog.secrets[_USER], "password": catalog.secrets[_PASSWORD]}
            settings["auth"] = {"type": "basic", "basic": basic}
        case "sigv4":
            settings |= {"rest.sigv4-enabled": "true", "auth": {"type": "noop"}}
    if "ssl.cabundle" in catalog.secrets:
        settings["ssl"] = {"cabundle": catalog.secrets["ssl.cabundle"]}
    return settings  # type: ignore[return-value]


def spark_packages(catalog: RestCatalogProperties) -> tuple[str, ...]:
    """Return the Maven coordinates of Iceberg's runtime and the storage; S3 is assumed if the storage is unknown."""
    packages = storage.spark_packages(catalog.extra, catalog.places)
    storage_unknown = not packages and not catalog.places
    return (
        storage.ICEBERG_RUNTIME,
        *packages,
        *((storage.ObjectStoreKind.S3.package,) if storage_unknown or catalog.auth == "sigv4" else ()),
    )


def spark_settings(catalog: RestCatalogProperties) -> dict[str, str]:
    """Return the catalog as `spark.sql.catalog.NAME.*` has it."""
    settings = {
        "type": "rest",
        "uri": catalog.uri,
        "cache-enabled": "false",  # others commit too: a cached table is a stale plan
        **storage.spark_settings(catalog.extra, catalog.places),
    }
    if catalog.warehouse:
        settings["warehouse"] = catalog.warehouse
    if catalog.auth != "oauth2":
        settings[_AUTH] = catalog.auth
    return settings | {k: v for k, v in catalog.secrets.items() if k in (_USER, _PASSWORD)}
