"""Catalogs of type `glue`: entries of AWS Glue whose parameters name the metadata file, swapped by version id."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from icewright.adapters.catalogs.glue_client import GlueClient
from icewright.adapters.catalogs.metadata_files import MetadataFileCatalog
from icewright.adapters.catalogs.outcome import RequestOutcomeUnknown
from icewright.adapters.catalogs.parameters import (
    MetastoreEntry,
    divided,
    flat,
    location_of,
    must_be_current,
    not_found,
    swap_pointer,
)
from icewright.adapters.catalogs.staging import settled, write_metadata
from icewright.adapters.catalogs.translate.glue import GlueCatalogProperties
from icewright.core.allowlist import require_inside
from icewright.core.errors import CommitConflict, CommitStateUnknown, IcewrightError, TableNotFound
from icewright.core.table import TableMetadata, TableRef
from icewright.ports import Change, Dataset, Pointer

PARALLEL = 8  # databases that are listed at the same time; boto3 keeps ten connections
# what an entry and the request to replace it have in common: the columns are for people, and do not change here
_UPDATABLE_FIELDS = (
    "Name", "Description", "Owner", "LastAccessTime", "LastAnalyzedTime", "Retention", "StorageDescriptor",
    "PartitionKeys", "ViewOriginalText", "ViewExpandedText", "TableType", "TargetTable",
)  # fmt: skip


@dataclass
class GlueCatalog(MetadataFileCatalog):
    """The Data Catalog of one account and region. Thread-safe."""

    properties: GlueCatalogProperties
    _client: GlueClient = field(init=False)

    def __post_init__(self) -> None:
        self._client = GlueClient(self.properties, self.clock)

    def close(self) -> None:
        """Close the client's connections to AWS."""
        self._client.close()

    def pointers(self) -> Sequence[Pointer]:
        """Return every Iceberg table of every database, by the parameters in the listings."""
        return self.listing()[0]

    def listing(self) -> tuple[Sequence[Pointer], Sequence[Dataset]]:
        """Return the tables of all databases: Iceberg's, and those of other formats."""
        databases = self._client.databases()
        with ThreadPoolExecutor(PARALLEL) as pool:
            return divided(entry for listed in pool.map(self._listed, databases) for entry in listed)

    def load(self, ref: TableRef) -> TableMetadata:
        """Load the current metadata of a table. Raises `TableNotFound`, `MetadataUnreadable`."""
        location = location_of(self._entry(ref).get("Parameters"))
        if location is None:
            raise not_found(ref)
        return self._stored(ref, location)

    def neighbours(self) -> Sequence[Pointer]:
        """Return None: every database is in this catalog, and Glue shows no other account's tables."""
        return ()

    def commit(self, base: TableMetadata, change: Change) -> TableMetadata:
        """Write the next metadata file and replace the entry if it still has the version that names the file of `base`.

        Every change of an entry gives the entry a new version, so a concurrent change of any ref, snapshot or property
        is a conflict. The new file is deleted unless the entry may still come to name it.
        """
        try:
            entry = self._entry(base.ref)
        except TableNotFound as error:
            raise CommitConflict(f"{base.ref}: the table is gone since {base.metadata_location}") from error
        must_be_current(base, entry.get("Parameters"))
        require_inside(self.allowlist, self.name, base)
        new = write_metadata(self.files, base, change, self.clock.now())
        if new is None:
            return base
        after = new.after
        try:
            self._replaced(base, entry, after.metadata_location)
        except CommitStateUnknown:
            raise
        except IcewrightError:
            self.files.delete([after.metadata_location], 1)  # no commit came to use it
            raise
        return after

    def _replaced(self, base: TableMetadata, entry: Mapping[str, Any], location: str) -> None:
        new = {key: entry[key] for key in _UPDATABLE_FIELDS if key in entry}
        new["Parameters"] = swap_pointer(entry.get("Parameters"), base, location)
        try:
            self._client.update(base.ref, base.ref.namespace[0], new, str(entry["VersionId"]))
        except RequestOutcomeUnknown as error:
            settled(base, location, self.load, self.clock, f"Glue lost the commit ({error})", compares=True)

    def _listed(self, database: str) -> list[MetastoreEntry]:
        return [self._listed_entry(database, table) for table in self._client.tables(database)]

    def _listed_entry(self, database: str, table: Mapping[str, Any]) -> MetastoreEntry:
        descriptor = table.get("StorageDescriptor") or {}
        ref, serde = TableRef(self.name, (database,), table["Name"]), descriptor.get("SerdeInfo") or {}
        return MetastoreEntry(ref, table.get("Parameters"), descriptor.get("Location"), serde.get("Parameters"))

    def _entry(self, ref: TableRef) -> Mapping[str, Any]:
        entry = self._client.table(*flat(ref))
        if entry is None:
            raise not_found(ref)
        return entry
