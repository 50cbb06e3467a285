"""What a step saves its readers and what it costs: the two sides of every score.

Benefit is in MB of scan work: opening a file counts as reading 4 MB (Spark's `spark.sql.files.openCostInBytes`).
Cost is in GB-hours: memory of the engine times the time it is busy (OpenHouse's AutoComp measures compute so).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from statistics import median

from icewright.core.policy import MEGABYTE, Operation

OPEN_COST_MB = 4.0
SPARK_MEMORY_GB = 2.0
SPARK_MB_PER_SECOND = 10.0  # read and written by two local tasks
SPARK_JOB_SECONDS = 3.0
SERVICE_MEMORY_GB = 0.3
SERVICE_FILES_PER_SECOND = 2000.0
SERVICE_JOB_SECONDS = 0.1
LEAST_TABLES = 3  # whose runs tell what is typical
_MOST_OFF = 100.0  # times that a prediction may be corrected


def gb_hours(seconds: float, memory_gb: float) -> float:
    """Memory held for a time."""
    return seconds * memory_gb / 3600


def spark_cost(rewritten_bytes: int, jobs: int = 1) -> float:
    """GB-hours of rewriting so many bytes on Spark."""
    seconds = SPARK_JOB_SECONDS * jobs + rewritten_bytes / MEGABYTE / SPARK_MB_PER_SECOND
    return gb_hours(seconds, SPARK_MEMORY_GB)


def calibrated(predicted: float, metrics: Mapping[str, float]) -> tuple[float, float]:
    """The prediction corrected by what the operation really took when it last did its work on the table, and how much.

    `metrics` are that run's: `gb_hours`, `gb_hours_predicted` and the `cost_factor` that the prediction had. One run
    moves the factor half of the way (in proportion), so that one slow night does not decide.
    """
    factor = metrics.get("cost_factor", 1.0)
    real, said = metrics.get("gb_hours", 0.0), metrics.get("gb_hours_predicted", 0.0)
    if real > 0 and said > 0:
        factor *= (real / said) ** 0.5
    factor = min(_MOST_OFF, max(1 / _MOST_OFF, factor))
    return predicted * factor, factor


def typical_factors(runs: Iterable[tuple[Operation, Mapping[str, float]]]) -> dict[Operation, float]:
    """By which factor predictions were off, by operation: the median of runs of several tables, one of each.

    With it begins what is predicted for a table that has no runs of its own. Too few tables tell nothing.
    """
    seen: dict[Operation, list[float]] = {}
    for operation, metrics in runs:
        real, said = metrics.get("gb_hours", 0.0), metrics.get("gb_hours_predicted", 0.0)
        if real > 0 and said > 0:
            seen.setdefault(operation, []).append(metrics.get("cost_factor", 1.0) * real / said)
    return {operation: median(factors) for operation, factors in seen.items() if len(factors) >= LEAST_TABLES}


def service_cost(files: int) -> float:
    """GB-hours of metadata work over so many files inside the service."""
    return gb_hours(SERVICE_JOB_SECONDS + files / SERVICE_FILES_PER_SECOND, SERVICE_MEMORY_GB)


def compaction_benefit(files_removed: int, delete_files_removed: int, deleted_bytes: float) -> float:
    """Files that no scan opens any more, and rows that no scan reads to throw away."""
    return OPEN_COST_MB * (files_removed + delete_files_removed) + deleted_bytes / MEGABYTE


def storage_benefit(files: int, size_bytes: int = 0) -> float:
    """Files that no listing, planning or bill meets any more: worth less than what slows scans."""
    return 0.1 * files + 0.01 * size_bytes / MEGABYTE


def expected_files(size_bytes: int, target: int, minimum: int, maximum: int) -> int:
    """How many files Iceberg writes for a group of so many bytes (core `SizeBasedFileRewritePlanner`).

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
