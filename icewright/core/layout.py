"""Layouts of rows by which recorded filters skip files, and what each saves."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from itertools import combinations, permutations
from operator import attrgetter
from typing import Any

from icewright.core.cost import OPEN_COST_MB
from icewright.core.policy import MEGABYTE
from icewright.core.predicates import quoted
from icewright.core.table import TableRef
from icewright.core.words import byte_size

_SORT_COLUMNS, _TOGETHER = 4, 3  # that filters use most: alone, and two at a time
_MEASURED = 3  # layouts on Spark: each is a rewrite of the sample
MEASURED_ON = "icewright_layouts"  # the branch of a sample on which Spark tries layouts
_SMALLER = (4, 16)  # times than the target, files are tried
_LEAST_OPENS = 2  # a file reads at least as long as it takes to open it so many times
_WORTH_IT = 0.9  # of the bytes that are read today: a smaller saving is within the error of a sample


@dataclass(frozen=True, slots=True)
class FileSizes:
    """The size of files that compaction aims at, and what opening one counts as."""

    target: float  # bytes
    steps: tuple[tuple[int, int], ...] = ()  # as `Thresholds` has them
    opening: float = OPEN_COST_MB * MEGABYTE  # bytes
    others: tuple[float, ...] = ()  # targets that are tried beside it

    def of(self, partition_bytes: float) -> float:
        """Return the target for a partition of so many bytes."""
        return next((target for least, target in reversed(self.steps) if partition_bytes >= least), self.target)

    @property
    def smaller(self) -> tuple[float, ...]:
        """Return smaller targets that are worth a trial; none where the target follows the partitions."""
        targets = () if self.steps else tuple(self.target / by for by in _SMALLER)
        return tuple(target for target in targets if target >= _LEAST_OPENS * self.opening)


@dataclass(frozen=True, slots=True)
class RowLayout:
    """Rows sorted by columns, or along a z-order curve over them, and what is more: smaller files, filters."""

    columns: tuple[str, ...]
    zorder: bool = False
    blooms: tuple[str, ...] = ()
    dictionaries: tuple[str, ...] = ()
    target: float | None = None  # bytes of a file; None: those at which compaction aims anyway

    def __str__(self) -> str:
        parts = [f"{'z-order' if self.zorder else 'sort'} by {', '.join(self.columns)}"]
        if self.target is not None:
            parts.append(f"files of {byte_size(self.target)}")
        parts += [
            f"{what} of {', '.join(names)}"
            for what, names in (("Bloom filters", self.blooms), ("dictionaries", self.dictionaries))
            if names
        ]
        return ", ".join(parts)

    @property
    def plain(self) -> RowLayout:
        """Return the same order without bloom filters and dictionaries, whose effect no prediction knows."""
        return replace(self, blooms=(), dictionaries=())

    @property
    def is_plain(self) -> bool:
        """Return whether the order of rows is all there is: the rest has to pay clearly."""
        return self == RowLayout(self.columns, self.zorder)

    @property
    def strategy(self) -> str:
        """Return the value of `compact.strategy`."""
        return "zorder" if self.zorder else "sort"

    @property
    def order(self) -> str:
        """Return the value of `compact.sort_order`."""
        return ", ".join(name if name.isidentifier() else quoted(name) for name in self.columns)


@dataclass(frozen=True, slots=True)
class Measurement:
    """Bytes that Spark read and seconds that it took for one run of all filters over a sample of the table's files."""

    bytes_read: int  # of the whole table, by the share of the sample's rows that came out of the scans
    seconds: float  # on the sample


@dataclass(frozen=True, slots=True)
class LayoutTrial:
    """The bytes of the files that one run of all filters reads; `layout` is None for the files as they are."""

    layout: RowLayout | None
    bytes_read: int
    measured: Measurement | None = None
    opening: float = 0.0  # what opening files adds to each byte

    @property
    def cost(self) -> float:
        """Return the bytes that are read with what opening the files counts as."""
        return self.bytes_read * (1 + self.opening)


