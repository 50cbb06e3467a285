"""The overview page: health, queue, savings, cost and alerts of the fleet."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Any

from fastapi import APIRouter
from starlette.responses import Response

from icewright.app.web import api
from icewright.app.web.api import models
from icewright.app.web.callers import Caller, needs
from icewright.app.web.pages import charts
from icewright.app.web.pages.jobs import by_table
from icewright.app.web.pages.render import render_page, stream_template
from icewright.app.web.pages.urls import PAGE, ListParams, TimeRange, with_query
from icewright.core.permissions import Action, touches
from icewright.ports.views import TableSort

router = APIRouter()
_RANGE = TimeRange.FORTNIGHT
_LISTED = 6
_REFRESH_SECONDS = 3.0
_FUNNEL = (
    ("tables", "under maintenance", "/tables"),
    ("changed", "since their last evaluation or job", "/tables?state=changed&state=due&state=busy"),
    ("due", "for work worth its cost", "/tables?state=due&state=busy"),
    ("running", "right now", "/jobs?state=running"),
)
_STATES = ("healthy", "due", "blocked", "busy", "changed", "new", "paused", "unreadable")

Reader = Annotated[Caller, needs(Action.PLAN_READ)]


@dataclass(frozen=True, slots=True)
class Step:
    """One step of the funnel."""

    name: str
    description: str
    url: str
    count: int
    share: float  # of all tables


@router.get("/")
def home(caller: Reader) -> Response:
    """Render the overview of all catalogs."""
    context = _context(caller)
    trend: models.Trend = context["trend"]
    now, period = caller.runtime.clock.now(), context["range"].words
    drawn = [
        *charts.health_and_files(trend, now, period),
        charts.spend(trend, now, period),
        charts.removed(trend, now, period),
    ]
    live = with_query("/live/overview", {"range": context["range"], "catalog": context["catalog"]})
    ranges = [(choice, with_query("/", {"range": choice, "catalog": context["catalog"]})) for choice in TimeRange]
    shown = [chart for chart in drawn if chart is not None]
    return render_page(caller, "home.html", live=live, charts=shown, ranges=ranges, **context)


@router.get("/live/overview")
def live(caller: Reader) -> Response:
    """Stream the overview as it changes."""
    return stream_template(caller, "_home.html", lambda: _context(caller), _REFRESH_SECONDS)


def _context(caller: Caller) -> dict[str, Any]:
    overview = api.overview.overview(caller, days=1)
    params = ListParams(caller.request.query_params)
    chosen = params.one("range", TimeRange) or _RANGE
    catalogs = sorted(name for name in caller.runtime.scopes if touches(caller.visibility, name))
    catalog = next(iter(params.some("catalog", catalogs)), None)
    trend = api.overview.trend(caller, hours=chosen.hours, catalog=catalog)
    tables = replace(caller, action=Action.TABLES_READ)
    worst = caller.cached_briefly("worst", work=lambda: _worst(tables))
    queue = api.jobs.queue(caller, limit=PAGE)
    return {
        "overview": overview,
        "range": chosen,
        "catalog": catalog,
        "catalogs": catalogs,
        "trend": trend,
        "saved": charts.total_savings(trend.points),
        "funnel": _funnel(overview),
        "states": [(name, overview.states[name]) for name in _STATES if overview.states.get(name)],
        "health": charts.health(overview.health, overview.health_unknown),
        "worst": worst,
        "queue": queue,
        "waiting": by_table(queue.waiting),
        "jobs": api.jobs.jobs(replace(caller, action=Action.JOBS_READ), limit=_LISTED).items,
        "alerts": api.system.alerts(replace(caller, action=Action.ALERTS_READ), resolved=False, limit=_LISTED),
    }


def _worst(caller: Caller) -> list[models.Table]:
    """Return the tables that are worst off: those that cannot be read, then the least healthy."""
    by_health: dict[str, Any] = {"sort": TableSort.HEALTH, "limit": _LISTED}
    readable: Any = [state for state in _STATES if state != "unreadable"]
    unreadable = api.tables.tables(caller, state=["unreadable"], **by_health)
    least = api.tables.tables(caller, state=readable, health_below=101, **by_health)
    return [*unreadable.items, *least.items][:_LISTED]


def _funnel(overview: models.Overview) -> list[Step]:
    total = max(1, overview.funnel["tables"])
    return [
        Step(name, description, url, overview.funnel[name], overview.funnel[name] / total)
        for name, description, url in _FUNNEL
    ]
