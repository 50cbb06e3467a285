"""Metadata files that a table does not reach: another table's, another writer's of this one, or debris.

A catalog's entry may be stale: the table was registered in another catalog, which commits since then. Its newer
metadata files name the current one in their log, and everything that they reach looks unreached from here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import pairwise

from icewright.adapters.metadata.document import staged_by_us
from icewright.adapters.metadata.lineage import Lineage, lineage
from icewright.core.errors import FileMissing, MetadataUnreadable, Refused
from icewright.core.paths import key
from icewright.core.runs import backoff
from icewright.core.table import TableMetadata
from icewright.ports import Clock

_COMMIT = timedelta(minutes=10)  # within which a commit that is under way has landed, or failed
_LOOKS = 7  # at a table whose next commit may be under way: six seconds


@dataclass(frozen=True, slots=True)
class Strange:
    """A metadata file in a table's places that the table does not reach."""

    path: str
    modified: datetime | None


@dataclass(frozen=True, slots=True)
class Found:
    """What strange metadata files are."""

    foreign: tuple[tuple[str, str], ...]  # files of other tables, with their uuids
    successors: tuple[Strange, ...]  # versions of this table that somebody else made
    debris: tuple[str, ...]  # files that are no metadata: empty, or cut


def identify(
    metadata: TableMetadata, strange: Iterable[Strange], read: Callable[[str], bytes], adopted: frozenset[str]
) -> Found:
    """Read every strange file. What a person has adopted, by path or by uuid, is told no more.

    A successor names the current file in its log, or has the current snapshot and newer ones. Any other file that the
    current one does not come from belongs to a fork, unless it is a commit that lost a race: nothing builds on it, and
    it was made at the time of the version that replaced its base. Raises `MetadataUnreadable` when a file may be
    somebody's and cannot be read.
    """
    own: list[tuple[Strange, Lineage]] = []
    foreign: list[tuple[str, str]] = []
    debris: list[str] = []
    for one in strange:
        if key(one.path) in adopted:
            continue
        try:
            content = read(one.path)
        except FileMissing:  # removed since it was listed
            continue
        line = lineage(content, one.path)
        if line is None:
            debris.append(one.path)
        elif line.table_uuid == metadata.table_uuid or _is_ancestor(line, metadata):
            own.append((one, line))
        elif line.table_uuid not in adopted:
            foreign.append((one.path, line.table_uuid))
    return Found(tuple(foreign), tuple(_successors(metadata, own, read)), tuple(debris))


def _is_ancestor(line: Lineage, metadata: TableMetadata) -> bool:
    """Return whether a file without a uuid is from the time before the table had one."""
    same_place = key(line.location).rstrip("/") == key(metadata.location).rstrip("/")
    return not line.table_uuid and same_place and bool(line.snapshot_ids & metadata.by_id.keys())


def _successors(
    metadata: TableMetadata, own: Sequence[tuple[Strange, Lineage]], read: Callable[[str], bytes]
) -> list[Strange]:
    current = key(metadata.metadata_location)
    replaced_by = _replaced_by(metadata, own, read) if own else {}
    ours = replaced_by.keys() | {current}
    built_on = {key(path) for _, line in own for path in line.log}
    since = metadata.log_since or metadata.last_updated  # what is older is a version that the log has dropped
    found: list[Strange] = []
    for one, line in own:
        logged = {key(path) for path in line.log}
        newer = line.last_updated is not None and line.last_updated >= since
        head_moved_on = (
            line.current_snapshot_id != metadata.current_snapshot_id
            and metadata.current_snapshot_id in line.snapshot_ids
            and line.last_updated is not None
            and line.last_updated > metadata.last_updated
        )
        after = current in logged or head_moved_on
        extended = key(one.path) in built_on
        base = key(line.log[-1]) if line.log else current
        theirs = key(one.path) not in ours and (newer or bool(logged & ours))
        fork = theirs and (extended or not (base == current or _lost_race(one, line, metadata, replaced_by, read)))
        crashed_here = staged_by_us(one.path) and not extended and bool(line.log) and base == current
        known = line.snapshot_ids <= metadata.by_id.keys()
        copy = known and line.last_updated is not None and line.last_updated <= metadata.last_updated
        if fork or (after and not crashed_here and not copy):
            found.append(one)
    return found


