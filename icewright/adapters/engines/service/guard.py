"""What must hold before any file is deleted: allowed places, and no other table in the same place."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import polars as pl

from icewright.adapters.engines.service.reachable import Canonical, with_key
from icewright.core.errors import MetadataUnreadable, Refused, TableNotFound, UnsupportedTable
from icewright.core.paths import directory_key
from icewright.core.runs import FileFate
from icewright.core.table import TableMetadata, TableRef
from icewright.ports import Catalog, Pointer

_UUID = re.compile(rb'"table-uuid"\s*:\s*"([^"]+)"')
_READERS = 8


@dataclass(frozen=True)
class Guard:
    """The catalogs as a fleet, and where files may be deleted at all.

    Where the other tables of the fleet lie is learnt from evaluations, or from their metadata, once for each version.
    """

    catalogs: Mapping[str, Catalog]
    allowed_locations: Mapping[str, Sequence[str]]  # by catalog; where there is none nothing is deleted
    canonical: Canonical
    evaluated: Callable[[], Mapping[Pointer, tuple[str, ...]]]  # places by table and metadata file, as last evaluated
    _places: dict[Pointer, _Places] = field(default_factory=dict, init=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)

    def _allows(self, metadata: TableMetadata, place: str) -> bool:
        """Whether the catalog's `allowed_locations` hold the place."""
        here = self._key(place)
        return any(here.startswith(allowed) for allowed in self._allowed(metadata.ref))

    def allowed(self, metadata: TableMetadata, files: pl.DataFrame) -> pl.DataFrame:
        """Those of the files that the catalog's `allowed_locations` hold."""
        allowed = self._allowed(metadata.ref)
        if not allowed:
            return files.clear()
        inside = pl.any_horizontal(pl.col("key").str.starts_with(place) for place in allowed)
        return with_key(files, self.canonical).filter(inside).drop("key")

    def still_allowed(self, metadata: TableMetadata, planned: Sequence[FileFate]) -> None:
        """Raise `Refused` when what was planned once lies outside of `allowed_locations` by now: the plan waits."""
        if not planned:
            return
        self.in_allowed_place(metadata)
        files = pl.DataFrame({"path": [file.path for file in planned]}, schema={"path": pl.String})
        if outside := files.height - self.allowed(metadata, files).height:
            raise Refused(
                f"{outside} planned deletion(s) of {metadata.ref} lie outside the allowed_locations of catalog "
                f"{metadata.ref.catalog} now: nothing is deleted"
            )

    def _allowed(self, ref: TableRef) -> list[str]:
        return [self._key(place) for place in self.allowed_locations[ref.catalog]]

    def _key(self, place: str) -> str:
        """A folder by which all its spellings and links meet."""
        return directory_key(self.canonical(place))

    def in_allowed_place(self, metadata: TableMetadata) -> None:
        """Raise `Refused` when the table itself lies outside: its files could not be deleted, only forgotten."""
        if not self._allows(metadata, metadata.location):
            catalog = metadata.ref.catalog
            raise Refused(
                f"{metadata.location} lies outside the allowed_locations of catalog {catalog}: add its place to "
                f"catalogs.{catalog}.allowed_locations if its files may be deleted"
            )

    def not_registered_twice(self, metadata: TableMetadata) -> None:
        """Raise `Refused` when any catalog has the same table under another name: it reads the same files."""
        here = self._key(metadata.location)
        for pointer, places in self._others(metadata):
            if (
                here in places
                and self.catalogs[pointer.ref.catalog].load(pointer.ref).table_uuid == metadata.table_uuid
            ):
                raise Refused(
                    f"{metadata.ref} is registered as {pointer.ref} too, which reads the same files: unregister one"
                )

    def alone(self, metadata: TableMetadata) -> None:
        """Raise `Refused` when any table of any catalog shares the location, or lies above or below it.

        Raises `CatalogUnavailable` when a catalog does not answer: then nobody knows.
        """
        if other := self._overlap(metadata, metadata.location):
            pointer, there = other
            raise Refused(
                f"the location {metadata.location} overlaps that of {pointer.ref} ({there}): "
                "move one of the tables to a place of its own"
            )

    def roots(self, metadata: TableMetadata) -> tuple[list[str], list[str]]:
        """Where the table's files may lie: its location, and write paths elsewhere that no other table uses.

        Of the write paths that are left out, the reasons. Raises `Refused` when another table shares the location.
        """
        self.alone(metadata)
        roots, notes = [metadata.location], []
        for place in metadata.write_paths:
            if doubt := self._doubt(metadata, place):
                notes.append(f"{place} is not scanned: {doubt}")
            else:
                roots.append(place)
        return roots, notes

    def _doubt(self, metadata: TableMetadata, place: str) -> str | None:
        """Why a write path outside the table's location may not be the table's own; None when it is."""
        if not self._allows(metadata, place):
            return f"it lies outside the allowed_locations of catalog {metadata.ref.catalog}"
        other = self._overlap(metadata, place)
        return f"it overlaps the place {other[1]} of {other[0].ref}" if other else None

    def _overlap(self, metadata: TableMetadata, place: str) -> tuple[Pointer, str] | None:
        here = self._key(place)
        for pointer, places in self._others(metadata):
            for there in places:
                if here.startswith(there) or there.startswith(here):
                    return pointer, there
        return None

    def _others(self, metadata: TableMetadata) -> Iterator[tuple[Pointer, frozenset[str]]]:
        """Every other table of the fleet with its places, discovered or not."""
        pointers = [p for c in self.catalogs.values() for p in c.pointers()]
        evaluated = self.evaluated()
        with self._lock:
            known = {p: self._places[p] for p in pointers if p in self._places}
        for pointer in pointers:
            if pointer in evaluated and (pointer not in known or known[pointer].said != evaluated[pointer]):
                known[pointer] = self._at(pointer, evaluated[pointer])
        unknown = [p for p in pointers if p not in known and p.ref != metadata.ref]
        with ThreadPoolExecutor(_READERS) as pool:
            known.update(zip(unknown, pool.map(self._read, unknown), strict=True))
        with self._lock:  # jobs beside this one may have listed an older or a newer fleet: each keeps to its own
            self._places.clear()
            self._places.update(known)
        yield from ((p, known[p].keys) for p in pointers if p.ref != metadata.ref)

    def _read(self, pointer: Pointer) -> _Places:
        """A table's places from its metadata; of one that cannot be read, beside its metadata folder."""
        try:
            other = self.catalogs[pointer.ref.catalog].load(pointer.ref)
        except (MetadataUnreadable, TableNotFound, UnsupportedTable):
            return self._at(pointer, ())
        return self._at(pointer, (other.location, *other.write_paths))

    def _at(self, pointer: Pointer, places: tuple[str, ...]) -> _Places:
        return _Places(places, frozenset(self._key(place) for place in (_beside(pointer), *places)))


@dataclass(frozen=True, slots=True)
class _Places:
    """Where a version of a table lies: as it was said, and by which all spellings meet."""

    said: tuple[str, ...]
    keys: frozenset[str]


def _beside(pointer: Pointer) -> str:
    folder, metadata, _ = pointer.metadata_location.rpartition("/metadata/")
    return folder if metadata else pointer.metadata_location.rpartition("/")[0]


def table_uuid(content: bytes) -> str | None:
    """The uuid in a metadata file, found without parsing all of it."""
    found = _UUID.search(content)
    return found[1].decode() if found else None
