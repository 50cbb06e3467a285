"""Waiting for what another thread or process does."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

SECONDS = 120.0  # on a busy machine
_BETWEEN = 0.02
_Found = TypeVar("_Found")


def until(look: Callable[[], _Found | None], what: str = "what is looked for", seconds: float = SECONDS) -> _Found:
    """Return what `look` finds at last, or fail with what was waited for."""
    end = time.monotonic() + seconds
    while True:
        if found := look():
            return found
        assert time.monotonic() < end, f"waited {seconds:g} s in vain: {what}"
        time.sleep(_BETWEEN)
