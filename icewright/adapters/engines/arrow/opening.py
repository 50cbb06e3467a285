"""Open a table's files in an executor: local files by Arrow, others by PyIceberg's FileIO."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from io import SEEK_CUR, SEEK_END, SEEK_SET, RawIOBase
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from icewright.adapters.engines.arrow.batch_rows import few_valued_texts
from icewright.adapters.engines.arrow.pages import decoding_bytes
from icewright.adapters.engines.arrow.resolve import UnsupportedByArrow, beyond_memory
from icewright.adapters.engines.arrow.sizes import groups_within
from icewright.core.errors import MetadataUnreadable, Refused, UnsupportedTable
from icewright.core.paths import local_path
from icewright.core.table import TableRef
from icewright.core.words import first_line
from icewright.ports import Storage

IN_MEMORY_BYTES = 8 << 20  # smaller files are read in one request, at two thirds of the CPU time
_PRE_BUFFER_BYTES = 64 << 20  # larger row groups are streamed
_STREAM_BUFFER_BYTES = 1 << 20  # for each column,
_STREAM_BUFFERS_BYTES = 32 << 20  # and for all
_TAIL_BYTES = 1 << 16  # of a file, in which most footers are
_PATIENT = "icewright.adapters.engines.arrow.retries.Patient"  # loaded where there is an S3
_FOOTER_COPIES = 15  # a decoded footer is 10 to 15 times as large, as measured


class UnreadableFile(Exception):
    """A file is missing, truncated or corrupt; the message names the file."""


class OpenParquet(pq.ParquetFile):  # type: ignore[misc]  # PyArrow has no types
    """A Parquet file, and what it is read from."""

    def __init__(self, source: pa.NativeFile, **options: object) -> None:
        super().__init__(source, **options)
        self.source = source

    def iter_batches(
        self, batch_size: int, row_groups: Sequence[int] | None = None, **options: object
    ) -> Iterator[pa.RecordBatch]:
        """Yield batches of some row groups, all by default; Arrow keeps what it reads ahead until the end of a run."""
        numbers = range(self.num_row_groups) if row_groups is None else row_groups
        for run in groups_within(numbers, _PRE_BUFFER_BYTES, lambda n: self.metadata.row_group(n).total_byte_size):
            yield from super().iter_batches(batch_size, row_groups=run, **options)


@dataclass(frozen=True)
class Opener:
    """Opens files by their full path with the table's storage properties. Raises `UnreadableFile`."""

    storage: Mapping[str, str]

    @contextmanager
    def reading(self, path: str) -> Iterator[pa.NativeFile]:
        """Open a file for reading. Errors in the block become `UnreadableFile` with the path."""
        try:
            with self.input(path) as source:
                yield source
        except (MemoryError, pa.ArrowNotImplementedError, pa.ArrowCapacityError):
            raise  # no fault of the file
        except (pa.ArrowException, OSError, KeyError) as error:
            raise UnreadableFile(f"{path}: {first_line(error)}") from error

    @contextmanager
    def parquet(
        self, path: str, file_bytes: int | None = None, page_memory: int | None = None, *, codes: bool = False
    ) -> Iterator[OpenParquet]:
        """Open a Parquet file. Raises `UnreadableFile` when `file_bytes` is given and is not its length.

        With `codes`, texts that repeat a lot stay dictionary-encoded.

        Raises `UnsupportedByArrow` before a row is read when its pages would take more than `page_memory` bytes.
        """
        with self.reading(path) as stream:
            if file_bytes is not None and stream.size() != file_bytes:
                raise UnreadableFile(f"{path} has {stream.size()} bytes where its entry says {file_bytes}")
            in_memory = stream.size() <= IN_MEMORY_BYTES
            source = pa.BufferReader(stream.read_buffer()) if in_memory else stream
            metadata = _metadata(source, page_memory)
            if page_memory is not None and decoding_bytes(source, metadata, page_memory) > page_memory:
                raise beyond_memory("the pages of its files do")
            group_bytes = (metadata.row_group(i).total_byte_size for i in range(metadata.num_row_groups))
            pre_buffer = max(group_bytes, default=0) <= _PRE_BUFFER_BYTES and not in_memory
            buffer_bytes = min(_STREAM_BUFFER_BYTES, _STREAM_BUFFERS_BYTES // max(1, metadata.num_columns))
            yield OpenParquet(
                source,
                metadata=metadata,
                read_dictionary=few_valued_texts(metadata) if codes else None,
                pre_buffer=pre_buffer,
                buffer_size=0 if pre_buffer or in_memory else buffer_bytes,
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
                stream = self._file_io.new_output(path).create()
        except (pa.ArrowException, OSError) as error:
            raise UnreadableFile(f"{path}: {first_line(error)}") from error
        return stream

    def delete(self, path: str) -> None:
        """Delete a file of a failed attempt. A file that cannot be deleted is left to orphan removal."""
        with suppress(OSError):
            if (local := local_path(path)) is not None:
                Path(local).unlink(missing_ok=True)
            else:
                self._file_io.delete(path)

    def input(self, path: str) -> pa.NativeFile:
        """Open a file for reading; its errors are those of Arrow and of the system."""
        if (local := local_path(path)) is not None:
            return pa.OSFile(local, "rb")
        stream: pa.NativeFile = self._file_io.new_input(path).open()
        return stream

    @cached_property  # which keeps its connections
    def _file_io(self) -> Any:  # noqa: ANN401 - a PyIceberg FileIO
        from pyiceberg.io.pyarrow import PyArrowFileIO  # noqa: PLC0415 - takes half a second, which local files do not need

        return PyArrowFileIO({"s3.retry-strategy-impl": _PATIENT, **self.storage})


@dataclass(frozen=True)
class StorageOpener(Opener):
    """Opens files in the service, through its storage with the catalog's credentials."""

    files: Storage

    def input(self, path: str) -> pa.NativeFile:
        """Open a file for reading, in ranges."""
        if local_path(path) is not None:
            return super().input(path)
        size = self.files.size(path)
        if size is None:
            raise FileNotFoundError(f"{path} is missing")
        return pa.PythonFile(_StoredFile(self.files, path, size), mode="r")


@contextmanager
def refusing(ref: TableRef, effect: str, code: str) -> Iterator[None]:
    """Translate errors of reading a table's files: into `Refused` with the code, or the error of a damaged file."""
    try:
        yield
    except UnsupportedByArrow as error:
        raise Refused(f"{ref}: {effect}: {error}", code) from error
    except UnsupportedTable as error:
        raise Refused(str(error), code) from error
    except UnreadableFile as error:
        raise MetadataUnreadable(f"{ref}: {error}") from error


def service_opener(files: Storage, location: str) -> Opener:
    """Return the opener of the service for the files of a table: those of a local disk by Arrow alone."""
    return Opener({}) if local_path(location) is not None else StorageOpener({}, files)


def _metadata(source: pa.NativeFile, most_bytes: int | None) -> pq.FileMetaData:
    """Return the footer. Raises `UnsupportedByArrow` when it would take more than `most_bytes`, if given, once decoded.

    The end of the file is read once.
    """
    tail = source.read_at(_TAIL_BYTES, max(0, source.size() - _TAIL_BYTES))
    length = int.from_bytes(tail[-8:-4], "little")  # of the footer, before the magic bytes
    if length <= len(tail) - 8:
        return pq.read_metadata(pa.BufferReader(tail))
    if most_bytes is not None and length <= source.size() and length * _FOOTER_COPIES > most_bytes:
        raise beyond_memory("the footer of one of its files does")
    return pq.read_metadata(source)


class _StoredFile(RawIOBase):
    """A file of a storage, read in ranges."""

    def __init__(self, files: Storage, path: str, size: int) -> None:
        super().__init__()
        self._files, self._path, self._size, self._at = files, path, size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def size(self) -> int:
        return self._size

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = SEEK_SET) -> int:
        start = {SEEK_SET: 0, SEEK_CUR: self._at, SEEK_END: self._size}[whence]
        self._at = start + offset
        return self._at

    def read(self, size: int = -1) -> bytes:
        length = self._size - self._at if size < 0 else min(size, self._size - self._at)
        content = self._files.read_range(self._path, self._at, length) if length > 0 else b""
        self._at += len(content)
        return content
