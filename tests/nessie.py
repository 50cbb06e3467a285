"""A Nessie server on loopback with its tables in moto's S3; the jar is fetched once and kept."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.rest import CACHE
from tests.s3 import s3_server
from tests.servers.nessie_server import nessie_served
from tests.servers.s3_server import BUCKET

_SETTINGS = """\
nessie.catalog.default-warehouse=warehouse
nessie.catalog.warehouses.warehouse.location=s3://{bucket}/nessie/
nessie.catalog.service.s3.default-options.endpoint={endpoint}/
nessie.catalog.service.s3.default-options.path-style-access=true
nessie.catalog.service.s3.default-options.region=us-east-1
nessie.catalog.service.s3.default-options.access-key=urn:nessie-secret:quarkus:my-secrets.s3
nessie.catalog.service.s3.default-options.request-signing-enabled=false
my-secrets.s3.name=key
my-secrets.s3.secret=hush
"""


@dataclass(frozen=True)
class NessieServer:
    """Where the server is, and the properties of its S3."""

    api: str  # .../api/v2
    iceberg: str  # .../iceberg
    s3: Mapping[str, str]
    warehouse: str


@contextmanager
def nessie_server() -> Iterator[NessieServer]:
    """A server of its own, empty, gone afterwards."""
    with s3_server() as s3, tempfile.TemporaryDirectory(prefix="icewright-nessie-") as folder:
        settings = _SETTINGS.format(endpoint=s3["s3.endpoint"], bucket=BUCKET)
        with nessie_served(Path(folder), CACHE / "nessie", settings=settings) as root:
            yield NessieServer(f"{root}/api/v2", f"{root}/iceberg", s3, f"s3://{BUCKET}/nessie/")
