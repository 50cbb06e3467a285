"""Handle forms that change something by the API, and redirect to a page with the result."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any

from fastapi import APIRouter
from starlette.responses import Response

from icewright.app.web import api
from icewright.app.web.api import models
from icewright.app.web.callers import Caller
from icewright.app.web.pages.formats import sentence
from icewright.app.web.pages.forms import Submission, going_back, submitted
from icewright.app.web.pages.render import Crumb, redirect, render_page
from icewright.app.web.pages.urls import table_url
from icewright.app.web.problems import Problem
from icewright.core.errors import UsageError
from icewright.core.permissions import DELETING, Action, required_actions
from icewright.core.policy import Operation
from icewright.core.table import TableRef
from icewright.core.words import count

router = APIRouter(prefix="/do")
_REFUSALS_SHOWN = 3  # tables of many on which nothing was started
_REASON = "paused on the table's page"
_TABLES = (Crumb("Tables", "/tables"),)


@router.post("/run")
def run(submission: Annotated[Submission, submitted(Action.JOBS_DRY_RUN)]) -> Response:
    """Start operations once whatever deletes is confirmed, or show the report of a dry run."""
    table, form, caller = _table(submission), submission.form, submission.caller
    back, how = table_url(table), form.one("how")
    operations = [op for op in Operation if op in form.all("operation")]
    if not operations:
        return redirect(back, "Choose at least one operation.", "warn")
    deleting = [op for op in operations if op in DELETING and how not in ("dry_run", "confirmed")]
    if deleting:
        caller.table(table, *required_actions(operations))  # whoever may not run them is not asked
    dry_run = how == "dry_run" or bool(deleting)
    body = models.JobRequest(operations=deleting or operations, dry_run=dry_run, force=form.one("force") == "yes")
    with going_back(back):
        started = api.triggers.start(table, body, Response(), caller, form.one("key")[:200] or None)
    if dry_run:
        fields = [("how", "confirmed"), ("key", form.one("key")), ("force", form.one("force"))]
        context: dict[str, Any] = {
            "confirmed": [*fields, *(("operation", str(op)) for op in operations)] if deleting else [],
            "others": [op for op in operations if op not in DELETING],
            "crumbs": [*_TABLES, Crumb(table, back)],
        }
        return render_page(caller, "dry_run.html", started=started, **context)
    message = f"Started {', '.join(str(op).replace('_', ' ') for op in operations)}: {started.summary}."
    return redirect(f"/jobs/{started.job_id}", message)


@router.post("/cancel")
def cancel(submission: Annotated[Submission, submitted(Action.JOBS_CANCEL)]) -> Response:
    """Request cancellation of a job, and go back to its page or to the queue."""
    job_id = submission.caller.job(submission.form.one("job")).job_id
    back = "/queue" if submission.form.one("back") == "queue" else f"/jobs/{job_id}"
    with going_back(back):
        job = api.jobs.cancel(job_id, submission.caller)
    message = (
        f"The job on {job.table} is cancelled."
        if job.state == "cancelled"
        else f"Cancellation is requested: the job on {job.table} stops before its next step."
    )
    return redirect(back, message, "warn")


@router.post("/undo")
def undo(submission: Annotated[Submission, submitted(Action.JOBS_UNDO)]) -> Response:
    """Show what an undo would restore, or undo the job once confirmed."""
    job_id = submission.form.one("job")
    job = submission.caller.job(job_id)
    back, confirmed = f"/jobs/{job.job_id}", submission.form.one("how") == "undo"
    with going_back(back):
        undone = api.jobs.undo(job.job_id, models.UndoRequest(dry_run=not confirmed), submission.caller)
    if undone.dry_run and not undone.already:
        crumbs = [Crumb("Jobs", "/jobs"), Crumb(undone.table, table_url(undone.table)), Crumb("Job", back)]
        return render_page(submission.caller, "undo.html", undone=undone, crumbs=crumbs)
    return redirect(back, sentence(undone.summary))


@router.post("/restore")
def restore(submission: Annotated[Submission, submitted(Action.TABLES_RESTORE)]) -> Response:
    """Show which commits and rows go by a restore, or queue it once confirmed."""
    table, form, caller = _table(submission), submission.form, submission.caller
    back, confirmed = table_url(table, show="recovery"), form.one("how") == "confirmed"
    with going_back(back, "Choose a point, or write a time, a snapshot id, a tag or a branch."):
        to = form.one("to").strip() or form.one("point")
        body = models.RestoreRequest(to=to, dry_run=not confirmed, expected_snapshot_id=form.one("expected") or None)
        result = api.recovery.restore(table, body, Response(), caller)
    if result.already:
        return redirect(back, sentence(result.summary))
    if result.job_id is None:
        crumbs = [*_TABLES, Crumb(table, back)]
        return render_page(caller, "restore.html", restore=result, back=back, crumbs=crumbs)
    return redirect(f"/jobs/{result.job_id}", "The restore waits for a worker.")


@router.post("/repair")
def repair(submission: Annotated[Submission, submitted(Action.TABLES_RESTORE)]) -> Response:
    """Show what a repair would do, or queue it once confirmed."""
    table, form, caller = _table(submission), submission.form, submission.caller
    back, drop_lost = table_url(table, show="recovery"), form.one("drop_lost") == "yes"
    approved = int(text) if (text := form.one("approved")[:18]).isdecimal() else 0
    dry_run = form.one("how") != "confirmed"
    body = models.RepairRequest(drop_lost=drop_lost, approved_rows=approved, dry_run=dry_run)
    with going_back(back):
        result = api.recovery.repair(table, body, Response(), caller)
    if isinstance(result, models.Started):
        many = "With so many files a worker finds out what would be repaired; this page will show it."
        return redirect(f"/jobs/{result.job_id}", many if dry_run else "The repair waits for a worker.")
    crumbs = [*_TABLES, Crumb(table, back)]
    return render_page(caller, "repair.html", repair=result, drop_lost=drop_lost, back=back, crumbs=crumbs)


@router.post("/erase")
def erase(submission: Annotated[Submission, submitted(Action.TABLES_ERASE)]) -> Response:
    """Queue a search for rows, or once confirmed their erasure; the job's page shows what was found."""
    table, form, caller = _table(submission), submission.form, submission.caller
    dry_run = form.one("how") != "confirmed"
    with going_back(table_url(table, show="recovery"), "Write which rows, as in email = 'ann@example.org'."):
        body = models.EraseRequest(where=form.one("where").strip(), dry_run=dry_run)
        result = api.recovery.erase(table, body, caller)
    return _queued("search" if dry_run else "erasure", result)


