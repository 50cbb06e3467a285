"""Calls of a Hive metastore: PyIceberg's Thrift client with time-outs, several addresses and table locks."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar
from uuid import uuid4

from thrift.protocol.TProtocol import TProtocolException
from thrift.Thrift import TApplicationException, TException
from thrift.transport.TTransport import TTransportException

from icewright.adapters.catalogs.staging import NeverSent, RequestOutcomeUnknown
from icewright.adapters.catalogs.translate.hive import KERBEROS, HiveCatalogProperties
from icewright.core.errors import CatalogUnavailable, CommitConflict, CommitStateUnknown, IcewrightError
from icewright.core.runs import backoff
from icewright.ports import Clock

SECONDS = 120.0  # to wait for an answer: less than the five minutes after which a metastore takes a lock for dead
_ATTEMPTS = 4
_BROKEN = (TTransportException, TProtocolException, OSError)

_Result = TypeVar("_Result")
_FIRST_WAIT, _LONGEST_WAIT, _GROWTH = 0.05, 5.0, 1.5  # seconds between checks, the defaults of Iceberg's clients


@dataclass(frozen=True)
class HiveClient:
    """Call one metastore; each call opens a connection, as Thrift connections are not thread-safe."""

    properties: HiveCatalogProperties
    clock: Clock

    @property
    def where(self) -> str:
        """Return the catalog's name and address for error messages."""
        return f"catalog {self.properties.name} at {self.properties.uri}"

    def ask(self, question: Callable[[Any], _Result]) -> _Result:
        """Call the metastore and retry while it does not answer.

        Raises `CatalogUnavailable`, and the metastore's own exceptions.
        """
        error_message = ""
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                return self.once(question)
            except RequestOutcomeUnknown as error:
                error_message = str(error)
            if attempt < _ATTEMPTS:
                self.clock.sleep(backoff(attempt).total_seconds())
        raise CatalogUnavailable(f"{self.where} does not answer: {error_message}; is the metastore up?")

    def once(self, question: Callable[[Any], _Result]) -> _Result:
        """Call the metastore once, without a retry.

        Raises `RequestOutcomeUnknown`, and `NeverSent`.
        """
        connection, client = self._connected()
        try:  # no `with`: it changes errors that pass, and Thrift's cannot be changed
            return question(client)
        except _BROKEN as error:
            raise RequestOutcomeUnknown(f"{type(error).__name__}: {error}") from error
        finally:
            connection.__exit__(None, None, None)

    def unavailable(self, error: TException) -> CatalogUnavailable:
        """Return the error for an answer that reports a failure of the metastore."""
        mend = "; metastores of Hive 2.3, 3 and 4 are supported" if isinstance(error, TApplicationException) else ""
        return CatalogUnavailable(f"{self.where} cannot answer: {error_text(error)}{mend}")

    def _connected(self) -> tuple[Any, Any]:
        """Connect to the first address that accepts; return the connection and its client."""
        refused = []
        for uri in self.properties.uris:
            connection = bounded_connection(uri, self.properties.extra)
            try:
                return connection, connection.__enter__()
            except (TException, OSError) as error:
                connection.__exit__(None, None, None)
                refused.append(error_text(error))
        raise NeverSent(f"{self.where} does not answer: {'; '.join(refused)}; is the metastore up?")


def bounded_connection(uri: str, properties: Mapping[str, str]) -> Any:  # noqa: ANN401 - PyIceberg's
    """Return PyIceberg's client of one address, whose waits end; by the properties that PyIceberg takes."""
    from pyiceberg.catalog.hive import HIVE_KERBEROS_SERVICE_NAME, _HiveClient  # noqa: PLC0415 - takes long to load

    class BoundedClient(_HiveClient):
        def _init_thrift_transport(self) -> Any:  # noqa: ANN401 - Thrift's
            transport: Any = super()._init_thrift_transport()  # no property says how long to wait
            socket = transport.transport if self._kerberos_auth else transport._TBufferedTransport__trans  # noqa: SLF001
            socket.setTimeout(SECONDS * 1000)
            return transport

    kerberos, service = properties.get(KERBEROS, "false").lower() == "true", HIVE_KERBEROS_SERVICE_NAME
    return BoundedClient(uri, properties.get("ugi"), kerberos, properties.get(service, "hive"))


def table_of(hive: Any, database: str, name: str) -> Any:  # noqa: ANN401 - Thrift's
    """Return a table by the call that metastores from Hive 2.3 to 4 know; Hive 4 has dropped `get_table`."""
    from hive_metastore.ttypes import GetTableRequest  # noqa: PLC0415 - takes long to load

    return hive.get_table_req(GetTableRequest(dbName=database, tblName=name, capabilities=_capabilities())).table


def tables_of(hive: Any, database: str, names: list[str]) -> Any:  # noqa: ANN401 - Thrift's
    """Return those tables of a database that exist, by a call that metastores from Hive 2.3 to 4 know."""
    from hive_metastore.ttypes import GetTablesRequest  # noqa: PLC0415 - takes long to load

    request = GetTablesRequest(dbName=database, tblNames=names, capabilities=_capabilities())
    return hive.get_table_objects_by_name_req(request).tables


def _capabilities() -> Any:  # noqa: ANN401 - Thrift's
    """Return what a client must know to be told of insert-only tables; here their folders alone matter.

    Without it a metastore answers no request about tables among which there is one.
    """
    from hive_metastore.ttypes import ClientCapabilities, ClientCapability  # noqa: PLC0415 - takes long to load

    return ClientCapabilities([ClientCapability.INSERT_ONLY_TABLES])


def error_text(error: Exception) -> str:
    """Return the metastore's own words in one line."""
    message = str(getattr(error, "message", None) or error).strip()
    return f"{type(error).__name__}: {message.splitlines()[0] if message else 'no reason given'}"[:500]


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
