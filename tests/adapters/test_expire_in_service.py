"""Snapshot expiry over catalog, storage and ledger in memory: what is planned, committed, deleted and written down."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import astuple, dataclass, field, fields, replace
from datetime import timedelta
from typing import Any, cast

import polars as pl
import pyarrow as pa
import pytest

from icewright.adapters.engines.service.deletion import Deletion
from icewright.adapters.engines.service.expire_snapshots import ExpireInService
from icewright.core.errors import Cancelled, CommitConflict, IcewrightError, InvariantViolated, LeaseLost, Refused
from icewright.core.policy import Operation
from icewright.core.runs import OperationState, Outcome
from icewright.core.steps import ExpireSnapshots, RetainedSnapshot
from icewright.core.table import (
    ManifestContent,
    ManifestFile,
    RefKind,
    Snapshot,
    SnapshotHold,
    SnapshotRef,
    StatisticsFile,
    TableMetadata,
)
from icewright.ports import (
    DeleteReport,
    FileStat,
    Intent,
    LedgerState,
    Registration,
    RemoveSnapshots,
    RestoreSnapshots,
    StepRequest,
)
from icewright.testing.builders import LOCATION, NOW, lineage, metadata, spec
from tests.adapters.test_guard import guarded
from tests.adapters.test_proof import TableFiles
from tests.adapters.test_registry import World

DATA, FOLDER = f"{LOCATION}/data", f"{LOCATION}/metadata"
OLD, SHARED, REUSED, ALIAS, APART = (
    f"{DATA}/old",
    f"{DATA}/shared",
    f"{DATA}/reused",
    f"{DATA}/Alias",
    "s3://lake/pool/x",
)
BOTH = f"{FOLDER}/m4"  # which the first and the second snapshot list
CONTENT = {
    f"{FOLDER}/m1": [OLD, SHARED, REUSED, ALIAS, APART],
    f"{FOLDER}/m2": [SHARED, "s3://lake/pool/alias"],
    f"{FOLDER}/m3": [f"{DATA}/new"],
    BOTH: [f"{DATA}/both"],
}
LISTED = {1: (1, 4), 2: (2, 4), 3: (3,)}  # the numbers of each snapshot's manifests
GONE = {f"{FOLDER}/snap-1.avro", f"{FOLDER}/m1", f"{FOLDER}/stats-1", OLD}  # with snapshot 1
STEP = ExpireSnapshots((1, 99), (), True, 3, False)
TAG = SnapshotRef("tag", RefKind.TAG, 1)


@dataclass
class Storage(TableFiles):
    """What the table has; a file has one byte, and one whose name was reused two."""

    totals: list[bool] = field(default_factory=list)

    def stat(self, paths: Sequence[str], concurrency: int) -> Any:
        """Return what is there."""
        assert concurrency
        return {path: FileStat(1 + (path == REUSED), NOW) if path in self.contents else None for path in paths}

    def manifest_lists(self, snapshots: Sequence[Snapshot], *, totals: bool = False) -> pa.Table:
        """Return the manifests of the snapshots, each once and of the spec of its number."""
        self.totals.append(totals)
        numbers = sorted({number for snapshot in snapshots for number in LISTED[snapshot.snapshot_id]})
        found = [ManifestFile(f"{FOLDER}/m{n}", 1, n, ManifestContent.DATA, 1, 1, 1, 1, 0, 0) for n in numbers]
        schema = {f.name: pl.String if f.name == "path" else pl.Int64 for f in fields(ManifestFile)}
        return pl.DataFrame([astuple(one) for one in found], schema, orient="row").to_arrow()

    def live_files(self, manifests: Sequence[ManifestFile], *, spare_cores: int = 0) -> Iterator[pa.RecordBatch]:
        """Yield the files of each manifest."""
        for row, manifest in enumerate(manifests):
            self.looked_at.append(manifest.path)
            files = pl.DataFrame({"path": CONTENT[manifest.path]}).with_columns(bytes=pl.lit(1, pl.Int64), content=0)
            yield from files.with_columns(format=pl.lit("PARQUET"), manifest=row).to_arrow().to_batches()

    def delete(self, paths: Sequence[str], concurrency: int, _found: object) -> DeleteReport:
        """Delete all."""
        assert concurrency == 3
        for path in paths:
            del self.contents[path]
        return DeleteReport(tuple(paths), {})

    def tidy(self, paths: Sequence[str], stop: str) -> None:
        """Have no folders."""


@dataclass
class Ledger:
    """What is written down, in order."""

    events: list[tuple[str, Any]] = field(default_factory=list)

    def __getattr__(self, name: str) -> Any:
        return lambda *arguments: self.events.append((name, arguments))

    def claim(self, job_id: str, paths: Sequence[str]) -> frozenset[str]:
        """Claim all."""
        self.events.append(("claim", (job_id, paths)))
        return frozenset(paths)

    def export(self, job_id: str) -> str:
        """Say where it is."""
        return f"ledger of {job_id}"

    @property
    def names(self) -> list[str]:
        """What was done."""
        return [name for name, _ in self.events]


class Expiring:
    """A table of three snapshots, of which the first is to go."""

    def __init__(self, *refs: SnapshotRef) -> None:
        statistics = tuple(StatisticsFile(n, f"{FOLDER}/stats-{n}", 1) for n in (1, 2))
        snapshots = tuple(replace(one, schema_id=one.snapshot_id) for one in lineage([48, 24, 2]))
        ids: dict[str, Any] = {"schema_ids": tuple(range(5)), "specs": tuple(map(spec, range(5))), "default_spec_id": 4}
        ids["partition_statistics"] = statistics[:1]  # the file that is named as both goes once
        self.own = metadata(refs=refs, snapshots=snapshots, statistics=statistics, **ids)
        named = [{"snapshot-id": one.snapshot_id} for one in snapshots]
        document = {
            "format-version": 2,
            "table-uuid": self.own.table_uuid,
            "location": LOCATION,
            "snapshots": named,
        }
        paths = [*GONE, *(path for one in CONTENT.values() for path in one), *CONTENT]
        paths += [f"{FOLDER}/snap-{n}.avro" for n in (2, 3)]
        paths.append(f"{FOLDER}/stats-2")
        self.files = Storage(contents=dict.fromkeys(paths, b""))
        version = self.files.contents[self.own.metadata_location] = json.dumps(document).encode()
        self.world, self.ledger = World(files=self.files), Ledger()
        self.lake, self.guard = self.world.lake, guarded(self.world, self.own)
        self.holds: Callable[[TableMetadata], Sequence[SnapshotHold]] = lambda _: ()
        self.reported: list[Outcome] = []

        def committed(*_: object) -> None:
            self.files.contents[self.lake.tables[self.own.ref].metadata_location] = version
            self.world.clock.advance(seconds=3)

        self.lake.after_commit = committed

    def run(self, step: ExpireSnapshots = STEP, **how: Any) -> Outcome:
        """Expire."""
        deletion = Deletion(cast("Any", self.files), cast("Any", self.ledger), self.world.clock)
        expiry = ExpireInService(deletion, self.guard, self.holds)
        request = StepRequest(
            "job", Operation.EXPIRE_SNAPSHOTS, step, self.own, on_partial_result=self.reported.append, **how
        )
        return expiry.run(cast("Any", self.lake), request, step)

    def restoring(self) -> None:
        """Let the catalog be one whose server may drop a ref."""
        cast("Any", self.lake).restore = lambda *_: ()


def test_the_files_of_the_snapshots_that_go_are_deleted_and_all_is_written_down() -> None:
    """What others reach, or may be a live file by its name, stays with the reason; sizes are those in storage."""
    expiring, before = Expiring(TAG), set[str]()
    before |= expiring.files.contents.keys()
    stays = (RetainedSnapshot(3, "flink"),)
    step = replace(STEP, remove_refs=("tag",), losses=("a stream begins anew",), retained=stays)
    listed = expiring.run(step, dry_run=True)
    assert (expiring.ledger.events, expiring.lake.commits, set(expiring.files.contents)) == ([], [], before)
    assert listed.summary == "would expire 1 snapshot, delete 4 unreferenced files, remove 1 ref"
    done = expiring.run(step)
    assert done.summary == "expired 1 snapshot, deleted 4 unreferenced files, removed 1 ref"
    assert {file.path for file in listed.files} == {file.path for file in done.files} == GONE
    assert [file.path for file in listed.files] == sorted(GONE)
    assert before - expiring.files.contents.keys() == GONE
    assert sorted(expiring.files.looked_at) == sorted([*CONTENT] * 2)  # once for each plan, which the proof knows
    assert done.retained == stays
    assert set(expiring.lake.tables[expiring.own.ref].by_id) == {2, 3}
    assert {"snapshots_expired": 1, "refs_removed": 1, "files_deleted": 4}.items() <= done.metrics.items()
    for outcome in (listed, done):
        notes = " ".join(outcome.notes)
        assert outcome.notes[0] == "a stream begins anew"
        assert all(path in notes for path in (REUSED, ALIAS, APART))
        assert all(why in notes for why in ("size differs", "has the same name and size", "outside_location"))
    names = ["plan", "record_removal", "claim", "record"]
    assert expiring.ledger.names == names
    (_, planned), (_, (removal,)), *_ = expiring.ledger.events
    assert {file.path for file in planned[2]} == GONE
    assert planned[:2] + planned[3:] == (
        "job", expiring.own.ref, LedgerState.PLANNED, NOW, None, Operation.EXPIRE_SNAPSHOTS,
    )  # fmt: skip
    assert (removal.job_id, removal.table_uuid) == ("job", expiring.own.table_uuid)
    assert (removal.metadata_location, removal.at) == (expiring.own.metadata_location, NOW)
    assert RestoreSnapshots.from_json(removal.document).snapshots == ({"snapshot-id": 1},)


UNUSED = "unreferenced files, removed {} unused partition specs and schemas"
WISHES: list[tuple[dict[str, Any], set[str] | None, str]] = [
    ({"outside": True}, {*GONE, APART}, "expired 1 snapshot, deleted 5 unreferenced files"),
    (
        {"snapshot_ids": (1, 2)},
        {*GONE, SHARED, f"{DATA}/both", BOTH, f"{FOLDER}/m2", f"{FOLDER}/snap-2.avro", f"{FOLDER}/stats-2", ALIAS},
        "expired 2 snapshots, deleted 11 unreferenced files",
    ),
    ({"delete_files": False}, set(), "expired 1 snapshot, deleted 0 unreferenced files"),
    (
        {"snapshot_ids": (), "remove_refs": ("tag",)},
        set(),
        "expired 0 snapshots, deleted 0 unreferenced files, removed 1 ref",
    ),
    ({"snapshot_ids": (99,)}, None, "no snapshots to expire"),
    (
        {"delay": timedelta(hours=2)},
        set(),
        "expired 1 snapshot, 4 unreferenced files to be deleted after 2026-11-21 14:00 UTC",
    ),
    ({"clean_metadata": True}, GONE, f"expired 1 snapshot, deleted 4 {UNUSED.format(4)}"),  # 0, 1; 1, 4
    ({"clean_metadata": True, "snapshot_ids": ()}, set(), f"expired 0 snapshots, deleted 0 {UNUSED.format(2)}"),  # 0; 4
    ({"clean_metadata": True, "delete_files": False}, set(), f"expired 1 snapshot, deleted 0 {UNUSED.format(4)}"),
]


@pytest.mark.parametrize(("wish", "gone", "said"), WISHES)
def test_what_a_step_asks_for(wish: dict[str, Any], gone: set[str] | None, said: str) -> None:
    """Each of its wishes alone; one that asks for nothing is skipped, and nothing is written down or committed."""
    expiring = Expiring(replace(TAG, snapshot_id=3))
    expiring.holds = lambda _: [
        SnapshotHold(3, "flink", NOW + timedelta(days=1), NOW - timedelta(days=1))
    ]  # no snapshot that goes
    before, step = {*expiring.files.contents}, replace(STEP, **wish)
    done = expiring.run(step)
    assert said == (done.reason if gone is None else done.summary)
    assert before - expiring.files.contents.keys() == (gone or set())
    if gone is None:
        assert (done.state, expiring.ledger.events, expiring.lake.commits) == (OperationState.SKIPPED, [], [])
        return
    ids, specs = frozenset(step.snapshot_ids), range(step.clean_metadata * (2 if step.snapshot_ids else 1))
    schemas = frozenset(({4, 1} if step.snapshot_ids else {4}) if step.clean_metadata else ())
    assert expiring.lake.commits == [RemoveSnapshots(ids, frozenset(step.remove_refs), frozenset(specs), schemas)]
    planned = expiring.ledger.events[0][1]
    until = planned[5]
    assert until == (NOW + step.delay if step.delay else None)
    assert ("claim" in expiring.ledger.names) == bool(gone)
    assert bool(expiring.files.looked_at) == bool(planned[2])  # content is read for files to delete alone
    assert ("ledger of job" in done.notes) == bool(gone)
    assert {file.path for file in done.files} == ({file.path for file in planned[2]} if step.delay else gone)


def test_lists_that_lack_files() -> None:
    """Those of the snapshots that stay are counted, if so asked; of one that goes no list needs to be whole."""
    for totals in (True, False):
        expiring = Expiring()
        expiring.run(replace(STEP, check_totals=totals, clean_metadata=True), dry_run=True)
        assert expiring.files.totals == [totals, False]


@pytest.mark.cases(102)
@pytest.mark.parametrize(
    ("asked", "names"),
    [(0, []), (1, []), (2, ["plan", "record_removal"])],
)
def test_a_pin_that_comes_meanwhile(asked: int, names: list[str]) -> None:
    """Before the commit it ends the step and nothing is written down; after it, nothing is deleted.

    What was committed right before it stays in the ledger until the reader goes on.
    """
    expiring, times = Expiring(), iter(range(9))
    before = {*expiring.files.contents}

    def holds(_: TableMetadata) -> Sequence[SnapshotHold]:
        now = expiring.world.clock.now()
        return [SnapshotHold(1, "flink", now + timedelta(hours=1 if next(times) == asked else 0), NOW)]

    expiring.holds = holds
    if names:
        assert "flink holds snapshot 1" in " ".join(expiring.run().notes)
    else:
        with pytest.raises(CommitConflict, match="a reader pinned a snapshot that was about to go"):
            expiring.run()
        assert expiring.lake.commits == []
    assert expiring.ledger.names == names
    assert before <= {*expiring.files.contents}


@pytest.mark.parametrize(
    ("error", "restoring"),
    [*((CommitConflict("overtaken"), r) for r in (0, 1)), *((InvariantViolated("x"), r) for r in (0, 1))],
)
def test_a_commit_that_comes_to_nothing(error: IcewrightError, *, restoring: bool) -> None:
    """Its files stay; its removal is closed and its intent is dropped, unless the table may have lost a ref by it."""
    expiring = Expiring()
    before = {*expiring.files.contents}
    if restoring:
        expiring.restoring()

    def fails(*_: object) -> None:
        raise error

    expiring.lake.before_commit = fails
    with pytest.raises(type(error)):
        expiring.run()
    failed = isinstance(error, InvariantViolated)
    intents = [arguments for name, arguments in expiring.ledger.events if name == "set_commit_intent"]
    intent = Intent(expiring.own.metadata_location, frozenset(STEP.snapshot_ids), frozenset())
    assert intents == ([("job", intent)] + ([] if failed else [("job", None)]) if restoring else [])
    removals = [arguments[0] for name, arguments in expiring.ledger.events if name == "record_removal"]
    closed = [arguments for name, arguments in expiring.ledger.events if name == "close_removal"]
    assert closed == ([] if failed else [(removals[0], None)])
    states = (dict.fromkeys(GONE, LedgerState.KEPT), NOW, dict.fromkeys(GONE, "the commit came to nothing"))
    assert expiring.ledger.events[-1] == ("record", ("job", *states))
    assert before <= {*expiring.files.contents}


def test_an_intent_is_dropped_after_the_commit() -> None:
    """Nobody has to look after it any more."""
    expiring = Expiring()
    expiring.restoring()
    expiring.run()
    names = ["plan", "record_removal", "set_commit_intent", "set_commit_intent", "claim", "record"]
    assert expiring.ledger.names == names
    assert expiring.ledger.events[3][1] == ("job", None)


def test_a_job_is_stopped_before_its_commit_and_between_commit_and_deletion() -> None:
    """Before it nothing has happened; after it the run says what it did, and the files wait in the ledger."""
    cancelled, lost = Cancelled("enough"), LeaseLost("another process has it")
    for error, asked, snapshots in ((cancelled, 1, 3), (cancelled, 2, 2), (lost, 2, 2)):
        expiring, times = Expiring(), iter(range(1, 9))
        before = {*expiring.files.contents}

        def check(times: Iterator[int] = times, asked: int = asked, error: IcewrightError = error) -> None:
            if next(times) == asked:
                raise error

        with pytest.raises(type(error)):
            expiring.run(check=check)
        assert len(expiring.lake.tables[expiring.own.ref].snapshots) == snapshots
        assert before <= {*expiring.files.contents}
        said = [(one.metrics["snapshots_expired"], one.metrics["files_failed"]) for one in expiring.reported]
        assert said == ([] if asked == 1 else [(1, 4)])
        assert expiring.ledger.names == ([] if asked == 1 else ["plan", "record_removal"])


def test_a_commit_that_did_more_than_it_was_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is deleted after it, and the message says what broke."""
    expiring, before = Expiring(), set[str]()
    before |= expiring.files.contents.keys()
    real = expiring.lake.commit
    monkeypatch.setattr(expiring.lake, "commit", lambda *change: replace(real(*change), table_uuid="another"))
    with pytest.raises(InvariantViolated, match=r"expire_snapshots broke the table: .*uuid.*; nothing deleted"):
        expiring.run()
    assert before <= {*expiring.files.contents}


