"""Object stores behind the Storage interface, through obstore: S3, Google, Azure."""

from __future__ import annotations

import os
import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial

import obstore
import pyarrow as pa
from obstore.exceptions import BaseError
from obstore.store import ObjectStore, S3Store

from icewright.adapters.files.object_listing import PAGE, ObjectListing, UnorderedKeys, interleaved
from icewright.adapters.files.object_stores import is_amazon, store_of
from icewright.adapters.files.storage import (
    REPLACED,
    UNNAMEABLE,
    CredentialSource,
    displayed,
    missing,
    parts,
    time_by_probe,
)
from icewright.adapters.read_limits import read_limits
from icewright.core.errors import (
    AccessDenied,
    FileMissing,
    FolderMissing,
    IcewrightError,
    MetadataUnreadable,
    StorageUnavailable,
    UnsupportedTable,
)
from icewright.core.paths import split
from icewright.core.words import first_line
from icewright.ports import DeleteReport, FileStat, SizeLimit, ignore
from icewright.ports.work import WorkerThreads, progress

_ERRORS = (BaseError, ValueError)  # ValueError: a key that obstore cannot say, such as one with an empty part
_PANIC = "PanicException"  # no `Exception`: obstore meets so a reply about a key that was not asked for
_DENIED = re.compile(r"status code: 403\b")  # denied listings have no error class
_CREDENTIALS_REFUSED = re.compile(  # or the time in a signature: no word about one table
    r"status code: 401\b|(?:<Code>|: )(?:AuthenticationFailed|ExpiredToken|InvalidAccessKeyId|InvalidToken|"
    r"RequestTimeTooSkewed|SignatureDoesNotMatch|TokenRefreshRequired)\b"
)
_NO_CREDENTIALS = re.compile(
    r"performing \w+ https?://(?:169\.254\.|sts\.)|token request|credential provider"
)  # none to be had
_ARCHIVED = re.compile(r"<Code>(?:InvalidObjectState|BlobArchived)</Code>")
_OTHER_REGION = re.compile(r"AuthorizationHeaderMalformed|redirect without LOCATION")
_CODE = re.compile(r"<Code>(\w+)</Code>")
_MESSAGE = re.compile(r"<Message>([^<]+)</Message>")
_NO_BODY = re.compile(r"status code: 400 Bad Request: $", re.MULTILINE)  # as a reply to HEAD has none
_RETRIED_IN_VAIN = re.compile(r"after \d+ retries")  # the store does not answer, or asks to slow down
_NO_BUCKET = re.compile(r"NoSuchBucket|ContainerNotFound|The specified bucket does not exist")
_NO_CONNECTION = re.compile(r"InvalidCertificate\(\s*\w+|dns error|Connection refused|timed out")
_MAX_COPIED = 5 << 30  # bytes of an object that S3 copies by one request
_STILL_THERE = "the store's reply has no error, and the file is there still"
_BY_HAND = "delete it with the store's own tools"
_MIN_FILES_PER_PAGE = 16  # listing a page costs about as much as this number of single requests


def open_bucket(root: str, properties: Mapping[str, str], vended: CredentialSource | None = None) -> ObjectStorage:
    """Return the Storage of `scheme://bucket`; what a catalog vends for its files comes on top of the properties."""
    store = store_of(root, properties, vended)
    in_order = isinstance(store, S3Store) and is_amazon(store.config.get("endpoint") or "")
    return ObjectStorage(root, store, lists_in_order=in_order)


