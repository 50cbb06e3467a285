"""Sort a group of files by several tasks: some sample the rows of its bins, and each of others writes one range.

The tasks of a few ranges read all files, which takes less time than to send rows. Else those of the bins split their
rows, which travel through Spark's shuffle as Arrow streams. The row counts of bins and what failed there go along.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING

import pyarrow as pa

from icewright.adapters.engines.arrow.executors import Piece, exchange, run_tasks, task_attempt
from icewright.adapters.engines.arrow.kernel import failure, write
from icewright.adapters.engines.arrow.opening import Opener
from icewright.adapters.engines.arrow.order import (
    chunks,
    decoded_bytes,
    merged_batches,
    ranges_of,
    rows_of_range,
    sample_of,
    split_by_range,
)
from icewright.adapters.engines.arrow.ranges import KeySample, Ranges, divide
from icewright.adapters.engines.arrow.reading import BatchScan
from icewright.adapters.engines.arrow.tasks import (
    Bin,
    BinFailed,
    BinResult,
    BinWritten,
    Layout,
    result_from_json,
    result_to_json,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SAMPLE_BYTES = 32 << 20  # of a group, which the driver holds
_PIECE_BYTES = 4 << 20  # of rows, about: the JVM holds some pieces at once
_MOST_READS = 3  # of a file: decoding it four times takes as long as a shuffle


@dataclass(frozen=True)
class SortedGroup:
    """The bins that hold a group's files, and those without files that its outputs are to be."""

    bins: Sequence[Bin]
    outputs: Sequence[Bin]
    rows: int
    file_bytes: int


@dataclass(frozen=True)
class SampledBin:
    """A bin of a group. Its number makes the ties of its rows different from those of other bins."""

    bin: Bin
    number: int
    group_rows: int
    most_bytes: int  # of the sample


@dataclass(frozen=True)
class SplitBin:
    """A bin whose rows are sent to the parts of its group, which are numbered from `first_part` on."""

    bin: Bin
    number: int
    first_part: int
    ranges: Ranges


@dataclass(frozen=True)
class Part:
    """A range of a group's rows, which one task writes; `ranges` divide it again."""

    bin: Bin
    ranges: Ranges


@dataclass(frozen=True)
class ChosenRange:
    """A range that one task chooses from all rows of a group. One of the group's tasks counts them."""

    part: Part
    source: Bin
    ranges: Ranges
    number: int

    @property
    def counts(self) -> bool:
        """Return whether the task says how many rows the group has."""
        return self.number == 0


