"""Conditions for every deletion: the table lies in allowed places, and no other table reads the file.

Every path that deletes calls this guard: expiry, orphan removal, vacuum, and a process that finishes the plan of an
earlier one. It is called when a deletion is planned, and again right before each batch of deletions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import polars as pl

from icewright.adapters.engines.service import reachable as sets
from icewright.adapters.engines.service.listing import has_versions, is_version, unreferenced_metadata_beside
from icewright.adapters.engines.service.other_formats import require_iceberg_alone
from icewright.adapters.engines.service.registry import TableRegistry, may_meet
from icewright.adapters.engines.service.successors import identify
from icewright.adapters.engines.service.surroundings import OtherTable, PlaceOf, RecordedTables, Surroundings
from icewright.core.errors import FileMissing, IcewrightError, Refused
from icewright.core.places import Index, Place, Spelling
from icewright.core.table import TableMetadata, TableRef
from icewright.core.words import count, in_shell
from icewright.ports.work import catalog_context

_EXAMPLES = 3  # files that a note names
_FOLDER = pl.col("path").str.extract(r"^(.*/)[^/]*$").fill_null("")


@dataclass(frozen=True, slots=True)
class Judgement:
    """The files that no other table needs, and the reason why each of the others stays."""

    files: pl.DataFrame  # `path` and all columns of the input
    stays: Mapping[str, str]  # the reason by path

    def notes(self) -> list[str]:
        """Return one note per reason, with the number of files that stay for it and some of their paths."""
        by_reason: dict[str, list[str]] = {}
        for path, reason in self.stays.items():
            by_reason.setdefault(reason, []).append(path)
        return [
            f"{count(len(paths), 'file')} kept: {reason}: {', '.join(sorted(paths)[:_EXAMPLES])}"
            f"{' ...' if len(paths) > _EXAMPLES else ''}"
            for reason, paths in by_reason.items()
        ]


@dataclass(frozen=True)
class DeletionGuard:
    """The rules over the registry of all tables, and over the places in which files may be deleted at all."""

    registry: TableRegistry
    allowed_locations: Mapping[str, Sequence[str]]  # by catalog; in a catalog without any, nothing is deleted
    spelling: Callable[[TableRef], Spelling] = lambda _: Spelling()
    ignoring: frozenset[str] = frozenset()  # catalogs whose tables the caller sees by itself, over all their branches

    def recorded(self, metadata: TableMetadata) -> RecordedTables:
        """Return what policy and store say of the table, by one transaction."""
        with self.registry.reading_together():
            return self.registry.recorded(metadata, self.spelling(metadata.ref))

    def around(
        self, metadata: TableMetadata, *, adopting: bool = False, recorded: RecordedTables | None = None
    ) -> Surroundings:
        """Return the table's places and all other tables, as catalogs and store have them now.

        `recorded` is what was read right before, together with what the caller reads of the store.

        Raises `CatalogUnavailable` when a catalog does not answer, as its tables are then unknown, and `Refused` when
        the table is registered twice, lies outside of `allowed_locations`, is maintained by another format or may
        share places with tables that other services see alone, unless the caller is `adopting` what is left.
        """
        recorded = recorded or self.recorded(metadata)
        if not adopting:
            self._require_in_allowed_place(metadata, recorded.place)
            self.require_maintainable(metadata)
            _require_all_visible(recorded)
        surroundings = self.registry.around(recorded)

        def counts(other: OtherTable) -> bool:
            could_be_dead = other.pointer is None or other.is_dataset
            dead = could_be_dead and other.identity in surroundings.adopted
            return other.via not in self.ignoring and not dead

        surroundings = replace(surroundings, others=tuple(filter(counts, surroundings.others)))
        _require_registered_once(surroundings, adopting=adopting)
        return surroundings

    def require_maintainable(self, metadata: TableMetadata) -> None:
        """Raise `Refused` when another format's log decides which files live, or readers take snapshots differently."""
        if len(metadata.by_id) < len(metadata.snapshots):
            twin, _ = Counter(s.snapshot_id for s in metadata.snapshots).most_common(1)[0]
            raise Refused(
                f"{metadata.ref}: {metadata.metadata_location} has two snapshots of the id {twin}, of which one "
                "reader takes the first, one the last, and Iceberg's own library none: nothing is committed or deleted "
                "until the catalog names a metadata file without such a pair, as an earlier one",
                "twin_snapshots",
            )
        registry = self.registry
        require_iceberg_alone(registry.files, metadata, lambda: registry.registrations.adopted(metadata.table_uuid))

    def _require_in_allowed_place(self, metadata: TableMetadata, place: PlaceOf) -> None:
        """Raise `Refused` if the table lies outside of `allowed_locations`: its files could not be deleted."""
        if not self._allows(metadata, metadata.location, place):
            catalog = metadata.ref.catalog
            raise Refused(
                f"{metadata.ref}: {metadata.location} lies outside the allowed_locations of catalog {catalog}: add its "
                f"place to catalogs.{catalog}.allowed_locations if its files may be deleted",
                "outside_allowed_locations",
            )

    def roots(self, surroundings: Surroundings) -> tuple[list[str], list[str]]:
        """Return the table's location and the write paths that no other table ever used, and notes on the others.

        Raises `Refused` when another table shares the location.
        """
        metadata = surroundings.table
        if other := self._sharing(metadata.location, surroundings):
            own = surroundings.place(metadata.location)
            theirs = (place for place in other.registration.places if own.may_meet(surroundings.place(place)))
            raise Refused(
                f"{metadata.ref}: the location {metadata.location} overlaps {next(theirs, 'a place')} of {other}: "
                f"{_remedy(metadata, other)}",
                "shared_location",
            )
        roots, notes = [metadata.location], []
        for place in metadata.write_paths:
            if not self._allows(metadata, place, surroundings.place):
                doubt = f"it lies outside the allowed_locations of catalog {metadata.ref.catalog}"
            elif other := self._sharing(place, surroundings):
                doubt = f"it overlaps the place of {other}"
            else:
                roots.append(place)
                continue
            notes.append(f"{place} is not scanned: {doubt}")
        return roots, notes

    def judge(
        self,
        surroundings: Surroundings,
        files: pl.DataFrame,
        *,
        own: Sequence[str] | None = None,
        outside: bool = False,
        automatic: bool = False,
    ) -> Judgement:
        """Return which of the files may be deleted on behalf of the table.

        `own`: the table's places, if not all that it ever had. `outside`: files outside of all tables' places may be
        deleted too. `automatic`: a place that the table moved to after it was first seen counts as nobody's until a
        person confirms it. Files in another table's place stay, and so do files that another table sharing a place
        reaches, by its current metadata.
        """
        if files.is_empty():
            return Judgement(files, {})
        folders = files.select(_FOLDER).to_series()
        index = _own_index(surroundings, own, automatic=automatic)
        allowed = self._allowed(surroundings.table, surroundings.place)
        reasons: dict[str, str] = {}  # by folder, why its files stay
        sharers: dict[str, list[OtherTable]] = {}  # by folder, the tables that may reach some of its files
        for folder in folders.unique():
            place = surroundings.place(folder)
            if not any(place.within(one) for one in allowed):
                reasons[folder] = f"outside the allowed_locations of catalog {surroundings.table.ref.catalog}"
                continue
            reason, sharing = _reason_to_keep(place, index, surroundings, outside=outside)
            reasons |= {folder: reason} if reason else {}
            sharers |= {folder: sharing} if sharing else {}
        stays = {p: reasons[f] for p, f in zip(files["path"], folders, strict=True) if f in reasons} if reasons else {}
        candidates = files.filter(~folders.is_in(list(reasons))) if reasons else files
        return self._without_reached(surroundings.table, candidates, sharers, stays)

    def _without_reached(
        self,
        metadata: TableMetadata,
        candidates: pl.DataFrame,
        sharers: Mapping[str, Sequence[OtherTable]],
        stays: Mapping[str, str],
    ) -> Judgement:
        """Return the judgement on files, of which those stay, too, that a table which shares their folder reaches."""
        for other in {other.registration.key: other for group in sharers.values() for other in group}.values():
            shared = [folder for folder, group in sharers.items() if other in group]
            reached = self._reached_by(other, candidates.filter(_FOLDER.is_in(shared)), metadata)
            if reached:
                stays = {**stays, **reached}
                candidates = candidates.filter(~pl.col("path").is_in(list(reached)))
        return Judgement(candidates, stays)

    def _reached_by(self, other: OtherTable, files: pl.DataFrame, own: TableMetadata) -> dict[str, str]:
        """Return those of the files that the other table reaches; all of them where nobody can tell."""
        if other.is_dataset or other.unlisted:
            reason = f"{other} may read them; if that one is gone for good, `icewright adopt {in_shell(own.ref)}`"
            return dict.fromkeys(files["path"], reason)
        try:
            metadata = self.registry.metadata_of(other)
            newer = self._newer_version(metadata, other.via)
            if newer and other.pointer is not None:  # it may be the next commit, and have landed by now
                metadata = self.registry.metadata_of(other)
                newer = self._newer_version(metadata, other.via)
            if newer:
                return dict.fromkeys(files["path"], f"{newer} is a newer version of {other}, and may read them")
            with catalog_context(other.via):
                free = sets.unreached(files, sets.reached(self.registry.files, metadata), self.registry.files.canonical)
        except FileMissing:
            if other.pointer is None and self._is_deleted(other, own):
                return {}
            return dict.fromkeys(files["path"], f"{other}, which uses files there, cannot be read")
        except IcewrightError as error:
            return dict.fromkeys(files["path"], f"{other}, which uses files there, cannot be read ({error})")
        live = files.filter(~files["path"].is_in(free["path"].implode()))
        return dict.fromkeys(live["path"], f"{other} reads them")

    def _sharing(self, folder: str, surroundings: Surroundings) -> OtherTable | None:
        """Return another table whose place overlaps the folder, now or at any time."""
        own_place = surroundings.place(folder)
        for other in sorted(surroundings.others, key=lambda o: o.pointer is None):
            if not any(own_place.may_meet(place) for place in other.places):
                continue
            dead = other.is_dropped and self._is_deleted(other, surroundings.table)
            confirmed = folder in surroundings.adopted and other.pointer is not None
            moved_away = confirmed and self.has_left(other, surroundings)
            if not dead and not moved_away:
                return other
        return None

    def has_left(self, other: OtherTable, surroundings: Surroundings) -> bool:
        """Return whether another live table had a place in this table's places, and has none there any more."""
        own_places = [*map(surroundings.place, surroundings.table.roots)]
        if not any(one.may_meet(place) for one in own_places for place in other.places):
            return False
        try:
            current = self.registry.metadata_of(other)
        except IcewrightError:  # unreadable: assume that it still has its place
            return False
        places = [*map(surroundings.place, current.folders)]
        return not any(one.may_meet(place) for one in own_places for place in places)

    def _newer_version(self, last: TableMetadata, via: str) -> str:
        """Return a version that another table came to after the one that its catalog names, or named last; or a blank.

        A catalog that answers from a cache names an older one, and who took an unnamed table over writes newer ones.
        """
        registry = self.registry
        with catalog_context(via):
            unreferenced = unreferenced_metadata_beside(registry.files, last)
            adopted = registry.registrations.adopted(last.table_uuid) if unreferenced else frozenset[str]()
            return next((one.path for one in identify(last, unreferenced, registry.files.read, adopted).successors), "")

    def _is_deleted(self, other: OtherTable, own: TableMetadata) -> bool:
        """Return whether no version of an unnamed table is left: an unseen catalog may name it, and write new ones."""
        files, last = self.registry.files, other.registration.metadata_location
        uuid = other.registration.table_uuid
        with catalog_context(other.via):
            return not is_version(files, last, uuid) and not has_versions(files, last, uuid, own)

    def _allows(self, metadata: TableMetadata, folder: str, place: PlaceOf) -> bool:
        own_place = place(folder)
        return any(own_place.within(allowed) for allowed in self._allowed(metadata, place))

    def _allowed(self, metadata: TableMetadata, place: PlaceOf) -> list[Place]:
        return [*map(place, self.allowed_locations[metadata.ref.catalog])]


