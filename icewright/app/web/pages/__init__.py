"""The pages: what the API knows, for people; rendered here, readable without scripts, alive with them."""

from __future__ import annotations

from fastapi import APIRouter

from icewright.app.web.pages import (
    actions,
    alerts,
    assets,
    audit,
    home,
    jobs,
    login,
    policies,
    queue,
    settings,
    table,
    tables,
)
from icewright.app.web.pages.live import Followers
from icewright.app.web.pages.shown import Shown

router = APIRouter(include_in_schema=False)
for part in (assets, login, home, tables, table, jobs, queue, actions, policies, alerts, audit, settings):
    router.include_router(part.router)

__all__ = ["Followers", "Shown", "router"]
