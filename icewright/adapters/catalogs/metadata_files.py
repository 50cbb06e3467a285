"""What catalogs share that name one metadata file for each table, which Icewright itself reads and writes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from icewright.adapters.catalogs.metadata_cache import MetadataCache
from icewright.adapters.catalogs.staging import MetadataFiles, restorable
from icewright.core.allowlist import Allowlist
from icewright.core.table import TableMetadata, TableRef
from icewright.ports import Clock, Pointer, RestoreSnapshots


class CatalogProperties(Protocol):
    """The properties that a catalog of any type has."""

    @property
    def name(self) -> str:
        """Return the catalog's name in the configuration."""
        ...


@dataclass
class MetadataFileCatalog:
    """A catalog whose tables are read from the metadata files that it names."""

    properties: CatalogProperties
    files: MetadataFiles
    clock: Clock
    allowlist: Allowlist | None = None
    _memo: MetadataCache = field(default_factory=MetadataCache, init=False)

    @property
    def name(self) -> str:
        """Return the catalog's name, which engines use too."""
        return self.properties.name

    def neighbour(self, pointer: Pointer) -> TableMetadata:
        """Return the metadata of a file that the catalog does not name itself, as `Catalog.neighbour` says."""
        return self._stored(pointer.ref, pointer.metadata_location)

    def restorable(self, base: TableMetadata, change: RestoreSnapshots) -> str:
        """Return what the change cannot restore, by the table's metadata file."""
        return restorable(self.files, base, change)

    def _stored(self, ref: TableRef, location: str) -> TableMetadata:
        return self._memo.parsed(ref, location, self.files.size(location), self.files.read)
