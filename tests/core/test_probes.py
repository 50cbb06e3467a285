"""The text of a probe must name the table."""

from __future__ import annotations

import pytest

from icewright.core.policy import PROBE
from icewright.core.probes import checked_probe


def test_a_probe_names_the_table() -> None:
    """What does not is refused where the knob is set."""
    text = "SELECT count(*) FROM {table} WHERE day > '2026-01-01'"
    assert checked_probe(text) == PROBE.parse(text) == text
    with pytest.raises(ValueError, match=r"does not name the table as \{table\}"):
        PROBE.parse("SELECT count(*) FROM lake.sales.orders")
