"""Templates into answers: the layout's own needs, headers for browsers, and what was said after a change."""

from __future__ import annotations

import json
from base64 import urlsafe_b64decode, urlsafe_b64encode
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from fastapi import Request
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.responses import HTMLResponse, RedirectResponse, Response

from icewright.app.web.callers import Caller
from icewright.app.web.identity import COOKIE, csrf_of
from icewright.app.web.pages import formats
from icewright.app.web.pages.assets import asset_url
from icewright.app.web.pages.urls import table_url, with_query
from icewright.core.permissions import Action, Via

THEME, SAID = "icewright_theme", "icewright_said"
THEMES = ("light", "dark")
_LONGEST = 1000  # of what is said after a change
HEADERS = {
    # Origin is sent with forms of this site only where some referrer is
    "referrer-policy": "same-origin",
    "content-security-policy": (
        "default-src 'self'; base-uri 'none'; object-src 'none'; frame-ancestors 'none'; form-action 'self'"
    ),
    "vary": "cookie, accept",
}


@dataclass(frozen=True, slots=True)
class NavigationItem:
    """A page of the navigation, and who is shown it."""

    path: str
    title: str
    action: Action


NAVIGATION = (
    NavigationItem("/", "Overview", Action.PLAN_READ),
    NavigationItem("/tables", "Tables", Action.TABLES_READ),
    NavigationItem("/queue", "Queue", Action.PLAN_READ),
    NavigationItem("/jobs", "Jobs", Action.JOBS_READ),
    NavigationItem("/activity", "Activity", Action.JOBS_READ),
    NavigationItem("/policies", "Policies", Action.POLICIES_READ),
    NavigationItem("/alerts", "Alerts", Action.ALERTS_READ),
    NavigationItem("/audit", "Audit", Action.AUDIT_READ),
    NavigationItem("/settings", "Settings", Action.SYSTEM_READ),
)


@dataclass(frozen=True, slots=True)
class Crumb:
    """A page above this one."""

    title: str
    path: str


@cache
def templates() -> Environment:
    """Return all of ours; every value is escaped, and one that is missing is an error."""
    made = Environment(
        loader=FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    names = ("tone", "word", "size", "number", "gb_hours", "span", "clock", "value", "breakable")
    made.filters |= {name: getattr(formats, name) for name in names}
    made.globals |= {"number": formats.number, "size": formats.size}
    made.globals |= {"asset": asset_url, "table_url": table_url, "with_query": with_query, "moment": formats.moment}
    return made


def page(caller: Caller, template: str, *, status: int = 200, **context: Any) -> Response:  # noqa: ANN401 - of the template
    """Return a page for somebody who is known."""
    request = caller.request
    text = part(caller, template, **_around(request) | context)
    answer = HTMLResponse(text, status, headers=HEADERS)
    if SAID in request.cookies:
        answer.delete_cookie(SAID, path="/")
    return answer


def part(caller: Caller, template: str, **context: Any) -> str:  # noqa: ANN401 - of the template
    """Return a template's text: a page, or a part of one that is sent again when it changes."""
    who = caller.principal
    places = [place for place in NAVIGATION if who.may_somewhere(place.action)]
    more = {
        "me": who,
        "places": places,
        "csrf": form_token(caller),
        "now": caller.runtime.clock.now(),
        "may": who.may_somewhere,
    }
    return templates().get_template(template).render(**more | {"session": who.via is Via.SESSION} | context)


def render_public_page(request: Request, template: str, *, status: int = 200, **context: Any) -> Response:  # noqa: ANN401
    """Return a page for somebody who is not known."""
    more: dict[str, Any] = {"me": None, "places": [], "csrf": "", "session": False}
    text = templates().get_template(template).render(**_around(request) | more | context)
    return HTMLResponse(text, status, headers=HEADERS)


def form_token(caller: Caller) -> str:
    """Return what every form brings; of a session, what the API asks for too."""
    if caller.principal.via is Via.SESSION:
        return csrf_of(caller.request.cookies.get(COOKIE, ""))
    return csrf_of(caller.request.app.state.secret)


def go(path: str, said: str = "", kind: str = "good") -> Response:
    """To another page after a change, which says what became of it."""
    answer = RedirectResponse(path, 303)
    if said:
        text = json.dumps([kind, said[:_LONGEST]]).encode()
        coded = urlsafe_b64encode(text).decode()
        answer.set_cookie(SAID, coded, max_age=60, path="/", httponly=True, samesite="strict")
    return answer


def _around(request: Request) -> dict[str, Any]:
    theme = request.cookies.get(THEME, "")
    return {
        "path": request.url.path,
        "theme": theme if theme in THEMES else "",
        "said": _said(request),
        "crumbs": (),
        "live": "",
    }


def _said(request: Request) -> tuple[str, str] | None:
    try:
        found = json.loads(urlsafe_b64decode(request.cookies.get(SAID, "")))
    except ValueError:
        return None
    match found:
        case [("good" | "warn" | "bad") as kind, str() as text]:
            return kind, text
    return None
