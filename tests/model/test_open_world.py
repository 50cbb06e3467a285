"""Writers, strangers, twins, clones, borrowers, moves, clock jumps, crashes and Icewright, in any order.

A plain model says what must be readable: of each entry of each catalog the rows of its branches and tags. After every
step PyIceberg reads them all. `make model` plays 10,000 steps, which differ each time; a run of the suite plays 120.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase, assume, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table import Table

from icewright.app.bootstrap import application
from icewright.core.errors import IcewrightError
from icewright.core.paths import local_path
from icewright.core.policy import Operation
from icewright.flow.adopt import adopt
from icewright.flow.execute import execute
from icewright.flow.operation import Request
from icewright.flow.reconcile import reconcile_interrupted
from icewright.flow.runtime import Runtime
from icewright.flow.undo import undo
from icewright.flow.vacuum import vacuum
from icewright.testing import FixedClock
from tests.cases.conftest import fresh
from tests.cases.test_undo_crashes import died
from tests.cases.workspace import EXPIRE, ORPHANS, Ground, Workspace, ref

ASKED_STEPS = os.environ.get("ICEWRIGHT_MODEL_STEPS")  # of `make model`
STEPS = int(ASKED_STEPS or (60 if settings.get_current_profile_name() == "fast" else 120))
STEPS_OF_ONE = 40 if ASKED_STEPS else 20  # of one history
SEED = 1  # of histories so short that with others often nothing is deleted
OUTSIDE = "outside"  # a catalog that nobody told Icewright about
NAMES = ("sales.a", "sales.b")
MADE = "sales.entry"
SCHEMA = pa.schema([("id", pa.int64())])
KNOBS: dict[str, object] = {
    "expire_snapshots.retention_hours": 1,
    "expire_snapshots.min_snapshots_to_keep": 1,
    "remove_orphans.mode": "delete",
    "remove_orphans.older_than_hours": 24,
    "remove_orphans.max_delete_ratio": 1,
    "remove_orphans.every_hours": 1,
}
Entry = tuple[str, str]  # catalog and name
HAPPENED: Counter[str] = Counter()
_CODE = re.compile(r"\[[a-z_]+\]$")

entries = st.integers(0, 20)
delays = st.sampled_from((0, 24))
waits = st.sampled_from((0, 26))  # hours
operations = st.sampled_from((EXPIRE, ORPHANS))


class OpenWorld(RuleBasedStateMachine):
    """The world, and what its readers must find."""

    ground: Ground

    def __init__(self) -> None:
        super().__init__()
        fresh(self.ground)
        self.clock = FixedClock(datetime.now(UTC))
        self.opened = application(self.ground.config, kind="tests", clock=self.clock)
        self.workspace = Workspace(self.ground.home, self.clock, self.opened.__enter__(), 0, self.ground.icebergs)
        outside = SqlCatalog(
            OUTSIDE, uri=f"sqlite:///{self.workspace.home}/outside.db", warehouse=f"file://{self.workspace.home}"
        )
        outside.create_namespace_if_not_exists("sales")
        self.catalogs: dict[str, SqlCatalog] = {**self.ground.icebergs, OUTSIDE: outside}
        self.rows: dict[Entry, dict[str, list[int]]] = {}  # by branch and tag
        self.number = 0
        self.jobs: list[str] = []

    def teardown(self) -> None:
        """Close what was opened."""
        self.opened.__exit__(None, None, None)
        self.catalogs[OUTSIDE].close()

    # What people do

    @initialize()
    def begin(self) -> None:
        """There is a table, with some history."""
        self.create(0)
        self.overwrite(0)
        self.append(0)
        self.clock.advance(hours=48)

    @rule(which=st.integers(0, 1))
    def create(self, which: int) -> None:
        """Make a table, perhaps where a dropped one was."""
        entry = ("lake", NAMES[which])
        assume(entry not in self.rows)
        self.catalogs["lake"].create_table(NAMES[which], SCHEMA)
        self.rows[entry] = {}
        self.append(list(self.rows).index(entry))

    @rule(which=entries)
    def append(self, which: int) -> None:
        """Commit one file more."""
        self.write(self.entry(which), keep=True)

    @rule(which=entries)
    def overwrite(self, which: int) -> None:
        """Commit one file in place of all."""
        self.write(self.entry(which), keep=False)

    @rule(which=entries, branch=st.booleans())
    def name_head(self, which: int, branch: bool) -> None:
        """Make a tag or a branch."""
        entry = self.entry(which)
        table, self.number = self.table(entry), self.number + 1
        head = table.current_snapshot()
        assert head is not None
        manage = table.manage_snapshots()
        (manage.create_branch if branch else manage.create_tag)(head.snapshot_id, f"r{self.number}").commit()
        self.rows[entry][f"r{self.number}"] = self.rows[entry]["main"]

    @precondition(lambda self: self.entries_made() < 1)
    @rule(which=entries, catalog=st.sampled_from(("lake", "pond")))
    def register_twice(self, which: int, catalog: str) -> None:
        """Another entry of the same table, in a catalog that is known."""
        entry = self.entry(which)
        self.register(entry, catalog, self.table(entry).metadata_location)

    @precondition(lambda self: self.entries_made() < 1)
    @rule(which=entries, keep=st.booleans())
    def take_over(self, which: int, keep: bool) -> None:
        """A stranger registers the table, and commits: our entry is stale from then on, though it knows nothing."""
        entry = self.entry(which)
        theirs = self.register(entry, OUTSIDE, self.table(entry).metadata_location)
        self.write(theirs, keep=keep)
        path = Path(str(local_path(self.table(theirs).metadata_location)))
        document = json.loads(path.read_text(encoding="utf-8"))
        document["last-updated-ms"] += 3_600_000  # within minutes of a commit of ours it looks like one that lost
        path.write_text(json.dumps(document), encoding="utf-8")

    @rule()
    def end_others(self) -> None:
        """Whoever registered a table a second time drops that entry, and a person says that the table is ours alone."""
        for catalog, name in [entry for entry in self.rows if entry[1].startswith(MADE)]:
            self.catalogs[catalog].drop_table(name)
            del self.rows[catalog, name]
        for catalog, name in self.rows:
            with suppress(IcewrightError):
                adopt(self.workspace.app.runtime, ref(name, catalog))

    @precondition(lambda self: self.entries_made() < 1)
    @rule(which=entries, elsewhere=st.booleans())
    def clone(self, which: int, elsewhere: bool) -> None:
        """A table of its own uuid over the same files, its metadata elsewhere or beside."""
        entry = self.entry(which)
        table, self.number = self.table(entry), self.number + 1
        path = Path(str(local_path(table.metadata_location)))
        document = json.loads(path.read_text(encoding="utf-8"))
        place = self.workspace.home / "clones" / str(self.number) if elsewhere else path.parent.parent
        document |= {"table-uuid": str(uuid4()), "location": f"file://{place}", "metadata-log": []}
        copy = place / "metadata" / f"00000-{uuid4()}.metadata.json"
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_text(json.dumps(document), encoding="utf-8")
        self.register(entry, "pond", f"file://{copy}")

    @rule(which=entries)
    def borrow(self, which: int) -> None:
        """A table takes the files of another in by `add_files`."""
        entry = self.entry(which)
        paths = [task.file.file_path for task in self.table(entry).scan().plan_files()]
        self.number += 1
        name = f"sales.borrower{self.number}"
        self.catalogs["pond"].create_table(name, SCHEMA).add_files(paths)
        self.rows["pond", name] = {"main": self.rows[entry]["main"]}

    @rule(which=entries)
    def rename(self, which: int) -> None:
        """The entry has another name."""
        catalog, name = entry = self.entry(which)
        self.number += 1
        self.catalogs[catalog].rename_table(name, f"sales.renamed{self.number}")
        self.rows[catalog, f"sales.renamed{self.number}"] = self.rows.pop(entry)

    @rule(which=entries)
    def drop(self, which: int) -> None:
        """The entry is dropped; its files stay."""
        catalog, name = entry = self.entry(which)
        self.catalogs[catalog].drop_table(name)
        del self.rows[entry]

    @rule(which=entries, pool=st.sampled_from(("pool", "pond", "warehouse/sales/a/data")))
    def move_write_path(self, which: int, pool: str) -> None:
        """New data goes where that of others may lie."""
        self.set(self.entry(which), "write.data.path", f"file://{self.workspace.home}/{pool}")

    @rule(which=entries, value=st.sampled_from(("false", "true")))
    def collect(self, which: int, value: str) -> None:
        """The owner lets garbage be collected, or not."""
        self.set(self.entry(which), "gc.enabled", value)

    @rule(which=entries)
    def leave_a_file(self, which: int) -> None:
        """A write that failed leaves a file behind."""
        folder = Path(str(local_path(self.table(self.known(which)).location()))) / "data"
        folder.mkdir(parents=True, exist_ok=True)
        file = folder / f"00000-0-{uuid4()}.parquet"
        file.write_bytes(b"x")
        self.workspace.age(file, 2)

    @rule(hours=st.sampled_from((2, 25, 240, -3)))
    def time_passes(self, hours: float) -> None:
        """Or jumps back."""
        self.clock.advance(hours=hours)

    # What Icewright does

    @rule(which=entries, operation=operations, hours=waits, delay=delays, manual=st.booleans(), regret=st.booleans())
    def maintain(self, which: int, operation: Operation, hours: int, delay: int, manual: bool, regret: bool) -> None:
        """Maintain one table, and perhaps take that back."""
        self.settle(hours)
        if operation is ORPHANS:
            self.leave_a_file(which)
        done = self.do(self.workspace.app.runtime, which, operation, delay, manual=manual)
        if done and regret:
            self.undone(self.workspace.app.runtime)

    @rule(which=entries, operation=operations, delay=delays, moment=st.integers(0, 120))
    def maintain_and_die(self, which: int, operation: Operation, delay: int, moment: int) -> None:
        """Maintain one table until the process ends."""
        self.settle(0)
        where = died(self.workspace, moment, lambda runtime: self.do(runtime, which, operation, delay))
        HAPPENED["died"] += bool(where)

    @rule(hours=waits)
    def settle(self, hours: int) -> None:
        """Finish what was interrupted, and delete what has waited."""
        self.clock.advance(hours=hours)
        with self.counted("settled"):
            reconcile_interrupted(
                replace(self.runtime(self.workspace.app.runtime, 0), process_has_ended=lambda _: True)
            )

    @rule(delay=delays)
    def vacuum(self, delay: int) -> None:
        """Vacuum the whole catalog."""
        self.settle(0)
        with self.counted("vacuumed"):
            vacuum(self.runtime(self.workspace.app.runtime, delay), "lake")

    @rule(moment=st.none() | st.integers(0, 40))
    def take_back(self, moment: int | None) -> None:
        """Undo the last job, perhaps until the process ends."""
        assume(self.jobs)
        if moment is None:
            self.undone(self.workspace.app.runtime)
        else:
            died(self.workspace, moment, self.undone)

    # What must hold

    @invariant()
    def all_is_readable(self) -> None:
        """Every branch and tag of every entry reads as its last writer left it."""
        for entry, refs in self.rows.items():
            table = self.table(entry)
            assert table.refs().keys() == refs.keys(), entry
            heads = {name: ref.snapshot_id for name, ref in table.refs().items()}
            read = {head: table.scan(snapshot_id=head).to_arrow()["id"].to_pylist() for head in set(heads.values())}
            for name, expected in refs.items():
                assert sorted(read[heads[name]]) == sorted(expected), (entry, name)

    # How

    def entries_made(self) -> int:
        """How many entries there are of tables that have another."""
        return sum(name.startswith(MADE) for _, name in self.rows)

    def entry(self, which: int) -> Entry:
        """One of the entries that there are."""
        assume(self.rows)
        return list(self.rows)[which % len(self.rows)]

    def known(self, which: int) -> Entry:
        """One of the entries of configured catalogs."""
        known = [entry for entry in self.rows if entry[0] != OUTSIDE]
        assume(known)
        return known[which % len(known)]

    def table(self, entry: Entry) -> Table:
        """The entry's table as PyIceberg loads it."""
        return self.catalogs[entry[0]].load_table(entry[1])

    def write(self, entry: Entry, *, keep: bool) -> None:
        """Commit a row of its own number."""
        self.number += 1
        rows = pa.table({"id": [self.number]}, schema=SCHEMA)
        table = self.table(entry)
        table.append(rows) if keep else table.overwrite(rows)
        before = self.rows[entry].get("main", []) if keep else []
        self.rows[entry]["main"] = [*before, self.number]

    def set(self, entry: Entry, name: str, value: str) -> None:
        """Set a property of the table."""
        with self.table(entry).transaction() as transaction:
            transaction.set_properties({name: value})

    def register(self, entry: Entry, catalog: str, location: str) -> Entry:
        """One entry more, for a metadata file that has the rows of the entry."""
        self.number += 1
        name = f"{MADE}{self.number}"
        self.catalogs[catalog].register_table(name, location)
        self.rows[catalog, name] = dict(self.rows[entry])
        return catalog, name

    def runtime(self, runtime: Runtime, delay: int) -> Runtime:
        """Icewright's world with the knobs of the model."""
        policy = replace(runtime.policy(), command=KNOBS | {"deletion.delay_hours": delay})
        return replace(runtime, policy=lambda: policy)

    def do(self, runtime: Runtime, which: int, operation: Operation, delay: int, *, manual: bool = True) -> bool:
        """Run one operation over a table of a configured catalog, and say whether its deletions wait."""
        catalog, name = self.known(which)
        self.workspace.detect()
        with self.counted(operation.value):
            request = Request(ref(name, catalog), (operation,), manual=manual)
            done = execute(self.runtime(runtime, delay), request)
            code = _CODE.search(" ".join((done.reason, *(o.reason for o in done.outcomes))))
            HAPPENED[f"{operation.value} {done.state.value} {code[0] if code else done.summary[:60]}"] += 1
        waits = done.job_id is not None and "to be deleted after" in done.summary
        self.jobs += [done.job_id] if done.job_id and waits else []
        return waits

    def undone(self, runtime: Runtime) -> None:
        """Undo the last job."""
        try:
            undo(self.runtime(runtime, 24), self.jobs[-1])
            HAPPENED["undone"] += 1
        except (IcewrightError, CommitFailedException):
            HAPPENED[f"not undone {sys.exc_info()[1]}"[:150]] += 1

    def counted(self, what: str) -> Any:
        """Count the files that went meanwhile."""
        return _Counted(self.workspace, what)


