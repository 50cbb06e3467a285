"""A REST catalog of one table on S3 that lends credentials which soon end, and the gate before S3 that sees to it."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import requests

from tests.faulty_proxy import Fault, Proxy, faulty_proxy

EARLY = 180  # seconds before their end in which Icewright renews credentials
FRESH = 1.5  # seconds until Icewright renews them
GOOD = 4.0  # seconds until the gate does not take them any more
EXPIRED = b"<?xml version='1.0'?><Error><Code>ExpiredToken</Code><Message>The token has expired.</Message></Error>"
_XML = {"Content-Type": "application/xml"}
_MODIFIED, _LONG_AGO = re.compile(rb"<LastModified>\d{4}"), b"<LastModified>2020"


@dataclass
class Lender:
    """What was lent, and when; and what was refused."""

    gate: Proxy
    s3: str
    address: str = ""
    table: dict[str, Any] = field(default_factory=dict)  # as loadTable answers it
    lent: dict[str, float] = field(default_factory=dict)  # tokens, by the time of their making
    refused: list[str] = field(default_factory=list)
    slow: float = 0.0  # seconds that each request to S3 takes
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def lend(self) -> dict[str, str]:
        """Fresh credentials."""
        with self._lock:
            token = f"token-{len(self.lent)}"
            self.lent[token] = time.time()
        return {
            "s3.access-key-id": f"key-{token}",
            "s3.secret-access-key": "hush",
            "s3.session-token": token,
            "s3.session-token-expires-at-ms": str(int((time.time() + EARLY + FRESH) * 1000)),
            "s3.endpoint": self.gate.address,
            "s3.region": "us-east-1",
        }

    def guard(self, line: str, headers: Mapping[str, str]) -> Fault | None:
        """No request without a token that was lent and has not ended; whatever is listed looks old."""
        time.sleep(self.slow)
        token = headers.get("x-amz-security-token", "")
        if time.time() - self.lent.get(token, 0) >= GOOD:
            self.refused.append(line)
            return Fault(".", status=403, body=EXPIRED, headers=_XML)
        if "list-type=2" not in line:
            return None
        listed = requests.get(f"{self.s3}{line.removeprefix('GET ')}", timeout=30)
        return Fault(".", status=200, body=_MODIFIED.sub(_LONG_AGO, listed.content), headers=_XML)

    def answer(self, path: str) -> tuple[int, Any]:
        """What a GET is answered."""
        place = path.partition("?")[0]
        if place == "/v1/config":
            return 200, {"defaults": {}, "overrides": {}}
        if place == "/v1/namespaces":
            return 200, {"namespaces": [] if "parent" in path else [["sales"]]}
        if place == "/v1/namespaces/sales/tables":
            return 200, {"identifiers": [{"namespace": ["sales"], "name": "orders"}]}
        if place == "/v1/namespaces/sales/tables/orders":
            return 200, {**self.table, "config": self.lend()}
        return 404, {"error": {"message": "not here", "type": "Made", "code": 404}}


@contextmanager
def lender(s3: str) -> Iterator[Lender]:
    """The catalog, and the gate before the S3 server at this address."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True  # else each reply waits 40 ms for the acknowledgement of its headers

        def log_message(self, *_: object) -> None:
            """Nothing."""

        def do_GET(self) -> None:
            status, said = made.answer(self.path)
            body = json.dumps(said).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    with faulty_proxy(s3) as gate:
        listener = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        listener.daemon_threads = True
        made = Lender(gate, s3, f"http://127.0.0.1:{listener.server_port}")
        gate.guard = made.guard
        thread = threading.Thread(target=listener.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        try:
            yield made
        finally:
            listener.shutdown()
            listener.server_close()
            thread.join()
