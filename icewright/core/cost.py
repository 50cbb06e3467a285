"""Predict the benefit and the cost of a step, which make its score.

Benefit is in MB of scan work: opening a file counts as reading 4 MB (Spark's `spark.sql.files.openCostInBytes`).
Cost is in GB-hours: memory of the engine times the time it is busy (OpenHouse's AutoComp measures compute so).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median, median_low

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
READ_MB_PER_SECOND = 50.0  # of data files, by one core of the service
_OPENED_SECONDS, _COLUMN_SECONDS = 0.002, 0.001  # of a data file whose values are counted, and of each column in it
_KEY_FILES_PER_SECOND = 100.0  # small files whose key columns are read
DELETE_FILE_BYTES = 64 * 1024  # assumed for a position delete file, as facts have no size of it
LEAST_RUNS = 5  # of a table or a pool, from which they teach what runs cost
_POOL_COUNTS = 2  # runs of a table: the weight that experience of its pool has beside them
RUNS_LEARNED = 10  # newest runs by which a cost is predicted
_FIXED_SHARES = (0.0, 0.25, 1.0, 4.0, 16.0)  # times the middle size, which the fixed part may be
_MAX_CORRECTION = 100.0  # times, up or down, that a prediction may be corrected
# metrics of a run whose signed sum is the number of files removed
_REMOVED_FILES: Mapping[Operation, Mapping[str, int]] = {
    Operation.COMPACT: {"files_merged": 1, "files_written": -1, "delete_files_removed": 1},
    Operation.REWRITE_DELETES: {"files_rewritten": 1, "files_written": -1},
    Operation.REWRITE_MANIFESTS: {"manifests_rewritten": 1, "manifests_written": -1},
    Operation.EXPIRE_SNAPSHOTS: {"files_deleted": 1, "files_failed": 1},  # failed ones are retried
}


@dataclass(frozen=True, slots=True)
class CostFit:
    """A calibration of predicted costs: a factor and a fixed part, fitted to runs between two sizes."""

    fixed: float = 0.0
    times: float = 1.0
    least: float = 0.0
    most: float = math.inf

    def factor(self, modelled: float) -> float:
        """Return by what to multiply a cost that the model says; sizes beyond those known count as the nearest."""
        known = min(max(modelled, self.least), self.most)
        return (1 + self.fixed / known if self.fixed else 1.0) * self.times


@dataclass(frozen=True, slots=True)
class Experience:
    """The calibration of an operation's cost and benefit, from its runs on all tables of a pool."""

    cost: CostFit | None = None  # None: not known yet
    benefit: float = 1.0


@dataclass(frozen=True, slots=True)
class RewriteSpeed:
    """How long a rewrite takes on two cores: seconds for the call and for each file read, and MB a second."""

    call: float
    file: float
    mb_per_second: float

    def seconds(self, files: int, size: int) -> float:
        """Return the seconds of rewriting so many files of so many bytes together."""
        return self.call + self.file * files + size / MEGABYTE / self.mb_per_second

    def gb_hours(self, files: int, size: int) -> float:
        """Return the GB-hours of that rewrite on Spark."""
        return spark_gb_hours(self.seconds(files, size))


# measured with 10 tiny files, 200 files of 49 MiB, 100 of 258 MiB in zstd, 100 of 499 MiB in gzip, everything warm:
# Spark 0.28, 4.4, 7.0 and 30.6 s; Arrow 0.23, 1.1, 2.8 and 4.9 s
REWRITES = {Kernel.SPARK: RewriteSpeed(0.3, 0.01, 30), Kernel.ARROW: RewriteSpeed(0.25, 0.003, 100)}


def gb_hours(seconds: float, memory_gb: float) -> float:
    """Return the GB-hours of memory held for a time."""
    return seconds * memory_gb / 3600


def spark_cost(rewritten_bytes: int) -> float:
    """Return the GB-hours of rewriting so many bytes by one job of Spark."""
    return gb_hours(SPARK_JOB_SECONDS + rewritten_bytes / MEGABYTE / SPARK_MB_PER_SECOND, SPARK_MEMORY_GB)


def conversion_gb_hours(files: int, data_files: int) -> float:
    """Return the GB-hours of the service reading the keys of delete files and of data files, one after the other."""
    return gb_hours(SERVICE_JOB_SECONDS + (files + data_files) / _KEY_FILES_PER_SECOND, SERVICE_MEMORY_GB)


def statistics_gb_hours(files: int, size: int, columns: int, entries: int) -> float:
    """Return the GB-hours of the service counting values of columns in files, and files of partitions by entries."""
    counting = files * (_OPENED_SECONDS + _COLUMN_SECONDS * columns) + size / MEGABYTE / READ_MB_PER_SECOND
    seconds = SERVICE_JOB_SECONDS + counting + entries / SERVICE_FILES_PER_SECOND
    return gb_hours(seconds, SERVICE_MEMORY_GB)


def spark_gb_hours(seconds: float) -> float:
    """Return the GB-hours of a Spark application that is busy for so many seconds."""
    return gb_hours(seconds, SPARK_MEMORY_GB)


def predicted(due: Due) -> dict[str, float]:
    """Return the metrics that record a run's prediction, by which the next prediction is corrected."""
    metrics = {"gb_hours_predicted": round(due.cost, 9), "cost_factor": round(due.factors.cost, 6)}
    if due.work.operation in _REMOVED_FILES:
        metrics |= {"files_predicted": round(due.files, 3), "benefit_factor": round(due.factors.benefit, 6)}
    return metrics