def test_what_forbids_the_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reply that lacks what the file has, a newer version by another writer, a place that nobody has confirmed."""
    expiring = Expiring()
    more = replace(expiring.own, snapshots=(*expiring.own.snapshots, replace(expiring.own.snapshots[0], snapshot_id=9)))
    monkeypatch.setattr(expiring.lake, "load_from_file", lambda _: more, raising=False)
    for step in (STEP, replace(STEP, snapshot_ids=(), clean_metadata=True)):  # it may use a spec that seems unused
        with pytest.raises(Refused, match=r"\[reply_differs\]"):
            expiring.run(step)
    for left in (FOLDER, "s3://lake/left/metadata", "s3://lake/former"):
        expiring = Expiring()
        uuid, current = expiring.own.table_uuid, expiring.own.metadata_location
        for one in (
            Registration(expiring.own.ref, uuid, current, (LOCATION, "s3://lake/left")),
            Registration(replace(expiring.own.ref, name="former"), uuid, "s3://lake/former/00002-b.metadata.json", ()),
        ):
            expiring.world.recorded.rows[one.key] = one
        log = [{"metadata-file": current, "timestamp-ms": 1}]
        newer = {"format-version": 2, "table-uuid": uuid, "metadata-log": log}
        expiring.files.contents[f"{left}/00002-b.metadata.json"] = json.dumps(newer).encode()
        with pytest.raises(Refused, match=r"\[successor\]"):
            expiring.run()
        assert (expiring.ledger.events, expiring.lake.commits) == ([], [])
        expiring.world.recorded.words[uuid] = frozenset({f"{left}/00002-b.metadata.json".removeprefix("s3://lake")})
    assert expiring.run(dry_run=True).files
    expiring = Expiring()
    one = Registration(expiring.own.ref, uuid, current, (LOCATION, "s3://lake/once"), first_places=("s3://lake/once",))
    expiring.world.recorded.rows[one.key] = one
    assert {file.path for file in expiring.run(dry_run=True).files} == GONE
    assert expiring.run(dry_run=True, automatic=True).files == ()
