"""Addresses of tables: one segment for each part of the name, whatever the part holds."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote, urlencode

from starlette.convertors import Convertor, register_url_convertor

from icewright.app.web.segments import Segment
from icewright.core.table import TableRef

_DOTS = ("", ".", "..")  # what browsers take for a way through folders
_segment = Segment()


class TableNameConvertor(Convertor[str]):
    """The segments of a table's name, as its full name."""

    regex = "(?s:.+)"

    def convert(self, value: str) -> str:
        """As commands and the API know it."""
        first, *rest = (_read(_segment.convert(part)) for part in value.split("/"))
        return str(TableRef(first, tuple(rest[:-1]), rest[-1])) if rest else first

    def to_string(self, value: str) -> str:
        """Quote a table's name as path segments."""
        return value


register_url_convertor("named", TableNameConvertor())


def table_url(name: str | TableRef, **query: Any) -> str:  # noqa: ANN401 - whatever stands in a query
    """Return the page of a table."""
    ref = TableRef.parse(name) if isinstance(name, str) else name
    path = "/".join(quote(_written(part), safe="") for part in ref.parts)
    return with_query(f"/tables/{path}", query)


def with_query(path: str, query: dict[str, Any]) -> str:
    """Return a path with those parameters that have a value."""
    given = {name: value for name, value in query.items() if value not in (None, "", [], ())}
    return f"{path}?{urlencode(given, doseq=True)}" if given else path


def _written(part: str) -> str:
    """Quoted by backticks where a browser would read it as a way."""
    return "`" + part.replace("`", "``") + "`" if part in _DOTS or part.startswith("`") else part


def _read(part: str) -> str:
    return part[1:-1].replace("``", "`") if part.startswith("`") and part.endswith("`") and len(part) > 1 else part
