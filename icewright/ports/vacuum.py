"""The ports of catalogs with branches and of their vacuum."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol, runtime_checkable

from icewright.core.paths import directory_key
from icewright.core.runs import Outcome
from icewright.core.table import TableMetadata, TableRef
from icewright.core.vacuum import Commit, Content, CutoffPolicy, GcConfig, Key, Reference
from icewright.ports.lake import Catalog, RemoveSnapshots


@runtime_checkable
class Merging(Protocol):
    """A catalog whose branches are merged into one another, and conflict where both have changed a table."""

    def unmerged(self, base: TableMetadata, since: datetime) -> Sequence[tuple[datetime, str]]:
        """Return which other branches changed the table from what `base` is, for the first time after `since`.

        Each has the time of that change before it. Raises as `Branched`.
        """


class Branched(Catalog, Protocol):
    """A catalog in which every commit, on any branch, is a state of all tables.

    Raises `AccessDenied`, and `CatalogUnavailable` when the catalog does not answer, never a partial result.
    """

    @property
    def branch(self) -> str:
        """Return the branch or tag that `pointers`, `load` and `commit` are about."""

    def gc_config(self) -> GcConfig | None:
        """Return the garbage collection settings that the catalog itself stores."""

    def references(self) -> Sequence[Reference]:
        """Return every branch and tag of the catalog."""

    def tables(self, reference: Reference, keys: Iterable[Key] | None = None) -> Mapping[Key, Content]:
        """Return the tables at the reference's hash, all or those of the keys."""

    def log(self, reference: Reference) -> Iterator[Commit]:
        """Yield the reference's commits from its hash on, newest first."""

    def read(self, content: Content) -> TableMetadata:
        """Return the metadata file of a version, as it is stored."""

    def expire(
        self, reference: Reference, content: Content, base: TableMetadata, change: RemoveSnapshots
    ) -> TableMetadata:
        """Commit the change to the branch in one commit, if its table is still that content.

        Raises as `Catalog.commit` does.
        """


@dataclass(frozen=True)
class Head:
    """A table at the head of a reference."""

    reference: Reference
    content: Content


@dataclass(frozen=True)
class LiveTable:
    """A table that a live reference sees, by its content id, with all its live versions."""

    ref: TableRef  # as the catalog's own branch names it; `name@reference` where only another has it
    content_id: str
    heads: tuple[Head, ...]
    versions: frozenset[Content]
    problem: str = ""  # why nothing of it is touched; blank: nothing is wrong
    denied: int = 0  # metadata files that may not be read
    missing: int = 0  # metadata files that are not there
    table_uuid: str = ""
    location: str = ""
    write_paths: tuple[str, ...] = ()
    snapshots: frozenset[int] = frozenset()  # of its heads' metadata and of its live versions
    collect: bool = True  # False: a problem, a user's gc.enabled=false, or a policy keeps all its files

    @property
    def folders(self) -> frozenset[str]:
        """Return the keys of the table's location and write paths; of its metadata files when none was read."""
        places = [place for place in (self.location, *self.write_paths) if place]
        read = places or [content.metadata_location.rpartition("/metadata/")[0] for content in self.versions]
        return frozenset(map(directory_key, read))


@dataclass(frozen=True)
class Survey:
    """The live contents of a catalog at one moment."""

    policy: CutoffPolicy
    taken: datetime
    references: tuple[Reference, ...]
    tables: tuple[LiveTable, ...]
    seconds: float = 0.0  # that it took to scan the commits


@dataclass(frozen=True)
class VacuumOf:
    """The vacuum of one table, as a job."""

    table: LiveTable
    survey: Survey
    job_id: str
    dry_run: bool = False
    automatic: bool = False  # nobody asked for it, so that a doubt waits for a person
    check: Callable[[], None] = field(default=lambda: None)


class Vacuum(Protocol):
    """Vacuums one catalog with branches, table by table."""

    def survey(self, now: datetime) -> Survey:
        """Identify the live contents. Raises `Refused` when the cut-off policy is faulty."""

    def expire(self, work: VacuumOf) -> Outcome:
        """Remove old snapshots from the table's metadata, one commit for each branch that has some."""

    def sweep(self, work: VacuumOf) -> Outcome:
        """Delete files in the table's locations that nothing live reaches and that are older than the grace.

        In a dry run old snapshots count as expired already.
        """
