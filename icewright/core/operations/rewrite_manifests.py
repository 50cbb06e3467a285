"""Manifest rewriting: many small manifests make planning slow, whatever the data files are like."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import datetime

from icewright.core.cost import OPEN_COST_MB, service_cost, spark_cost
from icewright.core.effective import Knobs
from icewright.core.policy import (
    CHECK_TOTALS,
    MANIFEST_CACHING,
    MANIFEST_ENGINE,
    MANIFEST_SPEC,
    MIN_MANIFESTS,
    Operation,
)
from icewright.core.runs import LastRun
from icewright.core.steps import Due, NotDue, RewriteManifests, Unsupported, Verdict, Work
from icewright.core.table import ManifestContent, ManifestFacts, TableFacts

SERVICE_VERSIONS = (1, 2)  # row lineage of v3 needs a writer that knows it: Spark's procedure from Iceberg 1.12


def evaluate(facts: TableFacts, knobs: Knobs, last: LastRun | None, now: datetime) -> Verdict:  # noqa: ARG001
    """Return Due when a spec has at least `min_manifests` data manifests, and a rewrite leaves at most half."""
    if facts.metadata.current_snapshot is None:
        return NotDue("no current snapshot")
    least = knobs[MIN_MANIFESTS]
    only = knobs[MANIFEST_SPEC]
    data = [m for m in facts.manifests if m.content is ManifestContent.DATA and (only is None or m.spec_id == only)]
    count = sum(m.manifests for m in data)
    if count < least:
        return NotDue(f"only {count} data manifests, below threshold of {least}")
    if not sum(m.entries for m in data):
        return NotDue("no data entries to rewrite")
    chosen = [m for m in data if m.small > 1 and ideal(m, facts) <= m.manifests / 2]
    before, after = sum(m.manifests for m in chosen), sum(ideal(m, facts) for m in chosen)
    if before < least:
        return NotDue(f"{count} data manifests where {sum(ideal(m, facts) for m in data)} would do")
    engine = knobs[MANIFEST_ENGINE]
    if engine == "service" and facts.metadata.format_version not in SERVICE_VERSIONS:
        return Unsupported(f"format v{facts.metadata.format_version} manifests are rewritten by Spark alone")
    by_spark = engine == "spark" or facts.metadata.format_version not in SERVICE_VERSIONS
    entries = sum(m.entries for m in chosen)
    step = RewriteManifests(
        spec_ids=tuple(m.spec_id for m in chosen),
        target_bytes=facts.thresholds.manifest_target_bytes,
        by_spark=by_spark,
        use_caching=knobs[MANIFEST_CACHING],
        check_totals=knobs[CHECK_TOTALS],
    )
    return Due(
        Work(Operation.REWRITE_MANIFESTS, (step,), _notes(chosen, by_spark=by_spark)),
        benefit=OPEN_COST_MB / 4 * (before - after),
        cost=spark_cost(0) if by_spark else service_cost(entries + before),
        why=f"{before} manifests of {entries} entries where {after} would do",
        files=before - after,
        per_file=OPEN_COST_MB / 4,
    )


def ideal(manifests: ManifestFacts, facts: TableFacts) -> int:
    """Return how many manifests of the target size hold these entries."""
    return max(1, math.ceil(manifests.bytes / facts.thresholds.manifest_target_bytes))


def _notes(chosen: Sequence[ManifestFacts], *, by_spark: bool) -> tuple[str, ...]:
    specs = f"specs {', '.join(str(m.spec_id) for m in chosen)}" if len(chosen) > 1 else f"spec {chosen[0].spec_id}"
    return (f"{specs}, {'on Spark' if by_spark else 'in-service'}",)