def _require_all_visible(recorded: RecordedTables) -> None:
    """Raise `Refused` when another service has a catalog that this process cannot ask, and could share places."""
    for name, places in recorded.elsewhere:
        if may_meet(name, places, recorded):
            raise Refused(
                f"{recorded.table.ref}: another service on the same store has a catalog {name}, which is not "
                f"configured here and whose tables may share places with this one: configure it here too, or narrow "
                f"catalogs.{name}.allowed_locations there",
                "catalog_elsewhere",
            )


def _require_registered_once(surroundings: Surroundings, *, adopting: bool) -> None:
    """Raise `Refused` when a catalog names the table under another name too."""
    metadata = surroundings.table
    for other in surroundings.others:
        uuid = other.registration.table_uuid
        unknown = (other.problem or other.is_dataset) and not uuid
        if other.is_dropped or (adopting and other.unlisted) or uuid != metadata.table_uuid or unknown:
            continue
        meets = any(a.may_meet(b) for a in other.places for b in surroundings.own)
        if metadata.table_uuid or meets:  # format v1 may leave the uuid out
            name, remedy = other.registration.ref, "unregister one without purging"
            if other.unlisted:
                remedy += f"; if that one is gone for good, `icewright adopt {in_shell(metadata.ref)}`"
            elif name.parts[1:] == metadata.ref.parts[1:] and name.catalog == other.via:
                one, two = sorted((name.catalog, metadata.ref.catalog))
                remedy = f"if {one} and {two} are one catalog, take one from the configuration, else {remedy}"
            raise Refused(
                f"{metadata.ref} is registered as {other} too, which reads the same files: {remedy}", "registered_twice"
            )


