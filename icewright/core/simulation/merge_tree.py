"""A lower bound of the cost of merging equal files of one partition, over all schedules of merges.

The bound includes rewriting and opening the outputs of earlier merges.

Three steps lead from any schedule to the trees that are searched:

- *One output.* Letting each job write one file, however large, never adds an open file. A file that a job spreads
  over several outputs can go whole to the one that is rewritten least often, as rewriting costs by the byte.
- *The newest files.* Of equal files the cheapest schedule merges the newest. Take the last job that merges a file A and
  leaves a newer file B. If a job made B, it could have taken A along, which is then open for less time. If a writer
  made B, then A is no smaller; where it pays to rewrite A before B is merged, it pays for B too, and where it does not
  pay for B, it does not pay for A. Either way another schedule costs less. (O'Neil et al., "The log-structured
  merge-tree", 1996, merge the newest by design; Mathieu et al., "Competitive data-structure dynamization", 2021, weigh
  components that are open against what building them costs.)
- *Classes.* Every `m`-th file alone, with the `m`-th part of a call and of each merged file's opening, is such a
  schedule too, and the classes add up to the whole.

So each merge takes all files since a moment, merges nest, and the best nesting is found from the shorter spans to the
longer. A span that costs more to rewrite than to keep open until the end is not rewritten.

Two more bounds hold for tables of many files, and the greatest counts:

- *Full files.* No output is larger than the largest that a job writes. So a share of each opening may be charged by the
  file, and the rest by its bytes over those of the largest: of_commit that is at most one. What is charged by bytes is
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
_PAIR = 20  # steps that take as long as the work that is done once for each span
_BOUNDS = ((1.0, 1), (0.25, 1), (1.0, 8))  # arguments `later` and `windows` of each bound; the greatest counts


@dataclass(frozen=True, slots=True)
class Files:
    """Files of equal size that writers add at `times`, in order, and that are read until `end`.

    Until `calls_until` each job pays a `call` of its own; later it shares the one of another partition.
    """

    times: Sequence[float]
    size: float
    largest: float  # bytes of the largest output of a job
    end: float
    call: float
    calls_until: float


@dataclass(frozen=True, slots=True)
class _Rates:
    """The shares of `OPEN` that are charged by the file, not by its bytes: `full`, and `later` after the last write."""

    full: float
    later: float
    since: float  # the last write

    def cost_until(self, at: float) -> float:
        """Return the cost of a merged file that is open from the start until this time, in seconds of `OPEN`."""
        return self.full * min(at, self.since) + self.later * max(0.0, at - self.since)


def least_merging(files: Files, max_steps: int) -> float:
    """Return the least GB-hours of the files of one partition.

    A search that would take more than `max_steps` looks at groups of files instead, which makes the bound lower.
    """
    if not files.times:
        return 0.0
    return max(_least(files, later, windows, max_steps // len(_BOUNDS)) for later, windows in _BOUNDS)


def _least(files: Files, later: float, windows: int, max_steps: int) -> float:
    """Return the bound of the files in `windows` parts, where `later` is the share of `_Rates` after the last write."""
    of_largest = min(1.0, files.size / files.largest)
    full = 1 - (1 - later) * of_largest
    rates = _Rates(full, later, files.times[-1])
    end = rates.cost_until(files.end)
    least = OPEN * of_largest * sum(files.end - at - (end - rates.cost_until(at)) for at in files.times)
    parts = [*_windows(files, windows)]
    share = max_steps // distinct(window.times for window in parts)
    for window in parts:
        first = window.times[0] == files.times[0]
        least += _least_of_window(window, rates, share, first=first)
        least -= 0.0 if first else OPEN * (end - rates.cost_until(window.times[0]))
    return least


def distinct(histories: Iterable[Sequence[float]]) -> int:
    """Return how many histories there are that differ by more than their beginning: those need a search each."""
    return len({tuple(at - times[0] for at in times) for times in histories})


def _windows(files: Files, number: int) -> Iterator[Files]:
    width = max(1e-3, (files.times[-1] - files.times[0]) / number)
    parts = [[*group] for _, group in groupby(files.times, lambda at: min(number - 1, (at - files.times[0]) // width))]
    starts = [times[0] for times in parts[1:]]
    for times, following in zip(parts, [*starts, inf], strict=True):
        yield replace(files, times=times, calls_until=min(files.calls_until, following))


def _least_of_window(files: Files, rates: _Rates, max_steps: int, *, first: bool) -> float:
    """Return the least cost of the files of one window, without what is charged by bytes."""
    times, size = files.times, files.size
    max_bytes = OPEN * files.end / BYTE  # rewriting more never pays
    of_commit = gcd(*Counter(times).values())  # files of one commit
    count = of_commit  # files of a group
    while _search_steps(len(times) // count, count // of_commit, max_bytes / max(1.0, count * size)) > max_steps:
        count += of_commit * (1 + count // (8 * of_commit))
    groups = [times[n : n + count : of_commit] for n in range(0, len(times) - count + 1, count)]
    if not groups:
        return 0.0
    waits = tuple(tuple(at - times[0] for at in group) for group in groups)
    ends = [*(group[-1] for group in groups[1:]), inf]  # before which a job takes no newer group
    paid = sum(at <= files.calls_until for at in ends)
    search = _Search(waits, count, size, max_bytes, files.call, paid, rates.full, first)
    return _least_total(groups, count, _spans(search), files.end, rates)


def _search_steps(groups: int, commits: int, longest: float) -> float:
    """Return how many steps a search takes; `longest` is the greatest number of groups of a span that is rewritten."""
    return groups * groups / 2 * (_PAIR + commits + min(longest, groups / 3))


@dataclass(frozen=True, slots=True)
class _Search:
    """The arguments of a search of merge trees, with times relative to the first, so that results can be cached."""

    waits: tuple[tuple[float, ...], ...]  # seconds from the first file to each
    count: int  # files of a group
    size: float
    max_bytes: float  # rewriting more never pays
    call: float
    paid: int  # groups whose jobs pay a call
    rate: float  # share of `OPEN` of an open file
    oldest: bool  # whether no merged file holds older files too


@lru_cache(maxsize=16)
def _spans(search: _Search) -> Sequence[Sequence[float]]:
    """Return the cost of merging each span of groups, by its first group and its length."""
    groups, count = search.waits, search.count
    byte_cost = max(BYTE * search.size * count, 1e-300)  # of a group
    longest = int(search.max_bytes / max(1e-300, search.size * count))
    spans: list[list[float]] = [[] for _ in groups]
    child = [0.0] * len(groups)  # by first group: the cost of its span so far, and of rewriting it with all later ones
    for last, newest in enumerate(groups):
        paid = search.call if last < search.paid else 0.0
        inputs = count * FILE
        spans[last].append(inputs + paid + byte_cost)
        for first in range(last - 1, -1, -1):
            waited = search.rate * OPEN * min(map(sub, newest, groups[first]))
            child[first] = waited + inputs
            inputs += count * (waited + FILE)
            merged = map(add, spans[first][:longest], child[first:last])
            read = FILE if first or search.oldest else 0.0  # once, for the file that holds older ones too
            inputs = min(inputs, read + min(merged, default=inf))
            spans[first].append(inputs + paid + byte_cost * (last - first + 1))
    return spans


def _least_total(
    groups: Sequence[Sequence[float]], count: int, spans: Sequence[Sequence[float]], end: float, rates: _Rates
) -> float:
    """Return the least cost of all groups, where files that no merge takes stay until the end."""
    staying = [OPEN * (rates.cost_until(end) - rates.cost_until(group[-1])) for group in groups]
    least = [0.0]  # of the newest groups, from none up
    for first in range(len(groups) - 1, -1, -1):
        alone = count * OPEN * rates.full * (end - groups[first][-1]) + least[-1]
        merged = map(add, map(add, spans[first], staying[first:]), reversed(least))
        least.append(min(alone, *merged))
    return least[-1]
