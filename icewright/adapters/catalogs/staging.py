"""Writing the next metadata file before a catalog names it, and proving the outcome of a commit."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from icewright.adapters.metadata.changes import apply_change
from icewright.adapters.metadata.changes import unrestorable as unrestorable_into
from icewright.adapters.metadata.document import Editor, decode, encode, next_location
from icewright.adapters.metadata.parsing import parse
from icewright.core.errors import (
    CatalogUnavailable,
    CommitConflict,
    CommitStateUnknown,
    IcewrightError,
    MetadataUnreadable,
)
from icewright.core.paths import local_path
from icewright.core.runs import backoff
from icewright.core.table import TableMetadata, TableRef
from icewright.ports import Change, Clock, FileStat, RestoreSnapshots
from icewright.ports.work import catalog_context

_IDS = ("current-schema-id", "default-spec-id", "default-sort-order-id")
_MAX_LOADS = 3  # at the table after a lost reply


class RequestOutcomeUnknown(Exception):
    """Raised when a request may have reached the server and no answer came back: the commit may have been made."""


class NeverSent(CatalogUnavailable):
    """Raised when nothing of a request was sent, so that no commit can have been made by it."""


class Superseded(CommitConflict):
    """Raised when a look at the table, before anything is sent, finds that it is not the one of the plan any more."""


def conflict(base: TableMetadata) -> Superseded:
    """Return the error for a commit to a table that another writer has changed since `base`."""
    return Superseded(f"{base.ref}: another writer committed since {base.metadata_location}")


def gone(base: TableMetadata) -> Superseded:
    """Return the error for a commit to a table that was dropped since `base`."""
    return Superseded(f"{base.ref}: the table is gone since {base.metadata_location}")


class MetadataFiles(Protocol):
    """The part of the Files port that a catalog needs."""

    def read(self, path: str, /) -> bytes:
        """Return the content of a file."""

    def stat(self, paths: Sequence[str], concurrency: int, /) -> Mapping[str, FileStat | None]:
        """Return the size and time of each file, None where there is none."""

    def write(self, path: str, content: bytes, /) -> None:
        """Write a new file; an existing file is never overwritten."""

    def delete(self, paths: Sequence[str], concurrency: int, /) -> object:
        """Delete files; missing ones count as deleted."""


@dataclass(frozen=True, slots=True)
class NamedFiles:
    """The files whose paths a catalog names. Where it is `remote`, local paths raise `MetadataUnreadable`."""

    files: MetadataFiles
    catalog: str
    remote: bool = False  # whether all of its places are in object stores

    def read(self, path: str, /) -> bytes:
        """Return the content of a file."""
        with catalog_context(self.catalog):
            return self.files.read(self._allowed(path))

    def stat(self, paths: Sequence[str], concurrency: int, /) -> Mapping[str, FileStat | None]:
        """Return the size and time of each file, None where there is none."""
        with catalog_context(self.catalog):
            return self.files.stat([self._allowed(path) for path in paths], concurrency)

    def write(self, path: str, content: bytes, /) -> None:
        """Write a new file; an existing file is never overwritten."""
        with catalog_context(self.catalog):
            self.files.write(self._allowed(path), content)

    def delete(self, paths: Sequence[str], concurrency: int, /) -> object:
        """Delete files; missing ones count as deleted."""
        with catalog_context(self.catalog):
            return self.files.delete([self._allowed(path) for path in paths], concurrency)

    def _allowed(self, path: str) -> str:
        if self.remote and local_path(path) is not None:
            raise MetadataUnreadable(
                f"{path} is a local file, but all places of catalog {self.catalog} are in object stores: correct the "
                f"table's metadata location, or add the place to catalogs.{self.catalog}.allowed_locations"
            )
        return path


@dataclass(frozen=True, slots=True)
class Staged:
    """A written metadata file that no catalog names yet."""

    after: TableMetadata
    ids: Mapping[str, int]  # of schema, spec and sort order in force; format v1 may leave them out, and then it is 0

    @property
    def location(self) -> str:
        """Return the path of the metadata file that was written."""
        return self.after.metadata_location


def write_metadata(files: MetadataFiles, base: TableMetadata, change: Change, now: datetime) -> Staged | None:
    """Write the metadata file of `base` after `change`; return None if the change has no effect.

    Raises `Refused`, `MetadataUnreadable`.
    """
    document = decode(files.read(base.metadata_location), base.metadata_location)
    new = apply_change(document, base.metadata_location, change, now)
    if new is document:
        return None
    location = next_location(document, base.metadata_location)
    content = encode(new)
    ids = {name: Editor(new).get(name, 0) for name in _IDS}
    del document, new  # which hold the whole file as it was
    after = parse(base.ref, location, content)  # what cannot be read back is not written
    files.write(location, content)
    return Staged(after, ids)


def unrestorable(files: MetadataFiles, base: TableMetadata, change: RestoreSnapshots) -> str:
    """Return what the change cannot restore into the file of `base`; see `Catalog.unrestorable`."""
    return unrestorable_into(decode(files.read(base.metadata_location), base.metadata_location), change)


def landed_before(
    error: Exception, base: TableMetadata, location: str, load: Callable[[TableRef], TableMetadata]
) -> bool:
    """Return whether the commit of `location` landed although it was refused; it did not if it was never sent.

    So it is where a gateway sends a request again that the catalog has carried out. Raises `CommitStateUnknown` when
    the table cannot be read or is another one: under another name, it may need the file.
    """
    if isinstance(error, NeverSent | Superseded):
        return False
    try:
        now = load(base.ref)
    except IcewrightError as problem:
        unseen = str(problem)
    else:
        versions = (now.metadata_location, *now.metadata_log)
        if location in versions or base.metadata_location in versions:
            return location in versions
        unseen = f"{now.metadata_location} does not tell"
    raise CommitStateUnknown(f"{error}; whether {location} was committed cannot be seen: {unseen}") from error


def require_landed(
    base: TableMetadata,
    location: str,
    load: Callable[[TableRef], TableMetadata],
    clock: Clock,
    why: str,
    *,
    compares: bool,
) -> None:
    """Return if the table shows that the commit of `location` landed; else raise the outcome.

    Raises `CommitConflict` when the commit did not land and never will: another writer replaced `base`, and the catalog
    `compares` the replaced pointer. Otherwise raises `CommitStateUnknown`, as the request may still be under way.
    """
    evidence = "the table shows nothing yet"
    for look in range(1, _MAX_LOADS + 1):
        try:
            now = load(base.ref)
        except IcewrightError as error:
            evidence = f"nothing can be seen: {error}"
        else:
            if location in (now.metadata_location, *now.metadata_log):
                return
            if compares and base.metadata_location in now.metadata_log:
                raise CommitConflict(f"{base.ref}: {why}, and another writer committed first")
            if now.metadata_location != base.metadata_location:
                evidence = f"the table, now at {now.metadata_location}, does not tell"
                break
        if look < _MAX_LOADS:
            clock.sleep(backoff(look + 3).total_seconds())
    raise CommitStateUnknown(f"{base.ref}: {why}; of the commit of {location} {evidence}")
