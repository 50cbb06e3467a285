"""Number and size of the output files of a rewrite (Iceberg's SizeBasedFileRewritePlanner)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

_File = TypeVar("_File")

_SPLIT_OVERHEAD = 5 * 1024


@dataclass(frozen=True, slots=True)
class TargetSizes:
    """The planner's file size options, in bytes."""

    target: int
    min: int
    max: int

    def outputs(self, size: int) -> int:
        """Return how many files hold `size` bytes; a small remainder joins the others unless they grow too large."""
        if size < self.target:
            return 1
        count, remainder = divmod(size, self.target)
        absorbed = remainder <= self.min and size // count < min(1.1 * self.target, self._largest)
        return count if absorbed or not remainder else count + 1

    def split(self, size: int) -> int:
        """Return the maximum bytes that one task reads."""
        return min(max(self.target, size // self.outputs(size) + _SPLIT_OVERHEAD), self._largest)

    @property
    def _largest(self) -> int:
        """Return the maximum bytes of an output: half way between target and maximum file size."""
        return self.target + (self.max - self.target) // 2


def groups_within(files: Sequence[_File], most_bytes: int, size_of: Callable[[_File], int]) -> Iterator[list[_File]]:
    """Yield groups of neighbours of at most `most_bytes` each; larger files are alone."""
    group, size = list[_File](), 0
    for file in files:
        if group and size + size_of(file) > most_bytes:
            yield group
            group, size = [], 0
        group.append(file)
        size += size_of(file)
    yield group
