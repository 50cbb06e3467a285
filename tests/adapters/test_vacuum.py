"""Vacuum over a catalog with branches, storage and ledger in memory: what is live, what goes, and what stops it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, field, fields, replace
from datetime import datetime, timedelta
from typing import Any, cast

import polars as pl
import pyarrow as pa
import pytest

from icewright.adapters.engines.service import deletion
from icewright.adapters.engines.service.deletion import Deletion
from icewright.adapters.engines.service.guard import DeletionGuard
from icewright.adapters.engines.service.nessie_live import NessieLiveSet
from icewright.adapters.engines.service.vacuum import GC_DISABLED, GONE, BranchVacuum
from icewright.core.errors import (
    AccessDenied,
    Cancelled,
    CommitConflict,
    FileMissing,
    IcewrightError,
    InvariantViolated,
    MetadataUnreadable,
    Refused,
)
from icewright.core.layering import Policy, parse_settings
from icewright.core.operations.expire_snapshots import NOTHING
from icewright.core.policy import Operation
from icewright.core.runs import FileAction, OperationState, Outcome, backoff
from icewright.core.table import (
    ManifestContent,
    ManifestFile,
    RefKind,
    Snapshot,
    SnapshotHold,
    SnapshotRef,
    StatisticsFile,
    TableMetadata,
    TableRef,
)
from icewright.core.vacuum import Commit, CutoffPolicy, GcConfig, KeyChange, Reference
from icewright.ports import Change, DeleteReport, LedgerState, Registration, RemoveSnapshots, Unfinished, VacuumOf
from icewright.testing import MemoryBranches
from icewright.testing.builders import NOW, REF, UUID, metadata, snapshot
from icewright.testing.fakes import FixedClock
from tests.adapters.test_expire_in_service import Ledger
from tests.adapters.test_guard import version
from tests.adapters.test_registry import World, guest
from tests.adapters.test_remove_orphans_in_service import OLD, Shelf, strange

PLACE = "s3://lake/sales"
ORDERS = f"{PLACE}/orders"
AGE = {"history.expire.max-snapshot-age-ms": "1"}


@dataclass
class Shelves(Shelf):
    """A storage of tables each of whose snapshots lists one manifest, of one file."""

    also: dict[str, list[str]] = field(default_factory=dict)  # more files of a manifest
    torn: dict[str, IcewrightError] = field(default_factory=dict)  # lists that cannot be read
    lists: list[str] = field(default_factory=list)  # that were read
    failing: dict[str, str] = field(default_factory=dict)  # why a file cannot be deleted
    shut: dict[str, IcewrightError] = field(default_factory=dict)  # why one cannot be read

    def read(self, path: str) -> bytes:
        """Return the content."""
        if path in self.shut:
            raise self.shut[path]
        return super().read(path)

    def manifest_lists(self, snapshots: Sequence[Snapshot], *, totals: bool = False) -> pa.Table:
        """Return the manifest of each snapshot."""
        assert not totals
        paths = [str(one.manifest_list) for one in snapshots]
        self.lists += paths
        for path in (one for one in paths if one in self.torn):
            raise self.torn[path]
        rows = [path.replace("snap-", "m") for path in paths]
        found = [ManifestFile(path, 1, 0, ManifestContent.DATA, 1, 1, 1, 1, 0, 0) for path in dict.fromkeys(rows)]
        schema = {f.name: pl.String if f.name == "path" else pl.Int64 for f in fields(ManifestFile)}
        return pl.DataFrame([astuple(one) for one in found], schema, orient="row").to_arrow()

    def live_files(self, manifests: Sequence[ManifestFile], *, spare_cores: int = 0) -> Iterator[pa.RecordBatch]:
        """Yield the files of all manifests."""
        rows = []
        for row, manifest in enumerate(manifests):
            self.looked_at.append(manifest.path)
            own = manifest.path.replace("/metadata/m", "/data/d").replace("avro", "parquet")
            rows += [(path, 1, 0, "PARQUET", row) for path in (own, *self.also.get(manifest.path, ()))]
        names = ["path", "bytes", "content", "format", "manifest"]
        yield from pl.DataFrame(rows, names, orient="row").to_arrow().to_batches() if rows else ()

    def listing(
        self, folder: str, on_invalid_name: Callable[[str], None] = lambda _: None, known: Sequence[str] = ()
    ) -> Iterator[pa.RecordBatch]:
        """Yield the files below a folder, at once."""
        pages = [*super().listing(folder, on_invalid_name, known)]
        yield from pa.Table.from_batches(pages).combine_chunks().to_batches() if pages else ()

    def delete(self, paths: Sequence[str], concurrency: int, _found: object) -> DeleteReport:
        """Delete what can be deleted."""
        assert concurrency == 16
        for path in paths:
            if path not in self.failing:
                del self.contents[path]
        failures = {path: why for path, why in self.failing.items() if path in paths}
        return DeleteReport(tuple(path for path in paths if path not in failures), failures)


@dataclass
class Waiting(Ledger):
    """A ledger with what waits to be deleted."""

    waiting: Sequence[str] = ()
    then: dict[str, Callable[[], object]] = field(default_factory=dict)  # what happens right after a call

    def plan(self, *arguments: Any) -> None:
        """Write down a plan."""
        self.events.append(("plan", arguments))
        self.then.pop("plan", lambda: None)()

    def waiting_paths(self, ref: TableRef, table_uuid: str) -> Sequence[str]:
        """Return what waits for the table."""
        return self.waiting if (ref.name, table_uuid) == ("orders", UUID) else ()


class Vacuuming:
    """A repository whose history before the last two days may go."""

    def __init__(self, settings: Mapping[str, object] | None = None) -> None:
        self.clock, self.files, self.ledger = FixedClock(), Shelves(), Waiting()
        self.lake = MemoryBranches(clock=self.clock, gc=GcConfig("PT48H"))
        self.world = World(lake=cast("Any", self.lake), files=self.files, clock=self.clock)
        allowed = {"lake": ["s3://lake"], "pond": ["s3://pond"]}
        self.guard = DeletionGuard(self.world.registry, allowed, ignoring=frozenset({"lake"}))
        at_once = {"deletion.delay_hours": 0, "remove_orphans.max_delete_ratio": 1}
        self.settings: dict[str, object] = {**at_once, **(settings or {})}
        self.holds: list[SnapshotHold] = []
        self.storage_time: Callable[[str], datetime] = lambda _: self.clock.now()
        self.lake.after_commit = lambda after, _: self._stored(after)
        self.contents = NessieLiveSet(
            self.lake,
            self.clock,
            lambda ref, read: self.policy.knobs_for(ref, read),  # noqa: PLW0108 - of the policy as it is then
            lambda _: self.holds,
        )
        self.vacuum = BranchVacuum(
            self.lake,
            Deletion(cast("Any", self.files), cast("Any", self.ledger), self.clock),
            self.guard,
            self.contents,
            lambda: self.policy.knobs_of_catalog("lake"),
            lambda folder: self.storage_time(folder),  # noqa: PLW0108 - tests put another in its place
        )
        self.made: dict[int, datetime] = {}
        self.states: dict[int, dict[str, str]] = {}  # of streaming writers, by snapshot
        self.written = 0

    @property
    def policy(self) -> Policy:
        """The platform's word."""
        return Policy(command=parse_settings("test", self.settings))

    def write(self, hours: float, *ids: int, on: str = "main", name: str = "orders", **own: Any) -> TableMetadata:
        """Commit that long ago a version with these snapshots, and the files that it needs."""
        self.written += 1
        location = own.pop("location", f"{PLACE}/{name}")
        renamed = own.pop("renamed", None)
        self.clock.time = NOW - timedelta(hours=hours)
        snapshots = [
            snapshot(
                n,
                parent_id=before,
                timestamp=self.made.setdefault(n, self.clock.time),
                manifest_list=f"{location}/metadata/snap-{n}-u.avro",
                writer_properties=self.states.get(n, {}),
            )
            for before, n in zip((None, *ids), ids, strict=False)
        ]
        made = metadata(
            [],
            ref=TableRef("lake", own.pop("namespace", ("sales",)), name),
            snapshots=tuple(snapshots),
            location=location,
            metadata_location=f"{location}/metadata/v{self.written}.metadata.json",
            **{"last_updated": self.clock.time, "table_uuid": UUID if name == "orders" else f"uuid of {name}", **own},
        )
        self.lake.write(made, on, renamed=renamed)
        self._stored(made)
        for n in ids:
            self.put(f"{location}/metadata/snap-{n}-u.avro", f"{location}/metadata/m{n}-u.avro")
            self.put(f"{location}/data/d{n}-u.parquet")
        self.clock.time = NOW
        return made

    def put(self, *paths: str) -> None:
        """Put files there that are old."""
        self.files.contents |= dict.fromkeys(paths, b"")

    def _stored(self, made: TableMetadata) -> None:
        self.files.contents[made.metadata_location] = version(made.table_uuid)
        self.files.times[made.metadata_location] = self.clock.time

    def replaced(self) -> None:
        """Somebody drops the table and makes another of its name."""
        self.lake.drop(REF)
        self.write(0, 1, 2, 3, 4)

    def at(self, hours: float, act: Callable[[], None]) -> None:
        """Do something that long ago."""
        self.clock.time = NOW - timedelta(hours=hours)
        act()
        self.clock.time = NOW

    def run(self, **how: Any) -> dict[str, list[Outcome | IcewrightError]]:
        """Vacuum every table; what came of its expiry and its sweep."""
        survey = self.vacuum.survey(self.clock.now())
        done: dict[str, list[Outcome | IcewrightError]] = {}
        for table in survey.tables:
            for operation in (self.vacuum.expire, self.vacuum.sweep):
                try:
                    done.setdefault(table.ref.name, []).append(operation(VacuumOf(table, survey, "job", **how)))
                except IcewrightError as error:
                    done.setdefault(table.ref.name, []).append(error)
        return done

    def gone(self, **how: Any) -> set[str]:
        """The names of the files that a vacuum deletes."""
        before = {*self.files.contents}
        files = said(self.run(**how))
        assert set(map(name_of, before - self.files.contents.keys())) == files
        return files

    def does(self, **how: Any) -> tuple[Outcome, Outcome]:
        """Vacuum the one table, whose expiry and sweep both end well."""
        ((expired, swept),) = self.run(**how).values()
        assert isinstance(expired, Outcome)
        assert isinstance(swept, Outcome), swept
        return expired, swept

    def refuses(self, code: str = "", name: str = "orders", **how: Any) -> str:
        """Vacuum, and let a table's sweep be refused: nothing of it is deleted or written down."""
        before = {path for path in self.files.contents if f"/{name}/" in path}
        *_, error = self.run(**how)[name]
        assert isinstance(error, Refused), error
        assert error.code == code
        assert before <= self.files.contents.keys()
        return str(error)


