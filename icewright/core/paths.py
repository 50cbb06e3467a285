"""Paths as writers spell them. Spark writes `file:/x`, PyIceberg `file:///x`, others s3a:// for s3://."""

from __future__ import annotations

import posixpath
import re
import unicodedata
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from urllib.parse import unquote

from icewright.core.errors import UsageError

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):(.*)", re.DOTALL)
_REMOTE = re.compile(r"(?!file:)[a-z][a-z0-9+.-]*://", re.IGNORECASE)
_SLASHES = re.compile(r"/{2,}")
_PORT = re.compile(r":[0-9]*$")
_DOTS = re.compile(r"/\.\.?(?:/|$)")
_SCHEMES: Mapping[str, str] = (
    {"s3a": "s3", "s3n": "s3", "gcs": "gs", "": "file"}
    | dict.fromkeys(("abfss", "wasb", "wasbs"), "abfs")
    | dict.fromkeys(("webhdfs", "swebhdfs"), "hdfs")
)


@dataclass(frozen=True, slots=True)
class Location:
    """A path in its parts. `scheme` and `authority` are empty where the writer left them out."""

    scheme: str
    authority: str
    path: str


def split(text: str) -> Location:
    """Split `s3://bucket/a/b` into scheme, authority and path; the path always begins with a slash.

    `//a/b` is a local path: PyIceberg opens it as such, and Hadoop, which takes `a` for a host, not at all.
    """
    return Location(*_parts(text))


def _parts(text: str) -> tuple[str, str, str]:
    if text.startswith("file:///"):  # asked of each local file several times
        return "file", "", "/" + text[8:].lstrip("/")
    match = _SCHEME.fullmatch(text)
    scheme, rest = (match[1].lower(), match[2]) if match else ("", text)
    authority = ""
    if scheme and rest.startswith("//"):
        authority, slash, tail = rest[2:].partition("/")
        rest = slash + tail
    return scheme, authority, "/" + rest.lstrip("/")


def canonical(location: Location) -> Location:
    """Return the location with the one scheme and authority that stand for all spellings of its store.

    An Azure account has two hosts, `.blob.` and `.dfs.`, for the same files, in any case. Hadoop reads the bucket
    from the host of a URI alone, without a port and the keys that once could stand there.
    """
    scheme, authority = _SCHEMES.get(location.scheme, location.scheme), location.authority
    if scheme == "file" and authority == "localhost":
        authority = ""
    elif scheme == "abfs":
        authority = authority.lower().replace(".blob.", ".dfs.", 1)
    elif scheme == "s3":
        authority = _PORT.sub("", authority.rpartition("@")[2])
    return Location(scheme, authority, location.path)


def local_path(text: str) -> str | None:
    """Return the file system's path, when the text names a local file."""
    scheme, authority, path = _parts(text)
    return path if scheme in ("", "file") and authority in ("", "localhost") else None


def named_place(text: str) -> str:
    """Return a place as a person names it, without slashes at its end.

    Raises `UsageError` for one that is not absolute, or that leads through `.` or `..`.
    """
    location = split(text)
    remote = location.scheme not in ("", "file")
    if not is_location(text) or _DOTS.search(location.path) or "\0" in text or (remote and not location.authority):
        raise UsageError(f"{text!r} names no place: write it whole, such as s3://bucket/folder or /folder")
    return text.rstrip("/")


def stray_local_file(owner: str, paths: Iterable[str]) -> str | None:
    """Return the first local file among the paths that `owner`, a metadata file, names; None if `owner` is local too.

    No writer of Iceberg names one in an object store: it would be another file on each machine.
    """
    if "://" not in owner or local_path(owner) is not None:
        return None
    suspects = (path for path in paths if _REMOTE.match(path) is None)
    return next((path for path in suspects if local_path(path) is not None), None)


def is_location(text: str) -> bool:
    """Return whether a text names a place, and is no name, id or ARN by which a catalog knows one."""
    return text.startswith(("/", "file:")) or "://" in text


def key(text: str) -> str:
    """Return the form that two spellings of one path share: no scheme and authority, single slashes, decoded, composed.

    Parts `.` and `..` are resolved, as Hadoop's clients do before they ask the storage. Two different files may share a
    key (`a%20b` and `a b`); whoever compares by it treats both as live.
    """
    path = _SLASHES.sub("/", split(text).path)
    if "%" in path:
        path = unquote(path)
    if _DOTS.search(path):
        path = posixpath.normpath(path) + ("/" if path.endswith("/") else "")
    return path if path.isascii() else unicodedata.normalize("NFC", path)


def directory_key(text: str) -> str:
    """Return the key of a folder, with one slash at its end, so that /orders never holds /orders_archive."""
    return key(text).rstrip("/") + "/"


def folders_overlap(some: Collection[str], others: Collection[str]) -> bool:
    """Return whether a folder of either collection holds one of the other; both have keys of folders."""
    return any(a.startswith(b) or b.startswith(a) for a in some for b in others)


def same_place(one: Location, other: Location, schemes: Mapping[str, str], authorities: Mapping[str, str]) -> bool:
    """Return whether scheme and authority mean the same; a side that leaves one out agrees with any."""

    def agree(a: str, b: str, equal: Mapping[str, str]) -> bool:
        return not a or not b or equal.get(a, a) == equal.get(b, b)

    local = one.scheme == other.scheme == "file"
    return local or (agree(one.scheme, other.scheme, schemes) and agree(one.authority, other.authority, authorities))


def data_folder(location: str, properties: Mapping[str, str]) -> str:
    """Return the folder for new data files of a table, without a slash at its end."""
    named = (properties.get(name) for name in ("write.data.path", "write.folder-storage.path"))
    return next((path for path in named if path), f"{location}/data").rstrip("/")


def metadata_folder(location: str, properties: Mapping[str, str]) -> str:
    """Return the folder for new metadata files of a table, without a slash at its end."""
    return (properties.get("write.metadata.path") or f"{location}/metadata").rstrip("/")
