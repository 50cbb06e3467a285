"""The text of a probe must name the table."""

from __future__ import annotations

import pytest

from icewright.core.knob import check_predicate, checked_probe
from icewright.core.policy import PROBE
from icewright.core.rewriting import WHERE


def test_a_probe_names_the_table() -> None:
    """What does not is refused where the knob is set."""
    text = "SELECT count(*) FROM {table} WHERE day > '2026-01-01'"
    assert checked_probe(text) == PROBE.parse(text) == text
    with pytest.raises(ValueError, match=r"does not name the table as \{table\}"):
        PROBE.parse("SELECT count(*) FROM lake.sales.orders")


@pytest.mark.parametrize(
    "text",
    [
        "day > '2026-01-01' AND x = 1",
        "s = 'a;b -- c'",
        "s = 'it''s'",
        r"s = 'it\'s ('",
        "(a = 1) OR (`b c` = 2)",
        "d - -1 > 2",
    ],
)
def test_predicates_that_a_policy_may_have(text: str) -> None:
    """Whatever stands in quotes is data."""
    check_predicate(text)
    assert WHERE.parse(text) == text


@pytest.mark.parametrize(
    "text",
    [
        "1=1; DROP TABLE x",
        "a = 1 -- and",
        "a /* b */ = 1",
        "s = 'open",
        "s = `open",
        "(a = 1",
        "a = 1)",
        "a) = (1",
        r"s = 'a\'",
    ],
)
def test_predicates_that_are_refused_when_they_are_set(text: str) -> None:
    """Statements, comments and what is left open are no predicate, whatever the table."""
    with pytest.raises(ValueError, match="is not one predicate"):
        WHERE.parse(text)
