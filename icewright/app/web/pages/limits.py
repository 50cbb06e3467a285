"""The page of the limits: a form with a preview of what would change."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any

from fastapi import APIRouter
from pydantic import ValidationError
from starlette.responses import Response

from icewright.app.web import api
from icewright.app.web.api.limits import LimitsPreview, LimitsRequest
from icewright.app.web.callers import Caller, needs
from icewright.app.web.pages import policy_form
from icewright.app.web.pages.forms import Form, Submission, submitted
from icewright.app.web.pages.render import Crumb, redirect, render_page
from icewright.app.web.problems import Problem
from icewright.core.errors import ConfigError
from icewright.core.permissions import Action

router = APIRouter()
PATH = "/settings/limits"
_CONFLICT, _UNPROCESSABLE = 409, 422
_OPTION = "set "  # before the name of a limit in its fault


@router.get(PATH)
def limits(caller: Annotated[Caller, needs(Action.SYSTEM_READ)]) -> Response:
    """Render the limits, for who may change them as a form."""
    return _page(caller)


@router.post("/do/limits/preview")
def preview(submission: Annotated[Submission, submitted(Action.LIMITS_CHANGE)]) -> Response:
    """Render the form with what would change."""
    return _previewed(submission.caller, submission.form)


@router.post("/do/limits/save")
def save(submission: Annotated[Submission, submitted(Action.LIMITS_CHANGE)]) -> Response:
    """Set the previewed limits; those that were changed after the preview are previewed again."""
    caller, form = submission.caller, submission.form
    texts = policy_form.texts_in(form)
    if form.one("previewed") != _mark(texts):
        return _previewed(
            caller, form, "Not saved: you changed a limit after the preview. Check the new preview below."
        )
    try:
        api.limits.put(_request(form), caller)
    except Problem as problem:
        if problem.status != _CONFLICT:
            raise
        return _page(caller, texts=texts, warning=problem.detail, status=_CONFLICT)
    except ConfigError as error:
        return _page(caller, texts=texts, faults=error.faults, status=_UNPROCESSABLE)
    return redirect("/settings", "The limits are set.")


def _previewed(caller: Caller, form: Form, warning: str = "") -> Response:
    texts = policy_form.texts_in(form)
    try:
        shown = api.limits.preview(_request(form), caller)
    except ConfigError as error:
        return _page(caller, texts=texts, faults=error.faults, status=_UNPROCESSABLE)
    return _page(caller, texts=texts, version=form.one("version"), preview=shown, warning=warning)


def _request(form: Form) -> LimitsRequest:
    """Return the request body for the API: what is left blank is as configured. Raises `Problem` 422."""
    try:
        return LimitsRequest.model_validate({"set": policy_form.texts_in(form), "version": form.one("version") or None})
    except ValidationError as error:
        raise Problem(_UNPROCESSABLE, "the form cannot be read: load the page again") from error


def _page(
    caller: Caller,
    *,
    texts: Mapping[str, str] | None = None,
    version: str | None = None,
    preview: LimitsPreview | None = None,
    faults: Sequence[str] = (),
    warning: str = "",
    status: int = 200,
) -> Response:
    document = api.limits.limits(replace(caller, action=Action.SYSTEM_READ))
    if texts is None:
        stored: dict[str, Any] = {item.name: item.value for item in document.items if item.stored}
        texts = {name: policy_form.NULL if value is None else f"{value:g}" for name, value in stored.items()}
    by_name = {name: text for name, _, text in (fault.removeprefix(_OPTION).partition(": ") for fault in faults)}
    return render_page(
        caller,
        "limits.html",
        status=status,
        limits=document,
        texts=texts,
        version=document.version if version is None else version,
        preview=preview,
        previewed=_mark(texts),
        faults=by_name,
        warning=warning,
        may_change=caller.principal.may(Action.LIMITS_CHANGE),
        crumbs=[Crumb("Settings", "/settings")],
    )


def _mark(texts: Mapping[str, str]) -> str:
    return policy_form.mark("limits", texts, taken_back=False)
