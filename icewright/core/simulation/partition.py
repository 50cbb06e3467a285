"""One simulated partition: how many live files it has of each size, and the deletes that apply to them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from icewright.core.cost import expected_files
from icewright.core.partitions import PartitionKey
from icewright.core.simulation.writes import Write
from icewright.core.sizes import FileHistogram, SizeClass
from icewright.core.steps import RewriteDataFiles
from icewright.core.table import PartitionFacts, Thresholds

_NO_HISTOGRAM = FileHistogram.empty()  # it is for people to look at: no verdict reads it


@dataclass(frozen=True, slots=True)
class Chosen:
    """The files that a rewrite takes from a partition when it begins."""

    sizes: Mapping[int, int]  # bytes of a file -> how many files
    files: int
    bytes: int
    whole: bool  # every file that was there
    deletes: int
    deleted_rows: int
    at: datetime


class SimulatedPartition:
    """A partition as manifests would list it; its facts are counted again only after a change."""

    __slots__ = (
        "by", "bytes", "counted", "dangling", "deleted_rows", "deletes", "files", "first_write", "key", "last_write",
        "lowest", "rows", "sizes", "writes",
    )  # fmt: skip

    def __init__(self, key: PartitionKey, lowest: int | None) -> None:
        self.key, self.lowest = key, lowest
        self.sizes: dict[int, int] = {}
        self.files = self.bytes = self.rows = 0
        self.deletes = self.dangling = self.deleted_rows = 0  # delete files that apply, that do not, rows they name
        self.first_write: datetime | None = None
        self.last_write: datetime | None = None
        self.writes = 0
        self.counted: PartitionFacts | None = None  # the facts by `by`, which is None after a change
        self.by: Thresholds | None = None

    @property
    def values(self) -> tuple[Any, ...]:
        """Return the values of the partition tuple."""
        return self.key[1]

    def write(self, write: Write) -> None:
        """Add the files of a commit."""
        self._put(write.files, write.bytes)
        self.rows += write.rows
        self.deletes += write.delete_files
        self.deleted_rows = min(self.rows, self.deleted_rows + write.deleted_rows)
        self.first_write = self.first_write or write.at
        self.last_write = write.at
        self.writes += 1

    def clear(self) -> None:
        """Remove all files of the partition."""
        self.sizes.clear()
        self.files = self.bytes = self.rows = self.deletes = self.dangling = self.deleted_rows = self.writes = 0
        self.first_write = self.last_write = self.by = None

    def merge_deletes(self) -> int:
        """Merge the delete files, drop dangling ones, and return how many fewer there are."""
        before = self.deletes + self.dangling
        self.deletes, self.dangling, self.by = min(1, self.deletes), 0, None
        return before - self.deletes

    def planned(self, step: RewriteDataFiles, now: datetime) -> Chosen | None:
        """Return the files that Iceberg's planner takes by the step's options; None when it takes none.

        Delete files apply to the whole partition here, so that rewriting for deletes takes every file.
        """
        options = step.options
        if step.by_deletes or options.get("rewrite-all") == "true":
            taken = {} if step.by_deletes and not self.deletes else dict(self.sizes)
        else:
            low, high = int(options["min-file-size-bytes"]), int(options["max-file-size-bytes"])
            taken = {size: count for size, count in self.sizes.items() if not low <= size <= high}
            files, size_bytes = sum(taken.values()), sum(size * count for size, count in taken.items())
            enough = files >= int(options["min-input-files"]) or size_bytes > int(options["target-file-size-bytes"])
            if not (files > 1 and enough) and size_bytes <= high:
                return None
        files, size_bytes = sum(taken.values()), sum(size * count for size, count in taken.items())
        whole = files == self.files
        return Chosen(taken, files, size_bytes, whole, self.deletes, self.deleted_rows, now) if files else None

    def rewritten(self, chosen: Chosen, step: RewriteDataFiles) -> tuple[int, int, int] | None:
        """Replace the chosen files by the outputs; return files written, delete files gone and bytes of deleted rows.

        None when a writer has taken some of the files away meanwhile: the commit is lost.
        """
        if any(self.sizes.get(size, 0) < count for size, count in chosen.sizes.items()):
            return None
        for size, count in chosen.sizes.items():
            self.sizes[size] -= count
            if not self.sizes[size]:
                del self.sizes[size]
        share = 1.0 if chosen.whole else chosen.bytes / self.bytes
        gone_rows = min(self.rows, int(chosen.deleted_rows * share))
        gone_bytes = min(chosen.bytes, self.bytes * gone_rows // max(1, self.rows))
        self.files -= chosen.files
        self.bytes -= chosen.bytes
        self.rows -= gone_rows
        self.deleted_rows -= gone_rows
        gone_deletes = self._drop_deletes(chosen, step) if chosen.whole else 0
        left = chosen.bytes - gone_bytes
        written = outputs(chosen.bytes, step.options) if left else 0  # planned on what is read
        self._put(written, left)
        if chosen.whole or not step.by_deletes:  # a rewrite is no write; small files that are left came after its begin
            late = self.last_write is not None and self.last_write > chosen.at
            self.first_write = self.last_write = self.last_write if late else None
            self.writes = int(late)
        return written, gone_deletes, gone_bytes

    def _drop_deletes(self, chosen: Chosen, step: RewriteDataFiles) -> int:
        """Drop or keep as dangling the deletes whose data files were all rewritten; return how many are gone."""
        self.deletes -= chosen.deletes
        if step.options.get("remove-dangling-deletes") != "true":
            self.dangling += chosen.deletes
            return 0
        gone, self.dangling = chosen.deletes + self.dangling, 0
        return gone

    def _put(self, files: int, size: int) -> None:
        self.by = None
        if not files:
            return
        each, rest = divmod(size, files)
        for file_size, count in ((each, files - rest), (each + 1, rest)):
            if count:
                self.sizes[file_size] = self.sizes.get(file_size, 0) + count
        self.files += files
        self.bytes += size

    def facts(self, by: Thresholds) -> PartitionFacts:
        """Return the partition's facts as the manifests would state them."""
        if self.counted is None or (self.by is not by and self.by != by):
            self.counted = self._count(by)
        self.by = by
        return self.counted

    def _count(self, by: Thresholds) -> PartitionFacts:
        sizes = by.of(self.bytes)
        low, high = sizes.min_bytes, sizes.max_bytes
        candidates = candidate_bytes = 0
        classes: dict[int, tuple[int, int, int]] = {}
        for size, count in self.sizes.items():
            if not low <= size <= high:
                candidates += count
                candidate_bytes += size * count
            if size < low:
                files, total, largest = classes.get(size.bit_length(), (0, 0, 0))
                classes[size.bit_length()] = (files + count, total + size * count, max(largest, size))
        return PartitionFacts(
            spec_id=self.key[0],
            values=self.key[1],
            data_files=self.files,
            data_bytes=self.bytes,
            records=self.rows,
            candidate_files=candidates,
            candidate_bytes=candidate_bytes,
            histogram=_NO_HISTOGRAM,
            position_delete_files=self.deletes,
            equality_delete_files=0,
            deletion_vectors=0,
            mergeable_deletes=self.deletes if self.deletes > 1 else 0,
            dangling_position_deletes=self.dangling,
            dangling_equality_deletes=0,
            deleted_rows=self.deleted_rows,
            max_deletes_of_a_file=self.deletes,
            max_delete_ratio_of_a_file=0.0,  # delete files of the partition name no data file
            last_write=self.last_write,
            first_write=self.first_write,
            writes=self.writes,
            lowest=self.lowest if by.age else None,
            small=tuple(SizeClass(*classes[key]) for key in sorted(classes)),
        )


def outputs(size: int, options: Mapping[str, str]) -> int:
    """Return how many files a rewrite of so many bytes writes, file group by file group."""
    sizes = [int(options[f"{name}-file-size-bytes"]) for name in ("target", "min", "max")]
    groups, rest = divmod(size, int(options["max-file-group-size-bytes"]))
    whole = groups and groups * expected_files(int(options["max-file-group-size-bytes"]), *sizes)
    return whole + (expected_files(rest, *sizes) if rest or not groups else 0)
