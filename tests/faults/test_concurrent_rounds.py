"""Another client commits between any two calls of the operations that delete or commit, and nothing of its is lost."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import cache, partial
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table import Table

from icewright.core.runs import OperationState
from icewright.flow.detect import detect
from icewright.flow.evaluator import evaluate_due
from icewright.flow.reconcile import reconcile_interrupted
from icewright.testing import FixedClock
from tests.faults.interceptors import WRITES, Call, Hook, opened
from tests.faults.judging import lost
from tests.faults.lakehouse import NAME, Lakehouse, make_old, rows
from tests.faults.operations import REF, Done, FaultOperation, do, open_ends
from tests.faults.reading import read, scanned
from tests.faults.sweeping import Sweeps, some
from tests.faults.writer import Writer, writing
from tests.nightly import NIGHTLY, nightly

pytestmark = pytest.mark.external

RENAMED = "sales.renamed"
CHANGES = frozenset({"files.write", "files.delete", "files.tidy"})
ROUNDS, SEEDS = (25, 8) if NIGHTLY else (15, 1)
OPERATIONS = (FaultOperation.REWRITE, FaultOperation.EXPIRE, FaultOperation.ORPHANS)


@dataclass
class At:
    """A hook that does something else right before, or right after, the calls of these numbers."""

    moments: set[int]
    act: Callable[[], None]
    after: bool = False
    count: int = -1

    def __call__(self, call: Call) -> Any:
        """Count, and act."""
        self.count += 1
        due = self.count in self.moments
        if due and not self.after:
            self.act()
        done = call.go()
        if due and self.after:
            self.act()
        return done


@dataclass
class Rounds:
    """What was wrong in the rounds of one seed."""

    lost: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)


@pytest.fixture(scope="module")
def played(sweeps: Sweeps) -> Callable[[int], Rounds]:
    """The rounds of a seed, played once."""
    return cache(lambda seed: _play(sweeps, seed))


some_seeds = pytest.mark.parametrize("seed", range(SEEDS))


@pytest.mark.cases(6, 75, 84)
@some_seeds
def test_nothing_of_a_writer_is_lost(played: Callable[[int], Rounds], seed: int) -> None:
    """After every round the refs are those of the writer, each reads what it made of it, and every file is there."""
    assert not played(seed).lost, "\n".join(played(seed).lost)


@pytest.mark.cases(75, 84)
@some_seeds
def test_no_operation_fails_because_others_write(played: Callable[[int], Rounds], seed: int) -> None:
    """Whatever other clients commit meanwhile, an operation is done, finds nothing to do, or gives way."""
    assert not played(seed).failed, "\n".join(played(seed).failed)


def _play(sweeps: Sweeps, seed: int) -> Rounds:
    workspace, found = sweeps.workspace, Rounds()
    lengths = {action: len(sweeps.want(action).calls) for action in OPERATIONS}
    workspace.restore()
    with writing(workspace, seed) as writer:
        for number in range(ROUNDS):
            done, story = _round(writer, number, lengths)
            told = f"round {number} of seed {seed}: {story}"
            if done.outcome is None or done.outcome.state is OperationState.FAILED:
                found.failed.append(told)
                _resume(workspace)
            read_now = scanned(writer.catalog)
            found.lost += [f"{told}: {one}" for one in read(workspace).missing]
            if read_now != {name: list(ids) for name, ids in writer.refs.items()}:
                found.lost.append(f"{told}: refs read {read_now}, not {writer.refs}")
            if found.lost:
                return found
    with opened(workspace.home, FixedClock(datetime.now(UTC))) as app:
        for action in OPERATIONS:
            make_old(workspace.folder)
            do(app.runtime, action)
    found.lost += [f"{path} is left in the end" for path in sorted(workspace.files() - read(workspace).reached)]
    return found


def _round(writer: Writer, number: int, lengths: Mapping[FaultOperation, int]) -> tuple[Done, str]:
    """Something old and something new, then one operation with up to three commits of others in the middle."""
    workspace, dice = writer.workspace, writer.random
    writer.look()
    writer.act()
    workspace.age(timedelta(days=3))
    orphan = workspace.folder / "data" / f"orphan-{number}.parquet"
    orphan.write_bytes(b"lost")
    make_old(orphan)
    writer.look()
    action = dice.choice(OPERATIONS)
    moments = {dice.randrange(lengths[action]) for _ in range(dice.randint(1, 3))}
    before = len(writer.said)
    done = _disturbed(workspace, action, At(moments, writer.act))
    return done, f"{action} ({done.said}) with {writer.said[before:]} before calls {sorted(moments)}"


def _resume(workspace: Lakehouse) -> None:
    with opened(workspace.home, FixedClock(datetime.now(UTC))) as app:
        app.runtime.store.tables.pause(REF, None)


def _tag(table: Table, snapshot_id: int) -> None:
    table.manage_snapshots().create_tag(snapshot_id, "late").commit()


def _branch(table: Table, snapshot_id: int) -> None:
    table.manage_snapshots().create_branch(snapshot_id, "late").commit()


def _roll_back(table: Table, snapshot_id: int) -> None:
    table.manage_snapshots().rollback_to_snapshot(snapshot_id).commit()


CLAIMS = {"tag": _tag, "branch": _branch, "rollback": _roll_back}


@pytest.mark.cases(6)
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize(
    ("claim", "outdated"),
    [
        (nightly if claim == "branch" else pytest.param)(claim, outdated, id=claim + "-outdated" * outdated)
        for claim, outdated in itertools.product(CLAIMS, (False, True))
    ],
)
def test_a_snapshot_is_claimed_while_it_expires(sweeps: Sweeps, claim: str, *, outdated: bool, after: bool) -> None:
    """Before or after any call: either the claim comes first and all of it stays, or it is told that it is too late."""
    want, workspace = sweeps.want(FaultOperation.EXPIRE), sweeps.workspace
    doomed = min(want.before.snapshots - want.after.snapshots, key=lambda s: len(want.before.live[s]))
    name = "main" if claim == "rollback" else "late"
    came: list[bool] = []
    wrong: list[str] = []
    # after what writes nothing is no other moment than before the next call
    moments = [n for n, call in enumerate(want.calls[:-1]) if not after or call in WRITES]
    for moment in some(moments):
        workspace.restore()
        with _client(workspace) as client:
            seen = client.load_table(NAME)

            def act(seen: Table = seen, client: SqlCatalog = client) -> None:
                came.append(_claimed(seen if outdated else client.load_table(NAME), doomed, CLAIMS[claim]))

            _disturbed(workspace, FaultOperation.EXPIRE, At({moment}, act, after))
        now = read(workspace)
        broken = list(now.missing)
        if came[-1] and (now.refs.get(name) != doomed or now.live.get(doomed) != want.before.live[doomed]):
            broken.append(f"{name} leads to {now.refs.get(name)}")
        if not came[-1] and doomed in now.snapshots:
            broken.append("refused, though the snapshot stays")
        wrong += [f"call {moment}, {want.calls[moment]}: {one}" for one in broken]
    assert not wrong, "\n".join(wrong)
    assert set(came) == {True, False}


def _claimed(table: Table, snapshot_id: int, claim: Callable[[Table, int], None]) -> bool:
    """Whether the claim was in time."""
    try:
        claim(table, snapshot_id)
    except CommitFailedException:  # somebody was first, so look again
        table.refresh()
        return _claimed(table, snapshot_id, claim)
    except ValueError as error:
        assert str(snapshot_id) in str(error)  # noqa: PT017 - either outcome is right
        return False
    return True


@pytest.mark.cases(67)
def test_an_old_file_is_committed_during_the_scan(sweeps: Sweeps) -> None:
    """Up to the last look at the table, right before the deletion, whatever a slow writer commits is kept."""
    want, workspace, wrong = sweeps.want(FaultOperation.ORPHANS), sweeps.workspace, []
    delete = want.calls.index("files.delete")
    last_look = max(n for n, call in enumerate(want.calls[:delete]) if call == "catalog.load")
    assert "store.ledger.plan" not in want.calls[last_look:delete], "the table is looked at again when the list is made"
    for moment in some(range(last_look + 1)):
        workspace.restore()
        late = workspace.folder / "data" / "late.parquet"
        pq.write_table(rows([700]), late)
        make_old(late)
        with _client(workspace) as client:
            act = _adding(client, late)
            _disturbed(workspace, FaultOperation.ORPHANS, At({moment}, act))
            if read(workspace).missing or 700 not in scanned(client)["main"]:
                wrong.append(f"call {moment}, {want.calls[moment]}")
    assert not wrong


def _adding(client: SqlCatalog, path: Path) -> Callable[[], None]:
    return lambda: client.load_table(NAME).add_files([f"file://{path}"])


def _rename(client: SqlCatalog) -> None:
    client.rename_table(NAME, RENAMED)


def _replace(client: SqlCatalog) -> None:
    old = client.load_table(NAME)
    client.drop_table(NAME)
    client.create_table(NAME, old.schema(), old.location(), partition_spec=old.spec()).append(rows([500]))


@pytest.mark.cases(82)
@pytest.mark.parametrize("action", OPERATIONS)
@pytest.mark.parametrize("how", ["rename", "replace"])
def test_the_name_leads_elsewhere(sweeps: Sweeps, action: FaultOperation, how: str) -> None:
    """A table that is renamed at any moment reads what it read; one that takes its name and place keeps every file."""
    want, workspace, wrong = sweeps.want(action), sweeps.workspace, []
    # before a call that neither asks the catalog nor changes a file is no other moment than before the next one
    calls = [(n, call) for n, call in enumerate(want.calls) if call.startswith("catalog.") or call in CHANGES]
    for moment, call in calls:
        workspace.restore()
        with _client(workspace) as client:
            act = partial(_rename if how == "rename" else _replace, client)
            done = _disturbed(workspace, action, At({moment}, act))
            with opened(workspace.home, FixedClock(sweeps.now + timedelta(hours=1))) as app:
                runtime = replace(app.runtime, process_has_ended=lambda _: True)
                reconcile_interrupted(runtime)
                detect(runtime, ["lake"])  # planned deletions wait until a table's new name was read
                evaluate_due(runtime, ["lake"])
                reconcile_interrupted(runtime)
                open_plans = open_ends(runtime)
            ids = scanned(client, RENAMED if how == "rename" else NAME)["main"]
        broken = lost(want, read(workspace, RENAMED)) if how == "rename" else read(workspace).missing
        broken += [f"reads {ids}"] if how == "replace" and ids != [500] else []
        broken += open_plans + (["a fault of ours"] if "unexpected" in done.said else [])
        wrong += [f"call {moment}, {call}: {one} (it said: {done.said})" for one in broken]
    assert not wrong, "\n".join(wrong)


@contextmanager
def _client(workspace: Lakehouse) -> Iterator[SqlCatalog]:
    client = workspace.catalog()
    try:
        yield client
    finally:
        client.close()


def _disturbed(workspace: Lakehouse, action: FaultOperation, hook: Hook) -> Done:
    with opened(workspace.home, FixedClock(datetime.now(UTC)), hook) as app:
        return do(app.runtime, action)
