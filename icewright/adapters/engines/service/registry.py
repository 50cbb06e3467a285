"""The registry of all tables that may read a file: those that any catalog names now, or ever named.

The store has the registrations that evaluations recorded; only tables that moved since, or that were never evaluated,
are read. So a job queries the store and each catalog's list of tables, instead of reading ten thousand metadata files.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import partial

from icewright.adapters.engines.service.replied import require_as_written
from icewright.adapters.engines.service.surroundings import (
    OtherTable,
    PlaceOf,
    RecordedTables,
    Registered,
    Surroundings,
    TableKey,
)
from icewright.adapters.metadata.parsing import parse
from icewright.adapters.mounts import mount_of, mounts
from icewright.core.breakers import storage_place
from icewright.core.errors import (
    AccessDenied,
    CatalogUnavailable,
    IcewrightError,
    MetadataUnreadable,
    Refused,
    StorageHangs,
    StorageUnavailable,
    TableNotFound,
    TableReplaced,
    UnsupportedTable,
)
from icewright.core.paths import local_path
from icewright.core.places import Place, Spelling
from icewright.core.table import TableMetadata, TableRef
from icewright.ports import Catalog, Clock, Dataset, ListsDatasets, Pointer, Registration, Registrations, TableFiles
from icewright.ports.deadlines import CatalogCalls
from icewright.ports.rows import table_folder, unseen_snapshots
from icewright.ports.work import WorkerThreads, catalog_context

_READERS = 8
_UNREADABLE_FOR = timedelta(minutes=5)  # how long a table that could not be read is not read again
# without progress, after which a table is not waited for: most likely it lies elsewhere
_READ_LIMIT = timedelta(seconds=5)
_LOOK_LIMIT = timedelta(seconds=60)  # for the links among the folders of a disk
_NO_DISK = ""  # of folders in object stores
_UNREADABLE = (MetadataUnreadable, TableNotFound, UnsupportedTable, AccessDenied, StorageUnavailable, Refused)


@dataclass(frozen=True, slots=True)
class _Named:
    """The tables that catalogs name now."""

    pointers: Mapping[Pointer, str]  # each with the catalog that shows it
    live: Mapping[TableKey, Pointer]  # of registered tables, without this one
    problems: Mapping[Pointer, str]  # why some cannot be read


@dataclass
class TableRegistry:
    """The tables of all configured catalogs, of what their servers show beside them, and former ones."""

    catalogs: Mapping[str, Catalog]
    files: TableFiles
    registrations: Registrations
    clock: Clock
    calls: CatalogCalls
    declared: Mapping[str, Sequence[str]] = field(default_factory=dict)  # by catalog: the places of its tables
    aliases: Collection[str] = ()  # other names of these catalogs, such as earlier ones
    failing: Callable[[], Mapping[str, str]] = dict  # catalogs that are known not to answer, each with the error
    reading_together: Callable[[], AbstractContextManager[None]] = nullcontext  # one transaction for several reads
    deadly: Callable[[], Mapping[TableRef, str]] = dict  # tables whose evaluation ended a process, each with the reason
    elsewhere: Callable[[], Sequence[tuple[str, Sequence[str]]]] = tuple  # other services' catalogs, with their places
    _problems: dict[Pointer, tuple[str, datetime]] = field(default_factory=dict, init=False)
    _canonical: Mapping[str, str] = field(default_factory=dict, init=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)

    def place(self, folder: str, spelling: Spelling) -> Place:
        """Return a folder as a place, without the links that lead to it."""
        canonical = self._canonical.get(folder)
        return spelling.place(self.files.canonical(folder) if canonical is None else canonical)

    def recorded(self, metadata: TableMetadata, spelling: Spelling) -> RecordedTables:
        """Return what the store records of a table and of all others, by one transaction."""
        with self.reading_together():
            return RecordedTables(
                metadata,
                partial(self.place, spelling=spelling),
                {table.key: table for table in self.registrations.list()},
                self.failing(),
                self.registrations.adopted(metadata.table_uuid),
                self.elsewhere(),
            )

    def around(self, recorded: RecordedTables) -> Surroundings:
        """Return the table's surroundings by what was just `recorded`, and by every catalog as it is now.

        Raises `CatalogUnavailable` when a catalog does not answer whose tables could share places with this one.
        """
        pointers, datasets = self._pointers(recorded)
        left_out, unclear = self._left_out({pointer.ref for pointer in pointers}, recorded)
        pointers |= left_out
        moved, problems = self._read_moved(pointers, recorded)
        keys = _keys_of_files((*recorded.registered.values(), *moved.values()))
        live = {
            keys[p.ref, p.metadata_location]: p
            for p in pointers
            if p.ref != recorded.table.ref and (p.ref, p.metadata_location) in keys
        }
        recorded = replace(recorded, registered={**recorded.registered, **moved})
        surroundings = self._surroundings(recorded, _Named(pointers, live, problems))
        unread = _unread(datasets, unclear, recorded.place)
        return replace(surroundings, others=(*surroundings.others, *unread))

    def _read_moved(
        self, pointers: Mapping[Pointer, str], recorded: RecordedTables
    ) -> tuple[dict[TableKey, Registration], dict[Pointer, str]]:
        """Return the registrations of tables that moved since they were recorded, and why some cannot be read.

        They are read and recorded; the table itself is one of them.
        """
        metadata, registered = recorded.table, recorded.registered
        keys = _keys_of_files(registered.values())
        unread = [p for p in pointers if (p.ref, p.metadata_location) not in keys and p.ref != metadata.ref]
        read, problems = self._read_all(unread, pointers, registered)
        own_key = (metadata.ref, metadata.table_uuid)
        # an earlier table may have had the file name
        if keys.get((metadata.ref, metadata.metadata_location)) != own_key:
            read.append(self._read(metadata, metadata.ref.catalog, registered))
        moved = _merged(read, registered, own_key)
        if changed := [table for key, table in moved.items() if registered.get(key) != table]:
            self.registrations.record(changed, self.clock.now())
        return moved, problems

    def metadata_of(self, other: OtherTable) -> TableMetadata:
        """Return the newest metadata of another table. Passes on the errors of reading it."""
        if other.pointer is None:
            location = other.registration.metadata_location
            with catalog_context(other.via):
                return parse(other.registration.ref, location, self.files.read(location))
        load = partial(_load, other.pointer, self.catalogs[other.via])
        current = self.calls.read(other.pointer.ref, load, self.calls.limits[other.via])
        if other.registration.table_uuid not in ("", current.table_uuid):
            raise TableReplaced(f"{current.ref} has become the name of another table since it was listed")
        return current

    def _pointers(self, recorded: RecordedTables) -> tuple[dict[Pointer, str], list[Dataset]]:
        """Return every table that a catalog or its server names now, with the catalog that shows it, and all datasets.

        A catalog that does not answer is left out where none of its tables can lie where this table's files do.
        """
        table = recorded.table.ref
        datasets: list[Dataset] = []
        configured: dict[Pointer, str] = {}
        neighbours: dict[Pointer, str] = {}
        for name, catalog in self.catalogs.items():
            own = name == table.catalog
            problem = None if own else recorded.failing.get(name)  # it may hang, so no second request
            if problem is None:
                ask = partial(self.calls.ask, name, failing=partial(self._failure, "" if own else name))
                try:
                    listed, others = ask(partial(_listing, catalog))
                    configured |= dict.fromkeys(listed, name)
                    datasets += others
                    neighbours |= dict.fromkeys(ask(catalog.neighbours), name)
                except (CatalogUnavailable, AccessDenied) as error:
                    if own:
                        raise
                    problem = str(error)
            declared = self.declared.get(name, ())
            if problem is not None and may_meet(name, declared, recorded):
                raise CatalogUnavailable(
                    f"{table}: catalog {name} does not answer, and its tables may share places with this one "
                    f"({problem}): narrow catalogs.{name}.allowed_locations if they do not",
                    name,
                )
        return self._told_apart(neighbours, configured) | configured, datasets

    def _told_apart(self, neighbours: Mapping[Pointer, str], configured: Iterable[Pointer]) -> dict[Pointer, str]:
        """Return the neighbours, those with the name of another configured table under names of their own.

        A database may hold a catalog that bears the name of one configured elsewhere, as a copy of that one does.
        """
        by_ref = {pointer.ref: pointer for pointer in configured}
        namesakes = {p for p in neighbours if by_ref.get(p.ref, p) != p}
        for name in {p.ref.catalog for p in namesakes}:  # a table that has just moved is no namesake
            namesakes -= set(self.calls.ask(name, self.catalogs[name].pointers))
        return {_with_own_name(p, via) if p in namesakes else p: via for p, via in neighbours.items()}

    def _left_out(
        self, listed: Collection[TableRef], recorded: RecordedTables
    ) -> tuple[dict[Pointer, str], list[Registration]]:
        """Return other names of the table that a catalog loads and does not list, as one that loses a page does.

        An entry that is listed no more is else the table's name before it was renamed. Those of which the catalog does
        not tell whether they are gone come second.
        """
        twins: dict[Pointer, str] = {}
        unclear: list[Registration] = []
        own_uuid = recorded.table.table_uuid
        for (ref, table_uuid), table in recorded.registered.items() if own_uuid else ():
            name = ref.catalog
            if table_uuid != own_uuid or ref in listed or name not in self.catalogs:
                continue
            try:
                twin = self.calls.read(ref, partial(self.catalogs[name].load, ref), self.calls.limits[name])
            except TableNotFound:
                continue
            except (MetadataUnreadable, UnsupportedTable, AccessDenied):
                unclear.append(table)
                continue
            if twin.table_uuid == table_uuid:
                twins[Pointer(ref, twin.metadata_location)] = name
        return twins, unclear

    def _failure(self, name: str) -> str | None:
        """Return why a catalog is known not to answer by now."""
        return self.failing().get(name)

    def _read(self, metadata: TableMetadata, via: str, registered: Registered) -> Registration:
        """Return a table's registration by its metadata, with the folders of files that its new snapshots need."""
        last = registered.get((metadata.ref, metadata.table_uuid))
        unseen = unseen_snapshots(metadata, None if last is None else last.seen)
        with catalog_context(via):
            return Registration.of(metadata, self.files.outside(metadata, unseen))

    def _read_all(
        self, pointers: Sequence[Pointer], pointers_via: Mapping[Pointer, str], registered: Registered
    ) -> tuple[list[Registration], dict[Pointer, str]]:
        """Return the registrations of tables by their metadata, and why the others cannot be read."""
        now = self.clock.now()
        with self._lock:
            recent = {
                p: problem for p, (problem, failed_at) in self._problems.items() if now - failed_at < _UNREADABLE_FOR
            }
        deadly = self.deadly() if pointers else {}
        problems = {p: recent.get(p) or deadly[p.ref] for p in pointers if p in recent or p.ref in deadly}
        failures: Counter[str] = Counter()  # in a row, by storage place

        def read(pointer: Pointer) -> Registration | IcewrightError:
            catalog, storage = self.catalogs[pointers_via[pointer]], storage_place(pointer.metadata_location)
            if failures[storage] >= _READERS:  # the place is away, and to wait for each of its tables takes hours
                return StorageUnavailable(f"{pointer.ref} was not read, as {storage} does not answer for other tables")
            try:  # one that hangs must not hold up the deletions of all other tables
                reading = lambda: self._read(_load(pointer, catalog), catalog.name, registered)  # noqa: E731
                table = self.calls.read(pointer.ref, reading, _READ_LIMIT)
            except _UNREADABLE as error:
                failures[storage] = failures[storage] + 1 if isinstance(error, StorageUnavailable) else 0
                return error
            failures[storage] = 0
            return replace(table, metadata_location=pointer.metadata_location)

        to_read = [pointer for pointer in pointers if pointer not in problems]
        with WorkerThreads(_READERS) as pool:
            answers = dict(zip(to_read, pool.map(read, to_read), strict=True))
        failed = {p: str(answer) for p, answer in answers.items() if isinstance(answer, IcewrightError)}
        with self._lock:
            self._problems.update({pointer: (message, now) for pointer, message in failed.items()})
        return [table for table in answers.values() if isinstance(table, Registration)], problems | failed

    def _as_links_lead(self, metadata: TableMetadata, registered: Registered) -> Mapping[str, str]:
        """Return where the links of all tables' folders lead now; on another disk that hangs, where the record says."""
        leads: dict[str, str] = {}
        disks: dict[str, set[str]] = {}
        own, mounted = {_NO_DISK}, mounts()
        for table in registered.values():
            for folder in (*table.places, *table.folders):
                path = local_path(folder)
                disk = _NO_DISK if path is None else mount_of(path, mounted)
                leads[folder] = folder
                disks.setdefault(disk, set()).add(folder)
                own |= {disk} if table.is_of(metadata.ref, metadata.table_uuid) else set()
        for disk, folders in disks.items():
            look = partial(self.files.canonicals, folders)
            with suppress(StorageHangs):
                leads |= look() if disk in own else self.calls.look(disk, look, _LOOK_LIMIT)
        return leads

    def _surroundings(self, recorded: RecordedTables, named: _Named) -> Surroundings:
        metadata, registered = recorded.table, recorded.registered
        self._canonical = self._as_links_lead(metadata, registered)
        places = partial(_places, place=recorded.place)
        own_key = (metadata.ref, metadata.table_uuid)
        listed = {*self.catalogs, *self.aliases, *(pointer.ref.catalog for pointer in named.pointers)}
        unread = {pointer.ref for pointer in named.problems}
        own, others = [registered[own_key]], []
        for identity, table in registered.items():
            pointer = named.live.get(identity)
            if identity == own_key or (pointer is None and table.ref in unread):
                continue
            unlisted = listed.isdisjoint(table.ref.catalog.split("@"))
            if pointer is None and not unlisted and table.table_uuid and table.table_uuid == metadata.table_uuid:
                own.append(table)  # the same table under an earlier name
                continue
            via = named.pointers[pointer] if pointer is not None else table.ref.catalog
            others.append(
                OtherTable(table, via, pointer, places(table.places), places(table.folders), unlisted=unlisted)
            )
        return Surroundings(
            metadata,
            places([place for table in own for place in table.places]),
            tuple(places(table.first_places) for table in own),
            (*others, *_unreadable(registered, named, recorded.place)),
            recorded.place,
            recorded.adopted,
            tuple(table.metadata_location for table in own[1:]),
            tuple(dict.fromkeys(folder for table in own for folder in table.metadata_folders)),
        )


