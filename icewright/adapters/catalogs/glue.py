"""Catalogs of type `glue`: entries of AWS Glue whose parameters name the metadata file, swapped by version id."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError, HTTPClientError, IncompleteReadError
from botocore.parsers import ResponseParserError

from icewright.adapters.catalogs.metadata_files import (
    MetastoreCatalog,
    MetastoreEntry,
    Parameters,
    database_and_name,
    not_found,
    swap_pointer,
    tables_by_format,
)
from icewright.adapters.catalogs.staging import NeverSent, RequestOutcomeUnknown, require_landed
from icewright.adapters.catalogs.translate.glue import GlueCatalogProperties
from icewright.core.errors import AccessDenied, CatalogUnavailable, CommitConflict, Refused
from icewright.core.runs import backoff
from icewright.core.table import TableMetadata, TableRef
from icewright.core.words import first_line
from icewright.ports import Change, Clock, Dataset, Pointer

_TRIES = 6  # of an update that Glue had no time for
_ENTRY_MISSING, _CONFLICT = "EntityNotFoundException", "ConcurrentModificationException"
_NO_NAME = "InvalidInputException"
_DENIED = frozenset({"AccessDeniedException", "AccessDenied"})
_CREDENTIAL_ERRORS = frozenset(
    {"ExpiredTokenException", "ExpiredToken", "UnrecognizedClientException", "InvalidClientTokenId"}
    | {"InvalidSignatureException", "SignatureDoesNotMatch", "MissingAuthenticationTokenException"}
)
_RETRYABLE = frozenset(
    {"ThrottlingException", "Throttling", "ThrottledException", "TooManyRequestsException", "RequestThrottled"}
    | {"RequestThrottledException", "RequestLimitExceeded", "RateExceeded"}
)
# reported as client errors, although Glue may have applied the request
_OUTCOME_UNKNOWN = frozenset(
    {"OperationTimeoutException", "RequestTimeout", "RequestTimeoutException", "FederationSourceException"}
)
_CLIENT_FAULT = range(400, 500)
PARALLEL = 8  # databases that are listed at the same time; boto3 keeps ten connections
# what an entry and the request to replace it have in common: the columns are for people, and do not change here
_UPDATABLE_FIELDS = (
    "Name", "Description", "Owner", "LastAccessTime", "LastAnalyzedTime", "Retention", "StorageDescriptor",
    "PartitionKeys", "ViewOriginalText", "ViewExpandedText", "TableType", "TargetTable",
)  # fmt: skip


@dataclass
class GlueClient:
    """Call AWS Glue for one catalog; the first call connects. Thread-safe."""

    properties: GlueCatalogProperties
    clock: Clock
    _clients: dict[bool, Any] = field(default_factory=dict, init=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)

    @property
    def where(self) -> str:
        """Return the catalog's name and region for error messages."""
        return f"catalog {self.properties.name} at {self.properties.host}"

    def close(self) -> None:
        """Close the connections of the botocore client."""
        with self._lock:
            for client in self._clients.values():
                client.close()
            self._clients.clear()

    def databases(self) -> list[str]:
        """Return the names of all databases."""
        with self._translating_errors():
            pages = self._client(retries=True).get_paginator("get_databases").paginate()
            return [database["Name"] for page in pages for database in page["DatabaseList"]]

    def tables(self, database: str) -> list[Mapping[str, Any]]:
        """Return the entries of a database, views included; empty if the database was dropped meanwhile."""
        with self._translating_errors():
            try:
                pages = self._client(retries=True).get_paginator("get_tables").paginate(DatabaseName=database)
                return [table for page in pages for table in page["TableList"]]
            except ClientError as error:
                if _code(error) == _ENTRY_MISSING:
                    return []
                raise

    def table(self, database: str, name: str) -> Mapping[str, Any] | None:
        """Return one entry of a database; None if there is none."""
        with self._translating_errors():
            try:
                entry: Mapping[str, Any] = self._client(retries=True).get_table(DatabaseName=database, Name=name)[
                    "Table"
                ]
            except ClientError as error:
                if _code(error) in (_ENTRY_MISSING, _NO_NAME):  # a name that Glue does not take is no table's
                    return None
                raise
            return entry

    def update(self, ref: TableRef, database: str, entry: Mapping[str, Any], version: str) -> None:
        """Replace the entry if its version is unchanged.

        Throttled requests are repeated. Raises `RequestOutcomeUnknown` when the outcome is unknown; after every other
        error the entry is unchanged: `CommitConflict`, `AccessDenied`, `Refused`, `CatalogUnavailable`.
        """
        for attempt in range(1, _TRIES + 1):
            try:
                self._client(retries=False).update_table(
                    DatabaseName=database, TableInput=entry, SkipArchive=self.properties.skip_archive, VersionId=version
                )
            except ClientError as error:
                if _code(error) not in _RETRYABLE or attempt == _TRIES:
                    raise self._outcome(ref, error) from error
            except (HTTPClientError, IncompleteReadError, ResponseParserError) as error:
                raise RequestOutcomeUnknown(_reason(error)) from error
            except BotoCoreError as error:  # no connection, no keys: nothing was sent
                raise NeverSent(str(self._unavailable(error))) from error
            else:
                return
            self.clock.sleep(backoff(attempt + 3).total_seconds())

    def _outcome(self, ref: TableRef, error: ClientError) -> Exception:
        """Return the error that a failed update means for the commit."""
        code, status = _code(error), error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        if code == _CONFLICT:
            return CommitConflict(f"{ref}: another writer committed since the plan ({_reason(error)})")
        if code == _ENTRY_MISSING:
            return CommitConflict(f"{ref}: the table is gone ({_reason(error)})")
        if code in _DENIED:
            return AccessDenied(
                f"{ref}: Glue does not let it be committed to ({_reason(error)}): grant glue:UpdateTable"
            )
        if code in _RETRYABLE or code in _CREDENTIAL_ERRORS:
            return self._unavailable(error)
        if status in _CLIENT_FAULT and code not in _OUTCOME_UNKNOWN:
            return Refused(f"{ref}: Glue refused the commit ({_reason(error)})")
        return RequestOutcomeUnknown(_reason(error))

    @contextmanager
    def _translating_errors(self) -> Iterator[None]:
        """Translate botocore's errors of read calls into the error tree."""
        try:
            yield
        except (ClientError, BotoCoreError, ResponseParserError) as error:
            if isinstance(error, ClientError) and _code(error) in _DENIED:
                raise AccessDenied(
                    f"{self.where} does not let it be read ({_reason(error)}): grant glue:GetDatabases, glue:GetTables "
                    "and glue:GetTable"
                ) from error
            raise self._unavailable(error) from error

    def _unavailable(self, error: Exception) -> CatalogUnavailable:
        if isinstance(error, ClientError) and _code(error) in _CREDENTIAL_ERRORS:
            mend = f"correct or renew the keys in catalogs.{self.properties.name}.properties or in the environment"
        elif isinstance(error, ClientError):
            mend = "it is asked again later"
        else:
            mend = f"is it up, and are region and keys said in catalogs.{self.properties.name}.properties?"
        return CatalogUnavailable(f"{self.where} cannot answer: {_reason(error)}; {mend}")

    def _client(self, *, retries: bool) -> Any:  # noqa: ANN401 - boto3 makes its classes when it runs
        """Return a client; commits use one without retries, as a retried commit hides the outcome of the first."""
        with self._lock:
            if retries not in self._clients:
                self._clients[retries] = _connected(self.properties, retries=retries)
            return self._clients[retries]