def sort_together(session: SparkSession, layout: Layout, groups: Sequence[SortedGroup]) -> list[BinResult]:
    """Sort each group by several tasks of Spark; return what they answer."""
    tasks = [
        SampledBin(bin_, number, group.rows, _SAMPLE_BYTES // len(group.bins))
        for group in groups
        for number, bin_ in enumerate(group.bins)
    ]
    samples = iter(run_tasks(session, partial(_sampled, layout), tasks, _sample_to_json, _sample_from_json))
    answers, splits, parts, chosen = list[BinResult](), list[SplitBin](), list[Part](), list[ChosenRange]()
    for group in groups:
        of_group = list(islice(samples, len(group.bins)))
        if failed := [sample for sample in of_group if isinstance(sample, BinFailed)]:
            answers += failed
            continue
        ranges, outputs = planned(layout, group, [sample for sample in of_group if isinstance(sample, KeySample)])
        if len(outputs) <= _MOST_READS:
            chosen += chosen_ranges(group, ranges, outputs)
            continue
        splits += [SplitBin(bin_, number, len(parts), ranges) for number, bin_ in enumerate(group.bins)]
        parts += outputs
    if chosen:
        answers += run_tasks(session, partial(_written, layout), chosen, result_to_json, result_from_json)
    if splits:
        work = partial(split, layout), partial(merge, layout, parts)
        answers += exchange(session, *work, splits, len(parts), result_to_json, result_from_json)
    return answers


def planned(layout: Layout, group: SortedGroup, samples: Sequence[KeySample]) -> tuple[Ranges, list[Part]]:
    """Return the ranges of a group's rows, one for each output, and the parts that write them."""
    sample = KeySample.merged(samples)
    frame = sample.frame
    ranges = divide(layout.order, frame, len(group.outputs), zorder=layout.zorder)
    numbers, size = ranges.numbers(frame), decoded_bytes(group.file_bytes) // len(group.outputs)
    parts = [
        Part(output, ranges_of(layout, frame.filter(numbers == number), size))
        for number, output in enumerate(group.outputs)
    ]
    return ranges, parts


def chosen_ranges(group: SortedGroup, ranges: Ranges, parts: Sequence[Part]) -> list[ChosenRange]:
    """Return a task for each part of a group, which reads the files of all bins."""
    slices = tuple(file_slice for bin_ in group.bins for file_slice in bin_.slices)
    source = replace(group.bins[0], slices=slices)
    return [ChosenRange(part, source, ranges, number) for number, part in enumerate(parts)]


def sampled(layout: Layout, task: SampledBin) -> KeySample | BinFailed:
    """Return a sample of the keys of a bin."""
    try:
        scan = BatchScan(layout, Opener(layout.storage), task.bin)
        return sample_of(scan, task.number, task.group_rows, task.most_bytes)
    except Exception as error:
        if (failed := failure(task.bin, error)) is None:
            raise
        return failed


def _sampled(layout: Layout, tasks: Iterable[SampledBin]) -> Iterator[KeySample | BinFailed]:
    return (sampled(layout, task) for task in tasks)


def _sample_to_json(sample: KeySample | BinFailed) -> str:
    """Return a sample as JSON: see `result_to_json`."""
    if isinstance(sample, BinFailed):
        return json.dumps(asdict(sample))
    return json.dumps({"below": sample.below, "keys": base64.b64encode(_stream(sample.keys)).decode()})


def _sample_from_json(text: str) -> KeySample | BinFailed:
    """Return the sample whose JSON `_sample_to_json` made."""
    document = json.loads(text)
    if "keys" not in document:
        return BinFailed(**document)
    return KeySample(pa.ipc.open_stream(base64.b64decode(document["keys"])).read_all(), document["below"])


def split(layout: Layout, task: SplitBin) -> Iterator[Piece]:
    """Yield the live rows of a bin in pieces of one range each, and how many were read, or why the bin failed."""
    scan = BatchScan(layout, Opener(layout.storage), task.bin, tie_seed=task.number)
    result: BinResult | None
    try:
        for rows in chunks(scan.batches(), layout):
            for number, of_range in split_by_range(layout, rows, task.ranges):
                step = max(1, _PIECE_BYTES * of_range.num_rows // max(1, of_range.nbytes))
                for start in range(0, of_range.num_rows, step):
                    yield Piece(task.first_part + number, _stream(of_range.slice(start, step)), None)
        result = BinWritten(task.bin.group, (), scan.read, scan.deleted)
    except Exception as error:
        result = failure(task.bin, error)
        if result is None:
            raise
    _give_back()
    yield Piece(task.first_part, None, result_to_json(result))


def merge(layout: Layout, parts: Sequence[Part], number: int, pieces: Iterator[Piece]) -> Iterator[BinResult]:
    """Write the rows of a part in order; yield the results of bins, then what was written."""
    results = list[BinResult]()

    def batches() -> Iterator[pa.RecordBatch]:
        for piece in pieces:
            if piece.part != number:
                raise ValueError(f"rows of part {piece.part} came to the task of part {number}")
            if piece.result is not None:
                results.append(result_from_json(piece.result))
            if piece.rows is not None:
                with pa.ipc.open_stream(piece.rows) as reader:
                    yield from reader

    part = parts[number]
    _give_back()
    written = write(layout, part.bin, task_attempt(), lambda _: merged_batches(layout, batches(), part.ranges))
    yield from results
    yield written


def write_range(layout: Layout, task: ChosenRange) -> Iterator[BinResult]:
    """Write the live rows of a range in order; yield what was written, and the group's counts where they are asked."""
    scan = BatchScan(layout, Opener(layout.storage), task.source, tie_seed=0)

    def rows(_: BatchScan) -> Iterator[pa.RecordBatch]:
        batches = (rows_of_range(layout, batch, task.ranges, task.number) for batch in scan.batches())
        return merged_batches(layout, batches, task.part.ranges)

    yield write(layout, task.part.bin, task_attempt(), rows)
    if task.counts:
        yield BinWritten(task.source.group, (), scan.read, scan.deleted)


def _written(layout: Layout, tasks: Iterable[ChosenRange]) -> Iterator[BinResult]:
    return (answer for task in tasks for answer in write_range(layout, task))


def _give_back() -> None:
    """Return to the system what Arrow keeps of what ran before: these tasks need memory of Polars and Python too."""
    pa.default_memory_pool().release_unused()


def _stream(rows: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_table(rows)
    return bytes(sink.getvalue())
