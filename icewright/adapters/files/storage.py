"""Where files lie: one interface over local files and object stores, chosen by the path."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from dataclasses import dataclass, field

import pyarrow as pa

from icewright.core.errors import Refused, UnsupportedTable
from icewright.core.paths import local_path, split
from icewright.ports import FileStat, DeleteReport, Grant, Storage

_FENCED = "outside of the environment that the catalogs declare"
LISTED = pa.schema([("path", pa.string()), ("bytes", pa.int64()), ("modified", pa.timestamp("us", "UTC"))])


def listed(paths: Sequence[str], sizes: Sequence[int], microseconds: Sequence[int | None]) -> pa.RecordBatch:
    """One batch of a listing; times are since 1970, None where nobody knows."""
    times = pa.array(microseconds, pa.int64()).cast(LISTED.field("modified").type)
    return pa.RecordBatch.from_arrays([pa.array(paths, pa.string()), pa.array(sizes, pa.int64()), times], schema=LISTED)


Lender = Callable[[], Grant | None]  # asked whenever a request needs credentials


@dataclass(frozen=True)
class Storages:
    """All storages as one: local paths go to `local`, others to the store of their bucket, opened once.

    Where a catalog lends credentials for a prefix, the prefix has a store of its own that asks for fresh ones in time.
    """

    local: Storage
    bucket: Callable[[str, Lender | None], Storage]  # opens the store of `scheme://bucket`; raises `UnsupportedTable`
    grants: Callable[[str], Grant | None] = lambda _: None  # what a catalog lends for a path
    fence: Callable[[str], bool] = lambda _: True  # whether a file may be written or deleted at all
    _open: dict[tuple[str, str], Storage] = field(default_factory=dict, init=False)

    def of(self, path: str) -> Storage:
        """The storage of one path."""
        if local_path(path) is not None:
            return self.local
        place = split(path)
        root = f"{place.scheme}://{place.authority}"
        grant = self.grants(path)
        opened = (root, "" if grant is None else grant.prefix)
        if opened not in self._open:
            self._open[opened] = self.bucket(root, None if grant is None else lambda: self.grants(path))
        return self._open[opened]

    def read(self, path: str) -> bytes:
        """The file's content."""
        return self.of(path).read(path)

    def write(self, path: str, content: bytes) -> None:
        """A new file, whole or not at all."""
        if not self._inside(path):
            raise Refused(f"{path}: {_FENCED}: it is not written")
        self.of(path).write(path, content)

    def size(self, path: str) -> int | None:
        """Length in bytes, None when there is no such file."""
        return self.of(path).size(path)

    def canonical(self, folder: str) -> str:
        """The folder without the links that lead to it; object stores have none."""
        return folder if local_path(folder) is None else self.local.canonical(folder)

    def delete(self, paths: Sequence[str], concurrency: int) -> DeleteReport:
        """Delete files, those of one storage together and in their order."""
        deleted: list[str] = []
        failures = {path: f"{_FENCED}: it is kept" for path in paths if not self._inside(path)}
        for storage, own in self._parted([path for path in paths if path not in failures], failures):
            report = storage.delete(own, concurrency)
            deleted += report.deleted
            failures |= report.failures
        return DeleteReport(tuple(deleted), failures)

    def tidy(self, paths: Sequence[str], stop: str) -> None:
        """Remove folders that the deletion left empty, where there are folders."""
        here = self.of(stop)
        for storage, own in self._parted(paths, {}):
            if storage is here:
                storage.tidy(own, stop)

    def stat(self, paths: Sequence[str], concurrency: int) -> Mapping[str, FileStat | None]:
        """stat"""
        out: dict[str, FileStat | None] = {}
        for storage, own in self._parted(paths, {}):
            out.update(storage.stat(own, concurrency))
        return out

    def time(self, location: str) -> datetime:
        """time"""
        return self.of(location).time(location)

    def listing(self, location: str, unnamed: Callable[[str], None] = lambda _: None) -> Iterator[pa.RecordBatch]:
        """All files below a location."""
        return self.of(location).listing(location)

    def _inside(self, path: str) -> bool:
        """Whether the fence holds the path, and what the links in it lead to."""
        folder, _, name = path.rpartition("/")
        return self.fence(path) and (local_path(path) is None or self.fence(f"{self.local.canonical(folder)}{name}"))

    def _parted(self, paths: Sequence[str], unknown: dict[str, str]) -> list[tuple[Storage, list[str]]]:
        """The paths by their storage; those of none go to `unknown` with the reason."""
        parts: dict[int, tuple[Storage, list[str]]] = {}
        for path in paths:
            try:
                storage = self.of(path)
            except UnsupportedTable as error:
                unknown[path] = str(error)
                continue
            parts.setdefault(id(storage), (storage, []))[1].append(path)
        return list(parts.values())
