"""One simulation: a policy over a fleet for a span of time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from icewright.core.capacity import Limits
from icewright.core.layering import Policy
from icewright.core.simulation.cron import Cron, night
from icewright.core.simulation.meter import Result
from icewright.core.simulation.service import SimulatedJob, SimulatedService
from icewright.core.simulation.world import Maintainer, Progress, World
from icewright.core.simulation.writes import Source


@dataclass(frozen=True)
class Span:
    """The simulated time, and the interval between two detections."""

    begin: datetime
    end: datetime
    every: timedelta = timedelta(hours=1)


@dataclass(frozen=True)
class Slots:
    """The limits on concurrent work, and the pool of each catalog."""

    limits: Limits = field(default_factory=Limits)
    pools: Mapping[str, str] = field(default_factory=dict)

    def gb_hour_price(self, sources: Sequence[Source]) -> float | None:
        """Return the price of a GB-hour on the pools of the tables, their mean; None where one has no price."""
        tables = Counter(self.pools.get(source.ref.catalog) for source in sources)
        money = [self.limits.money(count, pool) for pool, count in tables.items()]
        return None if not money or None in money else sum(filter(None, money)) / len(sources)


def simulate(
    sources: Sequence[Source],
    policy: Policy | None,
    span: Span,
    slots: Slots,
    *,
    on_progress: Progress = lambda _share: None,
    on_job: Callable[[SimulatedJob], None] = lambda _job: None,
) -> Result:
    """Return the measurements of a policy over a fleet; None is nightly cron. Equal arguments give equal results.

    What was written before the begin starts out as a night of cron leaves it.
    """
    world = World(sources, span.begin, span.end, night)
    maintainer: Maintainer
    if policy is None:
        maintainer = Cron(world, slots.limits.total)
    else:
        maintainer = SimulatedService(world, policy, slots.limits, every=span.every, pools=slots.pools, on_job=on_job)
    world.run(maintainer, on_progress)
    return world.meter.result()
