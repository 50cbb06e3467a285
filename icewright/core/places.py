"""Where files lie: scheme, authority and folder together, and whether two such places can overlap.

`s3`, `s3a` and `s3n` are one scheme, and so are Azure's `abfs` and `wasb`; two buckets are never one. A name node may
go by many names, so that the authority of `hdfs` and its like tells nothing apart, nor does that of an access point.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Generic, TypeVar

from icewright.core.paths import canonical, directory_key, local_path, split

T = TypeVar("T")

HOSTS = frozenset({"hdfs", "viewfs", "ofs", "o3fs", "alluxio"})  # whose authority is a host
_ALIASES = ("-s3alias", "--ol-s3", ".mrap")  # ends of the names by which S3's access points stand for a bucket


def is_object_store(location: str) -> bool:
    """Return whether a location lies in an object store, where `a%20b` and `a b` are two files."""
    return local_path(location) is None and canonical(split(location)).scheme not in HOSTS


@dataclass(frozen=True, slots=True)
class StorageRoot:
    """A bucket, container or file system: what a path's scheme and authority name."""

    scheme: str
    authority: str

    def is_surely(self, other: StorageRoot) -> bool:
        """Return whether both are spelt as one store; a host that one of them leaves out is the default one."""
        same_host = self.authority == other.authority or (self.scheme in HOSTS and not self.authority)
        return self.scheme == other.scheme and same_host

    def may_be(self, other: StorageRoot) -> bool:
        """Return whether both could be one store: only two buckets, or two kinds of storage, surely are not."""
        if self.scheme != other.scheme:
            return False
        containers = [one.authority.partition("@") for one in (self, other)]
        if self.scheme == "abfs" and not all(at for _, at, _ in containers):  # the configuration names the account
            return containers[0][0] == containers[1][0]
        alias = any(one.authority.endswith(_ALIASES) or one.authority.startswith("arn:") for one in (self, other))
        unclear = self.scheme in HOSTS or alias
        return unclear or self.authority == other.authority


@dataclass(frozen=True, slots=True)
class Place:
    """A folder in a store. `folder` ends with a slash, so that /orders never holds /orders_archive."""

    store: StorageRoot
    folder: str

    def within(self, other: Place) -> bool:
        """Return whether this place surely lies in the other one, or is it."""
        return self.store.is_surely(other.store) and self.folder.startswith(other.folder)

    def may_lie_in(self, other: Place) -> bool:
        """Return whether this place could lie in the other one, or be it."""
        return self.store.may_be(other.store) and self.folder.startswith(other.folder)

    def may_meet(self, other: Place) -> bool:
        """Return whether one of both could hold the other."""
        return self.may_lie_in(other) or other.may_lie_in(self)


@dataclass(frozen=True, slots=True)
class Spelling:
    """How paths are spelt: which schemes and authorities mean the same, beyond those that always do."""

    schemes: frozenset[tuple[str, str]] = frozenset()
    authorities: frozenset[tuple[str, str]] = frozenset()

    @staticmethod
    def of(schemes: Mapping[str, str], authorities: Mapping[str, str]) -> Spelling:
        """Build from mappings of each spelling to the one that it stands for."""
        return Spelling(frozenset(schemes.items()), frozenset(authorities.items()))

    def place(self, folder: str) -> Place:
        """Return the place that a folder's text names."""
        return _place(self, folder)


@lru_cache(maxsize=131_072)  # the same thousands of folders are asked for before each batch of deletions
def _place(spelling: Spelling, folder: str) -> Place:
    given, schemes = split(folder), dict(spelling.schemes)
    location = canonical(given)
    scheme = schemes.get(given.scheme, schemes.get(location.scheme, location.scheme))
    authority = location.authority
    if scheme == "abfs":  # opened by the account's name, so that the rest of its host tells no stores apart
        authority = authority.partition(".")[0].removesuffix("-secondary")
    return Place(StorageRoot(scheme, dict(spelling.authorities).get(authority, authority)), directory_key(folder))


class Index(Generic[T]):
    """Places with their owners, looked up by a folder in them."""

    def __init__(self, places: Iterable[tuple[Place, T]]) -> None:
        self._by_folder: dict[str, list[tuple[Place, T]]] = {}
        for place, owner in places:
            self._by_folder.setdefault(place.folder, []).append((place, owner))

    def holding(self, place: Place) -> list[tuple[Place, T]]:
        """Return the places with their owners that may contain the place or equal it, outermost first."""
        holders: list[tuple[Place, T]] = []
        end = place.folder.find("/")
        while end >= 0:
            places = self._by_folder.get(place.folder[: end + 1], ())
            holders += [(other, owner) for other, owner in places if place.store.may_be(other.store)]
            end = place.folder.find("/", end + 1)
        return holders
