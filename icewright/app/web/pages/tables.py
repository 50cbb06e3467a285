"""The list of tables, filtered, sorted and paged by the database."""

from __future__ import annotations

from typing import Annotated, Any, Literal, cast

from fastapi import APIRouter
from starlette.responses import Response

from icewright.app.web import api
from icewright.app.web.callers import Caller, needs
from icewright.app.web.pages.render import redirect, render_page, stream_template
from icewright.app.web.pages.urls import PAGE, Heading, ListParams, pager, table_url, with_query
from icewright.core.permissions import Action, touches
from icewright.core.policy import Operation
from icewright.ports.views import STATES, TableSort

router = APIRouter()
PATH = "/tables"
_HEADINGS = (  # title, sort key, first direction, CSS class
    ("Table", TableSort.NAME, "asc", ""),
    ("State", None, "", ""),
    ("Health", TableSort.HEALTH, "asc", "num"),
    ("Files", TableSort.FILES, "desc", "num mid"),
    ("Size", TableSort.BYTES, "desc", "num mid"),
    ("Queries a day", TableSort.QUERIES, "desc", "num wide"),
    ("Due", TableSort.DUE_SINCE, "asc", "mid"),
    ("Evaluated", TableSort.EVALUATED, "desc", "wide"),
    ("Last success", TableSort.SUCCEEDED, "desc", "wide"),
)
_MOST_HEALTH = 101
_SECONDS = 3.0


@router.get(PATH)
def tables(caller: Annotated[Caller, needs(Action.TABLES_READ)]) -> Response:
    """Render one page of the list of tables; it follows what happens to them."""
    context = _context(caller)
    query, listing = context["query"], context["listing"]
    if "jump" in caller.request.query_params and query["search"]:
        named = [item.table for item in listing.items if listing.total == 1 or item.table == query["search"]]
        if named:
            return redirect(table_url(named[0]))  # the search of every page leads to what it finds
    return render_page(
        caller,
        "tables.html",
        live=with_query("/live/tables", query | {"cursor": caller.request.query_params.get("cursor")}),
        catalogs=sorted(name for name in caller.runtime.scopes if touches(caller.visibility, name)),
        states=STATES,
        operations=list(Operation),
        **context,
    )


@router.get("/live/tables")
def live(caller: Annotated[Caller, needs(Action.TABLES_READ)]) -> Response:
    """Stream a page of the list of tables as it changes."""
    return stream_template(caller, "_tables.html", lambda: _context(caller), _SECONDS)


def _context(caller: Caller) -> dict[str, Any]:
    params = ListParams(caller.request.query_params)
    query = _query(params)
    page_of_tables = api.tables.tables(
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
        cursor=params.text("cursor"),
    )
    return {
        "query": query,
        "listing": page_of_tables,
        "filtered": any(query[name] for name in ("catalog", "namespace", "search", "state", "due", "health_below")),
        "headings": [_heading(query, *head) for head in _HEADINGS],
        "pager": pager(PATH, query, params, len(page_of_tables.items), page_of_tables.next, page_of_tables.total),
    }


def _query(params: ListParams) -> dict[str, Any]:
    order = params.text("order")
    return {
        "catalog": params.text("catalog"),
        "namespace": params.text("namespace"),
        "search": params.text("search"),
        "state": params.some("state", STATES),
        "due": params.one("due", Operation),
        "health_below": params.number("health_below", 0, _MOST_HEALTH),
        "sort": params.one("sort", TableSort),
        "order": order if order in ("asc", "desc") else None,
    }


def _heading(query: dict[str, Any], title: str, sort: TableSort | None, first: str, kind: str) -> Heading:
    if sort is None:
        return Heading(title, "", "", kind)
    is_current = (query["sort"] or TableSort.NAME) == sort
    order = query["order"] or "asc"
    next_order = {"asc": "desc", "desc": "asc"}[order] if is_current else first
    aria_sort = {"asc": "ascending", "desc": "descending"}[order] if is_current else ""
    return Heading(title, with_query(PATH, query | {"sort": str(sort), "order": next_order}), aria_sort, kind)
