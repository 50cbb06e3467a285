"""The baseline: Spark's four procedures over every table, every night."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import datetime, time, timedelta
from functools import partial

from icewright.core.cost import spark_gb_hours
from icewright.core.effective import Knobs, Origin
from icewright.core.operations import expire_snapshots, remove_orphans
from icewright.core.policy import EXPIRE_ENGINE, MEGABYTE, ORPHAN_MODE, Operation
from icewright.core.simulation.table import SimulatedTable
from icewright.core.simulation.work import IDLE_SECONDS, Begun, Done, begin, spark_orphans
from icewright.core.simulation.world import World
from icewright.core.steps import Due, RewriteDataFiles, RewriteManifests, Step
from icewright.core.table import ManifestContent
from icewright.core.verdicts import thresholds

NIGHT = time(2)
_KNOBS = Knobs(  # targets and retention are the defaults
    {ORPHAN_MODE.name: (Origin("platform", "", "delete"),), EXPIRE_ENGINE.name: (Origin("platform", "", "spark"),)}
)
_SIZES = thresholds(_KNOBS)
_REWRITE = RewriteDataFiles(
    options={
        "target-file-size-bytes": str(_SIZES.target_bytes),
        "min-file-size-bytes": str(_SIZES.min_bytes),
        "max-file-size-bytes": str(_SIZES.max_bytes),
        "min-input-files": "5",
        "max-file-group-size-bytes": str(100 * 1024 * MEGABYTE),
    }
)
_MERGE = RewriteManifests(((0, ManifestContent.DATA),), _SIZES.manifest_target_bytes, by_spark=True, use_caching=False)
_Call = tuple[Operation, Begun]


class Cron:
    """Run one night's tables through a few lanes; a night that is not over when the next begins replaces it."""

    def __init__(self, world: World, lanes: int) -> None:
        self._world, self._lanes = world, lanes
        self._busy = 0
        self._tables: Iterator[int] = iter(())

    def begin(self) -> None:
        """Schedule the calls of the first night."""
        now = self._world.now
        night = datetime.combine(now.date(), NIGHT, now.tzinfo)
        self._world.at(night if night >= now else night + timedelta(days=1), self._night)

    def written(self, number: int) -> None:
        """Ignore a write: a cron job looks at its own times."""

    @property
    def waiting(self) -> int:
        """Return 0: cron does not know what is due."""
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
        call = next(calls, None)
        if call is None:
            self._table()
            return
        operation, begun = call
        ended = partial(self._end_call, number, operation, begun, calls)
        self._world.after(begun.seconds, ended)

    def _end_call(self, number: int, operation: Operation, begun: Begun, calls: Iterator[_Call]) -> None:
        world = self._world
        done = begun.end(world.now)
        if not begun.idle:
            world.changed(number)
        world.meter.spent(operation, begun.gb_hours, done.deleted)
        world.meter.runs[operation] += 1
        self._call(number, calls)


def night(table: SimulatedTable, now: datetime) -> None:
    """Apply one night's work to one table at once."""
    for _, begun in _calls(table, lambda: now):
        begun.end(now)


def _calls(table: SimulatedTable, clock: Callable[[], datetime]) -> Iterator[_Call]:
    """Yield the four calls on one table, each on the table that the call before has left."""
    yield _call(Operation.COMPACT, begin(table, _REWRITE, clock()))
    yield _call(Operation.REWRITE_MANIFESTS, begin(table, _MERGE, clock()) if table.manifests > 1 else None)
    expiry = _expiry(table, clock())
    yield _call(Operation.EXPIRE_SNAPSHOTS, begin(table, expiry, clock()) if expiry is not None else None)
    scan = begin(table, remove_orphans.step(_KNOBS, clock()), clock())
    seconds = spark_orphans(table.files + table.dead_files)
    yield Operation.REMOVE_ORPHANS, replace(scan, seconds=seconds, gb_hours=spark_gb_hours(seconds))


def _call(operation: Operation, begun: Begun | None) -> _Call:
    """Return the call, or an idle one where there is nothing to do: that costs a little too."""
    if begun is not None and not begun.idle:
        return operation, begun
    seconds = IDLE_SECONDS[operation]
    return operation, Begun(seconds, spark_gb_hours(seconds), lambda _: Done(), idle=True)


def _expiry(table: SimulatedTable, now: datetime) -> Step | None:
    verdict = expire_snapshots.evaluate(table.facts(_SIZES), _KNOBS, None, now)
    return verdict.work.steps[0] if isinstance(verdict, Due) else None
