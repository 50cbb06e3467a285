"""Where each file of a table lies in a copy of the table at another place, and the result of a copy."""

from __future__ import annotations

import hashlib
from dataclasses import asdict, dataclass
from typing import Any
from uuid import NAMESPACE_URL, uuid5

from icewright.core.paths import Location, canonical, split
from icewright.core.table import TableMetadata, TableRef
from icewright.core.words import byte_size, count

MARKER = "_icewright-copy.json"  # says of which table a place holds a copy; hidden from scans for orphans
_DIGITS = 12


@dataclass(frozen=True, slots=True)
class Relocation:
    """The paths of a table's files in its copy at `place`.

    What lies in the table's location keeps its path in it. Each other folder becomes one of the copy's place, whose
    name stands for the whole path of the folder. Nothing else counts, such as properties that a writer may change: an
    earlier copy has its files where a later one looks for them.
    """

    place: str
    location: Location  # of the table

    @classmethod
    def of(cls, metadata: TableMetadata, place: str) -> Relocation:
        """Return the relocation of a table to a place."""
        return cls(place.rstrip("/"), _location(metadata.location))

    def path(self, path: str) -> str:
        """Return where the copy has a file."""
        own = self.own(path)
        folder, _, name = path.rpartition("/")
        return own if own is not None else f"{self._elsewhere(folder)}/{name}"

    def own(self, path: str) -> str | None:
        """Return where the copy has what lies in the table's location, or is it; None for all else."""
        location, root = _location(path), self.location
        if (location.scheme, location.authority) != (root.scheme, root.authority):
            return None
        if location.path == root.path:
            return self.place
        rest = location.path.removeprefix(f"{root.path}/")
        outside = rest == location.path or {"", ".", ".."} & set(rest.split("/"))
        return None if outside else f"{self.place}/{rest}"

    def _elsewhere(self, folder: str) -> str:
        location = canonical(split(folder))
        text = f"{location.scheme}://{location.authority}{location.path}"
        return f"{self.place}/elsewhere/{hashlib.sha256(text.encode()).hexdigest()[:_DIGITS]}"


@dataclass(frozen=True, slots=True)
class CopyResult:
    """A copy of a table that is whole, or what a dry run would copy."""

    ref: TableRef
    place: str
    metadata_location: str  # of the copy: what a catalog registers
    table_uuid: str  # of the copy
    snapshots: int
    files: int  # that were copied, or would be
    bytes: int
    present: int  # files that the place had already
    dry_run: bool
    own_faults: int = 0  # of the table's metadata file, which the copy's has too, and which break no read

    @property
    def summary(self) -> str:
        """Return the result in one line."""
        copied = f"{count(self.files, 'file')} of {byte_size(self.bytes)} {'would be ' * self.dry_run}copied"
        own = (
            f"; {count(self.own_faults, 'fault')} of its metadata came along: check the table"
            if self.own_faults
            else ""
        )
        return f"{copied}, {self.present:,} were there already{own}"

    @property
    def document(self) -> dict[str, Any]:
        """Return the result as JSON."""
        values = {name: value for name, value in asdict(self).items() if name != "ref"}
        return {"table": str(self.ref), **values, "summary": self.summary}


def uuid_of_copy(table_uuid: str, place: str) -> str:
    """Return the uuid of a table's copy at a place: of its own, as both may be written to, and always the same."""
    return str(uuid5(NAMESPACE_URL, f"{table_uuid} {place}"))


def _location(path: str) -> Location:
    location = canonical(split(path))
    return Location(location.scheme, location.authority, location.path.rstrip("/"))
