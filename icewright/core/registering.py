"""Which of the metadata files at a place is a table's newest version, where no catalog says so."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from typing import Any

from icewright.core.errors import MetadataUnreadable, Refused
from icewright.core.paths import key
from icewright.core.table import TableMetadata, TableRef
from icewright.core.words import count

_FILE = re.compile(r"v?(\d{1,18})(?:-[^/]*)?(?:\.gz)?\.metadata\.json(?:\.gz)?")


@dataclass(frozen=True, slots=True)
class RegisterResult:
    """A table that was registered, or would be, from a metadata file."""

    ref: TableRef
    metadata_location: str
    table_uuid: str
    snapshots: int
    files: int  # that were checked, and exist
    replaced: str | None  # the metadata file that the catalog named before, and that is lost
    notes: tuple[str, ...]
    dry_run: bool

    @property
    def document(self) -> dict[str, Any]:
        """Return the result as JSON."""
        return {"table": str(self.ref), **{name: value for name, value in asdict(self).items() if name != "ref"}}


@dataclass(frozen=True, slots=True)
class _End:
    metadata: TableMetadata
    number: int
    before: int  # the number of the version before, which a catalog took


def version_number(path: str) -> int | None:
    """Return the number that a metadata file's name begins with, as catalogs count versions; None of another file."""
    match = _FILE.fullmatch(path.rpartition("/")[2])
    return int(match[1]) if match else None


def newest(place: str, paths: Iterable[str], read: Callable[[str], TableMetadata]) -> TableMetadata:
    """Return the version that follows all others. Raises `Refused` when there is none, or another may be it as well.

    A log names what a catalog took. So a version that no log names is the newest one, or of a commit that lost: then a
    version with its number, or a higher one, was taken.
    """
    numbers = {path: number for path in paths if (number := version_number(path)) is not None}
    logged: set[str] = set()
    ends: list[_End] = []
    broken: list[tuple[int, str]] = []
    for path, number in sorted(numbers.items(), key=lambda item: (-item[1], item[0])):
        if key(path) in logged:
            continue
        try:
            metadata = read(path)
        except MetadataUnreadable as error:
            broken.append((number, str(error)))
            continue
        logged |= set(map(key, metadata.metadata_log))
        before = (version_number(path) for path in metadata.metadata_log)
        ends.append(_End(metadata, number, max((n for n in before if n is not None), default=number - 1)))
    if len({end.metadata.table_uuid for end in ends}) > 1:
        raise Refused(f"{place} has metadata files of more than one table: name the file that is meant")
    ends = [end for end in ends if key(end.metadata.metadata_location) not in logged]
    last = [end for end in ends if not any(_follows(other, end) for other in ends if other is not end)]
    if not last:
        raise Refused(f"{place} has no metadata file of a table that can be read, such as 00012-….metadata.json")
    if len(last) > 1:
        named = ", ".join(end.metadata.metadata_location for end in last[:3])
        raise Refused(
            f"{place} has {count(len(last), 'version')} that may be the newest: name the right one of {named}"
        )
    later = [error for number, error in broken if number > last[0].before]
    if later:
        raise Refused(f"{place}: a version that may be the newest cannot be read ({later[0]}): name the file to take")
    return last[0].metadata


def _follows(later: _End, earlier: _End) -> bool:
    """Return whether the log of an end names a version at least as high as another end, which is not younger."""
    return earlier.number <= later.before and earlier.metadata.last_updated <= later.metadata.last_updated
