"""Manifest rewriting in-service against Spark's procedure: many small manifests, the same live entries after it.

Prints one JSON line. Both sides run in turn on the same table, which is put back after each run.
"""

from __future__ import annotations

from collections.abc import Hashable
from functools import partial

from benchmarks.kit.bench import Bench, bench, options
from benchmarks.kit.lake import Saved
from benchmarks.kit.live import live_entries, manifests
from benchmarks.kit.report import Comparison, Run
from benchmarks.kit.scattered import Scattered


def compare(shape: Scattered, saved: Saved, sides: Bench) -> Comparison:
    """Both in turn."""

    def left(_: Run) -> Hashable:
        counts.append(len(manifests(saved)))
        return live_entries(saved)

    counts: list[int] = []
    statement = f"CALL lake.system.rewrite_manifests(table => 'bench.{saved.table}')"
    turns = sides.operation(saved, "rewrite_manifests", {}, statement, left, expected=live_entries(saved))
    more = {"manifests_after": {"ours": counts[-2], "peer": counts[-1]}}
    return Comparison("rewrite_manifests", "Spark CALL rewrite_manifests, warm", str(shape), turns, more)


def main() -> None:
    """Seed, measure, print."""
    chosen = options(__doc__, "300 manifests instead of 1,000").parse_args()
    shape = Scattered("scattered", 300 if chosen.quick else 1000)
    with bench(chosen) as sides:
        sides.add(partial(compare, shape, shape.seed(sides.lake, chosen.layout), sides))


if __name__ == "__main__":
    main()
