"""A table's places, and all other tables with theirs, as the registry of tables knows them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from icewright.core.paths import key
from icewright.core.places import Index, Place
from icewright.core.table import TableMetadata, TableRef
from icewright.ports import Pointer, Registration

TableKey = tuple[TableRef, str]  # name and uuid
Registered = Mapping[TableKey, Registration]
PlaceOf = Callable[[str], Place]  # a folder as a place, without the links that lead to it


@dataclass(frozen=True, slots=True)
class OtherTable:
    """Another table whose files may lie where this one's do."""

    registration: Registration
    via: str  # the configured catalog that lists it, or used to
    pointer: Pointer | None  # None: no catalog names it any more; without a location: a table of another format
    places: tuple[Place, ...]  # its own places
    folders: tuple[Place, ...]  # folders in places of other tables, in which it has files
    problem: str = ""  # why its metadata could not be read
    unlisted: bool = False  # its catalog is not configured any more or does not answer: the table may still exist

    def __str__(self) -> str:
        if self.is_dataset:
            return f"{self.registration.ref} (a table of another format at {', '.join(self.registration.places)})"
        if self.unlisted:
            return f"{self.registration.ref} ({self.problem or 'whose catalog is not configured any more'})"
        return f"{self.registration.ref}{'' if self.pointer else ' (which no catalog names any more)'}"

    @property
    def is_dropped(self) -> bool:
        """Return whether no catalog names it, though the one that did is still listed."""
        return self.pointer is None and not self.unlisted

    @property
    def identity(self) -> str:
        """Return what a person adopts to declare that nobody reads the table any more."""
        if self.is_dataset:
            return str(self)
        return self.registration.table_uuid or key(self.registration.metadata_location)

    @property
    def is_dataset(self) -> bool:
        """Return whether it is no table of Iceberg: its engine reads whatever lies in its folders."""
        return self.pointer is not None and not self.pointer.metadata_location


@dataclass(frozen=True)
class Surroundings:
    """A table's own places, and all other tables with theirs."""

    table: TableMetadata
    own: tuple[Place, ...]  # its location and write paths, those of earlier names and moves too
    first: tuple[tuple[Place, ...], ...]  # its places when it was first seen, under each of its names
    others: tuple[OtherTable, ...]
    place: PlaceOf
    adopted: frozenset[str]  # places, files and uuids that a person has adopted for the table
    former_versions: tuple[str, ...] = ()  # the last metadata files of the table under its earlier names
    metadata_folders: tuple[str, ...] = ()  # all that the table ever had, under each of its names

    def had_at_first(self, place: Place) -> bool:
        """Return whether the place lies in those that the table had when it was first seen, under each of its names."""
        return all(any(place.within(one) for one in places) for places in self.first)

    def moved(self, roots: Iterable[str]) -> str | None:
        """Return the first root that the table moved to after it was first seen, and that nobody has confirmed."""
        unconfirmed = (root for root in roots if root not in self.adopted)
        return next((root for root in unconfirmed if not self.had_at_first(self.place(root))), None)

    @cached_property
    def having(self) -> Index[OtherTable]:
        """Return the other tables, indexed by their own places."""
        return Index((place, other) for other in self.others for place in other.places)

    @cached_property
    def using(self) -> Index[OtherTable]:
        """Return the other tables, indexed by the folders that they use outside of their places."""
        return Index((folder, other) for other in self.others for folder in other.folders)


@dataclass(frozen=True, slots=True)
class RecordedTables:
    """The store's records of a table and of all others, as of one transaction."""

    table: TableMetadata
    place: PlaceOf
    registered: Registered
    failing: Mapping[str, str]  # catalogs that are known not to answer, each with the error
    adopted: frozenset[str]  # by the table
    elsewhere: Sequence[tuple[str, Sequence[str]]] = ()  # as in the registry