def _connected(properties: GlueCatalogProperties, *, retries: bool) -> Any:  # noqa: ANN401
    from pyiceberg.catalog.glue import GlueCatalog  # noqa: PLC0415 - takes long to load

    settings: dict[str, Any] = dict(properties.pyiceberg_properties())
    if not retries:
        settings["glue.max-retries"] = 0
    return GlueCatalog(properties.name, **settings).glue


def _code(error: ClientError) -> str:
    return str(error.response.get("Error", {}).get("Code", ""))


def _reason(error: Exception) -> str:
    """Return Glue's message in one line."""
    if isinstance(error, ClientError):
        message = str(error.response.get("Error", {}).get("Message", "")).strip()
        return f"{_code(error)}: {message.splitlines()[0] if message else 'no reason given'}"[:500]
    return first_line(error)[:500]


@dataclass
class GlueCatalog(MetastoreCatalog):
    """The Data Catalog of one account and region. Thread-safe."""

    properties: GlueCatalogProperties
    _client: GlueClient = field(init=False)

    def __post_init__(self) -> None:
        self._client = GlueClient(self.properties, self.clock)

    def close(self) -> None:
        """Close the client's connections to AWS."""
        self._client.close()

    def listing(self) -> tuple[Sequence[Pointer], Sequence[Dataset]]:
        """Return the tables of all databases: Iceberg's, and those of other formats."""
        databases = self._client.databases()
        with ThreadPoolExecutor(PARALLEL) as pool:
            return tables_by_format(entry for listed in pool.map(self._listed, databases) for entry in listed)

    def _replace(self, base: TableMetadata, after: TableMetadata, _change: Change) -> None:
        """Replace the entry if it still has the version that names the file of `base`.

        Every change of an entry gives the entry a new version, so a concurrent change of any ref, snapshot or property
        is a conflict. A table that is made anew counts its versions anew too, so the entry is looked at once more.
        """
        entry = self._current(base)
        new = {key: entry[key] for key in _UPDATABLE_FIELDS if key in entry}
        location = after.metadata_location
        new["Parameters"] = swap_pointer(self._parameters(entry), base, location)
        try:
            self._client.update(base.ref, base.ref.namespace[0], new, str(entry["VersionId"]))
        except RequestOutcomeUnknown as error:
            require_landed(base, location, self.load, self.clock, f"Glue lost the commit ({error})", compares=True)

    def _listed(self, database: str) -> list[MetastoreEntry]:
        return [self._listed_entry(database, table) for table in self._client.tables(database)]

    def _listed_entry(self, database: str, table: Mapping[str, Any]) -> MetastoreEntry:
        descriptor = table.get("StorageDescriptor") or {}
        ref, serde = TableRef(self.name, (database,), table["Name"]), descriptor.get("SerdeInfo") or {}
        return MetastoreEntry(ref, table.get("Parameters"), descriptor.get("Location"), serde.get("Parameters"))

    def _entry(self, ref: TableRef) -> Mapping[str, Any]:
        entry = self._client.table(*database_and_name(ref))
        if entry is None:
            raise not_found(ref)
        return entry

    def _parameters(self, entry: Mapping[str, Any]) -> Parameters:
        return entry.get("Parameters")
