"""Checks of tables' files by level: in the service, and with rows that Spark reads where there are many."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from icewright.adapters.engines.arrow.opening import service_opener
from icewright.adapters.engines.service.content_file import ContentFile
from icewright.adapters.engines.service.integrity import IntegrityCheck
from icewright.adapters.engines.service.row_faults import Answer, RowCheck
from icewright.adapters.engines.spark.engine import SparkEngine
from icewright.core.errors import EngineUnavailable
from icewright.core.integrity import CheckLevel, FileFaultKind, IntegrityReport
from icewright.core.operations.check import IN_SERVICE_BYTES
from icewright.core.policy import MEGABYTE, Operation
from icewright.core.runs import Outcome, committed
from icewright.core.steps import CheckFiles
from icewright.core.table import TableMetadata, TableRef
from icewright.core.words import count, in_shell
from icewright.ports import Catalog, StepRequest, TableFiles
from icewright.ports.work import WorkerThreads, progress

_CONCURRENCY = 4
_BIN_BYTES, _BIN_FILES = 256 * MEGABYTE, 500  # of a task of Spark
_AGAIN = 100  # files that executors cannot read and the service tries once more
_LISTED, _SHOWN = 100, 2  # faults in the notes and in the summary of a run
Load = Callable[[TableRef], TableMetadata]


@dataclass(frozen=True)
class Checking:
    """Checks the files of tables, as a step or without a job."""

    files: TableFiles
    spark: SparkEngine

    def run(self, catalog: Catalog, request: StepRequest, step: CheckFiles) -> Outcome:
        """Check the table, or say what would be read. A fault is a finding, and no failure of the step."""
        base = request.base
        rows = _Rows(self, base, f"icewright-{request.job_id}", request.check, by_spark=step.by_spark)
        check = IntegrityCheck(self.files, base, step.level, since=step.since, read_rows=rows.read)
        report = check.planned() if request.dry_run else check.run(catalog.load)
        metrics: dict[str, float] = {
            "files_checked": report.files,
            "snapshots_checked": report.snapshots,
            "files_read": report.read,
            "bytes_read": report.bytes_read,
            "files_unread": len(report.unread),
        }
        read = f"{count(report.files, 'file')} of {count(report.snapshots, 'snapshot')} at level {step.level}"
        if step.since is not None:
            read += f", of these what is newer than sequence number {step.since} by its content"
        if request.dry_run:
            return committed(Operation.CHECK, f"would check {read}", metrics)
        metrics |= {
            "faults_found": len(report.faults),
            "level": step.level.depth,
            "sequence_number": base.last_sequence_number,
            "full_hours": round(step.full_hours, 3),
            "gb_hours": rows.gb_hours,
        }
        more = len(report.faults) - _LISTED
        summary = "; ".join([count(len(report.faults), "fault"), *map(str, report.faults[:_SHOWN])])
        return committed(
            Operation.CHECK,
            f"checked {read}: {summary if report.faults else 'no fault'}",
            metrics,
            notes=(
                *map(str, report.faults[:_LISTED]),
                *(
                    [f"{more} more faults: `icewright check {in_shell(base.ref)} --level {step.level}`"]
                    if more > 0
                    else []
                ),
                *(f"not read: {path}: {why}" for path, why in sorted(report.unread.items())[:_LISTED]),
            ),
        )

    def report(self, metadata: TableMetadata, level: CheckLevel, load: Load) -> IntegrityReport:
        """Check a table without a job; Spark reads rows where there are many."""
        rows = _Rows(self, metadata, f"icewright-check-{metadata.table_uuid}", lambda: None)
        return IntegrityCheck(self.files, metadata, level, read_rows=rows.read).run(load)


@dataclass
class _Rows:
    """Reads the rows of a table's files."""

    checking: Checking
    base: TableMetadata
    tag: str
    require_held: Callable[[], None]
    by_spark: bool | None = None  # None: where the files are many
    gb_hours: float = field(default=0.0, init=False)

    def read(self, check: RowCheck, contents: Sequence[ContentFile]) -> Iterator[Answer]:
        """Yield what is found in each file."""
        numbered = list(enumerate(contents))
        large = sum(file.bytes for file in contents) > IN_SERVICE_BYTES
        if not (large if self.by_spark is None else self.by_spark):
            yield from self._in_service(check, numbered)
            return
        answers, self.gb_hours = self.checking.spark.read_rows(
            self.base, self.tag, self.require_held, check, _bins(numbered)
        )
        doubtful, errors = [], list[str]()
        for number, found, why in answers:
            if unreadable := [detail for kind, detail in found if kind == FileFaultKind.UNREADABLE]:
                doubtful.append((number, contents[number]))
                errors += unreadable
            else:
                yield number, found, why
        if len(doubtful) > _AGAIN:
            raise EngineUnavailable(f"{self.base.ref}: executors cannot read {len(doubtful)} files: {errors[0]}")
        yield from self._in_service(check, doubtful)  # what an executor cannot reach is no fault of the file

    def _in_service(self, check: RowCheck, files: Sequence[tuple[int, ContentFile]]) -> Iterator[Answer]:
        opener = service_opener(self.checking.files, self.base.location)

        def read(file: tuple[int, ContentFile]) -> Answer:
            self.require_held()
            (answer,) = check.answers(opener, [file])
            progress()
            return answer

        with WorkerThreads(_CONCURRENCY) as pool:
            yield from pool.map(read, files)


def _bins(files: Sequence[tuple[int, ContentFile]]) -> list[list[tuple[int, ContentFile]]]:
    """Return the files in groups, each of them for one task."""
    bins: list[list[tuple[int, ContentFile]]] = []
    size = _BIN_BYTES
    for number, file in files:
        if size >= _BIN_BYTES or len(bins[-1]) >= _BIN_FILES:
            bins.append([])
            size = 0
        bins[-1].append((number, file))
        size += file.bytes
    return bins
