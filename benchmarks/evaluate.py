"""The facts of a table with many small manifests, against PyIceberg's `inspect.files()` and Spark's table of files.

Prints one JSON line. Cold: the manifest cache is empty. Warm: it knows all manifests but the newest.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import partial

from benchmarks.kit.bench import Bench, bench, options
from benchmarks.kit.child import Child
from benchmarks.kit.report import Comparison, Run, in_turn
from benchmarks.kit.scattered import Scattered
from benchmarks.kit.tables import Seed

TABLE = "scattered"
STATEMENT = f"SELECT partition.part, count(*), sum(file_size_in_bytes) FROM lake.bench.{TABLE}.files GROUP BY 1"  # noqa: S608


@dataclass(frozen=True)
class Facts:
    """Asks each side for counts and bytes per partition."""

    sides: Bench
    pyiceberg: Child
    before: str  # the metadata files before and after the newest commit
    after: str

    def ours(self) -> Run:
        """With an empty cache."""
        return self.sides.ours.ask("facts", table=TABLE, fresh=True)

    def ours_warm(self) -> Run:
        """With a cache that lacks the newest manifest."""
        self.sides.lake.point(TABLE, self.before)
        self.ours()
        self.sides.lake.point(TABLE, self.after)
        return self.sides.ours.ask("facts", table=TABLE, fresh=False)

    def by_pyiceberg(self) -> Run:
        """With an empty cache."""
        return self.pyiceberg.ask("files", table=TABLE)

    def by_spark(self) -> Run:
        """In a warm session."""
        return self.sides.spark.ask("sql", statement=STATEMENT)


def said(run: Run) -> Hashable:
    """Partition, files and bytes."""
    return tuple(sorted(tuple(row) for row in run["rows"]))


def main() -> None:
    """Seed, measure, print."""
    chosen = options(__doc__, "300 manifests instead of 1,000").parse_args()
    shape = Scattered(TABLE, 300 if chosen.quick else 1000)
    with bench(chosen) as sides, Child("benchmarks.kit.pyiceberg_peer", str(sides.lake.home)) as pyiceberg:
        seed = Seed(sides.lake, TABLE, chosen.layout, partitioned=True)
        shape.commits(seed, shape.manifests)
        before = seed.publish()
        shape.commits(seed, 1)
        facts = Facts(sides, pyiceberg, before, seed.publish())
        sides.lake.point(TABLE, facts.after)
        sides.spark.ask("sql", statement="SELECT 1")  # it has started: nothing else runs while others are measured

        def compare(ours: Callable[[], Run], peer: Callable[[], Run], name: str, state: str) -> Comparison:
            return Comparison("evaluate", name, f"{shape}; {state}", in_turn(ours, peer, said))

        for ours, peer, name, state in (
            (facts.ours, facts.by_pyiceberg, "PyIceberg inspect.files(), cold", "cold"),
            (facts.ours_warm, facts.by_pyiceberg, "PyIceberg inspect.files(), cold", "one commit later, cache warm"),
            (facts.ours, facts.by_spark, "Spark SELECT from the files table, warm", "cold"),
        ):
            sides.add(partial(compare, ours, peer, name, state))
        if chosen.profile:
            sides.ours.ask("facts", table=TABLE, fresh=True, profile=True)
            sides.ours.ask("facts", table=TABLE, fresh=False, profile=True)


if __name__ == "__main__":
    main()
