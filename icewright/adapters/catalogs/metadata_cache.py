"""A cache of parsed metadata files."""

from __future__ import annotations

from collections.abc import Callable

from icewright.adapters.lru_cache import LRUCache
from icewright.adapters.metadata.parsing import parse
from icewright.core.table import TableMetadata, TableRef


class MetadataCache:
    """Cache the most recently used metadata files, parsed; a metadata file never changes under its name.

    The newest file stays whatever its size, older ones while all together have at most `max_bytes`.
    """

    def __init__(self, max_bytes: int = 64 << 20) -> None:
        self._cache = LRUCache[tuple[TableRef, str, object], TableMetadata](max_bytes, _length, newest=True)

    def cached(self, ref: TableRef, location: str, mark: object) -> TableMetadata | None:
        """Return the parsed file if `mark`, its length or checksum, is unchanged; else None."""
        return self._cache.get((ref, location, mark))

    def parsed(self, ref: TableRef, location: str, mark: object | None, read: Callable[[str], bytes]) -> TableMetadata:
        """Return the parsed file from the cache, or read by `read`. Raises what reading and parsing raise.

        Without a mark the file is read, and its length is the mark from then on.
        """
        if mark is not None and (cached := self.cached(ref, location, mark)):
            return cached
        metadata = parse(ref, location, read(location))
        self._cache.put((ref, location, metadata.metadata_length if mark is None else mark), metadata)
        return metadata


def _length(metadata: TableMetadata) -> int:
    return metadata.metadata_length
