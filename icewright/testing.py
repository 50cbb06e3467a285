"""Fakes of the ports and builders of facts, for our tests and for those of whoever builds on Icewright.

Builders have defaults, and take every field by keyword; fakes keep the semantics that `icewright.ports` promises.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any, assert_never

from icewright.core import table
from icewright.core.effective import Knobs
from icewright.core.errors import CommitConflict, IcewrightError, MetadataUnreadable, Refused, TableNotFound
from icewright.core.layering import Policy, parse_settings
from icewright.core.policy import MEGABYTE
from icewright.core.runs import Outcome, committed
from icewright.core.simulation.scenario import policy_failures, read_policy_tests
from icewright.core.verdicts import thresholds
from icewright.core.verify import snapshot_of
from icewright.ports.engine import Adoptable, Probe, StepRequest, Unfinished
from icewright.ports.lake import AddSnapshot, Change, Clock, Pointer, RemoveSnapshots, RestoreSnapshots

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
REF = table.TableRef("lake", ("sales",), "orders")
UUID = "0b7a3b8e-6a8f-4d3e-9d1c-5f0a2c4e6b18"
LOCATION = "s3://lake/sales/orders"
SCHEMA: Mapping[str, Any] = {
    "type": "struct",
    "schema-id": 0,
    "fields": [
        {"id": 1, "name": "id", "required": True, "type": "long"},
        {"id": 2, "name": "region", "required": False, "type": "string"},
        {"id": 3, "name": "ts", "required": False, "type": "timestamptz"},
    ],
}


@dataclass
class FixedClock:
    """A clock that stands still unless it is set; sleeping moves it at once and is written down in `slept`."""

    time: datetime = NOW
    slept: list[float] = field(default_factory=list)

    def now(self) -> datetime:
        """Return the time that was set."""
        return self.time

    def sleep(self, seconds: float) -> None:
        """Let the time pass at once."""
        self.slept.append(seconds)
        self.time += timedelta(seconds=seconds)

    def advance(self, **passed: float) -> datetime:
        """Let time pass, as in `advance(hours=3)`; returns the new time."""
        self.time += timedelta(**passed)
        return self.time


def snapshot(
    snapshot_id: int = 1,
    *,
    age: float = 0,
    parent_id: int | None = None,
    now: datetime = NOW,
    **overrides: Any,  # noqa: ANN401 - any field of `Snapshot`
) -> table.Snapshot:
    """Return an append, `age` hours old; without `parent_id` it is the first of its line."""
    made = table.Snapshot(
        snapshot_id=snapshot_id,
        parent_id=parent_id,
        sequence_number=snapshot_id,
        timestamp=now - timedelta(hours=age),
        manifest_list=f"{LOCATION}/metadata/snap-{snapshot_id}.avro",
        operation="append",
        summary={"operation": "append"},
    )
    return replace(made, **overrides)


def lineage(ages: Sequence[float], *, first_id: int = 1, parent_id: int | None = None) -> tuple[table.Snapshot, ...]:
    """Return snapshots of these ages in hours, each the parent of the next, with ids that count up from `first_id`."""
    made: list[table.Snapshot] = []
    for snapshot_id, age in enumerate(ages, first_id):
        made.append(snapshot(snapshot_id, age=age, parent_id=made[-1].snapshot_id if made else parent_id))
    return tuple(made)


def spec(spec_id: int = 0, /, **transforms: str) -> table.PartitionSpec:
    """Return a partition spec over columns of `SCHEMA`: `spec(region="identity", ts="day")`."""
    ids = {column["name"]: column["id"] for column in SCHEMA["fields"]}
    return table.PartitionSpec(
        spec_id,
        tuple(
            table.PartitionField(
                ids[column], 1000 + i, column if transform == "identity" else f"{column}_{i}", transform
            )
            for i, (column, transform) in enumerate(transforms.items())
        ),
    )


def metadata(
    ages: Sequence[float] = (24, 2),
    *,
    refs: Sequence[table.SnapshotRef] = (),
    **overrides: Any,  # noqa: ANN401 - any field of `TableMetadata`
) -> table.TableMetadata:
    """Return a table whose main branch has one snapshot for each age in hours, oldest first, with ids from 1.

    `refs` come beside main, which is made unless they name it. With `snapshots` the history is given as it is, and
    main leads to the last unless `current_snapshot_id` says otherwise.
    """
    snapshots: tuple[table.Snapshot, ...] = overrides.pop("snapshots", None) or lineage(ages)
    last = snapshots[-1].snapshot_id if snapshots else None
    current: int | None = overrides.pop("current_snapshot_id", last)
    if current is not None and table.MAIN not in {ref.name for ref in refs}:
        refs = (table.SnapshotRef(table.MAIN, table.RefKind.BRANCH, current), *refs)
    made = table.TableMetadata(
        ref=REF,
        metadata_location=f"{LOCATION}/metadata/00001-a.metadata.json",
        metadata_length=10_000,
        table_uuid=UUID,
        location=LOCATION,
        format_version=2,
        last_updated=max((s.timestamp for s in snapshots), default=NOW),
        last_sequence_number=max((s.sequence_number for s in snapshots), default=0),
        current_snapshot_id=current,
        snapshots=snapshots,
        refs=tuple(refs),
        metadata_log=(),
        statistics=(),
        partition_statistics=(),
        properties={},
        specs=(spec(),),
        default_spec_id=0,
        schema=SCHEMA,
        sort_order=None,
    )
    return replace(made, **overrides)


def knobs(settings: Mapping[str, object] | None = None, /, **named: object) -> Knobs:
    """Knobs as a rule of the platform sets them: `knobs({"compact.min_input_files": 3})`; the rest has its default."""
    checked = parse_settings("knobs", {**(settings or {}), **named})
    return Policy(command=checked).knobs_for(REF, None)


def histogram(files: int, file_bytes: float) -> table.FileHistogram:
    """So many files of one size."""
    bucket = sum(file_bytes >= limit * MEGABYTE for limit in table.FileHistogram.LIMITS_MB)
    return table.FileHistogram(tuple(files * (i == bucket) for i in range(len(table.FileHistogram.LIMITS_MB) + 1)))


def partition(
    *values: Any,  # noqa: ANN401 - partition values of any type
    files: int = 10,
    mb: float = 1,
    sizes: table.Thresholds | None = None,
    **overrides: Any,  # noqa: ANN401 - any field of `PartitionFacts`
) -> table.PartitionFacts:
    """`files` data files of `mb` megabytes and 1000 rows each, candidates by `sizes`, no deletes, a day old."""
    sizes = sizes or thresholds(Knobs())
    file_bytes = int(mb * MEGABYTE)
    candidates = files if not sizes.min_bytes <= file_bytes <= sizes.max_bytes else 0
    made = table.PartitionFacts(
        spec_id=0,
        values=values,
        data_files=files,
        data_bytes=files * file_bytes,
        records=files * 1000,
        candidate_files=candidates,
        candidate_bytes=candidates * file_bytes,
        histogram=histogram(files, file_bytes),
        position_delete_files=0,
        equality_delete_files=0,
        deletion_vectors=0,
        mergeable_deletes=0,
        dangling_position_deletes=0,
        dangling_equality_deletes=0,
        deleted_rows=0,
        max_deletes_of_a_file=0,
        max_delete_ratio_of_a_file=0.0,
        last_write=NOW - timedelta(days=1),
    )
    return replace(made, **overrides)


def manifests(
    count: int = 1,
    *,
    mb: float = 0.01,
    entries: int | None = None,
    **overrides: Any,  # noqa: ANN401 - any field of `ManifestFacts`
) -> table.ManifestFacts:
    """So many small data manifests of `mb` megabytes each, ten entries in each."""
    total = count * 10 if entries is None else entries
    made = table.ManifestFacts(0, table.ManifestContent.DATA, count, int(count * mb * MEGABYTE), total, count)
    return replace(made, **overrides)


def facts(
    *partitions: table.PartitionFacts,
    of: table.TableMetadata | None = None,
    by: Knobs | None = None,
    manifests_of: Sequence[table.ManifestFacts] | None = None,
    **overrides: Any,  # noqa: ANN401 - any field of `TableFacts`
) -> table.TableFacts:
    """Facts of these partitions (none: an empty table) of the table `of`, counted by the sizes that `by` says."""
    made = table.TableFacts(
        metadata=of or metadata(),
        thresholds=thresholds(by or Knobs()),
        partitions=partitions,
        manifests=(manifests(),) if manifests_of is None else tuple(manifests_of),
        delete_files=sum(p.delete_files + p.dangling_delete_files for p in partitions),
        deleted_rows=sum(p.deleted_rows for p in partitions),
    )
    return replace(made, **overrides)


def check_policy(document: object, policy: Policy | None = None) -> None:
    """Run the policy tests of a document, as `icewright config test` reads it; AssertionError names what differs."""
    failures = [
        f"{test.name}: {said}" for test in read_policy_tests(document) for said in policy_failures(test, policy)
    ]
    if failures:
        raise AssertionError("\n".join(failures))


def _nothing(_base: table.TableMetadata, _change: Change) -> None:
    return


@dataclass
class MemoryCatalog:
    """A Catalog port that keeps its tables in memory.

    `before_commit` and `after_commit` are called with the commit's arguments just before and just after the pointer
    swings. The former may commit as somebody else would (`concurrently`) or raise: then nothing has happened. The
    latter may raise too: then the commit has landed and its reply is lost. While `down` is set, nothing is answered.
    """

    name: str = "lake"
    clock: Clock = field(default_factory=FixedClock)
    before_commit: Callable[[table.TableMetadata, Change], None] = _nothing
    after_commit: Callable[[table.TableMetadata, Change], None] = _nothing
    down: IcewrightError | None = None
    tables: dict[table.TableRef, table.TableMetadata] = field(default_factory=dict)
    beyond: list[table.TableMetadata] = field(default_factory=list)  # tables that the server shows elsewhere
    commits: list[Change] = field(default_factory=list)  # those that landed
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)
    _written: int = 0

    def pointers(self) -> Sequence[Pointer]:
        """Return every table with its current metadata file."""
        self._answer()
        return [Pointer(ref, found.metadata_location) for ref, found in sorted(self.tables.items())]

    def load(self, ref: table.TableRef) -> table.TableMetadata:
        """Return the current metadata. Raises `TableNotFound`."""
        self._answer()
        if ref not in self.tables:
            raise TableNotFound(f"{ref}: the catalog does not know this table")
        return self.tables[ref]

    def neighbours(self) -> Sequence[Pointer]:
        """Return the pointers of every table of `beyond`."""
        self._answer()
        return [Pointer(found.ref, found.metadata_location) for found in self.beyond]

    def neighbour(self, pointer: Pointer) -> table.TableMetadata:
        """Return the table of `beyond` with this metadata file."""
        for found in self.beyond:
            if found.metadata_location == pointer.metadata_location:
                return found
        raise MetadataUnreadable(f"{pointer.ref}: there is no {pointer.metadata_location}")

    def restorable(self, base: table.TableMetadata, change: RestoreSnapshots) -> str:
        """Return the refs whose names somebody has taken since."""
        taken = [r.name for r in base.refs if r.name in change.refs and r != _ref(r.name, change.refs[r.name])]
        return "; ".join(f"{name}, as somebody has set it since" for name in taken)

    def commit(self, base: table.TableMetadata, change: Change) -> table.TableMetadata:
        """Apply the change if `base` is still current."""
        self._answer()
        self.before_commit(base, change)
        with self._lock:
            current = self.tables.get(base.ref)
            if current is None or current.metadata_location != base.metadata_location:
                raise CommitConflict(f"{base.ref}: somebody else committed since {base.metadata_location}")
            after = _changed(base, change, self.clock.now())
            if after is base:
                return base
            after = self._swing(after)
            self.commits.append(change)
        self.after_commit(base, change)
        return after

    def put(self, made: table.TableMetadata) -> table.TableMetadata:
        """Let the table be as it is given, whatever was there before."""
        self.tables[made.ref] = made
        return made

    def concurrently(self, ref: table.TableRef, **changes: Any) -> table.TableMetadata:  # noqa: ANN401 - any field
        """Return what somebody else's commit does: these fields are changed, in a new metadata file."""
        with self._lock:
            return self._swing(replace(self.tables[ref], **changes))

    def _answer(self) -> None:
        if self.down is not None:
            raise self.down

    def _swing(self, made: table.TableMetadata) -> table.TableMetadata:
        self._written += 1
        location = f"{made.location}/metadata/{self._written:05d}-m.metadata.json"
        log = (*made.metadata_log, made.metadata_location)
        return self.put(replace(made, metadata_location=location, metadata_log=log))


