"""The pages of policies: the list of rules, and a form with a preview for stored rules."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any

from fastapi import APIRouter
from pydantic import ValidationError
from starlette.responses import Response

from icewright.app.web import api
from icewright.app.web.api import models
from icewright.app.web.api.policies import PLATFORM, rule_pattern
from icewright.app.web.callers import Caller, needs
from icewright.app.web.pages import policy_form
from icewright.app.web.pages.forms import Form, Submission, submitted
from icewright.app.web.pages.render import Crumb, redirect, render_page, stream_template
from icewright.app.web.pages.urls import ListParams
from icewright.app.web.problems import Problem
from icewright.core.errors import ConfigError, UsageError
from icewright.core.permissions import Action

router = APIRouter()
PATH = "/policies"
_STORE, _FILE = "store", "file"
_LISTED = 50  # tables listed in a preview
_LEVELS = (PLATFORM, "catalog", "namespace")
_LOWER_LEVELS = "table or namespace"
_CONFLICT, _UNPROCESSABLE = 409, 422
_LONGEST = 1000
_EVERY = 3.0  # seconds

Reader = Annotated[Caller, needs(Action.POLICIES_READ)]


@dataclass(frozen=True, slots=True)
class Row:
    """A rule in the list."""

    rule: models.Rule
    level: str
    may: bool


@dataclass
class Draft:
    """A rule being edited in the form."""

    scope: str
    texts: Mapping[str, str] = field(default_factory=dict)
    version: int = 0
    known: bool = False  # the form was opened for this scope, with its version
    taken_back: bool = False
    faults: Mapping[str, str] = field(default_factory=dict)
    other_faults: Sequence[str] = ()
    scope_fault: str = ""

    @property
    def mark(self) -> str:
        """Return the identity of the rule that the draft changes."""
        return policy_form.mark(self.scope, self.texts, taken_back=self.taken_back)

    @property
    def request_body(self) -> models.RuleRequest:
        """Return the request body for the API. Raises `Problem` 422."""
        settings = {} if self.taken_back else policy_form.settings_in(self.texts)
        try:
            return models.RuleRequest(set=settings, version=self.version)
        except ValidationError as error:
            raise Problem(_UNPROCESSABLE, "the form cannot be read: load the page again") from error


@router.get(PATH)
def policies(caller: Reader) -> Response:
    """Render all rules by source, and the guardrails."""
    return render_page(caller, "policies.html", live="/live/policies", **_rules(caller))


@router.get("/live/policies")
def live(caller: Reader) -> Response:
    """Stream the rules as they change."""
    return stream_template(caller, "_policies.html", lambda: _rules(caller), _EVERY)


def _rules(caller: Caller) -> dict[str, Any]:
    all_rules = api.policies.policies(caller)
    sources: dict[str, list[Row]] = {_STORE: [], _FILE: []}
    for rule in all_rules.rules:
        match = rule_pattern(rule.scope)
        may = rule.source == _STORE and caller.principal.may_rule(Action.POLICIES_CHANGE, match)
        sources.setdefault(rule.source, []).append(Row(rule, _level(match), may))
    return {"sources": sources, "guardrails": all_rules.guardrails}


@router.get("/policies/edit")
def edit(caller: Reader) -> Response:
    """Render the form, blank or with the stored rule of a scope."""
    scope = ListParams(caller.request.query_params).text("scope") or ""
    if not scope:
        return _form(caller, Draft(scope))
    newest = next(iter(api.policies.versions(scope, caller).items), None)
    settings = newest.settings if newest else {}
    return _form(caller, Draft(scope, policy_form.texts_of(settings), _version_of(newest), known=True))


@router.post("/do/policy/preview")
def preview(submission: Annotated[Submission, submitted(Action.POLICIES_PREVIEW)]) -> Response:
    """Render the form with a preview of its changes."""
    return _previewed(submission.caller, _draft(submission.caller, submission.form))


@router.post("/do/policy/save")
def save(submission: Annotated[Submission, submitted(Action.POLICIES_CHANGE)]) -> Response:
    """Save a previewed rule; a rule changed after its preview is previewed again."""
    caller, draft = submission.caller, _draft(submission.caller, submission.form)
    if submission.form.one("previewed") != draft.mark:
        warning = "Not saved: you changed the rule after the preview. Check the new preview below."
        return _previewed(replace(caller, action=Action.POLICIES_PREVIEW), draft, warning)
    try:
        if draft.taken_back:
            api.policies.delete(draft.scope, caller, draft.version)
        else:
            api.policies.put(draft.scope, draft.request_body, caller)
    except Problem as problem:
        if problem.status not in (_CONFLICT, _UNPROCESSABLE):
            raise
        draft.other_faults = [problem.detail]
        return _form(caller, draft, status=problem.status)
    except (UsageError, ConfigError) as error:
        return _faulty(caller, draft, error)
    return redirect(PATH, f"The rule {draft.scope} {'is removed' if draft.taken_back else 'is saved'}.")


def _previewed(caller: Caller, draft: Draft, warning: str = "") -> Response:
    try:
        preview = api.policies.preview_rule(draft.scope, draft.request_body, caller, limit=_LISTED)
    except (UsageError, ConfigError) as error:
        return _faulty(caller, draft, error)
    if not draft.texts and not draft.taken_back:
        draft.other_faults = ["A rule sets at least one knob: fill in a field"]
        return _form(caller, draft, status=_UNPROCESSABLE)
    return _form(caller, draft, preview=preview, warning=warning)


def _faulty(caller: Caller, draft: Draft, error: UsageError | ConfigError) -> Response:
    """Return the form again, with each fault at its field."""
    match error:
        case ConfigError():
            draft.faults, draft.other_faults = policy_form.by_field(error.faults)
        case UsageError():
            draft.scope_fault = str(error)
    return _form(caller, draft, status=_UNPROCESSABLE)


def _form(
    caller: Caller, draft: Draft, *, preview: models.Preview | None = None, warning: str = "", status: int = 200
) -> Response:
    reading = replace(caller, action=Action.POLICIES_READ)
    others: list[models.Rule] = []
    history: list[models.Rule] = []
    may = caller.principal.may_somewhere(Action.POLICIES_CHANGE)
    if draft.scope and not draft.scope_fault:
        match = rule_pattern(draft.scope)
        may = caller.principal.may_rule(Action.POLICIES_CHANGE, match)
        others = [
            r for r in api.policies.policies(reading).rules if r.source != _STORE and rule_pattern(r.scope) == match
        ]
        history = _versions(reading, draft.scope)
    return render_page(
        caller,
        "policy.html",
        status=status,
        draft=draft,
        groups=policy_form.groups(draft.texts, draft.faults),
        preview=preview,
        warning=warning,
        others=others,
        history=history,
        stored=bool(history and history[0].settings),
        may_save=may,
        crumbs=[Crumb("Policies", PATH)],
    )


def _draft(caller: Caller, form: Form) -> Draft:
    scope = form.one("scope").strip()
    if len(scope) > _LONGEST:
        raise Problem(_UNPROCESSABLE, f"the scope is longer than {_LONGEST} characters")
    known = bool(scope) and form.one("known") == scope
    draft = Draft(scope, policy_form.texts_in(form), known=known, taken_back=form.one("take_back") == "yes")
    if known:
        draft.version = _version_number(form.one("version"))
    else:  # the scope was typed: the change is based on the current version
        try:
            newest = _newest(caller, scope)
        except UsageError:
            return draft
        draft.version = _version_of(newest)
        draft.known = True
    return draft


def _newest(caller: Caller, scope: str) -> models.Rule | None:
    return next(iter(_versions(replace(caller, action=Action.POLICIES_READ), scope)), None)


def _versions(caller: Caller, scope: str) -> list[models.Rule]:
    try:
        return api.policies.versions(scope, caller).items
    except Problem:  # rules beyond the caller's visibility look absent
        return []


def _version_of(rule: models.Rule | None) -> int:
    """Return the version that a change is based on, 0 where no rule is stored."""
    return (rule.version if rule is not None else None) or 0


def _version_number(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) < 10):  # noqa: PLR2004 - no rule has so many versions
        raise Problem(_UNPROCESSABLE, "the form cannot be read: load the page again")
    return int(text)


def _level(match: Sequence[Any]) -> str:
    return _LEVELS[len(match)] if len(match) < len(_LEVELS) else _LOWER_LEVELS
