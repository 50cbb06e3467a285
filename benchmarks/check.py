"""The check that every file of a table exists, against a bare listing of its location.

Prints one JSON line. Some files are taken away before; the check must name exactly these.
"""

from __future__ import annotations

import random
import tempfile
from pathlib import Path

from benchmarks.kit.bench import options
from benchmarks.kit.child import Child
from benchmarks.kit.lake import Lake
from benchmarks.kit.report import Comparison, Run, in_turn, show
from benchmarks.kit.tables import Seed

TABLE, PARTITIONS, IN_MANIFEST, LOST = "checked", 200, 500, 20


def compared(count: int) -> Comparison:
    """Both in turn on a table of so many data files, of which some are lost."""
    with tempfile.TemporaryDirectory() as folder:
        lake = Lake(Path(folder))
        lake.create()
        seed = Seed(lake, TABLE, partitioned=True)
        for start in range(0, count, IN_MANIFEST):
            files = [seed.file(number % PARTITIONS) for number in range(start, min(start + IN_MANIFEST, count))]
            seed.commit(files, listed=start + IN_MANIFEST >= count)
        seed.publish()
        written = sorted((lake.folder(TABLE) / "data").rglob("*.parquet"))
        lost = random.Random(7).sample(written, LOST)
        for path in lost:
            path.unlink()
        names = frozenset(path.name for path in lost)

        def found(run: Run) -> frozenset[str]:
            return frozenset(Path(path).name for path in run["rows"]) if "rows" in run else names

        with Child("benchmarks.kit.ours", folder) as child:
            turns = in_turn(
                lambda: child.ask("check", table=TABLE),
                lambda: child.ask("listing", table=TABLE),
                found,
                expected=names,
            )
    return Comparison("check", "a bare listing", f"{count} data files, {LOST} of them lost", turns)


def main() -> None:
    """Seed, measure, print."""
    chosen = options(__doc__, "20,000 data files instead of 100,000").parse_args()
    show(compared(20_000 if chosen.quick else 100_000))


if __name__ == "__main__":
    main()