@router.post("/copy")
def copy(submission: Annotated[Submission, submitted(Action.TABLES_COPY)]) -> Response:
    """Show what would be copied to a place, or queue the copy once confirmed."""
    table, form, caller = _table(submission), submission.form, submission.caller
    back, dry_run = table_url(table, show="recovery"), form.one("how") != "confirmed"
    with going_back(back, "Name the folder of the copy."):
        body = models.CopyRequest(to=form.one("to").strip(), dry_run=dry_run)
        result = api.recovery.copy(table, body, Response(), caller)
    if isinstance(result, models.Started):
        return redirect(f"/jobs/{result.job_id}", "The copy waits for a worker.")
    crumbs = [*_TABLES, Crumb(table, back)]
    return render_page(caller, "copy.html", copy=result, back=back, crumbs=crumbs)


@router.post("/layouts")
def layouts(submission: Annotated[Submission, submitted(Action.JOBS_RUN)]) -> Response:
    """Queue predictions for filters, or once confirmed the measuring; the job's page shows what was found."""
    table, form, caller = _table(submission), submission.form, submission.caller
    dry_run = form.one("how") != "confirmed"
    filters = [line.strip() for text in form.all("filters") for line in text.splitlines() if line.strip()]
    with going_back(table_url(table), "Write a filter a line, 1,000 of 1,000 characters at most."):
        result = api.recovery.layouts(table, models.LayoutsRequest(filters=filters, dry_run=dry_run), caller)
    return _queued("prediction" if dry_run else "measuring", result)


@router.post("/register")
def register(submission: Annotated[Submission, submitted(Action.TABLES_COPY)]) -> Response:
    """Show which metadata file would be registered, or register it once confirmed."""
    form, caller = submission.form, submission.caller
    catalog, dry_run = form.one("catalog"), form.one("how") != "confirmed"
    with going_back("/settings", "Name the table, and a folder or metadata file."):
        body = models.RegisterRequest(
            place=form.one("place").strip(),
            name=form.one("name").strip(),
            replace_lost=form.one("replace_lost") == "yes",
            dry_run=dry_run,
        )
        result = api.recovery.register(catalog, body, caller)
    if not dry_run:
        return redirect("/settings", f"{result.table} is registered; the next listing of {catalog} shows it.")
    crumbs = [Crumb("Settings", "/settings")]
    return render_page(caller, "register.html", registered=result, request=body, catalog=catalog, crumbs=crumbs)


