"""The configuration of catalogs, Spark pools and limits, as values, and checks across several values."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from icewright.app.addresses import is_loopback
from icewright.app.sections import (
    ArchiveSection,
    AuthSection,
    EventsSection,
    LimitsSection,
    OpenLineageSection,
    ServerSection,
    default_limits_per_operation,
)
from icewright.core.allowlist import Allowlist
from icewright.core.capacity import MAX_WAIT, CatalogLimits, Limits, PoolLimits
from icewright.core.errors import UsageError
from icewright.core.layering import parse_pattern
from icewright.core.permissions import grant
from icewright.core.policy import Operation
from icewright.core.words import near
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
    gb_hour_price: float | None = None


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
    return any(environment.contains(path) for environment in (*declared, Allowlist(locations=places)))


def open_to_others(server: ServerSection, events: EventsSection, auth: AuthSection | None) -> Iterator[str]:
    """Yield a fault when the server is reachable from other hosts without authentication."""
    if auth is None and not events.tokens and not events.secrets and not is_loopback(server.host):
        yield (
            f"server.host: others reach {server.host}, and nobody could tell who they are; set auth, give "
            "events.tokens or events.secrets for those who push events alone, or write 127.0.0.1"
        )


def wrong_groups(auth: AuthSection | None) -> Iterator[str]:
    """Yield a fault for each OIDC group with a role or scope that does not exist."""
    for name, group in auth.oidc.groups.items() if auth is not None and auth.oidc is not None else ():
        try:
            grant(group.role, group.scope)
        except UsageError as error:
            yield f"auth.oidc.groups.{name}: {error}"


def unclear_lineage(lineage: OpenLineageSection) -> Iterator[str]:
    """Yield a fault unless lineage events have exactly one destination."""
    if (lineage.url is None) == (lineage.file is None):
        yield "openlineage: give either url or file"


def ambiguous_aliases(name: str, aliases: Sequence[str], catalogs: Mapping[str, Any]) -> Iterator[str]:
    """Yield a fault for each alias that also names another catalog; `catalogs` holds the raw sections."""
    for i, alias in enumerate(aliases):
        path = f"catalogs.{name}.aliases[{i}]"
        owner = next((o for o, section in catalogs.items() if str(o) != name and _answers_to(o, section, alias)), None)
        if owner is not None:
            yield f"{path}: {alias} is a name of catalog {owner} too; an alias means one catalog"
        elif not alias.strip():
            yield f"{path}: an alias may not be blank"


def archive_faults(archive: ArchiveSection, catalogs: Sequence[str]) -> Iterator[str]:
    """Yield a fault when the archive's catalog does not exist or its namespace is blank."""
    if archive.catalog not in catalogs:
        yield f"archive.catalog: there is no catalog {archive.catalog}{near(archive.catalog, tuple(catalogs))}"
    if not all(part.strip() for part in archive.namespace.split(".")):
        yield "archive.namespace: a part of it is blank; write a name such as icewright or ops.history"


def _answers_to(name: object, section: Any, alias: str) -> bool:  # noqa: ANN401 - YAML
    aliases = section.get("aliases") if isinstance(section, dict) else None
    return str(name) == alias or (isinstance(aliases, list) and alias in aliases)


def limits_of(section: LimitsSection, pools: Mapping[str, PoolConfig], catalogs: Mapping[str, CatalogConfig]) -> Limits:
    """Return the limits of all sections as one value."""
    return Limits(
        section.total,
        {Operation(op): n for op, n in {**default_limits_per_operation(), **section.per_operation}.items()},
        section.max_jobs_per_detection,
        section.per_worker,
        {name: PoolLimits(p.max_concurrent, p.gb_hours_per_day, p.gb_hour_price) for name, p in pools.items()},
        {name: catalog.limits for name, catalog in catalogs.items()},
        {
            parse_pattern(name): CatalogLimits(share.max_concurrent, share.gb_hours_per_day)
            for name, share in section.namespaces.items()
        },
        {**MAX_WAIT, **{name: timedelta(hours=hours) for name, hours in section.max_wait_hours.items()}},
        section.gb_hour_price,
        section.gb_month_price,
    )


def default_limits() -> Limits:
    """Return the limits that hold without a configuration."""
    return limits_of(LimitsSection.model_validate({}), default_pools(), {})


def default_pools() -> dict[str, PoolConfig]:
    """Return the pools that there are without a configuration."""
    return {"default": PoolConfig("default", "local[*]", 2, {})}
