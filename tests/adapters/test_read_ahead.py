"""Files that are read in order, several at once where the storage takes its time."""

from __future__ import annotations

import threading
from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest

from icewright.adapters.engines.service.avro_records import container as avro_file
from icewright.adapters.files.read_ahead import read_ahead
from icewright.adapters.files.tables import IcebergFiles
from icewright.core.errors import FileMissing, MetadataUnreadable
from icewright.ports import AvroFile

PATHS = [str(number) for number in range(40)]


def test_files_of_a_quick_disk_are_read_one_by_one() -> None:
    """All in the thread that asks."""
    threads = set[int]()

    def read(path: str) -> bytes:
        threads.add(threading.get_ident())
        return path.encode()

    assert [*read_ahead(read, PATHS, seconds=lambda: 0.0)] == [path.encode() for path in PATHS]
    assert threads == {threading.get_ident()}


def test_files_of_slow_storage_are_read_at_once_and_come_in_order() -> None:
    """The three reads after the first wait for one another: they would never end if they came one after the other."""
    together = threading.Barrier(3, timeout=20)

    def read(path: str) -> bytes:
        if path in PATHS[1:4]:
            together.wait()
        return path.encode()

    assert [*read_ahead(read, PATHS, seconds=slow())] == [path.encode() for path in PATHS]


def test_few_large_files_are_in_memory_at_once() -> None:
    """Three of 9 MB are read while the one before them is used."""
    begun: list[str] = []

    def read(path: str) -> bytes:
        begun.append(path)
        return bytes(9 << 20)

    contents = read_ahead(read, PATHS, seconds=slow())
    for _ in range(2):
        next(contents)
    contents.close()  # type: ignore[attr-defined]  # of a generator
    assert len(begun) <= 2 + 3


def test_an_error_comes_when_it_is_the_turn_of_its_file() -> None:
    """The files before it are read, whatever became of those after them."""

    def read(path: str) -> bytes:
        if path == "3":
            raise FileMissing(path)
        return path.encode()

    contents = read_ahead(read, PATHS, seconds=slow())
    assert [next(contents) for _ in range(3)] == [b"0", b"1", b"2"]
    with pytest.raises(FileMissing):
        next(contents)


def test_avro_files_come_with_those_that_cannot_be_read(files: IcebergFiles, tmp_path: Path) -> None:
    """A missing and a broken one are no end of the others."""
    whole, broken = tmp_path / "whole.avro", tmp_path / "broken.avro"
    whole.write_bytes(avro_file({"type": "record", "name": "r", "fields": []}, {}, []))
    broken.write_bytes(b"x")
    found = [*files.avros([str(broken), str(tmp_path / "gone.avro"), str(whole)])]
    assert [type(one) for one in found] == [MetadataUnreadable, FileMissing, AvroFile]
    with pytest.raises(FileMissing):
        files.avro(str(tmp_path / "gone.avro"))


def slow() -> Callable[[], float]:
    """Return a clock by which each read takes a second."""
    return map(float, count()).__next__
