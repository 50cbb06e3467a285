"""A snapshot of the same rows under other manifests, over a catalog in memory: what is committed, what is undone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import fastavro
import pytest

from icewright.adapters.engines.service.manifest_files import Entry, ManifestWriter, WrittenManifest
from icewright.adapters.engines.service.replacing import Replacing
from icewright.adapters.files.tables import IcebergFiles
from icewright.core import field_ids as ids
from icewright.core.errors import CommitConflict, CommitStateUnknown, InvariantViolated, MetadataUnreadable
from icewright.core.table import ManifestContent, ManifestFile, RefKind, SnapshotRef, TableMetadata
from icewright.ports import AddSnapshot, Change
from icewright.testing import FixedClock, MemoryCatalog
from icewright.testing.builders import metadata

FIELDS = {
    "manifest_path": ("string", ids.MANIFEST_PATH),
    "manifest_length": ("long", ids.MANIFEST_LENGTH),
    "partition_spec_id": ("int", ids.MANIFEST_SPEC_ID),
    "content": ("int", ids.MANIFEST_CONTENT),
    "sequence_number": ("long", ids.MANIFEST_SEQUENCE_NUMBER),
    "min_sequence_number": ("long", ids.MIN_SEQUENCE_NUMBER),
    "added_snapshot_id": ("long", ids.ADDED_SNAPSHOT_ID),
    "added_files_count": ("int", ids.ADDED_FILES),
    "existing_files_count": ("int", ids.EXISTING_FILES),
    "deleted_files_count": ("int", ids.DELETED_FILES),
    "first_row_id": (["null", "long"], ids.MANIFEST_FIRST_ROW_ID),
}
DATA, DELETES = ManifestContent.DATA, ManifestContent.DELETES
Named = tuple[str, ManifestContent, int | None]  # a manifest with its content, and the id of its first row
NAMED: list[Named] = [("m1", DATA, None), ("m2", DATA, 7), ("m3", DELETES, None)]


class Bench:
    """A table whose current snapshot lists these manifests."""

    def __init__(self, files: IcebergFiles, folder: Path, named: Sequence[Named] = NAMED, **own: Any) -> None:
        schema = [{"name": n, "type": kind, "field-id": number} for n, (kind, number) in FIELDS.items()]
        parsed = fastavro.parse_schema({"type": "record", "name": "manifest_file", "fields": schema})
        self.rows: list[dict[str, Any]] = [
            dict.fromkeys(FIELDS, 1) | {"manifest_path": path, "content": int(content), "first_row_id": first}
            for path, content, first in named
        ]
        (folder / "metadata").mkdir()
        self.path, self.files, self.catalog, self.clock = folder / "list.avro", files, MemoryCatalog(), FixedClock()
        with self.path.open("wb") as out:
            fastavro.writer(out, parsed, self.rows)
        base = metadata(location=str(folder), **own)
        *before, head = base.snapshots
        current = replace(head, manifest_list=str(self.path))
        self.base = self.catalog.put(replace(base, snapshots=(*before, current)))

    def replacing(self, *listed: str, **how: Any) -> Replacing:
        """Begin, after this list was read before."""
        rows = [
            ManifestFile(path, 1, 0, DATA, 1, 1, 1, 1, 0, 0)
            for path in listed or [row["manifest_path"] for row in self.rows]
        ]
        current = self.base.current_snapshot
        assert current is not None
        return Replacing(self.files, self.clock, cast("Any", self.catalog), self.base, current, rows, **how)

    def listed(self, path: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        """The header of a manifest list, and its rows."""
        with Path(path).open("rb") as file:
            reader = fastavro.reader(file)
            return reader.metadata, cast("list[dict[str, Any]]", [*reader])


def new(path: str, least: int | None = 3) -> WrittenManifest:
    """A manifest that was written."""
    row: Mapping[int, Any] = dict.fromkeys((number for _, number in FIELDS.values()), 2)
    return WrittenManifest(path, 2, {**row, ids.MANIFEST_PATH: path, ids.MIN_SEQUENCE_NUMBER: least})


@pytest.mark.parametrize("listed", [["m1", "m2"], ["m2", "m1", "m3"], ["m1", "m2", "m4"]])
def test_a_list_that_says_another_thing_the_second_time(files: IcebergFiles, tmp_path: Path, listed: list[str]) -> None:
    """What the first reading lacked would be carried over or lost unseen: nothing is begun."""
    bench = Bench(files, tmp_path)
    with pytest.raises(MetadataUnreadable, match=r"list\.avro was read twice, and said another thing each time"):
        bench.replacing(*listed)
    assert bench.replacing().current == bench.base.current_snapshot


@pytest.mark.parametrize(
    ("named", "lacks"),
    [
        (NAMED, True),
        (NAMED[1:], False),  # deletes never have any
        ([("m1", DATA, 0)], False),
        ([("m2", DATA, 7), ("m1", DATA, None)], True),
        ([], False),
    ],
)
def test_row_ids_of_manifests(files: IcebergFiles, tmp_path: Path, named: Sequence[Named], *, lacks: bool) -> None:
    """Of data each manifest has to have its first; one that a commit writes has what it is told."""
    replacing = Bench(files, tmp_path, named).replacing()
    assert replacing.lacks_row_ids() == lacks
    assert replacing.first_row_ids() == {path: first for path, _, first in named}


@pytest.mark.parametrize(
    ("entries", "target", "size", "count"),
    [(10, 100, 20.0, 2), (150, 100, 0.0, 2), (11, 100, 20.0, 3), (3, 5, 20, 3)],
)
def test_sizes_of_manifests(
    files: IcebergFiles, tmp_path: Path, entries: int, target: int, size: float, count: int
) -> None:
    """As many manifests as the entries need at the size that is aimed at, one entry at least in each."""
    bench = Bench(files, tmp_path)
    replacing, asked = bench.replacing(), list[tuple[str, int]]()

    class Writer:
        """Notes what it is asked for."""

        def write(self, _: object, folder: str, chosen: Sequence[Entry], count: int) -> list[WrittenManifest]:
            """Write nothing."""
            assert len(chosen) == entries
            asked.append((folder, count))
            return [new("w1")]

    writer = cast("ManifestWriter", Writer())
    replacing.write(writer, cast("Any", [None] * entries), target, size)
    replacing.write(writer, cast("Any", [None] * entries), target, size, 40)
    assert asked == [(f"{tmp_path}/metadata", count)] * 2
    assert [one.row[ids.MANIFEST_FIRST_ROW_ID] for one in replacing.written] == [None, 40]
    assert replacing.written[0].row == {**new("w1").row, ids.MANIFEST_FIRST_ROW_ID: None}


@pytest.mark.parametrize(
    ("version", "ahead", "updated", "branch"),
    [(2, 1, 0, "main"), (1, -1, -1, "main"), (3, 0, 0, "audit"), (2, 1, 2, "main")],
)
def test_what_is_committed(
    files: IcebergFiles, tmp_path: Path, version: int, ahead: int, updated: int, branch: str
) -> None:
    """The new manifests, then those that stay, under a snapshot that is later than the one before it.

    Nor is it earlier than the table's last change, by the clock of whoever made that.
    """
    schema = {"schema-id": 4} if version > 1 else {}  # which v1 may leave out
    bench = Bench(files, tmp_path, format_version=version, schema=schema)
    current = bench.base.current_snapshot
    assert current is not None
    bench.clock.time = current.timestamp + timedelta(hours=ahead)
    bench.base = replace(bench.base, last_updated=current.timestamp + timedelta(hours=updated))
    replacing = bench.replacing(branch=branch)
    replacing.written += [new("n1"), new("n2", None)]
    after = replacing.commit({"m2"}, {"entries": "4"}, *(["delete"] if version == 3 else []))
    (change,) = bench.catalog.commits
    assert isinstance(change, AddSnapshot)
    snapshot, sequence = dict(change.snapshot), bench.base.last_sequence_number + 1 if version > 1 else 0
    later = max(bench.clock.time, bench.base.last_updated, current.timestamp + timedelta(milliseconds=1))
    counts = {"manifests-created": "2", "manifests-kept": "2", "manifests-replaced": "1"}
    path = snapshot.pop("manifest-list")
    assert path.startswith(f"{tmp_path}/metadata/snap-{replacing.snapshot_id}-1-")
    assert snapshot == {
        "snapshot-id": replacing.snapshot_id,
        "parent-snapshot-id": current.snapshot_id,
        "timestamp-ms": later.timestamp() * 1000,
        "summary": {**counts, "entries": "4", "operation": "delete" if version == 3 else "replace"},
        "schema-id": schema.get("schema-id", 0),
        **({"sequence-number": sequence} if version > 1 else {}),
    }
    assert change.branch == branch
    assert after == bench.catalog.tables[bench.base.ref]
    header, (n1, n2, *carried) = bench.listed(path)
    numbers = (str(replacing.snapshot_id), str(current.snapshot_id), str(version))
    assert tuple(header[name] for name in ("snapshot-id", "parent-snapshot-id", "format-version")) == numbers
    assert header.get("sequence-number") == (str(sequence) if version > 1 else None)
    assert carried == [bench.rows[0], bench.rows[2]]
    assert [(n["manifest_path"], n["sequence_number"], n["min_sequence_number"]) for n in (n1, n2)] == [
        ("n1", sequence, 3),
        ("n2", sequence, sequence),
    ]


class Stop(Exception):
    """A fault of a library."""


@pytest.mark.parametrize(
    ("error", "raised", "undone"),
    [
        (CommitConflict("late"), CommitConflict, True),
        (CommitStateUnknown("lost"), CommitStateUnknown, False),
        (InvariantViolated("broken"), InvariantViolated, False),
        (Stop("odd"), CommitStateUnknown, False),  # perhaps after the commit
        ({"location": "elsewhere"}, InvariantViolated, False),  # it did more than it was asked for
        ({"refs": ()}, InvariantViolated, False),
    ],
)
def test_a_commit_that_fails(
    files: IcebergFiles, tmp_path: Path, error: Exception | dict[str, Any], raised: type[Exception], *, undone: bool
) -> None:
    """Its files are deleted where it is known not to have landed; else the table may refer to them."""
    tag = SnapshotRef("tag", RefKind.TAG, 1)
    bench, made = Bench(files, tmp_path, refs=[tag]), tmp_path / "metadata" / "m.avro"
    made.write_bytes(b"x")

    def commit(base: TableMetadata, change: Change) -> TableMetadata:
        assert isinstance(change, AddSnapshot)
        if isinstance(error, Exception):
            raise error
        return replace(base, **error)

    bench.catalog.commit = commit  # type: ignore[method-assign]
    replacing = bench.replacing()
    replacing.written.append(new(str(made)))
    said = {Stop: "unexpected Stop at the commit: odd", dict: "replacing manifests broke the table: "}
    with pytest.raises(raised, match=said.get(type(error), str(error))), replacing.undone_unless_committed():
        replacing.commit(["m2"], {})
    left = {path.name[:5] for path in made.parent.iterdir()}
    assert left == (set() if undone else {"m.avr", "snap-"})


def test_a_fault_before_the_commit_leaves_no_file(files: IcebergFiles, tmp_path: Path) -> None:
    """Of ours or of a library: the manifests that were written already are deleted."""
    bench, made = Bench(files, tmp_path), tmp_path / "metadata" / "m.avro"
    made.write_bytes(b"x")
    replacing = bench.replacing()
    replacing.written.append(new(str(made)))
    with pytest.raises(Stop), replacing.undone_unless_committed():
        raise Stop
    assert not made.exists()
