"""Compaction against Spark's procedure: the same files of one table, and a table of which little needs it.

Prints one JSON line. Both sides run in turn on the same table, which is put back after each run; Spark is warm on both.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import partial

from benchmarks.kit.bench import Bench, bench, options
from benchmarks.kit.lake import Lake, Saved
from benchmarks.kit.live import live_files
from benchmarks.kit.procedures import MEBIBYTE, rewrite_data_files
from benchmarks.kit.report import Comparison, Run, Turns
from benchmarks.kit.tables import Seed

COMMITS = 10
PEER = "Spark CALL rewrite_data_files, warm"


@dataclass(frozen=True)
class Small:
    """One unpartitioned table of small files alone: both sides rewrite all of them, so ours can only be slower."""

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
        """Both in turn."""
        found = Rewritten(saved, lambda _: True)
        turns = found.turns(sides, self.target)
        shape = f"one table: {self.files} files of {found.size() / MEBIBYTE:.1f} MiB in all; target {self.target} MiB"
        return Comparison("compact", PEER, shape, turns)


@dataclass(frozen=True)
class Uneven:
    """A partitioned table: few partitions have many small files, some of those are being written, the rest is well.

    A healthy partition has as many files as make Iceberg's planner rewrite it, a little below the size that they aim
    at: the whole of it would become one file less.
    """

    partitions: int
    bad: int
    hot: int
    rows: int  # of a healthy file; a small file has a tenth of them
    target: float
    table: str = "uneven"
    healthy_files: int = 5
    small_files: int = 20

    def seed(self, lake: Lake, layout: str) -> Saved:
        """Write the table."""
        seed = Seed(lake, self.table, layout, partitioned=True)
        cold = range(self.bad, self.partitions - self.hot)
        for _ in range(self.healthy_files):
            seed.commit([seed.written(self.rows, part) for part in cold])
        self._small(seed, range(self.bad))
        seed.until_now(COMMITS)
        self._small(seed, range(self.partitions - self.hot, self.partitions))
        seed.publish()
        return lake.save(self.table)

    def _small(self, seed: Seed, parts: range) -> None:
        for _ in range(COMMITS):
            of_each = range(self.small_files // COMMITS)
            seed.commit([seed.written(self.rows // 10, part) for part in parts for _ in of_each])

    def compare(self, saved: Saved, sides: Bench) -> Comparison:
        """Both in turn: what became of the bad partitions is the same, what else was rewritten is counted."""
        found = Rewritten(saved, lambda part: part is not None and part < self.bad)
        turns = found.turns(sides, self.target)
        ours, peer = found.sizes[-2:]
        shape = (
            f"hot and bad: {self.partitions} partitions, {self.bad} with {self.small_files} small files each, "
            f"{self.hot} more of the kind being written, the others with {self.healthy_files} files of two thirds of "
            f"the target; {found.size() / MEBIBYTE:.1f} MiB in all; target {self.target} MiB"
        )
        more = {"bytes_ratio": round(peer / ours, 2), "bytes_rewritten": {"ours": ours, "peer": peer}}
        return Comparison("compact", f"{PEER}, of the whole table", shape, turns, more)


class Rewritten:
    """What runs take out of a table, in the partitions that count."""

    def __init__(self, saved: Saved, counts: Callable[[int | None], bool]) -> None:
        self.saved, self.counts = saved, counts
        self.before = live_files(saved)
        self.sizes: list[int] = []  # bytes taken out by each run, whatever the partition

    def size(self) -> int:
        """Bytes of the table before."""
        return sum(file.size for file in self.before.values())

    def left(self, _: Run) -> Hashable:
        """The rows of the table, and the files taken out of the partitions that count."""
        after = live_files(self.saved)
        removed = {path: file for path, file in self.before.items() if path not in after}
        self.sizes.append(sum(file.size for file in removed.values()))
        rows = sum(file.rows for file in after.values())
        assert rows == sum(file.rows for file in self.before.values())
        assert removed
        taken = frozenset(path for path, file in removed.items() if self.counts(file.part))
        return rows, taken

    def turns(self, sides: Bench, target: float) -> Turns:
        """Ours by the policy's rules against the procedure of the same target and least number of files."""
        knobs = {"compact.target_file_size_mb": str(target)}
        statement = rewrite_data_files(self.saved.table, target)
        return sides.operation(self.saved, "compact", knobs, statement, self.left)


def main() -> None:
    """Seed, measure, print."""
    chosen = options(__doc__, "40 files instead of 200, 12 partitions instead of 200").parse_args()
    small = Small(40, 1500, 1) if chosen.quick else Small(200, 5400, 16)
    uneven = Uneven(12, 2, 1, 3800, 0.25) if chosen.quick else Uneven(200, 10, 5, 3800, 0.25)
    with bench(chosen) as sides:
        with sides.starting(warmed=True):
            first = small.seed(sides.lake, chosen.layout)
        sides.add(partial(small.compare, first, sides))
        sides.add(lambda: uneven.compare(uneven.seed(sides.lake, chosen.layout), sides))


if __name__ == "__main__":
    main()
