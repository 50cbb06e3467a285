"""The live contents of a catalog with branches: the live versions of each table, and the files that they reach."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from itertools import chain

import polars as pl

from icewright.adapters.engines.service import reachable as sets
from icewright.adapters.engines.service.listing import PathHashes, hashed
from icewright.core.effective import Knobs
from icewright.core.errors import AccessDenied, FileMissing, IcewrightError
from icewright.core.policy import MIN_SNAPSHOTS, VACUUM_ENABLED
from icewright.core.retention import Expiry, plan_expiry, writer_state_rule
from icewright.core.table import Snapshot, SnapshotHold, TableMetadata, TableRef
from icewright.core.vacuum import (
    Commit,
    Content,
    CutoffPolicy,
    Key,
    KeyChange,
    Limit,
    Reference,
    Walk,
    is_forbidden_by_user,
    limit_of,
    walk,
)
from icewright.ports import Branched, Clock, Head, LiveTable, Survey, TableFiles
from icewright.ports.work import WorkerThreads

_READERS = 8


@dataclass(frozen=True)
class Identified:
    """References with their tables, and the live versions of each table by content id."""

    references: tuple[Reference, ...]
    heads: tuple[Mapping[Key, Content], ...]
    versions: Mapping[str, set[Content]]
    errors: Mapping[str, IcewrightError]  # by the place of the metadata of a head
    seconds: float


@dataclass
class NessieLiveSet:
    """Reads the tables that a catalog's references see; commits and metadata files are immutable: each is read once."""

    catalog: Branched
    clock: Clock
    knobs: Callable[[TableRef, TableMetadata], Knobs]
    holds: Callable[[TableMetadata], Sequence[SnapshotHold]]
    _commits: dict[str, Commit] = field(default_factory=dict, init=False)
    _read: dict[str, TableMetadata] = field(default_factory=dict, init=False)
    # by branch, the content ids of the tables that the expiries of a dry run would commit to, in their order
    _planned: dict[str, list[str]] = field(default_factory=dict, init=False)

    def forget(self) -> None:
        """Drop the commits and metadata files that were read, and the expiries that were planned."""
        self._commits.clear()
        self._read.clear()
        self._planned.clear()

    def plan_expiry(self, head: Head) -> None:
        """Count the head of a table as replaced by an expiry, which a dry run does not commit."""
        self._planned.setdefault(head.reference.name, []).append(head.content.content_id)

    def replaced(self, table: LiveTable, survey: Survey) -> frozenset[Content]:
        """Return the heads of a table that no live commit sees any more after the planned expiries."""
        if not any(table.content_id in planned for planned in self._planned.values()):
            return frozenset()
        live: set[Content] = set()
        for reference in survey.references:
            planned, tables = self._planned.get(reference.name, []), self.catalog.tables(reference)
            commits: list[Commit] = []
            if table.content_id in planned:
                new = [replace(c, metadata_location="") for c in tables.values() if c.content_id == table.content_id]
                top = Commit(reference.hash, None, survey.taken, tuple(KeyChange(c.key, c) for c in new))
                # the expiry of another table, committed before, sees the version that this one replaces
                commits = [top, *([replace(top, changes=())] if planned[0] != table.content_id else [])]
            live |= self._live(survey.policy.at(survey.taken), survey.taken, {}, commits, reference, tables)
        return frozenset(head.content for head in table.heads) - live

    def identify(self, policy: CutoffPolicy, now: datetime) -> Identified:
        """Return every reference's tables, and the versions that its live commits see."""
        started = self.clock.now()
        references = tuple(self.catalog.references())
        with WorkerThreads(_READERS) as pool:
            heads = tuple(pool.map(self.catalog.tables, references))
            errors = self._all_read({c.metadata_location: c for tables in heads for c in tables.values()}.values())
            versions: dict[str, set[Content]] = {}
            for live in pool.map(partial(self._live, policy.at(now), now, errors, ()), references, heads):
                for content in live:
                    versions.setdefault(content.content_id, set()).add(content)
        return Identified(references, heads, versions, errors, (self.clock.now() - started).total_seconds())

    def survey(self, policy: CutoffPolicy, now: datetime) -> Survey:
        """Return every live table with its live versions; one that cannot be read says why."""
        identified = self.identify(policy, now)
        snapshot_ids = self._snapshot_ids(identified.heads)
        versions = identified.versions.items()
        unread = [c for i, cs in versions for c in cs if c.snapshot_id not in snapshot_ids.get(i, frozenset())]
        errors = {**identified.errors, **self._all_read(unread)}
        at: dict[str, list[Head]] = {}
        for reference, tables in zip(identified.references, identified.heads, strict=True):
            for content in tables.values():
                at.setdefault(content.content_id, []).append(Head(reference, content))
        return Survey(
            policy,
            now,
            identified.references,
            tuple(
                self._table(content_id, at.get(content_id, []), frozenset(live), errors)
                for content_id, live in sorted(versions, key=lambda item: min(c.key for c in item[1]))
            ),
            identified.seconds,
        )

    def limit(self, head: TableMetadata, cutoff: datetime, now: datetime) -> Limit:
        """Return the limit of history that stays for a table on the reference of this head."""
        knobs = self.knobs(head.ref, head)
        keep = knobs[MIN_SNAPSHOTS] if knobs.is_set(MIN_SNAPSHOTS) else 1
        return limit_of(head.properties, cutoff, now, keep)

    def expiry(self, head: TableMetadata, policy: CutoffPolicy, now: datetime) -> Expiry:
        """Return the expiry of a head's own snapshots by the limit; Iceberg's branches and tags in the table stay."""
        limit = self.limit(head, policy.at(now), now)
        return plan_expiry(
            head,
            now=now,
            older_than=limit.cutoff,
            retain_last=limit.keep,
            holds=self.holds(head),
            writers=writer_state_rule(self.knobs(head.ref, head)),
        )

    def metadata(self, content: Content) -> TableMetadata | None:
        """Return a version's metadata, if it was read."""
        return self._read.get(content.metadata_location)

    def heads(self, table: LiveTable) -> list[TableMetadata]:
        """Return the table's metadata on each reference, as far as it was read."""
        return [m for head in table.heads if (m := self.metadata(head.content)) is not None]

    def may_collect(self, head: TableMetadata) -> bool:
        """Return whether neither a user's gc.enabled=false nor a policy keeps everything of the table."""
        return not is_forbidden_by_user(head.properties) and self.knobs(head.ref, head)[VACUUM_ENABLED]

    def _all_read(self, contents: Iterable[Content]) -> dict[str, IcewrightError]:
        """Read the metadata of versions; return errors by metadata location."""
        unread = {c.metadata_location: c for c in contents if c.metadata_location not in self._read}

        def read(content: Content) -> TableMetadata | IcewrightError:
            try:
                return self.catalog.read(content)
            except IcewrightError as error:
                return error

        errors: dict[str, IcewrightError] = {}
        with WorkerThreads(_READERS) as pool:
            for location, result in zip(unread, pool.map(read, unread.values()), strict=True):
                if isinstance(result, IcewrightError):
                    errors[location] = result
                else:
                    self._read[location] = result
        return errors

    def _live(
        self,
        cutoff: datetime,
        now: datetime,
        errors: dict[str, IcewrightError],
        newest: Sequence[Commit],
        reference: Reference,
        tables: Mapping[Key, Content],
    ) -> set[Content]:
        """Return the versions that live commits of a reference see, with `newest` on top of what is committed."""
        limits: dict[str, Limit] = {}
        complete_histories: list[str] = []
        for content in tables.values():
            metadata = self._read.get(content.metadata_location)
            if metadata is None:
                continue
            try:
                limits[content.content_id] = self.limit(metadata, cutoff, now)
            except IcewrightError as error:  # of the table's own properties, and none of the other tables'
                errors[content.metadata_location] = error
            if len(metadata.snapshots) > 1:
                complete_histories.append(content.content_id)
        new = {change.key: change.content for commit in newest for change in commit.changes if change.content}
        branch_walk = Walk({**tables, **new}, limits, Limit(cutoff))
        branch_walk.satisfied(complete_histories)

        def state(hash_: str, keys: frozenset[Key]) -> Iterable[Content]:
            return self.catalog.tables(replace(reference, name="", hash=hash_), sorted(keys)).values()

        walk(branch_walk, chain(newest, self._log(reference)), state)
        return branch_walk.live

    def _log(self, reference: Reference) -> Iterator[Commit]:
        """Yield the reference's commits; commits that were read before come from the cache."""
        at: str | None = reference.hash
        while at in self._commits:
            yield self._commits[at]
            at = self._commits[at].parent
        if at is None:
            return
        for commit in self.catalog.log(replace(reference, hash=at)):
            self._commits[commit.hash] = commit
            yield commit
            if commit.parent in self._commits:
                yield from self._log(replace(reference, hash=str(commit.parent)))
                return

    def _snapshot_ids(self, heads: Sequence[Mapping[Key, Content]]) -> dict[str, set[int | None]]:
        """Return snapshots that the metadata of some head describes, by content id."""
        snapshot_ids: dict[str, set[int | None]] = {}
        for content in (c for tables in heads for c in tables.values()):
            metadata = self._read.get(content.metadata_location)
            snapshot_ids.setdefault(content.content_id, {None}).update(metadata.by_id if metadata else ())
        return snapshot_ids

    def _table(
        self, content_id: str, heads: list[Head], versions: frozenset[Content], errors: Mapping[str, IcewrightError]
    ) -> LiveTable:
        """Return a live table with its live versions."""
        heads.sort(key=lambda head: (head.reference.name != self.catalog.branch, head.reference.name))
        problems = [errors[c.metadata_location] for c in versions if c.metadata_location in errors]
        metadata_files = [m for c in versions if (m := self.metadata(c)) is not None]
        latest = max(metadata_files, key=lambda m: m.last_updated, default=None)
        at_heads = [m for h in heads if (m := self.metadata(h.content)) is not None]
        described = {snapshot_id for metadata in at_heads for snapshot_id in metadata.by_id}
        return LiveTable(
            ref=self._ref(heads, versions),
            content_id=content_id,
            heads=tuple(heads),
            versions=versions,
            problem="; ".join(dict.fromkeys(str(error) for error in problems)),
            denied=sum(isinstance(error, AccessDenied) for error in problems),
            missing=sum(isinstance(error, FileMissing) for error in problems),
            table_uuid=latest.table_uuid if latest else "",
            location=latest.location if latest else "",
            write_paths=tuple(dict.fromkeys(p for m in metadata_files for p in m.write_paths)),
            snapshots=frozenset(described | {c.snapshot_id for c in versions if c.snapshot_id is not None}),
            collect=not problems and all(self.may_collect(m) for m in at_heads),
        )

    def _ref(self, heads: Sequence[Head], versions: frozenset[Content]) -> TableRef:
        """Return a table's name, with the reference that has it where the catalog's branch has not."""
        key = heads[0].content.key if heads else min(content.key for content in versions)
        at = heads[0].reference.name if heads else ""
        name = key[-1] if at == self.catalog.branch else f"{key[-1]}@{at}"
        return TableRef(self.catalog.name, key[:-1], name)


