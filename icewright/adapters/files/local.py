"""Local files: read, written in one move, listed, deleted."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

import pyarrow as pa

from icewright.adapters.files.storage import LISTED, listed
from icewright.core.errors import AccessDenied, FileMissing, StorageUnavailable, UnsupportedTable
from icewright.core.paths import local_path
from icewright.ports import DeleteReport, FileStat

_BATCH = 20_000
_DELETED_TOGETHER = 64  # by one task: a task costs more than a deletion


class LocalStorage:
    """The Storage of paths without a scheme, and of `file:`."""

    def read(self, path: str) -> bytes:
        """The file's content."""
        try:
            with open(_local(path), "rb") as file:  # noqa: PTH123 - a thousand times a table: Path objects cost more
                return file.read()
        except FileNotFoundError as error:
            raise FileMissing(f"{path} is missing: restore it, or roll the table back to before it") from error
        except PermissionError as error:
            raise AccessDenied(f"{path} may not be read: give this process the right to") from error
        except OSError as error:
            raise StorageUnavailable(f"{path} could not be read: {error.strerror}") from error

    def write(self, path: str, content: bytes) -> None:
        """A new file, whole or not at all."""
        target = Path(_local(path))
        fresh = target.with_name(f".{uuid4().hex}.tmp")
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            with fresh.open("xb") as out:
                out.write(content)
                out.flush()
                os.fsync(out.fileno())
            fresh.rename(target)
        except OSError as error:
            with suppress(OSError):
                fresh.unlink()
            raise StorageUnavailable(f"{path} could not be written: {error.strerror}") from error

    def size(self, path: str) -> int | None:
        """Length in bytes, None when there is no such file."""
        try:
            return os.stat(_local(path)).st_size  # noqa: PTH116 - as above
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StorageUnavailable(f"{path} could not be looked at: {error.strerror}") from error

    def canonical(self, folder: str) -> str:
        """The folder without the links that lead to it, which need not exist."""
        return os.path.realpath(_local(folder)) + "/"

    def delete(self, paths: Sequence[str], concurrency: int) -> DeleteReport:
        """Delete files side by side, Hadoop's checksums beside them too."""
        parts = [paths[i : i + _DELETED_TOGETHER] for i in range(0, len(paths), _DELETED_TOGETHER)]
        with ThreadPoolExecutor(max(1, concurrency)) as pool:
            reasons = [reason for part in pool.map(_deleted, parts) for reason in part]
        failures = {path: reason for path, reason in zip(paths, reasons, strict=True) if reason is not None}
        return DeleteReport(tuple(p for p in paths if p not in failures), failures)

    def tidy(self, paths: Sequence[str], stop: str) -> None:
        """Remove the folders of deleted files that are empty now, up to `stop`, which stays."""
        end = os.path.normpath(_local(stop)) + os.sep
        folders: set[str] = set()
        for path in paths:
            folder = os.path.dirname(os.path.normpath(_local(path)))  # noqa: PTH120 - as above
            while folder.startswith(end) and folder not in folders:
                folders.add(folder)
                folder = os.path.dirname(folder)  # noqa: PTH120
        for folder in sorted(folders, key=len, reverse=True):
            with suppress(OSError):  # not empty, or gone already: both are fine
                os.rmdir(folder)  # noqa: PTH106

    def stat(self, paths: Sequence[str], concurrency: int) -> Mapping[str, FileStat | None]:
        """stat"""
        out: dict[str, FileStat | None] = {}
        for p in paths:
            try:
                st = os.stat(_local(p), follow_symlinks=False)
                out[p] = FileStat(
                    st.st_size, datetime.fromtimestamp(0, UTC) + timedelta(microseconds=st.st_mtime_ns // 1000)
                )
            except FileNotFoundError:
                out[p] = None
        return out

    def time(self, location: str) -> datetime:
        """time"""
        return datetime.now(UTC)

    def listing(self, location: str, unnamed: Callable[[str], None] = lambda _: None) -> Iterator[pa.RecordBatch]:
        """All files below a location; of a link nobody knows how old what it leads to is."""
        prefix = location.rstrip("/") + "/"
        paths: list[str] = []
        sizes: list[int] = []
        times: list[int | None] = []
        for entry, relative in _walk(_local(location)):
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


def _deleted(paths: Sequence[str]) -> list[str | None]:
    """Delete files; for each, why it is still there."""
    return [_removed(path) for path in paths]


def _removed(path: str) -> str | None:
    try:
        file = _local(path)
        folder, name = os.path.split(file)
        for victim in (file, f"{folder}/.{name}.crc"):
            with suppress(FileNotFoundError):
                os.unlink(victim)  # noqa: PTH108 - as above
    except (OSError, UnsupportedTable) as error:
        return getattr(error, "strerror", None) or str(error)
    return None


def _walk(root: str) -> Iterator[tuple[os.DirEntry[str], str]]:
    folders = [(root, "")]
    while folders:
        folder, above = folders.pop()
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    if not _is_text(entry.name):  # no metadata can name it, and nothing here can say it
                        continue
                    if entry.is_dir(follow_symlinks=False):
                        folders.append((entry.path, f"{above}{entry.name}/"))
                    else:
                        yield entry, above + entry.name
        except FileNotFoundError:  # as on object stores, where a folder without files is none
            continue
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
    found = local_path(path)
    if found is None:
        raise UnsupportedTable(f"{path}: no local file")
    return found