def _changed(base: table.TableMetadata, change: Change, now: datetime) -> table.TableMetadata:
    updated = max(now, base.last_updated)
    match change:
        case RemoveSnapshots(snapshot_ids=gone):
            refs = tuple(r for r in base.refs if r.name not in change.refs)
            if held := [r for r in refs if r.snapshot_id in gone]:
                raise Refused(f"snapshot {held[0].snapshot_id} is still referenced by {held[0].name}")
            lists = ("snapshots", "statistics", "partition_statistics")
            kept: Any = {n: tuple(s for s in getattr(base, n) if s.snapshot_id not in gone) for n in lists}
            return replace(base, last_updated=updated, refs=refs, **kept)
        case AddSnapshot():
            added = snapshot_of(change.snapshot)
            heads = {r.name: r for r in base.refs}
            head = heads.get(change.branch, table.SnapshotRef(change.branch, table.RefKind.BRANCH, 0))
            heads[change.branch] = replace(head, snapshot_id=added.snapshot_id)
            return replace(
                base,
                last_updated=updated,
                refs=tuple(heads.values()),
                snapshots=(*base.snapshots, added),
                last_sequence_number=max(base.last_sequence_number, added.sequence_number),
                current_snapshot_id=added.snapshot_id if change.branch == table.MAIN else base.current_snapshot_id,
            )
        case RestoreSnapshots():
            back = [snapshot_of(s) for s in change.snapshots if s["snapshot-id"] not in base.by_id]
            named = [_ref(n, change.refs[n]) for n in sorted(change.refs.keys() - {r.name for r in base.refs})]
            if not back and not named:
                return base
            snapshots = sorted((*base.snapshots, *back), key=lambda s: (s.sequence_number, s.timestamp))
            return replace(base, last_updated=updated, refs=(*base.refs, *named), snapshots=tuple(snapshots))
        case _:
            assert_never(change)


