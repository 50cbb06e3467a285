"""What most have before they have a service: Spark's four procedures over every table, every night."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime, time, timedelta
from functools import partial

from icewright.core.cost import SPARK_JOB_SECONDS, SPARK_MEMORY_GB, gb_hours
from icewright.core.operations import expire_snapshots, remove_orphans
from icewright.core.policy import MEGABYTE, ORPHAN_MODE, Knobs, Operation, Origin
from icewright.core.simulation.table import SimulatedTable
from icewright.core.simulation.work import Begun, Done, begin
from icewright.core.simulation.world import World
from icewright.core.steps import Due, RewriteDataFiles, RewriteManifests, Step
from icewright.core.verdicts import thresholds

# A warm call that finds nothing to do, measured with Spark 4.1 and Iceberg 1.12 on two cores. One that finds something
# takes what `core.cost` says of a Spark job.
IDLE_SECONDS = {
    Operation.COMPACT: 0.04,
    Operation.REWRITE_MANIFESTS: 0.03,
    Operation.EXPIRE_SNAPSHOTS: 0.7,
    Operation.REMOVE_ORPHANS: 1.1,
}
LISTED_PER_SECOND = 20_000.0  # files that remove_orphan_files compares
NIGHT = time(2)
_KNOBS = Knobs({ORPHAN_MODE.name: (Origin("platform", "cron", "delete"),)})  # targets and retention as everywhere
_SIZES = thresholds(_KNOBS)
_REWRITE = RewriteDataFiles(
    where=None,
    user_where=None,
    strategy="binpack",
    sort_order=None,
    options={
        "target-file-size-bytes": str(_SIZES.target_bytes),
        "min-file-size-bytes": str(_SIZES.min_bytes),
        "max-file-size-bytes": str(_SIZES.max_bytes),
        "min-input-files": "5",
        "max-file-group-size-bytes": str(100 * 1024 * MEGABYTE),
    },
    partitions=(),
    by_deletes=False,
    files=0,
    bytes=0,
)
_MERGE = RewriteManifests((0,), _SIZES.manifest_target_bytes, by_spark=True, use_caching=False)
_Call = tuple[Operation, Begun]


class Cron:
    """One night's tables go through a few lanes; a night that is not over when the next begins takes its place."""

    def __init__(self, world: World, lanes: int) -> None:
        self._world, self._lanes = world, lanes
        self._busy = 0
        self._tables: Iterator[int] = iter(())

    def begin(self) -> None:
        """Wait for the first night."""
        now = self._world.now
        night = datetime.combine(now.date(), NIGHT, now.tzinfo)
        self._world.at(night if night >= now else night + timedelta(days=1), self._night)

    def written(self, number: int) -> None:
        """Nobody looks."""

    @property
    def waiting(self) -> int:
        """Nobody knows what is due."""
        return 0

    def _night(self) -> None:
        world = self._world
        world.at(world.now + timedelta(days=1), self._night)
        if self._busy:
            return
        self._tables = iter(range(len(world.tables)))
        for _ in range(self._lanes):
            self._busy += 1
            self._table()

    def _table(self) -> None:
        """Take the next table into a lane that is free."""
        number = next(self._tables, None)
        if number is None:
            self._busy -= 1
            return
        self._call(number, _calls(self._world.tables[number], lambda: self._world.now))

    def _call(self, number: int, calls: Iterator[_Call]) -> None:
        found = next(calls, None)
        if found is None:
            self._table()
            return
        operation, begun = found
        ended = partial(self._called, number, operation, begun, calls)
        self._world.at(self._world.now + timedelta(seconds=begun.seconds), ended)

    def _called(self, number: int, operation: Operation, begun: Begun, calls: Iterator[_Call]) -> None:
        world = self._world
        done = begun.end(world.now)
        if not begun.idle:
            world.changed(number)
        world.meter.spent(operation, begun.gb_hours, done.deleted)
        world.meter.runs[operation] += 1
        self._call(number, calls)


def night(table: SimulatedTable, now: datetime) -> None:
    """Let all of a night be done to one table at once."""
    for _, begun in _calls(table, lambda: now):
        begun.end(now)


def _calls(table: SimulatedTable, clock: Callable[[], datetime]) -> Iterator[_Call]:
    """The four calls on one table, each on the table as the one before has left it."""
    rewrite = begin(table, _REWRITE, clock())
    yield _timed(Operation.COMPACT, rewrite, rewrite.seconds)
    merge = begin(table, _MERGE, clock()) if table.manifests > 1 else None
    yield _timed(Operation.REWRITE_MANIFESTS, merge, SPARK_JOB_SECONDS)
    expiry = _expiry(table, clock())
    expire = begin(table, expiry, clock()) if expiry is not None else None
    yield _timed(Operation.EXPIRE_SNAPSHOTS, expire, SPARK_JOB_SECONDS)
    scan = begin(table, remove_orphans.step(_KNOBS, clock()), clock())
    listed = (table.files + table.dead_files) / LISTED_PER_SECOND
    yield _timed(Operation.REMOVE_ORPHANS, scan, IDLE_SECONDS[Operation.REMOVE_ORPHANS] + listed)


def _timed(operation: Operation, begun: Begun | None, seconds: float) -> _Call:
    """The call with the time that it takes on Spark, which is short when it finds nothing to do."""
    idle = begun is None or begun.idle
    seconds = IDLE_SECONDS[operation] if idle else seconds
    end = begun.end if begun is not None else _nothing
    return operation, Begun(seconds, gb_hours(seconds, SPARK_MEMORY_GB), end, idle)


def _nothing(_now: datetime) -> Done:
    return Done()


def _expiry(table: SimulatedTable, now: datetime) -> Step | None:
    found = expire_snapshots.evaluate(table.facts(_SIZES), _KNOBS, None, now)
    return found.work.steps[0] if isinstance(found, Due) else None
