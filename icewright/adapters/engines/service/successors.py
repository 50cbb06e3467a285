"""Metadata files that a table does not reference: of another table, of another writer of this one, or debris.

A catalog's entry may be stale: the table was registered in another catalog, which has committed since. The newer
metadata files name the current one in their logs, and all files that they add look unreached from here.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import pairwise

from icewright.adapters.metadata.document import is_staged_by_us
from icewright.adapters.metadata.parsing import Lineage, is_document, lineage
from icewright.core.errors import FileMissing, MetadataUnreadable, Refused
from icewright.core.paths import key
from icewright.core.runs import backoff
from icewright.core.table import TableMetadata
from icewright.core.words import in_shell
from icewright.ports import Clock

_COMMIT = timedelta(minutes=10)  # within which a commit that is under way has landed, or failed
_MAX_LOADS = 7  # at a table whose next commit may be under way: six seconds


@dataclass(frozen=True, slots=True)
class UnreferencedMetadata:
    """A metadata file in a table's places that the table's metadata does not name."""

    path: str
    modified: datetime | None


@dataclass(frozen=True, slots=True)
class IdentifiedMetadata:
    """The unreferenced metadata files of a table's places, by what they are."""

    foreign: tuple[tuple[str, str], ...]  # files of other tables, with their uuids
    successors: tuple[UnreferencedMetadata, ...]  # versions of this table by another writer
    debris: tuple[str, ...]  # empty or truncated files
    documents: tuple[str, ...] = ()  # valid JSON that is no table metadata

    def among(self, paths: Collection[str]) -> IdentifiedMetadata:
        """Return the files that are among these paths."""
        foreign = tuple(one for one in self.foreign if one[0] in paths)
        successors = tuple(one for one in self.successors if one.path in paths)
        debris, documents = (tuple(p for p in files if p in paths) for files in (self.debris, self.documents))
        return IdentifiedMetadata(foreign, successors, debris, documents)


def identify(
    metadata: TableMetadata,
    unreferenced: Iterable[UnreferencedMetadata],
    read: Callable[[str], bytes],
    adopted: frozenset[str],
) -> IdentifiedMetadata:
    """Read and classify unreferenced metadata, without files that a person has adopted by path or uuid.

    A successor names the current file in its log, or has the current snapshot and newer ones. Any other file that the
    current one does not come from belongs to a fork, unless it is a commit that lost a race: nothing builds on it, and
    it was made at the time of the version that replaced its base. Raises `MetadataUnreadable` when a file cannot
    be read and may belong to a table.
    """
    tables: list[tuple[UnreferencedMetadata, Lineage]] = []
    debris: list[str] = []
    documents: list[str] = []
    for file in unreferenced:
        if key(file.path) in adopted:
            continue
        try:
            content = read(file.path)
        except FileMissing:  # removed since it was listed
            continue
        candidate = lineage(content, file.path)
        if candidate is None:
            (documents if is_document(content, file.path) else debris).append(file.path)
        else:
            tables.append((file, candidate))
    named = frozenset[str]() if metadata.table_uuid else _own_versions(metadata, tables, read)
    own: list[tuple[UnreferencedMetadata, Lineage]] = []
    foreign: list[tuple[str, str]] = []
    for file, candidate in tables:
        if _is_own(file, candidate, metadata, named):
            own.append((file, candidate))
        elif candidate.table_uuid not in adopted:
            foreign.append((file.path, candidate.table_uuid))
    return IdentifiedMetadata(tuple(foreign), tuple(_successors(metadata, own, read)), tuple(debris), tuple(documents))


