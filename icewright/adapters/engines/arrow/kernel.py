"""The rewrite of one bin inside a Spark task: read live rows, sort them if asked, write Parquet files."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator

import pyarrow as pa

from icewright.adapters.engines.arrow.opening import Opener, UnreadableFile
from icewright.adapters.engines.arrow.order import sorted_batches
from icewright.adapters.engines.arrow.reading import BatchScan
from icewright.adapters.engines.arrow.resolve import UnsupportedByArrow, beyond_memory
from icewright.adapters.engines.arrow.tasks import Bin, BinFailed, BinResult, BinWritten, Layout
from icewright.adapters.engines.arrow.writing import Outputs
from icewright.core.words import first_line


def rewrite(layout: Layout, bin_: Bin, attempt: int) -> BinResult:
    """Rewrite the files of a bin, in the memory that the layout allows.

    A file that cannot be read makes a `BinFailed`, not an error: other bins go on, and Spark does not retry the task.
    So does what Arrow cannot do, of which an unexpected exception is a sign: Spark's own engine may still do it.
    Raises `OSError` when the storage fails, so that Spark retries. Outputs of a bin that fails are deleted.
    """
    return write(layout, bin_, attempt, sorted_batches if layout.order else BatchScan.batches)


def write(layout: Layout, bin_: Bin, attempt: int, rows: Callable[[BatchScan], Iterator[pa.RecordBatch]]) -> BinResult:
    """Write the rows of a bin, as `rows` takes them from its scan; fails as `rewrite` does."""
    opener = Opener(layout.storage)
    paths = (f"{bin_.output}-{attempt}-{number:05d}.parquet" for number in itertools.count(1))
    outputs: Outputs | None = None
    try:
        # sorting and counting look at values
        scan = BatchScan(layout, opener, bin_, codes=not layout.order and not layout.counted)
        rows_per_file = math.ceil(sum(file_slice.rows for file_slice in bin_.slices) / bin_.outputs)
        outputs = Outputs(layout, opener, scan.fields, paths, bin_.outputs, max(1, rows_per_file))
        for batch in rows(scan):
            outputs.add(batch)
        files = outputs.finish()
    except BaseException as error:
        if outputs is not None:
            outputs.discard()
        failed = failure(bin_, error)
        if failed is None:
            raise
        return failed
    return BinWritten(bin_.group, tuple(files), scan.read, scan.deleted, outputs.sketches())


def failure(bin_: Bin, error: BaseException) -> BinFailed | None:
    """Return how a bin failed by the error; None when the error is to be raised."""
    match error:
        case UnreadableFile():
            return BinFailed(bin_.group, str(error))
        case UnsupportedByArrow():
            return BinFailed(bin_.group, str(error), unsupported=True)
        case MemoryError():
            return BinFailed(bin_.group, str(beyond_memory("its rows do")), unsupported=True)
        case Exception() if not isinstance(error, OSError):
            reason = f"Arrow failed with {type(error).__name__}: {first_line(error)}"
            return BinFailed(bin_.group, reason, unsupported=True)
    return None
