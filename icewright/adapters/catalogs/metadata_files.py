"""Read and write the metadata files of catalogs that name one for each table and leave its content to clients."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from icewright.adapters.catalogs.staging import (
    MetadataFiles,
    conflict,
    gone,
    landed_before,
    unrestorable,
    write_metadata,
)
from icewright.adapters.catalogs.translate import CatalogProperties
from icewright.adapters.lru_cache import LRUCache
from icewright.adapters.metadata.parsing import parse
from icewright.core.allowlist import Allowlist, require_inside
from icewright.core.errors import CommitStateUnknown, IcewrightError, TableNotFound, UnsupportedTable
from icewright.core.table import TableMetadata, TableRef
from icewright.ports import Change, Clock, Dataset, Pointer, RestoreSnapshots
from icewright.ports.memory import ROOM

LOCATION = "metadata_location"
PREVIOUS = "previous_metadata_location"
_PATH = "path"  # the SerDe parameter in which Spark writes the folder of a table of its own formats
_TYPE, _ICEBERG = "table_type", "ICEBERG"
_KEY = "encryption.key-id"
Parameters = Mapping[str, str] | None
_PLACEHOLDER = "__PLACEHOLDER__"  # Spark's, in place of a location that the metastore shall not check


class MetadataCache:
    """Cache the most recently used metadata files, parsed; no version of a table changes under its name.

    The newest file stays whatever its size, older ones while all together have at most `max_bytes`.
    """

    def __init__(self, max_bytes: int = 64 << 20) -> None:
        self._cache = LRUCache[tuple[TableRef, str, object], TableMetadata](max_bytes, _length, newest=True)

    def cached(self, ref: TableRef, location: str, mark: object) -> TableMetadata | None:
        """Return the parsed file if `mark`, its size and time or its checksum, is unchanged; else None."""
        return self._cache.get((ref, location, mark))

    def parsed(self, ref: TableRef, location: str, mark: object | None, read: Callable[[str], bytes]) -> TableMetadata:
        """Return the parsed file from the cache, or read by `read`. Raises what reading and parsing raise.

        Without a mark the file is read, and its length is the mark from then on.
        """
        if mark is not None and (cached := self.cached(ref, location, mark)):
            return cached
        if isinstance(mark, int):
            ROOM.reserve(mark)
        metadata = parse(ref, location, read(location))
        self._cache.put((ref, location, metadata.metadata_length if mark is None else mark), metadata)
        return metadata


def _length(metadata: TableMetadata) -> int:
    return metadata.metadata_length


@dataclass(frozen=True, slots=True)
class MetastoreEntry:
    """A table of any format as a metastore lists it."""

    ref: TableRef
    parameters: Parameters
    location: str | None  # of its storage descriptor, which a view may lack
    serde: Parameters = None

    @property
    def folders(self) -> tuple[str, ...]:
        """Return where the metastore, or Spark for tables of its own formats, says that the files lie."""
        folders = (self.location, (self.serde or {}).get(_PATH))
        return tuple(f for f in dict.fromkeys(folders) if f and _PLACEHOLDER not in f)


def tables_by_format(entries: Iterable[MetastoreEntry]) -> tuple[list[Pointer], list[Dataset]]:
    """Return Iceberg's tables, and the tables of other formats that have a folder.

    A table of Iceberg that is being created, and names no metadata yet, counts as one of another format.
    """
    pointers: list[Pointer] = []
    datasets: list[Dataset] = []
    for entry in entries:
        if location := location_of(entry.parameters):
            pointers.append(Pointer(entry.ref, location))
        elif entry.folders:
            datasets.append(Dataset(entry.ref, entry.folders))
    return pointers, datasets


def location_of(parameters: Parameters) -> str | None:
    """Return the metadata file of an Iceberg table; None for views, other formats and tables in creation."""
    if not parameters or parameters.get(_TYPE, "").upper() != _ICEBERG:
        return None
    return parameters.get(LOCATION) or None


def database_and_name(ref: TableRef) -> tuple[str, str]:
    """Return database and name. Raises `TableNotFound` for a nested namespace, which no metastore has."""
    if len(ref.namespace) != 1:
        raise not_found(ref)
    return ref.namespace[0], ref.name


def not_found(ref: TableRef) -> TableNotFound:
    """Return the error for a table that does not exist."""
    return TableNotFound(f"{ref}: the catalog does not know this table; `icewright tables` lists what it knows")


def swap_pointer(parameters: Parameters, base: TableMetadata, location: str) -> dict[str, str]:
    """Return the parameters with `location` in place of the file of `base`."""
    return {**(parameters or {}), _TYPE: _ICEBERG, LOCATION: location, PREVIOUS: base.metadata_location}


class ConfiguredCatalog:
    """A catalog of any type by its properties; tables are registered in it through PyIceberg."""

    properties: CatalogProperties

    @property
    def name(self) -> str:
        """Return the catalog's name, which engines use too."""
        return self.properties.name

    def require_namespace(self, ref: TableRef) -> None:
        """Raise `Refused` when there is no namespace for the table."""
        from icewright.adapters.catalogs.registering import require_namespace  # noqa: PLC0415 - as below

        require_namespace(self.properties, ref)

    def register(self, ref: TableRef, metadata_location: str, *, replace: bool = False) -> None:
        """Register a table by its metadata file, as `Registering.register` says."""
        from icewright.adapters.catalogs.registering import register  # noqa: PLC0415 - PyIceberg takes long to load

        register(self.properties, ref, metadata_location, replace=replace)


