"""A listing of millions of files that are not there."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa

from icewright.ports import ignore

_BATCH = 20_000
_SCHEMA = pa.schema([("path", pa.string()), ("bytes", pa.int64()), ("modified", pa.timestamp("us", "UTC"))])
_SCATTER, _MASK = 0x9E3779B97F4A7C15, (1 << 64) - 1


def file_name(number: int) -> str:
    """The name of a table's data file of this number."""
    return f"{number:08d}-{(number + 1) * _SCATTER & _MASK:016x}-0-00001.parquet"


@dataclass(frozen=True)
class Listing:
    """Another Files adapter, but its listing goes on after the real files.

    As many of the files as `count` says follow: `live` ones that manifests name, then old ones that none does, and
    after `old` in all young ones.
    """

    files: Any
    count: int
    live: int
    old: int

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever the adapter has
        return getattr(self.files, name)

    def listing(
        self, location: str, unnamed: Callable[[str], None] = ignore, known: Sequence[str] = ()
    ) -> Iterator[pa.RecordBatch]:
        """The real files below the location, then the made-up ones, which lie in the table's data folder."""
        yield from self.files.listing(location, unnamed, known)
        if location.endswith("/metadata"):
            return
        now = datetime.now(UTC)
        for start in range(0, self.count, _BATCH):
            numbers = range(start, min(start + _BATCH, self.count))
            columns = [
                pa.array([f"{location}/data/{file_name(n)}" for n in numbers], pa.string()),
                pa.array([n % 1_000_000 for n in numbers], pa.int64()),
                pa.array([now - timedelta(days=10 if n < self.old else 0) for n in numbers], _SCHEMA.field(2).type),
            ]
            yield pa.RecordBatch.from_arrays(columns, schema=_SCHEMA)
