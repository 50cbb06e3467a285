"""Build the HTTP application: routes, middlewares, error handlers, and probes for orchestrators and Prometheus."""

from __future__ import annotations

import logging
import secrets
import threading
from dataclasses import dataclass, field
from typing import Annotated

from fastapi import APIRouter, Depends, FastAPI, Request
from starlette.middleware import Middleware
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute

import icewright
from icewright.app.addresses import is_loopback
from icewright.app.config import Config
from icewright.app.web import api, events, oidc, pages, problems
from icewright.app.web.app_state import AppState, ResponseCache, ServiceStatus, service_status
from icewright.app.web.events import EventSenders
from icewright.app.web.identity import OPENAPI, Access, LoopbackHostMiddleware, access_of, is_local_request
from icewright.app.web.middlewares import (
    BodyLimitMiddleware,
    ETagMiddleware,
    HeadMiddleware,
    PrincipalSlots,
    RateLimitMiddleware,
    RequestLogMiddleware,
    TokenBuckets,
)
from icewright.app.web.problems import Problem, documented
from icewright.app.web.routing import PathSegmentMiddleware

PROMETHEUS = "text/plain; version=0.0.4; charset=utf-8"
MAX_STREAMS, STREAMS_PER_PRINCIPAL = 100, 10
MAX_HEAVY, HEAVY_PER_PRINCIPAL = 4, 2  # previews, plans and dry runs take whole CPU seconds
_UNREADY = "the service cannot do its work now"

_PROBES = APIRouter(tags=["probes"])
_log = logging.getLogger(__name__)
# built once per process: FastAPI analyses each route's dependencies when it is included
_ROUTES, _EXPOSED_ROUTES, _PROBE_ROUTES = APIRouter(), APIRouter(), APIRouter()


@_PROBES.get("/healthz", summary="The process lives", responses=documented(503))
async def healthz(status: Annotated[ServiceStatus, Depends(service_status)]) -> Response:
    """Return 503 when a loop has not come round within its bound, which only a new process mends; else 200."""
    if stuck := status.stuck_loops():
        _log.error("not alive: %s", "; ".join(stuck))
        raise Problem(503, "; ".join(stuck))
    return JSONResponse({"status": "ok"})


@_PROBES.get("/readyz", summary="The service can do its work", responses=documented(503))
def readyz(request: Request, status: Annotated[ServiceStatus, Depends(service_status)]) -> Response:
    """Return 503 while the process cannot work; local callers get the reasons, others find them in the log."""
    faults = status.faults()
    if not faults:
        return JSONResponse({"status": "ok"})
    _log.warning("not ready: %s", "; ".join(faults))
    if is_local_request(request):
        raise Problem(503, _UNREADY, errors=list(faults))
    raise Problem(503, _UNREADY)


@_PROBES.get("/metrics", summary="Metrics for Prometheus", response_class=Response)
def metrics(status: Annotated[ServiceStatus, Depends(service_status)]) -> Response:
    """Return all metrics in Prometheus's text format."""
    return Response(status.metrics(), media_type=PROMETHEUS)


for _router in (_PROBES, events.router, api.router, oidc.router, pages.router):
    _ROUTES.include_router(_router)
for _router in (_PROBES, events.router):
    _EXPOSED_ROUTES.include_router(_router)

_PROBE_ROUTES.add_api_route("/healthz", healthz)
_PROBE_ROUTES.add_api_route("/readyz", readyz)


@_EXPOSED_ROUTES.api_route("/{path:path}", methods=["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"])
async def not_served() -> None:
    """Refuse API and pages, which would make every local process, proxy or sidecar an admin."""
    raise problems.Problem(
        403,
        "other machines can reach this address, and auth is not configured: only events, probes and metrics are "
        "served; set auth, or server.host to 127.0.0.1",
    )


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings of the HTTP server: senders of events, limits and access."""

    senders: EventSenders = field(default_factory=EventSenders)
    max_body: int = 1024 * 1024
    requests_per_second: float = 100
    access: Access = field(default_factory=Access)
    probes_only: bool = False  # of a worker, which serves nothing else
    exposed: bool = False  # other machines can reach the address, and `auth` is not configured

    @classmethod
    def of(cls, config: Config) -> Settings:
        """Read the web settings from the configuration."""
        senders = EventSenders(config.events.tokens, config.events.secrets)
        server, access = config.server, access_of(config.auth)
        exposed = not access.required and not is_loopback(server.host)
        return cls(
            senders=senders,
            max_body=server.max_body_mb * 1024 * 1024,
            requests_per_second=server.requests_per_second,
            access=access,
            exposed=exposed,
        )


def _routes(settings: Settings) -> list[BaseRoute]:
    if settings.probes_only:
        return _PROBE_ROUTES.routes
    return (_EXPOSED_ROUTES if settings.exposed else _ROUTES).routes


def create_app(application: AppState, settings: Settings, service_status: ServiceStatus) -> FastAPI:
    """Return the ASGI application that serves an opened store."""
    loopback_alone = not (settings.access.required or settings.exposed or settings.probes_only)
    app = FastAPI(
        routes=_routes(settings),
        title="Icewright",
        version=icewright.__version__,
        openapi_url=None if settings.exposed or settings.probes_only else OPENAPI,
        docs_url=None,  # its page loads scripts from a CDN
        redoc_url=None,
        telemetry={"auto_configure": False},  # which would read the environment
        middleware=[
            Middleware(HeadMiddleware),
            Middleware(pages.ProblemPageMiddleware),
            Middleware(RequestLogMiddleware),
            Middleware(RateLimitMiddleware, buckets=TokenBuckets(settings.requests_per_second)),
            Middleware(BodyLimitMiddleware, limit=settings.max_body),
            Middleware(PathSegmentMiddleware),
            Middleware(ETagMiddleware),
            *([Middleware(LoopbackHostMiddleware)] if loopback_alone else []),
        ],
        redirect_slashes=False,  # a name may end in one
    )
    app.state.application, app.state.service_status = application, service_status
    app.state.senders, app.state.access = settings.senders, settings.access
    app.state.exposed, app.state.probes_only = settings.exposed, settings.probes_only
    app.state.response_cache, app.state.secret = (
        ResponseCache(application.runtime.store.change_token),
        secrets.token_urlsafe(32),
    )
    app.state.closing = threading.Event()
    app.state.stream_slots = PrincipalSlots("live pages", STREAMS_PER_PRINCIPAL, MAX_STREAMS)
    app.state.heavy_slots = PrincipalSlots("heavy requests", HEAVY_PER_PRINCIPAL, MAX_HEAVY)
    app.state.simulations = pages.Simulations()
    problems.install(app)
    app.add_exception_handler(pages.GoBack, pages.went_back)
    return app
