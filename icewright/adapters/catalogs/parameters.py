"""Parameters of a Hive or Glue entry that name a table's metadata file."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from icewright.core.errors import CommitConflict, TableNotFound, UnsupportedTable
from icewright.core.table import TableMetadata, TableRef
from icewright.ports import Dataset, Pointer

LOCATION = "metadata_location"
PREVIOUS = "previous_metadata_location"
_PATH = "path"  # the SerDe parameter in which Spark writes the folder of a table of its own formats
_TYPE, _ICEBERG = "table_type", "ICEBERG"
_KEY = "encryption.key-id"

Parameters = Mapping[str, str] | None
_PLACEHOLDER = "__PLACEHOLDER__"  # Spark's, in place of a location that the metastore shall not check


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


def divided(entries: Iterable[MetastoreEntry]) -> tuple[list[Pointer], list[Dataset]]:
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


def flat(ref: TableRef) -> tuple[str, str]:
    """Return database and name. Raises `TableNotFound` for a nested namespace, which no metastore has."""
    if len(ref.namespace) != 1:
        raise not_found(ref)
    return ref.namespace[0], ref.name


def not_found(ref: TableRef) -> TableNotFound:
    """Return the error for a table that does not exist."""
    return TableNotFound(f"{ref}: the catalog does not know this table; `icewright tables` lists what it knows")


def must_be_current(base: TableMetadata, parameters: Parameters) -> None:
    """Raise `CommitConflict` unless the entry names the file of `base`, `UnsupportedTable` where it is encrypted."""
    if location_of(parameters) != base.metadata_location:
        raise CommitConflict(f"{base.ref}: somebody else committed since {base.metadata_location}")
    if parameters and parameters.get(_KEY):
        raise UnsupportedTable(f"{base.ref}: it is encrypted: its catalog keeps a checksum that Spark alone can write")


def swap_pointer(parameters: Parameters, base: TableMetadata, location: str) -> dict[str, str]:
    """Return the parameters with `location` in place of the file of `base`."""
    return {**(parameters or {}), _TYPE: _ICEBERG, LOCATION: location, PREVIOUS: base.metadata_location}
