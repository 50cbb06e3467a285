"""What every stage is handed: the ports, and the settings that came from configuration."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from icewright.core.errors import UsageError
from icewright.core.layering import Policy, matches_any
from icewright.core.plan import Limits
from icewright.core.table import TableRef
from icewright.ports import Catalog, Clock, Engine, Files, Store, Trigger


@dataclass(frozen=True, slots=True)
class Scope:
    """Which tables of a catalog are maintained by themselves (blank lists mean all), where, and how it is watched."""

    enabled: bool = False
    namespaces: str = ""
    tables: str = ""
    pool: str = "default"
    interval: timedelta = timedelta(seconds=60)
    timeout: timedelta = timedelta(seconds=300)
    archive: str = ""  # the namespace of the archive, whose tables are in scope whatever the lists say

    def holds(self, ref: TableRef) -> bool:
        """Whether the table is in scope."""
        if self.archive and ".".join(ref.namespace) == self.archive:
            return True
        return matches_any(self.namespaces, ".".join(ref.namespace)) and matches_any(self.tables, ref.name)


Listener = Callable[[str, Mapping[str, Any]], None]


def _never() -> bool:
    return False


def _silent(_kind: str, _details: Mapping[str, Any]) -> None:
    return


@dataclass(frozen=True)
class World:
    """Ports and settings. `tell` hears of progress: an event's kind and details."""

    catalogs: Mapping[str, Catalog]
    files: Files
    engine: Engine
    store: Store
    clock: Clock
    policy: Callable[[], Policy]
    scopes: Mapping[str, Scope]
    limits: Limits
    trigger: Trigger
    tell: Listener = field(default=_silent)
    stopping: Callable[[], bool] = field(default=_never)  # whether the process is about to end

    def catalog(self, ref: TableRef) -> Catalog:
        """The table's catalog. Raises `UsageError` when the configuration has none of that name."""
        found = self.catalogs.get(ref.catalog)
        if found is None:
            known = ", ".join(sorted(self.catalogs)) or "none"
            raise UsageError(f"{ref}: there is no catalog {ref.catalog} in the configuration (there is: {known})")
        return found
