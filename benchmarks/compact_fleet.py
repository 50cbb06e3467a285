"""A fleet of small tables: many compacted at a time against one after another, and a look at a quiet one.

Prints one JSON line. Ours runs whole cycles of the service. All tables are put back after each run; Spark is warm on
both sides.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import partial

from benchmarks.kit.bench import Bench, bench, options
from benchmarks.kit.lake import Lake, Saved
from benchmarks.kit.live import live_files
from benchmarks.kit.procedures import cron, rewrite_data_files
from benchmarks.kit.report import Comparison, Run, in_turn, multiplied
from benchmarks.kit.tables import Seed
from icewright.core.policy import Operation

TARGET = 32.0  # MiB
COMMITS, ROWS = 20, 5_600  # of each table; files of 260 kB
QUICK_COMMITS = 10
TASKS = 2  # that a writer has: files of one commit
KNOBS = {
    "compact.target_file_size_mb": str(TARGET),
    "evaluate.cooldown_minutes": "0",
    **{
        f"{operation}.cooldown_minutes": "0" for operation in Operation
    },  # else what is due waits, and is looked at again
}
COMPACT_ALONE = KNOBS | {f"{other}.enabled": "false" for other in Operation if other is not Operation.COMPACT}
CYCLES = 5  # after which nothing may be due


@dataclass(frozen=True)
class Fleet:
    """Unpartitioned tables, each with a few small files."""

    tables: int
    commits: int = COMMITS  # to each
    rows: int = ROWS  # in each file

    def __str__(self) -> str:
        return f"{self.tables} tables of {self.commits * TASKS} files of {self.rows} rows, {TASKS} of a commit"

    def seed(self, lake: Lake, layout: str) -> Sequence[Saved]:
        """Write the tables."""
        return [self._table(lake, layout, f"t{number:03d}") for number in range(self.tables)]

    def _table(self, lake: Lake, layout: str, name: str) -> Saved:
        seed = Seed(lake, name, layout)
        seed.commits(self.commits, self.rows, TASKS)
        seed.publish()
        return lake.save(name)


def due(fleet: Fleet, tables: Sequence[Saved], sides: Bench) -> Comparison:
    """Every table needs compaction."""

    def ours() -> Run:
        return sides.ours.ask("cycle", knobs=COMPACT_ALONE, fresh=True)

    def peer() -> Run:
        return sides.spark.ask("each", statements=[rewrite_data_files(saved.table, TARGET) for saved in tables])

    def left(_: Run) -> Hashable:
        found = [live_files(saved) for saved in tables]
        kept = sum(len(files.keys() & known.keys()) for files, known in zip(found, before, strict=True))
        assert not kept
        for saved in tables:
            saved.restore()
        return tuple((len(files), sum(file.rows for file in files.values())) for files in found)

    before = [live_files(saved) for saved in tables]
    turns = in_turn(ours, peer, left, discard=sides.discard)
    return Comparison(
        "compact_fleet", "Spark CALL rewrite_data_files, one table after another, warm", f"due: {fleet}", turns
    )


def quiet(fleet: Fleet, tables: Sequence[Saved], sample: int, sides: Bench) -> Comparison:
    """Nothing is due: a look at all tables against the procedures that cron runs on each. Neither changes anything."""

    def ours() -> Run:
        return sides.ours.ask("cycle", knobs=KNOBS, fresh=False)

    def peer() -> Run:
        statements = [text for saved in tables[:sample] for text in cron(saved.table, TARGET)]
        return multiplied(sides.spark.ask("each", statements=statements), len(tables) / sample)

    def left(run: Run) -> Hashable:
        assert not run["rows"]
        return tuple(saved.lake.pointer(saved.table) for saved in tables)

    def settle() -> None:
        for _ in range(CYCLES):
            if not ours()["rows"]:
                return
        raise RuntimeError(f"something is due after {CYCLES} cycles")

    settle()
    peer()  # merges the last manifests and keeps fewer snapshots: then it finds nothing to do either
    settle()
    turns = in_turn(ours, peer, left, expected=left({"rows": []}), discard=sides.discard)
    measured = "" if sample == len(tables) else f"; the peer's time is that of {sample} tables, multiplied"
    shape = f"quiet: {fleet}, compacted and evaluated, nothing due{measured}"
    return Comparison("compact_fleet", "Spark CALL of four procedures on each table, warm", shape, turns)


def main() -> None:
    """Seed, measure, print."""
    quick = f"3 tables of {QUICK_COMMITS} commits instead of 60; of the quiet fleet the peer sees 1, else 12"
    parser = options(__doc__, quick)
    parser.add_argument("--commits", type=int, help=f"to each table, {TASKS} files each; {COMMITS} unless told")
    parser.add_argument("--rows", type=int, default=ROWS, help="of each file")
    chosen = parser.parse_args()
    tables, sample, commits = (3, 1, QUICK_COMMITS) if chosen.quick else (60, 12, COMMITS)
    fleet = Fleet(tables, chosen.commits or commits, chosen.rows)
    with bench(chosen) as sides:
        with sides.starting(warmed=True):
            saved = fleet.seed(sides.lake, chosen.layout)
        sides.add(partial(due, fleet, saved, sides))
        sides.add(partial(quiet, fleet, saved, sample, sides))


if __name__ == "__main__":
    main()
