"""Maintenance windows: the hours of the week in which work may start by itself. All times are UTC."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime, time, timedelta
from functools import lru_cache

DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_WINDOW = re.compile(r"(?:(?P<days>[a-z,\- ]+?)\s*)?(?:(?P<begin>\d{1,2}:\d{2})\s*-\s*(?P<end>\d{1,2}:\d{2}))?")
_WEEK = 7
WEEK = timedelta(days=_WEEK)


@dataclass(frozen=True, slots=True)
class Window:
    """Hours of some days of the week (Monday is 0). An end that is not after the begin lies on the next day."""

    days: frozenset[int]
    begin: time
    end: time

    def holds(self, now: datetime) -> bool:
        """Return whether the time lies within, the hours that began yesterday included."""
        return any(begin <= now < begin + self._length for begin in self._begins(now))

    def within(self, begin: datetime, end: datetime) -> list[tuple[datetime, datetime]]:
        """Return the window's hours between two times at most a week apart."""
        spans = ((max(b, begin), min(b + self._length, end)) for b in self._begins(begin))
        return [(opening, closing) for opening, closing in spans if opening < closing]

    def next_begin(self, now: datetime) -> datetime:
        """Return when the window begins next after `now`."""
        return min(begin for begin in self._begins(now) if begin > now)

    @property
    def _length(self) -> timedelta:
        minutes = (self.end.hour - self.begin.hour) * 60 + self.end.minute - self.begin.minute
        return timedelta(minutes=minutes if minutes > 0 else minutes + 24 * 60)

    def _begins(self, now: datetime) -> list[datetime]:
        midnight = now.replace(hour=0, minute=0, second=0, microsecond=0)
        days = (midnight + timedelta(days=d) for d in range(-1, _WEEK + 1))
        return [
            d + timedelta(hours=self.begin.hour, minutes=self.begin.minute) for d in days if d.weekday() in self.days
        ]


@lru_cache(maxsize=4096)  # thousands of tables have few of them
def parse_windows(text: str) -> tuple[Window, ...]:
    """Return the windows of a text such as `mon-fri 22:00-06:00; sat,sun`. Raises `ValueError`."""
    return tuple(_window(part.strip().lower()) for part in text.split(";") if part.strip())


def opens(text: str | None, now: datetime) -> datetime | None:
    """Return when the next window begins; None when one is open now or none is set."""
    windows = parse_windows(text) if text else ()
    if not windows or any(window.holds(now) for window in windows):
        return None
    return min(window.next_begin(now) for window in windows)


def closed(text: str | None, now: datetime) -> str | None:
    """Return why nothing may begin automatically now; None when it may."""
    opening = opens(text, now)
    return None if opening is None else f"outside of its maintenance window, which opens {opening:%Y-%m-%d %H:%M} UTC"


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
    match = _WINDOW.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is no window; write days and hours (UTC), as in `mon-fri 22:00-06:00; sat,sun`")
    begin, end = (_time(match[name]) if match[name] else time(0) for name in ("begin", "end"))
    return Window(_days(match["days"]), begin, end)


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
