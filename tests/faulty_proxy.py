"""A proxy on loopback between a client and an HTTP server, which does to chosen requests what weather does."""

from __future__ import annotations

import http.client
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

Reply = tuple[int, Mapping[str, str], bytes]


@dataclass
class Fault:
    """What happens to the next `times` requests that match: `METHOD path` (and action), as a regular expression.

    `forward` first lets the server do its work. Then the answer is dropped, replaced, or what `act` makes of it.
    """

    match: str
    times: int = 1
    forward: bool = False
    status: int | None = None  # None: the connection is cut
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b'{"error": {"message": "made up", "type": "Fault", "code": 0}}'
    act: Callable[[], None] = lambda: None


@dataclass
class Proxy:
    """Its address, what it saw, and the faults to come."""

    address: str
    faults: list[Fault] = field(default_factory=list)
    seen: list[tuple[str, int]] = field(default_factory=list)  # `METHOD path?query` and the status that was answered
    guard: Callable[[str, Mapping[str, str]], Fault | None] = lambda _line, _headers: (
        None
    )  # of every request; headers in lower case
    lock: threading.Lock = field(default_factory=threading.Lock)

    def count(self, pattern: str) -> int:
        """How many requests match."""
        return sum(re.search(pattern, line) is not None for line, _ in self.seen)

    def statuses(self, pattern: str) -> list[int]:
        """What those that match were answered; 0 is nothing."""
        return [status for line, status in self.seen if re.search(pattern, line)]

    def take(self, line: str) -> Fault | None:
        """The fault of a request, once less to come."""
        with self.lock:
            for fault in self.faults:
                if fault.times and re.search(fault.match, line):
                    fault.times -= 1
                    return fault
        return None


@contextmanager
def faulty_proxy(server: str) -> Iterator[Proxy]:
    """A proxy before the server at this address."""
    target = urlsplit(server)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True  # else each reply waits 40 ms for the acknowledgement of its headers

        def log_message(self, *_: object) -> None:
            """Nothing."""

        def _forwarded(self, body: bytes) -> Reply:
            connection = http.client.HTTPConnection(str(target.hostname), target.port, timeout=60)
            kept = {k: v for k, v in self.headers.items() if k.lower() not in ("host", "connection", "accept-encoding")}
            connection.request(self.command, self.path, body or None, kept)
            answer = connection.getresponse()
            reply = (answer.status, dict(answer.getheaders()), answer.read())
            connection.close()
            return reply

        def _serve(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            line = f"{self.command} {self.path}"
            if action := self.headers.get("X-Amz-Target"):  # AWS's protocols have one path for all
                line += action.rpartition(".")[2]
            fault = proxy.guard(line, {k.lower(): v for k, v in self.headers.items()}) or proxy.take(line)
            reply: Reply | None = None
            if fault is None or fault.forward:
                reply = self._forwarded(body)
            if fault is not None:
                fault.act()
                reply = (fault.status, fault.headers, fault.body) if fault.status is not None else None
            proxy.seen.append((line, reply[0] if reply else 0))
            if reply is None:
                self.close_connection = True
                return
            status, headers, content = reply
            self.send_response(status)
            for name, value in headers.items():
                if name.lower() not in ("content-length", "transfer-encoding", "connection", "server", "date"):
                    self.send_header(name, value)
            length = headers.get("Content-Length") if self.command == "HEAD" else None
            self.send_header("Content-Length", length or str(len(content)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(content)

        do_GET = do_POST = do_PUT = do_DELETE = do_HEAD = _serve  # noqa: N815 - names that http.server calls

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        allow_reuse_address = True

    listener = Server(("127.0.0.1", 0), Handler)
    proxy = Proxy(f"http://127.0.0.1:{listener.server_address[1]}")
    threading.Thread(target=listener.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    try:
        yield proxy
    finally:
        listener.shutdown()
        listener.server_close()