@dataclass(frozen=True, slots=True)
class LayoutReport:
    """The trials of all candidates on a sample of a table's rows."""

    ref: TableRef
    filters: int
    table_bytes: int
    sampled_rows: int
    trials: tuple[LayoutTrial, ...]  # the files as they are first
    measuring: str = ""  # what was measured, at what cost; blank for nothing
    target: float = 512 * MEGABYTE  # bytes of files that layouts without a size of their own have

    @property
    def measured(self) -> LayoutReport | None:
        """Return the trials that were measured, with the bytes that Spark read; None where none was."""
        trials = tuple(replace(t, bytes_read=t.measured.bytes_read) for t in self.trials if t.measured is not None)
        return replace(self, trials=trials) if trials else None

    @property
    def promising(self) -> tuple[RowLayout, ...]:
        """Return the layouts worth measuring: those by which the filters should read clearly less, the best first.

        Smaller files come last, where they promise to be clearly better than the best order without them.
        """
        clear = [t for t in self.trials if t.layout is not None and t.cost < _WORTH_IT * self.current.cost]
        orders = sorted((t for t in clear if t.layout and t.layout.target is None), key=attrgetter("cost"))[:_MEASURED]
        best = min(clear, key=_cost_to_beat, default=None)
        chosen = orders if best is None or best in orders else [*orders, best]
        return tuple(trial.layout for trial in chosen if trial.layout is not None)

    @property
    def current(self) -> LayoutTrial:
        """Return what the filters read today."""
        return self.trials[0]

    @property
    def best(self) -> LayoutTrial:
        """Return the trial that reads least; that of the files as they are where no other is clearly better."""
        best = min(self.trials, key=_cost_to_beat)
        return best if best.cost < _WORTH_IT * self.current.cost else self.current

    @property
    def most_bytes(self) -> int:
        """Return what the filters read when they skip no file."""
        return max(1, self.filters * self.table_bytes)

    @property
    def share(self) -> float:
        """Return which share of all bytes the filters read today."""
        return self.current.bytes_read / self.most_bytes

    @property
    def settings(self) -> Mapping[str, str | float]:
        """Return the settings by which compaction writes the best layout; none for the files as they are."""
        layout = self.best.layout
        if layout is None:
            return {}
        settings: dict[str, str | float] = {"compact.strategy": layout.strategy, "compact.sort_order": layout.order}
        if layout.blooms:
            settings["compact.bloom_filters"] = ", ".join(layout.blooms)
        if layout.dictionaries:
            settings["compact.dictionaries"] = ", ".join(layout.dictionaries)
        if layout.target is not None:
            settings["compact.target_file_size_mb"] = layout.target / MEGABYTE
        return settings

    @property
    def runs_to_pay(self) -> int | None:
        """Return after how many runs of all filters the rewrite has saved the bytes that it reads and writes."""
        saved = self.current.cost - self.best.cost
        return math.ceil(2 * self.table_bytes * (1 + self.current.opening) / saved) if saved > 0 else None

    @property
    def document(self) -> dict[str, Any]:
        """Return the report as JSON; settings and runs are by what was measured, where something was."""
        best = self.measured or self
        return {
            "table": str(self.ref),
            "filters": self.filters,
            "table_bytes": self.table_bytes,
            "sampled_rows": self.sampled_rows,
            "trials": [
                {
                    "layout": str(trial.layout) if trial.layout else None,
                    "bytes_read": trial.bytes_read,
                    "measured": asdict(trial.measured) if trial.measured else None,
                }
                for trial in self.trials
            ],
            "measuring": self.measuring,
            "settings": best.settings,
            "runs_to_pay": best.runs_to_pay,
        }


def _cost_to_beat(trial: LayoutTrial) -> float:
    """Return what trials compare: all but the order of rows takes time, room or requests, and has to pay clearly."""
    return trial.cost if trial.layout is None or trial.layout.is_plain else trial.cost / _WORTH_IT


