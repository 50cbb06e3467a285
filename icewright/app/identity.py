"""Who this process is, and whether another one is still there."""

from __future__ import annotations

import getpass
import os
import socket


def holder() -> str:
    """This process, as leases name it."""
    return f"{socket.gethostname()}:{os.getpid()}:{_started(os.getpid())}"


def is_dead(name: str) -> bool:
    """Whether a holder's process is surely gone: it ran on this host, and runs no more."""
    host, pid, started = name.rsplit(":", 2)
    return host == socket.gethostname() and _started(int(pid)) != started


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
    """Who started it."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "unknown"
