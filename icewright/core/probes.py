"""Queries that measure a table: a text in which the table has a name of its own."""

from __future__ import annotations

TABLE = "{table}"  # what stands for the table in the text


def checked_probe(text: str) -> str:
    """The text. Raises `ValueError` when it does not name the table; whether it is one query, the engine says."""
    if TABLE not in text:
        raise ValueError(f"{text!r} does not name the table as {TABLE}")
    return text