class LayoutVerdict(StrEnum):
    """The possible decisions about the layout of a table."""

    APPLY = "apply"
    KEEP = "keep"  # the files as they are, or the layout that was applied
    TAKE_BACK = "take_back"
    MEASURE = "measure"  # of a dry run: Spark tries the layout first, and what it reads decides


@dataclass(frozen=True, slots=True)
class AppliedLayout:
    """The layout that was applied to a table and still is."""

    at: datetime
    settings: Mapping[str, Any]
    read_before: float  # share of all bytes that the filters read
    written: bool  # whether compaction has worked since
    unknown: tuple[str, ...] = ()  # columns of its order that the table has no more


@dataclass(frozen=True, slots=True)
class LayoutDecision:
    """The decision about the layout of a table, with its reason."""

    verdict: LayoutVerdict
    reason: str


@dataclass(frozen=True, slots=True)
class LayoutRule:
    """The conditions under which a layout pays, and how long one is watched before it is judged."""

    runs_per_day: float  # of all filters; 0: unknown
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
        """Apply what pays in time, by what was measured where something was, and take back what filters do not use.

        `tried`: all settings that were ever applied, none of which is applied again; `chosen`: what a person says of
        the order of rows, blank for nothing.
        """
        evidence = report.measured or report
        verdict, reason = LayoutVerdict.KEEP, f"the filters read {report.share:.0%} of all bytes"
        if applied is not None:
            reason += f", {applied.read_before:.0%} before {applied.at:%Y-%m-%d}"
        if chosen:
            verdict = LayoutVerdict.TAKE_BACK if applied is not None else verdict
            reason = f"{chosen}: that stays as it is"
        elif applied is not None and applied.unknown:
            verdict, reason = LayoutVerdict.TAKE_BACK, f"the table has no column {applied.unknown[0]} any more"
        elif applied is not None and not applied.written:
            reason += "; no compaction has written the layout since"
        elif applied is not None and now < applied.at + self.watch:
            reason += f"; judged from {applied.at + self.watch:%Y-%m-%d} on"
        elif applied is not None and report.share > _WORTH_IT * applied.read_before:
            verdict, reason = LayoutVerdict.TAKE_BACK, f"the layout does not help: {reason}"
        elif evidence.runs_to_pay is None or evidence.settings == (applied and applied.settings):
            reason += "; no other layout is clearly better" + (", as Spark measured" if evidence is not report else "")
        elif evidence.settings in tried:
            reason += f"; {evidence.best.layout} was applied before and is not again: a person may set it"
        elif not self.runs_per_day:
            reason += "; nobody knows how often they run: push scan events, or give --runs-per-day"
        else:
            days = evidence.runs_to_pay / self.runs_per_day
            verdict = LayoutVerdict.APPLY if days <= self.pay_within_days else verdict
            reason += "" if evidence is report else f"; Spark read {evidence.share:.0%} of a sample"
            then = f"{evidence.best.bytes_read / evidence.most_bytes:.0%} by {evidence.best.layout}"
            reason += f", {then}, which pays in {days:.1f} days; allowed are {self.pay_within_days:g}"
        return LayoutDecision(verdict, reason)


def layout_candidates(columns: Sequence[str], sizes: Sequence[float] = ()) -> tuple[RowLayout, ...]:
    """Return layouts worth a trial for filters that use these columns, the most used one first.

    Each order is tried in files of the usual size, then in those of other sizes.
    """
    orders = _orders(columns)
    return (*orders, *(replace(order, target=size) for size in sizes for order in orders))


def _orders(columns: Sequence[str]) -> tuple[RowLayout, ...]:
    together = columns[:_TOGETHER]
    return (
        *(RowLayout((name,)) for name in columns[:_SORT_COLUMNS]),
        *(RowLayout(pair) for pair in permutations(together, 2)),
        *(RowLayout(pair, zorder=True) for pair in combinations(together, 2)),
        *([RowLayout(tuple(together), zorder=True)] if len(together) == _TOGETHER else []),
    )
