"""Local files: read, write in one move, list, delete."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

import pyarrow as pa

from icewright.core.errors import MetadataUnreadable, StorageUnavailable, UnsupportedTable
from icewright.core.paths import local_path
from icewright.ports import DeleteReport

LISTED = pa.schema([("path", pa.string()), ("bytes", pa.int64()), ("modified", pa.timestamp("us", "UTC"))])
_BATCH = 20_000


def read(path: str) -> bytes:
    """The file's content. Raises `MetadataUnreadable` when it is missing, `StorageUnavailable` otherwise."""
    try:
        return _local(path).read_bytes()
    except FileNotFoundError as error:
        raise MetadataUnreadable(f"{path} is missing: restore it, or roll the table back to before it") from error
    except OSError as error:
        raise StorageUnavailable(f"{path} could not be read: {error.strerror}") from error


def write(path: str, content: bytes) -> None:
    """A new file, whole or not at all."""
    target = _local(path)
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


def size(path: str) -> int | None:
    """Length in bytes, None when there is no such file."""
    try:
        return _local(path).stat().st_size
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StorageUnavailable(f"{path} could not be looked at: {error.strerror}") from error


def delete(paths: Sequence[str], concurrency: int) -> DeleteReport:
    """Delete files side by side; missing ones count as deleted, each failure keeps its reason."""

    def one(path: str) -> str | None:
        try:
            file = _local(path)
            file.unlink(missing_ok=True)
            file.with_name(f".{file.name}.crc").unlink(missing_ok=True)  # Hadoop's checksum beside it
        except (OSError, UnsupportedTable) as error:
            return getattr(error, "strerror", None) or str(error)
        return None

    with ThreadPoolExecutor(max(1, concurrency)) as pool:
        reasons = list(pool.map(one, paths))
    failures = {path: reason for path, reason in zip(paths, reasons, strict=True) if reason is not None}
    return DeleteReport(tuple(p for p in paths if p not in failures), failures)


def tidy(paths: Sequence[str], stop: str) -> None:
    """Remove the folders of deleted files that are empty now, up to `stop`, which stays."""
    end = _local(stop)
    folders = {folder for path in paths for folder in _local(path).parents if end in folder.parents}
    for folder in sorted(folders, key=lambda f: len(f.parts), reverse=True):
        try:
            folder.rmdir()
        except OSError:  # not empty, or gone already: both are fine
            continue


def listing(location: str) -> Iterator[pa.RecordBatch]:
    """All files below a location, spelt as the location is. Raises `StorageUnavailable` when any folder fails."""
    root = _local(location)
    prefix = location.rstrip("/") + "/"
    paths: list[str] = []
    sizes: list[int] = []
    times: list[int | None] = []

    def flush() -> pa.RecordBatch:
        columns = [pa.array(paths, pa.string()), pa.array(sizes, pa.int64()), pa.array(times, pa.int64())]
        batch = pa.RecordBatch.from_arrays(
            [*columns[:2], columns[2].cast(LISTED.field("modified").type)], schema=LISTED
        )
        for column in (paths, sizes, times):
            column.clear()
        return batch

    for entry, relative in _walk(root):
        known = not entry.is_symlink()  # a link's age says nothing of its target
        try:
            stat = entry.stat(follow_symlinks=False)
        except FileNotFoundError:  # its writer removed it meanwhile
            continue
        except OSError as error:
            raise StorageUnavailable(f"{entry.path} could not be looked at: {error.strerror}") from error
        paths.append(prefix + relative)
        sizes.append(stat.st_size)
        times.append(stat.st_mtime_ns // 1000 if known else None)
        if len(paths) == _BATCH:
            yield flush()
    yield flush()


def _walk(root: Path) -> Iterator[tuple[os.DirEntry[str], str]]:
    folders = [(str(root), "")]
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
        except OSError as error:
            raise StorageUnavailable(f"{folder} could not be listed: {error.strerror}") from error


def _is_text(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _local(path: str) -> Path:
    found = local_path(path)
    if found is None:
        raise UnsupportedTable(f"{path}: only local files are supported so far")
    return Path(found)