def _is_own(file: UnreferencedMetadata, candidate: Lineage, metadata: TableMetadata, named: frozenset[str]) -> bool:
    """Return whether a file is a version of the table by its uuid, or by its history where it has no uuid.

    A table may have got its uuid late. Two files without a uuid are of one table only if they have snapshots in common,
    or if the log of one leads to the `named` versions of the other.
    """
    if candidate.table_uuid:
        return candidate.table_uuid == metadata.table_uuid
    shares_snapshots = bool(candidate.snapshot_ids & metadata.by_id.keys())
    if metadata.table_uuid:
        return shares_snapshots and key(candidate.location) == key(metadata.location)
    return shares_snapshots or not named.isdisjoint(map(key, (file.path, *candidate.log)))


def _own_versions(
    metadata: TableMetadata, files: Sequence[tuple[UnreferencedMetadata, Lineage]], read: Callable[[str], bytes]
) -> frozenset[str]:
    """Return the keys of the current version and of earlier ones, as far back as logs lead."""
    return frozenset(_replaced_by(metadata, files, read)) | {key(metadata.metadata_location)}


def _successors(
    metadata: TableMetadata, own: Sequence[tuple[UnreferencedMetadata, Lineage]], read: Callable[[str], bytes]
) -> list[UnreferencedMetadata]:
    if not own:
        return []
    built_on = frozenset(key(path) for _, candidate in own for path in candidate.log)
    current = key(metadata.metadata_location)
    history = _History(metadata, current, _replaced_by(metadata, own, read), built_on, read)
    return [file for file, candidate in own if history.is_fork(file, candidate) or history.is_next(file, candidate)]


@dataclass(frozen=True, slots=True)
class _History:
    """What is known of the versions of a table, to tell what another file of the table is to them."""

    metadata: TableMetadata  # the current version
    current: str  # its key
    replaced_by: Mapping[str, str]  # the location of the next version by the key of each earlier one
    built_on: AbstractSet[str]  # the keys of the files that the logs of other files name
    read: Callable[[str], bytes]

    def is_fork(self, file: UnreferencedMetadata, candidate: Lineage) -> bool:
        """Return whether a file is no version of the table, and neither a commit that failed on one."""
        metadata, path = self.metadata, key(file.path)
        since = metadata.log_since or metadata.last_updated  # older files are versions that the log has dropped
        is_newer = candidate.last_updated is not None and candidate.last_updated >= since
        if self._is_version(path) or not (is_newer or any(map(self._is_version, map(key, candidate.log)))):
            return False
        if path in self.built_on:
            return True
        may_have_failed = self._base(candidate) == self.current
        return not may_have_failed and not _lost_race(file, candidate, metadata, self.replaced_by, self.read)

    def is_next(self, file: UnreferencedMetadata, candidate: Lineage) -> bool:
        """Return whether a file comes after the current version, whatever its time says, and is no commit of ours."""
        metadata, updated = self.metadata, candidate.last_updated
        head_moved_on = (
            candidate.current_snapshot_id != metadata.current_snapshot_id
            and metadata.current_snapshot_id in candidate.snapshot_ids
            and updated is not None
            and updated > metadata.last_updated
        )
        if not head_moved_on and self.current not in map(key, candidate.log):
            return False
        return not (is_staged_by_us(file.path) and bool(candidate.log) and self._base(candidate) == self.current)

    def _is_version(self, path: str) -> bool:
        return path == self.current or path in self.replaced_by

    def _base(self, candidate: Lineage) -> str:
        """Return the key of the version on which a file was made."""
        return key(candidate.log[-1]) if candidate.log else self.current


def _replaced_by(
    metadata: TableMetadata, own: Sequence[tuple[UnreferencedMetadata, Lineage]], read: Callable[[str], bytes]
) -> dict[str, str]:
    """Return the location of the next version by the key of each earlier version, as far back as files tell."""
    logs = {key(file.path): (*candidate.log, file.path) for file, candidate in own}
    pending_logs = [(*metadata.metadata_log, metadata.metadata_location)]
    if metadata.metadata_log:  # the log of the oldest named version has the versions before it
        oldest = metadata.metadata_log[0]
        candidate = _read(oldest, read)
        pending_logs += [(*candidate.log, oldest)] if candidate is not None else []
    next_versions: dict[str, str] = {}
    while pending_logs:
        for before, after in pairwise(pending_logs.pop()):
            if key(before) not in next_versions:
                next_versions[key(before)] = after
                pending_logs += [logs[key(before)]] if key(before) in logs else []
    return next_versions


