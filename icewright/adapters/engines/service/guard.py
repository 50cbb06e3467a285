"""What must hold before any file is deleted: allowed places, and no other table in the same place."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from icewright.core.errors import Refused
from icewright.core.paths import directory_key, key
from icewright.core.table import TableMetadata, TableRef
from icewright.ports import Catalog, Pointer

_UUID = re.compile(rb'"table-uuid"\s*:\s*"([^"]+)"')


@dataclass(frozen=True)
class Guard:
    """The catalogs as a fleet, and where files may be deleted at all."""

    catalogs: Mapping[str, Catalog]
    allowed: Mapping[str, Sequence[str]]  # locations by catalog
    known_locations: Callable[[], Mapping[TableRef, str]]  # what evaluations have learnt, for unusual metadata paths

    def allows(self, metadata: TableMetadata, path: str) -> bool:
        """Whether the catalog's `allowed_locations` hold the path."""
        return any(key(path).startswith(directory_key(place)) for place in self.allowed[metadata.ref.catalog])

    def in_allowed_place(self, metadata: TableMetadata) -> None:
        """Raise `Refused` when the table itself lies outside: its files could not be deleted, only forgotten."""
        if not self.allows(metadata, f"{metadata.location}/x"):
            catalog = metadata.ref.catalog
            raise Refused(
                f"{metadata.location} lies outside the allowed_locations of catalog {catalog}: add its place to "
                f"catalogs.{catalog}.allowed_locations if its files may be deleted"
            )

    def not_registered_twice(self, metadata: TableMetadata) -> None:
        """Raise `Refused` when the catalog has the same table under another name: it reads the same files."""
        here = directory_key(metadata.location)
        catalog = self.catalogs[metadata.ref.catalog]
        for pointer in catalog.pointers():
            if pointer.ref != metadata.ref and here in _places(pointer, self.known_locations()):
                other = catalog.load(pointer.ref)
                if other.table_uuid == metadata.table_uuid:
                    raise Refused(
                        f"{metadata.ref} is registered as {pointer.ref} too, which reads the same files: unregister one"
                    )

    def alone(self, metadata: TableMetadata) -> None:
        """Raise `Refused` when any table of any catalog shares the location, or lies above or below it.

        Raises `CatalogUnavailable` when a catalog does not answer: then nobody knows.
        """
        here = directory_key(metadata.location)
        known = self.known_locations()
        for catalog in self.catalogs.values():
            for pointer in catalog.pointers():
                if pointer.ref == metadata.ref:
                    continue
                for there in _places(pointer, known):
                    if here.startswith(there) or there.startswith(here):
                        raise Refused(
                            f"the location {metadata.location} overlaps that of {pointer.ref} ({there}): "
                            "move one of the tables to a place of its own"
                        )


def _places(pointer: Pointer, known: Mapping[TableRef, str]) -> set[str]:
    """Where a table lies: beside its metadata folder, and where its last evaluation saw it."""
    folder, metadata, _ = pointer.metadata_location.rpartition("/metadata/")
    places = {directory_key(folder if metadata else pointer.metadata_location.rpartition("/")[0])}
    return places | ({directory_key(known[pointer.ref])} if pointer.ref in known else set())


def table_uuid(content: bytes) -> str | None:
    """The uuid in a metadata file, found without parsing all of it."""
    found = _UUID.search(content)
    return found[1].decode() if found else None
