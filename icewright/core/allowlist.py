"""The allowlist of a catalog: the hosts and locations that its configuration declares. All others are refused."""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Protocol
from urllib.parse import urlsplit

from icewright.core.errors import Refused
from icewright.core.paths import Location, canonical, split


@dataclass(frozen=True, slots=True)
class Allowlist:
    """Hosts (with `*` and `?`) and locations (with wildcards in the bucket's name); None allows all."""

    hosts: tuple[str, ...] | None = None
    locations: tuple[str, ...] | None = None

    def knows_host(self, host: str) -> bool:
        """Return whether the allowlist has the host."""
        return self.hosts is None or any(fnmatchcase(host.lower(), pattern.lower()) for pattern in self.hosts)

    def contains(self, path: str) -> bool:
        """Return whether the path lies in one of the locations once each `..` is resolved."""
        return self.locations is None or any(_within(path, place) for place in self.locations)

    def outside(self, paths: Iterable[str]) -> list[str]:
        """Return the paths that lie in none of the locations."""
        return [path for path in paths if not self.contains(path)]


class _Table(Protocol):
    """The part of a table's metadata that locates its files."""

    @property
    def ref(self) -> object: ...
    @property
    def location(self) -> str: ...
    @property
    def metadata_location(self) -> str: ...
    @property
    def properties(self) -> Mapping[str, str]: ...


def require_inside(allowlist: Allowlist | None, catalog: str, table: _Table, files: Iterable[str] = ()) -> None:
    """Raise `Refused` when a location or file of a table lies outside of its catalog's allowlist."""
    write_paths = [v for k, v in table.properties.items() if k.startswith("write.") and k.endswith(".path") and v]
    places = (table.location, table.metadata_location, *write_paths, *files)
    if allowlist is not None and (outside := allowlist.outside(places)):
        raise Refused(
            f"{table.ref}: {outside[0]} lies outside of catalogs.{catalog}.environment.locations: nothing is done to it"
        )


def require_hosts(allowlist: Allowlist | None, catalog: str, write_paths: Mapping[str, object]) -> None:
    """Raise `Refused` when properties from a server name a host that the allowlist does not declare."""
    for key, value in write_paths.items() if allowlist is not None else ():
        address = urlsplit(str(value)) if str(value).lower().startswith(("http://", "https://")) else None
        if allowlist is not None and address is not None and not allowlist.knows_host(address.hostname or ""):
            raise Refused(
                f"catalog {catalog}: its server says {key} with the host {address.hostname}, which is not in "
                f"catalogs.{catalog}.environment.hosts: it is not asked"
            )


def _within(path: str, place: str) -> bool:
    location, declared = _normalized(path), _normalized(place)
    if location.scheme != declared.scheme or not fnmatchcase(location.authority, declared.authority):
        return False
    return f"{location.path}/".startswith(f"{declared.path.rstrip('/')}/")


def _normalized(text: str) -> Location:
    """Return the location with equal spellings of scheme, host and path made equal."""
    location = canonical(split(text))
    return replace(location, path=posixpath.normpath(location.path))
