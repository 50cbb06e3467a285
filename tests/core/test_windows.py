"""When windows are open, and for how long."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from icewright.core.windows import WEEK, closes, open_time, opens, parse_windows
from icewright.testing import NOW

MINUTE = timedelta(minutes=1)


@pytest.mark.parametrize(
    "windows",
    [
        None,
        "",
        "sat 02:00-06:00",
        "sat 11:00-13:00",
        "22:00-06:00; 23:00-07:30; sun",
        "fri 23:59-00:01 Asia/Tokyo",
        "sat,sun",
    ],
)
@pytest.mark.parametrize(
    "length", [timedelta(0), MINUTE, timedelta(hours=19), pytest.param(WEEK, marks=pytest.mark.slow)]
)
def test_open_time(windows: str | None, length: timedelta) -> None:
    """Each minute in which a window is open counts, and counts once however many are open."""
    minutes = [NOW + n * MINUTE for n in range(length // MINUTE)]
    assert open_time(windows, NOW, NOW + length) == MINUTE * sum(opens(windows, at) is None for at in minutes)


@pytest.mark.parametrize(
    ("windows", "begin", "end"),
    [
        ("mon-fri 22:00-06:00 Europe/Berlin", "2026-07-01 20:00", "2026-07-02 04:00"),  # summer time: UTC+2
        ("mon-fri 22:00-06:00 Europe/Berlin", "2026-12-01 21:00", "2026-12-02 05:00"),  # winter time: UTC+1
        ("sat 22:00-06:00 Europe/Berlin", "2026-03-28 21:00", "2026-03-29 04:00"),  # an hour shorter
        ("sat 22:00-06:00 Europe/Berlin", "2026-10-24 20:00", "2026-10-25 05:00"),  # an hour longer
        ("sun 02:30-05:00 Europe/Berlin", "2026-10-25 00:30", "2026-10-25 04:00"),  # the first of two 02:30
        ("sun America/New_York", "2026-11-01 04:00", "2026-11-02 05:00"),  # a day of 25 hours
        ("mon 08:00-09:00 Asia/Kolkata", "2026-11-23 02:30", "2026-11-23 03:30"),
        ("sat 22:00-23:00; sat 23:00-02:00 UTC", "2026-11-21 22:00", "2026-11-22 02:00"),  # no gap between them
    ],
)
def test_windows_follow_the_clocks_of_their_zone(windows: str, begin: str, end: str) -> None:
    """A window opens and closes at the wall-clock times of its zone, also on the days when clocks change."""
    opening, closing = (datetime.fromisoformat(at).replace(tzinfo=UTC) for at in (begin, end))
    assert opens(windows, opening - MINUTE) == opening
    assert opens(windows, opening) is None
    assert closes(windows, opening) == closing
    assert opens(windows, closing) is not None
    assert closes(windows, closing) is None


def test_a_window_that_the_clocks_skip_does_not_open() -> None:
    """02:00 to 03:00 does not exist in Berlin on the day on which summer time begins."""
    for day in range(22, 30):  # from the Sunday before it on
        noon = datetime(2026, 3, day, 12, tzinfo=UTC)
        assert opens("sun 02:00-03:00 Europe/Berlin", noon) == datetime(2026, 4, 5, 0, tzinfo=UTC)


def test_windows_that_never_close_have_no_end() -> None:
    """Neither a table without windows nor one whose windows cover the week has work cancelled by them."""
    assert closes(None, NOW) is None
    assert closes("mon-sun", NOW) is None


@pytest.mark.parametrize("zone", ["Europe/Atlantis", "Europe", "../etc/passwd", "CET+1"])
def test_an_unknown_zone_is_refused(zone: str) -> None:
    """A zone that the time zone database lacks is an error when the setting is read."""
    with pytest.raises(ValueError, match="is no"):
        parse_windows(f"mon-fri 22:00-06:00 {zone}")
