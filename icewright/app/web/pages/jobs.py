"""The pages of jobs: the list, one job with progress, statements, files and log, and the queue."""

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
from icewright.app.web.pages.render import (
    Crumb,
    Fragment,
    render_fragment,
    render_page,
    stream_fragments,
    stream_template,
)
from icewright.app.web.pages.urls import PAGE, ListParams, TimeRange, pager, since, table_url, with_query
from icewright.app.web.problems import Problem
from icewright.core.permissions import Action, place_of, touches
from icewright.core.policy import Operation
from icewright.core.runs import JobState
from icewright.core.table import TableRef
from icewright.flow.erase import ERASE
from icewright.ports.views import STATES, TableSort

router = APIRouter()
PATH = "/jobs"
_OPEN = (JobState.QUEUED, JobState.RUNNING)
_REFRESH_SECONDS, _LIST_SECONDS = 0.5, 2.0
_EVENTS = 500
_TRIGGERS = ("cycle", "service", "manual")

Reader = Annotated[Caller, needs(Action.JOBS_READ)]
QUEUE_PATH = "/queue"
_QUEUE_SECONDS = 2.0
_NEXT = 10  # tables whose next evaluation is shown below what waits
_SHOWS = {"": "Running and waiting", "next": "Next evaluations"}
_NOT_EVALUATED = ("busy", "paused", "dropped")  # as long as they are in that state
QueueReader = Annotated[Caller, needs(Action.PLAN_READ)]


@dataclass(slots=True)
class Stage:
    """Progress of one operation of a job."""

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
    """Render a page of jobs, newest first; the first page follows what happens."""
    context = _list_context(caller)
    live = ListParams(caller.request.query_params).live("/live/jobs", context["query"])
    choices: dict[str, Any] = {
        "catalogs": _catalogs(caller),
        "states": list(JobState),
        "operations": list(Operation),
        "triggers": _TRIGGERS,
        "all": list(TimeRange),
    }
    return render_page(caller, "jobs.html", live=live, **choices, **context)


@router.get("/live/jobs")
def live_jobs(caller: Reader) -> Response:
    """Stream the first page of jobs as it changes."""
    return stream_template(caller, "_jobs.html", lambda: _list_context(caller), _LIST_SECONDS)


def _catalogs(caller: Caller) -> list[str]:
    return sorted(name for name in caller.runtime.scopes if touches(caller.visibility, name))


def _list_context(caller: Caller) -> dict[str, Any]:
    params = ListParams(caller.request.query_params)
    chosen = params.one("range", TimeRange)
    query: dict[str, Any] = {
        "table": params.text("table"),
        "search": params.text("search"),
        "catalog": params.text("catalog"),
        "state": params.some("state", list(JobState)),
        "operation": params.one("operation", Operation),
        "trigger": params.text("trigger"),
        "range": chosen,
    }
    page = api.jobs.jobs(
        caller,
        table=query["table"],
        search=query["search"],
        catalog=query["catalog"],
        state=[JobState(state) for state in query["state"]],
        operation=query["operation"],
        trigger=query["trigger"],
        since=since(chosen, caller.runtime.clock.now()),
        limit=PAGE,
        cursor=params.text("cursor"),
    )
    pages = pager(PATH, query, params, len(page.items), page.next, None)
    return {"listing": page, "query": query, "filtered": any(query.values()), "pager": pages}


@router.get("/jobs/{job_id:segment}")
def job(job_id: str, caller: Reader) -> Response:
    """Render the detail page of a job."""
    context = _context(caller, job_id)
    detail: models.JobDetail = context["job"]
    params = ListParams(caller.request.query_params)
    files = api.jobs.files(detail.job_id, caller, limit=PAGE, cursor=params.text("cursor"))
    crumbs = [Crumb("Jobs", PATH), Crumb(detail.table, table_url(detail.table))]
    path = f"{PATH}/{detail.job_id}"
    live = f"/live/jobs/{detail.job_id}" if detail.state in _OPEN else ""
    pages = pager(path, {}, params, len(files.items), files.next, None)
    return render_page(caller, "job.html", live=live, crumbs=crumbs, files=files.items, pager=pages, **context)


