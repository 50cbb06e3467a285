"""Manifest rewriting: many small manifests make planning slow, whatever the data files are like."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from icewright.core.cost import OPEN_COST_MB, service_cost, spark_cost
from icewright.core.effective import Knobs
from icewright.core.numbers import number_or
from icewright.core.policy import CHECK_TOTALS, MEGABYTE, Operation
from icewright.core.rewriting import (
    MANIFEST_CACHING,
    MANIFEST_DELETED,
    MANIFEST_ENGINE,
    MANIFEST_SORT,
    MANIFEST_SPEC,
    MIN_MANIFESTS,
)
from icewright.core.runs import LastRun
from icewright.core.steps import Blocked, Due, NotDue, RewriteManifests, Unsupported, Verdict, Work
from icewright.core.table import ManifestContent, ManifestFacts, TableFacts
from icewright.core.words import count

SERVICE_VERSIONS = (1, 2)  # row lineage of v3 needs a writer that knows it: Spark's procedure from Iceberg 1.12
SPARK_TARGET_BYTES = 8 * MEGABYTE  # Iceberg's default of commit.manifest.target-size-bytes


def evaluate(facts: TableFacts, knobs: Knobs, last: LastRun | None, now: datetime) -> Verdict:  # noqa: ARG001
    """Return Due when there are many manifests of which a rewrite leaves at most half, or one is far too large.

    Manifests are counted by spec and by content: those of data files and those of delete files. Where a policy erases
    rows, an entry of a file that is gone makes its group due too.
    """
    metadata = facts.metadata
    if metadata.current_snapshot is None:
        return NotDue("no current snapshot")
    engine = knobs[MANIFEST_ENGINE]
    by_spark = engine == "spark" or metadata.format_version not in SERVICE_VERSIONS
    choice = _choice(facts, knobs, by_spark=by_spark)
    chosen = choice.groups
    if not chosen:
        return NotDue(_none_chosen(choice.candidates, facts, knobs[MIN_MANIFESTS]))
    if engine == "service" and by_spark:
        return Unsupported(f"format v{metadata.format_version} manifests are rewritten by Spark alone")
    step = RewriteManifests(
        chosen=tuple((m.spec_id, m.content) for m in chosen),
        target_bytes=facts.thresholds.manifest_target_bytes,
        by_spark=by_spark,
        use_caching=knobs[MANIFEST_CACHING],
        check_totals=knobs[CHECK_TOTALS],
        sort_by=tuple(name.strip() for name in (knobs[MANIFEST_SORT] or "").split(",") if name.strip()),
    )
    if unknown := set(step.sort_by).difference(field.name for spec in metadata.specs for field in spec.fields):
        return Blocked(f"rewrite_manifests.sort_by names {', '.join(sorted(unknown))}, which is no partition field")
    before, after = sum(m.manifests for m in chosen), sum(ideal(m, facts) for m in chosen)
    entries = sum(m.entries for m in chosen)
    large, deleted = choice.large, choice.deleted_entries
    return Due(
        Work(Operation.REWRITE_MANIFESTS, (step,), _notes(chosen, by_spark=by_spark)),
        benefit=OPEN_COST_MB / 4 * max(large, bool(deleted), before - after),
        cost=spark_cost(0) if by_spark else service_cost(entries + before),
        why=count(before, "manifest")
        + f" of {count(entries, 'entry')}"
        + f" where {after} would do" * (after != before)
        + f"; {large} of them larger than twice the target" * bool(large)
        + f"; {count(deleted, 'entry')} of files that are gone" * bool(deleted),
        files=before - after,
        per_file=OPEN_COST_MB / 4,
    )


@dataclass(frozen=True, slots=True)
class _Choice:
    """The groups of manifests that a rewrite is for, of those that it may be for."""

    candidates: Sequence[ManifestFacts]
    groups: Sequence[ManifestFacts]
    large: int  # manifests far above the target
    deleted_entries: int  # to erase


def _choice(facts: TableFacts, knobs: Knobs, *, by_spark: bool) -> _Choice:
    only = knobs[MANIFEST_SPEC]
    candidates = [m for m in facts.manifests if only is None or m.spec_id == only]
    small = [m for m in candidates if m.entries and m.small > 1 and ideal(m, facts) <= m.manifests / 2]
    if sum(m.manifests for m in small) < knobs[MIN_MANIFESTS]:
        small = []
    split = _too_large(candidates, facts, by_spark=by_spark)
    erased = [m for m in candidates if m.deleted_entries] if knobs[MANIFEST_DELETED] and not by_spark else []
    groups = [m for m in candidates if m in (*small, *split, *erased)]
    return _Choice(candidates, groups, sum(m.large for m in split), sum(m.deleted_entries for m in erased))


def _too_large(groups: Sequence[ManifestFacts], facts: TableFacts, *, by_spark: bool) -> list[ManifestFacts]:
    """Return the groups with manifests far above the target; none where Spark would aim at a larger size."""
    named = facts.metadata.properties.get("commit.manifest.target-size-bytes", "")
    spark_target = number_or(SPARK_TARGET_BYTES, named)
    if by_spark and spark_target > facts.thresholds.manifest_target_bytes:
        return []
    return [m for m in groups if m.large]


def _none_chosen(groups: Sequence[ManifestFacts], facts: TableFacts, least: int) -> str:
    """Return why no manifest is worth a rewrite."""
    counts = {content: sum(m.manifests for m in groups if m.content is content) for content in ManifestContent}
    deletes = counts[ManifestContent.DELETES]
    counted = count(counts[ManifestContent.DATA], "data manifest")
    counted += f" and {count(deletes, 'delete manifest')}" * bool(deletes)
    if sum(counts.values()) < least:
        return f"only {counted}, below threshold of {least}"
    if not sum(m.entries for m in groups):
        return "no entries to rewrite"
    return f"{counted} where {sum(ideal(m, facts) for m in groups)} would do"


def ideal(manifests: ManifestFacts, facts: TableFacts) -> int:
    """Return how many manifests of the target size hold these entries."""
    return max(1, math.ceil(manifests.bytes / facts.thresholds.manifest_target_bytes))


def _notes(chosen: Sequence[ManifestFacts], *, by_spark: bool) -> tuple[str, ...]:
    ids = dict.fromkeys(str(m.spec_id) for m in chosen)
    return (f"spec{'s' * (len(ids) > 1)} {', '.join(ids)}, {'on Spark' if by_spark else 'in-service'}",)
