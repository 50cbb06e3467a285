"""Route of the overview of the fleet."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from datetime import timedelta
from typing import Annotated

from fastapi import APIRouter, Query

from icewright.app.web.api import models
from icewright.app.web.callers import Caller, needs, x_permission
from icewright.app.web.problems import documented
from icewright.app.web.threads import SingleThreadRoute
from icewright.core.permissions import Action, place_of, sees
from icewright.core.policy import Operation

router = APIRouter(
    tags=["overview"], responses=documented(400, 401, 403, 408, 413, 422, 429, 503), route_class=SingleThreadRoute
)


@router.get("/overview", summary="Overview of the fleet", openapi_extra=x_permission(Action.PLAN_READ))
def overview(
    caller: Annotated[Caller, needs(Action.PLAN_READ)],
    days: Annotated[int, Query(ge=1, le=366, description="of spending")] = 14,
) -> models.Overview:
    """Return counts of tables, health, verdicts and jobs, spending per day and open alerts."""
    runtime, visibility = caller.runtime, caller.visibility
    midnight = runtime.clock.now().replace(hour=0, minute=0, second=0, microsecond=0)
    since = midnight - timedelta(days=days - 1)
    totals = caller.cached_briefly("overview", since, work=lambda: runtime.store.views.overview(visibility, since))
    verdicts: dict[Operation, dict[str, int]] = {operation: {} for operation in Operation}
    for (operation, verdict), count in totals.verdicts.items():
        verdicts[Operation(operation)][verdict] = count
    alerts = [
        a for a in runtime.store.alerts.list() if visibility is None or (a.ref and sees(visibility, place_of(a.ref)))
    ]
    return models.Overview(
        funnel={name: getattr(totals, name) for name in ("tables", "changed", "due", "running")},
        states=dict(totals.states),
        health=list(totals.health),
        health_unknown=totals.unknown,
        verdicts=verdicts,
        jobs=dict(totals.jobs),
        saved=models.Saved(**asdict(totals.saved)),
        spend=[models.Spent(**asdict(spent)) for spent in totals.spend],
        alerts=dict(Counter(str(alert.severity) for alert in alerts)),
    )
