"""The shipped fakes keep what the ports promise, and the builders mean what they say."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta

import pytest

from icewright.core.errors import (
    CatalogUnavailable,
    CommitConflict,
    CommitStateUnknown,
    ConfigError,
    MetadataUnreadable,
)
from icewright.core.policy import Operation
from icewright.core.rewriting import MIN_INPUT_FILES
from icewright.core.runs import FileAction, Outcome, failed
from icewright.core.steps import RewriteManifests
from icewright.core.table import MAIN, ManifestContent, RefKind, SnapshotRef, StatisticsFile, TableMetadata, TableRef
from icewright.ports import (
    AddSnapshot,
    Catalog,
    Change,
    Clock,
    Engine,
    RemoveSnapshots,
    RestoreSnapshots,
    StepRequest,
    Unfinished,
)
from icewright.testing import NOW, REF, UUID, FixedClock, FunctionEngine, MemoryCatalog, knobs, metadata
from icewright.testing.contracts import CatalogTests
from icewright.testing.contracts.catalog import MakeTable

FIRST = RemoveSnapshots(frozenset({1}), frozenset())


@pytest.fixture
def catalog() -> MemoryCatalog:
    """A catalog with one table of two snapshots."""
    made = MemoryCatalog()
    statistics = tuple(StatisticsFile(i, f"s{i}", 1) for i in (1, 2))
    made.put(metadata(statistics=statistics, partition_statistics=statistics))
    return made


def _added(snapshot_id: int = 9) -> dict[str, object]:
    return {
        "snapshot-id": snapshot_id,
        "parent-snapshot-id": 2,
        "sequence-number": 3,
        "timestamp-ms": int(NOW.timestamp() * 1000),
        "manifest-list": "ml",
        "summary": {"operation": "replace", "total-records": 5},
    }


def test_fakes_are_ports() -> None:
    """Each fake stands where its port is asked for."""
    ports: tuple[Catalog, Clock, Engine] = (MemoryCatalog(), FixedClock(), FunctionEngine())
    assert len(ports) == 3


def test_the_clock_moves_by_sleeping() -> None:
    """Sleeping and advancing move the time at once; it can be set."""
    clock = FixedClock()
    clock.sleep(90)
    assert (clock.now(), clock.slept) == (NOW + timedelta(seconds=90), [90])
    assert clock.advance(hours=1) == clock.now() == NOW + timedelta(seconds=3690)
    clock.time = NOW
    assert clock.now() == NOW


class TestMemoryCatalog(CatalogTests):
    """The catalog in memory passes the suite of its port."""

    @pytest.fixture
    def catalog(self) -> MemoryCatalog:
        """Return a catalog without tables."""
        return MemoryCatalog()

    @pytest.fixture
    def make_table(self, catalog: MemoryCatalog) -> MakeTable:
        """Return the maker of tables whose snapshots are an hour apart."""

        def make(name: str, snapshots: int) -> TableMetadata:
            location = f"s3://lake/{name}/metadata/1.metadata.json"
            ages = range(snapshots, 0, -1)
            return catalog.put(metadata(ages, ref=TableRef.parse(f"lake.{name}"), metadata_location=location))

        return make


def test_what_is_beyond_the_catalog_are_neighbours(catalog: MemoryCatalog) -> None:
    """They are listed and read by their metadata files, and are no tables of the catalog."""
    other = metadata(ref=replace(REF, catalog="pond"), metadata_location="s3://pond/m.json")
    catalog.beyond.append(other)
    (pointer,) = catalog.neighbours()
    assert catalog.neighbour(pointer) == other
    assert pointer not in catalog.pointers()
    with pytest.raises(MetadataUnreadable, match="gone"):
        catalog.neighbour(replace(pointer, metadata_location="gone"))


def test_snapshots_are_removed(catalog: MemoryCatalog) -> None:
    """A removal takes snapshots, refs and statistics, in a new metadata file that logs the old one."""
    base = catalog.concurrently(REF, refs=(*catalog.load(REF).refs, SnapshotRef("t", RefKind.TAG, 1)))
    after = catalog.commit(base, RemoveSnapshots(frozenset({1}), frozenset({"t"})))
    assert after == catalog.load(REF)
    assert [s.snapshot_id for s in after.snapshots] == [2]
    assert [r.name for r in after.refs] == [MAIN]
    assert [s.snapshot_id for s in (*after.statistics, *after.partition_statistics)] == [2, 2]
    assert after.metadata_location != base.metadata_location == after.metadata_log[-1]
    assert after.last_updated == NOW


def test_snapshots_are_put_back(catalog: MemoryCatalog) -> None:
    """Those that are missing, with their refs, in the order of their commits; a second time there is nothing to do."""
    base = catalog.load(REF)
    ms = int(base.by_id[1].timestamp.timestamp() * 1000)
    raw = {"snapshot-id": 1, "sequence-number": 1, "timestamp-ms": ms, "summary": {"operation": "append"}}
    tags = {name: {"type": "tag", "snapshot-id": 1} for name in ("old", "taken")}
    catalog.commit(base, RemoveSnapshots(frozenset({1}), frozenset()))
    taken = SnapshotRef("taken", RefKind.TAG, 2)
    now = catalog.concurrently(REF, refs=(*base.refs, taken))
    undo = RestoreSnapshots(UUID, (raw,), tags)
    assert catalog.unrestorable(now, undo) == "taken, as somebody has set it since"
    after = catalog.commit(now, undo)
    assert [s.snapshot_id for s in after.snapshots] == [1, 2]
    assert {r.name: r.snapshot_id for r in after.refs} == {MAIN: 2, "old": 1, "taken": 2}
    assert catalog.commit(after, undo) is after
    assert catalog.commits[-1] is undo


@pytest.mark.parametrize(("branch", "current"), [(MAIN, 9), ("audit", 2)])
def test_a_snapshot_is_added(catalog: MemoryCatalog, branch: str, current: int) -> None:
    """The new snapshot is the head of its branch, and current when that is main."""
    after = catalog.commit(catalog.load(REF), AddSnapshot(_added(), branch))
    assert {r.name: r.snapshot_id for r in after.refs}[branch] == 9
    assert (after.current_snapshot_id, after.last_sequence_number) == (current, 3)
    added = after.by_id[9]
    assert (added.operation, added.timestamp, added.parent_id) == ("replace", NOW, 2)
    assert added.summary["total-records"] == "5"


@pytest.mark.cases(6, 75)
def test_somebody_else_was_first(catalog: MemoryCatalog) -> None:
    """A tag that appears just before the swing makes the commit a conflict, and survives."""

    def tag(base: TableMetadata, _change: Change) -> None:
        catalog.concurrently(REF, refs=(*base.refs, SnapshotRef("late", RefKind.TAG, 1)))

    catalog.before_commit = tag
    with pytest.raises(CommitConflict):
        catalog.commit(catalog.load(REF), FIRST)
    assert {r.name for r in catalog.load(REF).refs} == {MAIN, "late"}
    assert catalog.commits == []


@pytest.mark.parametrize("landed", [False, True])
@pytest.mark.cases(77)
def test_errors_before_and_after_the_swing(catalog: MemoryCatalog, landed: bool) -> None:
    """An error before the swing leaves the table as it was; one after it has lost the reply only."""

    def fail(_base: TableMetadata, _change: Change) -> None:
        raise CommitStateUnknown("the reply was lost")

    setattr(catalog, "after_commit" if landed else "before_commit", fail)
    with pytest.raises(CommitStateUnknown):
        catalog.commit(catalog.load(REF), FIRST)
    assert len(catalog.load(REF).snapshots) == (1 if landed else 2)


@pytest.mark.parametrize(
    "call",
    [MemoryCatalog.pointers, lambda c: c.load(REF), lambda c: c.commit(metadata(), FIRST)],
    ids=["pointers", "load", "commit"],
)
def test_a_catalog_that_is_down_answers_nothing(
    catalog: MemoryCatalog, call: Callable[[MemoryCatalog], object]
) -> None:
    """An outage is an error in every call, never an empty answer."""
    catalog.down = CatalogUnavailable("away")
    with pytest.raises(CatalogUnavailable):
        call(catalog)


def test_an_engine_is_a_function() -> None:
    """The function answers; what was asked is kept in order."""

    def answer(request: StepRequest) -> Outcome:
        return failed(request.operation, "no")

    step = RewriteManifests(((0, ManifestContent.DATA),), 1, by_spark=False, use_caching=False)
    asked = StepRequest("j", Operation.REWRITE_MANIFESTS, step, metadata())
    left = Unfinished("j", REF, "u", (Operation.EXPIRE_SNAPSHOTS,), (FileAction("f", 1, "data"),), NOW)
    engine = FunctionEngine(answer)
    assert engine.run(asked).reason == "no"
    assert engine.resume(left).metrics == {"files_deleted": 1}
    assert (engine.requests, engine.resumed) == ([asked], [left])
    assert FunctionEngine().run(asked).operation is Operation.REWRITE_MANIFESTS


def test_knobs_are_checked() -> None:
    """A test that names a knob which does not exist fails at once."""
    assert knobs({"compact.min_input_files": 3})[MIN_INPUT_FILES] == 3
    with pytest.raises(ConfigError, match="did you mean"):
        knobs({"compact.min_input_file": 3})
