"""Jobs: the list of them, and one with its progress, steps, statements, files and log."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Annotated, Any

from fastapi import APIRouter
from starlette.responses import Response

from icewright.app.web import api
from icewright.app.web.api import models
from icewright.app.web.callers import Caller, needs
from icewright.app.web.pages.listing import PAGE, ListParams, pager
from icewright.app.web.pages.live import Fragment, follow
from icewright.app.web.pages.render import Crumb, page, part
from icewright.app.web.pages.urls import table_url
from icewright.core.permissions import Action, place_of
from icewright.core.policy import Operation
from icewright.core.runs import JobState
from icewright.core.table import TableRef

router = APIRouter()
PATH = "/jobs"
_OPEN = (JobState.QUEUED, JobState.RUNNING)
_EVERY = 0.5  # seconds
_EVENTS = 500
_FILES = 100
_TRIGGERS = ("cycle", "service", "manual")

Reader = Annotated[Caller, needs(Action.JOBS_READ)]


@dataclass(slots=True)
class Stage:
    """One operation of a job as far as it has come."""

    operation: Operation
    state: str = "waits"
    started: datetime | None = None
    finished: datetime | None = None
    summary: str = ""
    groups: int = 0
    groups_done: int = 0
    numbers: Mapping[str, Any] = field(default_factory=dict)
    run: models.Run | None = None


@router.get(PATH)
def jobs(caller: Reader) -> Response:
    """One page of them, newest first."""
    asked = ListParams(caller.request.query_params)
    query: dict[str, Any] = {
        "table": asked.text("table"),
        "catalog": asked.text("catalog"),
        "state": asked.some("state", list(JobState)),
        "operation": asked.one("operation", Operation),
        "trigger": asked.text("trigger"),
    }
    found = api.jobs.jobs(
        caller,
        table=query["table"],
        catalog=query["catalog"],
        state=[JobState(state) for state in query["state"]],
        operation=query["operation"],
        trigger=query["trigger"],
        limit=PAGE,
        cursor=asked.text("cursor"),
    )
    return page(
        caller,
        "jobs.html",
        found=found,
        query=query,
        filtered=any(query.values()),
        states=list(JobState),
        operations=list(Operation),
        triggers=_TRIGGERS,
        pager=pager(PATH, query, asked, len(found.items), found.next, None),
    )


@router.get("/jobs/{job_id:segment}")
def job(job_id: str, caller: Reader) -> Response:
    """Render the detail page of a job."""
    shown = _shown(caller, job_id)
    found: models.JobDetail = shown["job"]
    asked = ListParams(caller.request.query_params)
    files = api.jobs.files(found.job_id, caller, limit=_FILES, cursor=asked.text("cursor"))
    crumbs = [Crumb("Jobs", PATH), Crumb(found.table, table_url(found.table))]
    path = f"{PATH}/{found.job_id}"
    live = f"/live/jobs/{found.job_id}" if found.state in _OPEN else ""
    pages = pager(path, {}, asked, len(files.items), files.next, None)
    return page(caller, "job.html", live=live, crumbs=crumbs, files=files.items, pager=pages, **shown)


@router.get("/live/jobs/{job_id:segment}")
def live(job_id: str, caller: Reader) -> Response:
    """How far it has come, until it ends."""
    caller.job(job_id)  # or there is nothing to follow

    def look() -> Fragment:
        shown = _shown(caller, job_id)
        return Fragment(part(caller, "_job.html", **shown), last=shown["job"].state not in _OPEN)

    return follow(caller.request, look, _EVERY)


def _shown(caller: Caller, job_id: str) -> dict[str, Any]:
    found = api.jobs.job(job_id, caller)
    events = _events(caller, found.job_id)
    ref = TableRef.parse(found.table)
    open_still = found.state in _OPEN
    may_cancel = open_still and caller.principal.may(Action.JOBS_CANCEL, place_of(ref)) and not found.cancel_requested
    return {
        "job": found,
        "stages": stages(found, events),
        "events": events,
        "may_cancel": may_cancel,
        "may_undo": _left_to_undo(found) and caller.principal.may(Action.JOBS_UNDO, place_of(ref)),
        "open": open_still,
    }


def _left_to_undo(job: models.JobDetail) -> bool:
    """Return whether the job has ended, and something of it may return."""
    return job.state not in _OPEN and bool(job.waiting or any(removed.undone_at is None for removed in job.removed))


def _events(caller: Caller, job_id: str) -> Sequence[models.Event]:
    found: list[models.Event] = []
    cursor: str | None = None
    while len(found) < _EVENTS:
        page_of = api.jobs.events(job_id, replace(caller, action=Action.JOBS_READ), limit=_EVENTS, cursor=cursor)
        found += page_of.items
        if (cursor := page_of.next) is None:
            break
    return found


def stages(job: models.JobDetail, events: Sequence[models.Event]) -> list[Stage]:
    """Return the job's operations in the order in which they are done, each as far as it has come."""
    known = {operation: Stage(operation) for operation in job.operations}
    for event in events:
        said = event.details
        stage = known.get(said.get("operation", ""))  # a word equals its operation
        if stage is None:
            continue
        if event.kind == "operation_started":
            stage.state, stage.started = "running", event.at
        elif event.kind == "progress":
            stage.groups, stage.groups_done = said.get("groups", stage.groups), said.get("groups_done", 0)
            stage.numbers = {k: v for k, v in said.items() if k not in ("job_id", "operation", "groups", "groups_done")}
        elif event.kind == "operation_finished":
            stage.state, stage.finished, stage.summary = said["state"], event.at, said.get("summary", "")
    for run in job.runs:
        if (stage := known.get(run.operation)) is not None:
            stage.run, stage.state = run, run.state
            stage.started, stage.finished, stage.summary = run.started, run.finished, run.summary
    order = sorted(known.values(), key=lambda s: (s.started is None, s.started or job.created))
    if job.state not in _OPEN:
        for stage in order:
            stage.state = "not done" if stage.state in ("waits", "running") else stage.state
    return order
