"""Layouts of rows by which recorded filters skip files, and what each saves."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from itertools import combinations, permutations
from typing import Any

from icewright.core.predicates import quoted
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
    def share(self) -> float:
        """Return which share of all bytes the filters read today."""
        return self.current.bytes_read / self.most_bytes

    @property
    def settings(self) -> Mapping[str, str]:
        """Return the settings by which compaction writes the best layout; none for the files as they are."""
        layout = self.best.layout
        if layout is None:
            return {}
        columns = (name if name.isidentifier() else quoted(name) for name in layout.columns)
        return {"compact.strategy": layout.strategy, "compact.sort_order": ", ".join(columns)}

    @property
    def runs_to_pay(self) -> int | None:
        """Return after how many runs of all filters the rewrite has saved the bytes that it reads and writes."""
        saved = self.current.bytes_read - self.best.bytes_read
        return math.ceil(2 * self.table_bytes / saved) if saved > 0 else None


class LayoutVerdict(StrEnum):
    """What is done about the layout of a table."""

    APPLY = "apply"
    KEEP = "keep"  # the files as they are, or the layout that was applied
    TAKE_BACK = "take_back"


@dataclass(frozen=True, slots=True)
class AppliedLayout:
    """The layout that was applied to a table and still is."""

    at: datetime
    settings: Mapping[str, Any]
    read_before: float  # share of all bytes that the filters read
    written: bool  # whether compaction has worked since


@dataclass(frozen=True, slots=True)
class LayoutDecision:
    """What is done about the layout of a table, and why."""

    verdict: LayoutVerdict
    reason: str


@dataclass(frozen=True, slots=True)
class LayoutRule:
    """When a layout pays, and for how long one is watched before it is judged."""

    runs_per_day: float  # of all filters; 0: nobody knows
    pay_within_days: float
    watch: timedelta

    def decide(
        self,
        report: LayoutReport,
        applied: AppliedLayout | None,
        tried: Collection[Mapping[str, Any]],
        chosen: str,
        now: datetime,
    ) -> LayoutDecision:
        """Apply what pays in time, and take back what the filters do not use.

        `tried`: all settings that were ever applied, none of which is applied again; `chosen`: what a person says of
        the order of rows, blank for nothing.
        """
        verdict, reason = LayoutVerdict.KEEP, f"the filters read {report.share:.0%} of all bytes"
        if applied is not None:
            reason += f", {applied.read_before:.0%} before {applied.at:%Y-%m-%d}"
        if chosen:
            verdict = LayoutVerdict.TAKE_BACK if applied is not None else verdict
            reason = f"{chosen}: that stays as it is"
        elif applied is not None and not applied.written:
            reason += "; no compaction has written the layout since"
        elif applied is not None and now < applied.at + self.watch:
            reason += f"; judged from {applied.at + self.watch:%Y-%m-%d} on"
        elif applied is not None and report.share > _WORTH_IT * applied.read_before:
            verdict, reason = LayoutVerdict.TAKE_BACK, f"the layout does not help: {reason}"
        elif report.runs_to_pay is None or report.settings == (applied and applied.settings):
            reason += "; no other layout is clearly better"
        elif report.settings in tried:
            reason += f"; {report.best.layout} was applied before and is not again: a person may set it"
        elif not self.runs_per_day:
            reason += "; nobody knows how often they run: push scan events, or give --runs-per-day"
        else:
            days = report.runs_to_pay / self.runs_per_day
            verdict = LayoutVerdict.APPLY if days <= self.pay_within_days else verdict
            then = f"{report.best.bytes_read / report.most_bytes:.0%} by {report.best.layout}"
            reason += f", {then}, which pays in {days:.1f} days; allowed are {self.pay_within_days:g}"
        return LayoutDecision(verdict, reason)


def layout_candidates(columns: Sequence[str]) -> tuple[RowLayout, ...]:
    """Return layouts worth a trial for filters that use these columns, the most used one first."""
    together = columns[:_TOGETHER]
    return (
        *(RowLayout((name,)) for name in columns[:_SORT_COLUMNS]),
        *(RowLayout(pair) for pair in permutations(together, 2)),
        *(RowLayout(pair, zorder=True) for pair in combinations(together, 2)),
        *([RowLayout(tuple(together), zorder=True)] if len(together) == _TOGETHER else []),
    )
