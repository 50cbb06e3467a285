"""Local files: written in one move, listed whole or not at all, deleted with a reason for each failure."""

from __future__ import annotations

import os
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from icewright.adapters import mounts
from icewright.adapters.files import local
from icewright.adapters.files.local import LocalStorage
from icewright.core.errors import FolderMissing, MetadataUnreadable, StorageUnavailable

STORAGE = LocalStorage()
ODD = [
    "a b",
    "a+b",
    "100%",
    "a%20b",
    "#x",
    "q?x=1",
    "é表",
    "e\u0301",
    ".hidden",
    "_x",
    "a:b",
    "a\\b",
    "'\"",
    "new\nline",
]


def listed(location: str) -> dict[str, dict[str, Any]]:
    """The rows of a listing by path."""
    return {row["path"]: row for batch in STORAGE.listing(location) for row in batch.to_pylist()}


@pytest.mark.parametrize("spelling", ["file://{}", "file:{}", "{}", "file://localhost{}", "file:////{}"])
def test_written_files_are_read(tmp_path: Path, spelling: str) -> None:
    """A file is written with its folders, however the path is spelt, and read, measured and deleted the same way."""
    path = spelling.format(tmp_path / "new" / "folder" / "a b%20#?é")
    assert STORAGE.size(path) is None
    STORAGE.write(path, b"x" * 100_000)
    assert (STORAGE.read(path), STORAGE.size(path)) == (b"x" * 100_000, 100_000)
    assert [p.name for p in (tmp_path / "new" / "folder").iterdir()] == ["a b%20#?é"]
    assert STORAGE.delete([path], 4).deleted == (path,)
    assert not list((tmp_path / "new" / "folder").iterdir())


def test_a_failed_write_leaves_nothing(tmp_path: Path) -> None:
    """A file that cannot take its place is an error with its path, and no half of it lies about."""
    (tmp_path / "taken").mkdir()
    with pytest.raises(StorageUnavailable, match="taken"):
        STORAGE.write(f"file://{tmp_path}/taken", b"x")
    assert [p.name for p in tmp_path.rglob("*")] == ["taken"]


def test_a_write_below_a_file(tmp_path: Path) -> None:
    """A folder that cannot be made is an error with the path."""
    (tmp_path / "file").write_text("x")
    with pytest.raises(StorageUnavailable, match="file/below"):
        STORAGE.write(f"file://{tmp_path}/file/below", b"x")


def test_what_cannot_be_read(tmp_path: Path) -> None:
    """A file that is missing, with the command that may bring it back, cannot have its name or leads to itself."""
    (tmp_path / "file").write_text("x")
    repair, register, other = (
        "icewright repair TABLE --dry-run",
        "icewright register .* --replace-lost",
        "roll the table",
    )
    remedies = {"gone.avro": repair, "file/below": repair, "x" * 300: repair, "1.gz.metadata.json": register}
    for name, remedy in (remedies | {"a\0b": other, "a\0/b": other}).items():
        with pytest.raises(MetadataUnreadable, match=remedy):
            STORAGE.read(f"file://{tmp_path}/{name}")
        assert STORAGE.size(f"{tmp_path}/{name}") is None
        assert STORAGE.canonical(f"{tmp_path}/{name}") == f"{tmp_path}/{name}/"
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    with pytest.raises(MetadataUnreadable, match="symbolic links"):
        STORAGE.read(f"file://{tmp_path}/loop")
    with pytest.raises(FolderMissing, match="clock cannot be read"):
        STORAGE.time(f"file://{tmp_path}/gone")
    assert not (tmp_path / "gone").exists()


@pytest.mark.cases(59)
@pytest.mark.parametrize("slash", ["", "/", "//"])
@pytest.mark.parametrize("prefix", ["file://", "file:", ""])
def test_odd_names_are_listed(tmp_path: Path, prefix: str, slash: str) -> None:
    """Names are listed as they are, below the location as it is spelt, with length and time."""
    at = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
    for number, name in enumerate(ODD):
        for path in (tmp_path / name / name, tmp_path / f"{name}.f"):
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(b"x" * number)
            os.utime(path, ns=(0, int(at.timestamp()) * 10**9 + 678901000))
    (tmp_path / "empty").mkdir()
    found = listed(f"{prefix}{tmp_path}{slash}")
    assert set(found) == {f"{prefix}{tmp_path}/{name}{end}" for name in ODD for end in (f"/{name}", ".f")}
    for number, name in enumerate(ODD):
        row = found[f"{prefix}{tmp_path}/{name}/{name}"]
        assert (row["bytes"], row["modified"]) == (number, at)


@pytest.mark.cases(68)
def test_links_have_no_known_age(tmp_path: Path) -> None:
    """A link is listed, of unknown age; the folder behind it is not entered, even when it leads in a circle."""
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "file").write_text("x")
    (tmp_path / "t").mkdir()
    for name, target in {"file": "outside/file", "folder": "outside", "circle": "t", "dangling": "nowhere"}.items():
        (tmp_path / "t" / name).symlink_to(tmp_path / target)
    found = listed(f"file://{tmp_path}/t")
    assert {path.rsplit("/", 1)[1]: row["modified"] for path, row in found.items()} == dict.fromkeys(
        ("file", "folder", "circle", "dangling")
    )


def test_many_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """More files than one batch holds come in several, each file once."""
    monkeypatch.setattr(local, "_BATCH", 10)
    for number in range(25):
        (tmp_path / str(number)).touch()
    batches = list(STORAGE.listing(f"file://{tmp_path}"))
    assert [batch.num_rows for batch in batches] == [10, 10, 5]
    assert len(listed(f"file://{tmp_path}")) == 25


