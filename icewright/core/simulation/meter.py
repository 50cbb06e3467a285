"""The measurements of a simulation: averages over time, sums, and a time series of both."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from icewright.core.effective import Knobs
from icewright.core.merging import opening_gb_hours
from icewright.core.rewriting import PRIOR_READS
from icewright.core.simulation.table import FilesDeleted, SimulatedTable

_SECONDS_PER_DAY = 86_400
EVALUATE = "evaluate"  # what looking costs, beside the operations


@dataclass(frozen=True, slots=True)
class Sample:
    """The fleet at one moment; `gb_hours` and what was deleted are sums since the begin."""

    hours: float  # since the begin
    files: int  # live data files, and delete files that apply
    query_mb: float  # scan work of a query over a whole table, the mean over the tables
    health: float | None  # the mean over the tables that are looked at
    stored_bytes: int
    gb_hours: float
    deleted_files: int
    deleted_bytes: int


@dataclass(frozen=True)
class Result:
    """The measurements of one policy over one fleet."""

    gb_hours: float  # of the work
    total_gb_hours: float  # of the work and of the readers: as reported, else `PRIOR_READS` times a day for each table
    average_files: float
    final_files: int
    average_health: float | None
    query_mb: float
    average_stored_bytes: float
    gb_hours_by_operation: Mapping[str, float]
    runs: Mapping[str, int]
    deleted_files: int
    deleted_bytes: int
    evaluations: int
    waiting: int  # due at the end, and not begun
    series: tuple[Sample, ...]


class Meter:
    """Accumulate measurements while simulated time passes."""

    def __init__(self, begin: datetime, tables: int) -> None:
        self.gb_hours: defaultdict[str, float] = defaultdict(float)
        self.runs: Counter[str] = Counter()
        self.evaluations = self.deleted_files = self.deleted_bytes = self.waiting = 0
        self.series: list[Sample] = []
        self._begin = self._now = begin
        self._tables = max(1, tables)
        self._files, self._opened, self._query, self._stored = 0, 0.0, 0.0, 0
        self._file_seconds = self._opened_days = self._query_seconds = self._stored_seconds = 0.0

    def pass_to(self, now: datetime) -> None:
        """Advance the meter's clock; everything stayed as it was in between."""
        seconds = (now - self._now).total_seconds()
        self._file_seconds += self._files * seconds
        self._opened_days += self._opened * seconds / _SECONDS_PER_DAY
        self._query_seconds += self._query * seconds
        self._stored_seconds += self._stored * seconds
        self._now = now

    def changed(self, before: Reading, after: Reading) -> None:
        """Replace one table's reading by another in the sums."""
        self._files += after.files - before.files
        self._opened += after.opened - before.opened
        self._query += after.query_mb - before.query_mb
        self._stored += after.stored_bytes - before.stored_bytes

    def spent(self, operation: str, gb_hours: float, deleted: FilesDeleted) -> None:
        """Record a finished step of an operation: its cost and the files that it deleted."""
        self.gb_hours[operation] += gb_hours
        self.deleted_files += deleted.files
        self.deleted_bytes += deleted.bytes

    def looked(self, gb_hours: float) -> None:
        """Record the cost of one evaluation."""
        self.evaluations += 1
        self.gb_hours[EVALUATE] += gb_hours

    def sample(self, health: float | None) -> None:
        """Append the present state to the time series."""
        self.series.append(
            Sample(
                hours=(self._now - self._begin).total_seconds() / 3600,
                files=self._files,
                query_mb=self._query / self._tables,
                health=health,
                stored_bytes=self._stored,
                gb_hours=sum(self.gb_hours.values()),
                deleted_files=self.deleted_files,
                deleted_bytes=self.deleted_bytes,
            )
        )

    def result(self) -> Result:
        """Return the sums over the whole simulation."""
        seconds = max(1e-9, (self._now - self._begin).total_seconds())
        work = sum(self.gb_hours.values())
        known = [s.health for s in self.series if s.health is not None]
        return Result(
            gb_hours=work,
            total_gb_hours=work + self._opened_days * opening_gb_hours(Knobs()),
            average_files=self._file_seconds / seconds,
            final_files=self._files,
            average_health=sum(known) / len(known) if known else None,
            query_mb=self._query_seconds / seconds / self._tables,
            average_stored_bytes=self._stored_seconds / seconds,
            gb_hours_by_operation=dict(sorted(self.gb_hours.items())),
            runs=dict(sorted(self.runs.items())),
            deleted_files=self.deleted_files,
            deleted_bytes=self.deleted_bytes,
            evaluations=self.evaluations,
            waiting=self.waiting,
            series=tuple(self.series),
        )


@dataclass(frozen=True, slots=True)
class Reading:
    """The counts of one table that the meter sums."""

    files: int = 0
    opened: float = 0.0  # by readers in a day
    query_mb: float = 0.0
    stored_bytes: int = 0

    @classmethod
    def of(cls, table: SimulatedTable) -> Reading:
        """Return the reading of a table as it is now."""
        files, reads = table.files + table.deletes, table.reads_per_day
        opened = files * (PRIOR_READS if reads is None else reads)
        return cls(files, opened, table.query_mb, table.bytes + table.dead_bytes)
