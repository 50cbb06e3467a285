"""Checks that stop an automatic orphan removal until a person has looked: signs of files that are not the table's.

A table's writer chooses its location and write paths. If they point at a folder of other people's files, these would be
deleted as orphans. So a place that the table moved to, files that are older than the table or that no writer of Iceberg
tables would create there, and folders in which the table never wrote need a person's confirmation (`icewright adopt`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from urllib.parse import unquote_plus

import polars as pl

from icewright.adapters.engines.service.reachable import Canonical
from icewright.core.errors import AccessDenied, FolderMissing, Refused
from icewright.core.numbers import number_or
from icewright.core.paths import directory_key
from icewright.core.table import WRITE_PATHS, TableMetadata
from icewright.core.words import in_shell

_WRITTEN_BY_TABLES = (
    r"\.(?:parquet|orc|avro|puffin|stats|bin|crc)$|\.metadata\.json(?:\.gz)?$|\.gz\.metadata\.json$|\.tmp$"
)
_WRITTEN_BY_JOBS = r"(?:^|/)part-[^/]*$"  # by Hadoop and Spark, where they write files and no table
# folders of `write.object-storage.enabled`: of Iceberg 1.8 and later, and of the first versions (no dates, as 20260131)
_HASHES = r"[01]{4}/[01]{4}/[01]{4}(?:/[01]{8})?|(?=[0-9]*[a-f])[0-9a-f]{8}"
_FOUR_BYTES = r"(?=[a-z]*[^a-z/])[A-Za-z0-9_-]{5}[AQgw]"  # those of the versions between, which look like names
_LOG_LENGTH = 100  # Iceberg's default of write.metadata.previous-versions-max
_MAX_SKEW = timedelta(hours=1)  # how far our clock may be from the storage's


class Doubts:
    """Checks the orphans of an automatic scan for signs that they are not the table's own."""

    def __init__(self, metadata: TableMetadata, adopted: frozenset[str], *, by_age: bool = True) -> None:
        self._metadata = metadata
        self._confirmed = metadata.location in adopted
        self._created = _created(metadata) if by_age else None
        shapes = {tuple(field.name for field in spec.fields) for spec in metadata.specs}
        hashed = metadata.properties.get("write.object-storage.enabled", "").lower() == "true"
        hashes = f"{_HASHES}|{_FOUR_BYTES}" if hashed else _HASHES
        self._hashed = re.compile(rf"/(?:{hashes})(?=/|$)")
        self._shapes = sorted(shapes - {()}, key=len, reverse=True)
        self._folders: set[str] = set()  # those of orphans

    def moved(self, root: str) -> Refused:
        """Return the error of a place that the table came to after it was first seen."""
        return Refused(
            f"{self._metadata.ref}: {root} became a place of the table after it was first seen, and its files may be "
            f"somebody else's: look at them by a dry run, then confirm the place by {self._remedy}",
            "moved_location",
        )

    def check_files(self, orphans: pl.DataFrame, documents: Sequence[str]) -> None:
        """Raise `Refused` when one of the orphans (`path`, `modified`) was hardly written for the table.

        `documents` are named as metadata files are, and describe something else.
        """
        if self._confirmed or orphans.is_empty():
            return
        path = pl.col("path")
        of_tables = path.str.to_lowercase().str.contains(_WRITTEN_BY_TABLES) & ~path.str.contains(_WRITTEN_BY_JOBS)
        unexplained = orphans.filter(~of_tables | path.is_in(documents))
        why = "is no file that a writer of Iceberg tables leaves"
        if unexplained.is_empty() and self._created is not None:
            unexplained = orphans.filter(pl.col("modified") < self._created)
            why = f"is older than the table, which was made at {self._created:%Y-%m-%d %H:%M} UTC"
        if unexplained.height:
            raise Refused(
                f"{self._metadata.ref}: {unexplained['path'][0]} {why}, and no metadata of the table ever named it: "
                f"nothing is deleted before a person has looked (a dry run lists all) and says {self._remedy}",
                "unnamed_files",
            )
        self._folders.update(_folders(orphans))

    def check_folders(self, reached: Callable[[], Iterable[pl.DataFrame]], canonical: Canonical) -> None:
        """Raise `Refused` when orphans lie in a folder of their own, in which the table has no file.

        It may be the place of a table in a catalog that is not configured, whose metadata lies elsewhere. `reached`
        reads what the table reaches, which is needed where there are such folders alone.
        """
        metadata, location = self._metadata, self._metadata.location.rstrip("/")
        declared = [path for name in WRITE_PATHS if (path := metadata.properties.get(name))]
        owner = "/".join(location.split("/")[-2:])  # what writers add to a path that many tables share
        named = [location, f"{location}/data", f"{location}/metadata", *declared, *(f"{p}/{owner}" for p in declared)]
        known = {self._written_below(folder, canonical) for folder in named}
        unknown = {base: one for one in self._folders if (base := self._written_below(one, canonical)) not in known}
        for chunk in reached() if unknown else ():
            for folder in _folders(chunk):
                unknown.pop(self._written_below(folder, canonical), None)
        if unknown:
            folder = min(unknown.values())
            raise Refused(
                f"{metadata.ref}: no file of the table lies in {folder}, so that the files there may be another "
                f"table's, whose catalog is not configured: look at them by a dry run, then say {self._remedy}",
                "unnamed_files",
            )

    def _written_below(self, folder: str, canonical: Canonical) -> str:
        """Return the key of a folder without what writers add below it: hashes, and the folders of one partition."""
        parts = self._hashed.sub("", canonical(f"{folder}/").rstrip("/")).split("/")
        for shape in self._shapes:
            if tuple(unquote_plus(part.partition("=")[0]) for part in parts[-len(shape) :] if "=" in part) == shape:
                parts = parts[: -len(shape)]
                break
        return directory_key("/".join(parts))

    @property
    def _remedy(self) -> str:
        return f"`icewright adopt {in_shell(self._metadata.ref)}`"


