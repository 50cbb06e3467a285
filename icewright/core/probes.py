"""Check probe queries, which measure a table and name it by a placeholder."""

from __future__ import annotations

TABLE = "{table}"  # placeholder of the table in the query


def checked_probe(text: str) -> str:
    """Return the text. Raises `ValueError` when it does not name the table; the engine checks that it is a query."""
    if TABLE not in text:
        raise ValueError(f"{text!r} does not name the table as {TABLE}")
    return text
