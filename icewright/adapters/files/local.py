"""Storage of local files: read, written atomically, listed and deleted."""

from __future__ import annotations

import errno
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from stat import S_ISDIR, S_ISLNK, S_ISREG
from time import perf_counter
from typing import BinaryIO, TypeVar
from uuid import uuid4

import pyarrow as pa

from icewright.adapters.files.storage import LISTED, REPLACED, displayed, listed, missing, parts, time_by_probe
from icewright.adapters.read_limits import read_limits
from icewright.core.errors import (
    AccessDenied,
    FileMissing,
    FolderMissing,
    IcewrightError,
    MetadataUnreadable,
    StorageUnavailable,
    UnsupportedTable,
)
from icewright.core.paths import local_path
from icewright.ports import DeleteReport, FileStat, SizeLimit, ignore
from icewright.ports.work import WorkerThreads, progress

Result = TypeVar("Result")

_BATCH = 20_000
_FILES_PER_TASK = 64  # a task costs more than a deletion
_LONG_SECONDS = 0.02  # of a part
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_ABSENT = (
    errno.ENOENT,
    errno.ENOTDIR,
    errno.ENAMETOOLONG,
)  # nothing exists below a file, or under a name that is too long
_NO_FILE = (errno.ELOOP, errno.ENXIO)  # links that lead to each other, and a socket: faults of the table alone


