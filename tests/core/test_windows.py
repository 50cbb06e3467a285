"""How long windows are open."""

from __future__ import annotations

from datetime import timedelta

import pytest

from icewright.core.windows import WEEK, open_time, opens
from icewright.testing import NOW

MINUTE = timedelta(minutes=1)


@pytest.mark.parametrize(
    "windows",
    [None, "", "sat 02:00-06:00", "sat 11:00-13:00", "22:00-06:00; 23:00-07:30; sun", "fri,sat 23:59-00:01", "sat,sun"],
)
@pytest.mark.parametrize("length", [timedelta(0), MINUTE, timedelta(hours=19), WEEK])
def test_open_time(windows: str | None, length: timedelta) -> None:
    """Each minute in which a window is open counts, and counts once however many are open."""
    minutes = [NOW + n * MINUTE for n in range(length // MINUTE)]
    assert open_time(windows, NOW, NOW + length) == MINUTE * sum(opens(windows, at) is None for at in minutes)
