"""A table of many small manifests, each of which has files of many partitions."""

from __future__ import annotations

import random
from dataclasses import dataclass

from benchmarks.kit.lake import Lake, Saved
from benchmarks.kit.tables import Seed

PARTITIONS = 200
FILES = 20  # in each manifest
KEPT = 5  # snapshots; the earlier ones have been expired


@dataclass(frozen=True)
class Scattered:
    """As many commits as manifests; each adds files to other partitions."""

    table: str
    manifests: int

    def __str__(self) -> str:
        return f"{self.manifests * FILES} files in {self.manifests} manifests, {PARTITIONS} partitions"

    def seed(self, lake: Lake, layout: str) -> Saved:
        """Write the table."""
        seed = Seed(lake, self.table, layout, partitioned=True)
        self.commits(seed, self.manifests)
        seed.publish()
        return lake.save(self.table)

    @staticmethod
    def commits(seed: Seed, count: int) -> None:
        """Add manifests; the last snapshots stay."""
        rng, deck = random.Random(count), list[int]()
        for number in range(count):
            if not deck:
                deck = rng.sample(range(PARTITIONS), PARTITIONS)
            chosen, deck = sorted(deck[:FILES]), deck[FILES:]
            seed.commit([seed.file(part) for part in chosen], listed=number >= count - KEPT)
