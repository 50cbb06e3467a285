"""Changes by forms: each is what the API does, and leads back to a page that shows what became of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

from fastapi import APIRouter
from pydantic import ValidationError
from starlette.responses import Response

from icewright.app.web import api
from icewright.app.web.api import models
from icewright.app.web.pages.forms import Submission, submitted
from icewright.app.web.pages.render import Crumb, go, page
from icewright.app.web.pages.urls import table_url
from icewright.app.web.problems import Problem
from icewright.core.errors import CommitConflict, TerminalError, UsageError
from icewright.core.permissions import Action
from icewright.core.policy import Operation
from icewright.core.table import TableRef

router = APIRouter(prefix="/do")
_BACK = (409, 422)  # what the page itself can say
_REASON = "paused on the table's page"


@router.post("/run")
def run(submission: Annotated[Submission, submitted(Action.JOBS_DRY_RUN)]) -> Response:
    """Start operations, or say what they would do."""
    table, form = _table(submission), submission.form
    back = table_url(table)
    wanted = [op for op in Operation if op in form.all("operation")]
    if not wanted:
        return go(back, "Choose at least one operation.", "warn")
    dry_run = form.one("how") == "dry_run"
    asked = models.JobRequest(operations=wanted, dry_run=dry_run, force=form.one("force") == "yes")
    try:
        started = api.triggers.start(table, asked, Response(), submission.caller, form.one("key")[:200] or None)
    except Problem as problem:
        return _told(problem, back)
    if dry_run:
        crumbs = [Crumb("Tables", "/tables"), Crumb(table, back)]
        return page(submission.caller, "dry_run.html", started=started, crumbs=crumbs)
    said = f"Started {', '.join(str(op).replace('_', ' ') for op in wanted)}: {started.summary}."
    return go(f"/jobs/{started.job_id}", said)


@router.post("/cancel")
def cancel(submission: Annotated[Submission, submitted(Action.JOBS_CANCEL)]) -> Response:
    """Ask a job to stop."""
    job_id = submission.form.one("job")
    try:
        job = api.jobs.cancel(job_id, submission.caller)
    except Problem as problem:
        return _told(problem, f"/jobs/{submission.caller.job(job_id).job_id}")
    said = "It is cancelled." if job.state == "cancelled" else "It was asked to stop, and does so before its next step."
    return go(f"/jobs/{job.job_id}", said, "warn")


@router.post("/undo")
def undo(submission: Annotated[Submission, submitted(Action.JOBS_UNDO)]) -> Response:
    """Say what an undo would bring back, and ask; or do it."""
    job_id = submission.form.one("job")
    found = submission.caller.job(job_id)
    back, confirmed = f"/jobs/{found.job_id}", submission.form.one("how") == "undo"
    try:
        undone = api.deletions.undo(found.job_id, models.UndoRequest(dry_run=not confirmed), submission.caller)
    except (TerminalError, CommitConflict) as error:
        return go(back, f"{error}.", "bad")
    if undone.dry_run and not undone.already:
        crumbs = [Crumb("Jobs", "/jobs"), Crumb(undone.table, table_url(undone.table)), Crumb("Job", back)]
        return page(submission.caller, "undo.html", undone=undone, crumbs=crumbs)
    return go(back, f"{undone.summary[:1].upper()}{undone.summary[1:]}.")


@router.post("/pause")
def pause(submission: Annotated[Submission, submitted(Action.TABLES_PAUSE)]) -> Response:
    """Keep a table from being maintained by itself."""
    table = _table(submission)
    try:
        asked = models.PauseRequest(reason=submission.form.one("reason").strip() or _REASON)
    except ValidationError:
        return go(table_url(table), "The reason is too long.", "bad")
    return _changed(
        table, lambda: api.tables.pause(table, asked, submission.caller), "Paused: it is left alone until resumed."
    )


@router.post("/resume")
def resume(submission: Annotated[Submission, submitted(Action.TABLES_PAUSE)]) -> Response:
    """Let it be maintained again."""
    table = _table(submission)
    return _changed(table, lambda: api.tables.resume(table, submission.caller), "Resumed: it is maintained again.")


def _changed(table: str, change: Callable[[], None], said: str) -> Response:
    change()
    return go(table_url(table), said)


def _table(submission: Submission) -> str:
    try:
        return str(TableRef.parse(submission.form.one("table")))
    except UsageError as error:
        raise Problem(404, str(error)) from error


def _told(problem: Problem, back: str) -> Response:
    if problem.status not in _BACK:
        raise problem
    return go(back, f"{problem.detail[:1].upper()}{problem.detail[1:]}.", "bad")
