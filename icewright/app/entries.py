"""The configuration of catalogs and Spark pools, as values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from icewright.core.allowlist import Allowlist
from icewright.core.plan import CatalogLimits
from icewright.flow.runtime import Scope


@dataclass(frozen=True)
class CatalogConfig:
    """The configuration of a catalog. `properties` may hold secrets: they are never shown or stored."""

    name: str
    type: str
    properties: Mapping[str, str] = field(repr=False)
    scope: Scope
    allowed_locations: tuple[str, ...]
    pool: str
    limits: CatalogLimits = field(default_factory=CatalogLimits)
    aliases: tuple[str, ...] = ()  # its names in other systems, as their events have them
    commit_reports: tuple[str, ...] | None = None  # a table of it that lists the commits of writers
    environment: Allowlist | None = None
    policies: str = (
        "auto"  # whose policies apply beside the file's: polaris, none, or auto (Polaris's, if the server has them)
    )

    @property
    def table_places(self) -> tuple[str, ...]:
        """Return the places in which the catalog's tables lie: those of its environment, else `allowed_locations`."""
        declared = self.environment.locations if self.environment is not None else None
        return self.allowed_locations if declared is None else tuple(declared)


@dataclass(frozen=True)
class PoolConfig:
    """The configuration of a Spark pool."""

    name: str
    master: str
    max_concurrent: int
    conf: Mapping[str, str] = field(repr=False)
    remote: str | None = None
    gb_hours_per_day: float | None = None
