"""Calls of a Hive metastore: PyIceberg's Thrift client with time-outs, several addresses and the error tree."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from thrift.protocol.TProtocol import TProtocolException
from thrift.Thrift import TApplicationException, TException
from thrift.transport.TTransport import TTransportException

from icewright.adapters.catalogs.outcome import RequestOutcomeUnknown
from icewright.adapters.catalogs.translate.hive import KERBEROS, HiveCatalogProperties
from icewright.core.errors import CatalogUnavailable
from icewright.core.runs import backoff
from icewright.ports import Clock

SECONDS = 120.0  # to wait for an answer: less than the five minutes after which a metastore takes a lock for dead
_ATTEMPTS = 4
_BROKEN = (TTransportException, TProtocolException, OSError)

_Result = TypeVar("_Result")


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

        Raises `RequestOutcomeUnknown`, and `CatalogUnavailable` before anything was sent.
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
        mend = "; metastores of Hive 2.3 and 3 are supported" if isinstance(error, TApplicationException) else ""
        return CatalogUnavailable(f"{self.where} cannot answer: {error_text(error)}{mend}")

    def _connected(self) -> tuple[Any, Any]:
        """Connect to the first address that accepts; return the connection and its client."""
        refused = []
        for uri in self.properties.uris:
            connection = _connection(uri, self.properties)
            try:
                return connection, connection.__enter__()
            except (TException, OSError) as error:
                connection.__exit__(None, None, None)
                refused.append(error_text(error))
        raise CatalogUnavailable(f"{self.where} does not answer: {'; '.join(refused)}; is the metastore up?")


def _connection(uri: str, properties: HiveCatalogProperties) -> Any:  # noqa: ANN401 - PyIceberg's
    from pyiceberg.catalog.hive import HIVE_KERBEROS_SERVICE_NAME, _HiveClient  # noqa: PLC0415 - takes long to load

    extra = properties.extra
    kerberos = extra.get(KERBEROS, "false").lower() == "true"
    connection = _HiveClient(uri, extra.get("ugi"), kerberos, extra.get(HIVE_KERBEROS_SERVICE_NAME, "hive"))
    transport: Any = connection._transport  # noqa: SLF001 - no property says how long to wait
    socket = transport.transport if kerberos else transport._TBufferedTransport__trans  # noqa: SLF001
    socket.setTimeout(SECONDS * 1000)
    return connection


def error_text(error: Exception) -> str:
    """Return the metastore's own words in one line."""
    message = str(getattr(error, "message", None) or error).strip()
    return f"{type(error).__name__}: {message.splitlines()[0] if message else 'no reason given'}"[:500]
