"""Runs of both sides in turn, and the one line that a benchmark prints of them."""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Run = Mapping[str, Any]  # as children answer: seconds s, processor seconds cpu, and mib
REPEATS = 3


@dataclass(frozen=True)
class Turns:
    """Timed runs of both sides, and whether each run left the same."""

    ours: Sequence[Run]
    peer: Sequence[Run]
    same: bool


def in_turn(
    ours: Callable[[], Run],
    peer: Callable[[], Run],
    left: Callable[[Run], Hashable],
    *,
    expected: Hashable | None = None,
    discard: int = 1,
    repeats: int = REPEATS,
) -> Turns:
    """Let each side run in turn, the first runs uncounted.

    `left` says what a run found or left, and undoes it: the same each time, and what is `expected` if anything is.
    """
    runs: tuple[list[Run], list[Run]] = ([], [])
    seen = {expected} - {None}
    for number in range(discard + repeats):
        for side, timed in zip((ours, peer), runs, strict=True):
            run = side()
            seen.add(left(run))
            if number >= discard:
                timed.append(run)
    return Turns(*runs, len(seen) == 1)


def multiplied(run: Run, by: float) -> Run:
    """A run on a sample, as if it had been on all."""
    return {**run, **{what: run[what] * by for what in ("s", "cpu")}}


@dataclass(frozen=True)
class Comparison:
    """Both sides on the same table: the seconds are medians, the peaks the highest."""

    benchmark: str
    peer: str
    shape: str
    turns: Turns
    more: Mapping[str, Any] = field(default_factory=dict)

    @property
    def ours_peak_mib(self) -> int:
        """The most memory that ours had."""
        return round(max(float(run["mib"]) for run in self.turns.ours))

    def document(self) -> dict[str, Any]:
        """As it is printed. A peer that takes no time is a limit of memory: then the ratio is one of memory."""
        ours, peer = self.turns.ours, self.turns.peer
        ours_s, peer_s = _median(ours, "s"), _median(peer, "s")
        ours_cpu, peer_cpu = _median(ours, "cpu"), _median(peer, "cpu")
        ours_peak, peer_peak = (max(run["mib"] for run in runs) for runs in (ours, peer))
        return {
            "benchmark": self.benchmark,
            "peer": self.peer,
            "ratio": round(peer_s / ours_s if peer_s and ours_s else peer_peak / ours_peak, 2),
            "ours_s": ours_s,
            "peer_s": peer_s,
            "ours_peak_mib": round(ours_peak),
            "peer_peak_mib": round(peer_peak),
            "same_result": self.turns.same,
            "shape": self.shape,
            "ours_cpu_s": ours_cpu,
            "peer_cpu_s": peer_cpu,
            "cpu_ratio": round(peer_cpu / ours_cpu, 2) if peer_cpu and ours_cpu else None,
            "ours_runs_s": [round(run["s"], 3) for run in ours],
            "peer_runs_s": [round(run["s"], 3) for run in peer if run["s"] is not None],
            **self.more,
        }


def _median(runs: Sequence[Run], what: str) -> float | None:
    values = [run[what] for run in runs if run[what] is not None]
    return round(statistics.median(values), 4) if values else None


def show(first: Comparison, *others: Comparison) -> None:
    """Print the line."""
    line = first.document() | {"others": [other.document() for other in others]}
    sys.stdout.write(json.dumps(line) + "\n")
