"""The one answer to "who else may read this?": every table that any catalog names now, or was ever seen to name.

What evaluations wrote down is asked for; only tables that moved since then, or that nobody has evaluated, are read. So
a job asks the store, and each catalog for its list of tables, not ten thousand metadata files.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import cached_property

from icewright.adapters.metadata.parsing import parse
from icewright.core.errors import (
    AccessDenied,
    CatalogUnavailable,
    IcewrightError,
    MetadataUnreadable,
    StorageUnavailable,
    TableNotFound,
    UnsupportedTable,
)
from icewright.core.places import Index, Place, Spelling
from icewright.core.table import TableMetadata, TableRef
from icewright.ports import Catalog, Clock, Pointer, Registration, Registrations, TableFiles
from icewright.ports.rows import table_folder, unseen_snapshots

_READERS = 8
_UNREADABLE_FOR = timedelta(minutes=5)  # how long a table that could not be read is not read again
_UNREADABLE = (MetadataUnreadable, TableNotFound, UnsupportedTable, AccessDenied, StorageUnavailable)


@dataclass(frozen=True, slots=True)
class Other:
    """Another table whose files may lie where this one's do."""

    registration: Registration
    via: str  # the configured catalog that shows it, or showed it
    pointer: Pointer | None  # as it is named now; None: no catalog names it any more
    places: tuple[Place, ...]  # its own
    folders: tuple[Place, ...]  # of others, in which files of it lie
    problem: str = ""  # why its metadata could not be read

    def __str__(self) -> str:
        return f"{self.registration.ref}{'' if self.pointer else ' (which no catalog names any more)'}"


@dataclass(frozen=True)
class Surroundings:
    """What is known of a table's own places, and of all other tables."""

    own: tuple[Place, ...]  # its location and write paths, those of earlier names and moves too
    first: tuple[tuple[Place, ...], ...]  # those that it had when it was first seen, under each of its names
    others: tuple[Other, ...]

    def had_at_first(self, place: Place) -> bool:
        """Return whether the place lies in those that the table had when it was first seen, whatever its name."""
        return all(any(place.within(one) for one in places) for places in self.first)

    @cached_property
    def having(self) -> Index[Other]:
        """Return the others by their own places."""
        return Index((place, other) for other in self.others for place in other.places)

    @cached_property
    def using(self) -> Index[Other]:
        """Return the others by the folders that they use outside of these."""
        return Index((folder, other) for other in self.others for folder in other.folders)


