"""Orphan removal in-service against Spark's procedure: the same files found and deleted.

Prints one JSON line. Both sides run in turn on the same table, which is put back after each run. `guard_s` is what one
question to the guard of deletions takes beside 10,000 other tables. With --listing only the peak memory of ours is
measured, on a table of so many files that are not there.
"""

from __future__ import annotations

import random
import tempfile
from collections.abc import Hashable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from benchmarks.kit.bench import Bench, bench, hours_ago, options
from benchmarks.kit.child import Child
from benchmarks.kit.lake import NAMESPACE, Lake, Saved, local
from benchmarks.kit.report import Comparison, Run, in_turn, show
from benchmarks.kit.tables import Seed

HOURS = 72
PARTITIONS = 200
IN_MANIFEST = 500
KNOBS = {"remove_orphans.mode": "delete", "deletion.delay_hours": "0", "remove_orphans.older_than_hours": str(HOURS)}
ORPHANS = 1000
LIMIT_MIB = 1024


@dataclass(frozen=True)
class Shape:
    """A table of many files, some of which no manifest names."""

    table: str
    files: int
    orphans: int

    def __str__(self) -> str:
        return f"{self.files} files in {PARTITIONS} partitions, {self.orphans} of them orphans"

    def seed(self, lake: Lake, layout: str) -> Saved:
        """Write the table."""
        seed = Seed(lake, self.table, layout, partitioned=True)
        lost = set(random.Random(7).sample(range(self.files), self.orphans))
        files = [seed.file(number % PARTITIONS) for number in range(self.files)]
        named = [file for number, file in enumerate(files) if number not in lost]
        for start in range(0, len(named), IN_MANIFEST):
            last = start + IN_MANIFEST >= len(named)
            seed.commit(named[start : start + IN_MANIFEST], listed=last)
        seed.publish()
        return lake.save(self.table)


def compare(shape: Shape, saved: Saved, sides: Bench, *, dry_run: bool) -> Comparison:
    """Both in turn: by what is gone from the disk, or by what a dry run says."""

    def left(run: Run) -> Hashable:
        said = frozenset(str(local(row[0]).relative_to(folder)) for row in run["rows"])
        gone = saved.gone()
        assert len(said) == shape.orphans
        return said if dry_run and not gone else gone

    folder = sides.lake.folder(saved.table)
    statement = (
        f"CALL lake.system.remove_orphan_files(table => '{NAMESPACE}.{saved.table}', "
        f"older_than => {hours_ago(HOURS)}, dry_run => {str(dry_run).lower()})"
    )
    turns = sides.operation(saved, "remove_orphans", KNOBS, statement, left, dry_run=dry_run)
    what = "dry run" if dry_run else "deletion"
    more = {} if dry_run else sides.guard(shape.table)
    return Comparison("remove_orphans", "Spark CALL remove_orphan_files, warm", f"{shape}; {what}", turns, more)


def listed(count: int, live: int) -> Comparison:
    """Ours alone, against a limit of memory: `live` files that manifests name, 1,000 orphans, the rest young."""

    def ours() -> Run:
        listing = {"count": count, "live": live, "old": live + ORPHANS}
        return child.ask("run", table="listed", operation="remove_orphans", knobs=KNOBS, listing=listing)

    def limit() -> Run:
        return {"s": None, "cpu": None, "mib": LIMIT_MIB, "rows": [None] * ORPHANS}

    with tempfile.TemporaryDirectory() as folder:
        lake = Lake(Path(folder))
        lake.create()
        seed = Seed(lake, "listed")
        for start in range(0, live, IN_MANIFEST * 20):
            seed.bulk([seed.unlinked() for _ in range(start, min(start + IN_MANIFEST * 20, live))])
        seed.snapshot()
        seed.publish()
        with Child("benchmarks.kit.ours", folder) as child:
            turns = in_turn(ours, limit, lambda run: len(run["rows"]), expected=ORPHANS, discard=0)
    shape = f"a listing of {count} paths, {live} of them live, {ORPHANS} orphans"
    return Comparison("remove_orphans", f"{LIMIT_MIB} MiB of memory", shape, turns)


def main() -> None:
    """Seed, measure, print."""
    parser = options(__doc__, "8,000 files and 200 orphans instead of 100,000 and 1,000")
    parser.add_argument("--listing", type=int, metavar="N", help="a listing of N paths, such as 5000000, ours alone")
    parser.add_argument("--live", type=int, metavar="N", help="as many of them manifests name; default: all but 1,000")
    chosen = parser.parse_args()
    if chosen.listing:
        show(listed(chosen.listing, chosen.listing - ORPHANS if chosen.live is None else chosen.live))
        return
    shape = Shape("littered", 8_000, 200) if chosen.quick else Shape("littered", 100_000, ORPHANS)
    with bench(chosen) as sides:
        saved = shape.seed(sides.lake, chosen.layout)
        for dry_run in (False, True):
            sides.add(partial(compare, shape, saved, sides, dry_run=dry_run))


if __name__ == "__main__":
    main()
