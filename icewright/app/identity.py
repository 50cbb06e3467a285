"""Who this process is, and whether another one is still there."""

from __future__ import annotations

import getpass
import hashlib
import os
import socket
from functools import cache
from pathlib import Path


def holder() -> str:
    """This process, as leases name it."""
    return f"{_host()}:{os.getpid()}:{_started(os.getpid())}"


def is_dead(name: str) -> bool:
    """Return whether a holder's process is surely gone: it ran on this host, and runs no more."""
    host, pid, started = name.rsplit(":", 2)
    return host == _host() and _started(int(pid)) != started


@cache
def _host() -> str:
    """Where processes see each other: one machine since it was started, and there one container.

    Containers may share a host's name, and machines may have the same; neither sees the processes of the other.
    """
    boot, numbers = Path("/proc/sys/kernel/random/boot_id"), Path("/proc/self/ns/pid")
    try:
        place = f"{boot.read_text(encoding='ascii')}{numbers.readlink()}"
    except OSError:  # no Linux
        return socket.gethostname()
    return f"{socket.gethostname()}.{hashlib.sha256(place.encode()).hexdigest()[:6]}"


def _started(pid: int) -> str:
    """When a process began (Linux: in ticks since boot), so that a reused number is not taken for it."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as stat:  # noqa: PTH123
            return stat.read().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return "0" if _alive(pid) else "gone"


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def user() -> str:
    """Return the name of the user who started the process."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "unknown"