def _folders(files: pl.DataFrame) -> pl.Series:
    """Return the folders in which the files lie."""
    return files.select(pl.col("path").str.extract(r"^(.*)/")).to_series().drop_nulls().unique()


def _created(metadata: TableMetadata) -> datetime | None:
    """Return when the table was made; None when its metadata log does not reach back so far."""
    longest = number_or(_LOG_LENGTH, metadata.properties.get("write.metadata.previous-versions-max", ""))
    if len(metadata.metadata_log) >= longest:
        return None
    times = [metadata.last_updated, *(s.timestamp for s in metadata.snapshots)]
    return min([*times, metadata.log_since] if metadata.log_since is not None else times)


def require_clocks_agree(
    metadata: TableMetadata,
    folder: str,
    now: datetime,
    storage_time: Callable[[str], datetime],
    *,
    planned_at: datetime | None,
    deletes: bool,
) -> None:
    """Raise `Refused` when our clock is far from the storage's: young files look old, or a delay ends too early.

    Our clock may have been mended since it was asked for `planned_at`, by which files and snapshots were called old.
    Its clock is read by a file that is written to `folder` and deleted again. Where that is denied, what `deletes` is
    refused too, and anything else goes on by our clock.
    """
    try:
        storages = storage_time(folder)
    except AccessDenied as error:
        if not deletes:
            return
        raise Refused(
            f"{metadata.ref}: nothing can be deleted where nothing may be written ({error}): grant the right to write "
            f"and delete below {folder}, or disable the operations that delete for this table",
            "read_only_storage",
        ) from error
    ours = now if planned_at is None else max(now, planned_at)
    if abs(ours - storages) > _MAX_SKEW:
        raise Refused(
            f"{metadata.ref}: the clock here says {ours:%Y-%m-%d %H:%M} UTC and that of the storage "
            f"{storages:%Y-%m-%d %H:%M}: files look older than they are, or deletions end their delay too early, and "
            "nothing goes by its age before the clocks agree",
            "clock_skew",
        )


def require_clocks_agree_at(
    metadata: TableMetadata,
    roots: Iterable[str],
    now: datetime,
    storage_time: Callable[[str], datetime],
    *,
    planned_at: datetime | None = None,
    deletes: bool = True,
) -> None:
    """Apply `require_clocks_agree` to each root that is there, as each may have a storage of its own."""
    for root in roots:
        with suppress(FolderMissing):
            require_clocks_agree(metadata, root, now, storage_time, planned_at=planned_at, deletes=deletes)


def require_few_orphans(metadata: TableMetadata, orphans: int, listed: int, most: float, look: str = "") -> None:
    """Raise `Refused` when an implausible share of the listed files is called orphan; `look` says how to see them."""
    if listed and orphans / listed > most:
        look = look or (
            f"look at `icewright run {in_shell(metadata.ref)} --op remove_orphans --dry-run --json --set "
            "remove_orphans.max_delete_ratio=1`, then raise the knob if they really are"
        )
        raise Refused(
            f"{metadata.ref}: {orphans} of {listed} files look like orphans, more than max_delete_ratio {most:g}: "
            f"{look}",
            "max_delete_ratio",
        )
