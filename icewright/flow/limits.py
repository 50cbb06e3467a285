"""The limits as configured or set in their place, and the change of those that are set."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import datetime
from typing import Any

from icewright.core.capacity import Limits
from icewright.core.errors import StorageUnavailable
from icewright.core.limit_settings import limit_values, with_limits
from icewright.ports import LimitSettings, StoredLimits

Settings = Mapping[str, Any]


class CurrentLimits:
    """The limits of the configuration, and in the place of some of them those that are `stored`."""

    def __init__(self, configured: Limits, stored: Callable[[], StoredLimits | None] = lambda: None) -> None:
        self.configured, self.stored = configured, stored

    def __call__(self) -> Limits:
        """Return the limits as they are now."""
        stored = self.stored()
        return self.configured if stored is None else with_limits(self.configured, stored.settings)

    def of_pool(self, name: str) -> int:
        """Return how many jobs a pool runs at the same time; as configured while the store does not answer."""
        with suppress(StorageUnavailable):
            return self().pools[name].max_concurrent
        return self.configured.pools[name].max_concurrent

    def with_settings(self, settings: Settings) -> CurrentLimits:
        """Return the limits with these settings in the place of those that are stored."""
        return CurrentLimits(with_limits(self.configured, settings))

    def changed_by(self, settings: Settings) -> Mapping[str, tuple[Any, Any]]:
        """Return the limits that would change with these settings in the place of the stored ones: old and new."""
        before, after = limit_values(self()), limit_values(self.with_settings(settings)())
        names = dict.fromkeys((*after, *before))
        return {n: (before.get(n), after.get(n)) for n in names if before.get(n) != after.get(n)}


def change_limits(
    limits: LimitSettings, author: str, now: datetime, change: Callable[[Settings], Settings]
) -> Settings:
    """Store what `change` makes of the settings of limits, again where others changed them; return those before."""
    while True:
        stored = limits.get()
        before, version = ({}, 0) if stored is None else (stored.settings, stored.version)
        if limits.put(change(before), author, now, version) is not None:
            return before
