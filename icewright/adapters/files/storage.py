"""One Storage over local files and object stores, chosen by the path."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cache
from uuid import uuid4

import pyarrow as pa

from icewright.adapters.files.buckets import Buckets
from icewright.core.errors import FileMissing, MetadataUnreadable, Refused, StorageUnavailable, UnsupportedTable
from icewright.core.paths import local_path, split
from icewright.ports import DeleteReport, FileStat, SizeLimit, Storage, VendedCredentials, ignore
from icewright.ports.work import current_catalog, progress

_PART = 16 << 20  # bytes of a file that are in memory while it is copied
_NOT_ALLOWED = "outside of the environment that the catalogs declare"
LISTED = pa.schema([("path", pa.string()), ("bytes", pa.int64()), ("modified", pa.timestamp("us", "UTC"))])
REPLACED = "another file bears the name now"
# in a key of an object store: an empty part, which a slash at either end makes too, `.` or `..`; a control character
UNNAMEABLE = r"(?:^|/)\.{0,2}(?:/|$)|[\x00-\x1f\x7f]"


def displayed(path: str) -> str:
    """Return the path as printable text on one line: what does not print, or is not UTF-8, is escaped."""
    text = path.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def missing(path: str) -> FileMissing:
    """Return the error for a file that does not exist, with the command that brings back what it can."""
    remedy = "`icewright repair TABLE --dry-run` says whether it can be rebuilt"
    if ".metadata.json" in path.rpartition("/")[2]:
        remedy = "`icewright register FOLDER --as TABLE --replace-lost` goes on with the newest one that is left"
    return FileMissing(f"{path} is missing: restore it; {remedy}")


def time_by_probe(storage: Storage, location: str) -> datetime:
    """Return the storage's own clock: write a file, take its modification time, delete the file."""
    path = f"{location.rstrip('/')}/.icewright-clock-{uuid4().hex}"  # hidden: a scan never calls it an orphan
    storage.write(path, b"clock")
    try:
        probe = storage.stat([path], 1).get(path)
    finally:
        failures = storage.delete([path], 1).failures
    if failures:
        raise StorageUnavailable(f"{path} could not be deleted again: {failures[path]}: delete it by other means")
    if probe is None or probe.modified is None:
        raise StorageUnavailable(f"{path} was written, but the storage does not say when: its clock is not known")
    return probe.modified


def listed(paths: Sequence[str], sizes: Sequence[int], microseconds: Sequence[int | None]) -> pa.RecordBatch:
    """Return one batch of a listing; times are since 1970, or None where the storage has none."""
    times = pa.array(microseconds, pa.int64()).cast(LISTED.field("modified").type)
    return pa.RecordBatch.from_arrays([pa.array(paths, pa.string()), pa.array(sizes, pa.int64()), times], schema=LISTED)


def parts(storage: Storage, path: str, length: int) -> Iterator[bytes]:
    """Yield the content of a file, part by part. Raises `MetadataUnreadable` unless it has this length."""
    for start in range(0, length, _PART):
        progress()
        part = storage.read_range(path, start, min(_PART, length - start))
        if len(part) != min(_PART, length - start):
            raise MetadataUnreadable(f"{path} ends before its length of {length} bytes")
        yield part
    if storage.size(path) != length:
        raise MetadataUnreadable(f"{path} is longer than {length} bytes")


CredentialSource = Callable[[], VendedCredentials | None]  # called whenever a request needs credentials


