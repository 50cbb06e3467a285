"""`rewrite_data_files` with Arrow tasks on Spark's executors instead of Spark SQL."""

from __future__ import annotations

import math
import threading
from base64 import b64decode
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import as_completed
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from icewright.adapters.engines.arrow.exchange import SortedGroup, sort_together
from icewright.adapters.engines.arrow.executors import is_remote, run_tasks, task_attempt
from icewright.adapters.engines.arrow.kernel import rewrite
from icewright.adapters.engines.arrow.table import FileGroup, FilesChanged, RewriteTable, RewrittenGroup
from icewright.adapters.engines.arrow.tasks import (
    Bin,
    BinFailed,
    BinResult,
    BinWritten,
    Layout,
    SortField,
    result_from_json,
    result_to_json,
    sort_fields,
    split_into_bins,
)
from icewright.adapters.engines.failures import PROCESS_DIED, is_conflict, is_death, root_cause
from icewright.core.errors import CommitConflict
from icewright.core.ordering import Ordering
from icewright.core.paths import local_path
from icewright.core.steps import RewriteDataFiles
from icewright.ports.work import WorkerThreads

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from icewright.adapters.engines.arrow.theta import RewrittenSketches  # hashes by what executors may not have

_DONE, _ADDED, _FAILED = "rewritten_data_files_count", "added_data_files_count", "failed_data_files_count"
GROUPS_LEFT = "file_groups_left_to_spark"
_MAX_CONFLICTS = 20  # after which the groups of a commit are divided no more


@dataclass
class RewriteResult:
    """Counts as the procedure returns them, and what was not rewritten."""

    row: dict[str, int] = field(default_factory=lambda: dict.fromkeys((_DONE, _ADDED, _FAILED), 0))
    failures: list[str] = field(default_factory=list)  # of files and tasks
    conflicts: list[str] = field(default_factory=list)  # of commits with concurrent writers
    unsupported: list[str] = field(default_factory=list)  # why groups are left to Spark's own engine

    @property
    def notes(self) -> tuple[str, ...]:
        """Return notes for the run record."""
        return (*self.failures, *(f"lost a commit to a writer: {error}" for error in self.conflicts))


