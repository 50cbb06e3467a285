"""The daily budgets of GB-hours, and what of them is used."""

from __future__ import annotations

from datetime import datetime

from icewright.core.cadence import Cadence
from icewright.core.conditions import Spending
from icewright.flow.runtime import Runtime


def spending(runtime: Runtime, now: datetime) -> list[Spending]:
    """Return the budgets of pools and catalogs and their use today; without budgets the runs are not summed up."""
    limits = runtime.limits()
    pools = {name: pool.gb_hours_per_day for name, pool in limits.pools.items()}
    catalogs = {name: catalog.gb_hours_per_day for name, catalog in limits.catalogs.items()}
    if not any((*pools.values(), *catalogs.values())):
        return []
    usage = runtime.store.planning.usage(Cadence.DAILY.start(now))
    kinds = (("pool", pools, usage.spent_by_pool), ("catalog", catalogs, usage.spent_by_catalog))
    return [
        Spending(f"{kind} {name}", budget, spent.get(name, 0.0))
        for kind, budgets, spent in kinds
        for name, budget in budgets.items()
        if budget
    ]