def said(done: Mapping[str, Sequence[Outcome | IcewrightError]]) -> set[str]:
    """The names of the files that a vacuum says it has deleted, or would."""
    files = (f.path for both in done.values() for one in both if isinstance(one, Outcome) for f in one.files)
    return set(map(name_of, files))


def name_of(path: str) -> str:
    """A file's name without what all have."""
    return path.rpartition("/")[2].partition(".")[0].removesuffix("-u")


def of(*ids: int) -> set[str]:
    """The files of snapshots alone."""
    return {f"{kind}{n}" for n in ids for kind in ("snap-", "m", "d")}


def _commits(v: Vacuuming, *hours: float, **own: Any) -> None:
    """Versions of one snapshot each, as Nessie's REST side writes them."""
    for hour in hours:
        v.write(hour, len(v.made) + 1, **own)


def _history(v: Vacuuming, *hours: float, **own: Any) -> None:
    """Versions that have all snapshots, as the native client writes them."""
    for hour in hours:
        v.write(hour, *range(1, len(v.made) + 2), **own)


def _seen_by_another_commit(v: Vacuuming) -> None:
    _commits(v, 100)
    v.write(20, 8, name="returns")
    v.write(1, 2)


def _tagged(v: Vacuuming, write: Callable[..., None]) -> None:
    write(v, 100, 60)
    v.lake.create("v1", tag=True)
    write(v, 10, 1)


def _made_empty(v: Vacuuming) -> None:
    for hours in (100, 40):
        v.write(hours)
    _commits(v, 10)


def _old_branch(v: Vacuuming) -> None:
    _commits(v, 100, 60)
    v.lake.create("old")
    _commits(v, 10)


def _branches(v: Vacuuming) -> None:
    _history(v, 100, 60)
    v.lake.create("dev")
    v.write(55, 1, 2, 3)
    v.write(50, 1, 2, 4, on="dev")
    v.write(49, 1, 2, 4, 5, on="dev")


def _two_tables(v: Vacuuming) -> None:
    """The expiry of the second sees what that of the first leaves, as its commit comes after."""
    for hours, newest in ((100, 1), (60, 2)):
        v.write(hours, *range(1, newest + 1))
        v.write(hours, *range(11, 11 + newest), name="returns")


def _kept_by_its_own_age(v: Vacuuming) -> None:
    """What its age keeps is a version of the catalog, too."""
    _history(v, 100, 60, properties={"history.expire.max-snapshot-age-ms": str(80 * 3_600_000)})


def _staged(v: Vacuuming) -> None:
    _history(v, 100, 60)
    v.write(20, 1, 2, 3, current_snapshot_id=2)  # to which no ref leads


def _renewed(v: Vacuuming) -> None:
    for hours in (100, 60):
        v.write(hours, 1)


def _branch_deleted(v: Vacuuming) -> None:
    _commits(v, 100)
    v.lake.create("dev")
    v.write(30, 2, on="dev")
    _commits(v, 5)
    del v.lake.heads["dev"]


def _dropped_on_main(v: Vacuuming) -> None:
    _commits(v, 100)
    v.lake.create("kept")
    _commits(v, 60)
    v.at(50, lambda: v.lake.drop(REF))


def _dropped_lately(v: Vacuuming) -> None:
    _commits(v, 100, 60)
    v.write(20, 8, name="returns")
    v.at(10, lambda: v.lake.drop(REF))


def _dropped_everywhere(v: Vacuuming) -> None:
    _commits(v, 100)
    v.at(60, lambda: v.lake.drop(REF))
    v.write(55, 8, name="returns")


def _renamed(v: Vacuuming) -> None:
    before = v.write(100, 1)
    content = v.lake.tables(v.lake.heads["main"])["sales", "orders"]
    v.lake.create("dev")
    v.write(90, 2, on="dev", name="moved", location=ORDERS, table_uuid=before.table_uuid, renamed=content)
    v.write(80, 3, on="dev", name="moved", location=ORDERS, table_uuid=before.table_uuid)


@pytest.mark.parametrize(
    ("build", "gone", "on"),
    [
        pytest.param(lambda v: _commits(v, 100, 60, 10, 1), of(1, 2) | {"v1", "v2"}, "", id="commits"),
        pytest.param(lambda v: _commits(v, 100, 48, 1), of(1) | {"v1"}, "", id="as-old-as-the-cut-off"),
        pytest.param(_seen_by_another_commit, set(), "", id="seen-by-another-commit"),
        pytest.param(lambda v: _history(v, 100, 60, 10, 1), of(1, 2) | {"v1", "v2"}, "main", id="history"),
        pytest.param(lambda v: _tagged(v, _commits), of(1) | {"v1"}, "", id="tag"),
        pytest.param(lambda v: _tagged(v, _history), of(1) | {"v1"}, "main", id="history-behind-a-tag"),
        pytest.param(_made_empty, {"v1"}, "", id="made-empty"),
        pytest.param(_old_branch, of(1) | {"v1"}, "", id="old-branch"),
        pytest.param(_branches, of(1, 2, 4) | {"v1", "v2", "v3", "v4", "v5"}, "main dev", id="branches"),
        pytest.param(_two_tables, of(1, 11) | {"v1", "v2", "v3"}, "main main", id="two-tables"),
        pytest.param(_kept_by_its_own_age, of(1) | {"v1"}, "main", id="kept-by-its-own-age"),
        pytest.param(_branch_deleted, of(1, 2) | {"v1", "v2"}, "", id="branch-deleted"),
        pytest.param(_staged, of(1) | {"v1", "v2"}, "main", id="staged"),
        pytest.param(_dropped_on_main, of(2) | {"v2"}, "", id="dropped-on-main"),
        pytest.param(_dropped_lately, of(1) | {"v1"}, "", id="dropped-lately"),
        pytest.param(_dropped_everywhere, set(), "", id="dropped-everywhere"),
        pytest.param(_renamed, of(2) | {"v2"}, "", id="renamed"),
        pytest.param(lambda v: _history(v, 1.5, 1, properties=AGE), set(), "", id="age-of-the-table"),
    ],
)
def test_what_no_live_commit_sees_goes(build: Callable[[Vacuuming], None], gone: set[str], on: str) -> None:
    """Of a table that some live commit has; old snapshots leave its metadata on each branch."""
    v = Vacuuming()
    build(v)
    dry = said(v.run(dry_run=True))
    assert v.lake.expiries == []
    assert (v.gone(), v.lake.expiries) == (gone, on.split())
    assert dry == gone
    if on:
        planned = len(v.ledger.events)
        assert (v.gone(), len(v.ledger.events)) == (set(), planned)


