"""`rewrite_data_files` with tasks of ours in the place of Spark's rows."""

from __future__ import annotations

import gc
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from functools import cache, partial
from typing import TYPE_CHECKING, Any
from zipimport import zipimporter

from icewright.adapters.engines.arrow.group import Answer, Bin, Failed, Layout, SortField, Written, bins
from icewright.adapters.engines.arrow.kernel import rewrite
from icewright.adapters.engines.arrow.table import Done, FileGroup, RewriteTable
from icewright.adapters.engines.failures import is_conflict, telling
from icewright.core.errors import CommitConflict
from icewright.core.ordering import Ordering
from icewright.core.paths import local_path
from icewright.core.sortedness import ordering_fields
from icewright.core.steps import RewriteDataFiles

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_DONE, _ADDED, _FAILED = "rewritten_data_files_count", "added_data_files_count", "failed_data_files_count"


@dataclass
class Rewritten:
    """What came of it, counted as the procedure does."""

    row: dict[str, int] = field(default_factory=lambda: dict.fromkeys((_DONE, _ADDED, _FAILED), 0))
    failures: list[str] = field(default_factory=list)  # files and tasks at fault
    conflicts: list[str] = field(default_factory=list)  # commits that writers were quicker than
    unfit: list[str] = field(default_factory=list)  # why groups are left to Spark's own path

    @property
    def notes(self) -> tuple[str, ...]:
        """Return notes for the run record."""
        return (*self.failures, *(f"lost a commit to a writer: {why}" for why in self.conflicts))