@dataclass
class MetadataFileCatalog(ConfiguredCatalog):
    """A catalog whose tables are read from the metadata files that it names."""

    properties: CatalogProperties
    files: MetadataFiles
    clock: Clock
    allowlist: Allowlist | None = None
    _cache: MetadataCache = field(default_factory=MetadataCache, init=False)

    def neighbour(self, pointer: Pointer) -> TableMetadata:
        """Return the metadata of a file that the catalog does not name itself, as `Catalog.neighbour` says."""
        return self._stored(pointer.ref, pointer.metadata_location)

    def unrestorable(self, base: TableMetadata, change: RestoreSnapshots) -> str:
        """Return what the change cannot restore, by the table's metadata file."""
        return unrestorable(self.files, base, change)

    def _stored(self, ref: TableRef, location: str) -> TableMetadata:
        stat = self.files.stat([location], 1).get(location)
        # its time tells too: a table that was dropped and made anew may have a v3.metadata.json of the same length
        mark = stat if stat is not None and stat.modified is not None else None
        return self._cache.parsed(ref, location, mark, self.files.read)


class MetastoreCatalog(MetadataFileCatalog, ABC):
    """A catalog whose tables are entries of a metastore, the metadata file being one of their parameters."""

    @abstractmethod
    def listing(self) -> tuple[Sequence[Pointer], Sequence[Dataset]]:
        """Return the tables of all databases: Iceberg's, and those of other formats."""

    @abstractmethod
    def _entry(self, ref: TableRef) -> Any:  # noqa: ANN401 - the client's
        """Return the metastore's entry of a table. Raises `TableNotFound`."""

    @abstractmethod
    def _parameters(self, entry: Any) -> Parameters:  # noqa: ANN401
        """Return the parameters of an entry."""

    @abstractmethod
    def _replace(self, base: TableMetadata, after: TableMetadata, change: Change) -> None:
        """Let the entry name the file of `after`. Raises `CommitStateUnknown` where it may still come to name it."""

    def pointers(self) -> Sequence[Pointer]:
        """Return every Iceberg table of every database, by the parameters in the listings."""
        return self.listing()[0]

    def load(self, ref: TableRef) -> TableMetadata:
        """Load the current metadata of a table. Raises `TableNotFound`, `MetadataUnreadable`."""
        location = location_of(self._parameters(self._entry(ref)))
        if location is None:
            raise not_found(ref)
        return self._stored(ref, location)

    def neighbours(self) -> Sequence[Pointer]:
        """Return no tables: every database of the metastore is in this catalog."""
        return ()

    def commit(self, base: TableMetadata, change: Change) -> TableMetadata:
        """Write the next metadata file and replace the entry, if the entry still names the file of `base`.

        The new file is deleted unless the entry may still come to name it.
        """
        self._current(base)  # else the file would be useless
        require_inside(self.allowlist, self.name, base)
        new = write_metadata(self.files, base, change, self.clock.now())
        if new is None:
            return base
        try:
            self._replace(base, new.after, change)
        except CommitStateUnknown:
            raise
        except IcewrightError as error:
            if landed_before(error, base, new.location, self.load):
                return new.after
            self.files.delete([new.location], 1)  # no commit came to use it
            raise
        return new.after

    def _current(self, base: TableMetadata) -> Any:  # noqa: ANN401
        """Return the entry of the table.

        Raises `CommitConflict` unless it names the file of `base`, `UnsupportedTable` where the table is encrypted.
        """
        try:
            entry = self._entry(base.ref)
        except TableNotFound as error:
            raise gone(base) from error
        parameters = self._parameters(entry)
        if location_of(parameters) != base.metadata_location:
            raise conflict(base)
        if parameters and parameters.get(_KEY):
            raise UnsupportedTable(
                f"{base.ref}: it is encrypted: its catalog keeps a checksum that Spark alone can write"
            )
        return entry
