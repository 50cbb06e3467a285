"""What watches the service asks: does it live, can it work, and what has it done."""

from __future__ import annotations

import logging
from typing import Annotated

from fastapi import APIRouter, Depends, Request
from starlette.responses import JSONResponse, Response

from icewright.app.addresses import is_loopback
from icewright.app.web.app_state import Watch, watch
from icewright.app.web.problems import Problem, documented

PROMETHEUS = "text/plain; version=0.0.4; charset=utf-8"

_UNREADY = "the service cannot do its work now"

router = APIRouter(tags=["probes"])
_log = logging.getLogger(__name__)


@router.get("/healthz", summary="The process lives")
async def healthz() -> dict[str, str]:
    """Answered by whoever can answer at all."""
    return {"status": "ok"}


@router.get("/readyz", summary="The service can do its work", responses=documented(503))
def readyz(request: Request, of: Annotated[Watch, Depends(watch)]) -> Response:
    """503 with the reasons while it cannot; those who ask from elsewhere find them in the log."""
    faults = of.faults()
    if not faults:
        return JSONResponse({"status": "ok"})
    _log.warning("not ready: %s", "; ".join(faults))
    if request.client is not None and is_loopback(request.client.host):
        raise Problem(503, _UNREADY, errors=list(faults))
    raise Problem(503, _UNREADY)


@router.get("/metrics", summary="Metrics for Prometheus", response_class=Response)
def metrics(of: Annotated[Watch, Depends(watch)]) -> Response:
    """Return all metrics in Prometheus's text format."""
    return Response(of.metrics(), media_type=PROMETHEUS)
