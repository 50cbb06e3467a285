"""The configuration of catalogs and Spark pools, as values, and the hosts and locations that catalogs may use."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from icewright.core.allowlist import Allowlist
from icewright.core.capacity import CatalogLimits
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


def allowlist_faults(catalog: CatalogConfig, hosts: Mapping[str, str]) -> list[str]:
    """Return faults of a catalog: hosts and locations outside its environment, and policies that its type lacks.

    `hosts` maps its properties to the hosts that they name.
    """
    path, environment = f"catalogs.{catalog.name}", catalog.environment
    faults = []
    if catalog.policies == "polaris" and catalog.type != "rest":
        faults.append(f"{path}.policies: a catalog of type {catalog.type} has none; leave it out")
    if environment is None:
        return faults
    faults += [
        f"{path}.properties.{key}: host {host} is not in {path}.environment.hosts"
        for key, host in hosts.items()
        if not environment.knows_host(host)
    ]
    places = environment.outside(catalog.allowed_locations)
    return faults + [f"{path}.allowed_locations: {place} is not in {path}.environment.locations" for place in places]


def is_allowed(catalogs: Iterable[CatalogConfig], path: str) -> bool:
    """Return whether the path is in a catalog's environment, or in the allowed locations of a catalog without one."""
    entries = tuple(catalogs)
    declared = [c.environment for c in entries if c.environment is not None]
    if all(environment.locations is None for environment in declared):
        return True
    places = tuple(p for c in entries if c.environment is None for p in c.allowed_locations)
    return any(environment.holds(path) for environment in (*declared, Allowlist(locations=places)))