class _Counted:
    def __init__(self, workspace: Workspace, what: str) -> None:
        self.workspace, self.what = workspace, what

    def __enter__(self) -> None:
        self.before = self.workspace.files()

    def __exit__(self, *_: object) -> None:
        HAPPENED[f"{self.what}: files deleted"] += len(self.before - self.workspace.files())


@pytest.fixture
def machine(ground: Ground) -> Iterator[type[OpenWorld]]:
    """The machine over this ground."""
    OpenWorld.ground = ground
    yield OpenWorld if ASKED_STEPS else seed(SEED)(OpenWorld)
    shutil.rmtree(ground.home / "clones", ignore_errors=True)


@pytest.mark.slow
@pytest.mark.cases(95, 97, 98, 99, 100, 101, 112)
def test_whatever_happens_what_somebody_reads_is_there(machine: type[OpenWorld]) -> None:
    """No order of events makes Icewright delete what an entry of any catalog reads, and it does delete the rest."""
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=max(1, STEPS // STEPS_OF_ONE),
            stateful_step_count=STEPS_OF_ONE,
            database=None,
            derandomize=ASKED_STEPS is None,
            phases=[Phase.explicit, Phase.generate, Phase.shrink] if STEPS > 120 else [Phase.explicit, Phase.generate],
            report_multiple_bugs=False,
            suppress_health_check=list(HealthCheck),
        ),
    )
    print(dict(HAPPENED))  # noqa: T201 - of use with `-s`
    deleted = {what for what, number in HAPPENED.items() if number and what.endswith("files deleted")}
    assert deleted
    if STEPS > 1000:
        assert len(deleted) == 4, deleted  # expiry, orphan removal, vacuum and settling
        assert HAPPENED["undone"]
