"""Check the texts of settings that become SQL, as far as that goes without a table: probe queries and predicates."""

from __future__ import annotations

import re

_QUOTED = re.compile(r"""'(?:[^'\\]|\\.|'')*'|"(?:[^"\\]|\\.|"")*"|`(?:[^`]|``)*`""")
TABLE = "{table}"  # placeholder of the table in the query


def checked_probe(text: str) -> str:
    """Return the text. Raises `ValueError` when it does not name the table; the engine checks that it is a query."""
    if TABLE not in text:
        raise ValueError(f"{text!r} does not name the table as {TABLE}")
    return text


def check_predicate(text: str) -> None:
    """Raise `ValueError` for what is no single predicate: statements, comments, and quotes or brackets left open.

    The engine parses the predicate, and checks its columns against those of the table.
    """
    bare = _QUOTED.sub("", text)
    if bad := next((sign for sign in (";", "--", "/*", "'", '"', "`") if sign in bare), None):
        raise ValueError(f"{text!r} is not one predicate: it has {bad} outside of quotes, or leaves them open")
    depth = 0
    for sign in re.findall(r"[()]", bare):
        depth += 1 if sign == "(" else -1
        if depth < 0:
            break
    if depth:
        raise ValueError(f"{text!r} is not one predicate: its brackets do not match")
