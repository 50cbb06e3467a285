"""The page of a table: health, runs, snapshots, recovery and settings."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Annotated, Any

from fastapi import APIRouter
from starlette.responses import Response

from icewright.app.web import api
from icewright.app.web.api import models
from icewright.app.web.callers import Caller, needs
from icewright.app.web.pages import charts, table_view
from icewright.app.web.pages.render import Crumb, render_page, stream_template
from icewright.app.web.pages.urls import PAGE, ListParams, TimeRange, pager, table_url, with_query
from icewright.app.web.problems import Problem
from icewright.core.errors import IcewrightError
from icewright.core.permissions import DELETING, Action, place_of
from icewright.core.rewriting import HOT_MINUTES
from icewright.core.table import TableRef
from icewright.ports.views import WaitingItem, WaitingQuery

router = APIRouter()
TABS = (("", "Health"), ("runs", "Runs"), ("snapshots", "Snapshots"), ("recovery", "Recovery"), ("knobs", "Settings"))
_SNAPSHOTS = 100
_SECONDS = 3.0  # between two looks of a page that follows

Reader = Annotated[Caller, needs(Action.TABLES_READ)]


@router.get("/tables/{name:named}")
def table(name: str, caller: Reader) -> Response:
    """Render a tab of a table below its state and actions, which follow what happens."""
    show, context = _context(name, caller, secrets.token_urlsafe(12))
    crumbs = _crumbs(context["ref"])
    query = caller.request.query_params
    part = {name: query.get(name) for name in ("show", "range", "cursor", "from")}
    live = with_query("/live" + table_url(context["ref"]), part)
    if show:  # the tab of the health follows with the state, and so do the runs
        context |= _tab(show, caller, context)
    return render_page(caller, "table.html", live=live, crumbs=crumbs, **context)


@router.get("/live/tables/{name:named}")
def live(name: str, caller: Reader) -> Response:
    """Stream the state of a table and its health or runs as they change; forms have one key all the time."""
    key = secrets.token_urlsafe(12)
    return stream_template(caller, "_table.html", lambda: _context(name, caller, key)[1], _SECONDS)


def _context(name: str, caller: Caller, key: str) -> tuple[str, dict[str, Any]]:
    """Return which tab is shown, and the state of the table with what follows on that tab: health or runs."""
    detail = api.tables.table(name, caller)
    params = ListParams(caller.request.query_params)
    show = params.text("show") or ""
    if show not in dict(TABS):
        raise Problem(404, f"a table has no tab {show}")
    ref = TableRef.parse(detail.table)
    waiting = caller.runtime.store.views.list_waiting(WaitingQuery(ref), caller.visibility, None, 20).items
    trend = api.overview.trend(caller, hours=TimeRange.QUARTER.hours, table=detail.table)
    context: dict[str, Any] = {
        "table": detail,
        "ref": ref,
        "shows": [(key, title, table_url(ref, show=key)) for key, title in TABS],
        "show": show,
        "next": table_view.outlook(detail, waiting),
        "saved": charts.total_savings(trend.points),
        "range_of_saved": TimeRange.QUARTER,
        "may_act": _permissions(caller, ref),
        "key": key,
    }
    if not show:
        context |= _health(caller, detail, waiting)
    elif show == "runs":
        context |= _runs(caller, detail, params)
    return show, context


def _tab(show: str, caller: Caller, context: dict[str, Any]) -> dict[str, Any]:
    detail: models.TableDetail = context["table"]
    match show:
        case "runs":
            drawn = _charts(caller, detail, context["recent"], context["range"])
            return {"side": "_table_charts.html", "charts": drawn}
        case "snapshots":
            return {"side": "_table_snapshots.html", **_snapshots(caller, detail)}
        case "recovery":
            costs = ListParams(caller.request.query_params).text("costs") == "yes"
            points, fault = _try_read(lambda: api.recovery.points(detail.table, caller, costs=costs))
            return {"side": "_table_recovery.html", "points": points, "fault": fault}
    return {"side": "_table_knobs.html", **_knobs(caller, detail)}


def _runs(caller: Caller, detail: models.TableDetail, params: ListParams) -> dict[str, Any]:
    chosen = params.one("range", TimeRange) or TimeRange.MONTH
    since, reader = chosen.since(caller.runtime.clock.now()), replace(caller, action=Action.JOBS_READ)
    page = api.jobs.runs(reader, table=detail.table, since=since, limit=PAGE, cursor=params.text("cursor"))
    query = {"show": "runs", "range": chosen}
    return {
        "recent": page.items,
        "pager": pager(table_url(detail.table), query, params, len(page.items), page.next, None),
        "range": chosen,
        "ranges": [(choice, table_url(detail.table, show="runs", range=choice)) for choice in TimeRange],
    }


def _charts(
    caller: Caller, detail: models.TableDetail, runs: Sequence[models.Run], chosen: TimeRange
) -> list[charts.Chart]:
    now, reader = caller.runtime.clock.now(), replace(caller, action=Action.JOBS_READ)
    trend = api.overview.trend(reader, hours=chosen.hours, table=detail.table)
    drawn = (
        *charts.health_and_files(trend, now, chosen.words),
        charts.file_history(runs),
        charts.removed(trend, now, chosen.words),
        charts.spend(trend, now, chosen.words),
        charts.costs(runs),
    )
    return [chart for chart in drawn if chart is not None]


def _health(caller: Caller, detail: models.TableDetail, waiting: Sequence[WaitingItem]) -> dict[str, Any]:
    ref = TableRef.parse(detail.table)
    hot = caller.runtime.policy().knobs_for(ref, None)[HOT_MINUTES]
    return {
        "parts": table_view.parts(detail),
        "sizes": table_view.sizes(detail.facts),
        "partitions": table_view.partitions(detail.facts, caller.runtime.clock.now(), hot),
        "operations": table_view.operations(detail, waiting),
        "deleting": DELETING,
    }


def _snapshots(caller: Caller, detail: models.TableDetail) -> dict[str, Any]:
    params, path = ListParams(caller.request.query_params), table_url(detail.table)
    cursor = params.text("cursor")
    found, fault = _try_read(lambda: api.tables.snapshots(detail.table, caller, limit=_SNAPSHOTS, cursor=cursor))
    if found is None:
        return {"snapshots": None, "fault": fault}
    pages = pager(path, {"show": "snapshots"}, params, len(found.items), found.next, found.total)
    line = table_view.timeline_of(found, caller.runtime.clock.now())
    return {"snapshots": found, "line": line, "pager": pages, "fault": fault}


def _knobs(caller: Caller, detail: models.TableDetail) -> dict[str, Any]:
    knobs, fault = _try_read(lambda: api.tables.knobs(detail.table, caller))
    every = ListParams(caller.request.query_params).text("all") == "yes"
    groups = table_view.knobs(knobs.knobs, every=every) if knobs is not None else []
    ignored = knobs.ignored_properties if knobs is not None else []
    return {"groups": groups, "every": every, "ignored": ignored, "fault": fault}


def _try_read(read: Callable[[], Any]) -> tuple[Any, str]:
    """Return `read()`, or None and the error message; the rest of the page renders without it."""
    try:
        return read(), ""
    except Problem as problem:
        return None, problem.detail
    except IcewrightError as error:
        return None, f"the table's metadata cannot be read now ({type(error).__name__})"


def _permissions(caller: Caller, ref: TableRef) -> dict[str, bool]:
    return {action.name.lower(): caller.principal.may(action, place_of(ref)) for action in Action}


def _crumbs(ref: TableRef) -> list[Crumb]:
    namespace = str(TableRef("c", ref.namespace, "t")).removeprefix("c.").removesuffix(".t")
    return [
        Crumb("Tables", "/tables"),
        Crumb(ref.catalog, with_query("/tables", {"catalog": ref.catalog})),
        Crumb(".".join(ref.namespace), with_query("/tables", {"catalog": ref.catalog, "namespace": namespace})),
    ]
