"""How often files below a folder are opened to be read, by whatever process: what requests are on an object store."""

from __future__ import annotations

import ctypes
import os
import select
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from benchmarks.kit.background import beside

_OPENED, _CLOSED_UNWRITTEN, _FOLDER, _LOST = 0x20, 0x10, 0x40000000, 0x4000
_EVENT = struct.Struct("iIII")
_QUIET_MS = 50  # without news, after which all is taken to be said
_libc = ctypes.CDLL(None, use_errno=True)


@dataclass
class Reads:
    """Files that were opened and closed again without a write, and folders that were listed."""

    files: int = 0
    listings: int = 0


class Watch:
    """The kernel's own record (inotify) of all folders that are below `folder` now."""

    def __init__(self, folder: Path) -> None:
        self._events = _checked(_libc.inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK))
        for place, _, _ in os.walk(folder):
            # openings are not counted, but keep two closings from being told as one
            _checked(_libc.inotify_add_watch(self._events, os.fsencode(place), _OPENED | _CLOSED_UNWRITTEN))

    def close(self) -> None:
        """Watch no more."""
        os.close(self._events)

    @contextmanager
    def counted(self) -> Iterator[Reads]:
        """Count while the block lasts; the numbers are whole at its end."""
        self._read(Reads())  # what happened before
        found = Reads()
        with beside(partial(self._follow, found)):
            yield found

    def _follow(self, found: Reads, ended: threading.Event) -> None:
        while self._read(found) or not ended.is_set():
            pass

    def _read(self, found: Reads) -> bool:
        """Add what is new; whether anything was."""
        waiting = select.poll()
        waiting.register(self._events, select.POLLIN)
        if not waiting.poll(_QUIET_MS):
            return False
        content, position = os.read(self._events, 1 << 18), 0
        while position < len(content):
            _, mask, _, length = _EVENT.unpack_from(content, position)
            name = content[position + _EVENT.size : position + _EVENT.size + length].rstrip(b"\0")
            position += _EVENT.size + length
            if mask & _LOST:
                raise RuntimeError("the kernel lost events: fs.inotify.max_queued_events is too small")
            if mask & _CLOSED_UNWRITTEN and not name.endswith(b".crc"):  # which object stores have none of
                found.listings += bool(mask & _FOLDER) and not name  # told of the folder, and again of the one above
                found.files += not mask & _FOLDER
        return True


def _checked(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"inotify: {os.strerror(number)}")
    return result
