"""The oracle: a lower bound of what maintenance costs, for any schedule of anybody who knows every commit in advance.

The bound rests on four facts about any sequence of jobs:

- A file is open to readers until the first job that rewrites it, which is the next job of its table at the earliest.
- That job reads the file whole, and each job costs a call.
- What comes of the file is a part of one that is no larger than Iceberg's planner cuts it.
- A job before which nothing has arrived since the last one could as well have run with the last one.

So no schedule costs less than the cheapest set of moments for jobs, found by dynamic programming over the commits of a
table (Wagner and Whitin, "Dynamic version of the economic lot size model", 1958), and each file is rewritten at the
next of them or never. That leaves out that merged files are small files themselves at first, to open or to merge again:
`merge_tree` computes it, for data files and outputs of any size. Delete files are added as in the first bound, by
the greater of two ways to pay for the jobs that end them. Either they pay a share of each call, and the merges of data
the other; or they pay for a call of their own, which merges them, or a share of the bytes of a partition that is
rewritten whole, whichever costs less. The greater of all bounds counts.
Expiry, evaluation, manifests, orphans, durations and waiting for slots cost the oracle nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from math import inf

from icewright.core.cost import DELETE_FILE_BYTES, REWRITES, spark_gb_hours
from icewright.core.effective import Knobs
from icewright.core.partitions import PartitionKey
from icewright.core.rewriting import PRIOR_READS
from icewright.core.simulation.cron import night
from icewright.core.simulation.merge_tree import BYTE, CALL, FILE, OPEN, Files, distinct, least_merging
from icewright.core.simulation.run import Span
from icewright.core.simulation.table import SimulatedTable
from icewright.core.simulation.world import World
from icewright.core.simulation.writes import Source, Write
from icewright.core.steps import Kernel
from icewright.core.verdicts import thresholds

_MOST_MOMENTS = 2000  # for jobs; of more commits, those of one interval share a moment
_SHARE = 0.25  # of a call that merges of data pay where there are delete files: any share gives a bound
_BYTES_SHARE = 0.02  # of bytes read that is paid by the deletes that a rewrite of a whole partition ends: likewise
_MERGE_DELETES = spark_gb_hours(REWRITES[Kernel.SPARK].seconds(1, DELETE_FILE_BYTES))  # at least
_MIN_STEPS = 100_000  # of the search of trees, for each table
_LARGEST_OUTPUT = 1.265  # times the target: a merge's own may be 1.15 times as large, and Iceberg lets a file exceed it
_SIZES = thresholds(Knobs())


@dataclass(slots=True)
class _Segment:
    """A partition between two moments at which a writer emptied it; times are in seconds since the begin."""

    end: float
    rows: int = 0
    deleted_rows: int = 0
    bytes: int = 0
    oldest_alive: float = 1.0  # share of the first file's rows that is never deleted, as deletes hit all rows alike

    def add(self, write: Write) -> None:
        """Add the rows of a commit, then what it deletes."""
        self.rows += write.rows
        self.bytes += write.bytes
        present = max(1, self.rows - self.deleted_rows)
        self.oldest_alive *= max(0.0, 1 - write.deleted_rows / present)
        self.deleted_rows += write.deleted_rows

    @property
    def alive(self) -> float:
        """Return the share of rows that is never deleted."""
        return max(0.0, 1 - self.deleted_rows / max(1, self.rows))

    @property
    def live_bytes(self) -> float:
        """Return the bytes of rows that nobody has deleted yet."""
        return self.bytes * self.alive

    @property
    def largest(self) -> float:
        """Return the bytes of the largest file that a job writes."""
        return _LARGEST_OUTPUT * _SIZES.of(self.bytes).target_bytes

    def remaining(self, size: float) -> float:
        """Return how much of a file is left, at the least, of one of so many bytes that was rewritten."""
        if not size or not self.alive:
            return 0.0
        return size / self.bytes if self.bytes * self.alive < self.largest else size * self.alive / self.largest


@dataclass(frozen=True, slots=True)
class _Arrival:
    """Equal files of one commit; delete files have no bytes.

    `to_clear` are the bytes of the smallest partition that has deletes by then.
    """

    at: float
    files: int
    size: float
    segment: _Segment
    to_clear: float = 0.0


@dataclass(slots=True)
class _Files:
    """The files of one moment that a reader and a job treat alike."""

    files: int = 0
    arrived: float = 0.0  # the sum of their times


@dataclass(slots=True)
class _Moment:
    """A time for a job, no earlier than `first` and no later than `last`, with what has arrived since the one before.

    The files are by the GB-hours of rewriting one, by how much of a file remains of it, and by the end of its segment.
    """

    first: float
    last: float
    call: float
    groups: dict[tuple[float, float, float], _Files] = field(default_factory=dict)

    def add(self, arrival: _Arrival) -> None:
        """Add the files of a commit."""
        size, segment = arrival.size, arrival.segment
        work = FILE + BYTE * size if size else 0.0
        group = self.groups.setdefault((work, segment.remaining(size), segment.end), _Files())
        group.files += arrival.files
        group.arrived += arrival.files * arrival.at

    def rewritten(self, job: _Moment) -> float:
        """Return the least GB-hours of these files when the next job is the given one, or this moment's own."""
        least = 0.0
        for (work, remaining, end), group in self.groups.items():
            waited = 0.0 if job is self else group.files * job.first - group.arrived
            open_for = waited + group.files * remaining * max(0.0, end - job.last)
            rewriting = group.files * work + OPEN * open_for
            staying = group.files * max(0.0, end - job.last) if job is self else group.files * end - group.arrived
            least += min(rewriting, OPEN * staying)
        return least

    def left(self) -> float:
        """Return the GB-hours of readers when these files are never rewritten."""
        return sum(OPEN * (g.files * end - g.arrived) for (_, _, end), g in self.groups.items())


