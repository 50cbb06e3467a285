"""The steps of maintenance, a closed union. A step is data: `explain` prints it, and an engine runs it."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from typing import assert_never

from icewright.core.integrity import CheckLevel
from icewright.core.partitions import PartitionKey
from icewright.core.policy import Operation
from icewright.core.recovery import RecoveryPoint
from icewright.core.table import ManifestContent, ManifestFile, PartitionSpec


@dataclass(frozen=True, slots=True)
class RetainedSnapshot:
    """A snapshot older than the retention that stays, and who keeps it."""

    snapshot_id: int
    by: str


@dataclass(frozen=True, slots=True)
class ExpireRows:
    """Delete the rows of before a day: whole files from the metadata where that is enough, else by rewriting."""

    where: str
    column: str
    before: date
    field_id: int
    ticks: int  # the day as bounds of the column say it
    partitions: tuple[PartitionKey, ...]  # which hold such rows


class Kernel(enum.StrEnum):
    """The engine that reads and writes the rows of a rewrite."""

    ARROW = "arrow"
    SPARK = "spark"


@dataclass(frozen=True, slots=True)
class Counting:
    """Columns whose distinct values a rewrite by Arrow counts on its way, where most of what it reads is new."""

    columns: tuple[str, ...] = ()
    since: int = 0  # sequence number of the newest snapshot whose rows are counted


@dataclass(frozen=True, slots=True)
class RewriteDataFiles:
    """Merge data files and apply their deletes, as Spark's `rewrite_data_files` does."""

    where: str | None = None  # says the partitions; None: all of them
    user_where: str | None = None  # what a policy adds: free text, checked before it is used
    strategy: str = "binpack"
    sort_order: str | None = None
    options: Mapping[str, str] = field(default_factory=dict)
    partitions: tuple[PartitionKey, ...] = ()  # the partitions that `where` names
    by_deletes: bool = False  # files with deletes are rewritten whatever their size
    files: int = 0  # candidates as counted, for people and for cost
    bytes: int = 0
    kernel: Kernel = Kernel.SPARK
    may_fall_back: bool = True  # to Spark's path for what Arrow turns out not to do
    memory_bytes: int = 0  # of a task of the Arrow kernel
    branch: str | None = None  # None: main
    counting: Counting = Counting()
    properties: Mapping[str, str] = field(default_factory=dict)  # before the table's own, where Arrow writes


@dataclass(frozen=True, slots=True)
class RewritePositionDeletes:
    """Merge position delete files and drop dangling ones, by Spark's `rewrite_position_delete_files`."""

    where: str | None
    options: Mapping[str, str]
    partitions: tuple[PartitionKey, ...]
    files: int


@dataclass(frozen=True, slots=True)
class ConvertEqualityDeletes:
    """Write what equality deletes name as deletion vectors (v3) or position deletes (v2), and leave the data as is."""

    partitions: tuple[PartitionKey, ...]  # whose equality deletes are converted; those of no partition are too
    files: int  # equality delete files as counted, for people and for cost
    memory_bytes: int


@dataclass(frozen=True, slots=True)
class RewriteManifests:
    """Merge and split manifests of data or of delete files, clustered by partition."""

    chosen: tuple[tuple[int, ManifestContent], ...]  # spec ids with contents
    target_bytes: int
    by_spark: bool
    use_caching: bool
    sort_by: tuple[str, ...] = ()  # partition fields that cluster the entries; none: all, in the order of the spec
    check_totals: bool = True

    @property
    def spec_ids(self) -> tuple[int, ...]:
        """Return the specs of the chosen manifests, each once."""
        return tuple(dict.fromkeys(spec_id for spec_id, _ in self.chosen))

    def takes(self, manifest: ManifestFile) -> bool:
        """Return whether the manifest is one of those that are rewritten; Spark takes all of a spec."""
        key = (manifest.spec_id, manifest.content)
        return manifest.spec_id in self.spec_ids if self.by_spark else key in self.chosen

    def fields_of(self, spec: PartitionSpec) -> tuple[str, ...]:
        """Return the fields of `sort_by` that the spec has; none when it lacks one of them."""
        names = {field.name for field in spec.fields}
        return self.sort_by if names.issuperset(self.sort_by) else ()


@dataclass(frozen=True, slots=True)
class ComputeStatistics:
    """Count the distinct values of columns, and the files and rows of partitions, of one snapshot."""

    snapshot_id: int
    columns: tuple[str, ...]  # top-level columns; none: no distinct values are counted
    partitions: bool
    memory_bytes: int  # for the pages of a data file


@dataclass(frozen=True, slots=True)
class TagRecoveryPoints:
    """Make and retire tags on states of the table, in one commit."""

    make: tuple[RecoveryPoint, ...]
    retire: tuple[RecoveryPoint, ...]


