"""Avro metadata files from storage, with errors that name the broken or missing file."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

import polars as pl

from icewright.adapters.files import avro
from icewright.adapters.read_limits import read_limits
from icewright.core.errors import MetadataTooLarge, MetadataUnreadable
from icewright.ports import Storage

T = TypeVar("T")
Item = TypeVar("Item")


def container(storage: Storage, path: str, length: int = 0) -> avro.Container:
    """Return the parsed container. Raises `MetadataUnreadable`, also when its length differs from the listed one."""
    content = storage.read(path, read_limits().manifest)
    if length and length != len(content):
        raise MetadataUnreadable(f"{path} has {len(content)} bytes where its manifest list says {length}")
    try:
        return avro.parse(content)
    except ValueError as error:
        raise MetadataUnreadable(f"{path}: {error}") from error


@contextmanager
def readable(paths: Iterable[str]) -> Iterator[None]:
    """Translate every error of the decoder into `MetadataUnreadable` with the paths of the files."""
    try:
        yield
    except avro.TooLarge as error:
        limit = read_limits().manifest
        problem = f"the records inflate to more than {limit.max_bytes} bytes"
        raise MetadataTooLarge(_names(paths), problem, limit.setting) from error
    except (
        pl.exceptions.PolarsError,
        pl.exceptions.PanicException,  # how Polars meets a schema that makes no sense
        LookupError,
        OSError,
        StopIteration,
        ValueError,
    ) as error:
        raise MetadataUnreadable(
            f"{_names(paths)}: not readable as Iceberg metadata ({type(error).__name__}: {error})"
        ) from error


def _names(paths: Iterable[str]) -> str:
    return ", ".join(list(paths)[:3])


def pinpointed(read: Callable[[Sequence[Item]], T], items: Sequence[Item], alone: Callable[[Item], object]) -> T:
    """Return the result of `read` on all items; when it fails, read each alone, so that the error names one item."""
    try:
        return read(items)
    except MetadataUnreadable:
        for item in items if len(items) > 1 else ():
            alone(item)
        raise
