"""Changes of stored policy rules beside others who change them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from icewright.flow.runtime import Runtime

Settings = Mapping[str, Any]


def change_rule(
    runtime: Runtime, match: tuple[str, ...], author: str, change: Callable[[Settings], Settings | None]
) -> Settings:
    """Store what `change` makes of a rule's settings, again where others changed them; return those before.

    Nothing is stored where `change` returns None.
    """
    rules = runtime.store.rules
    while True:
        newest = next(iter(rules.versions(match)), None)
        before, version = (newest.settings, newest.version) if newest is not None else ({}, 0)
        changed = change(before)
        if changed is None or rules.put(match, changed, author, runtime.clock.now(), version) is not None:
            return before
