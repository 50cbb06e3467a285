"""Random histories: what is drawn, and how it is played on a real table that looks days old afterwards."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from hypothesis import strategies as st

from icewright.app.demo.files import local, millis
from tests.integration.bench import Bench, hours_ago
from tests.integration.tables import create
from tests.integration.writers import HOUR_MS, Writers

_NUMBERS = itertools.count(1)
# How often each of the methods of `Writers` is called.
WEIGHTS = {
    "append": 8,
    "insert": 1,
    "overwrite": 2,
    "delete_rows": 2,
    "delete_file": 2,
    "merge_on_read": 3,
    "equality": 2,
    "vectors": 2,
    "readd": 2,
    "tag": 3,
    "branch": 3,
    "branch_write": 3,
    "drop_ref": 1,
    "rollback": 2,
    "switch": 1,
    "stage": 2,
    "cherrypick": 2,
    "forget": 1,
    "column": 2,
    "spec": 2,
    "upgrade": 1,
    "compact": 1,
    "merge_deletes": 1,
    "spark_manifests": 1,
    "our_manifests": 2,
    "statistics": 3,
    "computed": 1,
}


@dataclass(frozen=True)
class Step:
    """One thing that happens, and a number by which it chooses among what there is."""

    kind: str
    pick: int


@dataclass(frozen=True)
class Plan:
    """A table, what happens to it, how long ago, and how it is expired then."""

    version: int
    partitioned: bool
    logged: int  # metadata files that the log keeps
    ref_age: int | None  # the table's own `history.expire.max-ref-age-ms`, in hours
    steps: tuple[Step, ...]
    gaps: tuple[int, ...]  # hours between snapshots, newest first, again and again
    skew: int | None  # a snapshot that its writer's clock made younger than the next
    hours: int
    keep: int


def plans() -> st.SearchStrategy[Plan]:
    """Any history; ages are whole hours and a half, retentions whole hours."""
    kinds = [kind for kind, weight in WEIGHTS.items() for _ in range(weight)]
    step = st.builds(Step, st.sampled_from(kinds), st.integers(0, 59))
    return st.builds(
        Plan,
        version=st.sampled_from((1, 2, 2, 3, 3)),
        partitioned=st.booleans(),
        logged=st.sampled_from((2, 100)),
        ref_age=st.sampled_from((None, None, 30)),
        steps=st.lists(step, min_size=8, max_size=16).map(tuple),
        gaps=st.lists(st.sampled_from((0, 1, 4, 9)), min_size=1, max_size=6).map(tuple),
        skew=st.sampled_from((None, None, 3)),
        hours=st.sampled_from((1, 8, 20)),
        keep=st.sampled_from((1, 1, 2, 4)),
    ).filter(lambda plan: len({step.kind for step in plan.steps}) > 3)


class History(Writers):
    """A table that a plan is played on; `happened` counts the steps that did something."""

    def __init__(self, bench: Bench, plan: Plan, our_manifests: Callable[[History], bool]) -> None:
        super().__init__(bench, f"test.history_{next(_NUMBERS)}", plan.version)
        self.plan, self._our_manifests = plan, our_manifests
        self.happened: Counter[str] = Counter()
        properties = {
            "write.metadata.previous-versions-max": str(plan.logged),
            "write.wap.enabled": "true",
            "write.delete.granularity": "partition" if plan.keep % 2 else "file",
            "commit.manifest-merge.enabled": "true" if plan.keep > 2 else "false",
        }
        if plan.version > 1:
            properties["write.delete.mode"] = "merge-on-read"
        if plan.ref_age is not None:
            properties["history.expire.max-ref-age-ms"] = str(plan.ref_age * HOUR_MS)
        by = "part" if plan.partitioned else ""
        create(bench, self.name, "id int, part string, n int", by, properties, version=plan.version)

    def play(self) -> None:
        """Everything that the plan says, and at last the ages."""
        for step in (Step("append", 0), Step("append", 1), *self.plan.steps):
            self.happened[step.kind] += getattr(self, step.kind)(step.pick)
        self._backdate()

    def our_manifests(self, _: int) -> bool:
        """Manifests rewritten by Icewright, with its proofs."""
        return self._our_manifests(self)

    def _backdate(self) -> None:
        """Give every snapshot the age that the plan says, and the logs ages that fit."""
        location = self.table.metadata_location
        old = local(location)
        document = json.loads(old.read_text(encoding="utf-8"))
        times = self._times([s["snapshot-id"] for s in document["snapshots"]])
        for snapshot in document["snapshots"]:
            snapshot["timestamp-ms"] = times[snapshot["snapshot-id"]]
        at = 0
        for entry in document["snapshot-log"]:
            entry["timestamp-ms"] = at = max(at, times[entry["snapshot-id"]])
        document["metadata-log"].append({"metadata-file": location, "timestamp-ms": 0})
        for entry in document["metadata-log"]:
            entry["timestamp-ms"] = min(times.values())
        document["last-updated-ms"] = max(times.values())
        for version in old.parent.glob("*.metadata.json"):  # one that is newer would look like another writer's
            earlier = json.loads(version.read_text(encoding="utf-8")) | {"last-updated-ms": min(times.values()) - 1}
            version.write_text(json.dumps(earlier), encoding="utf-8")
        number = int(old.name.partition("-")[0]) + 1
        path = old.with_name(f"{number:05d}-00000000-0000-4000-8000-{number:012d}.metadata.json")
        path.write_text(json.dumps(document), encoding="utf-8")
        self.bench.lake.catalog.drop_table(self.name)
        self.bench.lake.catalog.register_table(self.name, f"file://{path}")

    def _times(self, order: Sequence[int]) -> Mapping[int, int]:
        ages, age = [], 2.5
        for number in range(len(order)):
            ages.append(age)
            age += self.plan.gaps[number % len(self.plan.gaps)]
        ages.reverse()
        if self.plan.skew is not None and len(ages) > self.plan.skew + 1:
            one, other = self.plan.skew, self.plan.skew + 1
            ages[one], ages[other] = ages[other], ages[one]
        return {snapshot: millis(at) for snapshot, at in zip(order, hours_ago(*ages), strict=True)}
