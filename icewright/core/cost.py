"""The benefit and the cost of a step, which make its score.

Benefit is in MB of scan work: opening a file counts as reading 4 MB (Spark's `spark.sql.files.openCostInBytes`).
Cost is in GB-hours: memory of the engine times the time it is busy (OpenHouse's AutoComp measures compute so).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median

from icewright.core.policy import MEGABYTE, Operation
from icewright.core.steps import Due, Factors, Kernel

OPEN_COST_MB = 4.0
READ_MB_PER_GB_HOUR = 90_000.0  # scan work: two GB of memory that read 50 MB in a second
SPARK_MEMORY_GB = 2.0
SPARK_MB_PER_SECOND = 10.0  # read and written by two local tasks
SPARK_JOB_SECONDS = 3.0
SERVICE_MEMORY_GB = 0.3
SERVICE_FILES_PER_SECOND = 2000.0
SERVICE_JOB_SECONDS = 0.1
DELETE_FILE_BYTES = 64 * 1024  # of a position delete file, which facts do not tell
LEAST_TABLES = 3  # whose runs tell what is typical
_MOST_OFF = 100.0  # times that a prediction may be corrected
_GONE: Mapping[Operation, Mapping[str, int]] = {  # by which metrics a run says how many files went
    Operation.COMPACT: {"files_merged": 1, "files_written": -1, "delete_files_removed": 1},
    Operation.REWRITE_DELETES: {"files_rewritten": 1, "files_written": -1},
    Operation.REWRITE_MANIFESTS: {"manifests_rewritten": 1, "manifests_written": -1},
    Operation.EXPIRE_SNAPSHOTS: {"files_deleted": 1, "files_failed": 1},  # which go when storage lets them
}


@dataclass(frozen=True, slots=True)
class RewriteSpeed:
    """How long a rewrite takes on two cores: seconds for the call and for each file read, and MB a second."""

    call: float
    file: float
    mb_per_second: float

    def seconds(self, files: int, size: int) -> float:
        """Return the seconds of rewriting so many files of so many bytes together."""
        return self.call + self.file * files + size / MEGABYTE / self.mb_per_second


# measured with 10 tiny files, 200 files of 49 MiB, 100 of 258 MiB in zstd, 100 of 499 MiB in gzip, everything warm:
# Spark 0.28, 4.4, 7.0 and 30.6 s; Arrow 0.23, 1.1, 2.8 and 4.9 s
REWRITES = {Kernel.SPARK: RewriteSpeed(0.3, 0.01, 30), Kernel.ARROW: RewriteSpeed(0.25, 0.003, 100)}


def gb_hours(seconds: float, memory_gb: float) -> float:
    """Return the GB-hours of memory held for a time."""
    return seconds * memory_gb / 3600


def spark_cost(rewritten_bytes: int, jobs: int = 1) -> float:
    """Return the GB-hours of rewriting so many bytes on Spark."""
    seconds = SPARK_JOB_SECONDS * jobs + rewritten_bytes / MEGABYTE / SPARK_MB_PER_SECOND
    return gb_hours(seconds, SPARK_MEMORY_GB)


def spark_gb_hours(seconds: float) -> float:
    """Return the GB-hours of a Spark application that is busy for so many seconds."""
    return gb_hours(seconds, SPARK_MEMORY_GB)


def predicted(found: Due) -> dict[str, float]:
    """Return the metrics that record a run's prediction, by which the next prediction is corrected."""
    said = {"gb_hours_predicted": round(found.cost, 9), "cost_factor": round(found.factors.cost, 6)}
    if found.work.operation in _GONE:
        said |= {"files_predicted": round(found.files, 3), "benefit_factor": round(found.factors.benefit, 6)}
    return said


def learned(operation: Operation, metrics: Mapping[str, float], typical: Factors) -> Factors:
    """Return the calibration factors after the last run of the operation on the table, whose metrics are given.

    One run moves them half of the way (in proportion), so that one slow night does not decide. A table without runs
    begins with what is `typical`.
    """
    return Factors(
        _moved(metrics.get("cost_factor", typical.cost), _cost_off(metrics)),
        _moved(metrics.get("benefit_factor", typical.benefit), _benefit_off(operation, metrics)),
    )