def may_meet(catalog: str, declared: Sequence[str], recorded: RecordedTables) -> bool:
    """Return whether tables of a catalog could lie where this table's files do.

    They lie in the places that the configuration declares, and where they were ever seen. A catalog that declares
    none may have them anywhere.
    """
    metadata = recorded.table
    own_folders = [*metadata.folders]
    other_folders = list(declared)
    for table in recorded.registered.values():
        if table.is_of(metadata.ref, metadata.table_uuid):
            own_folders += (*table.places, *table.folders)
        if table.ref.catalog == catalog:
            other_folders += (*table.places, *table.folders)
    own_places, other_places = ([*map(recorded.place, folders)] for folders in (own_folders, other_folders))
    return not declared or any(a.may_meet(b) for a in own_places for b in other_places)


def _keys_of_files(tables: Iterable[Registration]) -> dict[tuple[TableRef, str], TableKey]:
    """Return the keys of the tables by their names and metadata files."""
    return {(table.ref, table.metadata_location): table.key for table in tables}


def _merged(read: Sequence[Registration], registered: Registered, own_key: TableKey) -> dict[TableKey, Registration]:
    """Return the registrations that were read, each on top of the recorded one."""
    merged: dict[TableKey, Registration] = {}
    for table in read:
        merged[table.key] = table.on_top_of(merged.get(table.key, registered.get(table.key)))
    if own_key in merged and own_key in registered:  # only its places matter here: its next evaluation records it
        merged[own_key] = replace(merged[own_key], metadata_location=registered[own_key].metadata_location)
    return merged


