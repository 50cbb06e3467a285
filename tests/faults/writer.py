"""Another client of the table: PyIceberg, with a model of what everybody must be able to read."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation
from pyiceberg.table.update.snapshot import ManageSnapshots

from tests.faults.lakehouse import NAME, Lakehouse, rows

MAIN = "main"
MOST_REFS = 5
Rows = tuple[int, ...]


@dataclass
class Writer:
    """Does what it likes with the table; `refs` is what it must then find, by tag and branch."""

    workspace: Lakehouse
    catalog: SqlCatalog
    random: random.Random
    refs: dict[str, Rows] = field(default_factory=dict)
    of_snapshot: dict[int, Rows] = field(default_factory=dict)
    said: list[str] = field(default_factory=list)
    next_id: int = 1000
    held: Table | None = None  # the table as it was loaded a while ago

    def begin(self) -> None:
        """Read every snapshot, and know from then on what each one holds."""
        table = self.catalog.load_table(NAME)
        for snapshot in table.snapshots():
            self.of_snapshot[snapshot.snapshot_id] = self._ids(table, snapshot.snapshot_id)
        self.refs = {name: self.of_snapshot[ref.snapshot_id] for name, ref in table.refs().items()}

    def look(self) -> None:
        """Load the table and hold on to it: what is committed later may rest on what is then outdated."""
        self.held = self._learnt(self.catalog.load_table(NAME))

    def act(self) -> None:
        """Commit something; whoever was first wins, and a lost commit changes nothing."""
        outdated = self.held is not None and self.random.random() < 0.5
        table = self.held if outdated and self.held else self._learnt(self.catalog.load_table(NAME))
        self.held = None
        action = self.random.choice(self._choices())
        try:
            action(table)
        except CommitFailedException:
            self.said.append(f"{action.__name__}: lost")
        except ValueError as error:
            if "older than last sequence number" in str(error):  # how PyIceberg's own second try may end
                self.said.append(f"{action.__name__}: lost")
                return
            if "unknown snapshot" not in str(error):
                raise
            self.said.append(f"{action.__name__}: its snapshot is gone")
        else:
            self.said.append(f"{action.__name__}{' on an old view' * outdated}")

    def _choices(self) -> list[Callable[[Table], None]]:
        add: list[Callable[[Table], None]] = [self.append, self.append, self.delete, self.roll_back]
        refs: list[Callable[[Table], None]] = [self.append_to_branch, self.tag, self.branch, self.drop_ref]
        return [*add, *(refs if len(self.refs) < MOST_REFS else [self.drop_ref, self.drop_ref])]

    def append(self, table: Table) -> None:
        """A row more."""
        number = self._number()
        table.append(rows([number]))
        self._head(table, MAIN, (*self.refs[MAIN], number))

    def append_to_branch(self, table: Table) -> None:
        """A row more on a branch."""
        names = [n for n, r in table.refs().items() if r.snapshot_ref_type == "branch" and n != MAIN and n in self.refs]
        if not names:
            return
        name, number = self.random.choice(sorted(names)), self._number()
        table.append(rows([number]), branch=name)
        self._head(table, name, (*self.refs[name], number))

    def delete(self, table: Table) -> None:
        """A row less: its file goes, or is written again without it."""
        head = table.current_snapshot()
        assert head is not None
        there = sorted(set(self.refs[MAIN]) & set(self.of_snapshot[head.snapshot_id]))
        if len(there) < 3:
            return
        number = self.random.choice(there)
        table.delete(f"id == {number}")
        self._head(table, MAIN, tuple(i for i in self.refs[MAIN] if i != number))

    def roll_back(self, table: Table) -> None:
        """Main becomes what it was."""
        head = table.current_snapshot()
        past = []
        while head is not None and head.parent_snapshot_id is not None:
            head = table.snapshot_by_id(head.parent_snapshot_id)
            past += [head.snapshot_id] if head is not None and head.snapshot_id in self.of_snapshot else []
        if not past:
            return
        to = self.random.choice(past[:3])
        table.manage_snapshots().rollback_to_snapshot(to).commit()
        self.refs[MAIN] = self.of_snapshot[to]

    def tag(self, table: Table) -> None:
        """A name for some snapshot, likely one that is about to go."""
        self._name(table, "tag", ManageSnapshots.create_tag)

    def branch(self, table: Table) -> None:
        """A branch from some snapshot."""
        self._name(table, "branch", ManageSnapshots.create_branch)

    def drop_ref(self, table: Table) -> None:
        """A tag or branch less."""
        names = sorted((set(self.refs) & set(table.refs())) - {MAIN})
        if not names:
            return
        name = self.random.choice(names)
        kind = table.refs()[name].snapshot_ref_type
        manage = table.manage_snapshots()
        (manage.remove_tag(name) if kind == "tag" else manage.remove_branch(name)).commit()
        del self.refs[name]

    def _name(self, table: Table, kind: str, make: Callable[..., ManageSnapshots]) -> None:
        snapshot_id = self.random.choice(
            [s.snapshot_id for s in table.snapshots() if s.snapshot_id in self.of_snapshot]
        )
        name = f"{kind}-{self._number()}"
        make(table.manage_snapshots(), snapshot_id, name).commit()
        self.refs[name] = self.of_snapshot[snapshot_id]

    def _number(self) -> int:
        self.next_id += 1
        return self.next_id

    def _head(self, table: Table, name: str, ids: Rows) -> None:
        self.refs[name] = tuple(sorted(ids))
        self.of_snapshot[table.refs()[name].snapshot_id] = self.refs[name]

    def _learnt(self, table: Table) -> Table:
        """Snapshots that Icewright made hold what the branch held."""
        head = table.current_snapshot()
        assert head is not None
        if head.snapshot_id not in self.of_snapshot:
            assert head.summary is not None
            assert head.summary.operation is Operation.REPLACE
            self.of_snapshot[head.snapshot_id] = self.refs[MAIN]
        return table

    @staticmethod
    def _ids(table: Table, snapshot_id: int) -> Rows:
        found = table.scan(snapshot_id=snapshot_id, selected_fields=("id",)).to_arrow()
        return tuple(sorted(found["id"].to_pylist()))


@contextmanager
def writing(workspace: Lakehouse, seed: int) -> Iterator[Writer]:
    """A writer that knows the table as it is."""
    catalog = workspace.catalog()
    try:
        writer = Writer(workspace, catalog, random.Random(seed))
        writer.begin()
        yield writer
    finally:
        catalog.close()
