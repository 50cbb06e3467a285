"""Metadata files that were parsed, so that none is parsed twice."""

from __future__ import annotations

from collections.abc import Callable

from icewright.adapters.lru_cache import LRUCache
from icewright.adapters.metadata.parsing import parse
from icewright.core.table import TableMetadata, TableRef


class MetadataCache:
    """The metadata files read last, parsed: a file never changes under its name.

    The last one is kept whatever its size, older ones as long as all together have at most `max_bytes`.
    """

    def __init__(self, max_bytes: int = 64 << 20) -> None:
        self._kept = LRUCache[tuple[TableRef, str, object], TableMetadata](max_bytes, _length, newest=True)

    def known(self, ref: TableRef, location: str, mark: object) -> TableMetadata | None:
        """Return the file as it was parsed before, if `mark`, its length or a checksum of it, is the same."""
        return self._kept.get((ref, location, mark))

    def parsed(self, ref: TableRef, location: str, mark: object | None, read: Callable[[str], bytes]) -> TableMetadata:
        """Return the file, read by `read` unless it is known under `mark`. Raises what reading and parsing raise.

        Without a mark the file is read, and known by its length from then on.
        """
        if mark is not None and (found := self.known(ref, location, mark)):
            return found
        made = parse(ref, location, read(location))
        self._kept.put((ref, location, made.metadata_length if mark is None else mark), made)
        return made


def _length(metadata: TableMetadata) -> int:
    return metadata.metadata_length
