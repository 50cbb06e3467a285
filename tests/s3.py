"""An S3 server on loopback (moto's), in a process of its own."""

from __future__ import annotations

import http.client
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from obstore.store import S3Store

BUCKET = "lake"


@contextmanager
def s3_server() -> Iterator[Mapping[str, str]]:
    """The properties by which a catalog reaches it; it has the bucket `lake`."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
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
    """Make the bucket as soon as the server answers."""
    for _ in range(200):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
        try:
            connection.request("PUT", f"/{BUCKET}")
            if connection.getresponse().status == http.HTTPStatus.OK:
                return
        except OSError:
            time.sleep(0.1)  # until the server listens: nothing tells when
        finally:
            connection.close()
    raise AssertionError("the S3 server does not answer")


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