def test_what_an_expiry_does_and_says() -> None:
    """One commit on each branch that has old snapshots; a tag has none, and the snapshots are counted once."""
    v = Vacuuming()
    _history(v, 100, 60)
    v.lake.create("dev")
    v.lake.create("a-tag", tag=True)  # between both
    v.write(1, 1, 2, 3)
    before = {name: v.lake.tables(one)["sales", "orders"] for name, one in v.lake.heads.items()}
    v.storage_time = lambda _: v.clock.advance(seconds=2)
    dry, _ = v.does(dry_run=True)
    assert (dry.summary, dry.notes) == (
        "would expire 2 snapshots on 2 branches",
        ("main: would expire 2 snapshots", "dev: would expire 1 snapshot"),
    )
    v.clock.time = NOW
    done, _ = v.does()
    assert (done.operation, done.summary) == (Operation.EXPIRE_SNAPSHOTS, "expired 2 snapshots on 2 branches")
    assert done.metrics == {"snapshots_expired": 2, "branches": 2}
    assert done.notes == ("main: expired 2 snapshots", "dev: expired 1 snapshot")
    after = {name: v.lake.tables(one)["sales", "orders"] for name, one in v.lake.heads.items()}
    left = {name: [*v.lake.read(content).by_id] for name, content in after.items()}
    assert left == {"main": [3], "dev": [2], "a-tag": [1, 2]}
    assert after["a-tag"] == before["a-tag"]
    again, _ = v.does()
    assert (again.state, again.summary, again.notes) == (OperationState.SKIPPED, NOTHING, ())


def _nothing(_: Vacuuming) -> None:
    """Nobody does anything."""


@pytest.mark.parametrize(
    ("times", "meanwhile", "expired", "slept"),
    [
        pytest.param(1, lambda v: v.write(0, 1, 2, 3, 4), [1, 2], 1, id="somebody-commits"),
        pytest.param(3, lambda v: v.write(0, 1, 2, 3, 4), [1, 2], 3, id="again-and-again"),
        pytest.param(4, lambda v: v.write(0, 1, 2, 3, 4), None, 3, id="too-often"),
        pytest.param(1, lambda v: v.write(0, 3), [], 1, id="somebody-expires"),
        pytest.param(1, lambda v: v.lake.drop(REF), [], 1, id="dropped"),
        pytest.param(1, lambda v: v.replaced(), [], 1, id="replaced"),
        pytest.param(1, lambda v: v.lake.heads.pop("main"), [], 1, id="branch-deleted"),
    ],
)
def test_an_expiry_that_is_overtaken(
    times: int, meanwhile: Callable[[Vacuuming], object], expired: list[int] | None, slept: int
) -> None:
    """It is planned anew on what the branch has now, four times at most; nothing is done to what is gone."""
    v, left = Vacuuming(), [times]
    _history(v, 100, 60)
    v.write(1, 1, 2, 3)
    v.lake.create("aaa", tag=True)  # which has the table too
    v.lake.heads = dict(sorted(v.lake.heads.items()))
    asked: list[set[int]] = []

    def overtake(_: TableMetadata, change: Change) -> None:
        assert isinstance(change, RemoveSnapshots)
        asked.append({*change.snapshot_ids})
        if left[0]:
            left[0] -= 1
            meanwhile(v)

    v.lake.before_commit = overtake
    survey = v.vacuum.survey(NOW)
    work = VacuumOf(survey.tables[0], survey, "job")
    if expired is None:
        with pytest.raises(CommitConflict):
            v.vacuum.expire(work)
    else:
        done = v.vacuum.expire(work)
        assert (done.metrics.get("snapshots_expired", 0), v.lake.expiries) == (len(expired), ["main"] * bool(expired))
        assert asked == [{1, 2}] * (times + bool(expired))
    assert v.clock.slept == [backoff(attempt).total_seconds() for attempt in range(1, slept + 1)]


def test_what_a_dry_run_would_expire_is_still_there() -> None:
    """A sweep by the same survey deletes no file of a snapshot that the branch still has."""
    v = Vacuuming()
    _history(v, 100, 60, 1)
    survey = v.vacuum.survey(NOW)
    dry, real = (VacuumOf(survey.tables[0], survey, "job", dry_run=how) for how in (True, False))
    v.vacuum.expire(dry)
    assert said({"": [v.vacuum.sweep(dry)]}) == of(1, 2) | {"v1", "v2"}
    assert said({"": [v.vacuum.sweep(real)]}) == {"v1", "v2"}


def test_the_cut_off_is_that_of_the_policy_where_nessie_has_none() -> None:
    """`vacuum.cutoff` of the catalog."""
    v = Vacuuming({"vacuum.cutoff": "PT200H"})
    v.lake.gc = None
    assert v.vacuum.survey(NOW).policy.at(NOW) == NOW - timedelta(hours=200)


def test_an_expiry_after_which_the_table_lacks_something() -> None:
    """The vacuum ends with an error that names table and branch."""
    v = Vacuuming()
    _history(v, 100, 60, 1)
    expire = v.lake.expire
    v.lake.expire = lambda *how: replace(expire(*how), refs=())  # type: ignore[method-assign]
    error, _ = v.run()["orders"]
    assert isinstance(error, InvariantViolated)
    assert re.match(r"lake\.sales\.orders on main: vacuum broke the table: .*; nothing deleted$", str(error)), error


@pytest.mark.parametrize(
    ("settings", "own", "kept"),
    [
        ({}, {"gc.enabled": "false"}, True),
        ({}, {"gc.enabled": "false", "created-at": "then"}, False),
        ({"vacuum.enabled": False}, {}, True),
        ({}, {"icewright.vacuum.enabled": "false"}, True),
        ({}, {}, False),
    ],
)
def test_a_table_that_keeps_everything(settings: dict[str, object], own: dict[str, str], kept: bool) -> None:
    """By the word of its user or of a policy, which Nessie's own default of `gc.enabled` is not."""
    v = Vacuuming(settings)
    _history(v, 100, 60, 1, properties=own)
    expired, swept = v.run()["orders"]
    assert isinstance(expired, Outcome)
    if kept:
        assert (str(swept), expired.notes) == (GC_DISABLED, (f"main: {GC_DISABLED}",))
        assert (v.files.lists, v.files.opened) == ([], [])
    assert bool(v.lake.expiries) is not kept


def test_one_branch_that_keeps_everything() -> None:
    """Snapshots expire on the others; no file of the table is deleted, nor one of a table in the same place."""
    v = Vacuuming()
    _history(v, 100, 60)
    v.lake.create("dev")
    v.lake.create("zeta")
    v.write(1, 1, 2, 3)
    v.write(1, 1, 2, 4, on="dev", properties={"gc.enabled": "false"})
    v.write(1, 8, name="within", location=f"{ORDERS}/within")
    v.write(1, 9, name="apart")
    done = v.run()
    assert v.lake.expiries == ["main", "zeta"]
    assert [str(done[name][1]) for name in ("orders", "within")] == [
        GC_DISABLED,
        f"lake.sales.orders lies in the same place: {GC_DISABLED}",
    ]
    assert isinstance(done["apart"][1], Outcome)