def learned(due: Due, recent: Sequence[Mapping[str, float]], pool: Experience) -> Factors:
    """Return the calibration factors after the last runs of the operation on the table, newest first.

    What the newest run saved moves its factor half of the way (in proportion). A table with fewer than five runs begins
    with what the tables of its pool have shown; its own say how many times as much, once most of them agree.
    """
    newest, operation = recent[0] if recent else {}, due.work.operation
    benefit = _adjusted(newest.get("benefit_factor", pool.benefit), _benefit_ratio(operation, newest))
    runs = [*filter(None, map(_modelled, recent[:RUNS_LEARNED]))]
    fit = _fit(runs)
    if fit is not None:
        return Factors(_bounded(fit.factor(due.cost)), benefit)
    of_pool = pool.cost or CostFit()
    times = [1.0] * (_POOL_COUNTS if pool.cost else 1) + [
        took / predicted / of_pool.factor(predicted) for predicted, took in runs
    ]
    return Factors(_bounded(of_pool.factor(due.cost) * median_low(times)), benefit)


def _fit(runs: Sequence[tuple[float, float]]) -> CostFit | None:
    """Return how the cost of runs follows their size; None for fewer than five. Each is its predicted and real cost.

    The runs come newest first. A cold start, or another job beside, makes a run many times as long: one such moves no
    median. The fixed part is that with which the runs scatter least, and the newest five say how much it is.
    """
    if len(runs) < LEAST_RUNS:
        return None
    sizes = [predicted for predicted, _ in runs]
    fits: list[tuple[float, float, float]] = []
    for fixed in (share * median(sizes) for share in _FIXED_SHARES):
        times = [math.log(took / (predicted + fixed)) for predicted, took in runs]
        scatter = sum(abs(factor - median(times)) for factor in times)
        fits.append((scatter, fixed, median(times[:LEAST_RUNS])))
    _, fixed, times_as_much = min(fits)
    return CostFit(fixed, math.exp(times_as_much), min(sizes), max(sizes))


def calibrated(due: Due, factors: Factors) -> Due:
    """Return the verdict with its prediction corrected by past runs; of the benefit only the part that counts files."""
    files = due.files * factors.benefit
    benefit = due.benefit + (files - due.files) * due.per_file
    return replace(due, cost=due.cost * factors.cost, benefit=benefit, files=files, factors=factors)


def experience(runs: Iterable[tuple[Operation, Mapping[str, float]]]) -> dict[Operation, Experience]:
    """Return what the runs of a pool have shown, by operation, the newest first; fewer than five teach nothing."""
    costs: defaultdict[Operation, list[tuple[float, float]]] = defaultdict(list)
    benefits: defaultdict[Operation, list[float]] = defaultdict(list)
    for operation, metrics in runs:
        if (cost := _modelled(metrics)) is not None:
            costs[operation].append(cost)
        if (ratio := _benefit_ratio(operation, metrics)) is not None:
            benefits[operation].append(metrics.get("benefit_factor", 1.0) * ratio)
    return {
        operation: Experience(
            _fit(costs[operation]), median(benefits[operation]) if len(benefits[operation]) >= LEAST_RUNS else 1.0
        )
        for operation in costs | benefits
    }


def _adjusted(factor: float, ratio: float | None) -> float:
    return _bounded(factor * (1.0 if ratio is None else ratio**0.5))


def _bounded(factor: float) -> float:
    return min(_MAX_CORRECTION, max(1 / _MAX_CORRECTION, factor))


def _modelled(metrics: Mapping[str, float]) -> tuple[float, float] | None:
    """Return what the model without correction said that a run costs, and what it took; None when either is unknown."""
    actual, expected = metrics.get("gb_hours", 0.0), metrics.get("gb_hours_predicted", 0.0)
    return (expected / metrics.get("cost_factor", 1.0), actual) if actual > 0 and expected > 0 else None


def _benefit_ratio(operation: Operation, metrics: Mapping[str, float]) -> float | None:
    """Return actual over predicted files, bounded as the former may be 0; None when either is unknown."""
    removed = [sign * metrics[name] for name, sign in _REMOVED_FILES.get(operation, {}).items() if name in metrics]
    expected = metrics.get("files_predicted", 0.0)
    return _bounded(sum(removed) / expected) if removed and expected > 0 else None


def service_cost(files: int) -> float:
    """Return the GB-hours of metadata work over so many files in the service."""
    return gb_hours(SERVICE_JOB_SECONDS + files / SERVICE_FILES_PER_SECOND, SERVICE_MEMORY_GB)


def compaction_benefit(files_removed: int, delete_files_removed: int, deleted_bytes: float) -> float:
    """Return the MB of scan work saved by fewer files to open and fewer deleted rows to read."""
    return OPEN_COST_MB * (files_removed + delete_files_removed) + deleted_bytes / MEGABYTE


def storage_benefit(files: int, size_bytes: int = 0) -> float:
    """Return the benefit in MB of removing files from listings and bills: less than that of faster scans."""
    return 0.1 * files + 0.01 * size_bytes / MEGABYTE


def expected_files(size_bytes: int, target: int, minimum: int, maximum: int) -> int:
    """Return how many files Iceberg writes for a group of so many bytes (core `SizeBasedFileRewritePlanner`).

    The remainder becomes a file of its own only when that file would not be a candidate again, or when spreading it
    would make the others too large.
    """
    if size_bytes < target:
        return 1
    full_files, remainder = divmod(size_bytes, target)
    if remainder > minimum:
        return full_files + 1
    spread = size_bytes / full_files
    # the writer's own limit is half way between target and maximum; 10 % over the target is fine for anybody
    return full_files if spread < min(1.1 * target, target + (maximum - target) / 2) else full_files + 1
