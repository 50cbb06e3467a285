"""Layouts of rows by which recorded filters skip files, and what each saves."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, permutations

from icewright.core.table import TableRef

_SORT_COLUMNS, _TOGETHER = 4, 3  # that filters use most: alone, and two at a time
_WORTH_IT = 0.9  # of the bytes that are read today: a smaller saving is within the error of a sample


@dataclass(frozen=True, slots=True)
class RowLayout:
    """Rows sorted by columns, or along a z-order curve over them."""

    columns: tuple[str, ...]
    zorder: bool = False

    def __str__(self) -> str:
        return f"{'z-order' if self.zorder else 'sort'} by {', '.join(self.columns)}"

    @property
    def strategy(self) -> str:
        """Return the value of `compact.strategy`."""
        return "zorder" if self.zorder else "sort"


@dataclass(frozen=True, slots=True)
class LayoutTrial:
    """The bytes of the files that one run of all filters reads; `layout` is None for the files as they are."""

    layout: RowLayout | None
    bytes_read: int


@dataclass(frozen=True, slots=True)
class LayoutReport:
    """The trials of all candidates on a sample of a table's rows."""

    ref: TableRef
    filters: int
    table_bytes: int
    sampled_rows: int
    trials: tuple[LayoutTrial, ...]  # the files as they are first

    @property
    def current(self) -> LayoutTrial:
        """Return what the filters read today."""
        return self.trials[0]

    @property
    def best(self) -> LayoutTrial:
        """Return the trial that reads least; that of the files as they are where no other is clearly better."""
        best = min(self.trials, key=lambda trial: trial.bytes_read)
        return best if best.bytes_read < _WORTH_IT * self.current.bytes_read else self.current

    @property
    def most_bytes(self) -> int:
        """Return what the filters read when they skip no file."""
        return max(1, self.filters * self.table_bytes)

    @property
    def settings(self) -> Mapping[str, str]:
        """Return the settings by which compaction writes the best layout; none for the files as they are."""
        layout = self.best.layout
        if layout is None:
            return {}
        return {"compact.strategy": layout.strategy, "compact.sort_order": ", ".join(layout.columns)}

    @property
    def runs_to_pay(self) -> int | None:
        """Return after how many runs of all filters the rewrite has saved the bytes that it reads and writes."""
        saved = self.current.bytes_read - self.best.bytes_read
        return math.ceil(2 * self.table_bytes / saved) if saved > 0 else None


def layout_candidates(columns: Sequence[str]) -> tuple[RowLayout, ...]:
    """Return layouts worth a trial for filters that use these columns, the most used one first."""
    together = columns[:_TOGETHER]
    return (
        *(RowLayout((name,)) for name in columns[:_SORT_COLUMNS]),
        *(RowLayout(pair) for pair in permutations(together, 2)),
        *(RowLayout(pair, zorder=True) for pair in combinations(together, 2)),
        *([RowLayout(tuple(together), zorder=True)] if len(together) == _TOGETHER else []),
    )
