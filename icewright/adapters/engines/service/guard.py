"""What must hold for a table and each of its files before anything is deleted: allowed places, and no other reader.

Every path that deletes asks here: expiry, orphan removal, vacuum, and whoever finishes what an earlier process planned.
It is asked when a deletion is planned, and again right before each batch of deletions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import polars as pl

from icewright.adapters.engines.service import reachable as sets
from icewright.adapters.engines.service.registry import Other, Surroundings, TableRegistry
from icewright.core.errors import FileMissing, IcewrightError, Refused
from icewright.core.paths import key
from icewright.core.places import Index, Place, Spelling
from icewright.core.table import TableMetadata, TableRef

_EXAMPLES = 3  # files that a note names


@dataclass(frozen=True, slots=True)
class Judgement:
    """Which files may be deleted as far as others are concerned, and why the rest stays."""

    files: pl.DataFrame  # `path` and whatever columns there were
    stays: Mapping[str, str]  # the reason by path

    def notes(self) -> list[str]:
        """Return the reasons, each with how many files it keeps and some of them."""
        by_reason: dict[str, list[str]] = {}
        for path, reason in self.stays.items():
            by_reason.setdefault(reason, []).append(path)
        return [
            f"{len(paths)} file(s) are kept: {reason}: {', '.join(sorted(paths)[:_EXAMPLES])}"
            f"{' ...' if len(paths) > _EXAMPLES else ''}"
            for reason, paths in by_reason.items()
        ]


@dataclass(frozen=True)
class DeletionGuard:
    """The rules over the registry of all tables, and over the places in which files may be deleted at all."""

    registry: TableRegistry
    allowed_locations: Mapping[str, Sequence[str]]  # by catalog; where there is none nothing is deleted
    spelling: Callable[[TableRef], Spelling] = lambda _: Spelling()
    ignoring: frozenset[str] = frozenset()  # catalogs whose tables the caller sees by itself, over all their branches

    def around(self, metadata: TableMetadata) -> Surroundings:
        """Ask now who else there is.

        Raises `CatalogUnavailable` when a catalog does not answer, as then nobody knows, and `Refused` when the table
        is registered twice.
        """
        found, adopted = self.registry.around(metadata, self.spelling(metadata.ref)), self.adopted(metadata)

        def counts(other: Other) -> bool:
            name = other.registration.table_uuid or key(other.registration.metadata_location)
            gone_for_good = other.pointer is None and name in adopted
            return other.via not in self.ignoring and not gone_for_good

        found = replace(found, others=tuple(filter(counts, found.others)))
        self._registered_once(metadata, found)
        return found

    def in_allowed_place(self, metadata: TableMetadata) -> None:
        """Raise `Refused` when the table itself lies outside: its files could not be deleted, only forgotten."""
        if not self._allows(metadata, metadata.location):
            catalog = metadata.ref.catalog
            raise Refused(
                f"{metadata.ref}: {metadata.location} lies outside the allowed_locations of catalog {catalog}: add its "
                f"place to catalogs.{catalog}.allowed_locations if its files may be deleted",
                "outside_allowed_locations",
            )

    def roots(self, metadata: TableMetadata, around: Surroundings) -> tuple[list[str], list[str]]:
        """Where the table's files may lie: its location, and write paths elsewhere that no other table ever used.

        Of the write paths that are left out, the reasons. Raises `Refused` when another table shares the location.
        """
        if other := self._sharing(metadata, metadata.location, around):
            raise Refused(
                f"{metadata.ref}: the location {metadata.location} overlaps that of {other}: "
                f"{self._remedy(metadata, other)}",
                "shared_location",
            )
        roots, notes = [metadata.location], []
        for place in metadata.write_paths:
            if not self._allows(metadata, place):
                doubt = f"it lies outside the allowed_locations of catalog {metadata.ref.catalog}"
            elif other := self._sharing(metadata, place, around):
                doubt = f"it overlaps the place of {other}"
            else:
                roots.append(place)
                continue
            notes.append(f"{place} is not scanned: {doubt}")
        return roots, notes

    def moved(self, metadata: TableMetadata, roots: Iterable[str], around: Surroundings) -> str | None:
        """The first of the roots that the table came to after it was first seen, and that nobody has confirmed."""
        adopted = self.adopted(metadata)
        return next(
            (root for root in roots if root not in adopted and not around.had_at_first(self._place(metadata, root))),
            None,
        )

    def adopted(self, metadata: TableMetadata) -> frozenset[str]:
        """Return what a person has said to be the table's own, or nobody's."""
        return self.registry.registrations.adopted(metadata.table_uuid)

    def judge(
        self,
        metadata: TableMetadata,
        around: Surroundings,
        files: pl.DataFrame,
        *,
        own: Sequence[str] | None = None,
        outside: bool = False,
        automatic: bool = False,
    ) -> Judgement:
        """Return which of the files may be deleted on behalf of the table.

        `own`: the table's places, if not all that it ever had. `outside`: files that lie in nobody's place may go too.
        `automatic`: a place that the table came to after it was first seen is nobody's until a person confirms it.
        What lies in another table's place stays, and so does what another table that shares a place reaches, by its
        metadata as it is now.
        """
        if files.is_empty():
            return Judgement(files, {})
        mine = around.own if own is None else tuple(self._place(metadata, folder) for folder in own)
        confirmed = [self._place(metadata, folder) for folder in self.adopted(metadata)] if automatic else []
        index = Index(
            (one, not automatic or around.had_at_first(one) or any(one.within(place) for place in confirmed))
            for one in mine
        )
        folders = files.select(folder=pl.col("path").str.extract(r"^(.*/)[^/]*$").fill_null("")).to_series()
        allowed = self._allowed(metadata.ref)
        reasons: dict[str, str] = {}
        sharers: dict[str, tuple[Other, ...]] = {}
        for folder in folders.unique():
            place = self._place(metadata, folder)
            if not any(place.within(one) for one in allowed):
                reasons[folder] = f"outside the allowed_locations of catalog {metadata.ref.catalog}"
                continue
            reason, sharing = _about(place, index, around, outside=outside)
            reasons |= {folder: reason} if reason else {}
            sharers |= {folder: tuple(sharing)} if sharing else {}
        stays = {p: reasons[f] for p, f in zip(files["path"], folders, strict=True) if f in reasons} if reasons else {}
        left = files.filter(~folders.is_in(list(reasons))) if reasons else files
        shared = {other.registration.key: other for group in sharers.values() for other in group}
        for other in shared.values():
            where = [folder for folder, group in sharers.items() if other in group]
            there = left.filter(left["path"].str.extract(r"^(.*/)[^/]*$").fill_null("").is_in(where))
            reached = self._reached_by(other, there)
            stays |= reached
            left = left.filter(~left["path"].is_in(list(reached))) if reached else left
        return Judgement(left, stays)

    def _reached_by(self, other: Other, files: pl.DataFrame) -> dict[str, str]:
        """Return those of the files that the other table reaches; all of them where it cannot be read."""
        try:
            metadata = self.registry.metadata_of(other)
            free = sets.unreached(files, sets.reached(self.registry.files, metadata), self.registry.files.canonical)
        except FileMissing:
            if other.pointer is None:  # nobody names it any more, and it is not there any more
                return {}
            return dict.fromkeys(files["path"], f"{other}, which uses files there, cannot be read")
        except IcewrightError as error:
            return dict.fromkeys(files["path"], f"{other}, which uses files there, cannot be read ({error})")
        live = files.filter(~files["path"].is_in(free["path"].implode()))
        return dict.fromkeys(live["path"], f"{other} reads them")

    def _registered_once(self, metadata: TableMetadata, around: Surroundings) -> None:
        for other in around.others:
            uuid = other.registration.table_uuid
            if other.pointer is None or uuid != metadata.table_uuid or (other.problem and not uuid):
                continue
            meets = any(a.may_meet(b) for a in other.places for b in around.own)
            if metadata.table_uuid or meets:  # format v1 may leave the uuid out
                raise Refused(
                    f"{metadata.ref} is registered as {other} too, which reads the same files: unregister one",
                    "registered_twice",
                )

    def _sharing(self, metadata: TableMetadata, folder: str, around: Surroundings) -> Other | None:
        """Another table with a place of its own that meets the folder, or that ever had one there."""
        here, adopted = self._place(metadata, folder), self.adopted(metadata)
        for other in sorted(around.others, key=lambda o: o.pointer is None):
            if not any(here.may_meet(place) for place in other.places):
                continue
            gone = not self._still_there(other) if other.pointer is None else False
            left = folder in adopted and other.pointer is not None and self.has_left(metadata, other)
            if not gone and not left:
                return other
        return None

    def has_left(self, metadata: TableMetadata, other: Other) -> bool:
        """Whether a table that some catalog names had a place where this table's are, and has none there any more."""
        mine = [self._place(metadata, folder) for folder in (metadata.location, *metadata.write_paths)]
        if not any(one.may_meet(place) for one in mine for place in other.places):
            return False
        try:
            now = self.registry.metadata_of(other)
        except IcewrightError:  # nobody knows
            return False
        places = (now.location, *now.write_paths, now.metadata_location.rpartition("/")[0])
        return not any(one.may_meet(self._place(metadata, place)) for one in mine for place in places)

    def _still_there(self, other: Other) -> bool:
        """Whether the metadata of a table that no catalog names any more is there: an unseen catalog may name it."""
        return self.registry.files.size(other.registration.metadata_location) is not None

    def _remedy(self, metadata: TableMetadata, other: Other) -> str:
        if other.pointer is None:
            return (
                f"if that table is gone for good, `icewright adopt {metadata.ref}` lets this one have the place; "
                "if another catalog has it, move one of both"
            )
        where = f" ({other.problem})" if other.problem else ""
        return (
            f"move one of the tables to a place of its own{where}; if that one has moved away for good, "
            f"`icewright adopt {metadata.ref}`"
        )

    def _allows(self, metadata: TableMetadata, folder: str) -> bool:
        here = self._place(metadata, folder)
        return any(here.within(allowed) for allowed in self._allowed(metadata.ref))

    def _allowed(self, ref: TableRef) -> list[Place]:
        return [self.registry.place(folder, self.spelling(ref)) for folder in self.allowed_locations[ref.catalog]]

    def _place(self, metadata: TableMetadata, folder: str) -> Place:
        return self.registry.place(folder, self.spelling(metadata.ref))


def _about(place: Place, mine: Index[bool], around: Surroundings, *, outside: bool) -> tuple[str, list[Other]]:
    """Return why files of a folder stay, blank when they need not, and whoever may reach some of them all the same.

    The innermost place counts, and one that two tables share is both's. `mine` says which places are confirmed.
    """
    holding = mine.holding(place)
    own = max((len(held.folder) for held, _ in holding), default=0)
    theirs = around.having.holding(place)
    inner = [other for held, other in theirs if len(held.folder) > own]
    if inner:
        return f"they lie in the place of {inner[-1]}", []
    if not own and not outside:
        return (
            "they lie outside the table's own location and write paths "
            "(expire_snapshots.outside_location: delete lets them go)"
        ), []
    if not outside and not any(confirmed for _, confirmed in holding):
        return "they lie in a place that the table came to after it was first seen: `icewright adopt` confirms it", []
    return "", [other for _, other in (*theirs, *around.using.holding(place))]
