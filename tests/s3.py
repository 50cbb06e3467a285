"""S3 servers on loopback, each in a process of its own: moto's, and s3proxy, which keeps objects as files."""

from __future__ import annotations

import http.client
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from obstore.store import S3Store

from icewright.adapters.engines.spark.java import java_home
from icewright.app.demo.rest_server import fetched
from tests.postgres import free_port
from tests.rest import CACHE

BUCKET = "lake"


S3PROXY = (
    "org/gaul/s3proxy/4.1.0/s3proxy-4.1.0-jar-with-dependencies.jar",
    "a4d025969aaf796616ed4b1e2491d87d455ce84bb28cb9db086b2e6aaa68b48d",
)


@contextmanager
def s3_server(*, versioned: bool = False, glue: bool = False) -> Iterator[Mapping[str, str]]:
    """Moto's: the properties by which a catalog reaches it; it has the bucket `lake`, which may keep old versions.

    With `glue` it serves Glue too, at the same address.
    """
    port = free_port()
    module = ["-m", "moto.server"] if not glue else [str(Path(__file__).with_name("glue_server.py"))]
    command = [sys.executable, *module, "-H", "127.0.0.1", "-p", str(port)]
    with _running(command, port) as found:
        if versioned:
            content = b"<VersioningConfiguration><Status>Enabled</Status></VersioningConfiguration>"
            _put(port, f"/{BUCKET}?versioning", content)
        yield found


@contextmanager
def s3proxy(folder: Path) -> Iterator[Mapping[str, str]]:
    """The same of s3proxy, whose objects lie in `folder`."""
    port = free_port()
    (folder / "objects" / BUCKET).mkdir(parents=True)
    said = {
        "s3proxy.endpoint": f"http://127.0.0.1:{port}",
        "s3proxy.authorization": "aws-v2-or-v4",
        "s3proxy.identity": "key",
        "s3proxy.credential": "hush",
        "jclouds.provider": "filesystem-nio2",
        "jclouds.filesystem.basedir": str(folder / "objects"),
    }
    (folder / "s3proxy.conf").write_text("".join(f"{key}={value}\n" for key, value in said.items()))
    java = java_home(os.environ.get("JAVA_HOME"), CACHE) / "bin" / "java"
    jar = fetched(CACHE / "rest", *S3PROXY)
    command = [str(java), "-Xmx384m", "-jar", str(jar), "--properties", str(folder / "s3proxy.conf")]
    with _running(command, port) as found:
        yield found


@contextmanager
def _running(command: list[str], port: int) -> Iterator[Mapping[str, str]]:
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
        try:
            _made(port)
            yield {
                "s3.endpoint": f"http://127.0.0.1:{port}",
                "s3.access-key-id": "key",
                "s3.secret-access-key": "hush",
                "s3.region": "us-east-1",
            }
        finally:
            server.terminate()


def _made(port: int) -> None:
    """Make the bucket as soon as the server answers; where it takes signed requests only, it is there already."""
    for _ in range(300):
        try:
            if _put(port, f"/{BUCKET}") in (http.HTTPStatus.OK, http.HTTPStatus.FORBIDDEN):
                return
        except (OSError, http.client.HTTPException):
            time.sleep(0.1)  # until the server listens: nothing tells when
    raise AssertionError("the S3 server does not answer")


def _put(port: int, path: str, content: bytes = b"") -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("PUT", path, content)
        return connection.getresponse().status
    finally:
        connection.close()


def store(properties: Mapping[str, str]) -> S3Store:
    """The bucket, for what the tests themselves do in it."""
    return S3Store(
        BUCKET,
        config={
            "endpoint": properties["s3.endpoint"],
            "access_key_id": "key",
            "secret_access_key": "hush",
            "region": "us-east-1",
            "virtual_hosted_style_request": False,
        },
        client_options={"allow_http": True},
    )
