"""Lists by their addresses: what is filtered by, how it is sorted, and where a page begins."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from starlette.datastructures import QueryParams

from icewright.app.web.pages.urls import with_query
from icewright.app.web.problems import Problem

E = TypeVar("E", bound=enum.StrEnum)
PAGE = 50
_LONGEST = 1000


@dataclass(frozen=True, slots=True)
class ListParams:
    """What somebody asks of a list; a blank field of a form asks for nothing."""

    params: QueryParams

    def text(self, name: str) -> str | None:
        """Return one value of the query, None when blank. Raises `Problem` when it is too long."""
        found = self.params.get(name, "").strip()
        if len(found) > _LONGEST and name != "cursor":
            raise Problem(422, f"{name}: longer than {_LONGEST} characters")
        return found or None

    def one(self, name: str, known: type[E]) -> E | None:
        """Return one of known words. Raises `Problem`."""
        found = self.text(name)
        if found is None:
            return None
        if found not in list(known):
            raise Problem(422, f"{name}: there is no {found}; there is: {', '.join(known)}")
        return known(found)

    def some(self, name: str, known: Sequence[str]) -> list[str]:
        """Return some of known words. Raises `Problem`."""
        found = [value for value in self.params.getlist(name) if value]
        if wrong := [value for value in found if value not in known]:
            raise Problem(422, f"{name}: there is no {wrong[0]}; there is: {', '.join(known)}")
        return list(dict.fromkeys(found))

    def number(self, name: str, least: int, most: int) -> int | None:
        """Return a whole number. Raises `Problem`."""
        found = self.text(name)
        if found is None:
            return None
        if not (found.isascii() and found.isdecimal() and least <= int(found[:19]) <= most):
            raise Problem(422, f"{name}: a whole number from {least} to {most}")
        return int(found)


@dataclass(frozen=True, slots=True)
class Heading:
    """The head of a column by which the list can be sorted."""

    title: str
    url: str
    sorted: str  # "", or as aria-sort says it
    kind: str = ""


@dataclass(frozen=True, slots=True)
class Pager:
    """Where the list goes on."""

    first: int
    last: int
    total: int | None
    start: str | None  # of the list, when this is not it
    next: str | None


def pager(
    path: str, query: Mapping[str, Any], asked: ListParams, shown: int, after: str | None, total: int | None
) -> Pager:
    """Return the page that is shown, and the way to others. Raises `Problem`."""
    first = asked.number("from", 1, 10**9) or 1
    begun = asked.text("cursor") is not None
    following = {**query, "cursor": after, "from": first + shown}
    return Pager(
        first=first if shown else 0,
        last=first + shown - 1 if shown else 0,
        total=total,
        start=with_query(path, dict(query)) if begun else None,
        next=with_query(path, following) if after is not None else None,
    )
