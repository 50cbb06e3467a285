"""What a catalog may touch: hosts and places that its configuration declares. Everything else is refused."""

from __future__ import annotations

import posixpath
from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase

from icewright.core.paths import Location, split

_SAME_SCHEME = {"s3a": "s3", "s3n": "s3", "abfss": "abfs", "wasbs": "wasb", "": "file"}


@dataclass(frozen=True, slots=True)
class Environment:
    """Hosts (`*` and `?` are wildcards) and locations (in a bucket's name too); None declares nothing of the kind."""

    hosts: tuple[str, ...] | None = None
    locations: tuple[str, ...] | None = None

    def knows_host(self, host: str) -> bool:
        """Whether the host may be asked."""
        return self.hosts is None or any(fnmatchcase(host.lower(), known.lower()) for known in self.hosts)

    def holds(self, path: str) -> bool:
        """Whether the path lies in one of the locations; one that climbs out of it by `..` does not."""
        return self.locations is None or any(_within(path, place) for place in self.locations)

    def outside(self, paths: Iterable[str]) -> list[str]:
        """The paths that lie in none of the locations."""
        return [path for path in paths if not self.holds(path)]


def _within(path: str, place: str) -> bool:
    here, there = _plain(path), _plain(place)
    if here.scheme != there.scheme or not fnmatchcase(here.authority, there.authority):
        return False
    return f"{here.path}/".startswith(f"{there.path.rstrip('/')}/")


def _plain(text: str) -> Location:
    """The path in its parts, spelt one way."""
    location = split(text)
    authority = "" if location.scheme in ("", "file") and location.authority == "localhost" else location.authority
    return Location(_SAME_SCHEME.get(location.scheme, location.scheme), authority, posixpath.normpath(location.path))
