"""Snapshot expiry in-service against Spark's procedure: long histories, the same files deleted.

Prints one JSON line. Both sides run in turn on the same table, which is put back after each run. `guard_s` is what one
question to the guard of deletions takes beside 10,000 other tables; a run asks twice, and once more for each batch.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass
from functools import partial

from benchmarks.kit.bench import Bench, bench, hours_ago, options
from benchmarks.kit.lake import Lake, Saved
from benchmarks.kit.report import Comparison, Run
from benchmarks.kit.tables import Commit, Seed

HOURS = 168
WINDOW = 50  # commits after which a file of shape `replacing` is taken out again


@dataclass(frozen=True)
class Shape:
    """A history, and how many of its snapshots stay."""

    table: str
    snapshots: int
    keep: int
    replacing: bool = False

    def __str__(self) -> str:
        how = f"each also removing the file of {WINDOW} commits ago" if self.replacing else "fast appends of one file"
        return f"{self.snapshots} snapshots, {how}; keep {self.keep}"

    def seed(self, lake: Lake, layout: str) -> Saved:
        """Write the table."""
        seed = Seed(lake, self.table, layout)
        window: deque[Commit] = deque()
        for _ in range(self.snapshots):
            replaced = window.popleft() if self.replacing and len(window) == WINDOW else None
            window.append(seed.commit([seed.file()], replaced))
        seed.publish()
        return lake.save(self.table)


def shapes(*, quick: bool) -> tuple[Shape, ...]:
    """The most telling one first."""
    if quick:
        return (Shape("appends", 300, 50), Shape("short", 200, 10))
    return (Shape("appends", 2000, 50), Shape("replacing", 2000, 50, replacing=True), Shape("short", 200, 10))


def compare(shape: Shape, saved: Saved, sides: Bench) -> Comparison:
    """Both in turn."""

    def left(_: Run) -> Hashable:
        kept = frozenset(s["snapshot-id"] for s in saved.lake.metadata(saved.table)["snapshots"])
        assert len(kept) == shape.keep
        gone = saved.gone()
        deleted.append(len(gone))
        return gone, kept

    deleted: list[int] = []
    knobs = {
        "deletion.delay_hours": "0",
        "expire_snapshots.retention_hours": str(HOURS),
        "expire_snapshots.min_snapshots_to_keep": str(shape.keep),
    }
    statement = (
        f"CALL lake.system.expire_snapshots(table => 'bench.{shape.table}', "
        f"older_than => {hours_ago(HOURS)}, retain_last => {shape.keep})"
    )
    turns = sides.operation(saved, "expire_snapshots", knobs, statement, left)
    more = {"files_deleted": deleted[-1], **sides.guard(shape.table)}
    return Comparison("expire_snapshots", "Spark CALL expire_snapshots, warm", str(shape), turns, more)


def main() -> None:
    """Seed, measure, print."""
    chosen = options(__doc__, "300 snapshots instead of 2,000; then 200, if there is time").parse_args()
    with bench(chosen) as sides:
        for shape, saved in [(shape, shape.seed(sides.lake, chosen.layout)) for shape in shapes(quick=chosen.quick)]:
            sides.add(partial(compare, shape, saved, sides))


if __name__ == "__main__":
    main()
