"""Server-rendered pages over the REST API; they work without scripts and update live with them."""

from __future__ import annotations

from fastapi import APIRouter

from icewright.app.web.pages import (
    actions,
    activity,
    alerts,
    home,
    jobs,
    limits,
    login,
    policies,
    render,
    settings,
    simulate,
    table,
    tables,
)
from icewright.app.web.pages.forms import GoBack, went_back
from icewright.app.web.pages.login import ProblemPageMiddleware
from icewright.app.web.pages.simulate import Simulations

router = APIRouter(include_in_schema=False)
for module in (
    render,
    login,
    home,
    tables,
    table,
    jobs,
    actions,
    activity,
    simulate,
    policies,
    alerts,
    settings,
    limits,
):
    router.include_router(module.router)

__all__ = ["GoBack", "ProblemPageMiddleware", "Simulations", "router", "went_back"]
