"""Files of a table as an executor opens them: local ones by Arrow, others by PyIceberg's FileIO over Arrow."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from icewright.core.paths import local_path

_AT_ONCE = 8 << 20  # bytes of a file that is read whole: one request of a store, and a third less time of a processor
_COALESCED = 64 << 20  # bytes of row groups that are read ahead as a whole; larger ones are read as a stream
_BUFFER = 1 << 20  # of each column of a stream


class Broken(Exception):
    """A file that is missing, cut short or not what it says it is; the message names it."""


@dataclass(frozen=True)
class Opener:
    """Opens by full path. What goes wrong is `Broken`."""

    storage: Mapping[str, str]

    @contextmanager
    def reading(self, path: str) -> Iterator[pa.NativeFile]:
        """A file to read; what goes wrong while it is open is told with its name."""
        try:
            with self._input(path) as source:
                yield source
        except (pa.ArrowException, OSError, KeyError) as error:
            raise Broken(f"{path}: {_said(error)}") from error

    @contextmanager
    def parquet(self, path: str, file_bytes: int | None = None) -> Iterator[pq.ParquetFile]:
        """A Parquet file, of this length where it is known: a small one at once, the columns of others in a stream."""
        with self.reading(path) as stored:
            if file_bytes is not None and stored.size() != file_bytes:
                raise Broken(f"{path} has {stored.size()} bytes where its entry says {file_bytes}")
            at_once = stored.size() <= _AT_ONCE
            source = pa.BufferReader(stored.read_buffer()) if at_once else stored
            metadata = pq.read_metadata(source)
            most = max((metadata.row_group(i).total_byte_size for i in range(metadata.num_row_groups)), default=0)
            ahead = most <= _COALESCED and not at_once
            yield pq.ParquetFile(
                source,
                metadata=metadata,
                pre_buffer=ahead,
                buffer_size=0 if ahead or at_once else _BUFFER,
                coerce_int96_timestamp_unit="us",
                page_checksum_verification=True,
            )

    def create(self, path: str) -> pa.NativeFile:
        """Open a new file for writing."""
        try:
            if (local := local_path(path)) is not None:
                Path(local).parent.mkdir(parents=True, exist_ok=True)
                stream = pa.OSFile(local, "wb")
            else:
                stream = self._elsewhere().new_output(path).create()
        except (pa.ArrowException, OSError) as error:
            raise Broken(f"{path}: {_said(error)}") from error
        return stream

    def delete(self, path: str) -> None:
        """Remove what an attempt began; if that fails too, orphan removal finds it."""
        with suppress(OSError):
            if (local := local_path(path)) is not None:
                Path(local).unlink(missing_ok=True)
            else:
                self._elsewhere().delete(path)

    def _input(self, path: str) -> pa.NativeFile:
        if (local := local_path(path)) is not None:
            return pa.OSFile(local, "rb")
        stream: pa.NativeFile = self._elsewhere().new_input(path).open()
        return stream

    def _elsewhere(self) -> Any:  # noqa: ANN401 - PyIceberg's
        from pyiceberg.io.pyarrow import PyArrowFileIO  # noqa: PLC0415 - half a second that local files need not

        return PyArrowFileIO(dict(self.storage))


def _said(error: Exception) -> str:
    """Return the first line of what Arrow says."""
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
