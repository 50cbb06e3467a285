"""Render templates as responses and as streams of fragments; serve style sheets, scripts and icons."""

from __future__ import annotations

import asyncio
import gzip
import json
import subprocess
import sys
import threading
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from functools import cache, partial
from hashlib import blake2b
from importlib.metadata import version
from pathlib import Path
from typing import Any

import vl_convert
from fastapi import APIRouter, Request
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.concurrency import run_in_threadpool
from starlette.responses import HTMLResponse, RedirectResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from icewright.app.web.callers import Caller
from icewright.app.web.identity import COOKIE, csrf_of
from icewright.app.web.middlewares import PrincipalSlots
from icewright.app.web.pages import formats
from icewright.app.web.pages.urls import table_url, with_query
from icewright.app.web.problems import Problem
from icewright.core.errors import IcewrightError
from icewright.core.permissions import Action, Via
from icewright.ports import FleetPause

router = APIRouter(prefix="/static")
_FOLDER = Path(__file__).parent / "static"
_KINDS = {".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".svg": "image/svg+xml"}
_IMMUTABLE = "public, max-age=31536000, immutable"
_SECONDS = 120  # to build the bundle
VEGA = "vega.js"
_BUILDING = threading.Lock()
# built in a child process: vl_convert's engine needs more memory than the whole service
_BUNDLE = "import sys, vl_convert; sys.stdout.write(vl_convert.javascript_bundle())"
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
SECONDS = 300.0  # after which the browser reconnects and authenticates again
_STEP = 0.2
_RECONNECT_MS = 2000
_KEEP_ALIVE_SECONDS = 15.0  # keep-alive interval, so that no proxy closes a silent stream


@dataclass(frozen=True)
class Asset:
    """A static file with the digest of its content."""

    digest: str
    media_type: str
    content: Callable[[], tuple[bytes, bytes]]  # plain and gzipped


@router.get("/{digest}/{name}")
def asset(digest: str, name: str, request: Request) -> Response:
    """Serve an asset; an outdated digest is served uncached. Raises `Problem` 404."""
    asset = assets().get(name)
    if asset is None:
        raise Problem(404, "there is no such file")
    plain, gzipped = asset.content()
    accepts_gzip = "gzip" in request.headers.get("accept-encoding", "")
    headers = {"cache-control": _IMMUTABLE if digest == asset.digest else "no-store", "vary": "accept-encoding"}
    if accepts_gzip:
        headers["content-encoding"] = "gzip"
    return Response(gzipped if accepts_gzip else plain, media_type=asset.media_type, headers=headers)


def asset_url(name: str) -> str:
    """Return the URL of an asset, with its digest."""
    return f"/static/{assets()[name].digest}/{name}"


@cache
def assets() -> Mapping[str, Asset]:
    """Return the static files and the Vega-Lite bundle by name."""
    files = {path.name: _file(path) for path in sorted(_FOLDER.iterdir()) if path.suffix in _KINDS}
    digest = _digest(f"{version('vl-convert-python')} {vl_convert.get_vega_version()}".encode())
    return {**files, VEGA: Asset(digest, _KINDS[".js"], _bundle)}


def _file(path: Path) -> Asset:
    content = path.read_bytes()
    encodings = content, gzip.compress(content, mtime=0)
    return Asset(_digest(content), _KINDS[path.suffix], lambda: encodings)


def _bundle() -> tuple[bytes, bytes]:
    """Return the bundle of Vega, Vega-Lite and Vega-Embed, built once, at the first request; others wait for it."""
    with _BUILDING:
        return _built()


@cache
def _built() -> tuple[bytes, bytes]:
    bundle = subprocess.run([sys.executable, "-c", _BUNDLE], capture_output=True, check=True, timeout=_SECONDS)  # noqa: S603 - ours
    return bundle.stdout, gzip.compress(bundle.stdout, mtime=0)


def _digest(content: bytes) -> str:
    return blake2b(content, digest_size=8).hexdigest()


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
    names = ("tone", "word", "size", "number", "stated", "gb_hours", "span", "clock", "value", "breakable", "marked")
    environment.filters |= {name: getattr(formats, name) for name in (*names, "sentence")}
    environment.globals |= {"number": formats.number, "size": formats.size}
    environment.globals |= {
        "asset": asset_url,
        "table_url": table_url,
        "with_query": with_query,
        "moment": formats.moment,
    }
    return environment


def render_page(caller: Caller, template: str, *, status: int = 200, **context: Any) -> Response:
    """Return a page for an authenticated caller."""
    request = caller.request
    layout = _layout_context(request) | {"fleet_pause": _fleet_pause(caller)}
    text = render_fragment(caller, template, **layout | context)
    answer = HTMLResponse(text, status, headers=HEADERS)
    if FLASH in request.cookies:
        answer.delete_cookie(FLASH, path="/")
    return answer


def render_fragment(caller: Caller, template: str, **context: Any) -> str:
    """Return the HTML of a template, a page or a live fragment."""
    principal = caller.principal
    places = [place for place in NAVIGATION if principal.may_somewhere(place.action)]
    context_ = {
        "me": principal,
        "places": places,
        "csrf": form_token(caller),
        "now": caller.runtime.clock.now(),
        "may": principal.may_somewhere,
        "session": principal.via is Via.SESSION,
    }
    return templates().get_template(template).render(**context_, **context)


def render_public_page(request: Request, template: str, *, status: int = 200, **context: Any) -> Response:
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


class CountedStream(StreamingResponse):
    """A streaming response that releases its slot when it ends."""

    release: Callable[[], None]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the stream, and release its slot at the end."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self.release()


@dataclass(frozen=True, slots=True)
class Fragment:
    """The HTML of a fragment, and whether it is final."""

    html: str
    last: bool = False


def stream_fragments(caller: Caller, render: Callable[[], Fragment], every: float) -> Response:
    """Return a stream that calls `render` in a thread every `every` seconds.

    Raises `Problem` 429 or 503, and what the first call raises: later errors end the stream, and the browser asks anew.
    """
    slots: PrincipalSlots = caller.request.app.state.stream_slots
    release = partial(slots.release, caller.slot_key)
    slots.acquire(caller.slot_key)
    try:
        first = render()
    except BaseException:
        release()
        raise
    headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
    answer = CountedStream(_stream(caller, first, render, every), media_type="text/event-stream", headers=headers)
    answer.release = release
    return answer


def stream_template(caller: Caller, template: str, context: Callable[[], Mapping[str, Any]], every: float) -> Response:
    """Return a stream of a template, rendered with what `context` returns every `every` seconds."""
    return stream_fragments(caller, lambda: Fragment(render_fragment(caller, template, **context())), every)


async def _stream(
    caller: Caller, fragment: Fragment, render: Callable[[], Fragment], every: float
) -> AsyncIterator[str]:
    closing: threading.Event = caller.request.app.state.closing
    loop = asyncio.get_running_loop()
    began = last_sent = loop.time()
    previous: str | None = None
    yield f"retry: {_RECONNECT_MS}\n\n"
    while not closing.is_set() and loop.time() - began < SECONDS:
        if fragment.html != previous:
            if not await run_in_threadpool(caller.is_current):
                return  # the browser comes back, and is asked who it is
            previous, last_sent = fragment.html, loop.time()
            yield _event("part", fragment.html)
        elif loop.time() - last_sent >= _KEEP_ALIVE_SECONDS:
            last_sent = loop.time()
            yield ": still here\n\n"
        if fragment.last:
            yield _event("end", "")
            return
        until = loop.time() + every  # polled, because another thread sets `closing`
        while loop.time() < until and not closing.is_set():  # noqa: ASYNC110
            await asyncio.sleep(_STEP)
        try:
            fragment = await run_in_threadpool(render)
        except (Problem, IcewrightError):
            return  # the browser comes back, and is told


def _event(name: str, text: str) -> str:
    lines = "".join(f"data: {line}\n" for line in text.replace("\r", "").split("\n"))
    return f"event: {name}\n{lines}\n"