@pytest.mark.cases(69)
@pytest.mark.parametrize("place", ["missing", "file"])
def test_a_listing_that_fails(tmp_path: Path, place: str) -> None:
    """A location that is missing or no folder cannot be listed: never an empty answer."""
    (tmp_path / "file").write_text("x")
    with pytest.raises(StorageUnavailable, match=place):
        listed(f"file://{tmp_path}/{place}")


def test_a_file_that_vanishes_while_it_is_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that a writer removes meanwhile is left out, or the listing fails on purpose."""
    monkeypatch.setattr(local, "_BATCH", 1)
    for number in range(50):
        (tmp_path / str(number)).touch()
    batches = STORAGE.listing(f"file://{tmp_path}")
    next(batches)
    for path in tmp_path.iterdir():
        path.unlink()
    with suppress(StorageUnavailable):
        list(batches)


def test_a_name_that_is_no_text(tmp_path: Path) -> None:
    """A name that is no UTF-8 is listed somehow or fails the listing on purpose, and hides no other file."""
    (tmp_path / "good").touch()
    (tmp_path / os.fsdecode(b"bad\xff")).touch()
    with suppress(StorageUnavailable):
        assert f"file://{tmp_path}/good" in listed(f"file://{tmp_path}")


@pytest.mark.cases(14)
def test_deleting(tmp_path: Path) -> None:
    """What is missing counts as deleted, and each failure keeps its reason; checksums go with their files."""
    for name in ("one", "two", ".two.crc", "kept"):
        (tmp_path / name).touch()
    (tmp_path / "folder").mkdir()
    paths = [f"file://{tmp_path}/{name}" for name in ("one", "two", "missing", "no/such/folder", "folder")]
    report = STORAGE.delete(paths, 3)
    assert report.deleted == tuple(paths[:4])
    assert list(report.failures) == paths[4:]
    assert report.failures[paths[4]]
    assert {p.name for p in tmp_path.iterdir()} == {"kept", "folder"}


def test_deleting_what_was_written_anew_since_it_was_looked_at(tmp_path: Path) -> None:
    """A file of many is looked at once more right before its deletion."""
    paths = [f"file://{tmp_path}/{name}" for name in ("one", "two")]
    for path in paths:
        STORAGE.write(path, b"old")
    found = STORAGE.stat([*paths, f"{paths[0]}-missing"], 2)
    STORAGE.write(paths[1], b"anew")
    report = STORAGE.delete([*found], 2, found)
    assert report.failures == {paths[1]: "another file bears the name now"}
    assert [path.name for path in tmp_path.iterdir()] == ["two"]


def test_deleting_what_lies_elsewhere(tmp_path: Path) -> None:
    """A path that this storage does not know is a failure like others: what was deleted beside it is still told."""
    (tmp_path / "one").touch()
    report = STORAGE.delete([f"file://{tmp_path}/one", "s3://bucket/two"], 2)
    assert (report.deleted, list(report.failures)) == ((f"file://{tmp_path}/one",), ["s3://bucket/two"])


@pytest.mark.parametrize("prefix", ["file://", "file:", ""])
def test_tidying_stops_at_the_location(tmp_path: Path, prefix: str) -> None:
    """Empty folders below the location go, those that hold something, lie beside it or are it itself stay."""
    table = tmp_path / "orders"
    for folder in ("data/a=1/b=1", "data/a=1/b=2", "data/a=2", "data/hidden"):
        (table / folder).mkdir(parents=True)
    (table / "data/a=2/live").touch()
    (table / "data/hidden/.crc").touch()
    (tmp_path / "orders_archive" / "data").mkdir(parents=True)
    gone = ["orders/data/a=1/b=1/x", "orders/data/a=1/b=2/y", "orders/data/a=2/z", "orders/data/hidden/h"]
    gone += ["orders/data/never/was", "orders_archive/data/x", "orders/x"]
    STORAGE.tidy([f"{prefix}{tmp_path}/{path}" for path in gone], f"file://{table}/")
    assert sorted(p.name for p in (table / "data").iterdir()) == ["a=2", "hidden"]
    assert (tmp_path / "orders_archive" / "data").is_dir()


def test_tidying_an_emptied_table(tmp_path: Path) -> None:
    """The location itself stays, empty as it is."""
    (tmp_path / "orders" / "data").mkdir(parents=True)
    STORAGE.tidy([f"file://{tmp_path}/orders/data/x"], f"file:{tmp_path}//orders")
    assert not list((tmp_path / "orders").iterdir())


def test_the_mount_of_a_path_is_told_without_asking_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel's table has it, with blanks escaped; the innermost counts, also of a path with dots."""
    (table := tmp_path / "mounts").write_text("a / x rw 0 0\nb /mnt/a\\040b nfs rw 0 0\nc /mnt/a\\040b/c nfs rw 0 0\n")
    monkeypatch.setattr(mounts, "_MOUNTS", table)
    assert (mounted := mounts.mounts()) == {"/", "/mnt/a b", "/mnt/a b/c"}
    paths = {"/mnt/a b/t": "/mnt/a b", "/mnt/a b/x/../c/t/": "/mnt/a b/c", "/mnt/a bc": "/", "//w": "/", "": "/"}
    assert {path: mounts.mount_of(path, mounted) for path in paths} == paths
    monkeypatch.setattr(mounts, "_MOUNTS", tmp_path / "none")
    assert mounts.mounts() == frozenset()