def _places(folders: Iterable[str], place: PlaceOf) -> tuple[Place, ...]:
    return tuple(dict.fromkeys(map(place, folders)))


def _unread(datasets: Sequence[Dataset], unclear: Sequence[Registration], place: PlaceOf) -> Iterator[OtherTable]:
    """Yield tables of other formats, and those of which their catalog does not tell whether they are gone."""
    for dataset in datasets:
        shown = Registration(dataset.ref, "", "", dataset.locations)
        yield OtherTable(shown, dataset.ref.catalog, Pointer(dataset.ref, ""), _places(shown.places, place), ())
    why = "which its catalog neither lists nor lets be read"
    for table in unclear:
        yield OtherTable(table, table.ref.catalog, None, _places(table.places, place), (), why, unlisted=True)


def _unreadable(registered: Registered, named: _Named, place: PlaceOf) -> Iterator[OtherTable]:
    """Yield the tables that cannot be read, by all registrations of their names and where their metadata lies."""
    for pointer, problem in named.problems.items():
        unregistered = Registration(pointer.ref, "", pointer.metadata_location, ())
        for last in [table for table in registered.values() if table.ref == pointer.ref] or [unregistered]:
            where = (table_folder(pointer.metadata_location), *last.places)
            table = replace(last, metadata_location=pointer.metadata_location, places=where)
            places, folders = _places(where, place), _places(table.folders, place)
            yield OtherTable(table, named.pointers[pointer], pointer, places, folders, problem)


def _load(pointer: Pointer, catalog: Catalog) -> TableMetadata:
    """Return the metadata of another table. Raises `Refused` where a server's reply lacks what its file has."""
    if pointer.ref.catalog != catalog.name:
        return catalog.neighbour(pointer)
    current = catalog.load(pointer.ref)
    require_as_written(catalog, current)
    return current


def _listing(catalog: Catalog) -> tuple[Sequence[Pointer], Sequence[Dataset]]:
    return catalog.listing() if isinstance(catalog, ListsDatasets) else (catalog.pointers(), ())


def _with_own_name(pointer: Pointer, via: str) -> Pointer:
    """Return the neighbour under a name of its own: `CATALOG@VIA`."""
    return replace(pointer, ref=replace(pointer.ref, catalog=f"{pointer.ref.catalog}@{via}"))