def calibrated(found: Due, factors: Factors) -> Due:
    """Return the verdict with its prediction corrected by past runs; of the benefit only the part that counts files."""
    files = found.files * factors.benefit
    benefit = found.benefit + (files - found.files) * found.per_file
    return replace(found, cost=found.cost * factors.cost, benefit=benefit, files=files, factors=factors)


def typical_factors(runs: Iterable[tuple[Operation, Mapping[str, float]]]) -> dict[Operation, Factors]:
    """Return the median calibration factors by operation, over the newest runs of several tables.

    With them begins what is predicted for a table that has no runs of its own. Too few tables tell nothing.
    """
    costs: defaultdict[Operation, list[float]] = defaultdict(list)
    benefits: defaultdict[Operation, list[float]] = defaultdict(list)
    for operation, metrics in runs:
        if (off := _cost_off(metrics)) is not None:
            costs[operation].append(metrics.get("cost_factor", 1.0) * off)
        if (off := _benefit_off(operation, metrics)) is not None:
            benefits[operation].append(metrics.get("benefit_factor", 1.0) * off)
    return {
        operation: Factors(_typical(costs[operation]), _typical(benefits[operation])) for operation in costs | benefits
    }


def _typical(factors: Sequence[float]) -> float:
    return median(factors) if len(factors) >= LEAST_TABLES else 1.0


def _moved(factor: float, off: float | None) -> float:
    return _bounded(factor * (1.0 if off is None else off**0.5))


def _bounded(factor: float) -> float:
    return min(_MOST_OFF, max(1 / _MOST_OFF, factor))


def _cost_off(metrics: Mapping[str, float]) -> float | None:
    """Return actual over predicted cost; None when either is unknown."""
    real, said = metrics.get("gb_hours", 0.0), metrics.get("gb_hours_predicted", 0.0)
    return real / said if real > 0 and said > 0 else None


def _benefit_off(operation: Operation, metrics: Mapping[str, float]) -> float | None:
    """Return actual over predicted files, bounded as the former may be 0; None when either is unknown."""
    told = [sign * metrics[name] for name, sign in _GONE.get(operation, {}).items() if name in metrics]
    said = metrics.get("files_predicted", 0.0)
    return _bounded(sum(told) / said) if told and said > 0 else None


def service_cost(files: int) -> float:
    """Return the GB-hours of metadata work over so many files in the service."""
    return gb_hours(SERVICE_JOB_SECONDS + files / SERVICE_FILES_PER_SECOND, SERVICE_MEMORY_GB)


def compaction_benefit(files_removed: int, delete_files_removed: int, deleted_bytes: float) -> float:
    """Return the MB of scan work saved by fewer files to open and fewer deleted rows to read."""
    return OPEN_COST_MB * (files_removed + delete_files_removed) + deleted_bytes / MEGABYTE


def storage_benefit(files: int, size_bytes: int = 0) -> float:
    """Return the benefit in MB of files that listings and bills no longer meet: less than that of faster scans."""
    return 0.1 * files + 0.01 * size_bytes / MEGABYTE


def expected_files(size_bytes: int, target: int, minimum: int, maximum: int) -> int:
    """Return how many files Iceberg writes for a group of so many bytes (core `SizeBasedFileRewritePlanner`).

    The remainder becomes a file of its own only when that file would not be a candidate again, or when spreading it
    would make the others too large.
    """
    if size_bytes < target:
        return 1
    whole, rest = divmod(size_bytes, target)
    if rest > minimum:
        return whole + 1
    spread = size_bytes / whole
    # the writer's own limit is half way between target and maximum; 10 % over the target is fine for anybody
    return whole if spread < min(1.1 * target, target + (maximum - target) / 2) else whole + 1
