"""The HTTP application: routes, what is around every request, and errors as problems."""

from __future__ import annotations

from dataclasses import dataclass, field

from fastapi import FastAPI
from starlette.middleware import Middleware

import icewright
from icewright.app.config import Config
from icewright.app.web import events, probes, problems
from icewright.app.web.access import Senders
from icewright.app.web.limits import Bounded, Buckets, Throttled
from icewright.app.web.opened import Opened, Watch
from icewright.app.web.tracing import Traced

ROUTERS = (probes.router, events.router)


@dataclass(frozen=True)
class Settings:
    """Who may push events, and how much of what."""

    senders: Senders = field(default_factory=Senders)
    max_body: int = 1024 * 1024
    requests_per_second: float = 100

    @classmethod
    def of(cls, config: Config) -> Settings:
        """As the configuration says."""
        senders = Senders(config.events.tokens, config.events.secrets)
        return cls(senders, config.server.max_body_mb * 1024 * 1024, config.server.requests_per_second)


def create_app(opened: Opened, settings: Settings, watch: Watch) -> FastAPI:
    """The application over an opened store."""
    app = FastAPI(
        title="Icewright",
        version=icewright.__version__,
        openapi_url="/api/openapi.json",
        docs_url=None,  # its page loads scripts from elsewhere
        redoc_url=None,
        telemetry={"auto_configure": False},  # which would read the environment
        middleware=[
            Middleware(Traced),
            Middleware(Throttled, buckets=Buckets(settings.requests_per_second)),
            Middleware(Bounded, most=settings.max_body),
        ],
    )
    app.state.opened, app.state.watch, app.state.senders = opened, watch, settings.senders
    problems.install(app)
    for router in ROUTERS:
        app.include_router(router)
    return app