def least_gb_hours(sources: Sequence[Source], span: Span, *, max_steps: int = 80_000_000) -> float:
    """Return a lower bound of the GB-hours of work and readers over a fleet.

    Each table is read `PRIOR_READS` times a day. One that is read more often costs no less, and of one that is read
    less the bound is a share. What was written before the begin is there as a night of cron has left it, as in
    `simulate`. `max_steps` bounds the search of trees over all tables: fewer make the bound lower.
    """
    world = World(sources, span.begin, span.end, night)
    tables = [
        [arrival for arrival in _arrivals(source, table, span) if arrival.files]
        for source, table in zip(sources, world.tables, strict=True)
    ]
    different = {tuple((a.at - arrivals[0].at, a.files, a.size) for a in arrivals) for arrivals in tables}
    max_steps = max(_MIN_STEPS, max_steps // max(1, len(different)))
    reads = (PRIOR_READS if source.reads_per_day is None else source.reads_per_day for source in sources)
    return sum(
        min(1.0, each / PRIOR_READS) * _least_of_table(arrivals, max_steps)
        for each, arrivals in zip(reads, tables, strict=True)
    )


def _arrivals(source: Source, table: SimulatedTable, span: Span) -> Iterator[_Arrival]:
    """Yield the files that are there at the begin, and those of each commit in the order of time."""
    end = (span.end - span.begin).total_seconds()
    segments: dict[PartitionKey, _Segment] = {}
    deleted: dict[PartitionKey, _Segment] = {}  # those that have deletes

    def deletes(at: float, files: int, key: PartitionKey) -> _Arrival:
        if files:
            deleted[key] = segments[key]
        return _Arrival(at, files, 0, segments[key], min((s.live_bytes for s in deleted.values()), default=0.0))

    for key, partition in table.partitions.items():
        segment = segments[key] = _Segment(end, partition.rows, 0, partition.bytes)
        segment.add(Write(span.begin, deleted_rows=partition.deleted_rows))
        yield from (_Arrival(0, files, size, segment) for size, files in partition.sizes.items())
        yield deletes(0, partition.deletes, key)
    layouts = list(table.layouts)
    for write in source.writes():
        at = (write.at - span.begin).total_seconds()
        if at >= end:
            return
        if at < 0:
            continue
        if write.layout not in layouts:
            layouts.append(write.layout)
        key = (layouts.index(write.layout), write.values)
        if write.operation == "overwrite" or (write.operation == "delete" and not write.delete_files):
            segments.pop(key, _Segment(end)).end = at
            deleted.pop(key, None)
        segment = segments.setdefault(key, _Segment(end))
        segment.add(write)
        yield _Arrival(at, write.files, write.bytes // max(1, write.files), segment)
        yield deletes(at, write.delete_files, key)


def _one_call(_arrival: _Arrival) -> float:
    return CALL


def _rest_of_call(_arrival: _Arrival) -> float:
    return CALL * (1 - _SHARE)


def _clearing(arrival: _Arrival) -> float:
    """Return the least cost, as far as deletes pay for it, of a job that ends some: it merges them or applies them."""
    return min(_MERGE_DELETES, _BYTES_SHARE * BYTE * arrival.to_clear)


def _least_of_table(arrivals: Sequence[_Arrival], max_steps: int) -> float:
    """Return the greatest of the bounds of a table: of all files, or of data files and of delete files apart."""
    jobs_for_all = _least(_moments(arrivals, _one_call))
    deletes = [arrival for arrival in arrivals if not arrival.size]
    if not deletes:
        return max(jobs_for_all, _least_of_trees(arrivals, max_steps, CALL))
    shared_calls = _least_of_trees(arrivals, max_steps // 2, CALL * _SHARE) + _least(_moments(deletes, _rest_of_call))
    data = [replace(arrival, size=arrival.size * (1 - _BYTES_SHARE)) for arrival in arrivals if arrival.size]
    shared_bytes = max(_least(_moments(data, _one_call)), _least_of_trees(data, max_steps // 2, CALL))
    return max(jobs_for_all, shared_calls, shared_bytes + _least(_moments(deletes, _clearing)))


def _least_of_trees(arrivals: Sequence[_Arrival], max_steps: int, call: float) -> float:
    """Return the least GB-hours of the data files of each partition alone; a job's call is paid by the newest one."""
    segments: dict[int, list[_Arrival]] = {}
    for arrival in arrivals:
        if arrival.size:
            segments.setdefault(id(arrival.segment), []).append(arrival)
    starts = [arrivals[0].at for arrivals in segments.values()]
    files = [_equal(*pair, call) for pair in zip(segments.values(), [*starts[1:], inf], strict=True)]
    share = max_steps // max(1, distinct(equal.times for ways in files for equal in ways))
    return sum(max(least_merging(equal, share) for equal in ways) for ways in files)


def _equal(arrivals: Sequence[_Arrival], calls_until: float, call: float) -> Sequence[Files]:
    """Return the files of a segment as equal ones, by two sizes: larger ones count as such, smaller are left out."""
    segment = arrivals[0].segment
    sizes = sorted(arrival.size for arrival in arrivals for _ in range(arrival.files))
    ways = []
    for size in {sizes[0], sizes[len(sizes) // 4]}:
        times = [arrival.at for arrival in arrivals if arrival.size >= size for _ in range(arrival.files)]
        ways.append(Files(times, size * segment.oldest_alive, segment.largest, segment.end, call, calls_until))
    return ways


def _moments(arrivals: Sequence[_Arrival], call: Callable[[_Arrival], float]) -> Sequence[_Moment]:
    """Return the moments at which a job makes sense: after each commit, or after each interval that has commits."""
    times = sorted({arrival.at for arrival in arrivals})
    step = 0.0 if len(times) <= _MOST_MOMENTS else times[-1] / _MOST_MOMENTS
    moments: dict[float, _Moment] = {}
    for arrival in arrivals:
        first = arrival.at if not step else arrival.at // step * step
        moment = moments.setdefault(first, _Moment(first, first + step, call(arrival)))
        moment.call = min(moment.call, call(arrival))
        moment.add(arrival)
    return list(moments.values())


def _least(moments: Sequence[_Moment]) -> float:
    """Return the least GB-hours of one table over all sets of moments at which jobs run, each for its call."""
    until = [0.0]  # by how many moments have passed: what they cost at the least, the last one with a job
    for number, job in enumerate(moments):
        best, since = float("inf"), 0.0
        for before in range(number, -1, -1):  # the moments that the job before has seen
            since += moments[before].rewritten(job)
            if since >= best:
                break
            best = min(best, until[before] + since)
        until.append(job.call + best)
    left = 0.0
    best = until[-1]
    for before in range(len(moments) - 1, -1, -1):
        left += moments[before].left()
        best = min(best, until[before] + left)
    return best
