"""A catalog with branches in memory, which passes the contract of `Branched` as one over a Nessie server does."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from icewright.core.errors import CatalogUnavailable, CommitConflict, IcewrightError, MetadataUnreadable, TableNotFound
from icewright.core.table import TableMetadata, TableRef
from icewright.core.vacuum import Commit, Content, GcConfig, Key, KeyChange, Reference
from icewright.ports.lake import Change, Clock, Pointer, RemoveSnapshots, RestoreSnapshots
from icewright.testing.fakes import FixedClock, changed, no_effect

_ROOT = "0"


@dataclass
class MemoryBranches:
    """A Branched port that keeps its commits in memory; each has the time of the clock.

    `before_commit` and `after_commit` are called as by `MemoryCatalog`. While `down` is set, every call raises it; a
    metadata file of `unreadable` raises when it is read.
    """

    name: str = "lake"
    clock: Clock = field(default_factory=FixedClock)
    branch: str = "main"
    gc: GcConfig | None = None
    before_commit: Callable[[TableMetadata, Change], None] = no_effect
    after_commit: Callable[[TableMetadata, Change], None] = no_effect
    down: IcewrightError | None = None
    unreadable: dict[str, IcewrightError] = field(default_factory=dict)  # by location
    heads: dict[str, Reference] = field(default_factory=lambda: {"main": Reference("main", is_branch=True, hash=_ROOT)})
    expiries: list[str] = field(default_factory=list)  # the branches of expiries that landed
    looked_at: list[str] = field(default_factory=list)  # the commits that logs were read to, and the files
    _commits: dict[str, Commit] = field(default_factory=dict)
    _states: dict[str, Mapping[Key, Content]] = field(default_factory=lambda: {_ROOT: {}})
    _files: dict[str, TableMetadata] = field(default_factory=dict)

    def write(self, metadata: TableMetadata, on: str = "main", *, renamed: Content | None = None) -> Content:
        """Commit a version of a table to a branch; `renamed` is what it was there, under another key."""
        key = _key(metadata.ref)
        known = renamed or self._states[self.heads[on].hash].get(key)
        content_id = known.content_id if known else f"content-{len(self._commits):04}"
        content = Content(content_id, key, metadata.metadata_location, metadata.current_snapshot_id)
        self._files[metadata.metadata_location] = metadata
        self._commit(on, *([KeyChange(renamed.key, None)] if renamed else ()), KeyChange(key, content))
        return content

    def drop(self, ref: TableRef, on: str = "main") -> None:
        """Commit that a branch has the table no more."""
        self._commit(on, KeyChange(_key(ref), None))

    def create(self, name: str, *, of: str = "main", tag: bool = False, at: str | None = None) -> None:
        """Make a branch or tag of the head of another, or at a commit."""
        self.heads[name] = Reference(name, not tag, at or self.heads[of].hash)

    def pointers(self) -> Sequence[Pointer]:
        """Return every table of the own branch."""
        self._raise_if_down()
        return [Pointer(self._ref(key), c.metadata_location) for key, c in sorted(self._own().items())]

    def load(self, ref: TableRef) -> TableMetadata:
        """Return a table of the own branch. Raises `TableNotFound`."""
        return self.read(self._content(ref))

    def neighbours(self) -> Sequence[Pointer]:
        """Return the tables of other references whose metadata file the own branch does not name."""
        seen = {content.metadata_location for content in self._own().values()}
        contents = [(r, c) for r in self.references() for c in self.tables(r).values()]
        others = {c.metadata_location: (r, c) for r, c in reversed(contents) if c.metadata_location not in seen}
        return [Pointer(self._ref(c.key, f"@{r.name}"), c.metadata_location) for r, c in others.values()]

    def neighbour(self, pointer: Pointer) -> TableMetadata:
        """Return the metadata of that file, under the pointer's name."""
        return replace(self._file(pointer.metadata_location), ref=pointer.ref)

    def commit(self, base: TableMetadata, change: Change) -> TableMetadata:
        """Commit the change to the own branch if `base` is still current there."""
        content = self._content(base.ref)
        if content.metadata_location != base.metadata_location:
            raise CommitConflict(f"{base.ref}: another writer committed since {base.metadata_location}")
        return self._change(self.heads[self.branch], content, base, change)

    def unrestorable(self, base: TableMetadata, change: RestoreSnapshots) -> str:  # noqa: ARG002 - nobody restores here
        """Return that everything can be restored."""
        return ""

    def gc_config(self) -> GcConfig | None:
        """Return the settings that were given."""
        return self.gc

    def references(self) -> Sequence[Reference]:
        """Return every branch and tag, with its head."""
        self._raise_if_down()
        return [*self.heads.values()]

    def tables(self, reference: Reference, keys: Iterable[Key] | None = None) -> Mapping[Key, Content]:
        """Return the tables at the reference's hash. Raises `CatalogUnavailable` where there is no such commit."""
        self._raise_if_down()
        if (state := self._states.get(reference.hash)) is None:
            raise CatalogUnavailable(f"catalog {self.name}: {reference.name} at {reference.hash}: no such commit")
        return dict(state) if keys is None else {key: state[key] for key in keys if key in state}

    def log(self, reference: Reference) -> Iterator[Commit]:
        """Yield the commits from the reference's hash on, newest first."""
        self.tables(reference)
        hash_: str | None = reference.hash
        while hash_ in self._commits:
            self.looked_at.append(hash_)
            yield self._commits[hash_]
            hash_ = self._commits[hash_].parent

    def read(self, content: Content) -> TableMetadata:
        """Return the version's metadata, under its key."""
        return replace(self._file(content.metadata_location), ref=self._ref(content.key))

    def expire(
        self, reference: Reference, content: Content, base: TableMetadata, change: RemoveSnapshots
    ) -> TableMetadata:
        """Commit the change to the branch if its table is still that content."""
        after = self._change(reference, content, base, change)
        self.expiries.append(reference.name)
        return after

    def _change(self, reference: Reference, content: Content, base: TableMetadata, change: Change) -> TableMetadata:
        self._raise_if_down()
        self.before_commit(base, change)
        head = self.heads.get(reference.name)
        if head is None or self._states[head.hash].get(content.key) != content:
            raise CommitConflict(f"{base.ref} on {reference.name}: another writer committed since {reference.hash}")
        location = f"{base.metadata_folder}/{len(self._commits):05d}-m.metadata.json"
        log = (*base.metadata_log, base.metadata_location)
        after = replace(changed(base, change, self.clock.now()), metadata_location=location, metadata_log=log)
        self.write(after, reference.name)
        self.after_commit(after, change)
        return after

    def _commit(self, on: str, *changes: KeyChange) -> None:
        head = self.heads[on]
        hash_ = f"{len(self._commits) + 1:04}"
        self._commits[hash_] = Commit(hash_, head.hash, self.clock.now(), changes)
        put = {change.key: change.content for change in changes}
        state = {key: content for key, content in self._states[head.hash].items() if key not in put}
        self._states[hash_] = state | {key: content for key, content in put.items() if content}
        self.heads[on] = replace(head, hash=hash_)

    def _own(self) -> Mapping[Key, Content]:
        return self._states[self.heads[self.branch].hash]

    def _content(self, ref: TableRef) -> Content:
        self._raise_if_down()
        if (content := self._own().get(_key(ref))) is None:
            raise TableNotFound(f"{ref}: branch {self.branch} has no such table")
        return content

    def _file(self, location: str) -> TableMetadata:
        self.looked_at.append(location)
        if location in self.unreadable:
            raise self.unreadable[location]
        if location not in self._files:
            raise MetadataUnreadable(f"there is no {location}")
        return self._files[location]

    def _ref(self, key: Key, at: str = "") -> TableRef:
        return TableRef(self.name + at, key[:-1], key[-1])

    def _raise_if_down(self) -> None:
        if self.down is not None:
            raise self.down


def _key(ref: TableRef) -> Key:
    return (*ref.namespace, ref.name)
