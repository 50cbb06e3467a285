"""The measured effect of a rewrite on readers: time to plan a scan, and time of a configured probe query."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta

from icewright.core.effective import Knobs
from icewright.core.policy import MAX_PLANNING, MEGABYTE, PLANNING, PROBE, PROBE_TIMEOUT, Operation
from icewright.core.steps import Step, on_pool
from icewright.core.table import Snapshot, TableFacts
from icewright.flow.lease import Lease
from icewright.flow.runtime import Runtime
from icewright.ports import Probe

REWRITES = frozenset({Operation.COMPACT, Operation.REWRITE_DELETES, Operation.REWRITE_MANIFESTS})


@dataclass(frozen=True)
class Impact:
    """Measurements to add to the before, the after and the notes of a run record."""

    before: Mapping[str, float | None] = field(default_factory=dict)
    after: Mapping[str, float | None] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


@dataclass
class Measuring:
    """Measures the rewrites of one job, each right after its commit, while the files before it still exist."""

    runtime: Runtime
    job_id: str
    lease: Lease
    knobs: Knobs
    _planned: dict[int, float] = field(default_factory=dict)  # milliseconds by snapshot id

    def of(self, step: Step | None, old: TableFacts, new: TableFacts) -> Impact:
        """Measure what the settings ask for, before and after the rewrite; a failed measurement becomes a note."""
        before, after = old.metadata.current_snapshot, new.metadata.current_snapshot
        if before is None or after is None or before.snapshot_id == after.snapshot_id:
            return Impact()
        measured: dict[str, tuple[float | None, float | None]] = {}
        notes = []
        if self.knobs[PLANNING]:
            measured["planning_ms"] = None, None
            try:
                if large := self._too_large(old, new):
                    notes.append(large)
                else:
                    measured["planning_ms"] = self._planning(before), self._planning(after)
            except Exception as error:  # noqa: BLE001 - the rewrite is done, and is recorded without the measurement
                notes.append(f"planning could not be measured: {error}")
        query = self.knobs[PROBE]
        if query is not None and step is not None and on_pool(step):
            measured["probe_ms"] = None, None
            try:
                measured["probe_ms"] = self._probe(query, new, before, after)
            except Exception as error:  # noqa: BLE001
                notes.append(f"the probe failed: {error}")
        return Impact(
            {name: pair[0] for name, pair in measured.items()},
            {name: pair[1] for name, pair in measured.items()},
            tuple(notes),
        )

    def _too_large(self, *facts: TableFacts) -> str | None:
        manifest_mb = max(sum(m.bytes for m in f.manifests) for f in facts) / MEGABYTE
        limit = self.knobs[MAX_PLANNING]
        note = f"planning was not measured: {manifest_mb:.0f} MB of manifests (impact.max_planning_mb {limit})"
        return note if manifest_mb > limit else None

    def _planning(self, snapshot: Snapshot) -> float:
        milliseconds = self._planned.get(snapshot.snapshot_id)
        if milliseconds is None:
            milliseconds = round(1000 * self.runtime.files.planning_seconds(snapshot), 3)
            self._planned[snapshot.snapshot_id] = milliseconds
        return milliseconds

    def _probe(self, query: str, new: TableFacts, *snapshots: Snapshot) -> tuple[float, float]:
        limit = timedelta(seconds=self.knobs[PROBE_TIMEOUT])
        ids = tuple(s.snapshot_id for s in snapshots)
        probe = Probe(self.job_id, new.metadata, query, ids, limit, self.lease.check)
        before, after = (round(1000 * seconds, 3) for seconds in self.runtime.engine.probe(probe))
        return before, after
