"""Serve liveness, readiness and metrics to orchestrators and Prometheus."""

from __future__ import annotations

import logging
from typing import Annotated

from fastapi import APIRouter, Depends, Request
from starlette.responses import JSONResponse, Response

from icewright.app.web.app_state import ServiceStatus, service_status
from icewright.app.web.identity import is_local_request
from icewright.app.web.problems import Problem, documented

PROMETHEUS = "text/plain; version=0.0.4; charset=utf-8"

_UNREADY = "the service cannot do its work now"

router = APIRouter(tags=["probes"])
_log = logging.getLogger(__name__)


@router.get("/healthz", summary="The process lives", responses=documented(503))
async def healthz(status: Annotated[ServiceStatus, Depends(service_status)]) -> Response:
    """Return 503 when a loop has not come round within its bound, which only a new process mends; else 200."""
    if stuck := status.stuck_loops():
        _log.error("not alive: %s", "; ".join(stuck))
        raise Problem(503, "; ".join(stuck))
    return JSONResponse({"status": "ok"})


@router.get("/readyz", summary="The service can do its work", responses=documented(503))
def readyz(request: Request, status: Annotated[ServiceStatus, Depends(service_status)]) -> Response:
    """Return 503 while the process cannot work; local callers get the reasons, others find them in the log."""
    faults = status.faults()
    if not faults:
        return JSONResponse({"status": "ok"})
    _log.warning("not ready: %s", "; ".join(faults))
    if is_local_request(request):
        raise Problem(503, _UNREADY, errors=list(faults))
    raise Problem(503, _UNREADY)


@router.get("/metrics", summary="Metrics for Prometheus", response_class=Response)
def metrics(status: Annotated[ServiceStatus, Depends(service_status)]) -> Response:
    """Return all metrics in Prometheus's text format."""
    return Response(status.metrics(), media_type=PROMETHEUS)
