"""Size classes of data files, by which merges are planned."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SizeClass:
    """Small data files of a partition whose sizes share their power of two."""

    files: int
    bytes: int
    largest: int  # bytes of the largest of them

    @property
    def limit(self) -> int:
        """Return the size in bytes at which the next class begins."""
        limit: int = 2 ** self.largest.bit_length()
        return limit
