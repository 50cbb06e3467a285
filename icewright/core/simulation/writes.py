"""The commits of writers to the tables of a simulation."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from icewright.core.table import TableRef

Layout = tuple[tuple[str, str], ...]  # name and transform of each partition field; none: not partitioned
OPERATIONS = ("append", "overwrite", "delete")


@dataclass(frozen=True, slots=True)
class Write:
    """One commit of a writer to one partition.

    `overwrite` replaces what the partition held; `delete` without delete files empties it.
    """

    at: datetime
    files: int = 0
    bytes: int = 0
    rows: int = 0
    layout: Layout = ()
    values: tuple[Any, ...] = ()
    delete_files: int = 0
    deleted_rows: int = 0
    operation: str = "append"
    orphans: int = 0  # files that an attempt before it left behind


@dataclass(frozen=True, slots=True)
class Source:
    """A table and its commits in the order of time; `writes` begins anew at each call, and gives the same."""

    ref: TableRef
    writes: Callable[[], Iterator[Write]]
    reads_per_day: float | None = None  # of the whole table, as engines reported; None: nobody did
