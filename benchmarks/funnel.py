"""Most tables need nothing: a whole cycle over them, few changed and fewer due, against cron's procedures on all.

Prints one JSON line. Both sides have a Spark that runs; the peer's has run the procedures before. Reads are files that
were opened to be read, by whatever process.
"""

from __future__ import annotations

import statistics
from collections.abc import Hashable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

from benchmarks.kit.bench import Bench, bench, options
from benchmarks.kit.lake import Saved
from benchmarks.kit.live import live_files
from benchmarks.kit.procedures import cron
from benchmarks.kit.reads import Watch
from benchmarks.kit.report import REPEATS, Comparison, Run, in_turn
from benchmarks.kit.tables import Seed

BEFORE = 3  # commits of a small file each, in each table, so recent that nobody expires them
SINCE = 3  # more, that a due table got, which make five and more small files; the others that changed got one
ROWS = 500  # in each file
TARGET = 512.0  # MiB; both sides' own default
KNOBS = {"evaluate.cooldown_minutes": "0"}  # the last cycle was longer ago than tables rest
CYCLES = 5  # after which nothing may be due
SHORT_LIVED = (
    "-XX:TieredStopAtLevel=1"  # what C2 costs, a JVM of a minute does not get back: both sides are faster without
)
COUNTED = ("s", "cpu", "reads", "listings")


@dataclass(frozen=True)
class Shape:
    """How many tables there are, changed since the last cycle, and are due; and of each kind the peer's sample."""

    tables: int
    changed: int
    due: int
    sample: Mapping[str, int]

    @property
    def kinds(self) -> Mapping[str, int]:
        """How many tables are of each kind."""
        return {"due": self.due, "changed": self.changed - self.due, "quiet": self.tables - self.changed}


FULL = Shape(500, 30, 10, {"due": 10, "changed": 20, "quiet": 30})
QUICK = Shape(60, 4, 1, {"due": 1, "changed": 0, "quiet": 1})


@dataclass
class Funnel:
    """The tables as the last cycle left them, then changed; and both sides on them."""

    sides: Bench
    watch: Watch
    shape: Shape
    changed: Mapping[str, Saved]  # by name, the due ones first
    sample: Mapping[str, Sequence[str]]  # tables that the peer sees, of each kind
    looks: list[Run] = field(default_factory=list)

    def ours(self, *, profile: bool = False) -> Run:
        """A whole cycle; the look by itself goes before, which changes nothing."""
        self.looks.append(self._asked("ours", "look", knobs=KNOBS))
        run = self._asked("ours", "cycle", knobs=KNOBS, fresh=False, kept=True, profile=profile)
        shape = self.shape
        assert run["funnel"] == [shape.tables, shape.changed, shape.due, shape.due], run["funnel"]
        assert {ref.rpartition(".")[2] for ref, _ in run["rows"]} == set(self.due)
        return run

    def peer(self) -> Run:
        """The procedures on the sample of each kind of tables, multiplied; what was not sampled is as if quiet."""
        totals = dict.fromkeys(COUNTED, 0.0)
        peaks, each = [], dict[str, float]()
        for kind, number in self.counted.items():
            chosen = self.sample[kind]
            run = self._asked("spark", "each", statements=[text for name in chosen for text in cron(name, TARGET)])
            peaks.append(run["mib"])
            for what in COUNTED:
                totals[what] += run[what] * number / len(chosen)
                each[f"{what}_{kind}"] = round(run[what] / len(chosen), 2)
        return {**totals, "mib": max(peaks), "each": each}

    @cached_property
    def counted(self) -> Mapping[str, int]:
        """How many tables each kind of the sample stands for: quiet ones, which take least, for kinds not looked at."""
        counts = {kind: number for kind, number in self.shape.kinds.items() if self.sample[kind]}
        return counts | {"quiet": self.shape.tables - sum(counts.values()) + counts["quiet"]}

    @cached_property
    def due(self) -> Sequence[str]:
        """The tables that a cycle does something to."""
        return list(self.changed)[: self.shape.due]

    def left(self, run: Run) -> Hashable:
        """The due tables that both sides saw: how many files and rows; and whether ours left all others alone."""
        mine = {name: self.changed[name] for name in (self.due if "funnel" in run else self.sample["due"])}
        found = {name: list(live_files(saved).values()) for name, saved in mine.items()}
        assert all(len(files) == 1 for files in found.values()), found
        if "funnel" in run:
            others = [saved for name, saved in self.changed.items() if name not in mine]
            assert all(saved.lake.pointer(saved.table) == saved.pointer for saved in others)
        self.restore()
        return tuple((len(found[name]), sum(file.rows for file in found[name])) for name in self.sample["due"])

    def restore(self) -> None:
        """Put back what was changed."""
        for saved in self.changed.values():
            saved.restore()

    def _asked(self, side: str, what: str, **more: Any) -> Run:
        with self.watch.counted() as reads:
            run = getattr(self.sides, side).ask(what, **more)
        return {**run, "reads": reads.files, "listings": reads.listings}