def _own_index(surroundings: Surroundings, own: Sequence[str] | None, *, automatic: bool) -> Index[bool]:
    """Return the table's places, each with whether files may be deleted there without a person's confirmation."""
    places = surroundings.own if own is None else map(surroundings.place, own)
    if not automatic:
        return Index((place, True) for place in places)
    confirmed = [*map(surroundings.place, surroundings.adopted)]
    return Index(
        (place, surroundings.had_at_first(place) or any(place.within(one) for one in confirmed)) for place in places
    )


def _remedy(metadata: TableMetadata, other: OtherTable) -> str:
    if other.pointer is None:
        return (
            f"if that table is gone for good, `icewright adopt {in_shell(metadata.ref)}` lets this one have the "
            "place; if another catalog has it, move one of both"
        )
    if other.is_dataset:
        return (
            "its engine reads all files there: move one of both, drop that entry (without its files), or, if it "
            f"has no readers any more, `icewright adopt {in_shell(metadata.ref)}`"
        )
    where = f" ({other.problem})" if other.problem else ""
    return (
        f"move one of the tables to a place of its own{where}; if that one has moved away for good, "
        f"`icewright adopt {in_shell(metadata.ref)}`"
    )


def _reason_to_keep(
    place: Place, own_index: Index[bool], surroundings: Surroundings, *, outside: bool
) -> tuple[str, list[OtherTable]]:
    """Return why files of a folder stay (blank: they need not), and the tables that may reach some of them.

    The innermost place counts; a place that two tables share belongs to both. `own_index` says of each of the table's
    places whether files may be deleted there without a person's confirmation.
    """
    holding = own_index.holding(place)
    own = max((len(holder.folder) for holder, _ in holding), default=0)
    theirs = surroundings.having.holding(place)
    inner = [other for holder, other in theirs if len(holder.folder) > own]
    if inner:
        return f"they lie in the place of {inner[-1]}", []
    if not own and not outside:
        return (
            "they lie outside the table's own location and write paths "
            "(expire_snapshots.outside_location: delete lets them go)"
        ), []
    if not outside and not any(confirmed for _, confirmed in holding):
        return "they lie in a place that the table came to after it was first seen: `icewright adopt` confirms it", []
    return "", [other for _, other in (*theirs, *surroundings.using.holding(place))]
