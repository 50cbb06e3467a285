"""Manifests and lists that are missing, cut, changed or foreign: an error with the path, never fewer files."""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from pyiceberg import types as t
from pyiceberg.manifest import write_manifest_list

from icewright.adapters.files.cache import Cache
from icewright.adapters.files.local import LocalStorage
from icewright.adapters.files.manifests import ENTRY, ManifestReader
from icewright.core.errors import MetadataUnreadable
from icewright.core.table import ManifestFile, Snapshot
from tests.adapters.writing import IO, Partitioned, entry, ours, record
from tests.nightly import NIGHTLY


def _garbled(content: bytes) -> bytes:
    """Four entries of nonsense between markers that are all in place."""
    packer = zlib.compressobj(wbits=-15)
    block = packer.compress(b"\xff" * 50) + packer.flush()
    return content[: content.find(content[-16:]) + 16] + bytes([4 * 2, len(block) * 2]) + block + content[-16:]


BROKEN: dict[str, Callable[[bytes], bytes | None]] = {
    "missing": lambda _: None,
    "empty": lambda _: b"",
    "cut in half": lambda content: content[: len(content) // 2],
    "cut after the header": lambda content: content[: content.find(content[-16:]) + 16],
    "cut in the header's marker": lambda content: content[: content.find(content[-16:]) + 3],
    "cut after the first block": lambda content: content[
        : content.find(content[-16:], content.find(content[-16:]) + 16) + 16
    ],
    "garbled": _garbled,
    "foreign": lambda _: b"PAR1 and so on, PAR1",
}


def _marker(content: bytes) -> int:
    """Where the header's sync marker ends."""
    return content.find(content[-16:]) + 16


def _manifest(folder: Path, *, by_pyiceberg: bool) -> ManifestFile:
    table = Partitioned(folder, (t.StringType(),))
    partitions: list[list[str | None]] = [["a"], ["b"], ["c"], [None]]
    if by_pyiceberg:  # a block an entry
        return ours(table.pyiceberg(2, [entry(f"file:///t/{i}", p) for i, p in enumerate(partitions)], sequence=3))
    return ours(table.crafted(2, [record(f"file:///t/{i}", p) for i, p in enumerate(partitions)], sequence=3))


def _break(path: str, how: str) -> None:
    file = Path(path.removeprefix("file://"))
    content = BROKEN[how](file.read_bytes())
    file.unlink()
    if content is not None:
        file.write_bytes(content)


@pytest.mark.parametrize(
    ("how", "by_pyiceberg"),
    [*((how, True) for how in BROKEN), *((how, False) for how in BROKEN if "first block" not in how)],  # it has one
)
def test_a_broken_manifest_is_named(reader: ManifestReader, tmp_path: Path, how: str, *, by_pyiceberg: bool) -> None:
    """A manifest that is not whole is an error with its path, among others that are whole; and so it is again."""
    whole = [_manifest(tmp_path, by_pyiceberg=by_pyiceberg) for _ in range(5)]
    broken = _manifest(tmp_path, by_pyiceberg=by_pyiceberg)
    _break(broken.path, how)
    for _ in range(2):
        for manifests in ([broken], [*whole, broken, *whole]):
            with pytest.raises(MetadataUnreadable) as caught:
                reader.entries(manifests)
            assert broken.path in str(caught.value)


def test_a_longer_manifest_is_not_the_listed_one(reader: ManifestReader, tmp_path: Path) -> None:
    """A manifest of another length than its list says is not the one that was listed."""
    manifest = _manifest(tmp_path, by_pyiceberg=True)
    path = Path(manifest.path.removeprefix("file://"))
    content = path.read_bytes()
    path.write_bytes(content + content[_marker(content) :])
    with pytest.raises(MetadataUnreadable) as caught:
        reader.entries([manifest])
    assert manifest.path in str(caught.value)


def test_a_manifest_of_a_table_that_was_made_anew(reader: ManifestReader, tmp_path: Path) -> None:
    """By another snapshot it is another one, though it has the path and length of one that was read before."""
    table = Partitioned(tmp_path, (t.StringType(),))
    first, second = (
        ours(table.crafted(2, [record(f"file:///t/{n}", ["a"])], snapshot_id=n, sequence=3)) for n in (7, 8)
    )
    assert (reader.entries([first])["path"].to_pylist(), second.length) == (["file:///t/7"], first.length)
    Path(second.path.removeprefix("file://")).rename(first.path.removeprefix("file://"))
    now = replace(second, path=first.path)
    assert [path for frame in reader.live_files([now]) for path in frame["path"]] == ["file:///t/8"]
    assert reader.entries([now])["path"].to_pylist() == ["file:///t/8"]


@pytest.mark.parametrize("field", ["file_size_in_bytes", "record_count"])
def test_a_size_that_no_file_has_is_named(reader: ManifestReader, tmp_path: Path, field: str) -> None:
    """Sums over a table's files would leave what a state store can hold."""
    table = Partitioned(tmp_path, (t.StringType(),))
    large, larger = (record(f"file:///t/{size}", ["a"], **{field: size}) for size in (1 << 46, 1 << 62))
    assert reader.entries([ours(table.crafted(2, [large], sequence=3))]).num_rows == 1
    broken = ours(table.crafted(2, [larger], sequence=3))
    with pytest.raises(MetadataUnreadable, match=f"{broken.path}.* {field} of {1 << 62}"):
        reader.entries([broken])


@pytest.mark.parametrize("seed", range(4))
def test_a_flipped_bit_is_an_error_or_harmless(tmp_path: Path, seed: int) -> None:
    """Whatever bit of a manifest is wrong, all of its entries are read, or an error with its path."""
    manifest = _manifest(tmp_path, by_pyiceberg=False)
    path, rng = Path(manifest.path.removeprefix("file://")), random.Random(seed)
    content = path.read_bytes()
    for number in range(60 if NIGHTLY else 20):
        broken = bytearray(content)
        broken[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
        path.write_bytes(broken)
        fresh = ManifestReader(LocalStorage(), Cache(tmp_path / f"cache{number}", 1 << 20, ENTRY))
        try:
            assert len(fresh.entries([manifest])) == 4, "fewer or more entries than its list says"
        except MetadataUnreadable as error:
            assert manifest.path in str(error)  # noqa: PT017 - either outcome is right


@pytest.mark.parametrize(
    "how", [how for how in BROKEN if how not in ("cut after the header", "cut after the first block")]
)
def test_a_broken_list_is_named(reader: ManifestReader, tmp_path: Path, how: str) -> None:
    """A manifest list that is missing or broken is an error with its path, alone and among others."""
    output = IO.new_output(f"file://{tmp_path}/snap-1.avro")
    row = Partitioned(tmp_path, (t.StringType(),)).pyiceberg(2, [entry("file:///t/x", ["a"])])
    with write_manifest_list(2, output, 7, None, 1, "deflate") as writer:
        writer.add_manifests([row, row])
    good = IO.new_output(f"file://{tmp_path}/snap-2.avro")
    with write_manifest_list(2, good, 7, None, 1, "deflate") as writer:
        writer.add_manifests([row, row])
    _break(output.location, how)
    at = datetime(2026, 11, 21, tzinfo=UTC)
    snapshots = [Snapshot(i, None, 1, at, f"file://{tmp_path}/snap-{i}.avro") for i in (1, 2)]
    for chosen in (snapshots[:1], snapshots, snapshots * 3):
        with pytest.raises(MetadataUnreadable) as caught:
            reader.manifest_lists(chosen)
        assert output.location in str(caught.value)
