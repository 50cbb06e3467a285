"""S3 servers on loopback, each in a process of its own: moto's; s3proxy and versitygw keep objects as files."""

from __future__ import annotations

import fcntl
import http.client
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import pytest
from obstore.store import S3Store

from icewright.adapters.engines.spark.java import java_home
from tests.rest import CACHE
from tests.servers.loopback import free_port
from tests.servers.s3_server import BUCKET, objects, s3_served

VERSITYGW = "github.com/versity/versitygw/cmd/versitygw@v1.8.0"  # its sums are in Go's checksum database


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
    with s3_served(java_home(os.environ.get("JAVA_HOME"), CACHE), folder, CACHE / "s3", free_port()) as found:
        yield found


@contextmanager
def versitygw(folder: Path, *, versioned: bool = False) -> Iterator[Mapping[str, str]]:
    """The same of versitygw: the object `x` of the bucket is the file `objects/lake/x` in `folder`."""
    port = free_port()
    bucket, versions = objects(folder), folder / "versions"
    for each in (bucket, versions):
        each.mkdir(parents=True)
    command = [str(_gateway()), "--port", f"127.0.0.1:{port}", "--access", "key", "--secret", "hush"]
    command += ["--region", "us-east-1", "--quiet", "posix"]
    command += ["--versioning-dir", str(versions)] if versioned else []
    with _running([*command, str(bucket.parent)], port) as found:
        if versioned:
            import boto3  # which takes a while to import

            sign = {"aws_access_key_id": "key", "aws_secret_access_key": "hush", "region_name": "us-east-1"}
            client = boto3.client("s3", endpoint_url=found["s3.endpoint"], **sign)
            client.put_bucket_versioning(Bucket=BUCKET, VersioningConfiguration={"Status": "Enabled"})
        yield found


def _gateway() -> Path:
    """The program, built once by Go; a test that needs it is skipped where there is no Go."""
    known = shutil.which("versitygw")
    kept = Path(known) if known else CACHE / "versitygw" / VERSITYGW.rpartition("@")[2] / "versitygw"
    if not kept.is_file():
        go = shutil.which("go")
        if go is None:
            pytest.skip("versitygw is neither here nor can be built: there is no Go")
        kept.parent.mkdir(parents=True, exist_ok=True)
        with (kept.parent / "lock").open("w") as lock:  # minutes on both cores: another process waits for it
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not kept.is_file():
                subprocess.run([go, "install", VERSITYGW], check=True, env={**os.environ, "GOBIN": str(kept.parent)})
    return kept


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
    return _store(properties["s3.endpoint"])


@cache  # to make one takes longer than most of what is done with it
def _store(endpoint: str) -> S3Store:
    return S3Store(
        BUCKET,
        config={
            "endpoint": endpoint,
            "access_key_id": "key",
            "secret_access_key": "hush",
            "region": "us-east-1",
            "virtual_hosted_style_request": False,
        },
        client_options={"allow_http": True},
    )
