"""The Arrow kernel against Spark's procedure: the same files, merged, cleared of deletes and sorted; and a fleet.

Prints one JSON line. Both sides have two tasks at a time; they run in turn on the same table, which is put back after
each run; Spark and its Python workers are warm on both.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from functools import partial

from benchmarks.compact_fleet import Fleet, due
from benchmarks.kit.bench import Bench, bench, options
from benchmarks.kit.lake import NAMESPACE, Lake, Saved
from benchmarks.kit.live import live_files
from benchmarks.kit.procedures import MEBIBYTE, rewrite_data_files
from benchmarks.kit.report import Comparison, Run
from benchmarks.kit.tables import Seed

PEER = "Spark CALL rewrite_data_files, warm"
A_TENTH = 10
LARGER = 1.05  # than Spark's outputs, ours are not


@dataclass(frozen=True)
class Shape:
    """An unpartitioned table of files of the same size, rewritten as a whole into two."""

    name: str
    files: int
    rows: int  # in each
    target: float  # MiB
    deleted_from: int = 0  # files of which every tenth row is gone, by position deletes
    order: str | None = None
    codec: str | None = (
        None  # as PyIceberg makes tables: then Spark writes gzip, its default, and Arrow zstd, Iceberg's
    )

    def seed(self, lake: Lake, layout: str) -> None:
        """Write the table."""
        seed = Seed(lake, self.name, layout, codec=self.codec)
        seed.commits(A_TENTH, self.rows, self.files // A_TENTH)
        seed.publish()

    def save(self, sides: Bench) -> Saved:
        """The table as both sides meet it."""
        if self.deleted_from:
            table = f"lake.{NAMESPACE}.{self.name}"
            properties = "'write.delete.mode' = 'merge-on-read'"
            where = f"id < {self.deleted_from * self.rows} AND id % {A_TENTH} = 0"
            sides.spark.ask("sql", statement=f"ALTER TABLE {table} SET TBLPROPERTIES ({properties})")
            sides.spark.ask("sql", statement=f"DELETE FROM {table} WHERE {where}")  # noqa: S608 - numbers alone
        return sides.lake.save(self.name)

    def compare(self, sides: Bench) -> Comparison:
        """Both in turn."""
        saved = self.save(sides)
        outputs = Outputs(saved)
        knobs = {"compact.target_file_size_mb": str(self.target), "compact.engine": "arrow"}
        more: Mapping[str, str] = {}
        if self.deleted_from:
            knobs["compact.delete_file_threshold"] = "1"
            more = {"delete_file_threshold": "1", "remove_dangling_deletes": "true"}
        if self.order:
            knobs |= {"compact.strategy": "sort", "compact.sort_order": self.order}
        statement = rewrite_data_files(saved.table, self.target, self.order, **more)
        turns = sides.operation(saved, "compact", knobs, statement, outputs.left)
        before = outputs.before
        size = sum(file.size for file in before.values()) / MEBIBYTE
        gone = f", every tenth row of {self.deleted_from} files deleted" if self.deleted_from else ""
        sort = f", sorted by {self.order}" if self.order else ""
        codec = f"; codec {self.codec}" if self.codec else "; no codec set: Spark writes gzip, Arrow zstd"
        shape = f"{len(before)} files of {size:.0f} MiB in all{gone}{sort}; target {self.target} MiB{codec}"
        ours, peer = outputs.sizes[-2:]
        task = max(run["child_mib"] for run in turns.ours)
        found = {"task_peak_mib": round(task), "output_mib": {"ours": round(ours, 1), "peer": round(peer, 1)}}
        return Comparison("compact_arrow", PEER, shape, turns, found | {"not_larger": ours <= peer * LARGER})


@dataclass
class Outputs:
    """What runs leave of a table."""

    saved: Saved
    sizes: list[float] = field(default_factory=list)  # MiB

    def __post_init__(self) -> None:
        self.before = live_files(self.saved)

    def left(self, _: Run) -> Hashable:
        """How many rows there are, in none of the files of before."""
        after = live_files(self.saved)
        assert not after.keys() & self.before.keys()
        self.sizes.append(sum(file.size for file in after.values()) / MEBIBYTE)
        return sum(file.rows for file in after.values())


FULL = (
    Shape("large", 100, 118_000, 256),
    Shape("small", 200, 5_600, 32),
    Shape("deleted", 100, 19_000, 64, deleted_from=20),
    Shape("sorted", 100, 19_000, 64, order="user, id"),
    Shape("shuffled", 200, 19_000, 40, order="user, id"),  # into more files than tasks read for themselves
    Shape("zstd", 100, 60_000, 256, codec="zstd"),
)
QUICK = (Shape("large", 20, 12_000, 32),)


def main() -> None:
    """Seed, measure, print."""
    chosen = options(__doc__, "one table of 20 files, and no fleet").parse_args()
    shapes, fleet = QUICK if chosen.quick else FULL, Fleet(60)
    with bench(chosen) as sides:
        with sides.starting(warmed=True):
            for shape in shapes:
                shape.seed(sides.lake, chosen.layout)
        for shape in shapes:
            sides.add(partial(shape.compare, sides))
        if not chosen.quick:
            tables = fleet.seed(sides.lake, chosen.layout)
            sides.add(partial(due, fleet, tables, sides))


if __name__ == "__main__":
    main()
