"""The manifest cache: what it gives is what it was given, and when it fails it costs time only."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pytest

from icewright.adapters.files.cache import Cache
from icewright.adapters.store.ledger import write_ledger

SCHEMA = pa.schema([("path", pa.string()), ("n", pa.int64())])


def batch(tag: str, rows: int = 3) -> pa.RecordBatch:
    """A batch that tells what it is of."""
    return pa.RecordBatch.from_pydict({"path": [tag] * rows, "n": list(range(rows))}, SCHEMA)


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    """An empty cache with room enough."""
    return Cache(tmp_path / "made" / "on demand", 1 << 24, SCHEMA)


def test_what_was_saved_is_found(cache: Cache) -> None:
    """A batch comes back equal, odd paths, empty batches and slices of others included; others are not there."""
    saved = {("a", 1): batch("a"), ("é 'x\"%\n", 2): batch("é", 0), ("s", 3): batch("s", 9).slice(2, 4)}
    cache.save(saved)
    wanted = [*saved, ("missing", 1)]
    assert cache.load(wanted) == {path: b for (path, _), b in saved.items()}
    assert Cache(cache.folder, 1 << 24, SCHEMA).load(wanted) == cache.load(wanted), "by another process"
    assert cache.load([]) == {}


def test_its_folder_is_for_this_user_alone(cache: Cache, tmp_path: Path) -> None:
    """Manifests hold values of rows, and ledgers name files: no other user may look, whatever the umask."""
    before = os.umask(0)
    try:
        cache.save({("a", 1): batch("a")})
        write_ledger(tmp_path / "ledgers", "job", [])
    finally:
        os.umask(before)
    made = (tmp_path / "made", cache.folder, tmp_path / "ledgers")
    assert [folder.stat().st_mode & 0o777 for folder in made] == [0o700] * 3


def test_many_at_once(cache: Cache) -> None:
    """More paths than one statement takes come back whole."""
    saved = {(f"file:///{i}", i): batch(str(i)) for i in range(1700)}
    cache.save(saved)
    assert cache.load(list(saved)) == {path: b for (path, _), b in saved.items()}


def test_another_length_is_not_trusted(cache: Cache) -> None:
    """A file of the same path and another length is another file; the newer one takes its place."""
    cache.save({("a", 1): batch("old")})
    assert cache.load([("a", 2)]) == {}
    cache.save({("a", 2): batch("new")})
    assert (cache.load([("a", 1)]), cache.load([("a", 2)])) == ({}, {"a": batch("new")})


def _held(cache: Cache) -> int:
    with closing(sqlite3.connect(cache._file)) as database:
        (held,) = database.execute("select total(length(batch) + 200) from manifests").fetchone()
        (said,) = database.execute("select bytes from size").fetchone()
    assert held == said
    return int(held)


def test_the_bound_holds(tmp_path: Path) -> None:
    """The cache never holds more than it may, however often and much is saved; the last save is still there."""
    one = len(batch("x").serialize()) + 200
    cache = Cache(tmp_path, one * 20, SCHEMA)
    for number in range(100):
        cache.save({(f"{number}-{i}", 1): batch("x") for i in range(1 + number % 3)})
        assert _held(cache) <= cache.max_bytes
        assert cache.load([(f"{number}-0", 1)])
        cache.save({(f"{number}-0", 2): batch("x")})


def test_the_least_recently_used_go_first(tmp_path: Path) -> None:
    """What was loaded lately stays, what was only saved long ago goes."""
    cache = Cache(tmp_path, (len(batch("x").serialize()) + 200) * 10, SCHEMA)
    for number in range(30):
        cache.save({(str(number), 1): batch("x")})
        assert cache.load([("0", 1)])
    assert not cache.load([("1", 1)])


def test_more_than_fits(tmp_path: Path) -> None:
    """One save of more than the whole bound leaves a cache that works."""
    cache = Cache(tmp_path, 1000, SCHEMA)
    cache.save({(str(i), 1): batch(str(i)) for i in range(50)})
    assert _held(cache) <= 1000
    cache.save({("a", 1): batch("a")})
    assert cache.load([("a", 1)]) == {"a": batch("a")}


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:6000])


def _scramble(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[100:] = b"\xa5" * (len(content) - 100)
    path.write_bytes(content)


@pytest.mark.parametrize("how", ["foreign", "cut", "scrambled"])
def test_a_broken_file_is_replaced(cache: Cache, how: str) -> None:
    """A file that is no database, or no whole one, is thrown away: nothing is found, then all works again."""
    saved = {(f"file:///{i}", 1): batch(str(i), 50) for i in range(50)}
    cache.save(saved)
    with closing(sqlite3.connect(cache._file)) as database:
        database.execute("pragma wal_checkpoint(truncate)")
    breaking = {"foreign": lambda p: p.write_bytes(b"no database" * 999), "cut": _cut, "scrambled": _scramble}
    breaking[how](cache._file)
    assert cache.load(list(saved)) == {}
    cache.save(saved)
    assert cache.load(list(saved)) == {path: b for (path, _), b in saved.items()}


@pytest.mark.parametrize("blob", [b"", b"\x00", b"\xff" * 200, b"half"])
def test_a_broken_row_costs_a_read(cache: Cache, blob: bytes) -> None:
    """A row that is no batch is as good as none; the others are found, now or after the next save."""
    cache.save({("good", 1): batch("good"), ("bad", 1): batch("bad")})
    content = batch("bad").serialize().to_pybytes()
    with closing(sqlite3.connect(cache._file)) as database:
        broken = content[: len(content) // 2] if blob == b"half" else blob
        database.execute("update manifests set batch = ? where path = 'bad'", (broken,))
        database.commit()
    assert "bad" not in cache.load([("good", 1), ("bad", 1)])
    cache.save({("good", 1): batch("good"), ("bad", 1): batch("bad")})
    assert cache.load([("good", 1), ("bad", 1)]) == {"good": batch("good"), "bad": batch("bad")}


def _file_in_the_way(tmp_path: Path) -> Path:
    (tmp_path / "file").write_text("in the way")
    return tmp_path / "file" / "cache"


def _read_only(tmp_path: Path) -> Path:
    folder = tmp_path / "read-only"
    folder.mkdir(mode=0o500)
    (folder / "manifests-1.db").mkdir()  # root may write anywhere: this stops it too
    return folder


@pytest.mark.parametrize("where", ["file in the way", "read-only", "no such device", "refused"])
def test_a_folder_that_takes_nothing_costs_nothing(tmp_path: Path, where: str) -> None:
    """Without a place to write, nothing is found and nothing is kept, and the caller never hears of it."""
    places: dict[str, Callable[[Path], Path]] = {"file in the way": _file_in_the_way, "read-only": _read_only}
    places |= {"no such device": lambda _: Path("/proc/icewright"), "refused": lambda _: Path("/proc/self")}
    cache = Cache(places[where](tmp_path), 1 << 20, SCHEMA)
    assert cache.load([("a", 1)]) == {}
    cache.save({("a", 1): batch("a")})
    assert cache.load([("a", 1)]) == {}


_WRITER = """
import sys
from pathlib import Path
import pyarrow as pa
from icewright.adapters.files.cache import Cache
from icewright.adapters.store.ledger import write_ledger
schema = pa.schema([("path", pa.string()), ("n", pa.int64())])
cache, who = Cache(Path(sys.argv[1]), 1 << 24, schema), sys.argv[2]
for i in range(60):
    one = pa.RecordBatch.from_pydict({"path": [who] * 3, "n": [0, 1, 2]}, schema)
    cache.save({(f"{who}-{i}", 1): one, ("shared", 1): pa.RecordBatch.from_pydict({"path": ["s"], "n": [1]}, schema)})
    assert cache.load([(f"{who}-{i}", 1), ("shared", 1)]).keys() == {f"{who}-{i}", "shared"}, i
"""


@pytest.mark.external
def test_two_processes_at_once(tmp_path: Path) -> None:
    """Two processes that save and load side by side lose nothing and see no error."""
    command = [sys.executable, "-c", _WRITER, str(tmp_path)]
    running = [subprocess.Popen([*command, who], stderr=subprocess.PIPE, text=True) for who in ("one", "two")]
    said = [process.communicate(timeout=60)[1] for process in running]
    assert [process.returncode for process in running] == [0, 0], said
    cache = Cache(tmp_path, 1 << 24, SCHEMA)
    found = cache.load([(f"{who}-{i}", 1) for who in ("one", "two") for i in range(60)])
    assert len(found) == 120
    assert _held(cache) > 0
