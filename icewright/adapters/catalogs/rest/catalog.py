"""The Catalog port over a REST catalog: conditional loads, and commits that the server checks by requirements."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Protocol
from urllib.parse import quote
from uuid import UUID

import msgspec

from icewright.adapters.catalogs.metadata_cache import MetadataCache
from icewright.adapters.catalogs.outcome import RequestOutcomeUnknown
from icewright.adapters.catalogs.rest.answers import Loaded, StorageCredential, lent_credentials, loaded
from icewright.adapters.catalogs.rest.client import PARALLEL, RestClient, RestResponse
from icewright.adapters.catalogs.rest.committing import Committing
from icewright.adapters.catalogs.rest.credentials import CredentialStore
from icewright.adapters.catalogs.rest.listing import TableListing
from icewright.adapters.catalogs.rest.policies import RestPolicies
from icewright.adapters.catalogs.rest.restoring import left_out
from icewright.adapters.catalogs.translate.rest import RestCatalogProperties
from icewright.adapters.metadata.parsing import parse
from icewright.core.allowlist import Allowlist, require_hosts, require_inside
from icewright.core.errors import CatalogUnavailable, TableNotFound, UnsupportedTable
from icewright.core.table import TableMetadata, TableRef
from icewright.ports import Change, Clock, Pointer, RemoveSnapshots, RestoreSnapshots, VendedCredentials

_OK, _UNCHANGED, _FORBIDDEN, _NOT_FOUND, _CONFLICT = 200, 304, 403, 404, 409
_REFUSED = frozenset({400, _FORBIDDEN, 406, 410, 422, 451})  # one table alone, not the catalog
_REFS = {"snapshots": "refs"}  # where it is served the answer is short however long the history is
_CREDENTIALS = "GET /v1/{prefix}/namespaces/{namespace}/tables/{table}/credentials"


class CatalogFiles(Protocol):
    """The part of the Files port that a catalog needs."""

    def read(self, path: str, /) -> bytes:
        """Return the content of a file."""
        ...


@dataclass
class RestCatalog:
    """One catalog behind a server. Thread-safe."""

    properties: RestCatalogProperties
    files: CatalogFiles
    clock: Clock
    environment: Allowlist | None = None
    policies: RestPolicies = field(init=False)
    _client: RestClient = field(init=False)
    _lent: CredentialStore = field(init=False)
    _memo: MetadataCache = field(default_factory=MetadataCache, init=False)
    _seen: dict[TableRef, tuple[str, str]] = field(default_factory=dict, init=False)  # ETag of refs, location
    _full: dict[TableRef, tuple[str, str, bytes]] = field(default_factory=dict, init=False)  # ETag, location, checksum
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)

    def __post_init__(self) -> None:
        self._client = RestClient(self.properties, self.clock, self.environment)
        self._lent = CredentialStore(self.clock, self._renew)
        self.policies = RestPolicies(self._client, self.clock)

    def close(self) -> None:
        """Close the HTTP connections to the server."""
        self._client.close()

    @property
    def name(self) -> str:
        """Return the name under which engines know it too."""
        return self.properties.name

    def grant(self, path: str) -> VendedCredentials | None:
        """Return what the server lent for a file, renewed when it is about to expire; None where it lent nothing."""
        return self._lent.grant(path)

    def pointers(self) -> Sequence[Pointer]:
        """Every table, several at a time; of one that did not change since the last look the server says just that."""
        names = TableListing(self._client).tables()
        refs = [TableRef(self.name, parts[:-1], parts[-1]) for parts in names]
        with ThreadPoolExecutor(PARALLEL) as pool:
            found = [pointer for pointer in pool.map(self._pointer, refs) if pointer is not None]
        with self._lock:
            known = set(refs)
            self._seen = {ref: seen for ref, seen in self._seen.items() if ref in known}
            self._full = {ref: seen for ref, seen in self._full.items() if ref in known}
        return found

    def load(self, ref: TableRef) -> TableMetadata:
        """Return the current metadata, as the server has it: the file itself is not read."""
        return self.fetch(ref)[0]

    def fetch(self, ref: TableRef) -> tuple[TableMetadata, Loaded | None]:
        """Return the current metadata, and the answer itself unless it is the one of last time."""
        seen = self._full.get(ref)
        known = self._memo.known(ref, seen[1], seen[2]) if seen is not None else None
        answer = self._client.get(self._path(ref), headers=_unless(seen[0]) if seen and known else None)
        if answer.status == _UNCHANGED and known is not None:
            return known, None
        self._must_be_there(ref, answer)
        return self._taken(ref, answer)

    def neighbours(self) -> Sequence[Pointer]:
        """None: the protocol has no list of a server's warehouses, and this client may not be let into them."""
        return ()

    def neighbour(self, pointer: Pointer) -> TableMetadata:
        """Return the metadata of a file that the catalog does not name."""
        return self._memo.parsed(pointer.ref, pointer.metadata_location, None, self.files.read)

    def connected(self) -> str:
        """Ask for the server's configuration. Raises `CatalogUnavailable` with how to mend it."""
        lends = "lends credentials where it can" if self.properties.vended else "is not asked for credentials"
        return f"answers, auth {self.properties.auth}, {len(self._client.config)} settings, {lends}"

    def may_commit(self, ref: TableRef) -> str:
        """Ask for a commit whose requirement no table meets: a server that compares it would have let us commit."""
        asked = {"requirements": [{"type": "assert-table-uuid", "uuid": str(UUID(int=0))}], "updates": []}
        try:
            answer = self._client.send("POST", self._path(ref), data=msgspec.json.encode(asked))
        except RequestOutcomeUnknown as error:
            raise CatalogUnavailable(f"{self._client.where} does not answer: {error}") from error
        if answer.status == _FORBIDDEN:
            raise UnsupportedTable(
                f"the catalog forbids commits to {ref} ({answer.said}): grant the right to write data and metadata"
            )
        return f"commits to {ref} are allowed" if answer.status == _CONFLICT else f"nobody knows ({answer.said})"

    def restorable(self, base: TableMetadata, change: RestoreSnapshots) -> str:
        """Return what the server cannot put back, by the metadata that it has now."""
        return left_out(self._committing(base.ref).document(base.ref)[1], change)

    def commit(self, base: TableMetadata, change: Change) -> TableMetadata:
        """Ask the server for the change, under requirements on the table's uuid and every ref of `base`."""
        require_inside(self.environment, self.name, base)
        after = self._committing(base.ref).run(base, change)
        with self._lock:
            self._full.pop(base.ref, None)
        return after

    def restore(self, ref: TableRef, location: str, change: RemoveSnapshots) -> Sequence[str]:
        """Put back the refs that a commit dropped whose process ended before it could; their names."""
        names = self._committing(ref).restore(ref, location, change)
        with self._lock:
            self._full.pop(ref, None)
        return names

    def _committing(self, ref: TableRef) -> Committing:
        return Committing(self._client, self.files, self.clock, self._path(ref), self.fetch)

    def _taken(self, ref: TableRef, answer: RestResponse) -> tuple[TableMetadata, Loaded]:
        """Return a full answer as metadata; what it lends is kept."""
        table = loaded(ref, answer.body, self._client.where)
        location, content = self._location(ref, table), bytes(table.metadata)
        checksum = hashlib.blake2b(content, digest_size=16).digest()
        metadata = self._memo.parsed(ref, location, checksum, lambda _: content)
        if answer.etag:
            with self._lock:
                self._full[ref] = (answer.etag, location, checksum)
        self._keep(ref, metadata.location, table)
        return metadata, table

    def _pointer(self, ref: TableRef) -> Pointer | None:
        """None: it was dropped meanwhile. One that may not be loaded is listed, and says why when it is loaded."""
        seen = self._seen.get(ref)
        answer = self._client.get(self._path(ref), _REFS, _unless(seen[0]) if seen else None)
        if answer.status == _UNCHANGED and seen is not None:
            return Pointer(ref, seen[1])
        if answer.status == _NOT_FOUND:
            return None
        if answer.status in _REFUSED:
            return Pointer(ref, f"{self.properties.uri}/{self._path(ref)}")
        self._must_be_there(ref, answer)
        location = self._location(ref, loaded(ref, answer.body, self._client.where))
        with self._lock:
            if answer.etag:
                self._seen[ref] = (answer.etag, location)
            else:
                self._seen.pop(ref, None)
        return Pointer(ref, location)

    def _must_be_there(self, ref: TableRef, answer: RestResponse) -> None:
        if answer.status == _NOT_FOUND:
            raise TableNotFound(f"{ref}: the catalog does not know this table; `icewright tables` lists what it knows")
        if answer.status in _REFUSED:
            mend = "; grant the right to read it" if answer.status == _FORBIDDEN else ""
            raise UnsupportedTable(f"{ref}: the catalog does not let it be loaded ({answer.said}){mend}")
        if answer.status != _OK:
            raise CatalogUnavailable(f"{ref}: {self._client.where} did not load it: {answer.said}")

    def _location(self, ref: TableRef, table: Loaded) -> str:
        if not table.metadata_location:
            raise UnsupportedTable(f"{ref}: the catalog does not say which metadata file is current")
        return table.metadata_location

    def _path(self, ref: TableRef) -> str:
        return f"namespaces/{self._client.namespace(*ref.namespace)}/tables/{quote(ref.name, safe='')}"

    def _renew(self, ref: TableRef) -> None:
        """Ask for fresh credentials, of the endpoint for them where there is one."""
        if self._client.offers(_CREDENTIALS):
            answer = self._client.get(f"{self._path(ref)}/credentials")
            self._must_be_there(ref, answer)
            lent = lent_credentials(ref, answer.body, self._client.where)
            self._lend(ref, "", {}, lent.storage_credentials)
            return
        answer = self._client.get(self._path(ref), _REFS)
        self._must_be_there(ref, answer)
        table = loaded(ref, answer.body, self._client.where)
        location = parse(ref, self._location(ref, table), bytes(table.metadata)).location
        self._keep(ref, location, table)

    def _keep(self, ref: TableRef, location: str, table: Loaded) -> None:
        if self.properties.vended:
            self._lend(ref, location, table.config or {}, table.storage_credentials or ())

    def _lend(
        self, ref: TableRef, location: str, config: Mapping[str, str], credentials: tuple[StorageCredential, ...]
    ) -> None:
        """Keep what is lent, unless it leads to a host that nobody declared."""
        for said in (config, *(lent.config for lent in credentials)):
            require_hosts(self.environment, self.name, said)
        self._lent.keep(ref, location, self._storage(), config, credentials)

    def _storage(self) -> Mapping[str, str]:
        """Return what the configuration says of storage, the server's part of it too."""
        prefixes = ("s3.", "client.", "gcs.", "adls.")
        return {k: str(v) for k, v in self._client.config.items() if k.startswith(prefixes)}


def _unless(etag: str) -> dict[str, str]:
    return {"If-None-Match": etag}