def test_a_table_that_comes_to_keep_everything_meanwhile() -> None:
    """Its files stay, by the mark before the plan, or by the proof after it."""
    v = Vacuuming()
    _history(v, 100, 60, 1)
    v.files.during = cast("Any", lambda: v.write(0, 1, 2, 3, 4, properties={"gc.enabled": "false"}))
    assert v.refuses() == GC_DISABLED
    v = Vacuuming()
    _history(v, 100, 60, 1)
    v.ledger.then["plan"] = lambda: v.write(0, 1, 2, 3, 4, properties={"gc.enabled": "false"})
    _, swept = v.does()
    assert (said({"": [swept]}), swept.metrics["files_failed"]) == (set(), 8)
    assert f"8 planned deletions left to the next start: {GC_DISABLED}" in swept.notes


def test_what_a_sweep_does_and_says() -> None:
    """What was found, deleted, failed and scanned, and how many snapshots went that no expiry of this run let go."""
    v = Vacuuming()
    _commits(v, 100, 60, 10)
    v.put(f"{ORDERS}/data/orphan.parquet", f"{PLACE}/other/data/x.parquet")
    v.files.failing[f"{ORDERS}/data/d1-u.parquet"] = "held"
    v.storage_time = lambda _: v.clock.advance(seconds=2)
    total = sum(path.startswith(ORDERS) for path in v.files.contents)
    _, dry = v.does(dry_run=True)
    assert (dry.summary, v.ledger.events) == ("would remove 9 files that no branch or tag reaches", [])
    v.clock.time = NOW
    _, swept = v.does()
    assert swept.summary == "removed 8 files that no branch or tag reaches"
    assert swept.operation is Operation.REMOVE_ORPHANS
    assert swept.metrics == {
        "orphans_found": 9,
        "orphans_removed": 8,
        "files_failed": 1,
        "bytes_deleted": 8,
        "files_scanned": total,
        "snapshots_expired": 2,
    }
    assert any("d1-u.parquet could not be deleted and is tried again: held" in note for note in swept.notes)
    (_, (job_id, ref, planned, state, at, until, operation)), *_ = v.ledger.events
    assert (job_id, ref, state, until) == ("job", REF, LedgerState.PLANNED, None)
    assert (at, operation) == (NOW + timedelta(seconds=2), Operation.REMOVE_ORPHANS)
    kinds = {file.path.rpartition("/")[2]: file.kind for file in planned}
    assert (kinds["orphan.parquet"], kinds["snap-1-u.avro"], kinds["m1-u.avro"], kinds["v1.metadata.json"]) == (
        "data", "manifest list", "manifest", "metadata",
    )  # fmt: skip
    assert {(file.bytes, file.modified) for file in planned if file.kind != "metadata"} == {(1, OLD)}


def test_a_folder_without_files() -> None:
    """Nothing is deleted, and no share of nothing is too much."""
    v = Vacuuming({"remove_orphans.max_delete_ratio": 0})
    moved = replace(v.write(1, 1), metadata_location="s3://lake/apart/v1.metadata.json")
    v.lake.write(moved)
    v.files.contents = {moved.metadata_location: version(UUID)}
    _, swept = v.does()
    assert (swept.metrics["files_scanned"], swept.files) == (0, ())


def test_a_sweep_that_leaves_files_for_later() -> None:
    """They are in the ledger until the end of the delay, and no other sweep plans them."""
    v = Vacuuming({"deletion.delay_hours": 2})
    _history(v, 100, 60, 10)
    expired, swept = v.does()
    assert swept.summary == ("removed 0 files that no branch or tag reaches, 8 wait until 2026-11-21 14:00 UTC")
    assert {"files_waiting": 8, "bytes_waiting": 8, "orphans_removed": 0, "snapshots_expired": 0}.items() <= (
        swept.metrics.items()
    )
    (_, planned), *others = v.ledger.events
    assert (planned[5], others) == (NOW + timedelta(hours=2), [])
    assert {file.path for file in planned[2]} == {file.path for file in swept.files}
    v.ledger.waiting = [file.path for file in planned[2]]
    assert v.does()[1].summary == "removed 0 files that no branch or tag reaches"
    assert expired.metrics["snapshots_expired"] == 2


@pytest.mark.cases(66)
@pytest.mark.parametrize(
    ("change", "age", "gone"),
    [
        ({}, timedelta(hours=24, microseconds=1), {"orphan"}),
        ({}, timedelta(hours=24), set()),
        ({"vacuum.grace_hours": 30}, timedelta(hours=30), set()),
        ({"vacuum.grace_hours": 30}, timedelta(hours=30, microseconds=1), {"orphan"}),
    ],
)
def test_files_of_the_grace_period_stay(change: dict[str, object], age: timedelta, gone: set[str]) -> None:
    """Counted back from the start of the sweep."""
    v = Vacuuming(change)
    v.lake.gc = None
    _commits(v, 1)
    v.put(f"{ORDERS}/data/orphan.parquet")
    v.files.times[f"{ORDERS}/data/orphan.parquet"] = NOW - age
    assert v.gone() == gone


def test_what_a_survey_finds() -> None:
    """Every live table with its heads, the own branch first, by its name there, or with that of another branch."""
    v = Vacuuming()
    _history(v, 100, 60)
    v.lake.create("zeta")
    v.lake.create("a-tag", tag=True)
    v.write(55, 9, on="zeta", name="beta")
    v.write(54, 9, 10, on="zeta", name="beta", properties={"write.data.path": "s3://lake/pool"})
    v.write(20, 8, name="returns")
    v.at(10, lambda: v.lake.drop(replace(REF, name="returns")))
    v.write(5, 7, name="alpha", last_updated=NOW - timedelta(days=9))
    v.write(4, 7, name="alpha", properties={"gc.enabled": "false"}, table_uuid="another")
    took = timedelta(seconds=1)
    tables = v.lake.tables

    def slowly(*how: Any) -> Any:
        v.clock.advance(seconds=1 / len(v.lake.heads))
        return tables(*how)

    v.lake.tables = slowly  # type: ignore[method-assign,assignment]
    survey = v.vacuum.survey(NOW)
    assert survey.policy == CutoffPolicy(timedelta(hours=48), None, timedelta(hours=24), "Nessie's configuration")
    assert (survey.taken, {*survey.references}) == (NOW, {*v.lake.heads.values()})
    assert survey.seconds >= took.total_seconds()
    assert [str(one.ref) for one in survey.tables] == [
        "lake.sales.alpha", "lake.sales.beta@zeta", "lake.sales.orders", "lake.sales.returns@",
    ]  # fmt: skip
    alpha, beta, orders, returns = survey.tables
    assert [head.reference.name for head in orders.heads] == ["main", "a-tag", "zeta"]
    assert [[head.reference.name for head in one.heads] for one in (alpha, beta, returns)] == [["main"], ["zeta"], []]
    assert [sorted(name_of(c.metadata_location) for c in one.versions) for one in survey.tables] == [
        ["v6", "v7"], ["v4"], ["v2"], ["v5"],
    ]  # fmt: skip
    assert [sorted(one.snapshots) for one in survey.tables] == [[7], [9, 10], [1, 2], [8]]
    assert [one.table_uuid for one in survey.tables] == ["another", "uuid of beta", UUID, "uuid of returns"]
    assert [one.location for one in survey.tables] == [f"{PLACE}/{n}" for n in ("alpha", "beta", "orders", "returns")]
    assert [one.write_paths for one in survey.tables] == [(), ("s3://lake/pool",), (), ()]
    assert [one.collect for one in survey.tables] == [False, True, True, True]
    assert {(one.problem, one.denied, one.missing) for one in survey.tables} == {("", 0, 0)}


def test_commits_and_metadata_files_are_read_once() -> None:
    """Whatever branches have in common, and in one vacuum; the next survey reads all anew."""
    v = Vacuuming()
    _commits(v, 40, 30, 20)
    v.lake.create("dev")
    v.write(10, 9, on="dev")
    v.lake.create("behind", at="0002")
    v.vacuum.survey(NOW)
    commits = [one for one in v.lake.looked_at if "/" not in one]
    assert sorted(commits) == ["0001", "0002", "0003", "0004"]
    files = [name_of(one) for one in v.lake.looked_at if "/" in one]
    assert sorted(files) == ["v1", "v2", "v3", "v4"]
    v.lake.looked_at.clear()
    survey = v.vacuum.survey(NOW)
    assert len(v.lake.looked_at) == 8
    v.lake.looked_at.clear()
    v.write(5, 10)
    work = VacuumOf(survey.tables[0], survey, "job")
    v.vacuum.sweep(work)
    assert sorted(map(name_of, v.lake.looked_at)) == ["0005", "v2", "v4", "v5"]  # two by the registry of tables


