"""The files that name deleted positions: a Puffin file of deletion vectors (v3), or position delete files (v2)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

from pyroaring import BitMap64

from icewright.adapters.engines.arrow.deletes import Deletes, position_delete_file, vector_file
from icewright.adapters.engines.arrow.live_deletes import LiveData, LiveDelete, Partition
from icewright.adapters.engines.arrow.opening import Opener
from icewright.adapters.engines.arrow.position_scan import file_slice
from icewright.adapters.engines.arrow.tasks import Layout
from icewright.adapters.engines.service.manifest_files import POSITION_DELETES
from icewright.core import field_ids as ids
from icewright.core.paths import data_folder
from icewright.core.table import FORMAT_V3, TableMetadata
from icewright.ports import TableFiles


@dataclass(frozen=True, slots=True)
class PositionOutput:
    """A new vector or position delete file: its manifest record by field id, and its place."""

    record: Mapping[int, Any]
    partition: Partition
    values: tuple[Any, ...]  # of the partition
    rows: int
    bytes: int


@dataclass(frozen=True, slots=True)
class _Marked:
    """The positions of a data file that are to be written, and the deletes that they replace."""

    file: LiveData
    positions: BitMap64
    new_rows: int
    replaced: tuple[LiveDelete, ...]


@dataclass
class PositionOutputs:
    """Writes what a conversion adds, once, and again where other deletes of the same data came in between."""

    files: TableFiles
    base: TableMetadata
    layout: Layout
    opener: Opener
    check: Callable[[], None]
    made: tuple[PositionOutput, ...] = field(default=(), init=False)
    replaced: tuple[LiveDelete, ...] = field(default=(), init=False)
    rows: int = field(default=0, init=False)  # that no deletes named before
    written_bytes: int = field(default=0, init=False)
    _merged: dict[tuple[str, frozenset[str]], _Marked] = field(default_factory=dict, init=False)
    _paths: list[str] = field(default_factory=list, init=False)
    _for: frozenset[tuple[str, frozenset[str]]] = field(default=frozenset(), init=False)

    @property
    def writes_vectors(self) -> bool:
        """Return whether the table takes deletion vectors."""
        return self.base.format_version >= FORMAT_V3

    @property
    def kind(self) -> str:
        """Return what is written, for people."""
        return "deletion vectors" if self.writes_vectors else "position delete files"

    @property
    def count(self) -> int:
        """Return the number of vectors or files."""
        return len(self.made)

    def prepare(
        self, matched: Mapping[str, BitMap64], marked: Mapping[str, LiveData], deletes: Sequence[LiveDelete]
    ) -> None:
        """Write the positions of the live data files, merged with the deletes that the files have by now."""
        keys = {}
        for path, applying in self._applying(marked, deletes).items():
            # more position deletes of v2 beside the new ones only name rows twice; a vector is the only one of its file
            seen = frozenset(f"{d.path} {d.file.offset}" for d in applying) if self.writes_vectors else frozenset[str]()
            keys[path, seen] = applying
        fresh = {key: applying for key, applying in keys.items() if key not in self._merged}
        cache = None
        if not self.writes_vectors:
            cache = Deletes(self.layout, self.opener, [file_slice(marked[path]) for path, _ in fresh])
        for (path, seen), applying in fresh.items():
            self.check()
            self._merged[path, seen] = self._merge(marked[path], matched[path], applying, cache)
        wanted = {key: marks for key in keys if (marks := self._merged[key]).new_rows}
        chosen = list(wanted.values())
        # entries of an earlier version of the table may stand in other manifests by now
        now = {d.file: d for d in deletes}
        self.replaced = tuple(now[d.file] for marks in chosen for d in marks.replaced)
        if wanted.keys() != self._for:
            self.discard()
            self.made = tuple(self._vectors(chosen) if self.writes_vectors else self._position_deletes(chosen))
            self._for = frozenset(wanted)
            self.rows = sum(marks.new_rows for marks in chosen)

    def discard(self) -> None:
        """Delete what was written; nothing refers to it."""
        if self._paths:
            self.files.delete(self._paths, 1)
        self._paths, self.made, self._for, self.written_bytes = [], (), frozenset(), 0

    def _applying(
        self, marked: Mapping[str, LiveData], deletes: Sequence[LiveDelete]
    ) -> dict[str, tuple[LiveDelete, ...]]:
        """Return the position deletes of each data file; where there is a vector, that one alone counts."""
        scoped: dict[str, list[LiveDelete]] = {}
        wide: dict[Partition, list[LiveDelete]] = {}
        for delete in deletes:
            if delete.only_file is not None:
                scoped.setdefault(delete.only_file, []).append(delete)
            else:
                wide.setdefault(delete.partition, []).append(delete)
        return {
            path: tuple(d for d in (*scoped.get(path, ()), *wide.get(file.partition, ())) if d.applies_to(file))
            for path, file in marked.items()
        }

    def _merge(
        self, file: LiveData, matched: BitMap64, applying: Sequence[LiveDelete], cache: Deletes | None
    ) -> _Marked:
        vectors = [delete for delete in applying if delete.is_vector]
        deletes = cache or Deletes(self.layout, self.opener, [file_slice(file)])
        before = deletes.positions(file_slice(file, vectors or applying))
        new = matched - before
        if not self.writes_vectors:
            return _Marked(file, new, len(new), ())
        # Iceberg's writers, too, leave position deletes of several files: a vector stands in front of them
        replaced = tuple(delete for delete in applying if delete.only_file is not None)
        return _Marked(file, matched | before, len(new), replaced)

    def _vectors(self, chosen: Sequence[_Marked]) -> list[PositionOutput]:
        if not chosen:
            return []
        puffin = vector_file({marks.file.path: marks.positions for marks in chosen})
        path, size = self._write("puffin", puffin.content), len(puffin.content)
        outputs = []
        for marks, blob in zip(chosen, puffin.blobs, strict=True):
            rows = len(marks.positions)
            record = {
                ids.FILE_PATH: path,
                ids.FILE_FORMAT: "PUFFIN",
                ids.RECORD_COUNT: rows,
                ids.FILE_SIZE: size,
                ids.CONTENT: POSITION_DELETES,
            }
            record |= {
                ids.REFERENCED_DATA_FILE: marks.file.path,
                ids.CONTENT_OFFSET: blob.offset,
                ids.CONTENT_SIZE: blob.length,
            }
            outputs.append(PositionOutput(record, marks.file.partition, marks.file.values, rows, blob.length))
        return outputs

    def _position_deletes(self, chosen: Sequence[_Marked]) -> list[PositionOutput]:
        """Write a file for each partition, or for each data file where the table asks for that."""
        by_file = self.base.properties.get("write.delete.granularity", "partition").lower() == "file"
        groups: dict[tuple[Partition, str], list[_Marked]] = {}
        for marks in chosen:
            groups.setdefault((marks.file.partition, marks.file.path if by_file else ""), []).append(marks)
        return [self._position_delete_file(members) for members in groups.values()]

    def _position_delete_file(self, members: Sequence[_Marked]) -> PositionOutput:
        self.check()
        positions = {marks.file.path: marks.positions for marks in members}
        content, rows = position_delete_file(positions), sum(map(len, positions.values()))
        record: dict[int, Any] = {
            ids.FILE_PATH: self._write("parquet", content),
            ids.FILE_FORMAT: "PARQUET",
            ids.RECORD_COUNT: rows,
        }
        record |= {ids.FILE_SIZE: len(content), ids.CONTENT: POSITION_DELETES}
        if len(members) == 1:
            record[ids.REFERENCED_DATA_FILE] = members[0].file.path
        bounds = (
            (min(positions), min(p.min() for p in positions.values())),
            (max(positions), max(p.max() for p in positions.values())),
        )
        for number, (path, position) in zip((ids.LOWER_BOUNDS, ids.UPPER_BOUNDS), bounds, strict=True):
            values = {
                ids.DELETED_PATH: path.encode(),
                ids.DELETED_POSITION: position.to_bytes(8, "little", signed=True),
            }
            record[number] = [{"key": key, "value": value} for key, value in values.items()]
        first = members[0].file
        return PositionOutput(record, first.partition, first.values, rows, len(content))

    def _write(self, ending: str, content: bytes) -> str:
        path = f"{data_folder(self.base.location, self.base.properties)}/icewright-{uuid4()}-deletes.{ending}"
        self._paths.append(path)
        self.files.write(path, content)
        self.written_bytes += len(content)
        return path
