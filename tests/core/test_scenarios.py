"""Named fleets: by the defaults each costs at most what nightly cron does, and is read for less."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest

from icewright.core.capacity import Limits
from icewright.core.layering import Policy
from icewright.core.simulation.fleet import SCENARIOS, fleet
from icewright.core.simulation.run import Slots, Span, simulate

BEGIN = datetime.fromisoformat("2026-01-05T00:00:00+00:00")
DAYS = {"monthly-trickle": 12, "hourly-200mb": 12, "daily-stream": 1.5, "minute-stream": 2.5}
TABLES = 20  # at most


@pytest.mark.cases(130, 131, 136)
@pytest.mark.parametrize("name", SCENARIOS)
def test_the_default_against_cron(name: str) -> None:
    """The default policy takes no more GB-hours than cron, and queries cost less; idle tables cost the same to read."""
    sources = fleet(name, min(TABLES, SCENARIOS[name].tables), 0, BEGIN)
    span = Span(BEGIN, BEGIN + timedelta(days=DAYS.get(name, 4)))
    cron, ours = (simulate(sources, policy, span, Slots(Limits())) for policy in (None, Policy()))
    assert ours.gb_hours <= cron.gb_hours
    assert ours.query_mb < cron.query_mb or (name == "idle-5000" and ours.query_mb == cron.query_mb)
