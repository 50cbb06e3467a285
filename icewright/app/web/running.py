"""Run the HTTP server in a thread of the process, and bound its open connections.

They are bounded in total, by client, and by the time to send the head of a request. uvicorn has none of these limits: a
thousand clients that connect and send nothing use up the open files of the process.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import resource
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.h11_impl import H11Protocol

from icewright.app.addresses import is_loopback
from icewright.app.web.middlewares import network_of
from icewright.core.errors import ConfigError

MAX_CONNECTIONS = 512
HEADER_SECONDS = 10.0  # from connecting, or the end of the last response, to a complete request head
_LOG_SECONDS = 60.0  # between two log lines about connections that cannot be accepted
_EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_log = logging.getLogger(__name__)
GRACE_SECONDS = 10  # for open requests when the server stops


def _default_total() -> int:
    """Return the connection limit, at most half of the files that the process may open."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MAX_CONNECTIONS if soft == resource.RLIM_INFINITY else max(16, min(MAX_CONNECTIONS, soft // 2))


@dataclass
class ConnectionLimits:
    """Open connections of one server; used by its event loop alone.

    At a limit a new connection replaces the one that has waited longest without a request, so that clients that send
    a request at once are served during a flood of silent ones. It is refused when all others have a request.
    """

    total: int = field(default_factory=_default_total)
    header_seconds: float = HEADER_SECONDS
    _open: dict[_Connection, str] = field(default_factory=dict)  # the network of each client
    _by_network: Counter[str] = field(default_factory=Counter)
    _waiting: dict[_Connection, None] = field(default_factory=dict)  # without a request, longest first

    @property
    def per_network(self) -> int:
        """Return the limit of one client: half of all, as a proxy is one client."""
        return self.total // 2

    def admit(self, connection: _Connection, address: str) -> bool:
        """Count a new connection, and return False when it must be closed."""
        network = network_of(address)
        if self._by_network[network] >= self.per_network:
            victim = next((other for other in self._waiting if self._open[other] == network), None)
        elif len(self._open) >= self.total:
            victim = next(iter(self._waiting), None)
        else:
            self._count(connection, network)
            return True
        if victim is None:
            return False
        self.release(victim)
        victim.transport.abort()
        self._count(connection, network)
        return True

    def release(self, connection: _Connection) -> None:
        """Forget a connection that is closed. May be repeated."""
        network = self._open.pop(connection, None)
        self._waiting.pop(connection, None)
        if network is not None:
            self._by_network[network] -= 1
            if not self._by_network[network]:
                del self._by_network[network]

    def begin_wait(self, connection: _Connection) -> None:
        """Note that a connection waits for the head of a request."""
        if connection in self._open:
            self._waiting[connection] = None

    def end_wait(self, connection: _Connection) -> None:
        """Note that a connection has a request. May be repeated."""
        self._waiting.pop(connection, None)

    def _count(self, connection: _Connection, network: str) -> None:
        self._open[connection] = network
        self._by_network[network] += 1


class _Connection(H11Protocol):
    """A connection that obeys the limits; subclasses of `protocol` bind them."""

    limits: ConnectionLimits
    _timer: asyncio.TimerHandle | None = None
    _seen_cycle: object = None  # the request whose head was complete last

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Admit the connection, and start the clock of its first request."""
        super().connection_made(transport)
        if self.limits.admit(self, self.client[0] if self.client else ""):
            self._await_head()
        else:
            transport.abort()

    def data_received(self, data: bytes) -> None:
        """Handle bytes, and stop the clock once they complete the head of a request."""
        super().data_received(data)
        if self.cycle is not self._seen_cycle:
            self._stop_clock()

    def on_response_complete(self) -> None:
        """Start the clock of the next request, unless it was sent ahead.

        uvicorn's keep-alive time-out ends with the first byte of the next request, however slowly the others follow.
        """
        super().on_response_complete()
        if self.cycle is self._seen_cycle:
            self._await_head()
        self._seen_cycle = self.cycle

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop counting the closed connection."""
        self._stop_clock()
        self.limits.release(self)
        super().connection_lost(exc)

    def _await_head(self) -> None:
        self._stop_clock()
        self.limits.begin_wait(self)
        self._timer = self.loop.call_later(self.limits.header_seconds, self.transport.abort)

    def _stop_clock(self) -> None:
        self._seen_cycle = self.cycle
        self.limits.end_wait(self)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def protocol(limits: ConnectionLimits) -> type[H11Protocol]:
    """Return uvicorn's protocol class for connections that obey the limits."""
    return type("LimitedConnection", (_Connection,), {"limits": limits})


