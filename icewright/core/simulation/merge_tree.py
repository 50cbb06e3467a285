"""The least that merging equal files of one partition costs, over all schedules: what the merges' own outputs cost too.

Three steps lead from any schedule to the trees that are searched:

- *One output.* Let each job leave one file, however large, and no less is open than before. A file that a job spreads
  over several outputs can go whole to the one that is rewritten least often, as rewriting costs by the byte.
- *The newest files.* Of equal files the cheapest schedule merges the newest. Take the last job that merges a file A and
  leaves a newer file B. If a job made B, it could have taken A along, which is then open for less time. If a writer
  made B, then A is no smaller; what pays for rewriting A until B is merged pays for B too, and what does not pay for B
  does not pay for A. Either way another schedule costs less. (O'Neil et al., "The log-structured merge-tree", 1996,
  merge the newest by design; Mathieu et al., "Competitive data-structure dynamization", 2021, weigh components that are
  open against what building them costs.)
- *Classes.* Every `m`-th file alone, with the `m`-th part of a call and of each merged file's opening, is such a
  schedule too, and the classes add up to the whole.

So each merge takes all files since a moment, merges nest, and the best nesting is found from the shorter spans to the
longer. A span that costs more to rewrite than to keep open until the end is not rewritten.

Two more bounds hold for tables of many files, and the greatest counts:

- *Full files.* No output is larger than the largest that a job writes. So a share of each opening may be charged by the
  file, and the rest by its bytes over those of the largest: together that is at most one. What is charged by bytes is
  the same for all schedules, but for files that no job has taken: they cost more by the file.
- *Windows.* Files of one time alone cost no more than they do among all, but for one merged file that may hold some of
  them and older ones: its opening is counted once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import groupby
from math import gcd, inf
from operator import add, sub

from icewright.core.cost import REWRITES, spark_gb_hours
from icewright.core.effective import Knobs
from icewright.core.merging import opening_gb_hours
from icewright.core.policy import MEGABYTE
from icewright.core.rewriting import PRIOR_READS

_SECOND = spark_gb_hours(1)
CALL = _SECOND * min(speed.call for speed in REWRITES.values())
FILE = _SECOND * min(speed.file for speed in REWRITES.values())
OPEN = PRIOR_READS / 86_400 * opening_gb_hours(Knobs())  # of a file, for each second
BYTE = _SECOND / MEGABYTE / max(speed.mb_per_second for speed in REWRITES.values())
_PAIR = 20  # sums that take as long as what is done once for each span
_BOUNDS = ((1.0, 1), (0.25, 1), (1.0, 8))  # share of openings charged by the file after the last write, and windows


@dataclass(frozen=True, slots=True)
class Files:
    """Equal files that writers add at these times, in order, and that are read to the end; `largest` is of outputs.

    Jobs cost a `call` until `calls_until`, and after it run with another partition's.
    """

    times: Sequence[float]
    size: float
    largest: float
    end: float
    call: float
    calls_until: float


@dataclass(frozen=True, slots=True)
class _Rates:
    """What open files cost beside what is charged by their bytes, as shares of `OPEN`.

    A merged file costs less from the last write `since` on.
    """

    full: float
    later: float
    since: float

    def passed(self, at: float) -> float:
        """Return what a merged file that is open until this time costs, in seconds of `OPEN`."""
        return self.full * min(at, self.since) + self.later * max(0.0, at - self.since)


def least_merging(files: Files, sums: int) -> float:
    """Return the least GB-hours of files of one partition.

    `sums` bounds the work: with more files, classes of them are searched, and the bound is lower.
    """
    if not files.times:
        return 0.0
    return max(_least(files, later, windows, sums // len(_BOUNDS)) for later, windows in _BOUNDS)


def _least(files: Files, later: float, windows: int, sums: int) -> float:
    """Return the bound by a share of later openings that is charged by the file, and by so many windows."""
    of_largest = min(1.0, files.size / files.largest)
    full = 1 - (1 - later) * of_largest
    rates = _Rates(full, later, files.times[-1])
    end = rates.passed(files.end)
    least = OPEN * of_largest * sum(files.end - at - (end - rates.passed(at)) for at in files.times)
    found = [*_windows(files, windows)]
    share = sums // distinct(window.times for window in found)
    for window in found:
        first = window.times[0] == files.times[0]
        least += _least_of_window(window, rates, share, first=first)
        least -= 0.0 if first else OPEN * (end - rates.passed(window.times[0]))
    return least


def distinct(histories: Iterable[Sequence[float]]) -> int:
    """Return how many of the histories differ by more than their beginning: one search serves the others."""
    return len({tuple(at - times[0] for at in times) for times in histories})


def _windows(files: Files, number: int) -> Iterator[Files]:
    width = max(1e-3, (files.times[-1] - files.times[0]) / number)
    found = [[*group] for _, group in groupby(files.times, lambda at: min(number - 1, (at - files.times[0]) // width))]
    starts = [times[0] for times in found[1:]]
    for times, following in zip(found, [*starts, inf], strict=True):
        yield replace(files, times=times, calls_until=min(files.calls_until, following))


def _least_of_window(files: Files, rates: _Rates, sums: int, *, first: bool) -> float:
    """Return the least of the files of a window alone, without what is charged by bytes."""
    times, size = files.times, files.size
    longest = OPEN * files.end / BYTE  # bytes that nobody rewrites
    together = gcd(*Counter(times).values())  # files of one commit
    count = together
    while _sums(len(times) // count, count // together, longest / max(1.0, count * size)) > sums:
        count += together * (1 + count // (8 * together))
    groups = [times[n : n + count : together] for n in range(0, len(times) - count + 1, count)]
    if not groups:
        return 0.0
    waits = tuple(tuple(at - times[0] for at in group) for group in groups)
    ends = [*(group[-1] for group in groups[1:]), inf]  # before which a job takes no newer group
    paid = sum(at <= files.calls_until for at in ends)
    search = _Search(waits, count, size, longest, files.call, paid, rates.full, first)
    return _least_total(groups, count, _spans(search), files.end, rates)


def _sums(groups: int, commits: int, longest: float) -> float:
    """Return how many sums a search takes: of groups of so many commits, whose rewritten spans are at most so long."""
    return groups * groups / 2 * (_PAIR + commits + min(longest, groups / 3))


@dataclass(frozen=True, slots=True)
class _Search:
    """The search of the trees of groups of files; equal ones of other times have the same answer."""

    waits: tuple[tuple[float, ...], ...]  # seconds from the first file to each
    count: int  # files of a group
    size: float
    longest: float  # bytes that nobody rewrites
    call: float
    paid: int  # groups whose jobs are paid
    rate: float  # of open files
    oldest: bool  # whether no merged file holds older files too


@lru_cache(maxsize=16)
def _spans(search: _Search) -> Sequence[Sequence[float]]:
    """Return by its first group and its length what each span costs until its last group has been merged with it."""
    groups, count = search.waits, search.count
    byte_cost = max(BYTE * search.size * count, 1e-300)  # of a group
    longest = int(search.longest / max(1e-300, search.size * count))
    spans: list[list[float]] = [[] for _ in groups]
    child = [0.0] * len(groups)  # from a group on: keep its span until now, and rewrite it and all later ones
    for last, newest in enumerate(groups):
        paid = search.call if last < search.paid else 0.0
        inputs = count * FILE
        spans[last].append(inputs + paid + byte_cost)
        for first in range(last - 1, -1, -1):
            waited = search.rate * OPEN * min(map(sub, newest, groups[first]))
            child[first] = waited + inputs
            inputs += count * (waited + FILE)
            merged = map(add, spans[first][:longest], child[first:last])
            read = FILE if first or search.oldest else 0.0  # a file that holds older ones too is read once
            inputs = min(inputs, read + min(merged, default=inf))
            spans[first].append(inputs + paid + byte_cost * (last - first + 1))
    return spans


def _least_total(
    groups: Sequence[Sequence[float]], count: int, spans: Sequence[Sequence[float]], end: float, rates: _Rates
) -> float:
    """Return the least cost of all groups, where files that no merge takes stay until the end."""
    staying = [OPEN * (rates.passed(end) - rates.passed(group[-1])) for group in groups]
    least = [0.0]  # of the newest groups, from none up
    for first in range(len(groups) - 1, -1, -1):
        alone = count * OPEN * rates.full * (end - groups[first][-1]) + least[-1]
        merged = map(add, map(add, spans[first], staying[first:]), reversed(least))
        least.append(min(alone, *merged))
    return least[-1]
