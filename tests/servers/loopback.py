"""Servers on loopback, each in a process of its own that lives as long as a block."""

from __future__ import annotations

import http.client
import os
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path

from icewright.core.errors import EngineUnavailable

_LOOKS, _BETWEEN = 1200, 0.1  # two minutes: a busy machine takes long to start a JVM
_FIRST, _PORTS = 12_000, 20_000  # below those that the kernel gives to whoever asks for any
_places = count(os.getpid() * 7919)  # where processes begin is far apart


def free_port() -> int:
    """Return a port of loopback that nobody listens at, and nobody is likely to take before its server is up."""
    while True:
        port = _FIRST + next(_places) % _PORTS
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


@contextmanager
def process(command: Sequence[str], port: int, path: str, log: Path) -> Iterator[None]:
    """Run the command, which serves at this port, from when it answers a request for `path`, be it with a refusal.

    What it prints goes to `log`. Raises `EngineUnavailable` with the log's end when it does not answer.
    """
    with log.open("wb") as out, subprocess.Popen(command, stdout=out, stderr=out, cwd=log.parent) as server:
        try:
            if not _answers(port, path, server):
                last = log.read_text(encoding="utf-8", errors="replace")[-2000:]
                raise EngineUnavailable(f"{log.stem} did not start: {last}")
            yield
        finally:
            server.terminate()


def _answers(port: int, path: str, server: subprocess.Popen[bytes]) -> bool:
    for _ in range(_LOOKS):
        if server.poll() is not None:
            return False
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
        try:
            connection.request("GET", path)
            if connection.getresponse().status < http.HTTPStatus.INTERNAL_SERVER_ERROR:
                return True
        except (OSError, http.client.HTTPException):
            pass  # it does not listen yet
        finally:
            connection.close()
        time.sleep(_BETWEEN)  # nothing tells when it listens
    return False