@dataclass
class _Marked:
    """The paths that one table reaches, and the snapshots, metadata files and manifests that were read for them."""

    named: PathHashes = field(default_factory=PathHashes)
    snapshots: set[int] = field(default_factory=set)
    places: set[str] = field(default_factory=set)
    manifests: set[str] = field(default_factory=set)


@dataclass
class NessieReachability:
    """The hashes of all paths that live contents reach, by table; extended as commits come in."""

    contents: NessieLiveSet
    files: TableFiles
    broken: dict[str, IcewrightError] = field(default_factory=dict)  # by content id: files of it that cannot be read
    _marked: dict[str, _Marked] = field(default_factory=dict)

    @property
    def named(self) -> PathHashes:
        """Return the paths that all tables of the catalog reach."""
        return PathHashes.joined(marked.named for marked in self._marked.values())

    def named_by(self, table: LiveTable) -> PathHashes:
        """Return the marked paths that one table reaches."""
        return self._marked.get(table.content_id, _Marked()).named

    def read_again(self, table: LiveTable, survey: Survey, *, dry_run: bool) -> Iterator[pl.DataFrame]:
        """Yield the paths that one table reaches, marked or not, chunk by chunk."""
        return self._reached(table, survey, _Marked(), dry_run=dry_run)

    def forget(self, content_id: str) -> None:
        """Remove the marks of a table, so that files that it no longer reaches do not count as live."""
        self._marked.pop(content_id, None)
        self.broken.pop(content_id, None)

    def extend(self, survey: Survey, *, dry_run: bool) -> list[pl.DataFrame]:
        """Mark the paths that the survey reaches and earlier surveys did not, and return these paths.

        In a dry run old snapshots of branches count as expired.
        """
        grown: list[pl.DataFrame] = []
        for table in survey.tables:
            marked = self._marked.setdefault(table.content_id, _Marked())
            try:
                for frame in self._reached(table, survey, marked, dry_run=dry_run):
                    marked.named.add(hashed(frame.select("path"), self.files.canonical))
                    grown.append(frame)
            except IcewrightError as error:
                self.broken[table.content_id] = error
        return grown

    def _reached(self, table: LiveTable, survey: Survey, marked: _Marked, *, dry_run: bool) -> Iterator[pl.DataFrame]:
        snapshots, frames = self._snapshots(table, survey, dry_run=dry_run)
        new_snapshots = [s for s in snapshots if s.snapshot_id not in marked.snapshots]
        replaced = self.contents.replaced(table, survey) if dry_run else frozenset()
        new_files = {c.metadata_location for c in table.versions - replaced} - marked.places
        if not new_snapshots and not new_files:
            return
        yield sets.files_frame((place, None, "metadata") for place in sorted(new_files))
        yield from frames
        yield sets.lists_of(new_snapshots)
        manifests = sets.manifests_of(self.files, new_snapshots)
        manifests = manifests.filter(~pl.col("path").is_in(list(marked.manifests)))
        yield sets.as_files(manifests)
        yield from sets.content_of(self.files, manifests)
        marked.manifests.update(manifests["path"])
        marked.snapshots.update(s.snapshot_id for s in new_snapshots)
        marked.places |= new_files

    def _snapshots(
        self, table: LiveTable, survey: Survey, *, dry_run: bool
    ) -> tuple[list[Snapshot], list[pl.DataFrame]]:
        """Return the snapshots that stay readable, and the statistics of them."""
        live: dict[int, Snapshot] = {}
        by_id: dict[int, Snapshot] = {}
        heads = {h.content for h in table.heads}
        metadata_files: list[TableMetadata] = []
        for head in table.heads:
            metadata = self.contents.metadata(head.content)
            if metadata is None:
                raise FileMissing(table.problem)
            expired: set[int] = set()
            if table.collect and (dry_run or not head.reference.is_branch):
                expired = set(self.contents.expiry(metadata, survey.policy, survey.taken).snapshot_ids)
            by_id |= metadata.by_id
            live |= {i: s for i, s in metadata.by_id.items() if i not in expired}
            metadata_files.append(metadata)
        for content in table.versions - heads:
            metadata = self.contents.metadata(content)
            if metadata is not None:
                by_id |= metadata.by_id
                live |= {r.snapshot_id: by_id[r.snapshot_id] for r in metadata.refs if r.snapshot_id in by_id}
                metadata_files.append(metadata)
            if content.snapshot_id is not None:
                if content.snapshot_id not in by_id:
                    raise FileMissing(f"{content.metadata_location} does not have its snapshot {content.snapshot_id}")
                live[content.snapshot_id] = by_id[content.snapshot_id]
        return list(live.values()), [_statistics(metadata, live) for metadata in metadata_files]


def _statistics(metadata: TableMetadata, live: Mapping[int, Snapshot]) -> pl.DataFrame:
    """Return the statistics files of snapshots that stay."""
    retained = replace(
        metadata,
        statistics=tuple(s for s in metadata.statistics if s.snapshot_id in live),
        partition_statistics=tuple(s for s in metadata.partition_statistics if s.snapshot_id in live),
    )
    return sets.statistics_of(retained)
