"""The list of tables: filtered, sorted and cut into pages by the database."""

from __future__ import annotations

from typing import Annotated, Any, Literal, cast

from fastapi import APIRouter
from starlette.responses import Response

from icewright.app.web import api
from icewright.app.web.callers import Caller, needs
from icewright.app.web.pages.listing import PAGE, Heading, ListParams, pager
from icewright.app.web.pages.render import page
from icewright.app.web.pages.urls import with_query
from icewright.core.permissions import Action, touches
from icewright.core.policy import Operation
from icewright.ports.views import STATES, TableSort

router = APIRouter()
PATH = "/tables"
_HEADS = (  # title, what it is sorted by, which way first, on a phone too
    ("Table", TableSort.NAME, "asc", ""),
    ("State", None, "", ""),
    ("Health", TableSort.HEALTH, "asc", "num"),
    ("Files", TableSort.FILES, "desc", "num wide"),
    ("Size", TableSort.BYTES, "desc", "num wide"),
    ("Queries a day", TableSort.QUERIES, "desc", "num wide"),
    ("Due", TableSort.DUE_SINCE, "asc", "wide"),
    ("Looked at", TableSort.EVALUATED, "desc", "wide"),
    ("Worked on", TableSort.SUCCEEDED, "desc", "wide"),
)
_MOST_HEALTH = 101


@router.get(PATH)
def tables(caller: Annotated[Caller, needs(Action.TABLES_READ)]) -> Response:
    """Render one page of the list of tables."""
    asked = ListParams(caller.request.query_params)
    query = _query(asked)
    found = api.tables.tables(
        caller,
        catalog=query["catalog"],
        namespace=query["namespace"],
        search=query["search"],
        state=cast(Any, query["state"]),
        due=query["due"],
        health_below=query["health_below"],
        sort=query["sort"] or TableSort.NAME,
        order=cast(Literal["asc", "desc"], query["order"] or "asc"),
        limit=PAGE,
        cursor=asked.text("cursor"),
    )
    catalogs = sorted(name for name in caller.runtime.scopes if touches(caller.visibility, name))
    filtered = any(query[name] for name in ("catalog", "namespace", "search", "state", "due", "health_below"))
    return page(
        caller,
        "tables.html",
        query=query,
        found=found,
        filtered=filtered,
        headings=[_heading(query, *head) for head in _HEADS],
        catalogs=catalogs,
        states=STATES,
        operations=list(Operation),
        pager=pager(PATH, query, asked, len(found.items), found.next, found.total),
    )


def _query(asked: ListParams) -> dict[str, Any]:
    order = asked.text("order")
    return {
        "catalog": asked.text("catalog"),
        "namespace": asked.text("namespace"),
        "search": asked.text("search"),
        "state": asked.some("state", STATES),
        "due": asked.one("due", Operation),
        "health_below": asked.number("health_below", 0, _MOST_HEALTH),
        "sort": asked.one("sort", TableSort),
        "order": order if order in ("asc", "desc") else None,
    }


def _heading(query: dict[str, Any], title: str, sort: TableSort | None, first: str, kind: str) -> Heading:
    if sort is None:
        return Heading(title, "", "", kind)
    mine = (query["sort"] or TableSort.NAME) == sort
    order = query["order"] or "asc"
    turned = {"asc": "desc", "desc": "asc"}[order] if mine else first
    said = {"asc": "ascending", "desc": "descending"}[order] if mine else ""
    return Heading(title, with_query(PATH, query | {"sort": str(sort), "order": turned}), said, kind)
