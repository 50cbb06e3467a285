"""How the Arrow kernel meets a store that asks to slow down."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count

import pytest

from icewright.adapters.engines.arrow.opening import Opener

CONTENT = b"an object"
REFUSED = 4  # requests in a row; Arrow's own patience ends with three


class Busy(BaseHTTPRequestHandler):
    """An S3 server with one object, which refuses the first requests of each kind."""

    refused: dict[str, Iterator[int]]

    def _answer(self, method: str) -> None:
        busy = next(self.refused[method]) <= REFUSED
        self.send_response(503 if busy else 200)
        self.send_header("Content-Length", "0" if busy else str(len(CONTENT)))
        self.end_headers()
        if method == "GET" and not busy:
            self.wfile.write(CONTENT)

    def do_HEAD(self) -> None:
        """Look at the object."""
        self._answer("HEAD")

    def do_GET(self) -> None:
        """Read the object."""
        self._answer("GET")

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def endpoint() -> Iterator[str]:
    """The address of the server."""
    handler = type("Handler", (Busy,), {"refused": {"HEAD": count(1), "GET": count(1)}})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


@pytest.mark.external  # Arrow waits between its requests
def test_a_store_that_asks_to_slow_down_is_asked_again(endpoint: str) -> None:
    """Its file is not called unreadable."""
    access = {"s3.access-key-id": "key", "s3.secret-access-key": "hush", "s3.region": "us-east-1"}
    with Opener({"s3.endpoint": endpoint, **access}).reading("s3://lake/x") as source:
        assert source.read() == CONTENT
