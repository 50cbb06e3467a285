"""Data files and their deletes written by hand, and bins of them for the Arrow kernel."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyroaring import BitMap64

from icewright.adapters.engines.arrow.kernel import rewrite
from icewright.adapters.engines.arrow.tasks import Bin, BinResult, BinWritten, DeleteFile, DeleteKind, FileSlice, Layout
from icewright.adapters.engines.arrow.types import Field, arrow_schema
from icewright.core.policy import MEGABYTE
from icewright.core.rewriting import TASK_MEMORY

MEMORY = 256 << 20
DEFAULT_MEMORY = TASK_MEMORY.default * MEGABYTE
PATH = {"id": 2147483546, "name": "file_path", "required": True, "type": "string"}
POSITION = {"id": 2147483545, "name": "pos", "required": True, "type": "long"}


def column(number: int, name: str, kind: Any, *, required: bool = False, default: object = None) -> Field:
    """A field of a schema."""
    more = {} if default is None else {"initial-default": default}
    return {"id": number, "name": name, "required": required, "type": kind, **more}


ID, NAME = column(1, "id", "long"), column(2, "name", "string")


@dataclass
class Folder:
    """A folder of data files and delete files."""

    place: Path
    fields: Sequence[Field] = (ID, NAME)
    count: int = 0
    layout: Layout = field(init=False)

    def __post_init__(self) -> None:
        self.layout = Layout(
            schema={"type": "struct", "fields": list(self.fields)},
            older_fields={},
            properties={},
            has_row_ids=False,
            order=(),
            zorder=False,
            sort_order_id=0,
            sorted_by=(),
            memory_bytes=MEMORY,
            storage={},
        )

    def of(self, **more: Any) -> None:
        """Change the layout."""
        self.layout = replace(self.layout, **more)

    def write(self, rows: Sequence[Mapping[str, Any]], fields: Sequence[Field] | None = None, **options: Any) -> str:
        """A Parquet file with field ids; its path."""
        self.count += 1
        path = self.place / f"{self.count}.parquet"
        pq.write_table(pa.Table.from_pylist(list(rows), arrow_schema(fields or self.fields)), path, **options)
        return str(path)

    def file_slice(self, path: str, *deletes: DeleteFile, **more: Any) -> FileSlice:
        """The whole of a file as the planner names it."""
        size = Path(path).stat().st_size
        known = {"bytes": size, "file_bytes": size, "records": pq.read_metadata(path).num_rows, "sequence_number": 1}
        return FileSlice(path=path, deletes=deletes, **{**known, "first_row_id": None, **more})

    def positions(self, *rows: tuple[str, int]) -> DeleteFile:
        """A position delete file."""
        said = [{"file_path": path, "pos": position} for path, position in rows]
        return DeleteFile(DeleteKind.POSITION, self.write(said, [PATH, POSITION]))

    def keys(self, fields: Sequence[Field], ids: Sequence[int], *rows: Mapping[str, Any]) -> DeleteFile:
        """An equality delete file."""
        return DeleteFile(DeleteKind.EQUALITY, self.write(rows, fields), equality_ids=tuple(ids))

    def vector(self, *positions: int, spoil: bool = False) -> DeleteFile:
        """A deletion vector behind some other bytes, as in a Puffin file that holds several."""
        self.count += 1
        path = self.place / f"{self.count}.puffin"
        body = b"\xd1\xd3\x39\x64" + BitMap64(positions).serialize()
        blob = struct.pack(">I", len(body)) + body + struct.pack(">I", zlib.crc32(body) ^ spoil)
        path.write_bytes(b"PFA1" + blob)
        return DeleteFile(DeleteKind.VECTOR, str(path), 4, len(blob), len(positions))

    def rewrite(self, *slices: FileSlice, outputs: int = 1, partition: Mapping[int, Any] | None = None) -> BinResult:
        """What a task answers."""
        return rewrite(self.layout, Bin(0, slices, partition or {}, f"{self.place}/out", outputs), 7)

    def rows(self, *slices: FileSlice, **more: Any) -> list[dict[str, Any]]:
        """The rows that a task writes, in its order."""
        found = self.rewrite(*slices, **more)
        assert isinstance(found, BinWritten), found
        tables = [pq.ParquetFile(one["file-path"]).read() for one in found.files]
        assert all(table.schema.metadata is None for table in tables)
        return [row for table in tables for row in table.to_pylist()]


def rewritten_in_memory(folder: Folder, path: Path, rows: int, most: int = MEMORY) -> None:
    """Rewrite a file, and hold what Arrow allocates meanwhile against the memory of a task."""
    before, measured = pa.default_memory_pool(), pa.proxy_memory_pool(pa.system_memory_pool())
    pa.set_memory_pool(measured)
    try:
        found = folder.rewrite(folder.file_slice(str(path)))
    finally:
        pa.set_memory_pool(before)
    assert isinstance(found, BinWritten), found
    assert found.files[0]["record-count"] == rows
    assert measured.max_memory() < most
