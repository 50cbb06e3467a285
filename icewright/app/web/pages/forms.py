"""Parse submitted forms, and refuse those that do not come from a page of this service."""

from __future__ import annotations

import hmac
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs

from fastapi import Depends, Request
from pydantic import ValidationError
from starlette.responses import Response

from icewright.app.web.callers import Caller, needs
from icewright.app.web.identity import TOO_OLD, require_same_site
from icewright.app.web.pages.formats import sentence
from icewright.app.web.pages.render import form_token, redirect
from icewright.app.web.problems import Problem
from icewright.core.errors import CommitConflict, TerminalError
from icewright.core.permissions import Action

_KIND = "application/x-www-form-urlencoded"
_FIELDS = 1000
_BACK = (409, 422)  # shown as a message on the page that the form came from


@dataclass(frozen=True)
class Form:
    """The fields of a form."""

    fields: Mapping[str, list[str]] = field(default_factory=dict)

    def one(self, name: str) -> str:
        """Return a field's value; blank where it was not sent."""
        return self.fields.get(name, [""])[-1]

    def all(self, name: str) -> list[str]:
        """Return all values of a field."""
        return self.fields.get(name, [])


async def form(request: Request) -> Form:
    """Parse the form of a request. Raises `Problem` 400, 403, 415 or 422."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != _KIND:
        raise Problem(415, f"a form is sent as {_KIND}")
    require_same_site(request)
    try:
        parsed = Form(parse_qs((await request.body()).decode(), keep_blank_values=True, max_num_fields=_FIELDS))
    except ValueError as error:
        raise Problem(422, "the form cannot be read") from error
    if any("\0" in text for values in parsed.fields.values() for text in values):
        raise Problem(400, "no text holds a null character")
    request.state.csrf = parsed.one("csrf")
    return parsed


@dataclass(frozen=True)
class Submission:
    """A submitted form and its authorised sender."""

    caller: Caller
    form: Form


def _submission_of(action: Action) -> Callable[..., Submission]:
    # defaults, because FastAPI evaluates annotations outside this closure
    def authorise(form_: Form = Depends(form), caller: Caller = needs(action)) -> Submission:  # noqa: B008
        if not hmac.compare_digest(form_.one("csrf").encode(), form_token(caller).encode()):
            raise Problem(403, TOO_OLD)
        return Submission(caller, form_)

    return authorise


_SUBMISSIONS = {action: _submission_of(action) for action in Action}


def submitted(action: Action) -> Any:  # noqa: ANN401 - a dependency
    """Return the dependency that yields a form of an authorised sender; the form is parsed before authentication."""
    return Depends(_SUBMISSIONS[action])


class GoBack(Exception):
    """Ends the request of a form by a redirect to the page that the form came from."""

    def __init__(self, answer: Response) -> None:
        self.answer = answer
        super().__init__()


@contextmanager
def going_back(page: str, fault: str = "", statuses: Collection[int] = _BACK) -> Iterator[None]:
    """Go back to a page with the reason when the block fails: the error's, or `fault` for a body that is no request.

    A problem of none of the statuses is raised: there is no way back from it.
    """
    try:
        yield
    except ValidationError as error:
        raise GoBack(redirect(page, fault, "warn")) from error
    except (TerminalError, CommitConflict) as error:
        raise GoBack(redirect(page, sentence(str(error)), "bad")) from error
    except Problem as problem:
        if problem.status not in statuses:
            raise
        raise GoBack(redirect(page, sentence(problem.detail), "bad")) from problem


async def went_back(_: Request, error: Exception) -> Response:
    """Return the redirect of a form that was refused."""
    assert isinstance(error, GoBack)  # noqa: S101 - what it is registered for
    return error.answer
