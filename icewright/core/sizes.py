"""Sizes of data files: classes by which merges are planned, and histograms for people."""

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


@dataclass(frozen=True, slots=True)
class FileHistogram:
    """How many files there are of each size: bucket i counts those below `LIMITS_MB[i]`, the last all larger ones."""

    counts: tuple[int, ...]

    LIMITS_MB = (1, 8, 32, 64, 128, 256, 512, 1024)

    def __add__(self, other: FileHistogram) -> FileHistogram:
        return FileHistogram(tuple(a + b for a, b in zip(self.counts, other.counts, strict=True)))

    @classmethod
    def empty(cls) -> FileHistogram:
        """Return a histogram that counts no file."""
        return cls((0,) * (len(cls.LIMITS_MB) + 1))
