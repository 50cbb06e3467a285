"""Metadata files that were parsed, so that none is parsed twice."""

from __future__ import annotations

import threading
from collections.abc import Callable

from icewright.adapters.catalogs.metadata import parse
from icewright.core.table import TableMetadata, TableRef


class Memo:
    """The metadata files read last, parsed: a file never changes under its name.

    The last one is kept whatever its size, older ones as long as all together have at most `max_bytes`.
    """

    def __init__(self, max_bytes: int = 64 << 20) -> None:
        self._max_bytes = max_bytes
        self._kept: dict[tuple[TableRef, str, object], TableMetadata] = {}
        self._lock = threading.Lock()

    def known(self, ref: TableRef, location: str, mark: object) -> TableMetadata | None:
        """The file as it was parsed before, if `mark`, its length or a checksum of it, is the same."""
        with self._lock:
            if found := self._kept.pop((ref, location, mark), None):
                self._kept[ref, location, mark] = found  # now the youngest
            return found

    def parsed(self, ref: TableRef, location: str, mark: object | None, read: Callable[[str], bytes]) -> TableMetadata:
        """The file, read by `read` unless it is known under `mark`. Raises what reading and parsing raise.

        Without a mark the file is read, and known by its length from then on.
        """
        if mark is not None and (found := self.known(ref, location, mark)):
            return found
        made = parse(ref, location, read(location))
        with self._lock:
            self._kept[ref, location, made.metadata_length if mark is None else mark] = made
            while len(self._kept) > 1 and sum(m.metadata_length for m in self._kept.values()) > self._max_bytes:
                del self._kept[next(iter(self._kept))]
        return made