@router.get("/live/jobs/{job_id:segment}")
def live(job_id: str, caller: Reader) -> Response:
    """Stream the progress of a job until it ends."""

    def look() -> Fragment:
        context = _context(caller, job_id)
        return Fragment(render_fragment(caller, "_job.html", **context), last=context["job"].state not in _OPEN)

    return stream_fragments(caller, look, _REFRESH_SECONDS)


def _context(caller: Caller, job_id: str) -> dict[str, Any]:
    detail = api.jobs.job(job_id, caller)
    events = _events(caller, detail.job_id)
    ref = TableRef.parse(detail.table)
    is_open = detail.state in _OPEN
    may_cancel = is_open and caller.principal.may(Action.JOBS_CANCEL, place_of(ref)) and not detail.cancel_requested
    return {
        "job": detail,
        "stages": stages(detail, events),
        "events": events,
        "may_cancel": may_cancel,
        "may_undo": _is_undoable(detail) and caller.principal.may(Action.JOBS_UNDO, place_of(ref)),
        "open": is_open,
        "result": None if is_open else _result(caller, detail, ref),
        "may_run": caller.principal.may(Action.JOBS_RUN, place_of(ref)),
        "may_repair": caller.principal.may(Action.TABLES_RESTORE, place_of(ref)),
    }


def _result(caller: Caller, job: models.JobDetail, ref: TableRef) -> models.Result | None:
    """Return what a job without operations found, for those who may read it."""
    needed = Action.TABLES_ERASE if job.work == ERASE else Action.JOBS_READ
    if not job.has_result or not caller.principal.may(needed, place_of(ref)):
        return None
    return api.recovery.result(job.job_id, replace(caller, action=needed))


def _is_undoable(job: models.JobDetail) -> bool:
    """Return whether the job has ended and an undo could restore something."""
    deleted = any(run.metrics.get("files_deleted") for run in job.runs)  # with the manifest list of each snapshot
    removed = any(removed.undone_at is None for removed in job.removed) and not deleted
    return job.state not in _OPEN and bool(job.waiting or removed)


def _events(caller: Caller, job_id: str) -> Sequence[models.Event]:
    events: list[models.Event] = []
    cursor: str | None = None
    while len(events) < _EVENTS:
        chunk = api.jobs.events(job_id, replace(caller, action=Action.JOBS_READ), limit=_EVENTS, cursor=cursor)
        events += chunk.items
        if (cursor := chunk.next) is None:
            break
    return events


def stages(job: models.JobDetail, events: Sequence[models.Event]) -> list[Stage]:
    """Return the progress of the job's operations, in order of start."""
    by_operation = {
        operation: Stage(operation) for operation in (*job.operations, *(run.operation for run in job.runs))
    }
    for event in events:
        details = event.details
        stage = by_operation.get(details.get("operation", ""))  # an operation equals its text
        if stage is None:
            continue
        if event.kind == "operation_started":
            stage.state, stage.started = "running", event.at
        elif event.kind == "progress":
            stage.groups, stage.groups_done = details.get("groups", stage.groups), details.get("groups_done", 0)
            stage.numbers = {
                k: v for k, v in details.items() if k not in ("job_id", "operation", "groups", "groups_done")
            }
        elif event.kind == "operation_finished":
            stage.state, stage.finished, stage.summary = details["state"], event.at, details.get("summary", "")
    for run in job.runs:
        if (stage := by_operation.get(run.operation)) is not None:
            stage.run, stage.state = run, run.state
            stage.started, stage.finished, stage.summary = run.started, run.finished, run.summary
    order = sorted(by_operation.values(), key=lambda s: (s.started is None, s.started or job.created))
    if job.state not in _OPEN:
        for stage in order:
            stage.state = "not done" if stage.state in ("waits", "running") else stage.state
    return order


