"""Run the HTTP server in a thread of the process."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn
from fastapi import FastAPI

from icewright.app.addresses import is_loopback
from icewright.app.web.connections import AcceptErrors, ConnectionLimits, protocol
from icewright.core.errors import ConfigError

GRACE_SECONDS = 10  # for open requests when the server stops


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
            thread.join()


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
        reason = error.strerror or str(error)
        raise ConfigError([f"server: {host}:{port} cannot be listened on: {reason}; correct host or port"]) from error
