"""Identify this process for leases, and detect dead processes of the same host."""

from __future__ import annotations

import getpass
import hashlib
import os
import socket
from functools import cache
from pathlib import Path


def holder() -> str:
    """Return the name of this process as a lease holder: host, pid and start time."""
    return f"{_host()}:{os.getpid()}:{_start_time(os.getpid())}"


def is_dead(name: str) -> bool:
    """Return whether a lease holder ran on this host and has ended; False when unknown."""
    host, pid, started = name.rsplit(":", 2)
    return host == _host() and _start_time(int(pid)) != started


@cache
def _host() -> str:
    """Return a name of the PID namespace: host name, boot and container.

    Host names alone are not unique: containers and machines may share one without seeing each other's processes.
    """
    boot, pid_namespace = Path("/proc/sys/kernel/random/boot_id"), Path("/proc/self/ns/pid")
    try:
        namespace = f"{boot.read_text(encoding='ascii')}{pid_namespace.readlink()}"
    except OSError:  # no Linux
        return socket.gethostname()
    return f"{socket.gethostname()}.{hashlib.sha256(namespace.encode()).hexdigest()[:6]}"


def _start_time(pid: int) -> str:
    """Return the start time of a process (Linux: ticks since boot), which distinguishes a reused pid."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as stat:  # noqa: PTH123
            return stat.read().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return "0" if _is_alive(pid) else "gone"


def _is_alive(pid: int) -> bool:
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
