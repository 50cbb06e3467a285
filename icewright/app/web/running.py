"""The server in a thread of the process that it serves."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn
from fastapi import FastAPI

from icewright.app.addresses import is_loopback
from icewright.core.errors import ConfigError

GRACE_SECONDS = 10  # for requests that are being answered when the server is to stop


@contextmanager
def serving(app: FastAPI, host: str, port: int) -> Iterator[int]:
    """Serve while the block runs; yields the port, which is a free one for 0.

    Raises `ConfigError` when the address cannot be had, or would let others in who cannot be told apart.
    """
    with _bound(host, port, open_to_others=app.state.senders.known or app.state.access.required) as listener:
        # asyncio says so to sockets of its own listeners alone; without, the end of an answer waits for up to 40 ms
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        server = uvicorn.Server(
            uvicorn.Config(
                app,
                http="h11",
                loop="asyncio",
                ws="none",
                lifespan="off",
                log_config=None,  # the process's own logging
                access_log=False,  # each request has its line already
                server_header=False,
                forwarded_allow_ips=["127.0.0.1", "::1"],  # a proxy on this machine says for whom it asks
                timeout_graceful_shutdown=GRACE_SECONDS,
            )
        )
        thread = threading.Thread(target=server.run, args=([listener],), name="http", daemon=True)
        thread.start()
        try:
            yield int(listener.getsockname()[1])
        finally:
            app.state.closing.set()  # whoever follows what happens is let go at once
            server.should_exit = True
            thread.join()


def _bound(host: str, port: int, *, open_to_others: bool) -> socket.socket:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        # `localhost` means both; who asks for 127.0.0.1 must be answered
        family, _, _, _, address = min(found, key=lambda info: info[0] != socket.AF_INET)
        if not open_to_others and not is_loopback(str(address[0])):
            raise ConfigError([f"server.host: {host} is reached by others; set auth, events.tokens or events.secrets"])
        both = address[0] == "::" and socket.has_dualstack_ipv6()
        return socket.create_server((str(address[0]), port), family=family, dualstack_ipv6=both)
    except OSError as error:
        said = error.strerror or str(error)
        raise ConfigError([f"server: {host}:{port} cannot be listened on: {said}; correct host or port"]) from error
