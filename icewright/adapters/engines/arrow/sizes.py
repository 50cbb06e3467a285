"""How large the outputs of a rewrite are to be (Iceberg's SizeBasedFileRewritePlanner)."""

from __future__ import annotations

from dataclasses import dataclass

_SPLIT_OVERHEAD = 5 * 1024


@dataclass(frozen=True, slots=True)
class Sizes:
    """The planner's options, in bytes."""

    target: int
    least: int
    most: int

    def outputs(self, size: int) -> int:
        """Files of about the target; a rest that would be too small goes to the others, unless they grew too large."""
        if size < self.target:
            return 1
        whole, rest = divmod(size, self.target)
        small = rest <= self.least and size // whole < min(1.1 * self.target, self._largest)
        return whole if small or not rest else whole + 1

    def split(self, size: int) -> int:
        """Bytes that one task reads at most."""
        return min(max(self.target, size // self.outputs(size) + _SPLIT_OVERHEAD), self._largest)

    @property
    def _largest(self) -> int:
        """Bytes of a file as it is written: half way to where it would be rewritten again."""
        return self.target + (self.most - self.target) // 2
