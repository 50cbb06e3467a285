"""Route of the overview of the fleet."""

from __future__ import annotations

from dataclasses import asdict
from datetime import datetime, timedelta
from typing import Annotated

from fastapi import Query

from icewright.app.web.api import models
from icewright.app.web.callers import Caller, api_router, needs
from icewright.app.web.problems import documented
from icewright.core.cadence import Cadence
from icewright.core.permissions import Action
from icewright.core.policy import Operation
from icewright.ports.views import RunQuery, TrendStep

_MINUTELY, _HOURLY = 2, 48  # hours up to which a trend has a step for each minute, and for each hour
_LONGEST = 366 * 24
router = api_router("overview")


@router.get("/overview", summary="Overview of the fleet")
def overview(
    caller: Annotated[Caller, needs(Action.PLAN_READ)],
    days: Annotated[int, Query(ge=1, le=366, description="of spending")] = 14,
) -> models.Overview:
    """Return counts of tables, health, verdicts and jobs, spending per day and open alerts."""
    runtime, visibility = caller.runtime, caller.visibility
    midnight = Cadence.DAILY.start(runtime.clock.now())
    since = midnight - timedelta(days=days - 1)
    totals = caller.cached_briefly("overview", since, work=lambda: runtime.store.views.overview(visibility, since))
    verdicts: dict[Operation, dict[str, int]] = {operation: {} for operation in Operation}
    for (operation, verdict), count in totals.verdicts.items():
        verdicts[Operation(operation)][verdict] = count
    return models.Overview(
        funnel={name: getattr(totals, name) for name in ("tables", "changed", "due", "running")},
        states=dict(totals.states),
        health=list(totals.health),
        health_unknown=totals.unknown,
        verdicts=verdicts,
        jobs=dict(totals.jobs),
        saved=models.Saved(**asdict(totals.saved)),
        spend=[models.Spent(**asdict(spent)) for spent in totals.spend],
        alerts=dict(runtime.store.alerts.count_open(visibility)),
    )


@router.get("/trend", summary="Health, and what runs cost and removed, over time", responses=documented(404))
def trend(
    caller: Annotated[Caller, needs(Action.PLAN_READ)],
    hours: Annotated[int, Query(ge=1, le=_LONGEST, description="up to now")] = 14 * 24,
    catalog: Annotated[models.Text | None, Query(description="only this catalog")] = None,
    table: Annotated[models.Text | None, Query(description="catalog.namespace.table")] = None,
) -> models.Trend:
    """Return the sums of runs by pool for each minute (up to 2 hours), hour (up to 48 hours) or day; health by day."""
    runtime = caller.runtime
    ref = caller.table(table).ref if table is not None else None
    since, step = steps_since(runtime.clock.now(), hours)
    views, query = runtime.store.views, RunQuery(ref, catalog)
    totals = caller.cached_briefly(
        "trend", *(since, step, ref, catalog), work=lambda: views.trend(caller.visibility, since, step, query)
    )
    sums = [models.TrendStepSums(at=p.at, pool=p.pool, saved=models.Saved(**asdict(p.saved))) for p in totals.points]
    days = [models.HealthDay(**asdict(point)) for point in totals.health]
    return models.Trend(since=since, step=step, points=sums, health=days)


def steps_since(now: datetime, hours: int) -> tuple[datetime, TrendStep]:
    """Return the beginning of the first step of a trend up to now, and the length of its steps."""
    if hours <= _MINUTELY:
        step, begun = TrendStep.MINUTE, now.replace(second=0, microsecond=0)
    elif hours <= _HOURLY:
        step, begun = TrendStep.HOUR, Cadence.HOURLY.start(now)
    else:
        step, begun = TrendStep.DAY, Cadence.DAILY.start(now)
    return begun + step.length - timedelta(hours=hours), step
