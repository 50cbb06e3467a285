"""Render templates as responses, with layout context, security headers and flash messages."""

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
from icewright.ports import FleetPause

THEME, FLASH = "icewright_theme", "icewright_said"
THEMES = ("light", "dark")
_LONGEST = 1000  # characters of a flash message
HEADERS = {
    # browsers send Origin with same-site forms only under this policy
    "referrer-policy": "same-origin",
    "content-security-policy": (
        "default-src 'self'; base-uri 'none'; object-src 'none'; frame-ancestors 'none'; form-action 'self'"
    ),
    "vary": "cookie, accept",
}


@dataclass(frozen=True, slots=True)
class NavigationItem:
    """A navigation link, shown to callers with its action."""

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
    """A breadcrumb: a page above the current one."""

    title: str
    path: str


@cache
def templates() -> Environment:
    """Return the template environment: autoescaped, with missing values as errors."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    names = ("tone", "word", "size", "number", "gb_hours", "span", "clock", "value", "breakable")
    environment.filters |= {name: getattr(formats, name) for name in names}
    environment.globals |= {"number": formats.number, "size": formats.size}
    environment.globals |= {
        "asset": asset_url,
        "table_url": table_url,
        "with_query": with_query,
        "moment": formats.moment,
    }
    return environment


def render_page(caller: Caller, template: str, *, status: int = 200, **context: Any) -> Response:  # noqa: ANN401 - of the template
    """Return a page for an authenticated caller."""
    request = caller.request
    layout = _layout_context(request) | {"fleet_pause": _fleet_pause(caller)}
    text = render_fragment(caller, template, **layout | context)
    answer = HTMLResponse(text, status, headers=HEADERS)
    if FLASH in request.cookies:
        answer.delete_cookie(FLASH, path="/")
    return answer


def render_fragment(caller: Caller, template: str, **context: Any) -> str:  # noqa: ANN401 - of the template
    """Return the HTML of a template, a page or a live fragment."""
    principal = caller.principal
    places = [place for place in NAVIGATION if principal.may_somewhere(place.action)]
    context_ = {
        "me": principal,
        "places": places,
        "csrf": form_token(caller),
        "now": caller.runtime.clock.now(),
        "may": principal.may_somewhere,
    }
    return templates().get_template(template).render(**context_ | {"session": principal.via is Via.SESSION} | context)


def render_public_page(request: Request, template: str, *, status: int = 200, **context: Any) -> Response:  # noqa: ANN401
    """Return a page for an unauthenticated client."""
    context_: dict[str, Any] = {"me": None, "places": [], "csrf": "", "session": False}
    text = templates().get_template(template).render(**_layout_context(request) | context_ | context)
    return HTMLResponse(text, status, headers=HEADERS)


def form_token(caller: Caller) -> str:
    """Return the CSRF token of forms; for sessions the same as the API's."""
    if caller.principal.via is Via.SESSION:
        return csrf_of(caller.request.cookies.get(COOKIE, ""))
    return csrf_of(caller.request.app.state.secret)


def redirect(path: str, message: str = "", kind: str = "good") -> Response:
    """Redirect to a page that shows a flash message."""
    answer = RedirectResponse(path, 303)
    if message:
        text = json.dumps([kind, message[:_LONGEST]]).encode()
        coded = urlsafe_b64encode(text).decode()
        answer.set_cookie(FLASH, coded, max_age=60, path="/", httponly=True, samesite="strict")
    return answer


def _layout_context(request: Request) -> dict[str, Any]:
    theme = request.cookies.get(THEME, "")
    return {
        "path": request.url.path,
        "theme": theme if theme in THEMES else "",
        "flash": _flash(request),
        "crumbs": (),
        "fleet_pause": None,
        "live": "",
    }


def _fleet_pause(caller: Caller) -> FleetPause | None:
    """Return the pause of the whole fleet, which every page shows."""
    return caller.cached_until_change("fleet", work=caller.runtime.store.fleet.get)


def _flash(request: Request) -> tuple[str, str] | None:
    try:
        flash = json.loads(urlsafe_b64decode(request.cookies.get(FLASH, "")))
    except ValueError:
        return None
    match flash:
        case [("good" | "warn" | "bad") as kind, str() as text]:
            return kind, text
    return None
