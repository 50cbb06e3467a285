"""Limits that are set in the place of the configuration's."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from icewright.core.capacity import CatalogLimits, Limits, PoolLimits
from icewright.core.errors import ConfigError
from icewright.core.limit_settings import limit_values, parse_limits, with_limits
from icewright.core.policy import Operation

LIMITS = Limits(
    per_operation={Operation.COMPACT: 2},
    pools={"default": PoolLimits(2, 5.0)},
    catalogs={"lake": CatalogLimits(3)},
    namespaces={("lake", "a.b"): CatalogLimits(None, 1.0)},
)


def test_each_limit_is_set_by_its_name_and_read_again() -> None:
    """Every name that is listed can be set, to another value or to none where there may be none, and nothing else."""
    for name, value in limit_values(LIMITS).items():
        for given in [(value or 0) + 1, *([None] if "gb_" in name else [])]:
            settings = parse_limits("set", {name: str(given) if given is not None else "null"}, LIMITS)
            after = limit_values(with_limits(LIMITS, settings))
            assert after == {**limit_values(LIMITS), name: given}, name
    gone = {"pools.gone.max_concurrent": 3, "catalogs.gone.max_concurrent": 3, "limits.per_operation.gone": 3}
    assert with_limits(LIMITS, gone) == LIMITS
    assert with_limits(LIMITS, {"limits.max_wait_hours.low": 3}).max_wait["low"] == timedelta(hours=3)
    assert with_limits(LIMITS, {"limits.per_operation.compact": 3}).per_operation[Operation.COMPACT] == 3
    shares = with_limits(LIMITS, parse_limits("set", {"limits.namespaces.lake.team-*.max_concurrent": "1"}, LIMITS))
    assert shares.namespaces[("lake", "team-*")] == CatalogLimits(1)


@pytest.mark.parametrize(
    ("name", "value", "fault"),
    [
        ("limits.globl", 1, "there is no such limit, .*did you mean limits.global"),
        ("limits.per_worker", 1, "only the configuration file has it"),
        ("limits.namespaces.lake.max_concurrent", 1, "there is no such limit"),
        ("limits.global", "null", "None is not a whole number of at least 1"),
        ("limits.global", 1.5, "1.5 is not a whole number"),
        ("limits.max_wait_hours.low", 10**12, "is not a whole number from 1 to"),
        ("pools.default.gb_hours_per_day", 0, "0 is not a number of at least 0.001 .*or null for none"),
        ("limits.gb_hour_price", True, "True is not a number"),
    ],
)
def test_a_limit_that_cannot_hold_is_refused(name: str, value: Any, fault: str) -> None:
    """The message names the limit, and what would be right."""
    with pytest.raises(ConfigError, match=rf"^set {name}: .*{fault}"):
        parse_limits("set", {name: value}, LIMITS)