@dataclass(frozen=True)
class ObjectStorage:
    """The Storage of one bucket. `root` is `scheme://bucket`."""

    root: str
    store: ObjectStore
    lists_in_order: bool = False  # for sure: gateways over file systems have an order of their own, or none

    def read(self, path: str, limit: SizeLimit | None = None) -> bytes:
        """Return the content of an object. Raises `FileMissing`, `MetadataTooLarge`."""
        with _translate_errors(path, "read"):
            answer = obstore.get(self.store, self._key(path))
            (limit or read_limits().metadata).check(path, answer.meta["size"])
            return bytes(answer.bytes())

    def read_range(self, path: str, start: int, length: int) -> bytes:
        """Return a part of an object. Raises `FileMissing`."""
        with _translate_errors(path, "read"):
            return bytes(obstore.get_range(self.store, self._key(path), start=start, length=length))

    def write(self, path: str, content: bytes | Iterator[bytes]) -> None:
        """Write a new object; stores accept a whole object or none, also of one that is written in parts."""
        with _translate_errors(path, "written"):
            if isinstance(content, bytes):
                obstore.put(self.store, self._key(path), content)
                return
            writer = obstore.open_writer(self.store, self._key(path))
            for part in content:  # asked for in this thread: obstore's own may not ask a store
                writer.write(part)
            writer.close()

    def copy(self, source: str, target: str, length: int) -> None:
        """Copy an object by the store; one that is larger than stores copy at once, by way of this process."""
        if length > _MAX_COPIED:
            self.write(target, parts(self, source, length))
            return
        if (found := self.size(source)) != length:
            raise MetadataUnreadable(f"{source} has {found or 'no'} bytes instead of {length}")
        with _translate_errors(target, "written"):
            obstore.copy(self.store, self._key(source), self._key(target))

    def size(self, path: str) -> int | None:
        """Return the length in bytes; None when there is no such object."""
        stat = self._head(self._key(path))
        return None if stat is None else stat.bytes

    def stat(self, paths: Sequence[str], concurrency: int) -> Mapping[str, FileStat | None]:
        """Return length and time of many objects: by listings where keys lie close together, else one by one."""
        keys = {path: self._key(path) for path in paths if _fault(path) is None}
        unique_keys = sorted(set(keys.values()))
        stats: dict[str, FileStat | None] = {}
        with WorkerThreads(max(1, concurrency)) as pool:
            pages = [unique_keys[i : i + PAGE] for i in range(0, len(unique_keys), PAGE)]
            for listed, _ in pool.map(self._listed_stats, pages):
                stats |= {key: stat for key, stat in listed.items() if stat.bytes}  # else perhaps a directory's marker
            rest = [key for key in unique_keys if key not in stats]
            stats |= zip(rest, pool.map(self._head, rest), strict=True)
        return {path: stats[key] for path, key in keys.items()}

    def _listed_stats(self, keys: Sequence[str]) -> tuple[Mapping[str, FileStat], int]:
        """Return the stats of the sorted keys that a listing shows, and how many of the keys it came to.

        It ends where its pages come to few of them. A key that it does not show may be there all the same.
        """
        stats: dict[str, FileStat] = {}
        folder, passed = os.path.commonpath([keys[0], keys[-1]]), 0
        # from the root obstore takes keys that begin with a slash for others
        if len(keys) < _MIN_FILES_PER_PAGE or not folder:
            return stats, passed
        key_set = set(keys)
        try:
            pages = obstore.list(self.store, folder, offset=keys[0][:-1], chunk_size=PAGE)
            for number, page in enumerate(pages, 1):
                stats |= {file["path"]: _stat(file) for file in page if file["path"] in key_set}
                passed = bisect_right(keys, page[-1]["path"])
                if passed < number * _MIN_FILES_PER_PAGE or passed == len(keys):
                    return stats, passed
        except _ERRORS:
            return stats, passed  # the requests one by one then report the reason
        return stats, len(keys)

    def _head(self, key: str) -> FileStat | None:
        try:
            with _translate_errors(f"{self.root}/{key}", "looked at"):
                return _stat(obstore.head(self.store, key))
        except FileMissing:
            return None
        except IcewrightError as error:
            if isinstance(error, AccessDenied) or _NO_BODY.search(str(error)):
                with _translate_errors(f"{self.root}/{key}", "looked at"):  # a reply with a body says why
                    obstore.get_range(self.store, key, start=0, length=1)
            raise

    def time(self, location: str) -> datetime:
        """Return the time by the clock of the object store."""
        return time_by_probe(self, f"{self.root}/{split(location).path.strip('/')}")

    def canonical(self, folder: str) -> str:
        """Return the folder itself: there are no links."""
        return folder

    def canonicals(self, folders: Iterable[str]) -> Mapping[str, str]:
        """Return each folder as it is: object stores have no links."""
        return {folder: folder for folder in folders}

    def delete(
        self, paths: Sequence[str], concurrency: int, found: Mapping[str, FileStat | None] | None = None
    ) -> DeleteReport:
        """Delete objects, a thousand by one request; of a request that fails each object is tried by itself.

        A reply may say nothing of an object: those that a listing then shows, or does not come to, are looked for.
        """
        failures = {path: f"{why}: {_BY_HAND}" for path in paths if (why := _fault(path)) is not None}
        named, known = sorted(path for path in paths if path not in failures), found or {}
        pages = [named[i : i + PAGE] for i in range(0, len(named), PAGE)]
        with WorkerThreads(max(1, concurrency)) as pool:
            unproved: list[str] = []
            for failed, unseen in pool.map(lambda page: self._delete_page(page, known), pages):
                failures |= failed
                unproved += unseen
            for retry in (partial(self._one_by_one, known=known), lambda left: dict.fromkeys(left, _STILL_THERE)):
                try:
                    stats = list(pool.map(self._head, map(self._key, unproved)))
                except IcewrightError as error:
                    failures |= dict.fromkeys(unproved, str(error))
                    break
                unproved = [path for path, stat in zip(unproved, stats, strict=True) if stat is not None]
                failures |= retry(unproved)
                unproved = [path for path in unproved if path not in failures]
        return DeleteReport(tuple(p for p in paths if p not in failures), failures)

    def _delete_page(
        self, paths: Sequence[str], known: Mapping[str, FileStat | None]
    ) -> tuple[Mapping[str, str], Sequence[str]]:
        """Delete objects by one request; return by path why some stay, and of which it is not known whether they do."""
        keys = [self._key(path) for path in paths]
        if len(keys) > 1 and not self._delete_keys(keys):
            listed, passed = self._listed_stats(keys)
            return {}, [path for n, path in enumerate(paths) if n >= passed or keys[n] in listed]
        failures = self._one_by_one(paths, known if len(keys) > 1 else {})
        return failures, [path for path in paths if path not in failures]

    def _one_by_one(self, paths: Sequence[str], known: Mapping[str, FileStat | None]) -> dict[str, str]:
        """Delete objects one by one, those that are the known ones still; return by path why some stay."""
        failures: dict[str, str] = {}
        for n, path in enumerate(paths):
            if why := self._changed(path, known.get(path)) or self._delete_keys(self._key(path)):
                failures[path] = why
                # no thousand requests where one is too many
                if any(pattern.search(why) for pattern in (_RETRIED_IN_VAIN, _CREDENTIALS_REFUSED, _NO_CREDENTIALS)):
                    return failures | dict.fromkeys(paths[n:], why)
        return failures

    def _changed(self, path: str, known: FileStat | None) -> str:
        """Return why an object is not known to be the one that was looked at; blank where it is, or is gone."""
        try:
            return REPLACED if known is not None and self._head(self._key(path)) not in (known, None) else ""
        except IcewrightError as error:
            return str(error)

    def _delete_keys(self, keys: str | Sequence[str]) -> str:
        """Delete one object or several by one request; return the error, blank if there is none or no such object."""
        progress()
        try:
            obstore.delete(self.store, keys)
        except FileNotFoundError:
            pass
        except BaseException as error:
            if not isinstance(error, _ERRORS) and type(error).__name__ != _PANIC:
                raise
            return _error_message(error)
        return ""

    def tidy(self, paths: Sequence[str], stop: str) -> None:
        """Do nothing: object stores have no folders to remove."""

    def listing(
        self, location: str, unnamed: Callable[[str], None] = ignore, known: Sequence[str] = ()
    ) -> Iterator[pa.RecordBatch]:
        """Yield all objects below a location; those between each two `known` ones are a listing, and several go on.

        Raises `StorageUnavailable` when any page fails, and `FolderMissing` when there is no such bucket.
        """
        prefix = (split(location).path.strip("/") + "/").lstrip("/")
        whole = ObjectListing(self.store, self._root(location), prefix, self._head, unnamed)
        keys = sorted({split(path).path.lstrip("/") for path in known if _fault(path) is None})
        keys = [key for key in keys if key.startswith(prefix)]
        try:
            if keys and prefix and self.lists_in_order:
                ends = zip(["", *keys], [*keys, ""], strict=True)
                ranges = [replace(whole, last=last, end=end, in_order=True) for last, end in ends]
                with suppress(UnorderedKeys):
                    yield from interleaved([part.batches() for part in ranges])
                    return
            yield from whole.batches()
        except _ERRORS as error:
            if _NO_BUCKET.search(str(error)):
                raise FolderMissing(f"{location} could not be listed: there is no such bucket") from error
            raise _error(location, "listed", error) from error

    def _root(self, path: str) -> str:
        place = split(path)
        return f"{place.scheme}://{place.authority}"

    def _key(self, path: str) -> str:
        if self._root(path) != self.root:
            raise UnsupportedTable(f"{path} does not lie in {self.root}")
        if (why := _fault(path)) is not None:
            raise UnsupportedTable(f"{displayed(path)}: {why}: let the table's engine write it under another path")
        return split(path).path.lstrip("/")


