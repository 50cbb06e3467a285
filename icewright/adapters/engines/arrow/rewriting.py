"""`rewrite_data_files` with tasks of ours in the place of Spark's rows: planned, validated and committed by Iceberg."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from icewright.adapters.engines.arrow.group import Answer, Bin, Failed, Layout, Written, bins
from icewright.adapters.engines.arrow.iceberg import Done, FileGroup, IcebergTable
from icewright.adapters.engines.arrow.kernel import rewrite
from icewright.core.ordering import Ordering
from icewright.core.paths import local_path
from icewright.core.sortedness import ordering_fields
from icewright.core.steps import RewriteDataFiles
from icewright.core.table import TableRef

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_COUNTS = ("rewritten_data_files_count", "added_data_files_count", "failed_data_files_count")


@dataclass
class Rewritten:
    """What came of it, counted as the procedure does."""

    row: dict[str, int] = field(default_factory=lambda: dict.fromkeys(_COUNTS, 0))
    failures: list[str] = field(default_factory=list)
    unfit: list[str] = field(default_factory=list)  # why groups are left to Spark's own path


@dataclass
class ArrowRewrite:
    """One call. `check` is asked before each commit."""

    session: SparkSession
    ref: TableRef
    step: RewriteDataFiles
    where: str | None
    job_id: str
    check: Callable[[], None]
    done: Rewritten = field(default_factory=Rewritten)

    def run(self) -> Rewritten:
        """Rewrite what the step's options choose. Raises what the JVM raises; what was committed before stays."""
        table = IcebergTable(self.session, self.ref)
        groups = table.plan(self.where, self.step.options)
        fit = self._fit(groups)
        if not fit:
            return self.done
        layout = self._layout(table, fit)
        for wave in self._waves(fit):
            self._commit(table, self._rewritten(table, layout, wave))
        if self.step.options.get("remove-dangling-deletes") == "true" and self.done.row[_COUNTS[0]]:
            self.check()
            table.remove_dangling_deletes()
        return self.done

    def _fit(self, groups: Sequence[FileGroup]) -> list[FileGroup]:
        """The groups for this path: all or none where a second pass by Spark would take all of them again."""
        reasons = [group.unfit for group in groups if group.unfit is not None]
        self.done.unfit += dict.fromkeys(reasons)
        if reasons and self.step.options.get("rewrite-all") == "true":
            return []
        return [group for group in groups if group.unfit is None]

    def _waves(self, groups: Sequence[FileGroup]) -> Iterator[Sequence[FileGroup]]:
        """What is committed together: with partial progress as many parts as there may be commits."""
        partial_progress = self.step.options.get("partial-progress.enabled") == "true"
        waves = int(self.step.options.get("partial-progress.max-commits", "1")) if partial_progress else 1
        size = math.ceil(len(groups) / waves)
        for start in range(0, len(groups), size):
            yield groups[start : start + size]

    def _rewritten(self, table: IcebergTable, layout: Layout, groups: Sequence[FileGroup]) -> list[Done]:
        """The groups that were rewritten whole, with the entries of their outputs."""
        work = [one for number, group in enumerate(groups) for one in _bins(table, group, number, layout)]
        work.sort(key=lambda one: sum(piece.bytes for piece in one.pieces), reverse=True)
        tasks = self.session.sparkContext.parallelize(work, len(work))
        answers: list[Answer] = tasks.mapPartitions(partial(_task, layout)).collect()
        result: list[Done] = []
        for number, group in enumerate(groups):
            own = [answer for answer in answers if answer.group == number]
            entries = [entry for answer in own if isinstance(answer, Written) for entry in answer.files]
            if not any(isinstance(answer, Failed) for answer in own):
                result.append((group, entries))
                continue
            table.discard(str(entry["file-path"]) for entry in entries)
            for answer in own:
                if isinstance(answer, Failed):
                    (self.done.unfit if answer.unfit else self.done.failures).append(answer.why)
            if any(isinstance(answer, Failed) and not answer.unfit for answer in own):
                self.done.row["failed_data_files_count"] += len(group.files)
        return result

    def _commit(self, table: IcebergTable, groups: Sequence[Done]) -> None:
        if not groups:
            return
        self.check()
        sequence = self.step.options.get("use-starting-sequence-number") != "false"
        table.commit(groups, starting_sequence=sequence, job_id=self.job_id)
        self.done.row["rewritten_data_files_count"] += sum(len(group.files) for group, _ in groups)
        self.done.row["added_data_files_count"] += sum(len(entries) for _, entries in groups)

    def _layout(self, table: IcebergTable, groups: Sequence[FileGroup]) -> Layout:
        schema, location = table.schema, table.location
        by_keys = any(delete.equality_ids for group in groups for file in group.files for delete in file.deletes)
        found = Ordering.parse(self.step.sort_order) if self.step.sort_order else None
        fields = ordering_fields(schema, [column.name for column in found.columns]) if found else ()
        columns = found.columns if found else ()
        return Layout(
            location=location,
            schema=schema,
            older_fields=table.older_fields() if by_keys else {},
            properties=table.properties,
            lineage=table.lineage,
            order=tuple((n, c.descending, c.nulls_last) for (n, _), c in zip(fields, columns, strict=True)),
            zorder=found is not None and found.zorder,
            memory_bytes=self.step.memory_bytes,
            storage=table.storage() if local_path(location) is None else {},
        )


def _bins(table: IcebergTable, group: FileGroup, number: int, layout: Layout) -> Iterable[Bin]:
    parts = bins(group.files, outputs=group.outputs, split_bytes=group.split_bytes, whole=bool(layout.order))
    for index, (pieces, outputs) in enumerate(parts):
        yield Bin(number, tuple(pieces), group.constants, table.place(group, index), outputs)


def _task(layout: Layout, work: Iterable[Bin]) -> Iterator[Answer]:
    """In an executor."""
    from pyspark import TaskContext

    context = TaskContext.get()
    for one in work:
        yield rewrite(layout, one, context.taskAttemptId() if context else 0)