def _replaced_by(
    metadata: TableMetadata, own: Sequence[tuple[Strange, Lineage]], read: Callable[[str], bytes]
) -> dict[str, str]:
    """Return the next version by the key of each that the current one comes from, as far back as files tell."""
    logs = {key(one.path): (*line.log, one.path) for one, line in own}
    waiting = [(*metadata.metadata_log, metadata.metadata_location)]
    if metadata.metadata_log:  # the oldest that is named knows the ones before it
        oldest = metadata.metadata_log[0]
        line = _read(oldest, read)
        waiting += [(*line.log, oldest)] if line is not None else []
    found: dict[str, str] = {}
    while waiting:
        for before, after in pairwise(waiting.pop()):
            if key(before) not in found:
                found[key(before)] = after
                waiting += [logs[key(before)]] if key(before) in logs else []
    return found


def _lost_race(
    one: Strange, line: Lineage, metadata: TableMetadata, replaced_by: Mapping[str, str], read: Callable[[str], bytes]
) -> bool:
    """Return whether a file was made when its base was replaced, as writers look at the base right before they commit.

    Of files that Icewright staged this is taken for granted.
    """
    rival = replaced_by.get(key(line.log[-1]))
    if rival is None or staged_by_us(one.path):
        return rival is not None
    if rival == metadata.metadata_location:
        made: datetime | None = metadata.last_updated
    else:
        winner = _read(rival, read)
        made = winner.last_updated if winner is not None else None
    return made is not None and line.last_updated is not None and abs(line.last_updated - made) < _COMMIT


def _read(path: str, read: Callable[[str], bytes]) -> Lineage | None:
    """Return the lineage of a version, None when it is gone or cannot be read."""
    try:
        return lineage(read(path), path)
    except (FileMissing, MetadataUnreadable):
        return None


def without_successor(
    metadata: TableMetadata,
    strange: Iterable[Strange],
    read: Callable[[str], bytes],
    load: Callable[[], TableMetadata],
    clock: Clock,
    adopted: frozenset[str],
) -> Found:
    """Return the same, after giving a commit that is under way the time to land.

    Raises `Refused` when somebody else writes the table, through another catalog most likely, and when a file may be
    somebody's and cannot be read.
    """

    def identified(now: TableMetadata, files: Iterable[Strange]) -> Found:
        try:
            return identify(now, files, read, adopted)
        except MetadataUnreadable as error:
            raise unreadable(metadata, error) from error

    found = identified(metadata, strange)
    left = list(found.successors)
    for look in range(1, _LOOKS + 1):
        if not left or not _under_way(left, clock.now()):
            break
        clock.sleep(backoff(look).total_seconds())
        left = list(identified(load(), left).successors)
    if left:
        raise Refused(
            f"{metadata.ref}: {left[0].path} is a newer version of the table that this catalog does not know: somebody "
            "writes it through another catalog, and nothing is expired or deleted here. Drop the entry here (without "
            f"purging), or, if that version is dead, say so by `icewright adopt {metadata.ref}`",
            "successor",
        )
    return found


def _under_way(files: Sequence[Strange], now: datetime) -> bool:
    """Return whether all of these could be a commit that has not landed yet."""
    return all(one.modified is None or now - one.modified < _COMMIT for one in files)


def no_foreign_table(metadata: TableMetadata, found: Found) -> None:
    """Raise `Refused` when a metadata file in the table's places is another table's."""
    for path, uuid in found.foreign:
        raise Refused(
            f"{metadata.ref}: {path} is metadata of another table (uuid {uuid}): two tables share the location, "
            f"nothing is deleted. If that one is gone for good, `icewright adopt {metadata.ref}` takes all",
            "foreign_metadata",
        )


def unreadable(metadata: TableMetadata, error: MetadataUnreadable) -> Refused:
    """A file that may be another table's, and that nobody here can read, stops whatever would delete beside it."""
    return Refused(
        f"{metadata.ref}: {error}: it may be another table's; if it is nobody's, `icewright adopt {metadata.ref}`",
        "foreign_metadata",
    )
