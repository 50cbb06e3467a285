"""The lease on a catalog that is vacuumed, which keeps other processes and threads out."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

from icewright.core.errors import LeaseLost, Refused
from icewright.flow.runtime import Runtime

RUNNING = "vacuum_running"  # code of the refusal to begin a second vacuum
_LENGTH = timedelta(hours=1)  # renewed with each table, and before each batch of deletions of one with branches


@contextmanager
def vacuum_lease(runtime: Runtime, catalog: str, *, dry_run: bool) -> Iterator[None]:
    """Keep other processes out by a lease, and other threads, which share the marks of what is live, by a lock.

    A dry run changes nothing and needs no lease.
    """
    name, lock = _name(catalog), runtime.vacuum_locks[catalog]
    if not lock.acquire(blocking=False):
        why = f"this process vacuums catalog {catalog}, or finds out what a vacuum would do: let it end"
        raise Refused(why, RUNNING)
    try:
        if not dry_run and not runtime.try_acquire_lease(name, _LENGTH):
            raise Refused(f"another process vacuums catalog {catalog}: let it end", RUNNING)
        try:
            yield
        finally:
            if not dry_run:
                runtime.store.leases.release(name, runtime.trigger.holder)
    finally:
        lock.release()


def renew_vacuum_lease(runtime: Runtime, catalog: str) -> None:
    """Renew the lease. Raises `LeaseLost` when another process has taken it, as it was not renewed for an hour."""
    if not runtime.try_acquire_lease(_name(catalog), _LENGTH):
        raise LeaseLost(f"another process vacuums catalog {catalog} by now")


def _name(catalog: str) -> str:
    return f"vacuum {catalog}"
