"""Object stores behind the Storage interface, through obstore: S3 and whatever speaks its protocol."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from dataclasses import dataclass
from typing import TypeVar

import obstore
import pyarrow as pa
import pyarrow.compute as pc
from obstore.exceptions import BaseError, PermissionDeniedError, UnauthenticatedError
from obstore.store import ObjectStore

from icewright.adapters.files.storage import LISTED, Lender
from icewright.adapters.files.stores import store_of
from icewright.core.errors import AccessDenied, FileMissing, StorageUnavailable, UnsupportedTable
from icewright.core.paths import split
from icewright.ports import DeleteReport, FileStat, Storage

T = TypeVar("T")
_ERRORS = (BaseError, ValueError)  # ValueError: a key that obstore cannot say, such as one with an empty part
_DENIED = (PermissionDeniedError, UnauthenticatedError)
_PAGE = 1000  # keys that S3 lists, or deletes, at once


def bucket_storage(places: Sequence[tuple[str, Mapping[str, str]]]) -> Callable[[str, Lender | None], Storage]:
    """How to open the store of a bucket: by the properties of the catalog that the bucket belongs to.

    `places` are locations with the properties of their catalog; what a catalog lends for the files comes on top.
    """

    def opened(root: str, lender: Lender | None = None) -> Storage:
        here = split(root)
        own = [properties for place, properties in places if split(place).authority == here.authority]
        return ObjectStorage(root, store_of(root, own[0] if own else {}, lender))

    return opened


@dataclass(frozen=True)
class ObjectStorage:
    """The Storage of one bucket. `root` is `scheme://bucket`."""

    root: str
    store: ObjectStore

    def read(self, path: str) -> bytes:
        """The object's content."""
        try:
            return bytes(obstore.get(self.store, self._key(path)).bytes())
        except FileNotFoundError as error:
            raise FileMissing(f"{path} is missing: restore it, or roll the table back to before it") from error
        except _DENIED as error:
            raise AccessDenied(f"{path} may not be read: give the catalog's credentials the right to") from error
        except _ERRORS as error:
            raise StorageUnavailable(f"{path} could not be read: {_said(error)}") from error

    def write(self, path: str, content: bytes) -> None:
        """A new object; stores take a whole one or none."""
        try:
            obstore.put(self.store, self._key(path), content)
        except _ERRORS as error:
            raise StorageUnavailable(f"{path} could not be written: {_said(error)}") from error

    def size(self, path: str) -> int | None:
        """Length in bytes, None when there is no such object."""
        try:
            return int(obstore.head(self.store, self._key(path))["size"])
        except FileNotFoundError:
            return None
        except _DENIED as error:
            raise AccessDenied(f"{path} may not be looked at: give the catalog's credentials the right to") from error
        except _ERRORS as error:
            raise StorageUnavailable(f"{path} could not be looked at: {_said(error)}") from error

    def canonical(self, folder: str) -> str:
        """The folder itself: there are no links."""
        return folder

    def delete(self, paths: Sequence[str], concurrency: int) -> DeleteReport:
        """Delete objects, a thousand by one request; of a request that fails each object is tried by itself."""
        pages = [paths[i : i + _PAGE] for i in range(0, len(paths), _PAGE)]
        with ThreadPoolExecutor(max(1, concurrency)) as pool:
            failures = {path: why for page in pool.map(self._deleted, pages) for path, why in page.items()}
        return DeleteReport(tuple(p for p in paths if p not in failures), failures)

    def _deleted(self, paths: Sequence[str]) -> dict[str, str]:
        try:
            obstore.delete(self.store, [self._key(p) for p in paths])
        except FileNotFoundError:
            return {} if len(paths) == 1 else self._one_by_one(paths)
        except _ERRORS as error:
            return {paths[0]: _said(error)} if len(paths) == 1 else self._one_by_one(paths)
        return {}

    def _one_by_one(self, paths: Sequence[str]) -> dict[str, str]:
        return {path: why for one in paths for path, why in self._deleted([one]).items()}

    def tidy(self, paths: Sequence[str], stop: str) -> None:
        """Nothing: object stores have no folders."""

    def stat(self, paths: Sequence[str], concurrency: int) -> Mapping[str, FileStat | None]:
        """stat"""
        out: dict[str, FileStat | None] = {}
        for p in paths:
            try:
                h = obstore.head(self.store, self._key(p))
                out[p] = FileStat(h["size"], h["last_modified"])
            except FileNotFoundError:
                out[p] = None
        return out

    def time(self, location: str) -> datetime:
        """time"""
        return datetime.now(UTC)

    def listing(self, location: str, unnamed: Callable[[str], None] = lambda _: None) -> Iterator[pa.RecordBatch]:
        """All objects below a location. Raises `StorageUnavailable` when any page fails."""
        prefix = (split(location).path.strip("/") + "/").lstrip("/")
        root = self._root(location)
        try:
            pages = obstore.list(self.store, prefix or None, chunk_size=10 * _PAGE, return_arrow=True)
            for page in _ahead(iter(pages)):
                yield _below(pa.record_batch(page), prefix, root)
        except _DENIED as error:
            raise AccessDenied(f"{location} may not be listed: give the catalog's credentials the right to") from error
        except _ERRORS as error:
            raise StorageUnavailable(f"{location} could not be listed: {_said(error)}") from error

    def _root(self, path: str) -> str:
        place = split(path)
        return f"{place.scheme}://{place.authority}"

    def _key(self, path: str) -> str:
        place = split(path)
        if f"{place.scheme}://{place.authority}" != self.root:
            raise UnsupportedTable(f"{path} does not lie in {self.root}")
        return place.path.lstrip("/")


def _ahead(pages: Iterator[T]) -> Iterator[T]:
    """The pages, each fetched while the one before it is worked on."""
    with ThreadPoolExecutor(1) as pool:
        coming = pool.submit(next, pages, None)
        while (page := coming.result()) is not None:
            coming = pool.submit(next, pages, None)
            yield page


def _below(page: pa.RecordBatch, prefix: str, root: str) -> pa.RecordBatch:
    """A page in our columns, without what does not lie below the prefix."""
    path, size, modified = (page.column(name) for name in ("path", "size", "last_modified"))
    rows = pa.RecordBatch.from_arrays(
        [
            pc.binary_join_element_wise(f"{root}/", path, ""),
            size.cast(pa.int64()),
            modified.cast(pa.timestamp("us", "UTC")),
        ],
        schema=LISTED,
    )
    own = pc.starts_with(path, prefix)
    return rows if pc.all(own).as_py() else rows.filter(own)


def _said(error: Exception) -> str:
    """The first line of what the store answered."""
    return str(error).strip().splitlines()[0]
