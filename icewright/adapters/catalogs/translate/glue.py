"""Catalogs of type `glue`: the Data Catalog of AWS Glue, of one account and region. Pure.

Properties have Iceberg's names (`warehouse`, `client.region`, `glue.id`, `glue.endpoint`, `glue.skip-archive`) and
PyIceberg's (`glue.region`, `glue.access-key-id`, `glue.profile-name`, `glue.max-retries` ...). Keys are optional:
without them both clients look where AWS's clients always look.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from icewright.adapters.catalogs.translate import storage
from icewright.adapters.catalogs.translate.base import CatalogProperties, host_of
from icewright.core.errors import ConfigError
from icewright.core.paths import is_location

_OWN_PROPERTIES = frozenset({"warehouse"})
_RETRIES = "glue.max-retries"
_SECRETS = ("access-key-id", "secret-access-key")
_FLAGS = ("true", "false")
# properties that Java's client has too
_JAVA = frozenset(
    f"glue.{key}"
    for key in ("id", "account-id", "endpoint", "skip-archive", "skip-name-validation", "lakeformation-enabled")
)
# where AWS's client for Java looks first, by the properties that say the same
_SYSTEM = {
    "aws.accessKeyId": "access-key-id",
    "aws.secretAccessKey": "secret-access-key",
    "aws.sessionToken": "session-token",
    "aws.profile": "profile-name",
}


@dataclass(frozen=True, slots=True)
class GlueCatalogProperties(CatalogProperties):
    """A catalog of type `glue`; with a blank warehouse each database has the location of its tables."""

    region: str  # blank: taken from the environment

    @property
    def host(self) -> str:
        """Return Glue's host; partly unknown without a region."""
        if endpoint := self.extra.get("glue.endpoint"):
            return host_of(endpoint)
        ending = "amazonaws.com.cn" if self.region.startswith("cn-") else "amazonaws.com"
        return f"glue.{self.region}.{ending}" if self.region else f"glue.{ending}"

    @property
    def skip_archive(self) -> bool:
        """Return whether Glue archives no old versions of entries, of which it keeps a limited number."""
        return self.extra.get("glue.skip-archive", "true").lower() == "true"

    @property
    def catalog_hosts(self) -> dict[str, str]:
        """Return Glue's host by the setting that names it."""
        return {"glue.endpoint" if "glue.endpoint" in self.extra else "client.region": self.host}

    def pyiceberg_properties(self) -> dict[str, Any]:
        """Return the properties that `pyiceberg.catalog.glue.GlueCatalog` takes."""
        retries = {_RETRIES: int(self.extra[_RETRIES])} if _RETRIES in self.extra else {}
        return self._with_warehouse({"type": "glue", **storage.pyiceberg_properties(self.extra), **retries})

    def driver_properties(self) -> dict[str, str]:
        """Return the keys as system properties of Spark's driver: Java's Glue client ignores catalog properties."""
        properties = {
            name: self.extra.get(f"glue.{key}") or self.extra.get(f"client.{key}") for name, key in _SYSTEM.items()
        }
        return {name: value for name, value in properties.items() if value}

    @property
    def _catalog_packages(self) -> tuple[str, ...]:
        return (storage.ObjectStoreKind.S3.package,)  # which has AWS's other clients too

    def _spark_settings(self) -> dict[str, str]:
        return self._with_warehouse({"catalog-impl": "org.apache.iceberg.aws.glue.GlueCatalog"})

    def _spark_storage(self) -> dict[str, str]:
        """Return the settings without the properties that PyIceberg alone knows, and with the region of Glue."""
        shared = {key: value for key, value in self.extra.items() if not key.startswith("glue.") or key in _JAVA}
        region = {"client.region": self.region} if self.region else {}
        return storage.spark_settings(shared, self.places) | region


def glue_catalog(name: str, properties: Mapping[str, str], locations: Sequence[str] = ()) -> GlueCatalogProperties:
    """Parse the properties. Raises `ConfigError` with every fault."""
    path, faults = f"catalogs.{name}.properties", []
    warehouse = properties.get("warehouse", "")
    if warehouse and not is_location(warehouse):
        faults.append(f"{path}.warehouse: not a location; write one such as s3://lake/, or leave it out")
    endpoint = urlsplit(properties.get("glue.endpoint", ""))
    if properties.get("glue.endpoint") and (endpoint.scheme not in ("http", "https") or not endpoint.hostname):
        faults.append(f"{path}.glue.endpoint: not an address; write https://host, or leave it out for AWS's own")
    if properties.get("glue.skip-archive", "true").lower() not in _FLAGS:
        faults.append(f"{path}.glue.skip-archive: write true or false")
    if not properties.get(_RETRIES, "0").isdecimal():
        faults.append(f"{path}.{_RETRIES}: write a whole number, such as 10")
    for prefix in ("glue", "client"):
        present = [bool(properties.get(f"{prefix}.{key}")) for key in _SECRETS]
        if any(present) and not all(present):
            missing = f"{prefix}.{_SECRETS[present.index(False)]}"
            faults.append(f"{path}.{missing}: missing; give both keys, or none to use what AWS's clients find")
    if faults:
        raise ConfigError(faults)
    extra = {key: value for key, value in properties.items() if key not in _OWN_PROPERTIES}
    region = next((properties[k] for k in ("glue.region", "client.region") if properties.get(k)), "")
    return GlueCatalogProperties(name, warehouse, extra, tuple(locations), region)
