"""The HTTP application: routes, what is around every request, and errors as problems."""

from __future__ import annotations

import secrets
import threading
from dataclasses import dataclass, field

from fastapi import APIRouter, FastAPI
from starlette.middleware import Middleware

import icewright
from icewright.app.config import Config
from icewright.app.web import api, events, oidc, pages, probes, problems
from icewright.app.web.access import Senders
from icewright.app.web.app_state import AppState, Watch
from icewright.app.web.etags import ETagMiddleware
from icewright.app.web.identity import Access, access_of
from icewright.app.web.limits import BodyLimitMiddleware, RateLimitMiddleware, TokenBuckets
from icewright.app.web.response_cache import ResponseCache
from icewright.app.web.segments import Segmented
from icewright.app.web.tracing import RequestLogMiddleware

_PARTS = APIRouter()  # included here, not in each application: what a route takes is then worked out once
for _part in (probes, events, api, oidc, pages):
    _PARTS.include_router(_part.router)


@dataclass(frozen=True)
class Settings:
    """Who may push events, how much of what, and how people are told apart."""

    senders: Senders = field(default_factory=Senders)
    max_body: int = 1024 * 1024
    requests_per_second: float = 100
    access: Access = field(default_factory=Access)

    @classmethod
    def of(cls, config: Config) -> Settings:
        """Read the web settings from the configuration."""
        senders = Senders(config.events.tokens, config.events.secrets)
        server, access = config.server, access_of(config.auth)
        return cls(senders, server.max_body_mb * 1024 * 1024, server.requests_per_second, access)


def create_app(opened: AppState, settings: Settings, watch: Watch) -> FastAPI:
    """Return the application over an opened store."""
    app = FastAPI(
        routes=_PARTS.routes,
        title="Icewright",
        version=icewright.__version__,
        openapi_url="/api/openapi.json",
        docs_url=None,  # its page loads scripts from elsewhere
        redoc_url=None,
        telemetry={"auto_configure": False},  # which would read the environment
        middleware=[
            Middleware(pages.Shown),
            Middleware(RequestLogMiddleware),
            Middleware(RateLimitMiddleware, buckets=TokenBuckets(settings.requests_per_second)),
            Middleware(BodyLimitMiddleware, most=settings.max_body),
            Middleware(Segmented),
            Middleware(ETagMiddleware),
        ],
        redirect_slashes=False,  # a name may end in one
    )
    app.state.opened, app.state.watch = opened, watch
    app.state.senders, app.state.access = settings.senders, settings.access
    app.state.recent, app.state.secret = ResponseCache(opened.runtime.store.change_token), secrets.token_urlsafe(32)
    app.state.closing, app.state.followers = threading.Event(), pages.Followers()
    app.state.simulations = pages.Simulations()
    problems.install(app)
    return app
