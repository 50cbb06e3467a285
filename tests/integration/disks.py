"""A disk without room for a rewrite: a small file system where one may be mounted, else a limit on a process."""

from __future__ import annotations

import resource
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

_MEGABYTES = 14  # a table of 5 MB, and no room for it twice
_LEFT = 2_000_000


class Disk(Protocol):
    """Where a table lies."""

    message: str  # what a writer is told

    def fill(self) -> None:
        """Leave too little room for a rewrite, enough for metadata."""
        ...

    def free(self) -> None:
        """Make room."""
        ...


class Mounted:
    """A file system in memory."""

    message = "No space left on device"

    def __init__(self, folder: Path) -> None:
        self._filler = folder / "filler"

    def fill(self) -> None:
        """With a file that is none of the table's."""
        with self._filler.open("wb") as filler:
            free = shutil.disk_usage(self._filler.parent).free
            filler.write(b"x" * max(0, free - _LEFT))

    def free(self) -> None:
        """Remove it."""
        self._filler.unlink()


class Limited:
    """A process that may not write large files."""

    message = "File too large"

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._before = resource.prlimit(pid, resource.RLIMIT_FSIZE)

    def fill(self) -> None:
        """Set the limit, which can be lifted again."""
        resource.prlimit(self._pid, resource.RLIMIT_FSIZE, (_LEFT, self._before[1]))

    def free(self) -> None:
        """Lift it."""
        resource.prlimit(self._pid, resource.RLIMIT_FSIZE, self._before)


@contextmanager
def full_disk(folder: Path, pid: int) -> Iterator[Disk]:
    """A disk for `folder`, on which the process `pid` writes, until the end of the block."""
    folder.mkdir(parents=True)
    options = ("-t", "tmpfs", "-o", f"size={_MEGABYTES}m", "tmpfs", str(folder))
    try:
        mounted = subprocess.run(["mount", *options], capture_output=True, check=False).returncode == 0
    except OSError:
        mounted = False
    if not mounted:
        disk = Limited(pid)
        try:
            yield disk
        finally:
            disk.free()
        return
    try:
        yield Mounted(folder)
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)
