"""Listings of object stores by obstore; keys that obstore cannot name are left out and reported.

obstore gives a directory marker (`data/`) as if it were the object `data`, and fails at a key with an empty part, `.`,
`..` or a control character, with everything that the store's page has beside it. That page is then listed by boto3.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, field
from typing import Any, TypeVar

import obstore
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
from obstore.exceptions import GenericError, InvalidPathError
from obstore.store import ObjectStore, S3Store

from icewright.adapters.files.storage import LISTED, UNNAMEABLE, displayed, listed
from icewright.core.errors import requires_extra
from icewright.core.words import first_line
from icewright.ports import FileStat
from icewright.ports.work import WorkerThreads

T = TypeVar("T")
PAGE = 1000  # keys that S3 lists, or deletes, at once
_JOINED = 10  # pages
_LISTINGS = 16  # at once
_HEADS = 16  # parallel requests for single objects
_MOST_REPEATS = 3  # of one key, as stores may list a key again that is written meanwhile


class UnorderedKeys(Exception):
    """A range of keys cannot be listed by itself, as the store does not list keys in their order."""


@dataclass
class ObjectListing:
    """A listing of a bucket. `prefix` is empty or ends with a slash; `head` stats one object.

    It begins after the key `last` and ends with the key `end`; with `in_order` it raises `UnorderedKeys`.
    """

    store: ObjectStore
    root: str
    prefix: str
    head: Callable[[str], FileStat | None]
    unnamed: Callable[[str], None]
    last: str = ""  # the last key so far, exactly as it is
    end: str = ""  # blank for none
    in_order: bool = False
    _ordered: bool = True  # whether the keys came in their order: only then can a listing go on after one of them
    _pages: int = 0
    _anchor: str = ""  # the last key of the page whose number was the last power of two, and how often it came again
    _repeats: int = 0
    _checked: set[str] = field(default_factory=set)  # objects that were suspected to be markers and are files

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield all pages in the columns of `LISTED`. Raises obstore's errors, and those of `head`."""
        if self._has_root_slashes() and not (yield from self._exact()):
            return
        while True:
            try:
                for page in self._pages_after(self.last or None):
                    yield self._files(page)
            except InvalidPathError as error:
                if not (isinstance(self.store, S3Store) and self._ordered):
                    raise GenericError(
                        f"{first_line(error)}: move or delete that object with the store's own tools"
                    ) from error
            else:
                return
            if not (yield from self._exact()):
                return

    def _pages_after(self, offset: str | None) -> Iterator[pa.RecordBatch]:
        """Yield obstore's pages, some joined, as far as the end."""
        if not self.end:
            pages = obstore.list(
                self.store, self.prefix or None, offset=offset, chunk_size=_JOINED * PAGE, return_arrow=True
            )
            yield from (pa.record_batch(page) for page in _ahead(iter(pages)))
            return
        chunk = list[pa.RecordBatch]()
        for page in obstore.list(self.store, self.prefix or None, offset=offset, chunk_size=PAGE, return_arrow=True):
            chunk.append(pa.record_batch(page))
            is_last = self._is_past_end(chunk[-1].column("path")[-1].as_py())
            if is_last or len(chunk) == _JOINED:
                yield pa.concat_batches(chunk)
                chunk.clear()
            if is_last:
                return
        yield from [pa.concat_batches(chunk)] if chunk else []

    def _has_root_slashes(self) -> bool:
        """Return whether a bucket has keys that begin with a slash, which obstore leaves out of them."""
        return not self.prefix and any(self._keys("/"))

    def _exact(self) -> Generator[pa.RecordBatch, None, bool]:
        """List by exact keys until a whole page has no odd key; return whether there may be more."""
        met = False
        for whole_page in self._keys(self.prefix):
            page = [file for file in whole_page if not self._is_past_end(file["Key"])]
            unnameable = {file["Key"] for file in page if re.search(UNNAMEABLE, file["Key"])}
            for key in sorted(unnameable):
                self._leave_out(key)
            files = [file for file in page if file["Key"] not in unnameable]
            times = [int(file["LastModified"].timestamp()) * 1_000_000 for file in files]
            yield listed([f"{self.root}/{file['Key']}" for file in files], [file["Size"] for file in files], times)
            if len(page) < len(whole_page):
                return False
            self.last = page[-1]["Key"]
            if met and not unnameable:
                return True
            met = met or bool(unnameable)
        return False

    def _keys(self, prefix: str) -> Iterator[list[dict[str, Any]]]:
        """Yield pages of exact keys after the last one; none where the store is not S3."""
        if not isinstance(self.store, S3Store):
            return iter(())
        with requires_extra("glue", "listing keys of S3 that are no paths"):
            from icewright.adapters.files.s3_keys import key_pages  # noqa: PLC0415 - boto3 takes long to load

        return key_pages(self.store, prefix, self.last)

    def _files(self, page: pa.RecordBatch) -> pa.RecordBatch:
        """Return a page in the columns of `LISTED`, without directory markers."""
        path, size = page.column("path"), page.column("size").cast(pa.int64())
        modified = page.column("last_modified").cast(pa.timestamp("s", "UTC"), safe=False)
        keys, markers = pl.Series(values=path), self._markers(path, size, modified)
        if markers:
            keys = keys.scatter(markers, [f"{keys[row]}/" for row in markers])
        self._require_end(keys)
        self._ordered = self._ordered and keys.is_sorted() and self.last < keys[0]
        if self.in_order and not self._ordered:
            raise UnorderedKeys
        self.last = keys[-1]
        for row in markers:
            if not self._is_past_end(keys[row]):
                self._leave_out(keys[row])
        paths = pc.binary_join_element_wise(f"{self.root}/", path, "")
        rows = pa.RecordBatch.from_arrays([paths, size, modified.cast(LISTED.field("modified").type)], schema=LISTED)
        left_out = {*markers, *range(int((keys <= self.end).sum()), len(keys))} if self.end else {*markers}
        return rows.filter(pa.array([row not in left_out for row in range(rows.num_rows)])) if left_out else rows

    def _require_end(self, keys: pl.Series) -> None:
        """Raise `GenericError` when the store lists the same pages again and again."""
        self._repeats += int((keys == self._anchor).sum())
        if self._repeats > _MOST_REPEATS:
            raise GenericError(f"the store lists in a circle: it named {displayed(self._anchor)} again and again")
        self._pages += 1
        if self._pages.bit_count() == 1:
            self._anchor, self._repeats = keys[-1], 0

    def _markers(self, path: pa.Array, size: pa.Array, modified: pa.Array) -> list[int]:
        """Return the rows that are directory markers.

        Whatever is empty or has files below it may be one, and is when there is no such object; a file and a marker of
        one name are told apart by their length, time and order.
        """
        name = pl.col("path")
        frame = pl.DataFrame({"path": path, "bytes": size, "modified": modified}).with_row_index()
        below = name.shift(-1).str.starts_with(name + "/")
        short = name.str.len_bytes() <= len(self.prefix.encode())  # the prefix itself
        suspects = frame.filter((pl.col("bytes") == 0) | below | short).rows()
        if not suspects:
            return []
        with WorkerThreads(_HEADS) as pool:
            stats = list(pool.map(lambda row: self._stat_of(row[1]), suspects))
        markers = []
        for (row, key, *stat), head in zip(suspects, stats, strict=True):
            if head is None or [head.bytes, head.modified] != stat or key in self._checked:
                markers.append(row)
            else:
                self._checked.add(key)
        return markers

    def _stat_of(self, key: str) -> FileStat | None:
        return self.head(key) if len(key) > len(self.prefix) else None

    def _is_past_end(self, key: str) -> bool:
        return bool(self.end) and key > self.end

    def _leave_out(self, key: str) -> None:
        self.unnamed(displayed(f"{self.root}/{key}"))


def interleaved(listings: Iterable[Iterator[T]]) -> Iterator[T]:
    """Yield the parts of many listings, those of several fetched at once."""
    waiting, running = [*listings], dict[Future[T | None], Iterator[T]]()
    with WorkerThreads(_LISTINGS) as pool:
        while waiting or running:
            while waiting and len(running) < _LISTINGS:
                listing = waiting.pop()
                running[pool.submit(next, listing, None)] = listing
            for done in wait(running, return_when=FIRST_COMPLETED).done:
                listing = running.pop(done)
                if (part := done.result()) is not None:
                    waiting.append(listing)
                    yield part


def _ahead(pages: Iterator[T]) -> Iterator[T]:
    """Yield the pages, each fetched while the previous one is processed."""
    with WorkerThreads(1) as pool:
        coming = pool.submit(next, pages, None)
        while (page := coming.result()) is not None:
            coming = pool.submit(next, pages, None)
            yield page
