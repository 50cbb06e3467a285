"""Which hosts and locations the catalogs of a configuration may use, by their `environment`."""

from __future__ import annotations

from collections.abc import Mapping

from icewright.app.config import Config
from icewright.app.entries import CatalogConfig
from icewright.core.allowlist import Allowlist


def outside(catalog: CatalogConfig, hosts: Mapping[str, str]) -> list[str]:
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


def inside(config: Config, path: str) -> bool:
    """Return whether the path is in a catalog's environment, or in the allowed locations of a catalog without one."""
    declared = [c.environment for c in config.catalogs.values() if c.environment is not None]
    if all(environment.locations is None for environment in declared):
        return True
    places = tuple(p for c in config.catalogs.values() if c.environment is None for p in c.allowed_locations)
    return any(environment.holds(path) for environment in (*declared, Allowlist(locations=places)))