@dataclass(frozen=True, slots=True)
class ExpireSnapshots:
    """Remove snapshots and refs from the metadata, then the files that only they reached."""

    snapshot_ids: tuple[int, ...]
    remove_refs: tuple[str, ...]
    delete_files: bool
    max_concurrent_deletes: int
    by_spark: bool
    check_totals: bool = True  # a manifest list names as many files as its snapshot's summary counts
    clean_metadata: bool = False  # specs and schemas that nothing kept uses go too
    retained: tuple[RetainedSnapshot, ...] = ()  # old snapshots that stay, each with what retains it
    losses: tuple[str, ...] = ()  # what streaming writers and readers that pinned nothing lose, as sentences
    outside: bool = False  # files go too that lie in nobody's place, outside the table's own
    delay: timedelta = timedelta(0)  # between the commit and the deletion of files


@dataclass(frozen=True, slots=True)
class RemoveOrphans:
    """Find files under the table's location that nothing reaches; delete them as far as the mode allows."""

    older_than: datetime
    mode: str
    confirm_before: datetime  # mode confirm: a first finding counts when it is older than this
    equal_schemes: Mapping[str, str]
    equal_authorities: Mapping[str, str]
    max_delete_ratio: float
    max_concurrent_deletes: int
    inventory: str | None  # listed in place of the storage
    every_hours: int = 0  # the cadence by which it ran, for the record
    max_files: int = 1_000_000  # of one run; the rest waits for the next
    check_totals: bool = True
    delay: timedelta = timedelta(0)  # between the scan and the deletion of files
    prefix_mismatch: str = "error"  # stops the scan; `ignore`: such files stay


@dataclass(frozen=True, slots=True)
class CheckFiles:
    """Check that the files of all snapshots exist and are what their entries say."""

    level: CheckLevel
    since: int | None  # sequence number up to which an earlier check as deep found no fault; None: all is read
    full_hours: float  # how old the last check that read all will be then; 0: this one reads all
    by_spark: bool  # rows are read by tasks of Spark


Step = (
    ExpireRows
    | RewriteDataFiles
    | RewritePositionDeletes
    | ConvertEqualityDeletes
    | RewriteManifests
    | ComputeStatistics
    | TagRecoveryPoints
    | ExpireSnapshots
    | RemoveOrphans
    | CheckFiles
)


@dataclass(frozen=True, slots=True)
class Work:
    """The steps that one operation would run on one table now."""

    operation: Operation
    steps: tuple[Step, ...]
    notes: tuple[str, ...] = field(default=())


@dataclass(frozen=True, slots=True)
class Factors:
    """The factors by which past runs correct predictions."""

    cost: float = 1.0
    benefit: float = 1.0


@dataclass(frozen=True, slots=True)
class Due:
    """The operation is worth doing now. `benefit` is in MB of scan work saved, `cost` in GB-hours."""

    work: Work
    benefit: float
    cost: float
    why: str
    files: float = 0.0  # that readers, listings and bills meet no more, where a run says afterwards how many they were
    per_file: float = 0.0  # what each of them is of the benefit
    factors: Factors = Factors()  # are in the numbers already
    value: float | None = None  # GB-hours that readers are spared; None where an operation is worth any cost
    grows_from: datetime | None = None  # since when its value grows with time alone; None: it does not
    postponed: NotDue | None = None  # why it does not begin by itself yet; a manual request begins it all the same
    warnings: tuple[str, ...] = ()  # of what it will take from others, for an alert


@dataclass(frozen=True, slots=True)
class NotDue:
    """Nothing to do; `revisit` is when time alone may change that."""

    reason: str
    revisit: datetime | None = None
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()  # those of the notes that are of what expiry will take from others, for an alert


@dataclass(frozen=True, slots=True)
class Blocked:
    """A setting, a safety rule or another job forbids the operation now."""

    reason: str


@dataclass(frozen=True, slots=True)
class Unsupported:
    """The operation does not support such a table."""

    reason: str


SWITCHED_OFF = "enabled is false"  # in the reason of an operation that is blocked by choice, which needs no attention

Verdict = Due | NotDue | Blocked | Unsupported

VERDICT_NAMES: Mapping[type, str] = {Due: "due", NotDue: "not_due", Blocked: "blocked", Unsupported: "unsupported"}


def on_pool(step: Step) -> bool:
    """Return whether Spark does the step; else the service itself."""
    match step:
        case ExpireRows() | RewriteDataFiles() | RewritePositionDeletes():
            return True
        case RewriteManifests(by_spark=by_spark) | ExpireSnapshots(by_spark=by_spark) | CheckFiles(by_spark=by_spark):
            return by_spark
        case ConvertEqualityDeletes() | ComputeStatistics() | TagRecoveryPoints() | RemoveOrphans():
            return False
    assert_never(step)


def moves_main(step: Step) -> bool:
    """Return whether the step commits a snapshot to main."""
    match step:
        case RewriteDataFiles(branch=branch):
            return branch is None
        case ExpireRows() | RewritePositionDeletes() | ConvertEqualityDeletes() | RewriteManifests():
            return True
        case ComputeStatistics() | TagRecoveryPoints() | ExpireSnapshots() | RemoveOrphans() | CheckFiles():
            return False
    assert_never(step)


def why(verdict: Verdict) -> str:
    """Return the verdict's reason in words."""
    return verdict.why if isinstance(verdict, Due) else verdict.reason