def test_commits_are_told_once_and_in_order() -> None:
    """Whichever of them were read before; one request tells all that were not."""
    v = Vacuuming()
    _commits(v, 300, 200, 60, 10)
    asked: list[str] = []
    log = v.lake.log

    def asking(at: Reference) -> Iterator[Commit]:
        asked.append(at.hash)
        return log(at)

    v.lake.log = asking  # type: ignore[method-assign,assignment]
    for at, requests in (("0004", ["0004"]), ("0004", ["0"]), ("0003", ["0"]), ("0005", ["0005", "0"])):
        if at == "0005":
            _commits(v, 5)
        told = [one.hash for one in v.contents._log(Reference("main", is_branch=True, hash=at))]
        assert told == [f"000{n}" for n in range(int(at), 0, -1)]
        assert asked == requests
        asked.clear()
    v.lake.create("dev")
    v.write(1, 9, on="dev", properties={"history.expire.max-snapshot-age-ms": str(250 * 3_600_000)})
    for _ in range(2):
        (table,) = v.contents.survey(v.vacuum._policy(NOW), NOW).tables
        assert {name_of(c.metadata_location) for c in table.versions} == {f"v{n}" for n in range(2, 7)}


def test_a_table_that_is_renamed_on_the_own_branch() -> None:
    """Its name is that of the head, whatever live versions are called."""
    v = Vacuuming()
    v.write(20, 1, name="aaa", last_updated=NOW)  # by a clock that was ahead
    before = v.lake.tables(v.lake.heads["main"])["sales", "aaa"]
    v.write(10, 2, name="zzz", namespace=("tv", "sales"), renamed=before)
    (table,) = v.vacuum.survey(NOW).tables
    assert {str(table.ref), str(v.vacuum._base(table).ref)} == {"lake.tv.sales.zzz"}


def test_a_log_is_read_to_where_a_table_may_need_it() -> None:
    """To the cut-off, or until the newest snapshots are found that a table keeps."""
    v = Vacuuming()
    _commits(v, 200, 150, 100, 60, 10)
    v.vacuum.survey(NOW)
    assert [one for one in v.lake.looked_at if "/" not in one] == ["0005", "0004"]
    v.lake.looked_at.clear()
    v.write(1, 5, properties={"history.expire.min-snapshots-to-keep": "2"})
    v.vacuum.survey(NOW)
    assert [one for one in v.lake.looked_at if "/" not in one] == ["0006", "0005", "0004"]
    v.write(1, 4, 5, properties={"history.expire.min-snapshots-to-keep": "2"})
    v.lake.looked_at.clear()
    v.vacuum.survey(NOW)
    assert [one for one in v.lake.looked_at if "/" not in one] == ["0007", "0006", "0005", "0004"]


@pytest.mark.parametrize(
    ("settings", "own", "live"),
    [
        ({}, {}, {"v4"}),
        ({}, {"history.expire.min-snapshots-to-keep": "3"}, {"v4", "v3", "v2"}),
        ({"expire_snapshots.min_snapshots_to_keep": 2}, {}, {"v4", "v3"}),
        ({}, {"history.expire.max-snapshot-age-ms": str(80 * 3_600_000)}, {"v4", "v3"}),
    ],
)
def test_what_a_table_keeps_beyond_the_cut_off(
    settings: dict[str, object], own: dict[str, str], live: set[str]
) -> None:
    """As many of its newest snapshots as its properties say, or the policy, or those of a longer age."""
    v = Vacuuming(settings)
    _commits(v, 300, 200, 60, 50, properties=own)
    (table,) = v.vacuum.survey(NOW).tables
    assert {name_of(c.metadata_location) for c in table.versions} == live
    v = Vacuuming(settings)
    _history(v, 300, 200, 60, 50, properties=own)
    (table,) = v.vacuum.survey(NOW).tables
    named = live if "history.expire.max-snapshot-age-ms" in own else {"v4"}  # as the head describes the others
    assert {name_of(c.metadata_location) for c in table.versions} == named
    v.does()
    (content,) = v.lake.tables(v.lake.heads["main"]).values()
    assert len(v.lake.read(content).snapshots) == len(live)


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("history.expire.min-snapshots-to-keep", "'some' is not a whole number"),
        ("history.expire.max-snapshot-age-ms", "'some' is not a whole number"),
        ("icewright.vacuum.enabled", "'some' is not true or false"),
    ],
)
def test_a_property_that_nobody_understands(name: str, why: str) -> None:
    """On whatever branch: nothing of the table is touched or in its place, and all others are vacuumed."""
    v = Vacuuming()
    _history(v, 100, 60)
    v.lake.create("dev")
    v.write(1, 1, 2, 3)
    v.write(1, 1, 2, 4, on="dev", properties={name: "some"})
    v.write(1, 9, name="within", location=f"{ORDERS}/within")
    _commits(v, 100, 60, 1, name="returns")
    survey = v.vacuum.survey(NOW)
    (orders,) = [one for one in survey.tables if one.problem]
    assert why in orders.problem
    assert orders.problem in v.refuses()
    assert v.refuses(name="within") == f"lake.sales.orders may have files in the same place: {orders.problem}"
    assert isinstance(v.run()["returns"][1], Outcome)


@pytest.mark.parametrize(("error", "counts"), [(AccessDenied("shut"), (1, 0)), (FileMissing("lost"), (0, 1))])
def test_metadata_that_cannot_be_read(error: IcewrightError, counts: tuple[int, int]) -> None:
    """Of a head, or of a live version whose snapshot no head describes: the table stays as it is, and says why."""
    for hours, branch in ((1, ""), (10, ""), (1, "dev")):
        v = Vacuuming()
        _history(v, 100, 60)
        if branch:
            v.lake.create(branch)
        torn = v.write(10, 1, 2, 8, on=branch or "main")
        v.write(1, 1, 2, 9)
        if not branch and hours == 1:
            torn = v.write(0.5, 1, 2, 9)
        v.lake.unreadable[torn.metadata_location] = error
        (table,) = v.vacuum.survey(NOW).tables
        assert (table.problem, table.denied, table.missing) == (str(error), *counts)
        assert table.location == ORDERS
        assert str(error) in v.refuses()
    v = Vacuuming()
    torn = v.write(40, 1)
    v.write(30, 1)
    v.lake.unreadable[torn.metadata_location] = error
    assert v.vacuum.survey(NOW).tables[0].problem == ""  # as the head describes its snapshot
    v.put(f"{ORDERS}/data/orphan.parquet")
    assert v.gone() == {"orphan"}


def test_a_table_of_which_nothing_can_be_read() -> None:
    """Nothing in the folder of its metadata is deleted, nor in places where it was ever seen to have files."""
    for seen in ("", "places", "folders"):
        v = Vacuuming()
        lost = v.write(1, 9, name="lost", location=f"{ORDERS}/lost" if not seen else f"{PLACE}/lost")
        if seen:
            places, folders = ((f"{ORDERS}/data",), ()) if seen == "places" else ((), (f"{ORDERS}/data/",))
            one = Registration(lost.ref, lost.table_uuid, lost.metadata_location, places, folders)
            v.world.recorded.rows[one.key] = one
        v.lake.unreadable[lost.metadata_location] = FileMissing("lost it")
        _commits(v, 100, 60, 1)
        assert {one.table_uuid for one in v.vacuum.survey(NOW).tables} == {"", UUID}
        assert v.refuses() == "lake.sales.lost may have files in the same place: lost it"
        assert "lost it" in v.refuses(name="lost")
        v.lake.unreadable.clear()
        v.files.torn[lost.snapshots[0].manifest_list or ""] = FileMissing("its list")
        assert str(v.run()["orders"][1]) == "its list"
        if seen:
            v.lake.drop(lost.ref)
            v.clock.advance(days=3)
            assert isinstance(v.run()["orders"][1], Outcome)


