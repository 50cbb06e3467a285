"""Encode the position where the next page begins as an opaque cursor."""

from __future__ import annotations

import json
from base64 import urlsafe_b64decode, urlsafe_b64encode
from typing import Annotated

from fastapi import Query

from icewright.app.web.problems import Problem
from icewright.ports.views import After

MAX_LIMIT = 500

Limit = Annotated[int, Query(ge=1, le=MAX_LIMIT, description="items at most")]
Cursor = Annotated[
    str | None, Query(max_length=4000, description="`next` of the page before; the other parameters stay as they were")
]


def encoded(after: After | None) -> str | None:
    """Return a position as URL-safe text, None at the end of the list."""
    if after is None:
        return None
    return urlsafe_b64encode(json.dumps(after, separators=(",", ":")).encode()).decode().rstrip("=")


def decoded(cursor: str | None) -> After | None:
    """Return the position of a cursor. Raises `Problem` 422 for a foreign text."""
    if cursor is None:
        return None
    try:
        position = json.loads(urlsafe_b64decode(cursor.encode("ascii") + b"=" * (-len(cursor) % 4)))
    except (ValueError, RecursionError):
        position = None
    if not isinstance(position, list) or any(isinstance(value, list | dict) for value in position):
        raise Problem(422, "cursor: not one of this API; begin again without it")
    return tuple(position)
