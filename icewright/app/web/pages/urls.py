"""Build and parse URLs of tables, with one path segment for each part of the name."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote, urlencode

from starlette.convertors import Convertor, register_url_convertor

from icewright.app.web.segments import Segment
from icewright.core.table import TableRef

_DOTS = ("", ".", "..")  # segments that browsers resolve as folders
_segment = Segment()


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


def table_url(name: str | TableRef, **query: Any) -> str:  # noqa: ANN401 - query parameters
    """Return the URL of a table's page."""
    ref = TableRef.parse(name) if isinstance(name, str) else name
    path = "/".join(quote(_quote(part), safe="") for part in ref.parts)
    return with_query(f"/tables/{path}", query)


def with_query(path: str, query: dict[str, Any]) -> str:
    """Return a path with the non-empty query parameters."""
    nonempty = {name: value for name, value in query.items() if value not in (None, "", [], ())}
    return f"{path}?{urlencode(nonempty, doseq=True)}" if nonempty else path


def _quote(part: str) -> str:
    """Return a part, in backticks when a browser would resolve it as a folder."""
    return "`" + part.replace("`", "``") + "`" if part in _DOTS or part.startswith("`") else part


def _unquote(part: str) -> str:
    return part[1:-1].replace("``", "`") if part.startswith("`") and part.endswith("`") and len(part) > 1 else part