@pytest.mark.cases(110)
def test_lists_that_cannot_be_read() -> None:
    """While one of the table is torn, nothing of it expires or goes; tables elsewhere are vacuumed."""
    v = Vacuuming()
    _history(v, 100, 60, 1)
    v.write(100, 9, name="returns")
    v.write(1, 9, 10, name="returns")
    v.files.torn[f"{ORDERS}/metadata/snap-3-u.avro"] = FileMissing("torn")
    done = v.run()
    assert [str(one) for one in done["orders"]] == ["torn", "torn"]
    assert (v.lake.expiries, said(done)) == (["main"], of(9) | {"v4"})
    v.files.torn = {f"{ORDERS}/metadata/snap-1-u.avro": FileMissing("torn")}  # which is to expire
    v.settings["remove_orphans.max_delete_ratio"] = 1
    assert v.gone() == of(1, 2) | {"v1", "v2"}


def test_a_version_without_its_snapshot() -> None:
    """Nobody can tell what its commit shows: nothing goes."""
    v = Vacuuming()
    v.write(20, 1)
    content = v.lake.tables(v.lake.heads["main"])["sales", "orders"]
    v.lake._states["0001"] = {content.key: replace(content, snapshot_id=77)}
    v.lake._commits["0001"] = replace(
        v.lake._commits["0001"], changes=(KeyChange(content.key, replace(content, snapshot_id=77)),)
    )
    v.write(10, 2)
    assert str(v.run()["orders"][1]) == f"{content.metadata_location} does not have its snapshot 77"


def test_a_table_beside_one_that_cannot_be_read() -> None:
    """It keeps what its own properties say, also where two snapshots are all that its history has."""
    v = Vacuuming()
    torn = v.write(200, 9, name="aaa")
    v.lake.unreadable[torn.metadata_location] = FileMissing("lost")
    _commits(v, 100)
    v.write(90, 1, 2, properties={"history.expire.max-snapshot-age-ms": str(120 * 3_600_000)})
    v.write(80, 8, name="bbb")
    v.write(70, 8, 7, name="bbb", properties={"history.expire.min-snapshots-to-keep": "3"})
    versions = [{name_of(c.metadata_location) for c in one.versions} for one in v.vacuum.survey(NOW).tables]
    assert versions == [{"v1"}, {"v5"}, {"v2", "v3"}]


def test_refs_and_statistics_of_live_versions() -> None:
    """Iceberg's own branches and tags stay with their snapshots, of heads and of live commits; statistics alike."""
    v = Vacuuming()
    tag = [SnapshotRef("pin", RefKind.TAG, 1)]
    files = {n: StatisticsFile(n, f"{ORDERS}/metadata/stats-{n}-u.puffin", 1) for n in (1, 2, 3)}
    parts = {n: StatisticsFile(n, f"{ORDERS}/metadata/part-{n}-u.parquet", 1) for n in (1, 2, 3)}
    v.put(*(one.path for both in (files, parts) for one in both.values()))
    statistics: dict[str, Any] = {"statistics": (*files.values(),), "partition_statistics": (*parts.values(),)}
    v.write(100, 1)
    v.write(60, 1, 2)
    v.write(10, 1, 2, 3, refs=tag, **statistics)
    assert v.gone() == of(2) | {"v1", "v2", "stats-2", "part-2"}
    v = Vacuuming()
    v.put(*(one.path for both in (files, parts) for one in both.values()))
    v.write(100, 1)
    v.write(60, 1, 2)
    v.write(10, 1, 2, 3, refs=[*tag, SnapshotRef("lost", RefKind.TAG, 77)], **statistics)
    v.write(5, 4)  # as nobody else describes snapshot 3, the version before is read
    assert v.gone() == of(2) | {"v1", "v2", "stats-2", "part-2"}
    v = Vacuuming()
    v.put(files[1].path, parts[1].path)
    v.write(10, 1, statistics=(files[1],), partition_statistics=(parts[1],))
    assert v.gone() == set()  # a head that nothing expires from


def test_what_a_table_borrowed_that_keeps_everything() -> None:
    """It stays, though only an old snapshot behind a tag of that table reads it."""
    for keeps in (True, False):
        v = Vacuuming()
        own: dict[str, Any] = {"properties": {"gc.enabled": "false"}} if keeps else {}
        v.write(100, 21, name="keeper", **own)
        v.write(60, 21, 22, name="keeper", **own)
        v.lake.create("v1", tag=True)
        v.lake.drop(replace(REF, name="keeper"))
        v.write(1, 1)
        v.files.also[f"{PLACE}/keeper/metadata/m21-u.avro"] = [f"{ORDERS}/data/borrowed.parquet"]
        v.put(f"{ORDERS}/data/borrowed.parquet", f"{ORDERS}/data/orphan.parquet")
        assert said({"": v.run()["orders"]}) == {"orphan"} | (set() if keeps else {"borrowed"})


def test_pinned_snapshots_stay() -> None:
    """A reader needs them, and all later ones."""
    v = Vacuuming()
    _history(v, 100, 80, 60, 1)
    v.holds = [SnapshotHold(2, "flink", NOW + timedelta(days=1))]
    assert v.gone() == of(1) | {"v1", "v2", "v3"}


@pytest.mark.cases(138, 141)
def test_states_of_streaming_writers() -> None:
    """They stay on each branch, and so do files that the writer may have written since; a rule lets both go."""
    flink = {"flink.job-id": "j1", "flink.max-committed-checkpoint-id": "6"}
    for days, gone in ((30, set()), (0, of(1, 2) | {"uncommitted"})):
        v = Vacuuming({"expire_snapshots.writer_state_days": days})
        v.states[2] = flink
        _history(v, 100, 60)
        v.lake.create("dev")
        v.write(1, 1, 2, 3, on="dev")
        v.lake.drop(REF)
        v.put(f"{ORDERS}/data/uncommitted.parquet")
        v.files.times[f"{ORDERS}/data/uncommitted.parquet"] = NOW - timedelta(hours=59)
        for path in [*v.files.contents]:
            v.files.times.setdefault(path, NOW - timedelta(hours=100))
        expired, swept = v.does()
        kept = [note for note in swept.notes if "which may commit them when it starts again" in note]
        assert bool(kept) is bool(days)
        assert gone <= said({"": [swept]})
        assert ("uncommitted" in said({"": [swept]})) is not bool(days)
        assert (f"{ORDERS}/data/d2-u.parquet" in v.files.contents) is bool(days)
        assert any("checkpoint 6" in note and note.startswith("dev: ") for note in expired.notes)


def test_a_share_of_orphans_that_no_expiry_explains() -> None:
    """They stay beyond the ratio; what expired snapshots had does not count, and neither do files elsewhere."""
    look = "raise remove_orphans.max_delete_ratio by a rule of the table, and look at `icewright vacuum lake --dry-run`"
    for more, ratio, refused in ((0, 2 / 12, False), (1, 2 / 12, True), (1, 3 / 13, False)):
        v = Vacuuming({"remove_orphans.max_delete_ratio": ratio})
        _history(v, 100, 60, 1)
        v.put(*(f"{ORDERS}/data/orphan-{n}.parquet" for n in range(more)))
        for how in ({"dry_run": True}, {}):
            *_, swept = v.run(**how)["orders"]
            assert isinstance(swept, Refused) is refused, swept
            if refused:
                assert str(swept) == (
                    f"lake.sales.orders: 3 of {14 - len(how)} files look like orphans, more than max_delete_ratio "
                    f"0.166667: {look} [max_delete_ratio]"
                )


