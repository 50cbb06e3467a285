"""The rewrite of one bin inside a Spark task: read live rows, sort them if asked, write Parquet files."""

from __future__ import annotations

import itertools
import math

import pyarrow as pa

from icewright.adapters.engines.arrow.opening import Opener, UnreadableFile
from icewright.adapters.engines.arrow.order import SortExceedsMemory, sorted_batches
from icewright.adapters.engines.arrow.reading import BatchScan
from icewright.adapters.engines.arrow.resolve import UnsupportedByArrow
from icewright.adapters.engines.arrow.tasks import Bin, BinFailed, BinResult, BinWritten, Layout
from icewright.adapters.engines.arrow.writing import Outputs


def rewrite(layout: Layout, bin_: Bin, attempt: int) -> BinResult:
    """Rewrite the files of a bin, in the memory that the layout allows.

    A file that cannot be read makes a `BinFailed`, not an error: other bins go on, and Spark does not retry the task.
    Any other exception is raised. Outputs of a bin that fails are deleted.
    """
    opener = Opener(layout.storage)
    scan = BatchScan(layout, opener, bin_)
    paths = (f"{bin_.output}-{attempt}-{number:05d}.parquet" for number in itertools.count(1))
    rows_per_file = math.ceil(sum(file_slice.rows for file_slice in bin_.slices) / bin_.outputs)
    outputs = Outputs(layout, opener, scan.fields, paths, bin_.outputs, max(1, rows_per_file))
    try:
        for batch in sorted_batches(scan) if layout.order else scan.batches():
            outputs.add(batch)
        files = outputs.finish()
    except UnreadableFile as error:
        outputs.discard()
        return BinFailed(bin_.group, str(error))
    except (SortExceedsMemory, UnsupportedByArrow) as error:
        outputs.discard()
        return BinFailed(bin_.group, str(error), unsupported=True)
    except BaseException:
        outputs.discard()
        raise
    finally:
        pa.default_memory_pool().release_unused()
    return BinWritten(bin_.group, tuple(files), scan.read, scan.deleted)