@router.get(QUEUE_PATH)
def queue(caller: QueueReader) -> Response:
    """Render open jobs, due operations by position, and what is evaluated next; or all that is evaluated next."""
    context = _queue_context(caller)
    query, show = context["query"], context["show"]
    tabs = [(key, title, with_query(QUEUE_PATH, {**query, "show": key})) for key, title in _SHOWS.items()]
    choices: dict[str, Any] = {
        "catalogs": _catalogs(caller),
        "operations": list(Operation),
    }
    live = ListParams(caller.request.query_params).live("/live/queue", {**query, "show": show})
    return render_page(caller, "queue.html", live=live, tabs=tabs, **choices, **context)


@router.get("/live/queue")
def live_queue(caller: QueueReader) -> Response:
    """Stream the queue as it changes."""
    return stream_template(caller, "_queue.html", lambda: _queue_context(caller), _QUEUE_SECONDS)


def _queue_context(caller: Caller) -> dict[str, Any]:
    params = ListParams(caller.request.query_params)
    show = params.text("show") or ""
    if show not in _SHOWS:
        raise Problem(404, f"the queue has no part {show}")
    query: dict[str, Any] = {name: params.text(name) for name in ("search", "catalog")}
    query["operation"] = params.one("operation", Operation)
    context = {"show": show, "query": query, "filtered": any(query.values())}
    return context | (_next_context(caller, params, query) if show else _waiting_context(caller, params, query))


def _waiting_context(caller: Caller, params: ListParams, query: Mapping[str, Any]) -> dict[str, Any]:
    queue = api.jobs.queue(caller, **query, limit=PAGE, cursor=params.text("cursor"))
    may = caller.principal.may
    following = _evaluated_next(caller, query, _NEXT, None)
    return {
        "queue": queue,
        "most": PAGE,
        "cancellable": {
            job.job_id
            for job in queue.jobs
            if not job.cancel_requested and may(Action.JOBS_CANCEL, place_of(TableRef.parse(job.table)))
        },
        "waiting": by_table(queue.waiting),
        "pager": pager(QUEUE_PATH, query, params, len(queue.waiting), queue.next, queue.total),
        "following": [(table, _may_become_due(caller, table)) for table in following.items if table.evaluate_at],
        "evaluated": following.total,
        "following_url": with_query(QUEUE_PATH, {**query, "operation": None, "show": "next"}),
    }


def by_table(waiting: Sequence[models.Waiting]) -> list[list[models.Waiting]]:
    """Return due operations by table and place, in their order."""
    groups: dict[tuple[str, int | None], list[models.Waiting]] = {}
    for item in waiting:
        groups.setdefault((item.table, item.position), []).append(item)
    return list(groups.values())


def _next_context(caller: Caller, params: ListParams, query: Mapping[str, Any]) -> dict[str, Any]:
    page = _evaluated_next(caller, query, PAGE, params.text("cursor"))
    shown = {**query, "show": "next"}
    return {
        "following": [(table, _may_become_due(caller, table)) for table in page.items],
        "evaluated": page.total,
        "pager": pager(QUEUE_PATH, shown, params, len(page.items), page.next, page.total),
    }


def _evaluated_next(caller: Caller, query: Mapping[str, Any], limit: int, cursor: str | None) -> models.Tables:
    """Return the tables in the order of their next evaluations."""
    states: Any = [state for state in STATES if state not in _NOT_EVALUATED]
    among = {name: query[name] for name in ("search", "catalog")}
    reader = replace(caller, action=Action.TABLES_READ)
    return api.tables.tables(reader, state=states, sort=TableSort.NEXT, limit=limit, cursor=cursor, **among)


def _may_become_due(caller: Caller, table: models.Table) -> list[str]:
    """Return the operations that time alone may make due until the table's next evaluation."""
    ref = TableRef.parse(table.table)
    found = caller.cached_until_change("evaluation", ref, work=lambda: caller.runtime.store.tables.evaluation(ref))
    if found is None or table.evaluate_at is None:
        return []
    times = [(datetime.fromisoformat(v["revisit"]), v["operation"]) for v in found["verdicts"] if "revisit" in v]
    return [operation for at, operation in times if at <= table.evaluate_at]
