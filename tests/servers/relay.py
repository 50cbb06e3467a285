"""A relay on loopback before a server, which can swallow all bytes, as a proxy does that has lost its server.

It can also hold each request for a while, as the way to a server that is far away does.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TypeVar

_Answer = TypeVar("_Answer")


@dataclass
class Relay:
    """The port at which it listens."""

    port: int
    delay: float = 0  # seconds
    _connections: list[threading.Event] = field(default_factory=list)  # set: it swallows

    def swallow(self) -> None:
        """Pass no byte on any more of the connections that there are now; later ones are as they should be."""
        for swallows in self._connections:
            swallows.set()

    def carry(self, client: socket.socket, server: socket.socket) -> None:
        """Pass on what comes from both, each in a thread of its own."""
        swallows = threading.Event()
        self._connections.append(swallows)
        for source, target, delay in ((client, server, self.delay), (server, client, 0.0)):
            threading.Thread(target=_pump, args=(source, target, swallows, delay), daemon=True).start()


def _pump(source: socket.socket, target: socket.socket, swallows: threading.Event, delay: float) -> None:
    with source, suppress(OSError):  # one of both is gone
        while part := source.recv(1 << 16):
            if delay:
                time.sleep(delay)
            if not swallows.is_set():
                target.sendall(part)
        target.shutdown(socket.SHUT_RDWR)


@contextmanager
def relay(server_port: int, delay: float = 0) -> Iterator[Relay]:
    """A relay before a server on loopback, which holds what clients send for so many seconds."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        made = Relay(listener.getsockname()[1], delay)

        def accept() -> None:
            with suppress(OSError):  # the block is over
                while True:
                    made.carry(listener.accept()[0], socket.create_connection(("127.0.0.1", server_port)))

        threading.Thread(target=accept, daemon=True).start()
        yield made
        listener.shutdown(socket.SHUT_RDWR)


def answer(call: Callable[[], _Answer]) -> _Answer:
    """Return what the call returns, or raise what it raises; a call that goes on for a minute is left, and fails."""
    found: Future[_Answer] = Future()

    def run() -> None:
        try:
            found.set_result(call())
        except BaseException as error:  # noqa: BLE001 - raised again for the caller
            found.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return found.result(60)
