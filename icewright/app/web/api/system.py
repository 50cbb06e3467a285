"""Routes of pools, processes and alerts."""

from __future__ import annotations

from dataclasses import asdict, replace
from datetime import datetime, timedelta
from typing import Annotated, Any

from fastapi import Path, Query
from pydantic import BaseModel, Field

from icewright.app.web.api.models.requests import Instant, RequestBody, Text
from icewright.app.web.api.paging import Limit
from icewright.app.web.callers import Caller, api_router, needs
from icewright.app.web.problems import Problem, documented
from icewright.core.alerts import Acknowledgement, Alert, Severity
from icewright.core.cadence import Cadence
from icewright.core.errors import ChannelUnavailable
from icewright.core.permissions import Action, place_of
from icewright.ports import AlertQuery

router = api_router("system")

AlertId = Annotated[int, Path(description="as `GET /alerts` names it", ge=0, lt=1 << 63)]


class PoolModel(BaseModel):
    """A Spark pool with its limits and load."""

    name: str
    max_concurrent: int
    now: int = Field(description="jobs that it is given, as adapted to its load")
    gb_hours_per_day: float | None
    gb_hour_price: float | None = Field(description="of its own, else that of `limits`")
    spent_today: float


class ProcessModel(BaseModel):
    """A service or a worker."""

    holder: str
    kind: str
    started: datetime
    heartbeat: datetime
    slots: int
    drain_since: datetime | None = Field(description="when it was asked to take no more jobs")
    details: dict[str, Any] = Field(description="load, faults and places; empty for who is bound to some tables")


class AlertModel(BaseModel):
    """An alert, and who was told."""

    id: int
    rule: str
    severity: Severity
    subject: str
    table: str | None
    message: str
    since: datetime
    raised_at: datetime | None
    resolved_at: datetime | None
    told: list[str] = Field(description="channels, by name")
    acknowledgement: AcknowledgementModel | None


class AcknowledgementModel(BaseModel):
    """The person who takes care of an alert, with a note."""

    author: str
    at: datetime
    note: str
    silent_until: datetime | None = Field(description="until then no channel is told that the alert begins")


class AcknowledgementRequest(RequestBody):
    """A request to acknowledge an alert; with hours, no channel is told about it for so long."""

    note: Text = ""
    silent_hours: Annotated[int, Field(ge=1, le=24 * 30)] | None = Field(
        None, description="for how long channels are left in silence, also when the alert ends and begins again"
    )


class Tested(BaseModel):
    """The result of a test message to a channel."""

    channel: str
    ok: bool
    error: str | None


@router.get("/pools", summary="Spark pools")
def pools(caller: Annotated[Caller, needs(Action.SYSTEM_READ)]) -> list[PoolModel]:
    """Return pools with configured and adapted limits, and GB-hours spent today."""
    runtime, limits = caller.runtime, caller.runtime.limits()
    midnight = Cadence.DAILY.start(runtime.clock.now())
    spent, adapted = runtime.store.planning.usage(midnight).spent_by_pool, runtime.store.planning.pool_limits()
    return [
        PoolModel(
            name=name,
            max_concurrent=pool.max_concurrent,
            now=min(pool.max_concurrent, adapted.get(name, pool.max_concurrent)),
            gb_hours_per_day=pool.gb_hours_per_day,
            gb_hour_price=limits.money(1.0, name),
            spent_today=spent.get(name, 0.0),
        )
        for name, pool in sorted(limits.pools.items())
    ]


@router.get("/processes", summary="Services and workers")
def processes(caller: Annotated[Caller, needs(Action.SYSTEM_READ)]) -> list[ProcessModel]:
    """Return services and workers, including those without heartbeat; details, which name tables, to who sees all."""
    rows, names = caller.runtime.store.processes.list(), ProcessModel.model_fields
    if caller.visibility is not None:
        rows = [replace(row, details={}) for row in rows]
    return [ProcessModel(**{n: getattr(row, n) for n in names}) for row in rows]


