"""What a task of Spark does: a bin of data files in, the table's files out, in bounded memory."""

from __future__ import annotations

import itertools
import math

import pyarrow as pa

from icewright.adapters.engines.arrow.group import Answer, Bin, Failed, Layout, Written
from icewright.adapters.engines.arrow.opening import Broken, Opener
from icewright.adapters.engines.arrow.order import TooLarge, ordered
from icewright.adapters.engines.arrow.reading import BatchScan
from icewright.adapters.engines.arrow.resolve import Unfit
from icewright.adapters.engines.arrow.writing import Outputs


def rewrite(layout: Layout, one: Bin, attempt: int) -> Answer:
    """Rewrite a bin. What is wrong with a file is an answer, not an error: other bins go on, and Spark tries no more.

    Whatever else goes wrong is raised, after the outputs were removed.
    """
    opener = Opener(layout.storage)
    reading = BatchScan(layout, opener, one)
    names = (f"{one.output}-{attempt}-{number:05d}.parquet" for number in itertools.count(1))
    share = math.ceil(sum(piece.rows for piece in one.pieces) / one.outputs)
    outputs = Outputs(layout, opener, reading.fields, names, one.outputs, max(1, share))
    try:
        for batch in ordered(reading) if layout.order else reading.batches():
            outputs.add(batch)
        files = outputs.done()
    except Broken as error:
        outputs.discard()
        return Failed(one.group, str(error))
    except (TooLarge, Unfit) as error:
        outputs.discard()
        return Failed(one.group, str(error), unfit=True)
    except BaseException:
        outputs.discard()
        raise
    finally:
        pa.default_memory_pool().release_unused()
    return Written(one.group, tuple(files), reading.read, reading.deleted)
