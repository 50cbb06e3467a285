"""Catalogs of type `nessie`: one branch of a Nessie server, and for vacuum all of them, by Nessie's own API.

Tables are loaded from the metadata file that a commit names, and committed as Nessie's native client does: a new file,
and one commit that names it. Nessie's REST side would serve, and write, the newest snapshot alone: a commit through it
makes a table written by the native client forget its history.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, assert_never

from icewright.adapters.catalogs.metadata_files import MetadataFileCatalog
from icewright.adapters.catalogs.nessie_client import NessieClient, NessieNotFound
from icewright.adapters.catalogs.staging import Staged, conflict, gone, landed_before, write_metadata
from icewright.adapters.catalogs.translate.nessie import NessieCatalogProperties
from icewright.adapters.metadata.parsing import parse
from icewright.core.allowlist import require_inside
from icewright.core.errors import (
    AccessDenied,
    CatalogUnavailable,
    CommitConflict,
    CommitStateUnknown,
    Refused,
    TableNotFound,
)
from icewright.core.table import TableMetadata, TableRef
from icewright.core.vacuum import BY_VACUUM, Commit, Content, GcConfig, Key, Reference, is_forbidden_by_user
from icewright.core.words import count
from icewright.ports import AddSnapshot, Change, Pointer, RemoveSnapshots, RestoreSnapshots, SetRefs, SetStatistics

_MAX_COMMITS = 5000  # since the last listing; after more, all tables are listed again
_NO_SNAPSHOT = -1


@dataclass
class _BranchListing:
    """The head and the tables of a reference when it was listed last."""

    hash: str
    tables: dict[Key, Content]


@dataclass
class NessieCatalog(MetadataFileCatalog):
    """The Catalog port over one branch or tag of a Nessie server. Thread-safe."""

    properties: NessieCatalogProperties
    _client: NessieClient = field(init=False)
    _served: dict[TableRef, tuple[TableMetadata, TableMetadata]] = field(default_factory=dict, init=False)
    _listings: dict[str, _BranchListing] = field(default_factory=dict, init=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)

    def __post_init__(self) -> None:
        self._client = NessieClient(self.name, self.properties.api, self.properties.token)

    def close(self) -> None:
        """Do nothing: connections end with their threads."""

    @property
    def branch(self) -> str:
        """Return the name of the branch or tag."""
        return self.properties.ref

    @property
    def server(self) -> str:
        """Return the server's address: equal for catalogs that are branches of one server."""
        return self.properties.api

    def pointers(self) -> Sequence[Pointer]:
        """Return every table of the branch, by the commits since the last listing, or all if that commit is gone."""
        tables = self._tables(self._head())
        return [Pointer(self._ref(key), content.metadata_location) for key, content in sorted(tables.items())]

    def _tables(self, head: Reference) -> Mapping[Key, Content]:
        """Return all tables of a reference, by the commits since the last listing where possible."""
        with self._lock:
            before = self._listings.get(head.name)
            listing = next((listing for listing in self._listings.values() if listing.hash == head.hash), None)
        if listing is None:
            tables = self._apply_log(before, head) if before is not None else None
            listing = _BranchListing(head.hash, self._client.entries(head.hash) if tables is None else tables)
        with self._lock:
            self._listings[head.name] = listing
        return listing.tables

    def _apply_log(self, previous: _BranchListing, head: Reference) -> dict[Key, Content] | None:
        """Return the tables by the commits since `previous`.

        Returns None if the branch moved elsewhere or there are too many commits.
        """
        changed: dict[Key, Content | None] = {}
        for number, commit in enumerate(self._client.log(head.hash)):
            if commit.hash == previous.hash:
                tables = {**previous.tables, **{k: c for k, c in changed.items() if c is not None}}
                return {k: c for k, c in tables.items() if changed.get(k, c) is not None}
            if number >= _MAX_COMMITS:
                return None
            for change in commit.changes:
                changed.setdefault(change.key, change.content)
        return None

    def load(self, ref: TableRef) -> TableMetadata:
        """Load the current metadata with `gc.enabled` false.

        `gc.enabled` is false because only vacuum, which sees all branches, may delete files.
        """
        content, _ = self._content(ref)
        stored = self._stored(ref, content.metadata_location)
        served = self._served.get(ref)
        if served is None or served[0] is not stored:
            by_vacuum = "false" if is_forbidden_by_user(stored.properties) else "true"
            properties = {**stored.properties, "gc.enabled": "false", BY_VACUUM: by_vacuum}
            served = self._served[ref] = stored, replace(stored, properties=properties)
        return served[1]

    def neighbours(self) -> Sequence[Pointer]:
        """Return every table of another branch or tag whose metadata file this branch does not name.

        Of several references that name one file the first counts. The catalog of its pointer is `CATALOG@REFERENCE`.
        """
        references = self.references()
        seen_locations = {c.metadata_location for c in self._tables(self._head()).values()}
        with self._lock:
            names = {self.branch, *(reference.name for reference in references)}
            self._listings = {name: listing for name, listing in self._listings.items() if name in names}
        pointers: list[Pointer] = []
        for reference in references:
            for key, content in self.tables(reference).items():
                if content.metadata_location not in seen_locations:
                    seen_locations.add(content.metadata_location)
                    ref = TableRef(f"{self.name}@{reference.name}", key[:-1], key[-1])
                    pointers.append(Pointer(ref, content.metadata_location))
        return pointers

    def commit(self, base: TableMetadata, change: Change) -> TableMetadata:
        """Write the next metadata file and commit it to the branch, if the table is still at `base`."""
        if isinstance(change, RemoveSnapshots):
            raise Refused(
                f"{base.ref}: other branches may need its snapshots; `icewright vacuum {self.name}` sees them"
            )
        try:
            content, hash_ = self._content(base.ref)
        except TableNotFound as error:
            raise gone(base) from error
        if content.metadata_location != base.metadata_location:
            raise conflict(base)
        return self._commit(Reference(self.branch, is_branch=True, hash=hash_), content, base, change)

    def gc_config(self) -> GcConfig | None:
        """Return Nessie's stored configuration of garbage collection."""
        return self._client.gc_config()

    def references(self) -> Sequence[Reference]:
        """Return every branch and tag of the repository."""
        return self._client.references()

    def unmerged(self, base: TableMetadata, since: datetime) -> Sequence[tuple[datetime, str]]:
        """Return which other branches changed the table from what `base` is, for the first time after `since`."""
        key, found = (*base.ref.namespace, base.ref.name), list[tuple[datetime, str]]()
        for reference in self.references():
            if reference.is_branch and reference.name != self.branch:
                content = self.tables(reference).get(key)
                differs = content is not None and content.metadata_location != base.metadata_location
                if differs and (first := self._first_change(reference, key, base.metadata_location, since)):
                    found.append((first, f"branch {reference.name} of the catalog"))
        return found

    def _first_change(self, reference: Reference, key: Key, location: str, since: datetime) -> datetime | None:
        """Return when the reference changed the table from the metadata file at `location`.

        None when it was before `since`, or when it changed the table from another version.
        """
        first: Commit | None = None
        for commit in self.log(reference):
            if commit.time < since:
                break
            for change in (change for change in commit.changes if change.key == key):
                if first is not None and change.content is not None and change.content.metadata_location == location:
                    return first.time
                first = commit
        if first is None or first.parent is None:
            return None
        before, _ = self._client.contents(f"@{first.parent}", [key])
        return first.time if [content.metadata_location for content in before] == [location] else None

    def tables(self, reference: Reference, keys: Iterable[Key] | None = None) -> Mapping[Key, Content]:
        """Return the tables at a reference's hash."""
        try:
            if keys is None:
                return self._tables(reference)
            return {content.key: content for content in self._client.contents(f"@{reference.hash}", keys)[0]}
        except NessieNotFound as error:
            raise CatalogUnavailable(f"catalog {self.name}: {reference.name} at {reference.hash}: {error}") from error

    def log(self, reference: Reference) -> Iterator[Commit]:
        """Yield the reference's commits, newest first."""
        try:
            yield from self._client.log(reference.hash)
        except NessieNotFound as error:
            raise CatalogUnavailable(f"catalog {self.name}: {reference.name} at {reference.hash}: {error}") from error

    def read(self, content: Content) -> TableMetadata:
        """Return the stored metadata file of a table version."""
        location = content.metadata_location
        return parse(self._ref(content.key), location, self.files.read(location))

    def expire(
        self, reference: Reference, content: Content, base: TableMetadata, change: RemoveSnapshots
    ) -> TableMetadata:
        """Remove snapshots from a table's metadata in one commit to the branch."""
        now, hash_ = self._contents(reference.name, content.key)
        if now != [content]:
            raise CommitConflict(f"{base.ref} on {reference.name}: another writer committed since {reference.hash}")
        return self._commit(replace(reference, hash=hash_), content, base, change)

    def _commit(self, branch: Reference, content: Content, base: TableMetadata, change: Change) -> TableMetadata:
        require_inside(self.allowlist, self.name, base)
        new = write_metadata(self.files, base, change, self.clock.now())
        if new is None:
            return base
        try:
            self._client.commit(branch, content, _content_ids(new), _message(base, change))
        except (CommitConflict, AccessDenied, CatalogUnavailable, NessieNotFound) as error:
            if landed_before(error, base, new.location, lambda _: self._at(branch, content)):
                return new.after
            self.files.delete([new.location], 1)  # no commit came to use it
            if isinstance(error, NessieNotFound):
                raise CommitConflict(f"{base.ref}: branch {branch.name} is not there any more ({error})") from error
            raise
        except CommitStateUnknown as error:
            self._resolve_lost_response(branch, content, new.location, error)
        return new.after

    def _resolve_lost_response(
        self, branch: Reference, content: Content, location: str, error: CommitStateUnknown
    ) -> None:
        """Return if the commit of a lost response landed.

        Otherwise raises `CommitStateUnknown`, as a later commit may hide this one.
        """
        try:
            now, _ = self._client.contents(branch.name, [content.key])
        except (CatalogUnavailable, AccessDenied, NessieNotFound):
            raise error from None
        if [c.metadata_location for c in now] != [location]:
            raise error

    def _at(self, branch: Reference, content: Content) -> TableMetadata:
        """Return the table of the content's key at the head of a branch. Raises `TableNotFound`."""
        contents, _ = self._contents(branch.name, content.key)
        if not contents:
            raise TableNotFound(f"{self._ref(content.key)}: branch {branch.name} has no such table")
        return self.read(contents[0])

    def _contents(self, branch: str, key: Key) -> tuple[list[Content], str]:
        """Return the table of a key at the head of a branch, if there are both, and the hash of the head."""
        try:
            return self._client.contents(branch, [key])
        except NessieNotFound:
            return [], ""

    def _content(self, ref: TableRef) -> tuple[Content, str]:
        try:
            contents, hash_ = self._client.contents(self.branch, [(*ref.namespace, ref.name)])
        except NessieNotFound as error:
            raise self._missing_branch(error) from error
        if not contents:
            raise TableNotFound(f"{ref}: branch {self.branch} has no such table; `icewright tables` lists what it has")
        return contents[0], hash_

    def _head(self) -> Reference:
        try:
            return self._client.reference(self.branch)
        except NessieNotFound as error:
            raise self._missing_branch(error) from error

    def _missing_branch(self, error: NessieNotFound) -> CatalogUnavailable:
        where = f"catalogs.{self.name}.properties.ref"
        return CatalogUnavailable(f"catalog {self.name} has no branch {self.branch} ({error}): correct {where}")

    def _ref(self, key: Key) -> TableRef:
        return TableRef(self.name, key[:-1], key[-1])


def _content_ids(new: Staged) -> dict[str, Any]:
    """Return the ids that Nessie stores with the location of a metadata file."""
    snapshot = new.after.current_snapshot_id
    return {
        "metadataLocation": new.location,
        "snapshotId": _NO_SNAPSHOT if snapshot is None else snapshot,
        "schemaId": new.ids["current-schema-id"],
        "specId": new.ids["default-spec-id"],
        "sortOrderId": new.ids["default-sort-order-id"],
    }


def _message(base: TableMetadata, change: Change) -> str:
    name = ".".join((*base.ref.namespace, base.ref.name))
    match change:
        case AddSnapshot():
            return f"Icewright rewrites metadata of {name}"
        case RemoveSnapshots():
            return f"Icewright expires {count(len(change.snapshot_ids), 'snapshot')} of {name}"
        case SetRefs():
            return f"Icewright sets {len(change.refs)} and removes {count(len(change.removed), 'ref')} of {name}"
        case RestoreSnapshots():
            return f"Icewright puts back {count(len(change.snapshots), 'snapshot')} of {name}"
        case SetStatistics():
            return f"Icewright sets statistics of {name}"
        case _:
            assert_never(change)