@router.get("/alerts", summary="Alerts", tags=["alerts"])
def alerts(
    caller: Annotated[Caller, needs(Action.ALERTS_READ)],
    resolved: Annotated[bool, Query(description="those too that are over")] = False,
    severity: Annotated[Severity | None, Query()] = None,
    since: Annotated[Instant | None, Query(description="over then or later, or begun if still open")] = None,
    search: Annotated[Text | None, Query(description="part of what it is about, in any case")] = None,
    limit: Limit = 100,
) -> list[AlertModel]:
    """Return alerts, newest first; scoped callers see alerts of their tables."""
    return listed(caller, AlertQuery(None if resolved else False, severity, since, search=search), limit)


def listed(caller: Caller, query: AlertQuery, limit: int) -> list[AlertModel]:
    """Return the alerts of a query that the caller may see, newest first."""
    query = replace(query, visibility=caller.principal.visibility(Action.ALERTS_READ))
    return [_alert(alert) for alert in caller.runtime.store.alerts.list(query, limit)]


@router.post("/alerts/test", summary="Send a test message", tags=["alerts"])
def test(caller: Annotated[Caller, needs(Action.ALERTS_TEST)]) -> list[Tested]:
    """Send a test message to every configured channel."""
    caller.require((), "the alert channels")
    alerting = getattr(caller.app, "alerting", None)
    channels = alerting.channels if alerting is not None else {}
    body = "Icewright sends its alerts to this channel. This is a test."
    results: list[Tested] = []
    for name, channel in channels.items():
        error: str | None = None
        try:
            channel.send("[test] Icewright", body, Severity.INFO)
        except ChannelUnavailable as failure:
            error = str(failure)
        results.append(Tested(channel=name, ok=error is None, error=error))
    caller.audit("the alert channels", (), channels=len(results))
    return results


@router.put(
    "/alerts/{alert_id}/acknowledgement", summary="Acknowledge an alert", tags=["alerts"], responses=documented(404)
)
def acknowledge(
    alert_id: AlertId, body: AcknowledgementRequest, caller: Annotated[Caller, needs(Action.ALERTS_ACKNOWLEDGE)]
) -> AlertModel:
    """Note who takes care of an open alert, and silence it for a time; replaces an earlier acknowledgement."""
    now = caller.runtime.clock.now()
    until = now + timedelta(hours=body.silent_hours) if body.silent_hours else None
    given = Acknowledgement(caller.principal.name, now, body.note.strip(), until)
    return _acknowledge(caller, alert_id, given, note=given.note, silent_until=until and until.isoformat())


@router.delete("/alerts/{alert_id}/acknowledgement", summary="Withdraw it", tags=["alerts"], responses=documented(404))
def withdraw(alert_id: AlertId, caller: Annotated[Caller, needs(Action.ALERTS_ACKNOWLEDGE)]) -> AlertModel:
    """Withdraw the acknowledgement of an open alert, with its silence."""
    return _acknowledge(caller, alert_id, None, withdrawn=True)


def _acknowledge(caller: Caller, alert_id: int, given: Acknowledgement | None, **details: Any) -> AlertModel:
    store, visibility = caller.runtime.store.alerts, caller.principal.visibility(Action.ALERTS_READ)
    alert = next(iter(store.list(AlertQuery(alert_id=alert_id, visibility=visibility))), None)
    missing = Problem(404, f"there is no open alert {alert_id}, or it is not yours to see")
    if alert is None:
        raise missing
    place = place_of(alert.ref) if alert.ref else ()
    caller.require(place, f"alert {alert.key}")
    if not store.acknowledge(alert_id, given):
        raise missing  # it has just ended
    caller.audit(f"alert {alert.key}", place, **details)
    return _alert(replace(alert, acknowledgement=given))


def _alert(alert: Alert) -> AlertModel:
    names = ("id", "severity", "subject", "message", "since", "raised_at", "resolved_at")
    notified = sorted({delivery.channel for delivery in alert.deliveries if not delivery.resolved and delivery.told_at})
    return AlertModel(
        **{name: getattr(alert, name) for name in names},
        rule=str(alert.rule),
        table=str(alert.ref) if alert.ref else None,
        told=notified,
        acknowledgement=AcknowledgementModel(**asdict(alert.acknowledgement)) if alert.acknowledgement else None,
    )
