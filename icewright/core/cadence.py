"""The calendar of recovery points: full hours, days, weeks and months, all in UTC."""

from __future__ import annotations

import enum
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import assert_never

_DAY = timedelta(days=1)
_WEEK_DAYS = 7


class Cadence(enum.StrEnum):
    """The interval between recovery points."""

    HOURLY = "hourly"
    DAILY = "daily"
    WEEKLY = "weekly"
    MONTHLY = "monthly"

    def start(self, moment: datetime) -> datetime:
        """Return the beginning of the hour, day, week (from Monday on) or month of the moment."""
        hour = moment.astimezone(UTC).replace(minute=0, second=0, microsecond=0)
        match self:
            case Cadence.HOURLY:
                return hour
            case Cadence.DAILY:
                return hour.replace(hour=0)
            case Cadence.WEEKLY:
                return hour.replace(hour=0) - hour.weekday() * _DAY
            case Cadence.MONTHLY:
                return hour.replace(hour=0, day=1)
        assert_never(self)

    def following(self, start: datetime) -> datetime:
        """Return the beginning of the next hour, day, week or month."""
        days = {Cadence.HOURLY: 0, Cadence.DAILY: 1, Cadence.WEEKLY: _WEEK_DAYS, Cadence.MONTHLY: 31}[self]
        return self.start(start + (days * _DAY or timedelta(hours=1)))

    def newest(self, count: int, moment: datetime) -> list[datetime]:
        """Return the last `count` beginnings up to the moment, the oldest first."""
        return list(islice(self._backwards(moment), count))[::-1]

    def _backwards(self, moment: datetime) -> Iterator[datetime]:
        start = self.start(moment)
        while True:
            yield start
            start = self.start(start - timedelta(microseconds=1))

    def label(self, start: datetime) -> str:
        """Return a beginning as text: `2026-11-25T10`, `2026-11-25`, `2026-W48` or `2026-11`."""
        formats = {Cadence.HOURLY: "%Y-%m-%dT%H", Cadence.DAILY: "%Y-%m-%d", Cadence.MONTHLY: "%Y-%m"}
        if self is Cadence.WEEKLY:
            year, week, _ = start.isocalendar()
            return f"{year}-W{week:02d}"
        return start.strftime(formats[self])

    def parse(self, label: str) -> datetime | None:
        """Return the beginning that the text names; None for any other text."""
        text, form = {
            Cadence.HOURLY: (label, "%Y-%m-%dT%H"),
            Cadence.DAILY: (label, "%Y-%m-%d"),
            Cadence.WEEKLY: (f"{label}-1", "%G-W%V-%u"),
            Cadence.MONTHLY: (label, "%Y-%m"),
        }[self]
        try:
            start = datetime.strptime(text, form).replace(tzinfo=UTC)
        except ValueError:
            return None
        return start if self.label(start) == label else None
