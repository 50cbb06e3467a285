"""Seconds of Spark's procedures on two cores, as `benchmarks/` measures them with everything warm."""

from __future__ import annotations

from icewright.core.policy import Operation

# Spark's procedures that find nothing to do: the four together take a second a table
IDLE_SECONDS = {
    Operation.COMPACT: 0.03,
    Operation.REWRITE_MANIFESTS: 0.02,
    Operation.EXPIRE_SNAPSHOTS: 0.4,
    Operation.REMOVE_ORPHANS: 0.55,
}
_LISTED_PER_SECOND = 20_000  # files that remove_orphan_files compares


def spark_manifests(manifests: int) -> float:
    """Return the seconds in which Spark merges manifests: 1,000 take 3 s."""
    return 0.5 + 0.0025 * manifests


def spark_expiry(snapshots: int) -> float:
    """Return the seconds in which Spark expires snapshots: 190 take 3 s, 1,950 take 14 s."""
    return 1 + 0.007 * snapshots


def spark_orphans(files: int) -> float:
    """Return the seconds in which Spark compares stored with reachable files: 100,000 files take 6 s."""
    return IDLE_SECONDS[Operation.REMOVE_ORPHANS] + files / _LISTED_PER_SECOND
