"""Which tables of a large catalog moved, against PyIceberg loading each of them.

Prints one JSON line. Both sides are warm and look at the same catalog in turn; before each turn tables get a commit.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import sqlalchemy as sa

from benchmarks.kit.bench import options
from benchmarks.kit.child import Child
from benchmarks.kit.control import configured
from benchmarks.kit.databases import POSTGRESQL, SQLITE, databases
from benchmarks.kit.fleet import COMMITS, Fleet
from benchmarks.kit.lake import Lake
from benchmarks.kit.report import Comparison, Run, in_turn, multiplied, show

TABLES, CHANGED = 10_000, 600
FEWER = 1_000  # tables of another catalog: what of the memory grows with them
Name = tuple[str, str]


@dataclass
class Looks:
    """A catalog of which tables move, and both sides looking at it."""

    fleet: Fleet
    store: sa.Engine
    ours_side: Child
    peer_side: Child
    sample: int  # tables that the peer looks at
    phase: int = 0

    def ours(self) -> Run:
        """Let tables move, and detect."""
        self.before = self._known()
        self.phase = 1 - self.phase
        self.fleet.move(self.phase)
        run = self.ours_side.ask("detect")
        assert run["moved"] == len(self.fleet.changing)
        return run

    def peer(self) -> Run:
        """Load each table of the sample."""
        run = self.peer_side.ask("moved", tables=self.fleet.names[: self.sample])
        return multiplied(run, self.fleet.count / self.sample)

    def left(self, run: Run) -> Hashable:
        """The tables of the sample that a side found moved."""
        if "rows" in run:
            return frozenset(map(tuple, run["rows"]))
        now, sampled = self._known(), self.fleet.names[: self.sample]
        return frozenset(name for name in sampled if now[name] != self.before[name])

    def _known(self) -> Mapping[Name, str]:
        """The metadata files that our store has."""
        with self.store.connect() as connection:
            rows = connection.exec_driver_sql("select namespace, name, metadata_location from tables").all()
        return {(json.loads(space)[0], name): location for space, name, location in rows}


def spread(tables: int) -> Sequence[int]:
    """The tables that change, evenly spread, so that as large a share of each sample changes."""
    return [n for n in range(tables) if n * CHANGED // TABLES != (n + 1) * CHANGED // TABLES]


def compared(kind: str, tables: int, sample: int, layout: str, *, profile: bool) -> Comparison:
    """Both in turn on a catalog of so many tables."""
    with tempfile.TemporaryDirectory() as folder, databases(kind, Path(folder)) as database:
        lake = Lake(Path(folder), database("catalog"))
        lake.create()
        fleet = Fleet(lake, tables, spread(tables))
        fleet.create(layout)
        state = database("state")
        config = configured(lake, state)
        with (
            Child("benchmarks.kit.control", str(config)) as ours,
            Child("benchmarks.kit.pyiceberg_peer", folder, lake.database) as peer,
        ):
            looks = Looks(fleet, sa.create_engine(state), ours, peer, sample)
            assert ours.ask("detect")["moved"] == tables
            looks.peer()
            expected = frozenset(fleet.names[n] for n in fleet.changing if n < sample)
            turns = in_turn(looks.ours, looks.peer, looks.left, expected=expected)
            if profile:
                fleet.move(1 - looks.phase)
                ours.ask("detect", profile=True)
            looks.store.dispose()
            fleet.engine.dispose()
    part = "" if sample == tables else f"; the peer's time is that of {sample} tables, multiplied"
    changed = f"{len(fleet.changing)} of them changed"
    shape = f"{tables} tables of {COMMITS} snapshots in a SQL catalog on {kind}, {changed}{part}"
    return Comparison("detect", "PyIceberg load_table of each table, warm", shape, turns)


def main() -> None:
    """Seed, measure, print."""
    chosen = options(__doc__, "the peer loads 300 of the tables; SQLite alone").parse_args()
    found = []
    for kind in (SQLITE,) if chosen.quick else (SQLITE, POSTGRESQL):
        large = compared(kind, TABLES, 300 if chosen.quick else TABLES, chosen.layout, profile=chosen.profile)
        small = compared(kind, FEWER, 100, chosen.layout, profile=False)
        peaks = {TABLES: large.ours_peak_mib, FEWER: small.ours_peak_mib}
        found.append(replace(large, more={"ours_peak_mib_by_tables": peaks}))
    show(*found)


if __name__ == "__main__":
    main()