@dataclass
class ArrowRewrite:
    """One rewrite of a table. `check` raises before a commit when the job is cancelled or its lease is lost."""

    session: SparkSession
    table: RewriteTable
    step: RewriteDataFiles
    job_id: str
    check: Callable[[], None]
    progress: Callable[[Mapping[str, int]], None]
    rewritten: RewrittenSketches | None = None  # gets those of the columns that the step counts
    result: RewriteResult = field(default_factory=RewriteResult)
    _counted: dict[frozenset[str], Sequence[Mapping[str, str]]] = field(default_factory=dict, init=False)  # by group
    _groups: int = field(default=0, init=False)
    _committed: int = field(default=0, init=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)  # waves run in threads

    def run(self) -> RewriteResult:
        """Rewrite the files that the step's options choose.

        Raises the errors of the table and of the JVM; earlier commits stay.
        """
        groups = self._supported(self.table.plan(self.step))
        if not groups:
            return self.result
        layout = self._layout(groups)
        self._groups, self._committed = len(groups), 0
        self.progress({"groups": self._groups, "groups_done": 0, "files": sum(len(group.files) for group in groups)})
        if self._option("partial-progress.enabled") == "true":
            self._run_in_waves(layout, groups)
        else:
            self._commit(self._rewrite_groups(layout, groups))
        if self._option("remove-dangling-deletes") == "true" and self.result.row[_DONE]:
            self.check()
            try:
                self.table.remove_dangling_deletes()
            except CommitConflict as error:  # the rewrite is committed; a later one removes them
                self.result.conflicts.append(str(error))
        return self.result

    def _option(self, option: str, default: str = "") -> str:
        return self.step.options.get(option, default)

    def _supported(self, groups: Sequence[FileGroup]) -> list[FileGroup]:
        """Return the groups that Arrow rewrites: all or none with `rewrite-all`, as Spark would rewrite all again."""
        reasons = [group.unsupported for group in groups if group.unsupported is not None]
        self._record_unsupported(reasons)
        if reasons and self._option("rewrite-all") == "true":
            return []
        return [group for group in groups if group.unsupported is None]

    def _run_in_waves(self, layout: Layout, groups: Sequence[FileGroup]) -> None:
        """Rewrite the groups in as many waves as there may be commits, and commit each wave when its tasks end.

        Raises once more waves have failed than `partial-progress.max-failed-commits` allows.
        """
        from py4j.protocol import Py4JError  # noqa: PLC0415 - the service starts without a JVM
        from pyspark import inheritable_thread_target
        from pyspark.errors import PySparkException

        size = math.ceil(len(groups) / int(self._option("partial-progress.max-commits", "1")))
        waves = [groups[start : start + size] for start in range(0, len(groups), size)]
        parallelism = int(self._option("max-concurrent-file-group-rewrites", "1"))
        rewrite_wave = partial(self._rewrite_groups, layout)
        if not is_remote(self.session):  # threads inherit the job tags, by which jobs are cancelled and measured
            rewrite_wave = inheritable_thread_target(self.session)(rewrite_wave)
        with WorkerThreads(parallelism, thread_name_prefix="wave") as threads:
            running = {threads.submit(rewrite_wave, wave_groups): wave_groups for wave_groups in waves}
            failed = 0
            for wave in as_completed(running):
                try:
                    self._commit(wave.result())
                except (PySparkException, Py4JError, CommitConflict) as error:
                    failed += 1
                    if failed > int(self._option("partial-progress.max-failed-commits", "0")):
                        threads.shutdown(cancel_futures=True)
                        raise
                    conflict = isinstance(error, CommitConflict) or is_conflict(str(error))
                    self._record_failure(running[wave], root_cause(str(error)), conflict=conflict)

    def _record_failure(self, groups: Sequence[FileGroup], error: str, *, conflict: bool = False) -> None:
        (self.result.conflicts if conflict else self.result.failures).append(error)
        self.result.row[_FAILED] += sum(len(group.files) for group in groups)

    def _rewrite_groups(self, layout: Layout, groups: Sequence[FileGroup]) -> list[RewrittenGroup]:
        """Return the completely rewritten groups with their outputs; delete the outputs of the others."""
        from py4j.protocol import Py4JError  # noqa: PLC0415 - the service starts without a JVM
        from pyspark.errors import PySparkException

        try:
            answers = self._rewrite_bins(layout, groups)
        except (PySparkException, Py4JError) as error:
            self.check()
            if is_death(str(error)):
                reason = PROCESS_DIED
            elif is_remote(self.session):  # whose executors may lack the storage's credentials, which Spark has
                reason = f"tasks failed on the Spark Connect server: {root_cause(str(error))}"
            else:
                raise
            self._record_unsupported([reason] * len(groups))
            return []
        by_group = ([answer for answer in answers if answer.group == number] for number in range(len(groups)))
        judged = [self._rewritten(group, own) for group, own in zip(groups, by_group, strict=True)]
        result = [rewritten for rewritten in judged if rewritten is not None]
        if self.result.unsupported and self._option("rewrite-all") == "true":  # Spark rewrites all groups again
            self.table.discard(str(entry["file-path"]) for _, entries in result for entry in entries)
            return []
        return result

    def _rewritten(self, group: FileGroup, answers: Sequence[BinWritten | BinFailed]) -> RewrittenGroup | None:
        """Return a group that is completely rewritten with its outputs; else delete these, record why, return None."""
        written = [answer for answer in answers if isinstance(answer, BinWritten)]
        failed = [answer for answer in answers if isinstance(answer, BinFailed)]
        entries = [entry for answer in written for entry in answer.files]
        count_error = None if failed else _row_count_error(group, written)
        if not failed and count_error is None:
            self._counted[_paths(group)] = [answer.sketches for answer in written if answer.files]
            return group, entries
        self.table.discard(str(entry["file-path"]) for entry in entries)
        self._record_unsupported([answer.error for answer in failed if answer.unsupported][:1])
        errors = [count_error] if count_error else [answer.error for answer in failed if not answer.unsupported]
        if errors:
            self._record_failure([group], "; ".join(errors))
        return None

    def _record_unsupported(self, reasons: Sequence[str]) -> None:
        """Record one reason for each group that Spark's own engine is to rewrite."""
        with self._lock:
            if reasons:
                self.result.row[GROUPS_LEFT] = self.result.row.get(GROUPS_LEFT, 0) + len(reasons)
            unsupported = self.result.unsupported
            unsupported += [reason for reason in dict.fromkeys(reasons) if reason not in unsupported]

    def _commit(self, groups: Sequence[RewrittenGroup]) -> None:
        """Commit the groups, or those that no writer has changed meanwhile.

        Raises `CommitConflict` when none is committed.
        """
        if not groups:
            return
        lost = self._commit_or_split(groups, iter(range(_MAX_CONFLICTS)))
        if lost and len(lost) == len(groups):
            raise lost[0][1]
        for (group, _), error in lost:
            self._record_failure([group], str(error), conflict=True)

    def _commit_or_split(
        self, groups: Sequence[RewrittenGroup], conflicts: Iterator[int]
    ) -> list[tuple[RewrittenGroup, CommitConflict]]:
        """Commit the groups, or each half of them when writers changed some; return those that conflict.

        Their outputs are deleted.
        """
        try:
            self._commit_beside_writers(groups)
        except CommitConflict as error:
            if not isinstance(error, FilesChanged) or len(groups) == 1 or next(conflicts, None) is None:
                self.table.discard(str(entry["file-path"]) for _, entries in groups for entry in entries)
                return [(group, error) for group in groups]
            half = len(groups) // 2
            return [lost for part in (groups[:half], groups[half:]) for lost in self._commit_or_split(part, conflicts)]
        self._keep_sketches(groups)
        self.result.row[_DONE] += sum(len(group.files) for group, _ in groups)
        self.result.row[_ADDED] += sum(len(entries) for _, entries in groups)
        self._committed += len(groups)
        files = {"files_rewritten": self.result.row[_DONE], "files_written": self.result.row[_ADDED]}
        self.progress({"groups": self._groups, "groups_done": self._committed, **files})
        return []

    def _keep_sketches(self, groups: Sequence[RewrittenGroup]) -> None:
        """Keep what the tasks counted of committed groups; nothing of those where a task could not."""
        if self.rewritten is None:
            return
        types = {field["id"]: field["type"] for field in self.table.schema["fields"]}
        wanted = self._counted_ids(self.table.schema)
        for group, _ in groups:
            parts = self._counted.pop(_paths(group), ())
            if wanted and parts and all(part.keys() == {str(number) for number in wanted} for part in parts):
                sketches = {(n, types[n]): [b64decode(part[str(n)]) for part in parts] for n in wanted}
                self.rewritten.keep(_paths(group), sketches)

    def _mostly_uncounted(self, groups: Sequence[FileGroup]) -> bool:
        """Return whether counting all rows costs less than reading the new ones again."""
        files = [file for group in groups for file in group.files]
        new = sum(file.bytes for file in files if file.sequence_number > self.step.counting.since)
        return 2 * new >= sum(file.bytes for file in files)

    def _counted_ids(self, schema: Mapping[str, Any]) -> tuple[int, ...]:
        wanted = self.step.counting.columns if self.step.branch is None else ()
        return tuple(field["id"] for field in schema["fields"] if field["name"] in wanted)

    def _commit_beside_writers(self, groups: Sequence[RewrittenGroup]) -> None:
        """Commit outputs as new as the commit; where writers changed the files' rows, as old as the plan.

        Newer outputs leave delete files behind that name none of them. Equality deletes that came after the plan,
        such as an upsert stream writes at each commit, apply to older outputs alone.
        """
        for starting_sequence in (False, True):
            self.check()
            try:
                return self.table.commit(groups, starting_sequence=starting_sequence, job_id=self.job_id)
            except FilesChanged:
                if starting_sequence:
                    raise
        return None

    def _layout(self, groups: Sequence[FileGroup]) -> Layout:
        table = self.table
        schema, location = table.schema, table.location
        by_keys = any(delete.equality_ids for group in groups for file in group.files for delete in file.deletes)
        table_order = table.sort_order
        order, zorder = self._order(schema, table_order[1] if table_order else ())
        return Layout(
            schema=schema,
            older_fields=table.older_fields() if by_keys else {},
            properties={**table.properties, **self.step.properties},
            has_row_ids=table.has_row_ids,
            order=order,
            zorder=zorder,
            sort_order_id=table_order[0] if table_order and table_order[1] == order and not zorder else 0,
            sorted_by=tuple(number for number, _, _ in table_order[1]) if table_order else (),
            memory_bytes=self.step.memory_bytes,
            storage=table.storage() if local_path(location) is None else {},
            counted=self._counted_ids(schema) if self._mostly_uncounted(groups) else (),
        )

    def _order(
        self, schema: Mapping[str, Any], table_order: tuple[SortField, ...]
    ) -> tuple[tuple[SortField, ...], bool]:
        """Return the step's sort order, else the table's, by which Spark sorts too; and whether it is a z-order."""
        if self.step.sort_order is None:
            return table_order, False
        ordering = Ordering.parse(self.step.sort_order)
        return sort_fields(schema, ordering), ordering.zorder

    def _rewrite_bins(self, layout: Layout, groups: Sequence[FileGroup]) -> list[BinResult]:
        """Rewrite the bins of the groups in Spark tasks; return the result of each bin."""
        bins, together = list[Bin](), list[SortedGroup]()
        for number, group in enumerate(groups):
            of_group, records = self._bins(group, number), sum(file.records for file in group.files)
            if self.step.sort_order is None or group.outputs == 1 or not records:
                bins += of_group
                continue
            prefixes = (self.table.output_prefix(group, index) for index in range(group.outputs))
            outputs = [Bin(number, (), group.constants, prefix, 1) for prefix in prefixes]
            together.append(SortedGroup(of_group, outputs, records, sum(file.bytes for file in group.files)))
        bins.sort(key=lambda task: sum(file_slice.bytes for file_slice in task.slices), reverse=True)
        work = partial(run_task, layout)
        answers = run_tasks(self.session, work, bins, result_to_json, result_from_json) if bins else []
        return [*answers, *(sort_together(self.session, layout, together) if together else ())]

    def _bins(self, group: FileGroup, number: int) -> list[Bin]:
        shares = split_into_bins(group.files, outputs=group.outputs, split_bytes=group.split_bytes)
        return [
            Bin(number, tuple(slices), group.constants, self.table.output_prefix(group, index), outputs)
            for index, (slices, outputs) in enumerate(shares)
        ]


def _row_count_error(group: FileGroup, written: Sequence[BinWritten]) -> str | None:
    """Return an error unless each row of the files was read once and each live row was written."""
    expected, read = sum(file.records for file in group.files), sum(answer.read for answer in written)
    if read != expected:
        return f"{read} rows were read of files that have {expected}, the first of them {group.files[0].path}"
    retained = sum(answer.read - answer.deleted for answer in written)
    written_rows = sum(int(entry["record-count"]) for answer in written for entry in answer.files)
    return (
        None
        if written_rows == retained
        else f"{written_rows} rows were written of {retained}, the first of {group.files[0].path}"
    )


def _paths(group: FileGroup) -> frozenset[str]:
    return frozenset(file.path for file in group.files)


def run_task(layout: Layout, bins: Iterable[Bin]) -> Iterator[BinResult]:
    """Rewrite each bin of a Spark task."""
    for task in bins:
        yield rewrite(layout, task, task_attempt())