@dataclass(frozen=True)
class Storages:
    """The Storage port over all storages: local paths go to `local`, others to the store of their bucket.

    A prefix for which a catalog vends credentials has a store of its own, which renews them in time.
    """

    local: Storage
    buckets: Buckets
    # that a catalog vends for a path which another one named
    credentials: Callable[[str, str], VendedCredentials | None] = lambda _path, _catalog: None
    allows: Callable[[str], bool] = lambda _: True  # whether a file may be written or deleted at all
    _open: dict[tuple[str, ...], Storage] = field(default_factory=dict, init=False)

    def of(self, path: str) -> Storage:
        """Return the storage of one path. Raises `UnsupportedTable`."""
        if local_path(path) is not None:
            return self.local
        place = split(path)
        root = f"{place.scheme}://{place.authority}"
        named_by, owner = current_catalog(), self.buckets.owner(root, path)
        vended = self.credentials(path, named_by)
        opened = (root, owner) if vended is None else (root, owner, named_by, vended.prefix)
        if opened not in self._open:
            source = None if vended is None else lambda: self.credentials(path, named_by)
            self._open[opened] = self.buckets.opened(root, owner, source)
        return self._open[opened]

    def read(self, path: str, limit: SizeLimit | None = None) -> bytes:
        content = self.of(path).read(path, limit)
        progress()
        return content

    def read_range(self, path: str, start: int, length: int) -> bytes:
        content = self.of(path).read_range(path, start, length)
        progress()
        return content

    def write(self, path: str, content: bytes | Iterator[bytes]) -> None:
        self._require_inside(path)
        progress()
        self.of(path).write(path, content)
        progress()  # raises in an abandoned thread, before a catalog commits the file

    def copy(self, source: str, target: str, length: int) -> None:
        """Copy a file; from one store to another by way of this process, in parts."""
        self._require_inside(target)
        progress()
        here, there = self.of(source), self.of(target)
        if here is there:
            here.copy(source, target, length)
        else:
            content = parts(here, source, length)
            there.write(target, b"".join(content) if length <= _PART else content)
        progress()

    def size(self, path: str) -> int | None:
        return self.of(path).size(path)

    def stat(self, paths: Sequence[str], concurrency: int) -> Mapping[str, FileStat | None]:
        """Return length and time of many files, without files of unknown storage."""
        stats: dict[str, FileStat | None] = {}
        for storage, own in self._by_storage(paths, {}):
            stats |= storage.stat(own, concurrency)
            progress()
        return stats

    def time(self, location: str) -> datetime:
        if not self._inside(f"{location.rstrip('/')}/x"):
            raise Refused(f"{location}: {_NOT_ALLOWED}: no file is written there to read the storage's clock")
        return self.of(location).time(location)

    def canonical(self, folder: str) -> str:
        return folder if local_path(folder) is None else self.local.canonical(folder)

    def canonicals(self, folders: Iterable[str]) -> Mapping[str, str]:
        """Resolve the links of many folders, each in its own storage."""
        resolved = {folder: folder for folder in folders}
        resolved.update(self.local.canonicals([folder for folder in resolved if local_path(folder) is not None]))
        return resolved

    def delete(
        self, paths: Sequence[str], concurrency: int, found: Mapping[str, FileStat | None] | None = None
    ) -> DeleteReport:
        """Delete files, those of one storage together and in their order."""
        deleted: list[str] = []
        resolve = cache(self.local.canonical)
        failures = {path: f"{_NOT_ALLOWED}: it is kept" for path in paths if not self._inside(path, resolve)}
        for storage, own in self._by_storage([path for path in paths if path not in failures], failures):
            report = storage.delete(own, concurrency, found)
            deleted += report.deleted
            failures |= report.failures
        return DeleteReport(tuple(deleted), failures)

    def tidy(self, paths: Sequence[str], stop: str) -> None:
        here = self.of(stop)
        for storage, own in self._by_storage(paths, {}):
            if storage is here:
                storage.tidy(own, stop)

    def listing(
        self, location: str, unnamed: Callable[[str], None] = ignore, known: Sequence[str] = ()
    ) -> Iterator[pa.RecordBatch]:
        for batch in self.of(location).listing(location, unnamed, known):
            progress()
            yield batch

    def _require_inside(self, path: str) -> None:
        if not self._inside(path):
            raise Refused(f"{path}: {_NOT_ALLOWED}: it is not written")

    def _inside(self, path: str, resolve: Callable[[str], str] | None = None) -> bool:
        """Return whether the path lies inside the allowlist, and so does what `resolve` makes of its links."""
        folder, _, name = path.rpartition("/")
        resolve = resolve or self.local.canonical
        return self.allows(path) and (local_path(path) is None or self.allows(f"{resolve(folder)}{name}"))

    def _by_storage(self, paths: Sequence[str], unknown: dict[str, str]) -> list[tuple[Storage, list[str]]]:
        """Return the paths by their storage; paths of unknown storage are added to `unknown` with the reason."""
        parts: dict[int, tuple[Storage, list[str]]] = {}
        for path in paths:
            try:
                storage = self.of(path)
            except UnsupportedTable as error:
                unknown[path] = str(error)
                continue
            parts.setdefault(id(storage), (storage, []))[1].append(path)
        return list(parts.values())