def _lost_race(
    file: UnreferencedMetadata,
    candidate: Lineage,
    metadata: TableMetadata,
    replaced_by: Mapping[str, str],
    read: Callable[[str], bytes],
) -> bool:
    """Return whether a file was made when its base was replaced, as by a writer that lost the race to commit.

    Files that Icewright staged always count as such.
    """
    rival = replaced_by.get(key(candidate.log[-1]))
    if rival is None or is_staged_by_us(file.path):
        return rival is not None
    if rival == metadata.metadata_location:
        replaced_at: datetime | None = metadata.last_updated
    else:
        winner = _read(rival, read)
        replaced_at = winner.last_updated if winner is not None else None
    return (
        replaced_at is not None
        and candidate.last_updated is not None
        and abs(candidate.last_updated - replaced_at) < _COMMIT
    )


def _read(path: str, read: Callable[[str], bytes]) -> Lineage | None:
    """Return the lineage of a version; None when its file does not exist or cannot be read."""
    try:
        return lineage(read(path), path)
    except (FileMissing, MetadataUnreadable):
        return None


def require_no_successor(
    metadata: TableMetadata,
    unreferenced: Iterable[UnreferencedMetadata],
    read: Callable[[str], bytes],
    load: Callable[[], TableMetadata],
    clock: Clock,
    adopted: frozenset[str],
) -> IdentifiedMetadata:
    """Return the classified files, after giving a commit that is in flight the time to land.

    Raises `Refused` when another writer commits to the table, most likely through another catalog, and when a file may
    belong to another table and cannot be read.
    """

    def identified(now: TableMetadata, files: Iterable[UnreferencedMetadata]) -> IdentifiedMetadata:
        try:
            return identify(now, files, read, adopted)
        except MetadataUnreadable as error:
            raise unreadable(metadata, error) from error

    identification = identified(metadata, unreferenced)
    successors = list(identification.successors)
    for look in range(1, _MAX_LOADS + 1):
        if not successors or not _may_be_in_flight(successors, clock.now()):
            break
        clock.sleep(backoff(look).total_seconds())
        successors = list(identified(load(), successors).successors)
    if successors:
        raise Refused(
            f"{metadata.ref}: a writer uses the table through another catalog, and nothing is expired or deleted here: "
            f"{successors[0].path} is a newer version that this catalog does not know. Drop the entry here (without "
            f"purging), or, if that version is dead, say so by `icewright adopt {in_shell(metadata.ref)}`",
            "successor",
        )
    return identification


def _may_be_in_flight(files: Sequence[UnreferencedMetadata], now: datetime) -> bool:
    """Return whether each of the files may be a commit that has not landed yet."""
    return all(file.modified is None or now - file.modified < _COMMIT for file in files)


def require_no_foreign_table(metadata: TableMetadata, identification: IdentifiedMetadata) -> None:
    """Raise `Refused` when a metadata file in the table's places is another table's."""
    for path, uuid in identification.foreign:
        raise Refused(
            f"{metadata.ref}: two tables share the location, and nothing is deleted: {path} is metadata of another "
            f"table (uuid {uuid}). If that one is gone for good, `icewright adopt {in_shell(metadata.ref)}` takes all",
            "foreign_metadata",
        )


def unreadable(metadata: TableMetadata, error: MetadataUnreadable) -> Refused:
    """Return the error for an unreadable file that may be another table's: so nothing is deleted."""
    return Refused(
        f"{metadata.ref}: {error}: it may be another table's; if it is nobody's, "
        f"`icewright adopt {in_shell(metadata.ref)}`",
        "foreign_metadata",
    )
