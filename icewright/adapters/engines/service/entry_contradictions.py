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

    def add(self, one: ContentFile) -> Iterator[FileFault]:
        """Add a live entry; yield faults where another manifest contradicts it.

        Neither sequence number nor partition of a file ever changes after the commit that added it.
        """
        fixed = one.sequence, one.spec_id, repr(one.partition)
        self._live_in[one.kind, one.referenced if one.is_vector else one.path].add(one.manifest)
        if one.content == DATA:
            self._data[one.path].add((fixed, one.manifest))
        elif one.referenced:
            self._scoped.append(one)
        if not one.file_sequence:
            return
        other, manifest = self._stated.setdefault(hash((*one.key, one.file_sequence)), (fixed, one.manifest))
        for value, other_value, what, kind in (
            (fixed[0], other[0], "sequence number", FileFaultKind.WRONG_SEQUENCE),
            (fixed[1:], other[1:], "partition", FileFaultKind.WRONG_PARTITION),
        ):
            if value != other_value:
                detail = f"its {what} is {value} in {one.manifest} and {other_value} in {manifest}"
                yield _fault(kind, detail, one, self.snapshots[one.manifest] | self.snapshots[manifest])

    def add_row_ids(self, one: ContentFile, first: int) -> None:
        """Add a data file whose rows have the ids from `first` on."""
        self._row_ids.append((first, first + one.records, one))

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
        for one in self._scoped:
            together: dict[_Fixed, set[int]] = defaultdict(set)
            for fixed, manifest in self._data.get(one.referenced, ()):
                together[fixed] |= self.snapshots[one.manifest] & self.snapshots[manifest]
            for (sequence, *partition), snapshots in together.items():
                if snapshots and one.sequence < sequence:
                    detail = f"it has the sequence number {one.sequence}, its data file {one.referenced} has {sequence}"
                    yield _fault(FileFaultKind.WRONG_SEQUENCE, detail, one, snapshots)
                if snapshots and partition != [one.spec_id, repr(one.partition)]:
                    detail = f"it is of another partition than its data file {one.referenced}"
                    yield _fault(FileFaultKind.WRONG_PARTITION, detail, one, snapshots)

    def _misspelt_deletes(self) -> Iterator[FileFault]:
        """Yield deletes that spell the path of their data file otherwise, as `s3a://` for `s3://`: none applies."""
        lost = [one for one in self._scoped if one.referenced not in self._data]
        spelt = {canonical(split(path)): path for path in self._data} if lost else {}
        for one in lost:
            path = spelt.get(canonical(split(one.referenced)), "")
            beside = {number for _, manifest in self._data.get(path, ()) for number in self.snapshots[manifest]}
            if together := self.snapshots[one.manifest] & beside:
                yield _fault(*misspelt(one.referenced, path), one, together)

    def _shared_row_ids(self) -> Iterator[FileFault]:
        """Yield data files whose rows have ids of another file of the same snapshot."""
        self._row_ids.sort(key=lambda span: span[:2])
        furthest = self._row_ids[0] if self._row_ids else None
        for span in self._row_ids[1:]:
            first, _, one = span
            if furthest is None or first >= furthest[1]:
                furthest = span
                continue
            other = furthest[2]
            furthest = max(furthest, span, key=lambda each: each[1])
            if one.path != other.path and (both := self.snapshots[one.manifest] & self.snapshots[other.manifest]):
                detail = f"its row ids from {first} on are also those of {other.path}"
                yield _fault(FileFaultKind.WRONG_ROW_IDS, detail, one, both)


def _fault(kind: FileFaultKind, detail: str, one: ContentFile, snapshots: AbstractSet[int]) -> FileFault:
    return FileFault(kind, one.kind, one.path, detail, tuple(sorted(snapshots)))
