"""What work takes on two cores, as `benchmarks/` measures it with everything warm; plans reckon with `core.cost`.

So the simulated runs correct the plan's predictions as real runs do.
"""

from __future__ import annotations

from dataclasses import dataclass

from icewright.core.cost import SPARK_MEMORY_GB, gb_hours
from icewright.core.policy import MEGABYTE, Operation
from icewright.core.steps import Kernel


@dataclass(frozen=True, slots=True)
class Rewrite:
    """Seconds of a call, of each file that it reads, and how much it reads and writes in a second."""

    call: float
    file: float
    mb_per_second: float

    def seconds(self, files: int, size: int) -> float:
        """Of rewriting so many files of so many bytes together."""
        return self.call + self.file * files + size / MEGABYTE / self.mb_per_second


# measured with 10 tiny files, 200 files of 49 MiB, 100 of 258 MiB in zstd, 100 of 499 MiB in gzip:
# Spark 0.28, 4.4, 7.0 and 30.6 s; Arrow 0.23, 1.1, 2.8 and 4.9 s
REWRITES = {Kernel.SPARK: Rewrite(0.3, 0.01, 30), Kernel.ARROW: Rewrite(0.25, 0.003, 100)}

# Spark's procedures that find nothing to do: the four together take a second a table
IDLE_SECONDS = {
    Operation.COMPACT: 0.03,
    Operation.REWRITE_MANIFESTS: 0.02,
    Operation.EXPIRE_SNAPSHOTS: 0.4,
    Operation.REMOVE_ORPHANS: 0.55,
}
_LISTED_PER_SECOND = 20_000  # files that remove_orphan_files compares


def spark_manifests(manifests: int) -> float:
    """Seconds in which Spark merges manifests: 1,000 take 3 s."""
    return 0.5 + 0.0025 * manifests


def spark_expiry(snapshots: int) -> float:
    """Seconds in which Spark expires snapshots: 190 take 3 s, 1,950 take 14 s."""
    return 1 + 0.007 * snapshots


def spark_orphans(files: int) -> float:
    """Seconds in which Spark compares what is stored with what is reached: 100,000 files take 6 s."""
    return IDLE_SECONDS[Operation.REMOVE_ORPHANS] + files / _LISTED_PER_SECOND


def spark_gb_hours(seconds: float) -> float:
    """Memory of a Spark application over the time."""
    return gb_hours(seconds, SPARK_MEMORY_GB)
