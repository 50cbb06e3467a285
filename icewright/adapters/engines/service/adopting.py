"""Adoption: a person declares that files which stop deletions, such as those of earlier tables, are the table's own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from icewright.adapters.engines.service.folders import files_below
from icewright.adapters.engines.service.guard import DeletionGuard
from icewright.adapters.engines.service.listing import metadata_files, unreferenced_metadata_beside
from icewright.adapters.engines.service.other_formats import markers_of_other_formats
from icewright.adapters.engines.service.successors import IdentifiedMetadata, UnreferencedMetadata, identify
from icewright.adapters.engines.service.surroundings import Surroundings
from icewright.core.errors import MetadataUnreadable, Refused
from icewright.core.paths import key
from icewright.core.table import TableMetadata
from icewright.ports import Adoptable


@dataclass(frozen=True)
class Adopting:
    """Finds files and places that a person may declare to be the table's own; `guard` knows all other tables."""

    guard: DeletionGuard

    def adoptable(self, metadata: TableMetadata) -> Adoptable:
        """Return everything in the table's places that stops deletions there and belongs to no known table.

        Raises `Refused` when part of it belongs to a table that some catalog names.
        """
        surroundings = self.guard.around(metadata, adopting=True)
        adopted = surroundings.adopted
        former_files = surroundings.former_versions, surroundings.metadata_folders
        beside = unreferenced_metadata_beside(self.guard.registry.files, metadata, *former_files)
        unreferenced = {file.path: file for file in (*self._strange(metadata), *beside)}
        files, unreadable = self._identified(metadata, list(unreferenced.values()), adopted)
        self._require_no_live_owner(files, surroundings)
        roots = metadata.roots
        places = [*map(surroundings.place, roots)]
        former = [
            other
            for other in surroundings.others
            if (other.pointer is None or other.is_dataset)
            and other.identity not in adopted
            and any(a.may_meet(b) for a in (*other.places, *other.folders) for b in places)
        ]
        found = markers_of_other_formats(self.guard.registry.files, metadata)
        markers = [path for path in found if key(path) not in adopted]
        foreign = [uuid for _, uuid in files.foreign if uuid]
        nameless = [path for path, uuid in files.foreign if not uuid]  # adopted one by one, as no uuid tells them apart
        earlier = []
        for other in former:
            if other.registration.table_uuid or other.is_dataset:
                earlier.append(other.identity)
            else:
                nameless.append(other.registration.metadata_location)
        return Adoptable(
            table_uuid=metadata.table_uuid,
            tables=tuple(dict.fromkeys((*foreign, *earlier))),
            files=tuple(dict.fromkeys((*(s.path for s in files.successors), *unreadable, *nameless, *markers))),
            places=tuple(root for root in roots if root not in adopted),
        )

    def _strange(self, metadata: TableMetadata) -> list[UnreferencedMetadata]:
        named = {key(path) for path in (metadata.metadata_location, *metadata.metadata_log)}
        unreferenced: list[UnreferencedMetadata] = []
        for root in metadata.roots:
            for frame in map(metadata_files, files_below(self.guard.registry.files, root)):
                unreferenced += [UnreferencedMetadata(*row) for row in frame.rows() if key(row[0]) not in named]
        return unreferenced

    def _identified(
        self, metadata: TableMetadata, unreferenced: Sequence[UnreferencedMetadata], adopted: frozenset[str]
    ) -> tuple[IdentifiedMetadata, list[str]]:
        read = self.guard.registry.files.read
        unreadable: list[str] = []
        readable = list(unreferenced)
        while True:
            try:
                return identify(metadata, readable, read, adopted), unreadable
            except MetadataUnreadable:
                broken = next(file for file in readable if _unreadable(metadata, file, self.guard))
                unreadable.append(broken.path)
                readable = [file for file in readable if file is not broken]

    def _require_no_live_owner(self, files: IdentifiedMetadata, surroundings: Surroundings) -> None:
        named = [o for o in surroundings.others if o.pointer is not None and o.registration.table_uuid]
        live_tables = {o.registration.table_uuid: o for o in named}
        for path, uuid in files.foreign:
            owner = live_tables.get(uuid)
            if owner is not None and not self.guard.has_left(owner, surroundings):
                raise Refused(
                    f"{surroundings.table.ref}: {path} belongs to {owner}, which lives: move one of the "
                    "tables to a place of its own",
                    "shared_location",
                )


def _unreadable(metadata: TableMetadata, file: UnreferencedMetadata, guard: DeletionGuard) -> bool:
    try:
        identify(metadata, [file], guard.registry.files.read, frozenset())
    except MetadataUnreadable:
        return True
    return False
