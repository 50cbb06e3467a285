"""A metastore's exclusive lock of a table, as Iceberg's own clients take it."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from uuid import uuid4

from thrift.Thrift import TException

from icewright.adapters.catalogs.hive_client import HiveClient, error_text
from icewright.adapters.catalogs.outcome import RequestOutcomeUnknown
from icewright.core.errors import CatalogUnavailable, CommitConflict, CommitStateUnknown, IcewrightError

_FIRST_WAIT, _LONGEST_WAIT, _GROWTH = 0.05, 5.0, 1.5  # seconds between checks, the defaults of Iceberg's clients


@dataclass(frozen=True)
class Lock:
    """A lock that the metastore granted."""

    client: HiveClient
    number: int

    def alive(self) -> bool:
        """Send the lock's heartbeat; return whether the metastore still grants the lock."""
        from hive_metastore.ttypes import HeartbeatRequest  # noqa: PLC0415 - takes long to load

        try:
            self.client.ask(lambda hive: hive.heartbeat(HeartbeatRequest(lockid=self.number)))
        except (TException, CatalogUnavailable):
            return False
        return True


@contextmanager
def locked(client: HiveClient, database: str, table: str) -> Iterator[Lock]:
    """Hold the exclusive lock of a table as a context manager.

    The lock is released at the end, except after `CommitStateUnknown`: a commit that may still be under way must not
    meet other commits, and the metastore expires the lock by itself. Raises `CommitConflict` when others hold the lock
    for too long.
    """
    lock = _acquired(client, database, table)
    try:
        yield lock
    except CommitStateUnknown:
        raise
    except BaseException:
        _unlock(lock)
        raise
    _unlock(lock)


def _unlock(lock: Lock) -> None:
    from hive_metastore.ttypes import UnlockRequest  # noqa: PLC0415

    with suppress(TException, IcewrightError):  # the commit is what it is, and a lock that is left expires
        lock.client.ask(lambda hive: hive.unlock(UnlockRequest(lockid=lock.number)))


def _acquired(client: HiveClient, database: str, table: str) -> Lock:
    from hive_metastore.ttypes import CheckLockRequest, LockState  # noqa: PLC0415

    number, state = _request_lock(client, database, table)
    lock = Lock(client, number)
    waited, wait = timedelta(0), _FIRST_WAIT
    try:
        while state == LockState.WAITING and waited.total_seconds() < client.properties.lock_timeout_seconds:
            client.clock.sleep(wait)
            waited += timedelta(seconds=wait)
            wait = min(wait * _GROWTH, _LONGEST_WAIT)
            state = client.ask(lambda hive: hive.check_lock(CheckLockRequest(lockid=number))).state
    except BaseException as error:
        _unlock(lock)
        if isinstance(error, TException):
            raise client.unavailable(error) from error
        raise
    if state != LockState.ACQUIRED:
        _unlock(lock)
        how = (
            f"others hold its lock for {waited.total_seconds():.0f} s"
            if state == LockState.WAITING
            else "no lock given"
        )
        raise CommitConflict(f"{client.properties.name}.{database}.{table}: {how}; nothing was committed")
    return lock


def _request_lock(client: HiveClient, database: str, table: str) -> tuple[int, int]:
    """Request a lock; return its id and state. A lock whose response was lost is found by our agent info."""
    from hive_metastore import ttypes  # noqa: PLC0415

    mark = f"Icewright-{uuid4()}"
    part = ttypes.LockComponent(
        type=ttypes.LockType.EXCLUSIVE, level=ttypes.LockLevel.TABLE, dbname=database, tablename=table
    )
    request = ttypes.LockRequest(component=[part], user="icewright", hostname=socket.gethostname(), agentInfo=mark)
    try:
        answer: Any = client.once(lambda hive: hive.lock(request))
    except RequestOutcomeUnknown as error:
        shown = client.ask(lambda hive: hive.show_locks(ttypes.ShowLocksRequest(dbname=database, tablename=table)))
        waiting_lock = next((lock for lock in shown.locks if lock.agentInfo == mark), None)
        if waiting_lock is None:
            raise CatalogUnavailable(f"{client.where} lost the request for a lock: {error}") from error
        return waiting_lock.lockid, waiting_lock.state
    except TException as error:
        hint = " (does its database have the tables of locks? engine.hive.lock-enabled: false goes without)"
        raise CatalogUnavailable(f"{client.where} gives no lock: {error_text(error)}{hint}") from error
    return answer.lockid, answer.state
