"""Storage properties in the names of PyIceberg and of Iceberg's Java FileIOs, from one set of properties. Pure.

The properties are Iceberg's (`s3.*`, `client.*`, `gcs.*`, `adls.*`); where Java and Python differ, both names are
accepted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum

from icewright.core.paths import split

ICEBERG = "1.12.0"
ICEBERG_RUNTIME = f"org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:{ICEBERG}"


class ObjectStoreKind(Enum):
    """A kind of object store: the prefixes of its schemes and properties, its FileIO and its Maven package."""

    S3 = (("s3", "s3a", "s3n"), ("s3.", "client."), "org.apache.iceberg.aws.s3.S3FileIO", "iceberg-aws-bundle")
    GCS = (("gs",), ("gcs.",), "org.apache.iceberg.gcp.gcs.GCSFileIO", "iceberg-gcp-bundle")
    AZURE = (
        ("abfs", "abfss", "wasb", "wasbs"),
        ("adls.",),
        "org.apache.iceberg.azure.adlsv2.ADLSFileIO",
        "iceberg-azure-bundle",
    )

    def __init__(self, schemes: tuple[str, ...], prefixes: tuple[str, ...], file_io: str, package: str) -> None:
        self.schemes, self.prefixes, self.file_io = schemes, prefixes, file_io
        self.package = f"org.apache.iceberg:{package}:{ICEBERG}"


_ANY = "org.apache.iceberg.io.ResolvingFileIO"  # chooses by each path's scheme
# names that only Python or only Java has, by the name that the other has
_FOR_PYTHON = {
    "client.region": "s3.region",
    "adls.auth.shared-key.account.name": "adls.account-name",
    "adls.auth.shared-key.account.key": "adls.account-key",
}
_FOR_JAVA = {python: java for java, python in _FOR_PYTHON.items()} | {
    "s3.role-arn": "client.assume-role.arn",
    "client.access-key-id": "s3.access-key-id",
    "client.secret-access-key": "s3.secret-access-key",
    "client.session-token": "s3.session-token",
}


def stores(properties: Mapping[str, str], places: Iterable[str]) -> list[ObjectStoreKind]:
    """Return the object stores that the locations or the properties name."""
    schemes = {split(place).scheme for place in places}
    return [
        store
        for store in ObjectStoreKind
        if schemes & set(store.schemes) or any(key.startswith(store.prefixes) for key in properties)
    ]


def pyiceberg_properties(properties: Mapping[str, str]) -> dict[str, str]:
    """Return the properties with Java-only names translated to PyIceberg's."""
    translated = {_FOR_PYTHON[key]: value for key, value in properties.items() if key in _FOR_PYTHON}
    if "s3.path-style-access" in properties:
        translated["s3.force-virtual-addressing"] = _negated(properties["s3.path-style-access"])
    if sas := next((v for k, v in properties.items() if k.startswith("adls.sas-token.")), None):
        translated["adls.sas-token"] = sas
    return translated | dict(properties)


def spark_packages(properties: Mapping[str, str], places: Iterable[str]) -> tuple[str, ...]:
    """Return the Maven coordinates of the FileIOs."""
    return tuple(store.package for store in stores(properties, places))


def spark_settings(properties: Mapping[str, str], places: Iterable[str]) -> dict[str, str]:
    """Return the properties with Python-only names translated to Java's, and the FileIO for all locations."""
    places = list(places)
    object_stores = stores(properties, places)
    translated: dict[str, str] = {}
    if object_stores:
        alone = len(object_stores) == 1 and all(split(place).scheme in object_stores[0].schemes for place in places)
        translated["io-impl"] = object_stores[0].file_io if alone and places else _ANY
    translated |= {_FOR_JAVA[key]: value for key, value in properties.items() if key in _FOR_JAVA}
    if "s3.endpoint" in properties:  # servers other than Amazon's seldom have a host name for each bucket
        translated["s3.path-style-access"] = _negated(properties.get("s3.force-virtual-addressing", "false"))
    account = properties.get("adls.account-name")
    if account and "adls.sas-token" in properties:
        translated[f"adls.sas-token.{account}"] = properties["adls.sas-token"]
    if account and "adls.connection-string" in properties:
        translated[f"adls.connection-string.{account}"] = properties["adls.connection-string"]
    return translated | dict(properties)


def _negated(flag: str) -> str:
    return "false" if flag.strip().lower() == "true" else "true"