@dataclass
class ArrowRewrite:
    """One call. `check` is asked before each commit."""

    session: SparkSession
    table: RewriteTable
    step: RewriteDataFiles
    job_id: str
    check: Callable[[], None]
    progress: Callable[[Mapping[str, int]], None]
    done: Rewritten = field(default_factory=Rewritten)
    _groups: int = field(default=0, init=False)
    _committed: int = field(default=0, init=False)

    def run(self) -> Rewritten:
        """Rewrite what the step's options choose.

        Raises what the table raises, and what the JVM does; what was committed before stays.
        """
        groups = self._fit(self.table.plan(self.step))
        if not groups:
            return self.done
        layout = self._layout(groups)
        self._groups, self._committed = len(groups), 0
        self.progress({"groups": self._groups, "groups_done": 0, "files": sum(len(group.files) for group in groups)})
        if self._said("partial-progress.enabled") == "true":
            self._by_waves(layout, groups)
        else:
            self._commit(self._rewritten(layout, groups))
        if self._said("remove-dangling-deletes") == "true" and self.done.row[_DONE]:
            self.check()
            self.table.remove_dangling_deletes()
        return self.done

    def _said(self, option: str, default: str = "") -> str:
        return self.step.options.get(option, default)

    def _fit(self, groups: Sequence[FileGroup]) -> list[FileGroup]:
        """Return the groups for this path: all or none where a second pass by Spark would take all of them again."""
        reasons = [group.unfit for group in groups if group.unfit is not None]
        self.done.unfit += dict.fromkeys(reasons)
        if reasons and self._said("rewrite-all") == "true":
            return []
        return [group for group in groups if group.unfit is None]

    def _by_waves(self, layout: Layout, groups: Sequence[FileGroup]) -> None:
        """As many waves as there may be commits, some at a time, each committed when it is done.

        Raises once more waves have failed than may; what fails less often is told.
        """
        from py4j.protocol import Py4JError  # noqa: PLC0415 - the service starts without a JVM
        from pyspark import inheritable_thread_target
        from pyspark.errors import PySparkException

        size = math.ceil(len(groups) / int(self._said("partial-progress.max-commits", "1")))
        waves = [groups[start : start + size] for start in range(0, len(groups), size)]
        at_a_time = int(self._said("max-concurrent-file-group-rewrites", "1"))
        # with the tags of this thread, by which the jobs are stopped and counted
        rewritten = inheritable_thread_target(self.session)(partial(self._rewritten, layout))
        with ThreadPoolExecutor(at_a_time, thread_name_prefix="wave") as threads:
            running = {threads.submit(rewritten, wave): wave for wave in waves}
            failed = 0
            for one in as_completed(running):
                try:
                    self._commit(one.result())
                except (PySparkException, Py4JError, CommitConflict) as error:
                    failed += 1
                    if failed > int(self._said("partial-progress.max-failed-commits", "0")):
                        threads.shutdown(cancel_futures=True)
                        raise
                    conflict = isinstance(error, CommitConflict) or is_conflict(str(error))
                    self._failed(running[one], telling(str(error)), conflict=conflict)

    def _failed(self, groups: Sequence[FileGroup], why: str, *, conflict: bool = False) -> None:
        (self.done.conflicts if conflict else self.done.failures).append(why)
        self.done.row[_FAILED] += sum(len(group.files) for group in groups)

    def _rewritten(self, layout: Layout, groups: Sequence[FileGroup]) -> list[Done]:
        """The groups that were rewritten whole, with the entries of their outputs; outputs of others are removed."""
        work = [one for number, group in enumerate(groups) for one in self._bins(group, number)]
        work.sort(key=lambda one: sum(piece.bytes for piece in one.pieces), reverse=True)
        tasks = self.session.sparkContext.parallelize(work, len(work))
        answers: list[Answer] = tasks.mapPartitions(partial(_task, layout)).collect()
        result: list[Done] = []
        for number, group in enumerate(groups):
            written = [one for one in answers if one.group == number and isinstance(one, Written)]
            failed = [one for one in answers if one.group == number and isinstance(one, Failed)]
            entries = [entry for one in written for entry in one.files]
            miscounted = None if failed else _miscounted(group, written)
            if not failed and miscounted is None:
                result.append((group, entries))
                continue
            self.table.discard(str(entry["file-path"]) for entry in entries)
            self.done.unfit += [one.why for one in failed if one.unfit]
            broken = [miscounted] if miscounted else [one.why for one in failed if not one.unfit]
            if broken:
                self._failed([group], "; ".join(broken))
        if self.done.unfit and self._said("rewrite-all") == "true":  # Spark takes all of them again
            self.table.discard(str(entry["file-path"]) for _, entries in result for entry in entries)
            return []
        return result

    def _commit(self, groups: Sequence[Done]) -> None:
        if not groups:
            return
        self.check()
        sequence = self._said("use-starting-sequence-number") != "false"
        self.table.commit(groups, starting_sequence=sequence, job_id=self.job_id)
        self.done.row[_DONE] += sum(len(group.files) for group, _ in groups)
        self.done.row[_ADDED] += sum(len(entries) for _, entries in groups)
        self._committed += len(groups)
        files = {"files_rewritten": self.done.row[_DONE], "files_written": self.done.row[_ADDED]}
        self.progress({"groups": self._groups, "groups_done": self._committed, **files})

    def _layout(self, groups: Sequence[FileGroup]) -> Layout:
        table = self.table
        schema, location = table.schema, table.location
        by_keys = any(delete.equality_ids for group in groups for file in group.files for delete in file.deletes)
        own = table.sort_order
        order, zorder = self._order(schema, own[1] if own else ())
        return Layout(
            schema=schema,
            older_fields=table.older_fields() if by_keys else {},
            properties=table.properties,
            lineage=table.lineage,
            order=order,
            zorder=zorder,
            sort_order_id=own[0] if own and own[1] == order and not zorder else 0,
            sorted_by=tuple(number for number, _, _ in own[1]) if own else (),
            memory_bytes=self.step.memory_bytes,
            storage=table.storage() if local_path(location) is None else {},
        )

    def _order(self, schema: Mapping[str, Any], own: tuple[SortField, ...]) -> tuple[tuple[SortField, ...], bool]:
        """The step's order, else the table's own, as Spark sorts what it merges too; and whether it is a z-order."""
        if self.step.sort_order is None:
            return own, False
        said = Ordering.parse(self.step.sort_order)
        fields = ordering_fields(schema, [column.name for column in said.columns])
        both = zip(fields, said.columns, strict=True)
        return tuple((number, c.descending, c.nulls_last) for (number, _), c in both), said.zorder

    def _bins(self, group: FileGroup, number: int) -> Iterable[Bin]:
        whole = self.step.sort_order is not None
        parts = bins(group.files, outputs=group.outputs, split_bytes=group.split_bytes, whole=whole)
        for index, (pieces, outputs) in enumerate(parts):
            yield Bin(number, tuple(pieces), group.constants, self.table.place(group, index), outputs)


def _miscounted(group: FileGroup, written: Sequence[Written]) -> str | None:
    """Return what does not add up: each row of the files was read once, and each that no delete names was written."""
    had, read = sum(file.records for file in group.files), sum(one.read for one in written)
    if read != had:
        return f"{read} rows were read of files that have {had}, the first of them {group.files[0].path}"
    kept = sum(one.read - one.deleted for one in written)
    wrote = sum(int(entry["record-count"]) for one in written for entry in one.files)
    return None if wrote == kept else f"{wrote} rows were written of {kept}, the first of {group.files[0].path}"


def _task(layout: Layout, work: Iterable[Bin]) -> Iterator[Answer]:
    """In an executor."""
    from pyspark import TaskContext

    context = TaskContext.get()
    for one in work:
        yield rewrite(layout, one, context.taskAttemptId() if context else 0)
    _keep_modules()
    _forget_archives()


@cache
def _keep_modules() -> None:
    """Once in each worker: Spark collects garbage after every task, and modules are none."""
    gc.freeze()


def _forget_archives() -> None:
    """Python's path has PySpark as a zip and jars, whose directories Spark lets Python read anew before every task.

    That takes longer than a small task; what is not remembered is not read again until something is imported from it.
    """
    for name, finder in list(sys.path_importer_cache.items()):
        if isinstance(finder, zipimporter):
            del sys.path_importer_cache[name]
