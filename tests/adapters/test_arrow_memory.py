"""A task that compacts long values or many deletes stays within `compact.task_memory_mb`, the whole process counted."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from icewright.adapters.engines.arrow.types import arrow_schema
from tests.adapters.arrow_tables import DEFAULT_MEMORY, ID, NAME, PATH, POSITION

# getrusage would give the peak of the parent, which the child is forked from
_REWRITE = """
import sys
from pathlib import Path
from icewright.adapters.engines.arrow.tasks import BinWritten, DeleteFile, DeleteKind
from tests.adapters.arrow_tables import DEFAULT_MEMORY, Folder
folder = Folder(Path(sys.argv[1]))
folder.of(memory_bytes=DEFAULT_MEMORY)
deletes = [DeleteFile(DeleteKind.POSITION, str(path)) for path in folder.place.glob("deletes")]
result = folder.rewrite(folder.file_slice(sys.argv[1] + "/data.parquet", *deletes))
assert isinstance(result, BinWritten) or result.unsupported, result
(peak,) = [line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM:")]
print(result.files[0]["record-count"] if isinstance(result, BinWritten) else 0, int(peak) * 1024)
"""


@pytest.mark.external
@pytest.mark.cases(124)
@pytest.mark.parametrize(
    ("rows", "length", "in_page", "by_arrow"),
    [(4_000, 100_000, 10, True), (100, 4_000_000, 5, True), (16, 30_000_000, 1, False)],
    ids=["100 KB", "4 MB", "30 MB"],
)
def test_long_strings_are_rewritten_within_the_memory_of_a_task(
    tmp_path: Path, rows: int, length: int, in_page: int, *, by_arrow: bool
) -> None:
    """400 MB of strings: batches, samples, pages and row groups are bounded by bytes; the longest are left to Spark."""
    schema = arrow_schema([ID, NAME])
    with pq.ParquetWriter(tmp_path / "data.parquet", schema, use_dictionary=False, write_batch_size=in_page) as writer:
        for start in range(0, rows, rows // 4):
            numbers = range(start, start + rows // 4)
            texts = [f"{number:010d}" * (length // 10) for number in numbers]
            writer.write_table(pa.table([list(numbers), texts], schema=schema))
    written, peak = rewritten(tmp_path)
    assert written == (rows if by_arrow else 0)
    assert peak < DEFAULT_MEMORY


@pytest.mark.external
@pytest.mark.cases(124)
def test_positions_take_the_memory_of_a_bitmap(tmp_path: Path) -> None:
    """Five million deletes of one file, each with the path of the file."""
    count, path = 10_000_000, str(tmp_path / "data.parquet")
    with pq.ParquetWriter(path, arrow_schema([ID])) as writer:
        writer.write_table(pa.table([pa.array(range(count))], schema=arrow_schema([ID])))
    dead = pa.array(range(0, count, 2))
    columns = [pa.repeat(path, len(dead)), dead]
    pq.write_table(pa.table(columns, schema=arrow_schema([PATH, POSITION])), tmp_path / "deletes")
    written, peak = rewritten(tmp_path)
    assert written == count - len(dead)
    assert peak < DEFAULT_MEMORY


def rewritten(folder: Path) -> tuple[int, int]:
    """Rewrite the data file by a process of its own; the rows that it writes, and its peak."""
    done = subprocess.run(
        [sys.executable, "-c", _REWRITE, str(folder)], capture_output=True, text=True, check=False, cwd=Path.cwd()
    )
    assert done.returncode == 0, done.stderr
    written, peak = map(int, done.stdout.split())
    return written, peak
