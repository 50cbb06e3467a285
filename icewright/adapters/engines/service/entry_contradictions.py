"""Contradictions between the entries of one table, which no manifest shows alone.

They are files that two manifests list, deletes that do not apply to the data file that they name, and row ids that two
files share. Entries that no snapshot shows together may differ.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from itertools import combinations

from icewright.adapters.engines.service.content_file import ContentFile, misspelt
from icewright.adapters.engines.service.manifest_files import DATA
from icewright.core.integrity import FileFault, FileFaultKind
from icewright.core.paths import canonical, split

_Fixed = tuple[int, int, str]  # what never changes of a file: sequence number, spec, partition


@dataclass
class EntryContradictions:
    """Finds the entries that contradict one another, among those that were added."""

    snapshots: Mapping[str, AbstractSet[int]]  # that list a manifest, by its path
    _live_in: dict[tuple[str, str], set[str]] = field(default_factory=lambda: defaultdict(set), init=False)
    # with the manifest that says so: of data files by path, and of each file by its key and commit
    _data: dict[str, set[tuple[_Fixed, str]]] = field(default_factory=lambda: defaultdict(set), init=False)
    _stated: dict[int, tuple[_Fixed, str]] = field(default_factory=dict, init=False)
    _scoped: list[ContentFile] = field(default_factory=list, init=False)  # deletes of one data file
    _row_ids: list[tuple[int, int, ContentFile]] = field(default_factory=list, init=False)  # first, end

    def add(self, entry: ContentFile) -> Iterator[FileFault]:
        """Add a live entry; yield faults where another manifest contradicts it.

        Neither sequence number nor partition of a file ever changes after the commit that added it.
        """
        fixed = entry.sequence, entry.spec_id, repr(entry.partition)
        self._live_in[entry.kind, entry.referenced if entry.is_vector else entry.path].add(entry.manifest)
        if entry.content == DATA:
            self._data[entry.path].add((fixed, entry.manifest))
        elif entry.referenced:
            self._scoped.append(entry)
        if not entry.file_sequence:
            return
        other, manifest = self._stated.setdefault(hash((*entry.key, entry.file_sequence)), (fixed, entry.manifest))
        for value, other_value, what, kind in (
            (fixed[0], other[0], "sequence number", FileFaultKind.WRONG_SEQUENCE),
            (fixed[1:], other[1:], "partition", FileFaultKind.WRONG_PARTITION),
        ):
            if value != other_value:
                detail = f"its {what} is {value} in {entry.manifest} and {other_value} in {manifest}"
                yield _fault(kind, detail, entry, self.snapshots[entry.manifest] | self.snapshots[manifest])

    def add_row_ids(self, entry: ContentFile, first: int) -> None:
        """Add a data file whose rows have the ids from `first` on."""
        self._row_ids.append((first, first + entry.records, entry))

    def found(self) -> Iterator[FileFault]:
        """Yield the contradictions that show once all entries are added."""
        yield from self._duplicates()
        yield from self._misplaced_deletes()
        yield from self._misspelt_deletes()
        yield from self._shared_row_ids()

    def _duplicates(self) -> Iterator[FileFault]:
        """Yield files, and data files with vectors, that two manifests of one snapshot name as live."""
        for (kind, path), manifests in self._live_in.items():
            for one, other in combinations(sorted(manifests), 2) if len(manifests) > 1 else ():
                if both := self.snapshots[one] & self.snapshots[other]:
                    detail = f"it is live in {one} and {other}"
                    yield FileFault(FileFaultKind.DUPLICATE, kind, path, detail, tuple(sorted(both)))

    def _misplaced_deletes(self) -> Iterator[FileFault]:
        """Yield deletes that do not apply to the data file that they name: older than it, or of another partition.

        A data file may be removed and added again after its deletes: what no snapshot shows together is not compared.
        """
        for entry in self._scoped:
            together: dict[_Fixed, set[int]] = defaultdict(set)
            for fixed, manifest in self._data.get(entry.referenced, ()):
                together[fixed] |= self.snapshots[entry.manifest] & self.snapshots[manifest]
            for (sequence, *partition), snapshots in together.items():
                if snapshots and entry.sequence < sequence:
                    theirs = f"its data file {entry.referenced} has {sequence}"
                    detail = f"it has the sequence number {entry.sequence}, {theirs}"
                    yield _fault(FileFaultKind.WRONG_SEQUENCE, detail, entry, snapshots)
                if snapshots and partition != [entry.spec_id, repr(entry.partition)]:
                    detail = f"it is of another partition than its data file {entry.referenced}"
                    yield _fault(FileFaultKind.WRONG_PARTITION, detail, entry, snapshots)

    def _misspelt_deletes(self) -> Iterator[FileFault]:
        """Yield deletes that spell the path of their data file otherwise, as `s3a://` for `s3://`: none applies."""
        lost = [entry for entry in self._scoped if entry.referenced not in self._data]
        spelt = {canonical(split(path)): path for path in self._data} if lost else {}
        for entry in lost:
            path = spelt.get(canonical(split(entry.referenced)), "")
            beside = {number for _, manifest in self._data.get(path, ()) for number in self.snapshots[manifest]}
            if together := self.snapshots[entry.manifest] & beside:
                yield _fault(*misspelt(entry.referenced, path), entry, together)

    def _shared_row_ids(self) -> Iterator[FileFault]:
        """Yield data files whose rows have ids of another file of the same snapshot."""
        self._row_ids.sort(key=lambda span: span[:2])
        furthest = self._row_ids[0] if self._row_ids else None
        for span in self._row_ids[1:]:
            first, _, entry = span
            if furthest is None or first >= furthest[1]:
                furthest = span
                continue
            other = furthest[2]
            furthest = max(furthest, span, key=lambda each: each[1])
            if entry.path != other.path and (both := self.snapshots[entry.manifest] & self.snapshots[other.manifest]):
                detail = f"its row ids from {first} on are also those of {other.path}"
                yield _fault(FileFaultKind.WRONG_ROW_IDS, detail, entry, both)


def _fault(kind: FileFaultKind, detail: str, entry: ContentFile, snapshots: AbstractSet[int]) -> FileFault:
    return FileFault(kind, entry.kind, entry.path, detail, tuple(sorted(snapshots)))