def test_files_of_other_tables_and_places() -> None:
    """What another catalog reads stays; a write path is swept where it is the table's own, and there."""
    v = Vacuuming()
    own = {"write.data.path": "s3://lake/pool", "write.metadata.path": "s3://lake/none"}
    v.write(1, 1, properties=own)
    v.put("s3://lake/pool/orphan.parquet", f"{ORDERS}/data/guests.parquet", f"{ORDERS}/data/orphan2.parquet")
    _, swept = v.does(dry_run=True)
    assert said({"": [swept]}) == {"orphan", "orphan2", "guests"}
    assert "s3://lake/none is not scanned: there is no such folder" in swept.notes
    guests = v.world.pond.put(guest(snapshots=(snapshot(5, manifest_list="s3://pond/metadata/snap-5-u.avro"),)))
    v.files.contents[guests.metadata_location] = version("guest")
    v.files.also["s3://pond/metadata/m5-u.avro"] = [f"{ORDERS}/data/guests.parquet"]
    v.files.folders = {guests.ref: [f"{ORDERS}/data"]}
    _, swept = v.does()
    assert said({"": [swept]}) == {"orphan", "orphan2"}
    assert any("1 file kept: pond.sales.guest reads them: " in note for note in swept.notes)
    v.put("s3://lake/pool/orphan.parquet", f"{ORDERS}/data/orphan2.parquet")
    v.world.pond.put(guest("other", replace(guests.ref, name="other"), "s3://lake/pool"))
    _, swept = v.does()
    assert said({"": [swept]}) == {"orphan2"}
    assert any("s3://lake/pool is not scanned: it overlaps the place of pond.sales.other" in one for one in swept.notes)


def test_another_catalog_takes_a_file_after_the_plan() -> None:
    """The proof finds it."""
    v = Vacuuming()
    v.write(1, 1)
    v.put(f"{ORDERS}/data/orphan.parquet", f"{ORDERS}/data/orphan2.parquet")

    def take() -> None:
        guests = v.world.pond.put(guest(snapshots=(snapshot(5, manifest_list="s3://pond/metadata/snap-5-u.avro"),)))
        v.files.contents[guests.metadata_location] = version("guest")
        v.files.also["s3://pond/metadata/m5-u.avro"] = [f"{ORDERS}/data/orphan.parquet"]
        v.files.folders = {guests.ref: [f"{ORDERS}/data"]}

    v.ledger.then["plan"] = take
    _, swept = v.does()
    assert said({"": [swept]}) == {"orphan2"}
    assert any("1 planned file kept: pond.sales.guest reads them" in note for note in swept.notes)
    v = Vacuuming()
    v.write(1, 1, properties={"write.data.path": "s3://lake/pool"})
    v.put("s3://lake/pool/orphan.parquet", f"{ORDERS}/data/orphan2.parquet")
    v.ledger.then["plan"] = lambda: v.world.pond.put(guest(location="s3://lake/pool"))
    assert v.gone() == {"orphan2"}


@pytest.mark.cases(67)
def test_what_becomes_live_meanwhile() -> None:
    """A commit during the listing, and a tag or branch between plan and deletion, keep what they see."""
    v = Vacuuming()
    _commits(v, 100, 60, 10)
    v.files.during = lambda: v.lake.create("v1", tag=True, at="0001")
    assert v.gone() == of(2) | {"v2"}
    v = Vacuuming()
    _commits(v, 100, 60, 10)
    v.ledger.then["plan"] = lambda: v.lake.create("late", at="0001")
    _, swept = v.does()
    assert said({"": [swept]}) == of(2) | {"v2"}
    assert any(note.startswith("4 planned files kept: a branch or tag reaches it: ") for note in swept.notes)
    assert v.files.lists.count(f"{ORDERS}/metadata/snap-3-u.avro") == 2  # by the probe of the expiry, and the mark


