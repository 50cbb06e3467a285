"""Advice on what no maintenance fixes: partitions that are too small, and writers that commit too often or too little.

Advice comes from the facts of a table and the summaries of its snapshots alone, and changes nothing. What following it
does is simulated.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from itertools import islice, pairwise
from statistics import median
from typing import TYPE_CHECKING

from icewright.core.partitions import small_partitions
from icewright.core.runs import JOB_ID
from icewright.core.table import PartitionField, Snapshot, TableFacts
from icewright.core.words import byte_size, count, decimal
from icewright.core.writer_state import summary_number, writer_name

if TYPE_CHECKING:
    from icewright.core.simulation.habits import DayCost

_RECENT = 500  # of the newest commits of writers that are looked at
_LEAST_COMMITS, _LEAST_TIME = 10, timedelta(minutes=2)  # of one writer, before its habits are known: no burst tells
_OFTEN, _CALM = timedelta(minutes=2), timedelta(minutes=10)
_SPREAD = 2  # files of one commit in a partition from which on the rows were not gathered before writing
_METADATA_FILES = 100  # a day
_APPLICATION, _SHOWN = "app-id", 40  # of Spark in a summary; characters of it that people see
_DELETE_METADATA = "write.metadata.delete-after-commit.enabled"
_COARSER = {"hour": "day", "day": "month", "month": "year"}
_INTERVALS = {
    "Flink": "raise execution.checkpointing.interval",
    "Spark": "raise the trigger's processing time",
    "Kafka": "raise iceberg.control.commit.interval-ms",
}

_Habit = tuple[float, float, float]  # of a writer: seconds between its commits, files and bytes of one


class AdviceKind(StrEnum):
    """The kinds of problems with a table's shape or its writers."""

    OVER_PARTITIONED = "over_partitioned"
    FREQUENT_COMMITS = "frequent_commits"
    SMALL_FILES = "small_files"
    METADATA_FILES = "metadata_files"


@dataclass(frozen=True, slots=True)
class Advice:
    """One thing to change outside of Icewright: what was seen, what to do, and what comes of it."""

    kind: AdviceKind
    writer: str  # blank where it concerns the table
    finding: str
    remedy: str
    effect: str
    simulated: SimulatedEffect | None = None


@dataclass(frozen=True, slots=True)
class SimulatedEffect:
    """A day by the default policy as things are, and as advised: of the writer alone, or of readers alone."""

    average_files: float
    gb_hours: float  # of maintenance and of readers
    advised_average_files: float
    advised_gb_hours: float

    def __str__(self) -> str:
        """Return the comparison in words."""
        return (
            f"{self.advised_average_files:.0f} files to open on average instead of "
            f"{self.average_files:.0f}, and {decimal(self.advised_gb_hours)} GB-hours of maintenance and reads "
            f"instead of {decimal(self.gb_hours)}"
        )


def advise(facts: TableFacts) -> tuple[Advice, ...]:
    """Return the advice on a table, that on its partitions first."""
    writes = (s for s in reversed(facts.metadata.snapshots) if s.operation != "replace" and JOB_ID not in s.summary)
    newest = sorted(islice(writes, _RECENT), key=lambda s: s.timestamp)
    by_writer: dict[str, list[Snapshot]] = defaultdict(list)
    applications = Counter(snapshot.summary.get(_APPLICATION, "") for snapshot in newest)
    for snapshot in newest:
        by_writer[_writer(snapshot, applications)].append(snapshot)
    habits = {name: commits for name, commits in by_writer.items() if _is_habit(commits)}
    advice = [*_partitions(facts), *_metadata_files(facts, newest)]
    for writer, commits in sorted(habits.items()):
        advice += [*_commits(facts, writer, commits), *_spread(facts, writer, commits)]
    return tuple(advice)


def _writer(snapshot: Snapshot, applications: Counter[str]) -> str:
    """Return who wrote a snapshot: an application of Spark by its id, where it commits often enough to have habits."""
    name, application = writer_name(snapshot), snapshot.summary.get(_APPLICATION, "")
    if name == "Spark" and application and applications[application] >= _LEAST_COMMITS:
        return f"Spark application {application[:_SHOWN]}"
    return name


def _is_habit(commits: Sequence[Snapshot]) -> bool:
    return len(commits) >= _LEAST_COMMITS and commits[-1].timestamp - commits[0].timestamp >= _LEAST_TIME


def _partitions(facts: TableFacts) -> Iterator[Advice]:
    """Partitions that stay below a quarter of the target size, even with one file each."""
    small, target = small_partitions(facts), facts.thresholds.target_bytes
    if small is None:
        return
    from icewright.core.simulation.habits import shape_cost

    files = max(1, round(small.bytes / target))
    simulated = _compared(shape_cost(small.partitions, small.files, small.bytes), shape_cost(1, files, small.bytes))
    fields = next((s.fields for s in facts.metadata.specs if s.spec_id == small.spec_id), ())
    yield Advice(
        AdviceKind.OVER_PARTITIONED,
        "",
        f"{small.partitions} partitions hold {byte_size(small.bytes / small.partitions)} each, and the target of a "
        f"file is {byte_size(target)}: no rewrite merges files across partitions",
        f"partition more coarsely: {' and '.join(map(_coarser, fields)) or 'use fewer partitions'}; then rewrite the "
        "old data, as files keep the spec that they were written with",
        f"about {count(files, 'file')} instead of at least {small.partitions}; "
        f"in a simulated day of readers {simulated}",
        simulated,
    )


