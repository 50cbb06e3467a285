"""A server that tells policies as Apache Polaris's published API does, in pages, and nothing else."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

ENDPOINT = "GET /polaris/v1/{prefix}/applicable-policies"


@dataclass
class Polaris:
    """Its address, and what it says."""

    address: str
    policies: dict[tuple[str, str], list[dict[str, Any]]] = field(default_factory=dict)  # by namespace and table
    offers: bool = True
    status: int = 200
    circle: bool = False  # its pages lead back to the first
    seen: list[str] = field(default_factory=list)

    def set(self, namespace: str, table: str, *policies: tuple[str, object]) -> None:
        """The policies of a table: type and content."""
        self.policies[namespace, table] = [
            {
                "policy-type": kind,
                "inheritable": True,
                "name": f"p{number}",
                "content": content if isinstance(content, str) else json.dumps(content),
                "version": 0,
                "inherited": True,
                "namespace": ["policies"],
            }
            for number, (kind, content) in enumerate(policies)
        ]

    def answer(self, path: str) -> tuple[int, Any]:
        """What a GET is answered."""
        place, asked = urlsplit(path).path, {k: v[0] for k, v in parse_qs(urlsplit(path).query).items()}
        if place == "/v1/config":
            endpoints = {"endpoints": ["GET /v1/{prefix}/namespaces", ENDPOINT]} if self.offers else {}
            return 200, {"defaults": {}, "overrides": {"prefix": "wh"}, **endpoints}
        if place != "/polaris/v1/wh/applicable-policies":
            return 404, _error(404)
        if self.status != 200:
            return self.status, _error(self.status)
        found = self.policies.get((asked["namespace"], asked["target-name"]), [])
        at = int(asked.get("page-token", 0))
        more = {"next-page-token": str((at + 1) % len(found))} if self.circle or at + 1 < len(found) else {}
        return 200, {"applicable-policies": found[at : at + 1], **more}  # one a page


def _error(code: int) -> dict[str, Any]:
    return {"error": {"message": "made up", "type": "Made", "code": code}}


@contextmanager
def polaris() -> Iterator[Polaris]:
    """The server on loopback."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True  # else each reply waits 40 ms for the acknowledgement of its headers

        def log_message(self, *_: object) -> None:
            """Nothing."""

        def do_GET(self) -> None:
            server.seen.append(self.path)
            status, said = server.answer(self.path)
            body = json.dumps(said).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    listener = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    listener.daemon_threads = True
    server = Polaris(f"http://127.0.0.1:{listener.server_port}")
    thread = threading.Thread(target=listener.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        listener.shutdown()
        listener.server_close()
        thread.join()