def _ref(name: str, raw: Mapping[str, Any]) -> table.SnapshotRef:
    """Return a ref from the JSON of the spec, without its retention."""
    return table.SnapshotRef(name, table.RefKind(raw["type"]), raw["snapshot-id"])


@dataclass
class FunctionEngine:
    """An engine that a function is; `assignments`, `resumed` and `probes` hold what it was asked, in order."""

    function: Callable[[StepRequest], Outcome] = lambda assignment: committed(assignment.operation, "done", {})
    assignments: list[StepRequest] = field(default_factory=list)
    resumed: list[Unfinished] = field(default_factory=list)
    probes: list[Probe] = field(default_factory=list)

    def run(self, assignment: StepRequest) -> Outcome:
        """Return what the function answers, or raises."""
        self.assignments.append(assignment)
        return self.function(assignment)

    def resume(self, unfinished: Unfinished) -> Outcome:
        """Claim that every planned deletion was done."""
        self.resumed.append(unfinished)
        return committed(unfinished.operations[-1], "resumed", {"files_deleted": len(unfinished.files)})

    def adoptable(self, ref: table.TableRef) -> Adoptable:
        """Find nothing that stands in the way."""
        return Adoptable(f"uuid of {ref}", (), (), ())

    def probe(self, probe: Probe) -> Sequence[float]:
        """Claim that each snapshot is read in half of the time of the one before."""
        self.probes.append(probe)
        return [0.5**number for number, _ in enumerate(probe.snapshot_ids)]
