"""Define the routes of the REST API under /api/v1."""

from __future__ import annotations

from fastapi import APIRouter

from icewright.app.web.api import (
    access,
    bulk,
    catalogs,
    jobs,
    limits,
    overview,
    policies,
    recovery,
    system,
    tables,
    triggers,
    vacuums,
)

PREFIX = "/api/v1"

router = APIRouter(prefix=PREFIX)
for part in (overview, bulk, tables, triggers, recovery, jobs, policies, system, limits, catalogs, vacuums, access):
    router.include_router(part.router)
for more in (recovery.catalogs, recovery.jobs):
    router.include_router(more)

__all__ = ["PREFIX", "router"]