def seeded(sides: Bench, tables: int, layout: str) -> Sequence[Seed]:
    """Tables of a few small files each."""
    seeds = [Seed(sides.lake, f"t{number:03d}", layout) for number in range(tables)]
    for seed in seeds:
        seed.until_now(BEFORE + SINCE)  # so that those that come later are later
        seed.commits(BEFORE, ROWS)
        seed.publish(checked=seed is seeds[0])
    return seeds


def settled(sides: Bench, seeds: Sequence[Seed]) -> None:
    """Let ours know all tables, until nothing is due."""
    sides.ours.ask("known", uuids={seed.table: seed.uuid for seed in seeds})
    for _ in range(CYCLES):
        if not sides.ours.ask("cycle", knobs=KNOBS, fresh=False)["rows"]:
            sides.ours.ask("keep")
            return
    raise RuntimeError(f"something is due after {CYCLES} cycles")


def written(sides: Bench, seeds: Sequence[Seed], due: int) -> Mapping[str, Saved]:
    """Let tables get commits, the due ones first."""
    for place, seed in enumerate(seeds):
        commits = SINCE if place < due else 1
        seed.until_now(commits)
        seed.commits(commits, ROWS)
        sides.lake.point(seed.table, seed.publish())
    return {seed.table: sides.lake.save(seed.table) for seed in seeds}


@dataclass(frozen=True)
class Tables:
    """All tables, as seeds of them."""

    shape: Shape
    seeds: Sequence[Seed]

    @cached_property
    def changing(self) -> Sequence[Seed]:
        """Those that get commits, the due ones first."""
        return self.seeds[:: self.shape.tables // self.shape.changed][: self.shape.changed]

    @cached_property
    def sample(self) -> Mapping[str, Sequence[str]]:
        """Names of tables of each kind, that the peer sees."""
        names = [seed.table for seed in self.changing]
        quiet = [seed.table for seed in self.seeds if seed not in self.changing]
        kinds = {"due": names[: self.shape.due], "changed": names[self.shape.due :], "quiet": quiet}
        return {kind: names[: self.shape.sample[kind]] for kind, names in kinds.items()}

    def maintained(self, sides: Bench) -> None:
        """What the peer finds to do on quiet tables it has done before."""
        sides.spark.ask("each", statements=[text for name in self.sample["quiet"] for text in cron(name, TARGET)])

    def compare(self, sides: Bench) -> Comparison:
        """Both in turn."""
        settled(sides, self.seeds)
        changed = written(sides, self.changing, self.shape.due)
        with closing(Watch(sides.lake.folder(""))) as watch:
            funnel = Funnel(sides, watch, self.shape, changed, self.sample)
            repeats, discard = (1, 0) if sides.quick else (REPEATS, 1)
            turns = in_turn(funnel.ours, funnel.peer, funnel.left, discard=discard, repeats=repeats)
            if sides.profile:
                funnel.ours(profile=True)
        seen = ", ".join(f"{number} {kind}" for kind, number in self.shape.sample.items())
        shape = (
            f"{self.shape.tables} tables in a SQL catalog, {self.shape.changed} changed since the last cycle, "
            f"{self.shape.due} of them due; the peer's numbers are those of a sample ({seen}), multiplied by kind"
        )
        return Comparison("funnel", PEER, shape, turns, more(turns.ours, turns.peer, funnel.looks[-repeats:]))


PEER = "Spark CALL of four procedures on each table, one session, warm"


def more(ours: Sequence[Run], peer: Sequence[Run], looks: Sequence[Run]) -> Mapping[str, Any]:
    """What is read, and which part of ours is the look at the tables; the rest is the jobs of those that are due."""

    def median(runs: Sequence[Run], what: str) -> float:
        return round(statistics.median(float(run[what]) for run in runs), 2)

    counts = {
        f"{what}_{whose}": median(runs, what)
        for what in ("reads", "listings")
        for whose, runs in (("ours", ours), ("peer", peer))
    }
    look = {what: median(looks, what) for what in COUNTED}
    return {
        **counts,
        "reads_ratio": round(counts["reads_peer"] / counts["reads_ours"], 2),
        "look": look,
        "peer_of_a_table": peer[-1]["each"],
    }


def main() -> None:
    """Seed, measure, print."""
    quick = (
        "the first run of each side, whose JVMs compile with C1 alone; 60 tables, 4 changed, 1 due; "
        "the peer sees 1 due, 1 quiet, else 10, 20 changed, 30"
    )
    chosen = options(__doc__, quick).parse_args()
    shape = QUICK if chosen.quick else FULL
    with bench(chosen, java_options=SHORT_LIVED if chosen.quick else "") as sides:
        with sides.starting():
            tables = Tables(shape, seeded(sides, shape.tables, chosen.layout))
            tables.maintained(sides)
        sides.add(partial(tables.compare, sides))


if __name__ == "__main__":
    main()
