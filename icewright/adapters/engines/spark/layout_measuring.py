"""Layouts measured: a sample is written in each on a branch, and Spark runs the filters over it.

The rows that come out of its scans say what Spark reads: Iceberg skips files by their bounds, row groups by bounds,
dictionaries and Bloom filters, and no pages. Bytes would say the same, but Iceberg's own storage clients do not count
them for Spark.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import islice
from typing import TYPE_CHECKING

from tenacity import Retrying, retry_if_exception_type, stop_after_attempt

from icewright.adapters.engines.arrow.iceberg import IcebergTable
from icewright.adapters.engines.arrow.rewriting import ArrowRewrite
from icewright.adapters.engines.failures import statement_failure
from icewright.adapters.engines.service.layout_sample import SampleBranch
from icewright.adapters.engines.service.row_predicate import RowPredicate
from icewright.adapters.engines.spark.pool import SparkPool, StatementFailed, StepResult, Work
from icewright.adapters.engines.spark.sql_filters import compared_columns, condition
from icewright.core.branches import on_branch
from icewright.core.errors import CommitConflict, Refused
from icewright.core.kernel import BLOOM_FILTER, DICTIONARY, bloom_properties, dictionary_properties
from icewright.core.layout import MEASURED_ON, LayoutReport, Measurement, RowLayout
from icewright.core.policy import MEGABYTE
from icewright.core.predicates import column_names, quoted
from icewright.core.rewriting import TASK_MEMORY
from icewright.core.steps import Kernel, RewriteDataFiles
from icewright.core.table import TableMetadata
from icewright.core.words import byte_size, count, decimal
from icewright.ports import Catalog, Clock, MeasureRequest, SetRefs

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LEAST_FILE = 64 << 10  # bytes: a smaller one is all footer
_MOST_COLUMNS, _ATTEMPTS = 3, 8  # columns with Bloom filters, and with dictionaries
_MOST_FILTERS = 50  # that run: each takes Spark a tenth of a second at least


def require_measurable(pool: SparkPool, metadata: TableMetadata) -> None:
    """Raise `Refused` where Spark cannot measure layouts, and `EngineUnavailable`."""
    pool.application()
    against = f"through Spark Connect nobody knows what is read ({pool.remote})" if pool.remote else pool.no_arrow()
    if against is not None:
        raise Refused(f"{metadata.ref}: no layout is measured: {against}")


@dataclass
class LayoutMeasuring:
    """Measurements on the sample of one table."""

    pool: SparkPool
    clock: Clock
    catalog: Catalog
    request: MeasureRequest
    sample: SampleBranch
    _spent: float = field(default=0.0, init=False)  # GB-hours
    _in_large_files: dict[RowLayout, tuple[Measurement, int]] = field(default_factory=dict, init=False)

    def run(self) -> LayoutReport:
        """Write the promising layouts, the best first, and measure each while GB-hours are left."""
        report = self.request.report
        queries = self._queries()
        self._timed(self.sample.snapshot_id, queries[:1])  # Spark loads and compiles what all queries need
        measured: dict[RowLayout | None, Measurement] = {None: self._measured(self.sample.snapshot_id, queries)}
        for layout in (*report.promising, *self._with_blooms(), *self._with_dictionaries()):
            if self._spent >= self.request.max_gb_hours:
                break
            if layout == layout.plain:
                measured[layout] = self._measured(self._written(layout, self.sample.share), queries)
            elif (measurement := self._filtered(layout, measured[layout.plain], queries)) is not None:
                measured[layout] = measurement
        if len(measured) == 1:
            raise Refused(
                f"{report.ref}: no layout was measured, as the files as they are took {decimal(self._spent)} GB-hours; "
                f"layout.measure_gb_hours is {self.request.max_gb_hours:g}"
            )
        trials = [replace(trial, measured=measured.get(trial.layout)) for trial in report.trials]
        predicted = {trial.layout: trial for trial in trials}  # filters in files are left out of predictions
        trials += [
            replace(predicted[layout.plain], layout=layout, measured=measurement)
            for layout, measurement in measured.items()
            if layout is not None and layout not in predicted
        ]
        summary = (
            f"{count(len(queries), 'filter')} on {count(self.sample.files, 'file')} of {byte_size(self.sample.bytes)}, "
            f"{decimal(self._spent)} GB-hours"
        )
        return replace(report, trials=tuple(trials), measuring=summary)

    def _queries(self) -> Sequence[str]:
        """Return the conditions of the filters that run, which are taken from all of the list."""
        names = column_names(self.sample.table.schema)
        return [condition(predicate.bound, names) for predicate in self._predicates]

    @cached_property
    def _predicates(self) -> Sequence[RowPredicate]:
        schema, filters = self.sample.table.schema, self.request.filters
        step = -(-len(filters) // _MOST_FILTERS)
        return [RowPredicate.of(text, [schema], "--filters") for text in filters[::step]]

    def _with_blooms(self) -> Iterator[RowLayout]:
        """Yield the promising layouts with Bloom filters of columns that filters compare for equality.

        The first column of a sort needs none.
        """
        for layout, columns in self._beside_orders(BLOOM_FILTER, only_equal=True):
            yield replace(layout, blooms=columns)

    def _with_dictionaries(self) -> Iterator[RowLayout]:
        """Yield the best order with dictionaries of columns that filters compare in any way, but a sort's first."""
        for layout, columns in islice(self._beside_orders(DICTIONARY, only_equal=False), 1):
            yield replace(layout, dictionaries=columns)

    def _beside_orders(self, named: str, *, only_equal: bool) -> Iterator[tuple[RowLayout, tuple[str, ...]]]:
        """Yield the promising orders with the columns that their filters compare and rows are not sorted by.

        Columns are left out of which a property of the table, that begins as `named`, says whether they have such.
        """
        used = Counter(n for p in self._predicates for n in compared_columns(p.bound, only_equal=only_equal))
        schema, properties = self.sample.table.schema, self.sample.table.properties
        names = {field["id"]: str(field["name"]) for field in schema["fields"]}  # without those in structs
        compared = [names[number] for number, _ in used.most_common() if number in names]
        usable = [name for name in compared if bloom_properties(schema, name) and f"{named}{name}" not in properties]
        for layout in self.request.report.promising:
            columns = [name for name in usable if layout.zorder or name != layout.columns[0]][:_MOST_COLUMNS]
            if columns and layout.is_plain:
                yield layout, tuple(columns)

    def _filtered(self, layout: RowLayout, plain: Measurement, queries: Sequence[str]) -> Measurement | None:
        """Return what is read where filters in files skip row groups, by the share of what is read without them.

        Both are found in files as large as the table's: in the small ones of a sample a value that all of the
        table's files have would be rare. None where the GB-hours are used up before both are known.
        """
        if layout.plain not in self._in_large_files:
            self._in_large_files[layout.plain] = self._in_large(layout.plain, queries)
        if self._spent >= self.request.max_gb_hours:
            return None
        (without, size), (chosen, encoded) = self._in_large_files[layout.plain], self._in_large(layout, queries)
        share = chosen.bytes_read / max(1, without.bytes_read) * min(1, encoded / size)
        seconds = plain.seconds * chosen.seconds / max(without.seconds, 0.001)
        return Measurement(round(plain.bytes_read * share), round(seconds, 3))

    def _in_large(self, layout: RowLayout, queries: Sequence[str]) -> tuple[Measurement, int]:
        """Return what the filters read of the sample in files as large as the table's, and the bytes of those."""
        written = self._written(layout, 1)
        (snapshot,) = (s for s in self.catalog.load(self.sample.table.ref).snapshots if s.snapshot_id == written)
        return self._measured(written, queries), int(snapshot.summary["added-files-size"])

    def _written(self, layout: RowLayout, share: float) -> int:
        """Write the sample in a layout, in files of this share of the table's; return the snapshot."""
        self._begin_at_sample()
        table, request = self.sample.table, self.request
        size = max(_LEAST_FILE, round((layout.target or request.report.target) * share))
        rows = max(1, self.sample.records * size // self.sample.bytes)  # of a file: by default a filter has a megabyte
        blooms = bloom_properties(table.schema, ", ".join(layout.blooms))
        dictionaries = dictionary_properties(table.schema, ", ".join(layout.dictionaries), table.properties)
        options = {
            "target-file-size-bytes": size,
            "min-file-size-bytes": size * 3 // 4,
            "max-file-size-bytes": size * 9 // 5,
            "max-file-group-size-bytes": max(10_240 * MEGABYTE, self.sample.bytes),
            "rewrite-all": "true",
        }
        step = RewriteDataFiles(
            strategy="sort",
            sort_order=f"zorder({layout.order})" if layout.zorder else layout.order,
            options={name: str(value) for name, value in options.items()},
            files=self.sample.files,
            bytes=self.sample.bytes,
            kernel=Kernel.ARROW,
            may_fall_back=False,
            memory_bytes=TASK_MEMORY.default * MEGABYTE,
            branch=MEASURED_ON,
            properties={**blooms, **{n.replace("-enabled.", "-ndv.", 1): str(rows) for n in blooms}, **dictionaries},
        )

        def rewrite(session: SparkSession) -> StepResult:
            iceberg = IcebergTable(session, table.ref, None, MEASURED_ON)
            done = ArrowRewrite(session, iceberg, step, request.job_id, request.check, lambda _: None).run()
            if trouble := (*done.unsupported, *done.failures, *done.conflicts):
                raise Refused(f"{table.ref}: {layout} cannot be measured: {trouble[0]}")
            return StepResult(())

        self._run(rewrite)
        return on_branch(self.catalog.load(table.ref), MEASURED_ON).current_snapshot_id or 0

    def _begin_at_sample(self) -> None:
        """Set the branch back: by the bytes of another layout a rewrite would make another number of files."""
        branch = next(ref for ref in self.sample.table.refs if ref.name == MEASURED_ON)
        retrying = Retrying(
            retry=retry_if_exception_type(CommitConflict),  # a writer of main was first
            stop=stop_after_attempt(_ATTEMPTS),
            sleep=self.clock.sleep,
            reraise=True,
        )
        retrying(lambda: self.catalog.commit(self.catalog.load(self.sample.table.ref), SetRefs((branch,))))

    def _measured(self, snapshot_id: int, queries: Sequence[str]) -> Measurement:
        """Return what the filters read of a snapshot, as much as all filters would of all of the table."""
        report, sample = self.request.report, self.sample
        answer, seconds = self._timed(snapshot_id, queries)
        share = (answer.rows_read or 0) / max(1, sample.records) / len(queries)
        return Measurement(round(share * report.most_bytes), round(seconds * report.filters / len(queries), 3))

    def _timed(self, snapshot_id: int, queries: Sequence[str]) -> tuple[StepResult, float]:
        table = ".".join(map(quoted, self.sample.table.ref.parts))
        seconds = 0.0

        def read(session: SparkSession) -> StepResult:
            nonlocal seconds
            since = self.clock.now()
            for query in queries:
                text = f"SELECT * FROM {table} VERSION AS OF {snapshot_id} WHERE {query}"  # noqa: S608 - rendered from its parse
                session.sql(text).write.format("noop").mode("overwrite").save()
            seconds = (self.clock.now() - since).total_seconds()
            return StepResult(())

        return self._run(read, count_rows=True), seconds

    def _run(self, work: Work, *, count_rows: bool = False) -> StepResult:
        request = self.request
        try:
            answer = self.pool.run(work, f"icewright-{request.job_id}", request.check, count_rows=count_rows)
        except StatementFailed as error:
            raise statement_failure(str(request.report.ref), str(error)) from error
        self._spent += answer.charge.gb_hours if answer.charge is not None else 0.0
        request.charge(self._spent)
        return answer
