"""Small files of an object store, which the Arrow kernel reads several at once; its rows are those of local files."""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path

import pyarrow as pa
import pytest
from pyroaring import BitMap64

from icewright.adapters.engines.arrow.live_deletes import LiveData, LiveDelete
from icewright.adapters.engines.arrow.opening import Opener, UnreadableFile
from icewright.adapters.engines.arrow.position_scan import PositionScan
from icewright.adapters.engines.arrow.reading import BatchScan
from icewright.adapters.engines.arrow.reading_ahead import ReadingAhead
from icewright.adapters.engines.arrow.tasks import Bin, DeleteFile, DeleteKind, FileSlice
from icewright.adapters.engines.service.manifest_files import EQUALITY_DELETES, Entry
from icewright.testing.builders import metadata
from tests.adapters.arrow_tables import ID, Folder


@dataclass(frozen=True)
class Far(Opener):
    """Opens `s3:PATH` as the local file; none of other threads before two of them ask."""

    begun: Counter[str] = field(default_factory=Counter)
    waiting: count[int] = field(default_factory=lambda: count(1))
    together: threading.Event = field(default_factory=threading.Event)

    def input(self, path: str) -> pa.NativeFile:
        """Open a file for reading."""
        self.begun[path] += 1
        if threading.current_thread() is not threading.main_thread():
            if next(self.waiting) >= 2:
                self.together.set()
            assert self.together.wait(20)
        return super().input(path.removeprefix("s3:/"))


def far(one: FileSlice) -> FileSlice:
    """The same in the store."""
    deletes = tuple(replace(delete, path=f"s3:/{delete.path}") for delete in one.deletes)
    return replace(one, path=f"s3:/{one.path}", deletes=deletes)


def scanned(folder: Folder, opener: Opener, *slices: FileSlice) -> list[int]:
    """The ids of the live rows."""
    scan = BatchScan(folder.layout, opener, Bin(0, slices, {}, "", 1))
    return [number for batch in scan.batches() for number in batch.column(0).to_pylist()]


def test_files_that_follow_are_read_meanwhile_each_once(tmp_path: Path) -> None:
    """Data files, and the deletes of each."""
    folder, opener = Folder(tmp_path), Far({})
    keys, slices = folder.keys([ID], [1], {"id": 12}), list[FileSlice]()
    shared = folder.positions((f"s3:/{tmp_path}/elsewhere.parquet", 0))
    for number in range(10):
        path = folder.write([{"id": number, "name": "a"}, {"id": number + 10, "name": "b"}])
        vector = (folder.vector(0),) if number == 7 else ()
        slices.append(folder.file_slice(path, *vector, keys, shared, folder.positions((f"s3:/{path}", number % 3))))
    found = scanned(folder, opener, *map(far, slices))
    assert sorted(found) == sorted({*range(20)} - {0, 3, 6, 9, 11, 14, 17} - {12} - {7})
    assert opener.together.is_set()
    assert set(opener.begun.values()) == {1}


def test_keys_of_deletes_and_of_data_are_read_meanwhile_each_once(tmp_path: Path) -> None:
    """Where equality deletes are converted."""
    folder, opener = Folder(tmp_path, [ID]), Far({})
    deletes, data = list[LiveDelete](), list[LiveData]()
    for number in range(6):
        keys, rows = (f"s3:/{folder.write([{'id': one}])}" for one in (number, 5 - number))
        entry = Entry(1, 3, 3, b"", 1, b"")
        named = DeleteFile(DeleteKind.EQUALITY, keys, equality_ids=(1,))
        deletes.append(LiveDelete(entry, "m", (0, b""), named, 99, EQUALITY_DELETES, "PARQUET", False, None))
        size = Path(rows.removeprefix("s3:/")).stat().st_size
        data.append(LiveData(rows, (0, b""), (), 1, 1, size, True, {1: (None, None, None)}))
    scan = PositionScan(folder.layout, opener, metadata(), deletes, lambda: None)
    scan.scan(data)
    assert opener.together.is_set()
    assert scan.matched == {one.path: BitMap64([0]) for one in data}
    assert set(opener.begun.values()) == {1}


def test_few_files_are_in_memory_before_their_turn(tmp_path: Path) -> None:
    """Of 3 MB each, two fit into 8; the one that is asked for counts no more."""
    folder, opener = Folder(tmp_path), Far({})
    paths = [f"s3:/{folder.write([{'id': number, 'name': 'a'}])}" for number in range(9)]
    opener.together.set()
    ahead = ReadingAhead.of(opener, [(path, 3 << 20) for path in paths], 32 * 8 << 20)
    ahead.input(paths[0]).close()
    ahead.input(paths[1]).close()
    assert opener.begun.total() <= 3


def test_a_file_that_is_gone_is_named_when_it_is_its_turn(tmp_path: Path) -> None:
    """The files before it are read."""
    folder, opener = Folder(tmp_path), Far({})
    slices = [far(folder.file_slice(folder.write([{"id": number, "name": "a"}]))) for number in range(4)]
    slices[2] = replace(slices[2], path="s3:/gone.parquet")
    with pytest.raises(UnreadableFile, match=r"s3:/gone\.parquet"):
        scanned(folder, opener, *slices)
    assert scanned(folder, opener, *slices[:2]) == [0, 1]