@dataclass
class AcceptErrors:
    """An exception handler of the event loop that logs one line a minute while connections cannot be accepted.

    asyncio logs each failed accept with its traceback, hundreds of thousands of lines a minute under a flood.
    """

    clock: Callable[[], float] = time.monotonic
    _logged: float | None = None
    _suppressed: int = 0

    def __call__(self, loop: asyncio.AbstractEventLoop, context: Mapping[str, Any]) -> None:
        """Handle an exception that no task caught."""
        error = context.get("exception")
        if not isinstance(error, OSError) or error.errno not in _EXHAUSTED:
            loop.default_exception_handler(dict(context))
            return
        if self._logged is not None and self.clock() - self._logged < _LOG_SECONDS:
            self._suppressed += 1
            return
        _log.error(
            "cannot accept connections: %s; raise the limit of open files (%d more since the last line)",
            error.strerror,
            self._suppressed,
        )
        self._logged, self._suppressed = self.clock(), 0


@contextmanager
def serving(app: FastAPI, host: str, port: int, limits: ConnectionLimits | None = None) -> Iterator[int]:
    """Serve while the block runs, and yield the port; port 0 chooses a free one.

    Raises `ConfigError` when the address cannot be bound, or is open to others without authentication.
    """
    with _bound(host, port, open_to_others=_may_be_exposed(app)) as listener:
        # asyncio sets TCP_NODELAY only on its own listeners; without it the end of a response waits up to 40 ms
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        server = _Server(
            uvicorn.Config(
                app,
                http=protocol(limits or ConnectionLimits()),
                loop="asyncio",
                ws="none",
                lifespan="off",
                log_config=None,  # the process configures logging itself
                access_log=False,  # RequestLogMiddleware logs each request
                server_header=False,
                forwarded_allow_ips=["127.0.0.1", "::1"],  # trust X-Forwarded-For of a proxy on this machine
                timeout_graceful_shutdown=GRACE_SECONDS,
            )
        )
        thread = threading.Thread(target=server.run, args=([listener],), name="http", daemon=True)
        thread.start()
        try:
            yield int(listener.getsockname()[1])
        finally:
            app.state.closing.set()  # ends event streams at once
            server.should_exit = True
            thread.join(GRACE_SECONDS + 1)  # a request whose thread hangs cannot be cancelled


class _Server(uvicorn.Server):
    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        asyncio.get_running_loop().set_exception_handler(AcceptErrors())
        await super().serve(sockets)


def _may_be_exposed(app: FastAPI) -> bool:
    """Return whether the application authenticates callers, or serves nothing but authenticated events and probes."""
    if app.state.probes_only:
        return True
    return bool(app.state.access.required or (app.state.exposed and app.state.senders.configured))


def _bound(host: str, port: int, *, open_to_others: bool) -> socket.socket:
    try:
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        # `localhost` resolves to both families; clients of 127.0.0.1 must reach the server
        family, _, _, _, address = min(addresses, key=lambda info: info[0] != socket.AF_INET)
        if not open_to_others and not is_loopback(str(address[0])):
            raise ConfigError(
                [f"server.host: {host} is reached by others; set auth, or events.tokens alone for events"]
            )
        dual_stack = address[0] == "::" and socket.has_dualstack_ipv6()
        return socket.create_server((str(address[0]), port), family=family, dualstack_ipv6=dual_stack)
    except OSError as error:
        reason = (error.strerror or str(error)).partition(" (while")[0]  # Python repeats the address
        fault = f"server: {host}:{port} cannot be listened on: {reason}; choose another host or port"
        raise ConfigError([fault]) from error
