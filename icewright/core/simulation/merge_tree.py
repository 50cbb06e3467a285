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
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from math import gcd
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


def least_merging(
    times: Sequence[float], size: float, *, end: float, call: float, calls_until: float, sums: int
) -> float:
    """Return the least GB-hours of equal files that writers add at these times, in order, and that are read to the end.

    Jobs cost a `call` until `calls_until`, and after it run with another partition's. `sums` bounds the work: with more
    files, classes of them are searched, and the bound is lower.
    """
    kept = OPEN * (end - times[0]) / BYTE if times else 0.0  # bytes that nobody rewrites
    together = gcd(*Counter(times).values())  # files of one commit
    count = together
    while _sums(len(times) // count, count // together, kept / max(1.0, count * size)) > sums:
        count += together * (1 + count // (8 * together))
    groups = [times[n : n + count : together] for n in range(0, len(times) - count + 1, count)]
    return _least_total(groups, count, _spans(groups, count, size, end, call, calls_until), end)


def _sums(groups: int, commits: int, longest: float) -> float:
    """Return how many sums a search takes: of groups of so many commits, whose rewritten spans are at most so long."""
    return groups * groups / 2 * (_PAIR + commits + min(longest, groups / 3))


def _spans(
    groups: Sequence[Sequence[float]], count: int, size: float, end: float, call: float, calls_until: float
) -> Sequence[Sequence[float]]:
    """Return by its first group and its length what each span costs until its last group has been merged with it."""
    byte_cost = max(BYTE * size * count, 1e-300)  # of a group
    spans: list[list[float]] = [[] for _ in groups]
    child = [0.0] * len(groups)  # from a group on: keep its span until now, and rewrite it and all later ones
    for last, newest in enumerate(groups):
        paid = call if newest[-1] < calls_until else 0.0
        longest = int(OPEN * (end - newest[0]) / byte_cost)
        inputs = count * FILE
        spans[last].append(inputs + paid + byte_cost)
        for first in range(last - 1, -1, -1):
            waited = OPEN * min(map(sub, newest, groups[first]))
            child[first] = waited + FILE + inputs
            inputs += count * (waited + FILE)
            merged = map(add, spans[first][:longest], child[first:last])
            inputs = min(inputs, min(merged, default=inputs))
            spans[first].append(inputs + paid + byte_cost * (last - first + 1))
    return spans


def _least_total(groups: Sequence[Sequence[float]], count: int, spans: Sequence[Sequence[float]], end: float) -> float:
    """Return the least cost of all groups, where files that no merge takes stay until the end."""
    staying = [OPEN * (end - group[-1]) for group in groups]
    least = [0.0]  # of the newest groups, from none up
    for first in range(len(groups) - 1, -1, -1):
        alone = count * staying[first] + least[-1]
        merged = map(add, map(add, spans[first], staying[first:]), reversed(least))
        least.append(min(alone, *merged))
    return least[-1]
