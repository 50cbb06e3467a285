"""Build and parse the URLs of pages: of tables, and of lists with their filters, sorting and page position."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, TypeVar
from urllib.parse import quote, urlencode

from starlette.convertors import Convertor, register_url_convertor
from starlette.datastructures import QueryParams

from icewright.app.web.problems import Problem
from icewright.app.web.routing import Segment
from icewright.core.table import TableRef
from icewright.core.words import count

_DOTS = ("", ".", "..")  # segments that browsers resolve as folders
_segment = Segment()
E = TypeVar("E", bound=enum.StrEnum)
PAGE = 50
_LONGEST = 1000


class TableNameConvertor(Convertor[str]):
    """Converts path segments to the full name of a table."""

    regex = "(?s:.+)"

    def convert(self, value: str) -> str:
        """Return the full name, as commands and the API write it."""
        catalog, *names = (_unquote(_segment.convert(part)) for part in value.split("/"))
        return str(TableRef(catalog, tuple(names[:-1]), names[-1])) if names else catalog

    def to_string(self, value: str) -> str:
        """Quote a table's name as path segments."""
        return value


register_url_convertor("named", TableNameConvertor())


def table_url(name: str | TableRef, **query: Any) -> str:
    """Return the URL of a table's page."""
    ref = TableRef.parse(name) if isinstance(name, str) else name
    path = "/".join(quote(_quote(part), safe="") for part in ref.parts)
    return with_query(f"/tables/{path}", query)


def with_query(path: str, query: Mapping[str, Any]) -> str:
    """Return a path with the non-empty query parameters."""
    nonempty = {name: value for name, value in query.items() if value not in (None, "", [], ())}
    return f"{path}?{urlencode(nonempty, doseq=True)}" if nonempty else path


def _quote(part: str) -> str:
    """Return a part, in backticks when a browser would resolve it as a folder."""
    return "`" + part.replace("`", "``") + "`" if part in _DOTS or part.startswith("`") else part


def _unquote(part: str) -> str:
    return part[1:-1].replace("``", "`") if part.startswith("`") and part.endswith("`") and len(part) > 1 else part


class TimeRange(enum.StrEnum):
    """The stretches of time, up to now, that charts and lists may show."""

    HOUR = "1h"
    HOURS = "6h"
    DAY = "24h"
    WEEK = "7d"
    FORTNIGHT = "14d"
    MONTH = "30d"
    QUARTER = "90d"

    @property
    def hours(self) -> int:
        """Return the length in hours."""
        return int(self[:-1]) * (24 if self.endswith("d") else 1)

    @property
    def words(self) -> str:
        """Return the length in words, such as `7 days`."""
        return count(int(self[:-1]), "day" if self.endswith("d") else "hour")

    def since(self, now: datetime) -> datetime:
        """Return the beginning of the stretch, to the minute, so that answers can be used again."""
        return now.replace(second=0, microsecond=0) - timedelta(hours=self.hours)


def since(chosen: TimeRange | None, now: datetime) -> datetime | None:
    """Return the beginning of a stretch that a list may be limited to."""
    return None if chosen is None else chosen.since(now)


@dataclass(frozen=True, slots=True)
class ListParams:
    """The query parameters of a list; blank values count as absent."""

    params: QueryParams

    def text(self, name: str) -> str | None:
        """Return one value of the query, None when blank. Raises `Problem` when it is too long."""
        value = self.params.get(name, "").strip()
        if len(value) > _LONGEST and name != "cursor":
            raise Problem(422, f"{name}: longer than {_LONGEST} characters")
        return value or None

    def one(self, name: str, choices: type[E]) -> E | None:
        """Return a member of an enum, None when absent. Raises `Problem` 422."""
        value = self.text(name)
        if value is None:
            return None
        if value not in list(choices):
            raise Problem(422, f"{name}: there is no {value}; there is: {', '.join(choices)}")
        return choices(value)

    def some(self, name: str, choices: Sequence[str]) -> list[str]:
        """Return the distinct values, all of which must be known. Raises `Problem` 422."""
        values = [value for value in self.params.getlist(name) if value]
        if wrong := [value for value in values if value not in choices]:
            raise Problem(422, f"{name}: there is no {wrong[0]}; there is: {', '.join(choices)}")
        return list(dict.fromkeys(values))

    def number(self, name: str, minimum: int, maximum: int) -> int | None:
        """Return an integer between bounds, None when absent. Raises `Problem` 422."""
        text = self.text(name)
        if text is None:
            return None
        if not (text.isascii() and text.isdecimal() and minimum <= int(text[:19]) <= maximum):
            raise Problem(422, f"{name}: a whole number from {minimum} to {maximum}")
        return int(text)

    def live(self, path: str, query: Mapping[str, Any]) -> str:
        """Return the URL at which a list is followed; blank on all but its first page, which alone changes."""
        return "" if "cursor" in self.params else with_query(path, query)


@dataclass(frozen=True, slots=True)
class Heading:
    """A column heading, with the URL that sorts by it."""

    title: str
    url: str
    sorted: str  # value of aria-sort, blank when not sorted by
    kind: str = ""


@dataclass(frozen=True, slots=True)
class Pager:
    """The shown range of a list, and links to other pages."""

    first: int
    last: int
    total: int | None
    start: str | None  # URL of the first page, unless shown
    next: str | None


def pager(
    path: str, query: Mapping[str, Any], params: ListParams, shown: int, after: str | None, total: int | None
) -> Pager:
    """Return the pager of a list. Raises `Problem` 422 for a bad `from`."""
    first = params.number("from", 1, 10**9) or 1
    has_cursor = params.text("cursor") is not None
    next_query = {**query, "cursor": after, "from": first + shown}
    return Pager(
        first=first if shown else 0,
        last=first + shown - 1 if shown else 0,
        total=total,
        start=with_query(path, query) if has_cursor else None,
        next=with_query(path, next_query) if after is not None else None,
    )