@dataclass
class TableRegistry:
    """The tables of all configured catalogs, of what their servers show beside them, and former ones."""

    catalogs: Mapping[str, Catalog]
    files: TableFiles
    registrations: Registrations
    clock: Clock
    declared: Mapping[str, Sequence[str]] = field(default_factory=dict)  # by catalog: the places of its tables
    failing: Callable[[], Mapping[str, str]] = dict  # catalogs that are known not to answer, each with the error
    _problems: dict[Pointer, tuple[str, datetime]] = field(default_factory=dict, init=False)
    _canonical: Mapping[str, str] = field(default_factory=dict, init=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)

    def place(self, folder: str, spelling: Spelling) -> Place:
        """Return a folder as a place, without the links that lead to it."""
        known = self._canonical.get(folder)
        return spelling.place(self.files.canonical(folder) if known is None else known)

    def around(self, metadata: TableMetadata, spelling: Spelling) -> Surroundings:
        """Ask every catalog and the store now.

        Raises `CatalogUnavailable` when a catalog does not answer whose tables could share places with this one.
        """
        known = {one.key: one for one in self.registrations.list()}
        named = self._named(metadata, spelling, known)
        at = {(one.ref, one.metadata_location): one.key for one in known.values()}
        fresh = [p for p in named if (p.ref, p.metadata_location) not in at and p.ref != metadata.ref]
        read, problems = self._read_all(fresh, named, known)
        if (metadata.ref, metadata.metadata_location) not in at:
            read.append(self._read(metadata, known))
        merged: dict[tuple[TableRef, str], Registration] = {}
        for one in read:
            merged[one.key] = one.on_top_of(merged.get(one.key, known.get(one.key)))
        changed = [one for key, one in merged.items() if known.get(key) != one]
        if changed:
            self.registrations.record(changed, self.clock.now())
        known |= merged
        at |= {(one.ref, one.metadata_location): one.key for one in merged.values()}
        live = {at[p.ref, p.metadata_location]: p for p in named if (p.ref, p.metadata_location) in at}
        return self._surroundings(metadata, spelling, known, live, named, problems)

    def metadata_of(self, other: Other) -> TableMetadata:
        """Return the newest metadata of another table. Raises what reading it raises."""
        if other.pointer is None:
            location = other.registration.metadata_location
            return parse(other.registration.ref, location, self.files.read(location))
        return self._load(other.pointer, self.catalogs[other.via])

    def _named(
        self, metadata: TableMetadata, spelling: Spelling, known: Mapping[tuple[TableRef, str], Registration]
    ) -> dict[Pointer, str]:
        """Every table that a catalog names now, or that its server shows beside it, and which catalog shows it.

        A catalog that does not answer is left out where none of its tables can lie where this table's files do.
        """
        own: dict[Pointer, str] = {}
        beyond: dict[Pointer, str] = {}
        failing = self.failing()
        for name, catalog in self.catalogs.items():
            problem = failing.get(name) if name != metadata.ref.catalog else None  # it may hang: not asked again
            if problem is None:
                try:
                    own |= dict.fromkeys(catalog.pointers(), name)
                    beyond |= dict.fromkeys(catalog.neighbours(), name)
                except (CatalogUnavailable, AccessDenied) as error:
                    if name == metadata.ref.catalog:
                        raise
                    problem = str(error)
            if problem is not None and self._may_meet(name, metadata, spelling, known):
                raise CatalogUnavailable(
                    f"{metadata.ref}: catalog {name} does not answer, and its tables may share places with this one "
                    f"({problem}): narrow catalogs.{name}.allowed_locations if they do not",
                    name,
                )
        at = {pointer.ref: pointer for pointer in own}
        # a database may hold a catalog that bears the name of one configured elsewhere, as a copy of that one does
        namesakes = {p for p in beyond if at.get(p.ref, p) != p}
        for name in {p.ref.catalog for p in namesakes}:  # a table that has just moved is no namesake
            namesakes -= set(self.catalogs[name].pointers())
        apart = {_apart(p, beyond[p]): beyond[p] for p in namesakes}
        return {p: name for p, name in beyond.items() if p not in namesakes} | apart | own

    def _may_meet(
        self,
        catalog: str,
        metadata: TableMetadata,
        spelling: Spelling,
        known: Mapping[tuple[TableRef, str], Registration],
    ) -> bool:
        """Return whether tables of a catalog could lie where this table's files do.

        They lie in the places that the configuration declares, and where they were ever seen. A catalog that declares
        none may have them anywhere.
        """
        declared = self.declared.get(catalog, ())
        mine = [metadata.location, *metadata.write_paths, metadata.metadata_location.rpartition("/")[0]]
        theirs = list(declared)
        for one in known.values():
            if one.ref == metadata.ref or (one.table_uuid and one.table_uuid == metadata.table_uuid):
                mine += (*one.places, *one.folders)
            if one.ref.catalog == catalog:
                theirs += (*one.places, *one.folders)
        here = [self.place(folder, spelling) for folder in mine]
        there = [self.place(folder, spelling) for folder in theirs]
        return not declared or any(a.may_meet(b) for a in here for b in there)

    def _load(self, pointer: Pointer, catalog: Catalog) -> TableMetadata:
        return catalog.load(pointer.ref) if pointer.ref.catalog == catalog.name else catalog.neighbour(pointer)

    def _read(self, metadata: TableMetadata, known: Mapping[tuple[TableRef, str], Registration]) -> Registration:
        """Return what a table says of itself, and where files lie that its new snapshots need."""
        last = known.get((metadata.ref, metadata.table_uuid))
        unseen = unseen_snapshots(metadata, None if last is None else last.seen)
        return Registration.of(metadata, self.files.outside(metadata, unseen))

    def _read_all(
        self,
        pointers: Sequence[Pointer],
        named: Mapping[Pointer, str],
        known: Mapping[tuple[TableRef, str], Registration],
    ) -> tuple[list[Registration], dict[Pointer, str]]:
        """Return what the tables say of themselves, and of those that cannot be read why."""
        now = self.clock.now()
        with self._lock:
            recent = {p: problem for p, (problem, at) in self._problems.items() if now - at < _UNREADABLE_FOR}
        problems = {p: recent[p] for p in pointers if p in recent}

        def read(pointer: Pointer) -> Registration | IcewrightError:
            try:
                one = self._read(self._load(pointer, self.catalogs[named[pointer]]), known)
            except _UNREADABLE as error:
                return error
            return replace(one, metadata_location=pointer.metadata_location)

        wanted = [pointer for pointer in pointers if pointer not in problems]
        with ThreadPoolExecutor(_READERS) as pool:
            answers = dict(zip(wanted, pool.map(read, wanted), strict=True))
        failed = {p: str(answer) for p, answer in answers.items() if isinstance(answer, IcewrightError)}
        with self._lock:
            self._problems.update({pointer: (said, now) for pointer, said in failed.items()})
        return [one for one in answers.values() if isinstance(one, Registration)], problems | failed

    def _surroundings(
        self,
        metadata: TableMetadata,
        spelling: Spelling,
        known: Mapping[tuple[TableRef, str], Registration],
        live: Mapping[tuple[TableRef, str], Pointer],
        named: Mapping[Pointer, str],
        problems: Mapping[Pointer, str],
    ) -> Surroundings:
        folders_of = {f for one in known.values() for f in (*one.places, *one.folders)}
        self._canonical = self.files.canonicals(folders_of)  # as links lead now

        def places(folders: Sequence[str]) -> tuple[Place, ...]:
            return tuple(dict.fromkeys(self.place(folder, spelling) for folder in folders))

        me = (metadata.ref, metadata.table_uuid)
        unread = {pointer.ref for pointer in problems} - {metadata.ref}
        own, others = [known[me]], []
        for key, one in known.items():
            pointer = live.get(key)
            if key == me or (pointer is None and one.ref in unread):
                continue
            if pointer is None and one.table_uuid and one.table_uuid == metadata.table_uuid:
                own.append(one)  # the same table under an earlier name
                continue
            via = named[pointer] if pointer is not None else one.ref.catalog
            others.append(Other(one, via, pointer, places(one.places), places(one.folders)))
        for pointer, problem in problems.items():
            blank = Registration(pointer.ref, "", pointer.metadata_location, ())
            for last in [one for one in known.values() if one.ref == pointer.ref] or [blank]:
                where = (table_folder(pointer.metadata_location), *last.places)
                one = replace(last, metadata_location=pointer.metadata_location, places=where)
                others.append(Other(one, named[pointer], pointer, places(where), places(one.folders), problem))
        return Surroundings(
            places([place for one in own for place in one.places]),
            tuple(places(one.first_places) for one in own),
            tuple(others),
        )


def _apart(pointer: Pointer, via: str) -> Pointer:
    """Return the neighbour under a name of its own: `CATALOG@VIA`."""
    return replace(pointer, ref=replace(pointer.ref, catalog=f"{pointer.ref.catalog}@{via}"))
