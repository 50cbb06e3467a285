"""One task of the Arrow kernel in a process of its own: `python -m benchmarks.kit.task`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from benchmarks.kit.child import Answer, measured, serve
from icewright.adapters.engines.arrow.kernel import rewrite
from icewright.adapters.engines.arrow.tasks import Bin, BinFailed, DeleteFile, DeleteKind, FileSlice, Layout


def _run(
    fields: Sequence[Any], commits: Sequence[Sequence[str]], order: Sequence[int], memory: int, out: str
) -> Answer:
    """Rewrite the data files of commits into one; a commit's keys, if it has a second file, delete in those before.

    The answer has the process's own peak: the interpreter and all that it imports are counted.
    """
    keys = [DeleteFile(DeleteKind.EQUALITY, more[0], equality_ids=(1,)) for _, *more in commits if more]
    slices = [_slice(data, tuple(keys[number + 1 :])) for number, (data, *_) in enumerate(commits)]
    layout = Layout(
        schema={"type": "struct", "fields": fields},
        older_fields={},
        properties={},
        has_row_ids=False,
        order=tuple((number, False, False) for number in order),
        zorder=False,
        sort_order_id=0,
        sorted_by=(),
        memory_bytes=memory,
        storage={},
    )
    with measured() as found:
        result = rewrite(layout, Bin(0, tuple(slices), {}, out, 1), 0)
    if isinstance(result, BinFailed):
        if not result.unsupported:
            raise RuntimeError(result.error)
        return found.answer(left_to_spark=result.error)
    return found.answer(read=result.read, rows=sum(int(file["record-count"]) for file in result.files))


def _slice(path: str, deletes: tuple[DeleteFile, ...]) -> FileSlice:
    size, rows = Path(path).stat().st_size, pq.read_metadata(path).num_rows
    return FileSlice(path, size, size, rows, 1, None, deletes)


if __name__ == "__main__":
    serve({"run": _run})