@router.post("/pause")
def pause(submission: Annotated[Submission, submitted(Action.TABLES_PAUSE)]) -> Response:
    """Pause automatic maintenance of a table."""
    table = _table(submission)
    with going_back(table_url(table), "The reason is too long."):
        body = models.PauseRequest(reason=submission.form.one("reason").strip() or _REASON)
    api.tables.pause(table, body, submission.caller)
    return redirect(table_url(table), "Paused: no automatic job starts until you resume the table.")


@router.post("/resume")
def resume(submission: Annotated[Submission, submitted(Action.TABLES_PAUSE)]) -> Response:
    """Resume automatic maintenance of a table."""
    table = _table(submission)
    api.tables.resume(table, submission.caller)
    return redirect(table_url(table), "Resumed: automatic maintenance continues.")


@router.post("/bulk")
def bulk(submission: Annotated[Submission, submitted(Action.TABLES_PAUSE)]) -> Response:
    """Show how many tables a change is about, or change them once confirmed."""
    form, caller = submission.form, submission.caller
    action, reason, operation = form.one("action"), form.one("reason").strip(), form.one("operation")
    names = [*form.all("pick"), *form.one("tables").split()]
    selected: dict[str, Any] = {"tables": names, "catalog": form.one("catalog") or None}
    if not names and not form.one("catalog"):
        selected["all"] = True
    if (expected := form.one("expected")[:18]).isdecimal():
        selected["expected"] = int(expected)
    with going_back("/tables", "The names or the reason are too long, or no operation is chosen."):
        result = _bulk(caller, action, operation, selected, reason or "paused on the tables page")
    if not result.changed:
        fields = {"action": action, "operation": operation, "catalog": form.one("catalog"), "reason": reason}
        context: dict[str, Any] = {
            "names": names,
            "deletes": operation in DELETING,
            "crumbs": _TABLES,
        }
        return render_page(caller, "bulk.html", result=result, fields=fields, **context)
    tables, jobs = count(result.count, "table"), count(len(result.jobs), "job")
    done = {"cancel": f"Cancelled {jobs} of {tables}.", "run": f"Started {jobs} of {tables}."}
    refused = [f"{table}: {why}." for table, why in result.refused.items()]
    more = [f"{len(refused) - _REFUSALS_SHOWN} more were not started."] if len(refused) > _REFUSALS_SHOWN else []
    message = " ".join([done.get(action, f"{action.capitalize()}d {tables}."), *refused[:_REFUSALS_SHOWN], *more])
    return redirect("/tables", message, "warn" if refused else "good")


def _bulk(caller: Caller, action: str, operation: str, selected: Mapping[str, Any], reason: str) -> models.Bulk:
    match action:
        case "run":
            body = models.BulkRunRequest.model_validate({**selected, "operations": [operation]})
            return api.bulk.run(body, replace(caller, action=Action.JOBS_RUN))
        case "pause":
            return api.bulk.pause(models.BulkPauseRequest(**selected, reason=reason), caller)
        case "resume":
            return api.bulk.resume(models.BulkRequest(**selected), caller)
        case "cancel":
            return api.bulk.cancel(models.BulkRequest(**selected), replace(caller, action=Action.JOBS_CANCEL))
    raise Problem(422, f"there is no action {action}")


@router.post("/fleet/pause")
def pause_fleet(submission: Annotated[Submission, submitted(Action.TABLES_PAUSE)]) -> Response:
    """Pause the whole fleet, so that no job begins."""
    reason = submission.form.one("reason").strip() or "paused on the tables page"
    with going_back("/tables", "The reason is too long."):
        body = models.FleetPauseRequest(reason=reason, cancel_running=submission.form.one("cancel") == "yes")
    api.bulk.pause_everything(body, submission.caller)
    return redirect("/tables", "Everything is paused: no job begins until you resume.", "warn")


@router.post("/fleet/resume")
def resume_fleet(submission: Annotated[Submission, submitted(Action.TABLES_PAUSE)]) -> Response:
    """End the pause of the whole fleet."""
    api.bulk.resume_everything(submission.caller)
    return redirect("/tables", "Jobs begin again.")


def _table(submission: Submission) -> str:
    try:
        return str(TableRef.parse(submission.form.one("table")))
    except UsageError as error:
        raise Problem(404, str(error)) from error


def _queued(what: str, started: models.Started) -> Response:
    return redirect(f"/jobs/{started.job_id}", f"The {what} waits for a worker; this page will show what it finds.")
