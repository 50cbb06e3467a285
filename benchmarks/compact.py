"""Compaction of one table against Spark's procedure: the same files, into as many.

Prints one JSON line. Both sides run in turn on the same table, which is put back after each run; Spark is warm on both.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from functools import partial

from benchmarks.kit.bench import Bench, bench, options
from benchmarks.kit.lake import Lake, Saved
from benchmarks.kit.live import live_files
from benchmarks.kit.procedures import MEBIBYTE, rewrite_data_files
from benchmarks.kit.report import Comparison, Run
from benchmarks.kit.tables import Seed

COMMITS = 10
PEER = "Spark CALL rewrite_data_files, warm"


@dataclass(frozen=True)
class Small:
    """One unpartitioned table of small files alone, all of which both sides rewrite."""

    files: int
    rows: int  # in each
    target: float  # MiB
    table: str = "small"

    def seed(self, lake: Lake, layout: str) -> Saved:
        """Write the table."""
        seed = Seed(lake, self.table, layout)
        seed.commits(COMMITS, self.rows, self.files // COMMITS)
        seed.publish()
        return lake.save(self.table)

    def compare(self, saved: Saved, sides: Bench) -> Comparison:
        """Both in turn: ours by the policy's rules, Spark's with the same target and least number of files."""
        before = live_files(saved)

        def left(_: Run) -> Hashable:
            after = live_files(saved)
            rows = sum(file.rows for file in after.values())
            assert rows == sum(file.rows for file in before.values())
            assert before.keys() - after.keys()
            return rows, frozenset(before.keys() - after.keys())

        knobs = {"compact.target_file_size_mb": str(self.target)}
        turns = sides.operation(saved, "compact", knobs, rewrite_data_files(saved.table, self.target), left)
        size = sum(file.size for file in before.values()) / MEBIBYTE
        shape = f"one table: {self.files} files of {size:.1f} MiB in all; target {self.target} MiB"
        return Comparison("compact", PEER, shape, turns)


def main() -> None:
    """Seed, measure, print."""
    chosen = options(__doc__, "40 files instead of 200").parse_args()
    small = Small(40, 1500, 1) if chosen.quick else Small(200, 5400, 16)
    with bench(chosen) as sides:
        with sides.starting(warmed=True):
            saved = small.seed(sides.lake, chosen.layout)
        sides.add(partial(small.compare, saved, sides))


if __name__ == "__main__":
    main()
