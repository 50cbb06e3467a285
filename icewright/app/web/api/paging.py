"""Pages: a cursor is where the next one begins, and says nothing to anybody but us."""

from __future__ import annotations

import json
from base64 import urlsafe_b64decode, urlsafe_b64encode
from typing import Annotated

from fastapi import Query

from icewright.app.web.problems import Problem
from icewright.ports.views import After

MOST = 500

Limit = Annotated[int, Query(ge=1, le=MOST, description="items at most")]
Cursor = Annotated[
    str | None, Query(max_length=4000, description="`next` of the page before; the other parameters stay as they were")
]


def encoded(after: After | None) -> str | None:
    """As text that stands in a URL."""
    if after is None:
        return None
    return urlsafe_b64encode(json.dumps(after, separators=(",", ":")).encode()).decode().rstrip("=")


def decoded(cursor: str | None) -> After | None:
    """Return where the page begins. Raises `Problem`."""
    if cursor is None:
        return None
    try:
        found = json.loads(urlsafe_b64decode(cursor.encode("ascii") + b"=" * (-len(cursor) % 4)))
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, list) or any(isinstance(value, list | dict) for value in found):
        raise Problem(422, "cursor: not one of this API; begin again without it")
    return tuple(found)
