"""When a layout is applied, kept and taken back."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import pytest

from icewright.core.layout import AppliedLayout, LayoutReport, LayoutRule, LayoutTrial, LayoutVerdict, RowLayout
from icewright.core.table import TableRef
from icewright.testing import NOW

BEST = RowLayout(("host",))
SORTED = {"compact.strategy": "sort", "compact.sort_order": "host"}
OTHER = {"compact.strategy": "sort", "compact.sort_order": "day"}
APPLY, KEEP, TAKE_BACK = LayoutVerdict


def applied(settings: Mapping[str, Any] = SORTED, *, before: float = 0.8, days: float = 8, written: bool = True) -> Any:
    """A layout that was applied so many days ago."""
    return AppliedLayout(NOW - timedelta(days=days), settings, before, written)


@pytest.mark.parametrize(
    ("reads", "best", "known", "verdict", "words"),
    [
        pytest.param(800, 100, {}, APPLY, "80% of all bytes, 10% by sort by host, which pays in 3.0 days", id="pays"),
        pytest.param(800, 700, {}, KEEP, "pays in 20.0 days; allowed are 10", id="pays-too-late"),
        pytest.param(800, 750, {}, KEEP, "no other layout is clearly better", id="within-error"),
        pytest.param(800, 100, {"runs": 0}, KEEP, "nobody knows how often they run", id="unknown-rate"),
        pytest.param(800, 100, {"tried": [SORTED]}, KEEP, "was applied before and is not again", id="once-only"),
        pytest.param(800, 100, {"chosen": "a person"}, KEEP, "a person: that stays", id="a-person-s"),
        pytest.param(100, 90, {"applied": applied()}, KEEP, "10% of all bytes, 80% before 20", id="helps"),
        pytest.param(750, 90, {"applied": applied()}, TAKE_BACK, "does not help", id="does-not-help"),
        pytest.param(750, 90, {"applied": applied(days=6)}, KEEP, "judged from", id="watched"),
        pytest.param(750, 90, {"applied": applied(written=False)}, KEEP, "no compaction", id="not-written-yet"),
        pytest.param(300, 90, {"applied": applied()}, KEEP, "no other layout", id="partly-written"),
        pytest.param(300, 30, {"applied": applied(OTHER)}, APPLY, "30% of all bytes", id="other-queries"),
        pytest.param(
            100, 90, {"applied": applied(), "chosen": "an order"}, TAKE_BACK, "an order: that", id="overruled"
        ),
    ],
)
def test_what_is_done_about_a_layout(
    reads: int, best: int, known: Mapping[str, Any], verdict: LayoutVerdict, words: str
) -> None:
    """A layout is applied that pays in time, and taken back when it does not help or a person has chosen another."""
    trials = (LayoutTrial(None, reads), LayoutTrial(BEST, best))
    report = LayoutReport(TableRef("lake", ("sales",), "visits"), 1, 1000, 50, trials)
    rule = LayoutRule(known.get("runs", 1), 10, timedelta(days=7))
    found = rule.decide(report, known.get("applied"), known.get("tried", ()), known.get("chosen", ""), NOW)
    assert (found.verdict, words in found.reason) == (verdict, True), found


def test_names_of_columns_are_quoted_where_they_have_to_be() -> None:
    """The order is text that Spark parses."""
    trials = (LayoutTrial(None, 9), LayoutTrial(RowLayout(("host", "a, b.c")), 1))
    report = LayoutReport(TableRef("lake", ("sales",), "visits"), 1, 9, 9, trials)
    assert report.settings["compact.sort_order"] == "host, `a, b.c`"
