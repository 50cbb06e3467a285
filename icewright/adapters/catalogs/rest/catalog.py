"""The Catalog port over a REST catalog: conditional loads, and commits under requirements that the server checks."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Protocol
from urllib.parse import quote
from uuid import UUID

import msgspec

from icewright.adapters.catalogs.metadata_files import ConfiguredCatalog, MetadataCache
from icewright.adapters.catalogs.replies import ListingSize, table_reply
from icewright.adapters.catalogs.rest.client import (
    FAILED,
    PARALLEL,
    CredentialsRefused,
    Loaded,
    RestClient,
    RestResponse,
    StorageCredential,
    decode_credentials,
    loaded,
)
from icewright.adapters.catalogs.rest.committing import Committing
from icewright.adapters.catalogs.rest.credentials import CredentialStore
from icewright.adapters.catalogs.rest.listing import TableListing
from icewright.adapters.catalogs.rest.policies import RestPolicies
from icewright.adapters.catalogs.rest.restoring import unrestorable
from icewright.adapters.catalogs.staging import RequestOutcomeUnknown
from icewright.adapters.catalogs.translate.rest import RestCatalogProperties
from icewright.adapters.metadata.parsing import lacks_snapshots, parse
from icewright.core.allowlist import Allowlist, require_hosts, require_inside
from icewright.core.errors import (
    CatalogUnavailable,
    MetadataTooLarge,
    MetadataUnreadable,
    TableNotFound,
    UnsupportedTable,
)
from icewright.core.table import TableMetadata, TableRef
from icewright.ports import Change, Clock, Pointer, RemoveSnapshots, RestoreSnapshots, VendedCredentials

_OK, _UNCHANGED, _FORBIDDEN, _NOT_FOUND, _CONFLICT = 200, 304, 403, 404, 409
_REFUSED = frozenset({400, _FORBIDDEN, 406, 410, 422, 451})  # one table alone, not the catalog
_REFS_ONLY = {"snapshots": "refs"}  # query: a server that supports it leaves out the snapshots that no ref names
_RETRY_FAILED_AFTER = timedelta(minutes=10)  # until then, listings do not ask again for a table that failed to load
_NUL = "\0"
_MAX_FAILURES = 16  # failed tables, with none loaded, after which the server itself is at fault
_CREDENTIALS = "GET /v1/{prefix}/namespaces/{namespace}/tables/{table}/credentials"


class CatalogFiles(Protocol):
    """The part of the Files port that a catalog needs."""

    def read(self, path: str, /) -> bytes:
        """Return the content of a file."""


@dataclass
class _ListingState:
    """What the server has answered so far about the tables of one listing."""

    any_loaded: bool = False
    failed_at: dict[TableRef, datetime] = field(default_factory=dict)  # tables that it did not load
    missing: list[TableRef] = field(default_factory=list)  # tables that it lists, and answers 404 for
    failures: list[str] = field(default_factory=list)  # messages of errors that may be the server's own

    def require_working(self, max_failures: int = 1) -> None:
        """Raise `CatalogUnavailable` when the server has failed for `max_failures` tables, and loaded none."""
        if len(self.failures) >= max_failures and not self.any_loaded:
            raise CatalogUnavailable(self.failures[0])


@dataclass
class RestCatalog(ConfiguredCatalog):
    """The Catalog port over one warehouse of a REST server. Thread-safe."""

    properties: RestCatalogProperties
    files: CatalogFiles
    clock: Clock
    allowlist: Allowlist | None = None
    policies: RestPolicies = field(init=False)
    _client: RestClient = field(init=False)
    _credentials: CredentialStore = field(init=False)
    _cache: MetadataCache = field(default_factory=MetadataCache, init=False)
    # ETag and location of replies to `_REFS_ONLY`; ETag, location and checksum of full replies
    _pointer_cache: dict[TableRef, tuple[str, str]] = field(default_factory=dict, init=False)
    _load_cache: dict[TableRef, tuple[str, str, bytes]] = field(default_factory=dict, init=False)
    _failed_at: dict[TableRef, datetime] = field(default_factory=dict, init=False)  # when a listing failed to load it
    _missing: Sequence[TableRef] = field(default=(), init=False)  # of the last listing
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)

    def __post_init__(self) -> None:
        self._client = RestClient(self.properties, self.clock, self.allowlist)
        self._credentials = CredentialStore(self.clock, self._renew)
        self.policies = RestPolicies(self._client, self.clock)

    def close(self) -> None:
        """Close the HTTP connections to the server."""
        self._client.close()

    def grant(self, path: str) -> VendedCredentials | None:
        """Return the credentials that the server vended for a file, renewed before they expire.

        Returns None if the server vended none.
        """
        return self._credentials.grant(path)

    def pointers(self) -> Sequence[Pointer]:
        """Return every table; tables are loaded in parallel with `If-None-Match`, so unchanged ones cost a 304.

        The pointer has no location when the server loads other tables but not this one, or when the name has a NUL,
        which no database stores and which is replaced.
        """
        names = TableListing(self._client, ListingSize.of(self.name)).tables()
        refs = [TableRef(self.name, parts[:-1], parts[-1]) for parts in names if _NUL not in "".join(parts)]
        replaced = [tuple(part.replace(_NUL, "\ufffd") for part in parts) for parts in names if _NUL in "".join(parts)]
        state = _ListingState()
        with ThreadPoolExecutor(PARALLEL) as pool:
            listed = pool.map(lambda ref: self._pointer_or_failure(ref, state), refs)
            pointers = [pointer for pointer in listed if pointer is not None]
        state.require_working()
        with self._lock:
            current, self._missing = set(refs), state.missing
            self._failed_at = {ref: at for ref, at in self._failed_at.items() if ref in current} | state.failed_at
            self._pointer_cache = {ref: entry for ref, entry in self._pointer_cache.items() if ref in current}
            self._load_cache = {ref: entry for ref, entry in self._load_cache.items() if ref in current}
        return [*pointers, *(self._without_location(TableRef(self.name, parts[:-1], parts[-1])) for parts in replaced)]

    def load(self, ref: TableRef) -> TableMetadata:
        """Load the current metadata from the server's response; the metadata file itself is not read."""
        return self.fetch(ref)[0]

    def fetch(self, ref: TableRef) -> tuple[TableMetadata, Loaded | None]:
        """Return the current metadata, and the response body unless the metadata is unchanged since the last call."""
        previous = self._load_cache.get(ref)
        cached = self._cache.cached(ref, previous[1], previous[2]) if previous is not None else None
        headers = _if_none_match(previous[0]) if previous and cached else None
        if ref in self._failed_at:
            answer = self._request_table(ref, None, headers)
            self._failed_at.pop(ref, None)
        else:
            answer = self._client.get(self._path(ref), headers=headers, size=table_reply())
        if answer.status == _UNCHANGED and cached is not None:
            return cached, None
        self._require_table(ref, answer)
        return self._decode(ref, answer)

    def load_from_file(self, metadata: TableMetadata) -> TableMetadata:
        """Return the metadata as its file has it, which the server's response named."""
        location = metadata.metadata_location
        return parse(metadata.ref, location, self.files.read(location))

    def neighbours(self) -> Sequence[Pointer]:
        """Return the tables that the last listing had and the server does not find; it lists no other warehouses."""
        return [self._without_location(ref) for ref in self._missing]

    def neighbour(self, pointer: Pointer) -> TableMetadata:
        """Return the metadata of a file that the catalog does not name, as `Catalog.neighbour` says."""
        return self._cache.parsed(pointer.ref, pointer.metadata_location, None, self.files.read)

    def connected(self) -> str:
        """Request the server's configuration and return a description. Raises `CatalogUnavailable` with the remedy."""
        lends = (
            "lends credentials where it can" if self.properties.asks_for_credentials else "is not asked for credentials"
        )
        return f"answers, auth {self.properties.auth}, {len(self._client.config)} settings, {lends}"

    def may_commit(self, ref: TableRef) -> str:
        """Return a phrase on whether commits are allowed, by a request whose requirement no table meets."""
        request = {"requirements": [{"type": "assert-table-uuid", "uuid": str(UUID(int=0))}], "updates": []}
        try:
            answer = self._client.send("POST", self._path(ref), data=msgspec.json.encode(request))
        except RequestOutcomeUnknown as error:
            raise CatalogUnavailable(f"{self._client.where} does not answer: {error}") from error
        if answer.status == _FORBIDDEN:
            raise UnsupportedTable(
                f"the catalog forbids commits to {ref} ({answer.message}): grant the right to write data and metadata"
            )
        return f"commits to {ref} are allowed" if answer.status == _CONFLICT else f"nobody knows ({answer.message})"

    def unrestorable(self, base: TableMetadata, change: RestoreSnapshots) -> str:
        """Return what the server cannot restore, by the table's current metadata."""
        return unrestorable(self._committing(base.ref).document(base.ref)[1], change)

    def commit(self, base: TableMetadata, change: Change) -> TableMetadata:
        """Commit the change under requirements on the table's uuid and on every ref of `base`."""
        require_inside(self.allowlist, self.name, base)
        after = self._committing(base.ref).run(base, change)
        with self._lock:
            self._load_cache.pop(base.ref, None)
        return after

    def restore(self, ref: TableRef, location: str, change: RemoveSnapshots) -> Sequence[str]:
        """Restore refs that the commit of a crashed process dropped; return their names."""
        names = self._committing(ref).restore(ref, location, change)
        with self._lock:
            self._load_cache.pop(ref, None)
        return names

    def _committing(self, ref: TableRef) -> Committing:
        return Committing(self._client, self.files, self.clock, self._path(ref), self.fetch)

    def _decode(self, ref: TableRef, answer: RestResponse) -> tuple[TableMetadata, Loaded]:
        """Decode a full response as metadata, and store the credentials in it."""
        table = loaded(ref, answer.body, self._client.where)
        location, content = self._location(ref, table), bytes(table.metadata)
        checksum = hashlib.blake2b(content, digest_size=16).digest()
        metadata = self._cache.cached(ref, location, checksum)
        if metadata is None:
            if lacks_snapshots(content):  # a cache that ignores the query answered with the reply to `_REFS_ONLY`
                self._store_vended_credentials(ref, parse(ref, location, content).location, table)
                content = self.files.read(location)
            metadata = self._cache.parsed(ref, location, checksum, lambda _: content)
        if answer.etag:
            with self._lock:
                self._load_cache[ref] = (answer.etag, location, checksum)
        self._store_vended_credentials(ref, metadata.location, table)
        return metadata, table

    def _pointer_or_failure(self, ref: TableRef, state: _ListingState) -> Pointer | None:
        """Return the table's pointer, None if it was dropped meanwhile, and record the answer in `state`.

        A table that cannot be read has a pointer without a location. Raises `CatalogUnavailable` when the server does
        not answer, is busy, or has failed for many tables and answered for none.
        """
        if (found_at := self._failed_at.get(ref)) is not None and self.clock.now() - found_at < _RETRY_FAILED_AFTER:
            return self._without_location(ref)
        state.require_working(_MAX_FAILURES)
        try:
            pointer = self._pointer(ref)
        except (MetadataTooLarge, UnsupportedTable):
            state.any_loaded = True
        except MetadataUnreadable as error:
            state.failures.append(str(error))
        else:
            state.any_loaded = True
            state.missing += [ref] if pointer is None else []
            return pointer
        state.failed_at[ref] = self.clock.now()
        return self._without_location(ref)  # its evaluation reports the error, as the table's own

    def _pointer(self, ref: TableRef) -> Pointer | None:
        previous = self._pointer_cache.get(ref)
        answer = self._request_table(ref, _REFS_ONLY, _if_none_match(previous[0]) if previous else None)
        if answer.status == _UNCHANGED and previous is not None:
            return Pointer(ref, previous[1])
        if answer.status == _NOT_FOUND:
            return None
        if answer.status in _REFUSED:
            return self._without_location(ref)
        self._require_table(ref, answer)
        location = self._location(ref, loaded(ref, answer.body, self._client.where))
        with self._lock:
            if answer.etag:
                self._pointer_cache[ref] = (answer.etag, location)
            else:
                self._pointer_cache.pop(ref, None)
        return Pointer(ref, location)

    def _request_table(
        self, ref: TableRef, params: Mapping[str, str] | None, headers: Mapping[str, str] | None
    ) -> RestResponse:
        """Ask for a table. Raises `MetadataUnreadable` when the server fails to load it."""
        try:
            answer = self._client.ask(self._path(ref), params, headers, table_reply())
        except RequestOutcomeUnknown as error:
            raise MetadataUnreadable(f"{ref}: {self._client.where} does not answer for it: {error}") from error
        except CredentialsRefused as error:  # for this table, if the server loads others
            raise MetadataUnreadable(f"{ref}: {error}") from error
        if answer.status in FAILED:
            raise MetadataUnreadable(
                f"{ref}: {self._client.where} fails to load it: {answer.message}; the log of that server says why"
            )
        return answer

    def _without_location(self, ref: TableRef) -> Pointer:
        return Pointer(ref, f"{self.properties.uri}/{self._path(ref)}")

    def _require_table(self, ref: TableRef, answer: RestResponse) -> None:
        if answer.status == _NOT_FOUND:
            raise TableNotFound(f"{ref}: the catalog does not know this table; `icewright tables` lists what it knows")
        if answer.status in _REFUSED:
            remedy = "; grant the right to read it" if answer.status == _FORBIDDEN else ""
            raise UnsupportedTable(f"{ref}: the catalog does not let it be loaded ({answer.message}){remedy}")
        if answer.status != _OK:
            raise CatalogUnavailable(f"{ref}: {self._client.where} did not load it: {answer.message}")

    def _location(self, ref: TableRef, table: Loaded) -> str:
        if not table.metadata_location:
            raise UnsupportedTable(f"{ref}: the catalog does not say which metadata file is current")
        return table.metadata_location

    def _path(self, ref: TableRef) -> str:
        return f"namespaces/{self._client.namespace(*ref.namespace)}/tables/{quote(ref.name, safe='')}"

    def _renew(self, ref: TableRef) -> None:
        """Load fresh credentials, from the credentials endpoint if the server has one."""
        if self._client.offers(_CREDENTIALS):
            answer = self._client.get(f"{self._path(ref)}/credentials")
            self._require_table(ref, answer)
            response = decode_credentials(ref, answer.body, self._client.where)
            self._store_credentials(ref, "", {}, response.storage_credentials)
            return
        answer = self._client.get(self._path(ref), _REFS_ONLY, size=table_reply())
        self._require_table(ref, answer)
        table = loaded(ref, answer.body, self._client.where)
        location = parse(ref, self._location(ref, table), bytes(table.metadata)).location
        self._store_vended_credentials(ref, location, table)

    def _store_vended_credentials(self, ref: TableRef, location: str, table: Loaded) -> None:
        if self.properties.asks_for_credentials:
            self._store_credentials(ref, location, table.config or {}, table.storage_credentials or ())

    def _store_credentials(
        self, ref: TableRef, location: str, config: Mapping[str, str], credentials: tuple[StorageCredential, ...]
    ) -> None:
        """Store vended credentials, unless they lead to an undeclared host."""
        for properties in (config, *(credential.config for credential in credentials)):
            require_hosts(self.allowlist, self.name, properties)
        self._credentials.keep(ref, location, self._storage(), config, credentials)

    def _storage(self) -> Mapping[str, str]:
        """Return the storage properties of the configuration, including the server's."""
        prefixes = ("s3.", "client.", "gcs.", "adls.")
        return {k: str(v) for k, v in self._client.config.items() if k.startswith(prefixes)}


def _if_none_match(etag: str) -> dict[str, str]:
    return {"If-None-Match": etag}