class LocalStorage:
    """The Storage of paths without a scheme, and of `file:`."""

    def read(self, path: str, limit: SizeLimit | None = None) -> bytes:
        """Return the content of a regular file. Raises `FileMissing`, `MetadataTooLarge`, `MetadataUnreadable`.

        A pipe or device is not waited for: opening it does not block, and its content is not read.
        """
        with _regular(path) as (file, length):
            (limit or read_limits().metadata).check(path, length)
            return file.read(length)

    def read_range(self, path: str, start: int, length: int) -> bytes:
        """Return a part of a regular file. Raises `FileMissing`, `MetadataUnreadable`."""
        with _regular(path) as (file, _):
            file.seek(start)
            return file.read(length)

    def write(self, path: str, content: bytes | Iterator[bytes]) -> None:
        """Write a new file atomically, by a rename."""
        target = Path(_local(path))
        fresh = target.with_name(f".{uuid4().hex}.tmp")
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            with fresh.open("xb") as out:
                out.writelines([content] if isinstance(content, bytes) else content)
                out.flush()
                os.fsync(out.fileno())
            with suppress(FileNotFoundError):  # Hadoop's checksum of a lost file under this name
                target.with_name(f".{target.name}.crc").unlink()
            fresh.rename(target)
        except OSError as error:
            with suppress(OSError):
                fresh.unlink()
            if isinstance(error, PermissionError) or error.errno == errno.EROFS:
                raise AccessDenied(f"{path} may not be written: give this process the right to") from error
            raise StorageUnavailable(f"{path} could not be written: {error.strerror}") from error
        except BaseException:  # of the parts: a part that is missing leaves no file
            with suppress(OSError):
                fresh.unlink()
            raise

    def copy(self, source: str, target: str, length: int) -> None:
        """Copy a file, which is there as a whole or not at all."""
        self.write(target, parts(self, source, length))

    def size(self, path: str) -> int | None:
        """Return the length in bytes; None when there is no such file."""
        status = _status(path, os.stat)
        return None if status is None else status.st_size

    def stat(self, paths: Sequence[str], concurrency: int) -> Mapping[str, FileStat | None]:
        """Return length and time of many files, links not followed; None for a file that does not exist."""
        return dict(zip(paths, _for_each(_stat, paths, concurrency), strict=True))

    def time(self, location: str) -> datetime:
        """Return the file system's clock. A missing location is not created: its disk may be unmounted."""
        if not os.path.isdir(_local(location)):  # noqa: PTH112 - as above
            raise FolderMissing(f"{location} is no folder: the storage's clock cannot be read there")
        return time_by_probe(self, location)

    def canonical(self, folder: str) -> str:
        """Return the folder without the links that lead to it, which need not exist."""
        try:
            return os.path.realpath(_local(folder)) + "/"
        except ValueError:  # as above: there are no links in what cannot be there
            return os.path.normpath(_local(folder)) + "/"

    def canonicals(self, folders: Iterable[str]) -> Mapping[str, str]:
        """Return the canonical form of many folders; the links of a shared parent are resolved once."""
        real: dict[str, str] = {"": "/", "/": "/"}

        def followed(path: str) -> str:
            resolved = real.get(path)
            if resolved is None:
                above, _, name = path.rpartition("/")
                plain = f"{followed(above).rstrip('/')}/{name}"
                resolved = real[path] = os.path.realpath(plain) if os.path.islink(plain) else plain  # noqa: PTH114
            return resolved

        return {folder: followed(os.path.normpath(_local(folder))).rstrip("/") + "/" for folder in folders}

    def delete(
        self, paths: Sequence[str], concurrency: int, found: Mapping[str, FileStat | None] | None = None
    ) -> DeleteReport:
        """Delete files, with Hadoop's checksum files next to them."""
        known = found or {}
        reasons = _for_each(lambda path: _delete_file(path, known.get(path)), paths, concurrency)
        failures = {path: reason for path, reason in zip(paths, reasons, strict=True) if reason is not None}
        return DeleteReport(tuple(p for p in paths if p not in failures), failures)

    def tidy(self, paths: Sequence[str], stop: str) -> None:
        """Remove the folders of deleted files that are empty now, up to `stop`, which stays."""
        end = os.path.normpath(_local(stop)) + os.sep
        folders: set[str] = set()
        for parent in {os.path.dirname(path) for path in paths}:  # noqa: PTH120 - as above
            folder = os.path.normpath(_local(parent))
            while folder.startswith(end) and folder not in folders:
                folders.add(folder)
                folder = os.path.dirname(folder)  # noqa: PTH120
        for folder in sorted(folders, key=len, reverse=True):
            with suppress(OSError):  # not empty, or gone already: both are fine
                os.rmdir(folder)  # noqa: PTH106

    def listing(
        self,
        location: str,
        unnamed: Callable[[str], None] = ignore,
        known: Sequence[str] = (),  # noqa: ARG002 - a disk of this machine is read from one place at a time
    ) -> Iterator[pa.RecordBatch]:
        """Yield all files below a location; links have no time, as their target may be younger."""
        prefix = location.rstrip("/") + "/"
        paths: list[str] = []
        sizes: list[int] = []
        times: list[int | None] = []
        for entry, relative in _walk(_local(location), lambda name: unnamed(displayed(prefix + name))):
            try:
                stat = entry.stat(follow_symlinks=False)
            except FileNotFoundError:  # its writer removed it meanwhile
                continue
            except OSError as error:
                raise StorageUnavailable(f"{entry.path} could not be looked at: {error.strerror}") from error
            paths.append(prefix + relative)
            sizes.append(stat.st_size)
            times.append(None if entry.is_symlink() else stat.st_mtime_ns // 1000)
            if len(paths) == _BATCH:
                yield listed(paths, sizes, times)
                paths, sizes, times = [], [], []
        yield listed(paths, sizes, times) if paths else pa.RecordBatch.from_pylist([], LISTED)


@contextmanager
def _regular(path: str) -> Iterator[tuple[BinaryIO, int]]:
    """Open a regular file for reading, with its length, and translate the errors of the file system."""
    try:
        with open(_local(path), "rb", opener=_without_blocking) as file:
            status = os.fstat(file.fileno())
            if not S_ISREG(status.st_mode):
                raise MetadataUnreadable(f"{path} is no regular file: restore the file, or drop the table")
            yield file, status.st_size
    except IsADirectoryError as error:
        raise MetadataUnreadable(f"{path} is a folder: restore the file, or drop the table") from error
    except ValueError as error:
        raise FileMissing(f"{displayed(path)}: no file can have this name: roll the table back to before it") from error
    except PermissionError as error:
        raise AccessDenied(f"{path} may not be read: give this process the right to") from error
    except OSError as error:
        if error.errno in _ABSENT:
            raise missing(path) from error
        if error.errno in _NO_FILE:
            raise MetadataUnreadable(f"{path} is no file: {error.strerror}; restore it, or drop the table") from error
        raise StorageUnavailable(f"{path} could not be read: {error.strerror}") from error


def _without_blocking(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)


def _for_each(work: Callable[[str], Result], paths: Sequence[str], concurrency: int) -> list[Result]:
    """Return the result of the work for each path.

    A disk of this machine answers sooner than threads take turns, and one of the network later: threads do what is left
    once a part took long.
    """
    parts = deque(paths[i : i + _FILES_PER_TASK] for i in range(0, len(paths), _FILES_PER_TASK))
    results, seconds = list[Result](), 0.0
    while parts and seconds < _LONG_SECONDS:
        started = perf_counter()
        results += map(work, parts.popleft())
        seconds = perf_counter() - started
    if parts:
        with WorkerThreads(max(1, concurrency)) as pool:
            results += (result for part in pool.map(lambda part: [*map(work, part)], parts) for result in part)
    return results


def _delete_file(path: str, known: FileStat | None) -> str | None:
    """Delete a file, if it is the known one still; return why it could not be deleted, or None."""
    progress()  # file by file: one call may hang in the kernel, and the files after it are not deleted any more then
    try:
        if known is not None and _stat(path) not in (known, None):
            return REPLACED
        file = _local(path)
        folder, name = os.path.split(file)
        for victim in (file, f"{folder}/.{name}.crc"):
            with suppress(FileNotFoundError):
                os.unlink(victim)  # noqa: PTH108 - as above
    except (OSError, ValueError, IcewrightError) as error:  # ValueError: what no file system takes for a name
        return getattr(error, "strerror", None) or str(error)
    return None


def _status(path: str, look: Callable[[str], os.stat_result]) -> os.stat_result | None:
    """Return the status of a file as `os.stat` or `os.lstat` has it; None when there is no such file."""
    try:
        return look(_local(path))
    except ValueError:  # what no file system takes for a name
        return None
    except PermissionError as error:
        raise AccessDenied(f"{path} may not be looked at: give this process the right to") from error
    except OSError as error:
        if error.errno in _ABSENT:
            return None
        if error.errno in _NO_FILE:
            raise MetadataUnreadable(f"{path} is no file: {error.strerror}") from error
        raise StorageUnavailable(f"{path} could not be looked at: {error.strerror}") from error


def _stat(path: str) -> FileStat | None:
    status = _status(path, os.lstat)
    if status is None:
        return None
    no_file = S_ISLNK(status.st_mode) or S_ISDIR(status.st_mode)
    modified = None if no_file else _EPOCH + timedelta(microseconds=status.st_mtime_ns // 1000)
    return FileStat(status.st_size, modified)


def _walk(root: str, unnamed: Callable[[str], None]) -> Iterator[tuple[os.DirEntry[str], str]]:
    folders = [(root, "")]
    while folders:
        folder, above = folders.pop()
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    folder_too = entry.is_dir(follow_symlinks=False)
                    if not _is_text(entry.name):  # no metadata can name it, nor what lies below
                        unnamed(f"{above}{entry.name}{'/' if folder_too else ''}")
                    elif folder_too:
                        folders.append((entry.path, f"{above}{entry.name}/"))
                    else:
                        yield entry, above + entry.name
        except FileNotFoundError as error:
            if not above:
                raise FolderMissing(
                    f"{folder} could not be listed: there is no such folder; is a disk away?"
                ) from error
            # else: its writer removed it meanwhile
        except OSError as error:
            raise StorageUnavailable(f"{folder} could not be listed: {error.strerror}") from error


def _is_text(name: str) -> bool:
    if name.isascii():
        return True
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _local(path: str) -> str:
    local = local_path(path)
    if local is None:
        raise UnsupportedTable(f"{path}: no local file")
    return local
