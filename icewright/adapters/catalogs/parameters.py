"""Parameters of a Hive or Glue entry that name a table's metadata file."""

from __future__ import annotations

from collections.abc import Mapping

from icewright.core.errors import CommitConflict, TableNotFound, UnsupportedTable
from icewright.core.table import TableMetadata, TableRef

LOCATION = "metadata_location"
PREVIOUS = "previous_metadata_location"
_TYPE, _ICEBERG = "table_type", "ICEBERG"
_KEY = "encryption.key-id"

Parameters = Mapping[str, str] | None


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
