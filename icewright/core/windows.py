"""Maintenance windows: the hours of the week in which work may start automatically, in UTC or in a named time zone."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, time, timedelta, tzinfo
from functools import lru_cache
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_WINDOW = re.compile(r"(?:(?P<days>[a-z,\- ]+?)\s*)?(?:(?P<begin>\d{1,2}:\d{2})\s*-\s*(?P<end>\d{1,2}:\d{2}))?")
_ZONE = re.compile(r"(?P<hours>.*?)\s*\b(?P<zone>[A-Za-z_]+(?:/[A-Za-z0-9_+\-]+)+|UTC)")
_WEEK = 7
WEEK = timedelta(days=_WEEK)


@dataclass(frozen=True, slots=True)
class Window:
    """Hours of some days of the week (Monday is 0). An end that is not after the begin lies on the next day.

    Begin and end are wall-clock times of the zone, so a window that spans a change of its clocks is an hour longer or
    shorter. Of a time that occurs twice the first is meant; a time that is skipped counts from before the change.
    """

    days: frozenset[int]
    begin: time
    end: time
    zone: tzinfo = UTC

    def is_open(self, now: datetime) -> bool:
        """Return whether the time lies within, the hours that began yesterday included."""
        return any(begin <= now < end for begin, end in self.spans(now))

    def within(self, begin: datetime, end: datetime) -> list[tuple[datetime, datetime]]:
        """Return the window's hours between two times at most a week apart."""
        spans = ((max(b, begin), min(e, end)) for b, e in self.spans(begin))
        return [(opening, closing) for opening, closing in spans if opening < closing]

    def next_begin(self, now: datetime) -> datetime:
        """Return when the window begins next after `now`."""
        return min(begin for begin, _ in self.spans(now) if begin > now)

    def spans(self, now: datetime) -> Iterator[tuple[datetime, datetime]]:
        """Yield begin and end, in UTC, of the window on each of its days from yesterday until two weeks later.

        A day on which the zone's clocks skip the whole window has no span: the one after it may be that far away.
        """
        today = now.astimezone(self.zone).date()
        for day in (today + timedelta(days=d) for d in range(-1, 2 * _WEEK + 2)):
            if day.weekday() in self.days:
                last_day = day if self.end > self.begin else day + timedelta(days=1)
                begin = datetime.combine(day, self.begin, self.zone).astimezone(UTC)
                end = datetime.combine(last_day, self.end, self.zone).astimezone(UTC)
                if begin < end:
                    yield begin, end


@lru_cache(maxsize=4096)  # thousands of tables have few of them
def parse_windows(text: str) -> tuple[Window, ...]:
    """Return the windows of a text such as `mon-fri 22:00-06:00 Europe/Berlin; sat,sun`. Raises `ValueError`."""
    return tuple(_window(part.strip()) for part in text.split(";") if part.strip())


@lru_cache(maxsize=256)  # a plan asks for thousands of tables at the same time
def opens(text: str | None, now: datetime) -> datetime | None:
    """Return when the next window begins; None when one is open now or none is set."""
    windows = parse_windows(text) if text else ()
    if not windows or any(window.is_open(now) for window in windows):
        return None
    return min(window.next_begin(now) for window in windows)


def closed(text: str | None, now: datetime) -> str | None:
    """Return why nothing may begin automatically now; None when it may."""
    opening = opens(text, now)
    return None if opening is None else f"outside of its maintenance window, which opens {opening:%Y-%m-%d %H:%M} UTC"


def closes(text: str | None, now: datetime) -> datetime | None:
    """Return when the windows that are open now, and those that follow without a gap, end.

    None when none is open, or when they stay open for a week or more.
    """
    windows, closing = parse_windows(text) if text else (), now
    while spans := [end for window in windows for begin, end in window.spans(closing) if begin <= closing < end]:
        closing = max(spans)
        if closing - now >= WEEK:
            return None
    return closing if closing > now else None


def open_time(text: str | None, begin: datetime, end: datetime) -> timedelta:
    """Return how long windows are open between two times at most a week apart; all of it when none is set."""
    windows = parse_windows(text) if text else ()
    if not windows:
        return end - begin
    total, counted = timedelta(0), begin  # windows may overlap
    for opening, closing in sorted(span for window in windows for span in window.within(begin, end)):
        total += max(closing - max(opening, counted), timedelta(0))
        counted = max(counted, closing)
    return total


def _window(text: str) -> Window:
    zoned = _ZONE.fullmatch(text)
    hours, zone = (zoned["hours"], _zone(zoned["zone"])) if zoned else (text, UTC)
    match = _WINDOW.fullmatch(hours.lower())
    if match is None:
        raise ValueError(
            f"{text!r} is no window; write days, hours and perhaps a time zone, as in"
            " `mon-fri 22:00-06:00 Europe/Berlin; sat,sun` (without one: UTC)"
        )
    begin, end = (_time(match[name]) if match[name] else time(0) for name in ("begin", "end"))
    return Window(_days(match["days"]), begin, end, zone)


def _zone(name: str) -> tzinfo:
    if name == "UTC":
        return UTC
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise ValueError(f"{name!r} is no time zone; write an IANA name such as Europe/Berlin") from None


def _days(text: str | None) -> frozenset[int]:
    if not text:
        return frozenset(range(_WEEK))
    days: set[int] = set()
    for part in text.split(","):
        first, _, last = (name.strip() for name in part.partition("-"))
        if first not in DAYS or (last and last not in DAYS):
            raise ValueError(f"{part.strip()!r} is no day; days are {', '.join(DAYS)}, and mon-fri from one to another")
        begin = DAYS.index(first)
        count = (DAYS.index(last) - begin) % _WEEK + 1 if last else 1
        days |= {(begin + i) % _WEEK for i in range(count)}
    return frozenset(days)


def _time(text: str) -> time:
    hour, minute = (int(part) for part in text.split(":"))
    return time(hour % 24, minute) if (hour, minute) == (24, 0) else time(hour, minute)
