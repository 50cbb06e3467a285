"""How files are opened, said from one set of properties in the words of PyIceberg and of Iceberg's Java FileIOs. Pure.

The properties are Iceberg's (`s3.*`, `client.*`, `gcs.*`, `adls.*`); where Java and Python differ, both are taken.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum

from icewright.core.paths import split

ICEBERG = "1.12.0"
ICEBERG_RUNTIME = f"org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:{ICEBERG}"


class ObjectStoreKind(Enum):
    """A kind of object store: how its schemes and properties begin, its FileIO and the Maven package that has it."""

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
# a property that only Python or only Java knows, by the one that the other knows
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
    """Return the object stores that the places name, or that the properties are about."""
    schemes = {split(place).scheme for place in places}
    return [
        store
        for store in ObjectStoreKind
        if schemes & set(store.schemes) or any(key.startswith(store.prefixes) for key in properties)
    ]


def pyiceberg_properties(properties: Mapping[str, str]) -> dict[str, str]:
    """Return the properties with Python's words for those that only Java knows."""
    said = {_FOR_PYTHON[key]: value for key, value in properties.items() if key in _FOR_PYTHON}
    if "s3.path-style-access" in properties:
        said["s3.force-virtual-addressing"] = _not(properties["s3.path-style-access"])
    if sas := next((v for k, v in properties.items() if k.startswith("adls.sas-token.")), None):
        said["adls.sas-token"] = sas
    return said | dict(properties)


def spark_packages(properties: Mapping[str, str], places: Iterable[str]) -> tuple[str, ...]:
    """Maven coordinates of what opens the files."""
    return tuple(store.package for store in stores(properties, places))


def spark_settings(properties: Mapping[str, str], places: Iterable[str]) -> dict[str, str]:
    """Return the properties with Java's words for those that only Python knows, and the FileIO that fits all places."""
    places = list(places)
    found = stores(properties, places)
    said: dict[str, str] = {}
    if found:
        alone = len(found) == 1 and all(split(place).scheme in found[0].schemes for place in places)
        said["io-impl"] = found[0].file_io if alone and places else _ANY
    said |= {_FOR_JAVA[key]: value for key, value in properties.items() if key in _FOR_JAVA}
    if "s3.endpoint" in properties:  # servers other than Amazon's seldom have a host name for each bucket
        said["s3.path-style-access"] = _not(properties.get("s3.force-virtual-addressing", "false"))
    account = properties.get("adls.account-name")
    if account and "adls.sas-token" in properties:
        said[f"adls.sas-token.{account}"] = properties["adls.sas-token"]
    if account and "adls.connection-string" in properties:
        said[f"adls.connection-string.{account}"] = properties["adls.connection-string"]
    return said | dict(properties)


def _not(flag: str) -> str:
    return "false" if flag.strip().lower() == "true" else "true"