def _coarser(field: PartitionField) -> str:
    """Return the next coarser transform of a partition field, or the advice to do without the field."""
    name, _, width = field.transform.partition("[")
    if name in _COARSER:
        return f"{_COARSER[name]}s of {field.name} instead of {name}s"
    if name == "bucket":
        return f"fewer buckets of {field.name} than {width.rstrip(']')}"
    return f"{field.name} as a sort column, or in buckets"


def _commits(facts: TableFacts, writer: str, commits: Sequence[Snapshot]) -> Iterator[Advice]:
    """A writer that commits every few seconds, and less than a file's worth of data each time."""
    gaps = [(b.timestamp - a.timestamp).total_seconds() for a, b in pairwise(commits)]
    every, size = median(gaps), _median(commits, "added-files-size")
    if every > _OFTEN.total_seconds() or size >= facts.thresholds.target_bytes:
        return
    factor = _CALM.total_seconds() / max(every, 1.0)
    files = _median(commits, "added-data-files")
    simulated = _simulated(facts, (every, files, size), (_CALM.total_seconds(), files, size * factor))
    how = next((how for engine, how in _INTERVALS.items() if writer.startswith(engine)), "commit larger batches")
    yield Advice(
        AdviceKind.FREQUENT_COMMITS,
        writer,
        f"commits every {every:.0f} s, {byte_size(size)} each (medians of {len(commits)} commits)",
        f"{how} to {_CALM.total_seconds() / 60:.0f} minutes, or as far as readers can wait",
        f"{86_400 / _CALM.total_seconds():.0f} commits a day instead of {86_400 / max(every, 1.0):.0f}, and files "
        f"{factor:.0f} times as large before any compaction; in a simulated day of this writer {simulated}",
        simulated,
    )


def _spread(facts: TableFacts, writer: str, commits: Sequence[Snapshot]) -> Iterator[Advice]:
    """A writer whose tasks each write a small file into the same partitions."""
    files, size = _median(commits, "added-data-files"), _median(commits, "added-files-size")
    partitions = max(1.0, _median(commits, "changed-partition-count"))
    if files < max(_SPREAD * partitions, 1) or size / files >= facts.thresholds.min_bytes:
        return
    needed = max(partitions, size / facts.thresholds.target_bytes)
    every = median((b.timestamp - a.timestamp).total_seconds() for a, b in pairwise(commits))
    simulated = _simulated(facts, (every, files, size), (every, needed, size))
    yield Advice(
        AdviceKind.SMALL_FILES,
        writer,
        f"writes {files:.0f} files of {byte_size(size / files)} into {count(round(partitions), 'partition')} "
        f"with each commit (medians of {len(commits)} commits)",
        "set write.distribution-mode to hash, so that the rows of a partition are gathered before they are written",
        f"about {count(round(needed), 'file')} a commit instead of {files:.0f}; "
        f"in a simulated day of this writer {simulated}",
        simulated,
    )


def _simulated(facts: TableFacts, now: _Habit, advised: _Habit) -> SimulatedEffect:
    """Return the simulated cost of both habits in a table that is partitioned like this one."""
    from icewright.core.simulation.habits import Habit, habit_cost
    from icewright.core.simulation.trace import layout_of

    before, after = (habit_cost(Habit(*habit), layout_of(facts.metadata)) for habit in (now, advised))
    return _compared(before, after)


def _compared(before: DayCost, after: DayCost) -> SimulatedEffect:
    return SimulatedEffect(before.average_files, before.gb_hours, after.average_files, after.gb_hours)


def _metadata_files(facts: TableFacts, commits: Sequence[Snapshot]) -> Iterator[Advice]:
    """Metadata files that nobody deletes, as the property that lets writers do so is not set."""
    if not _is_habit(commits) or facts.metadata.properties.get(_DELETE_METADATA, "").lower() == "true":
        return
    a_day = (len(commits) - 1) / ((commits[-1].timestamp - commits[0].timestamp) / timedelta(days=1))
    if a_day < _METADATA_FILES:
        return
    yield Advice(
        AdviceKind.METADATA_FILES,
        "",
        f"{a_day:.0f} commits a day leave as many metadata files, {byte_size(facts.metadata.metadata_length)} each now",
        f"set {_DELETE_METADATA} to true, so that each commit deletes the oldest one of its log",
        f"{byte_size(a_day * facts.metadata.metadata_length)} a day that no orphan removal has to find",
    )


def _median(commits: Iterable[Snapshot], name: str) -> float:
    return median(summary_number(snapshot, name) for snapshot in commits)