@pytest.mark.parametrize(
    ("build", "late", "stay"),
    [
        pytest.param(lambda v: _commits(v, 100, 60, 10), lambda v: v.lake.create("late", at="0001"), of(1) | {"v1"}),
        pytest.param(lambda v: _tagged(v, _history), lambda v: v.lake.create("late", of="v1"), of(1), id="snapshots"),
        pytest.param(_renewed, lambda v: v.lake.create("late", at="0001"), {"v1"}, id="metadata-file"),
    ],
)
def test_what_becomes_live_after_the_plan(
    build: Callable[[Vacuuming], None],
    late: Callable[[Vacuuming], None],
    stay: set[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All that a branch names stays, in each later batch too: old snapshots, those new to the mark, its metadata."""
    monkeypatch.setattr(deletion, "BATCH", 1)
    v, without = Vacuuming(), Vacuuming()
    build(v)
    build(without)
    v.ledger.then["plan"] = lambda: late(v)
    assert without.gone() - v.gone() == stay


def test_what_becomes_live_after_the_plan_and_cannot_be_read() -> None:
    """Nothing is deleted: nobody can tell what it reaches."""
    v = Vacuuming()
    _commits(v, 100, 60, 10)

    def late() -> None:
        v.lake.create("late", at="0001")
        v.files.torn[f"{ORDERS}/metadata/snap-1-u.avro"] = FileMissing("torn")

    v.ledger.then["plan"] = late
    _, swept = v.does()
    assert (swept.files, "8 planned deletions left to the next start: torn" in swept.notes) == ((), True)


@pytest.mark.parametrize("when", ["listing", "plan"])
def test_a_table_that_is_dropped_while_it_is_swept(when: str) -> None:
    """Its commits are older than the cut-off, so that nothing of it is live any more: all its files stay."""
    v = Vacuuming()
    _commits(v, 100, 60)
    before = {*v.files.contents}
    if when == "listing":
        v.files.during = lambda: v.lake.drop(REF)
        assert v.refuses() == f"lake.sales.orders: {GONE}"
    else:
        v.ledger.then["plan"] = lambda: v.lake.drop(REF)
        _, swept = v.does()
        assert f"4 planned deletions left to the next start: lake.sales.orders: {GONE}" in swept.notes
    assert {*v.files.contents} == before


def test_a_branch_that_is_deleted_between_two_vacuums() -> None:
    """What it alone read goes then."""
    v = Vacuuming()
    _commits(v, 100)
    v.lake.create("dev")
    _commits(v, 60)
    assert v.gone() == set()
    del v.lake.heads["dev"]
    assert v.gone() == of(1) | {"v1"}


def test_what_a_vacuum_that_ended_early_left() -> None:
    """The files of snapshots that it let expire go with the next, which counts these as its own."""
    for delay in (0, 2):
        v = Vacuuming({"deletion.delay_hours": delay})
        _history(v, 100, 60, 1)
        survey = v.vacuum.survey(NOW)
        v.vacuum.expire(VacuumOf(survey.tables[0], survey, "job"))
        expired, swept = v.does()
        assert (expired.summary, swept.metrics["snapshots_expired"]) == (NOTHING, 2)
        assert said({"": [swept]}) == of(1, 2) | {"v1", "v2"}


def test_the_newest_version_says_where_files_are_looked_for() -> None:
    """Whatever versions of other branches and tags say; messages have the name of the own branch."""
    v = Vacuuming()
    content = v.lake.write(v.write(1, 1, name="older"))
    v.lake.create("dev")
    v.write(50, 1, on="dev", name="aaa", location=f"{PLACE}/older", renamed=content)
    v.write(0.5, 1, name="older", table_uuid="uuid of older", properties={"write.data.path": "s3://lake/pool"})
    v.put("s3://lake/pool/orphan.parquet")
    v.lake.create("zzz")
    assert v.gone() == {"orphan"}


def test_a_mark_is_read_once_for_all_tables() -> None:
    """Each list and manifest once, however many tables are swept; a dry run and a survey begin anew."""
    v = Vacuuming()
    _history(v, 100, 1, name="aaa")
    v.write(1, 9, name="bbb", properties={"write.data.path": f"{PLACE}/aaa/of-bbb"})
    v.run()
    assert v.files.lists.count(f"{PLACE}/bbb/metadata/snap-9-u.avro") == 2
    assert v.lake.expiries == ["main"]
    lists = len(v.files.lists)
    v.run(dry_run=True)
    assert len(v.files.lists) > lists


def test_a_table_marked_before_it_expires() -> None:
    """By the sweep of another: what it no longer reaches goes in the same vacuum, and what was unreadable is read."""
    v = Vacuuming()
    v.write(1, 9, name="aaa")
    for hours, n in ((100, 1), (60, 2), (1, 3)):
        v.write(hours, *range(1, n + 1))
    v.put(f"{PLACE}/aaa/data/orphan.parquet")
    v.files.torn[f"{ORDERS}/metadata/snap-3-u.avro"] = FileMissing("torn")
    v.ledger.then["plan"] = v.files.torn.clear
    assert v.gone() == of(1, 2) | {"v2", "v3", "orphan"}


@pytest.mark.cases(111)
def test_metadata_files_that_no_branch_reaches() -> None:
    """Another table's or another writer's stop the sweep until they are adopted, and so does one that is shut."""
    for uuid, adopted, code in ((UUID, False, ""), ("other", False, "foreign_metadata"), ("other", True, "")):
        v = Vacuuming()
        v.write(1, 1)
        v.files.contents |= strange(f"{ORDERS}/metadata/x.metadata.json", uuid=uuid)
        if adopted:
            v.world.recorded.words[UUID] = frozenset({"other"})
        if code:
            v.refuses(code)
        else:
            assert v.gone() == {"x"}
    v = Vacuuming()
    v.write(1, 1)
    for number in range(1000):  # all are looked at
        uuid = "other" if number == 999 else UUID
        v.files.contents |= strange(f"{ORDERS}/metadata/{number:05d}-dead.metadata.json", uuid=uuid)
    assert "00999-dead" in v.refuses("foreign_metadata")
    v = Vacuuming()
    v.write(1, 1)
    v.put(f"{ORDERS}/metadata/y.metadata.json")
    v.files.shut = {f"{ORDERS}/metadata/y.metadata.json": MetadataUnreadable("y is shut")}
    assert "y is shut" in v.refuses("foreign_metadata")


def test_names_under_two_prefixes() -> None:
    """One path under two schemes stops the sweep, unless they are said to be equal, or ignored."""
    for settings, stopped in (
        ({}, True),
        ({"remove_orphans.prefix_mismatch": "ignore"}, False),
        ({"remove_orphans.equal_schemes": {"oss": "s3"}}, False),
    ):
        v = Vacuuming(settings)
        made = v.write(1, 1)
        v.put(f"{ORDERS}/data/orphan.parquet")
        v.files.also[f"{ORDERS}/metadata/m1-u.avro"] = [f"{ORDERS}/data/d1-u.parquet".replace("s3:", "oss:")]
        assert made
        if stopped:
            assert "files are listed under s3://lake and named by the metadata under oss://lake" in v.refuses()
        else:
            assert v.gone() == {"orphan"}
    v = Vacuuming({"remove_orphans.equal_authorities": {"lake2": "lake"}})
    v.write(1, 1)
    v.files.also[f"{ORDERS}/metadata/m1-u.avro"] = [f"{ORDERS}/data/d1-u.parquet".replace("//lake", "//lake2")]
    assert v.gone() == set()


def test_a_file_that_may_be_a_live_one_under_another_path() -> None:
    """A live file that was not listed where the table has it may be the orphan of its name."""
    v = Vacuuming()
    v.write(1, 1)
    v.put(f"{ORDERS}/data/ONE.parquet", f"{ORDERS}/data/two.parquet")
    v.files.also[f"{ORDERS}/metadata/m1-u.avro"] = ["s3://lake/elsewhere/one.parquet"]
    assert v.gone() == {"two"}
    v = Vacuuming()
    v.write(1, 1)
    v.files.unlisted.add(f"{ORDERS}/data/d1-u.parquet")
    v.refuses("incomplete_listing")


@pytest.mark.parametrize("case", ["moved", "photo", "document", "folder", "fine"])
def test_what_an_automatic_sweep_leaves_to_a_person(case: str) -> None:
    """A place that the table came to, files that no writer of tables leaves, and folders without files of the table."""
    v = Vacuuming()
    v.write(100, 1)
    made = v.write(1, 2)
    paths = {"photo": "data/photo.jpg", "folder": "apart/x.parquet", "fine": "data/old.parquet"}
    v.put(f"{ORDERS}/{paths.get(case, 'data/x.parquet')}")
    if case == "document":
        v.files.contents[f"{ORDERS}/metadata/x.metadata.json"] = b"{}"
    first = (f"{PLACE}/before",) if case == "moved" else (ORDERS,)
    one = Registration(made.ref, UUID, made.metadata_location, (*first, ORDERS), first_places=first)
    v.world.recorded.rows[one.key] = one
    v.files.times[f"{ORDERS}/data/old.parquet"] = NOW - timedelta(days=99)
    if case == "fine":
        assert v.gone(automatic=True) == of(1) | {"v1", "old"}
        return
    v.refuses("moved_location" if case == "moved" else "unnamed_files", automatic=True)
    assert v.gone() > of(1)


@pytest.mark.cases(112)
def test_clocks_that_disagree() -> None:
    """Nothing expires and nothing goes, in any place of the table, also by a clock that was mended since the survey."""
    v = Vacuuming()
    _history(v, 100, 60, 1, properties={"write.data.path": "s3://lake/pool"})
    v.put("s3://lake/pool/x.parquet")
    for at in (lambda _: NOW - timedelta(hours=2), lambda folder: NOW - timedelta(hours=2 * ("pool" in folder))):
        v.storage_time = at
        v.refuses("clock_skew")
    assert v.lake.expiries == ["main"]  # whose metadata lies in the location
    v = Vacuuming()
    _history(v, 100, 60, 1)
    survey = v.vacuum.survey(NOW + timedelta(hours=2))
    for operation in (v.vacuum.expire, v.vacuum.sweep):
        with pytest.raises(Refused, match="clock_skew"):
            operation(VacuumOf(survey.tables[0], survey, "job"))
    assert v.lake.expiries == []


def test_a_vacuum_is_stopped() -> None:
    """Before a commit, and before a batch of deletions."""
    v = Vacuuming()
    _history(v, 100, 60, 1)
    asked: list[str] = []

    def stop() -> None:
        asked.append("stop")
        raise Cancelled("enough")

    before = {*v.files.contents}
    assert [type(one) for one in v.run(check=stop)["orders"]] == [Cancelled, Cancelled]
    assert (v.lake.expiries, asked, {*v.files.contents}) == ([], ["stop"] * 2, before)
    assert v.ledger.names == ["plan", "record"]  # that all of it stays


def _unfinished(*paths: str, uuid: str = UUID, due: datetime | None = None) -> Unfinished:
    files = tuple(FileAction(path, 1, "data", OLD) for path in paths)
    return Unfinished("left", REF, uuid, (Operation.REMOVE_ORPHANS,), files, NOW, None, due)


def test_what_an_earlier_job_left_is_finished() -> None:
    """Proved against all that is live now; of a table that is gone everything stays."""
    v = Vacuuming()
    _commits(v, 100, 60, 10)
    paths = [f"{ORDERS}/data/{name}.parquet" for name in ("d1-u", "d3-u")]
    done = v.vacuum.resume(_unfinished(*paths), NOW)
    assert (done.summary, said({"": [done]})) == ("finished deleting 1 file of job left", {"d1"})
    assert done.operation is Operation.REMOVE_ORPHANS
    assert {"files_deleted": 1, "files_failed": 0, "bytes_deleted": 1}.items() <= done.metrics.items()
    assert any("1 planned file kept: a branch or tag reaches it" in note for note in done.notes)
    assert paths[0] not in v.files.contents
    v.ledger.events.clear()
    done = v.vacuum.resume(_unfinished(*paths, uuid="gone"), NOW)
    assert (done.summary, done.metrics["files_failed"]) == ("finished deleting 0 files of job left", 2)
    assert done.notes == ("no branch or tag has the table any more",)
    states, why = (
        dict.fromkeys(paths, LedgerState.KEPT),
        dict.fromkeys(paths, "no branch or tag has the table any more"),
    )
    assert v.ledger.events == [("record", ("left", states, NOW, why))]


@pytest.mark.cases(112)
def test_an_earlier_job_by_a_clock_that_was_wrong() -> None:
    """Its delay may not have ended."""
    v = Vacuuming()
    _commits(v, 100, 60, 10)
    unfinished = _unfinished(f"{ORDERS}/data/d1-u.parquet", due=NOW + timedelta(hours=3))
    with pytest.raises(Refused, match="clock_skew"):
        v.vacuum.resume(unfinished, NOW)
    v.storage_time = lambda _: NOW - timedelta(hours=3)
    with pytest.raises(Refused, match="clock_skew"):
        v.vacuum.resume(replace(unfinished, due_at=None), NOW)
    assert f"{ORDERS}/data/d1-u.parquet" in v.files.contents
