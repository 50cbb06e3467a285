"""Catalogs of type `glue`: the Data Catalog of AWS Glue, of one account and region. Pure.

Properties have Iceberg's names (`warehouse`, `client.region`, `glue.id`, `glue.endpoint`, `glue.skip-archive`) and
PyIceberg's (`glue.region`, `glue.access-key-id`, `glue.profile-name`, `glue.max-retries` ...). Keys are optional:
without them both clients look where AWS's clients always look.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from icewright.adapters.catalogs.translate import storage
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
class GlueCatalogProperties:
    """A catalog of type `glue`."""

    name: str
    warehouse: str  # a location; blank: each database has the location of its tables
    region: str  # blank: taken from the environment
    extra: Mapping[str, str] = field(repr=False)
    locations: tuple[str, ...] = ()

    @property
    def places(self) -> tuple[str, ...]:
        """Return the locations of the tables' files, as far as the configuration names them."""
        return (*((self.warehouse,) if self.warehouse else ()), *self.locations)

    @property
    def host(self) -> str:
        """Return Glue's host; partly unknown without a region."""
        if endpoint := self.extra.get("glue.endpoint"):
            return urlsplit(endpoint).hostname or ""
        ending = "amazonaws.com.cn" if self.region.startswith("cn-") else "amazonaws.com"
        return f"glue.{self.region}.{ending}" if self.region else f"glue.{ending}"

    @property
    def skip_archive(self) -> bool:
        """Return whether Glue archives no old versions of entries, of which it keeps a limited number."""
        return self.extra.get("glue.skip-archive", "true").lower() == "true"


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
    return GlueCatalogProperties(name, warehouse, region, extra, tuple(locations))


def pyiceberg_properties(catalog: GlueCatalogProperties) -> dict[str, str]:
    """Return what `pyiceberg.catalog.glue.GlueCatalog` takes; one value is a number, whatever its annotations say."""
    settings: dict[str, object] = {"type": "glue", **storage.pyiceberg_properties(catalog.extra)}
    if catalog.warehouse:
        settings["warehouse"] = catalog.warehouse
    if _RETRIES in catalog.extra:
        settings[_RETRIES] = int(catalog.extra[_RETRIES])
    return settings  # type: ignore[return-value]


def spark_packages(catalog: GlueCatalogProperties) -> tuple[str, ...]:
    """Return the Maven coordinates of Iceberg's runtime, AWS's clients and other storage."""
    return (
        storage.ICEBERG_RUNTIME,
        *dict.fromkeys((storage.ObjectStoreKind.S3.package, *storage.spark_packages(catalog.extra, catalog.places))),
    )


def spark_settings(catalog: GlueCatalogProperties) -> dict[str, str]:
    """Return the catalog as `spark.sql.catalog.NAME.*` has it; for keys and profiles see `driver_properties`."""
    shared = {key: value for key, value in catalog.extra.items() if not key.startswith("glue.") or key in _JAVA}
    settings = {
        "catalog-impl": "org.apache.iceberg.aws.glue.GlueCatalog",
        "cache-enabled": "false",  # others commit too: a cached table is a stale plan
        **storage.spark_settings(shared, catalog.places),
    }
    if catalog.warehouse:
        settings["warehouse"] = catalog.warehouse
    if catalog.region:
        settings["client.region"] = catalog.region
    return settings


def driver_properties(catalog: GlueCatalogProperties) -> dict[str, str]:
    """Return the keys as system properties of Spark's driver: Java's Glue client ignores catalog properties."""
    system_properties = {
        name: catalog.extra.get(f"glue.{key}") or catalog.extra.get(f"client.{key}") or ""
        for name, key in _SYSTEM.items()
    }
    return {name: value for name, value in system_properties.items() if value}