@contextmanager
def _translate_errors(path: str, done: str) -> Iterator[None]:
    """Translate the errors of a store in which an object is `done`: read or written."""
    try:
        yield
    except FileNotFoundError as error:
        if done == "written":
            raise StorageUnavailable(f"{path} could not be written: there is no such bucket") from error
        if _NO_BUCKET.search(str(error)):
            raise FileMissing(f"{path} is missing: there is no such bucket") from error
        raise missing(path) from error
    except _ERRORS as error:
        raise _error(path, done, error) from error


def _error(path: str, done: str, error: Exception) -> IcewrightError:
    """Return what an error of the store means for an object or folder that was to be `done`.

    Credentials that the store does not take are the fault of no table: all tables in the bucket wait for others.
    """
    reply, problem = str(error), f"{path} could not be {done}: "
    if _NO_CREDENTIALS.search(reply):
        return StorageUnavailable(
            f"{problem}there are no credentials for the store ({_error_message(error)}): give them in the catalog's "
            "properties, or to this machine, or mend the catalog that lends them"
        )
    if _CREDENTIALS_REFUSED.search(reply):
        return StorageUnavailable(
            f"{problem}the store does not take the credentials ({_error_message(error)}): renew them in the catalog's "
            "properties or where it lends them, and set the clock of this machine"
        )
    if _ARCHIVED.search(reply):
        return AccessDenied(f"{path} may not be {done}: the store has archived it: restore it there first")
    if _DENIED.search(reply):
        why = f" ({message[1]})" if (message := _MESSAGE.search(reply)) else ""
        return AccessDenied(f"{path} may not be {done}{why}: give the catalog's credentials the right to")
    remedy = ": set s3.region to the bucket's" if _OTHER_REGION.search(reply) else ""
    return StorageUnavailable(f"{problem}{_error_message(error)}{remedy}")


def _stat(meta: obstore.ObjectMeta) -> FileStat:
    """Return the stat with whole seconds: a request for one object has no finer time."""
    return FileStat(meta["size"], meta["last_modified"].replace(microsecond=0))


def _fault(path: str) -> str | None:
    """Return why the object cannot be asked for: obstore would take another key for the path's, or none."""
    key = path.partition("://")[2].partition("/")[2]
    if not re.search(UNNAMEABLE, key) and key == key.encode(errors="replace").decode():
        return None
    return (
        "its key, with an empty part, a part `.` or `..`, a control character or what is no text, cannot be asked for"
    )


def _error_message(error: BaseException) -> str:
    """Return the first line of the error message, with what the store replied, or why there was no connection."""
    reply, line = str(error), first_line(error)
    if (code := _CODE.search(reply)) is not None:
        message = _MESSAGE.search(reply)
        return f"{line.partition('<')[0]}{code[1]}{f': {message[1]}' if message else ''}"
    why = _NO_CONNECTION.search(reply)
    return line + (f" ({' '.join(why[0].replace('(', ': ').split())})" if why else "")
