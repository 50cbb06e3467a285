"""Opening buckets by the properties of the catalog that named a path: several stores may have a bucket of one name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from icewright.core.errors import UnsupportedTable
from icewright.core.places import Place, Spelling, StorageRoot
from icewright.ports import Storage
from icewright.ports.work import current_catalog

if TYPE_CHECKING:
    from icewright.adapters.files.storage import CredentialSource

_OF_STORES = ("s3.", "client.", "gcs.", "adls.")  # begins of the properties that open a bucket
_ADDRESSES: Mapping[str, tuple[str, ...]] = {
    "s3": ("s3.endpoint",),
    "gs": ("gcs.service.host",),
    "abfs": ("adls.blob-storage-authority", "adls.account-name"),
}
_PROVIDER = "the provider's own"  # by which endpoint ever: no two of its buckets have one name
_AMAZON = (".amazonaws.com", ".amazonaws.com.cn")
_SPELLING = Spelling()


@dataclass(frozen=True)
class Buckets:
    """The buckets of all catalogs: `declared` has the places of their tables, `properties` what opens these."""

    declared: Mapping[str, Sequence[str]] = field(default_factory=dict)
    properties: Mapping[str, Mapping[str, str]] = field(default_factory=dict, repr=False)
    _known: dict[str, _Bucket] = field(default_factory=dict, init=False, repr=False)

    def owner(self, root: str, path: str) -> str:
        """Return the catalog by whose properties a path of the bucket `root` is opened; blank for none.

        Of the catalogs that declare a place in the bucket it is the one whose place is closest around the path, but
        none that means another store than the catalog that named the path. Raises `UnsupportedTable` when the bucket is
        one of several stores, and nobody can tell which.
        """
        named_by, bucket = current_catalog(), self._bucket(root)
        store, candidates = bucket.stores.get(named_by), bucket.places
        if store is not None:
            candidates = [(name, place) for name, place in candidates if bucket.stores[name] == store]
        if not candidates:
            return named_by
        place = _SPELLING.place(path)
        around = [(name, folder) for name, folder in candidates if place.within(folder)]
        if len({bucket.stores[name] for name, _ in candidates}) > 1:
            candidates = around
            if len({bucket.stores[name] for name, _ in candidates}) != 1:
                names = ", ".join(sorted({name for name, _ in bucket.places}))
                raise UnsupportedTable(
                    f"{path}: catalogs {names} have a bucket of this name, each in another store, and which of them "
                    "named the path is not known: give the same endpoint if it is one store, else let the place lie in "
                    "the allowed_locations of one of them alone"
                )
        return max(candidates, key=lambda c: (len(c[1].folder) if c in around else 0, c[0] == named_by))[0]

    def opened(self, root: str, owner: str, vended: CredentialSource | None) -> Storage:
        """Open `scheme://bucket` by the properties of its owner; what a catalog vends comes on top."""
        # obstore and Arrow take long to load
        from icewright.adapters.files.objects import open_bucket  # noqa: PLC0415

        return open_bucket(root, self.properties.get(owner, {}), vended)

    def _bucket(self, root: str) -> _Bucket:
        if root not in self._known:
            store = _SPELLING.place(f"{root}/").store
            places = [(name, _SPELLING.place(folder)) for name, folders in self.declared.items() for folder in folders]
            here = [(name, place) for name, place in places if place.store == store]
            ways = [self._opening(name) for name, _ in here]
            addresses = {name: _address(given, store) for name, given in self.properties.items()}
            stores = {name: address for name, address in addresses.items() if address} | {
                name: addresses[name] or _PROVIDER for name, _ in here
            }
            self._known[root] = _Bucket(here if any(way != ways[0] for way in ways) else here[:1], stores)
        return self._known[root]

    def _opening(self, catalog: str) -> Mapping[str, str]:
        return {name: value for name, value in self.properties[catalog].items() if name.startswith(_OF_STORES)}


@dataclass(frozen=True, slots=True)
class _Bucket:
    """A bucket by its name, which several stores may have."""

    places: Sequence[tuple[str, Place]]  # in it, with their catalogs; one of them where all open it in the same way
    stores: Mapping[str, str]  # that catalogs mean by the name: those with a place in it, and those with an address


def _address(properties: Mapping[str, str], store: StorageRoot) -> str:
    """Return which store the properties mean by a bucket's name; blank when they do not say it."""
    names = _ADDRESSES.get(store.scheme, ())
    names = names[:1] if "@" in store.authority else names  # the path says the account
    given = next((properties[name] for name in names if properties.get(name)), "").rstrip("/").lower()
    url = urlsplit(given)
    return _PROVIDER if (url.hostname or "").endswith(_AMAZON) else url.netloc or given
