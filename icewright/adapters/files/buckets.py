"""Opening buckets by the properties of the catalog that named a path: several stores may have a bucket of one name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from icewright.core.errors import UnsupportedTable
from icewright.core.places import Place, Spelling
from icewright.ports import Storage
from icewright.ports.work import naming_catalog

if TYPE_CHECKING:
    from icewright.adapters.files.storage import CredentialSource

_OF_STORES = ("s3.", "client.", "gcs.", "adls.")  # begins of the properties that open a bucket
_ADDRESSES = ("s3.endpoint", "gcs.service.host", "adls.account-name", "adls.blob-storage-authority")
_AMAZON = (".amazonaws.com", ".amazonaws.com.cn")  # by which endpoint ever, no two of its buckets have one name
_SPELLING = Spelling()


def _store(properties: Mapping[str, str]) -> tuple[str, ...]:
    """Return what tells a store from others that have buckets of the same names."""
    addresses = (urlsplit(properties.get(name, "").rstrip("/").lower()) for name in _ADDRESSES)
    return tuple("" if (one.hostname or "").endswith(_AMAZON) else one.netloc or one.path for one in addresses)


@dataclass(frozen=True)
class Buckets:
    """The buckets of all catalogs: `declared` has the places of their tables, `properties` what opens these."""

    declared: Mapping[str, Sequence[str]] = field(default_factory=dict)
    properties: Mapping[str, Mapping[str, str]] = field(default_factory=dict, repr=False)
    _candidates: dict[str, list[tuple[str, Place]]] = field(default_factory=dict, init=False, repr=False)

    def owner(self, root: str, path: str) -> str:
        """Return the catalog by whose properties a path of the bucket `root` is opened; blank for none.

        Of the catalogs that declare a place in the bucket it is the one whose place is closest around the path. Where
        these mean several stores, it is the one that named the path. Raises `UnsupportedTable` when nobody can tell.
        """
        named_by = naming_catalog()
        candidates = self._in_bucket(root)
        if not candidates:
            return named_by
        if len(candidates) == 1:
            return candidates[0][0]
        place = _SPELLING.place(path)
        around = [one for one in candidates if place.within(one[1])]
        if len(self._stores(candidates)) > 1:
            candidates = [one for one in candidates if one[0] == named_by] or around
            if len(self._stores(candidates)) != 1:
                names = ", ".join(sorted({name for name, _ in self._in_bucket(root)}))
                raise UnsupportedTable(
                    f"{path}: catalogs {names} have a bucket of this name, each in another store, and which of them "
                    "named the path is not known: give the same endpoint if it is one store, else maintain each with a "
                    "configuration and a state store of its own"
                )
        return max(candidates, key=lambda one: (len(one[1].folder) if one in around else 0, one[0] == named_by))[0]

    def opened(self, root: str, owner: str, vended: CredentialSource | None) -> Storage:
        """Open `scheme://bucket` by the properties of its owner; what a catalog vends comes on top."""
        # obstore and Arrow take long to load
        from icewright.adapters.files.objects import open_bucket  # noqa: PLC0415

        return open_bucket(root, self.properties.get(owner, {}), vended)

    def _in_bucket(self, root: str) -> list[tuple[str, Place]]:
        """Return the catalogs with their places in a bucket; one of them where all open it in the same way."""
        if root not in self._candidates:
            bucket = _SPELLING.place(f"{root}/").store
            places = [(name, _SPELLING.place(folder)) for name, folders in self.declared.items() for folder in folders]
            found = [one for one in places if one[1].store == bucket]
            ways = [self._opening(name) for name, _ in found]
            self._candidates[root] = found if any(way != ways[0] for way in ways) else found[:1]
        return self._candidates[root]

    def _opening(self, catalog: str) -> Mapping[str, str]:
        return {name: value for name, value in self.properties[catalog].items() if name.startswith(_OF_STORES)}

    def _stores(self, candidates: Sequence[tuple[str, Place]]) -> set[tuple[str, ...]]:
        return {_store(self.properties[name]) for name, _ in candidates}
