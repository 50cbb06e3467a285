"""A table's health, 0 to 100, and its parts with the numbers behind them. None means unknown, never healthy."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from icewright.core.cost import expected_files
from icewright.core.effective import Knobs
from icewright.core.partition_filter import admitted
from icewright.core.partitions import small_partitions
from icewright.core.policy import MEGABYTE
from icewright.core.retention import Expiry
from icewright.core.rewriting import DELETE_RATIO_THRESHOLD, MIN_INPUT_FILES, MIN_MANIFESTS
from icewright.core.table import ManifestContent, PartitionFacts, TableFacts
from icewright.core.words import byte_size, count

WEIGHTS: Mapping[str, int] = {"small_files": 35, "deletes": 25, "manifests": 15, "snapshots": 15, "orphans": 10}
LARGE_METADATA = 64 * MEGABYTE  # every reader and every commit pays for the whole metadata file


@dataclass(frozen=True, slots=True)
class HealthPart:
    """One part of the health: its score, None when unknown, and the number behind it in words."""

    score: int | None
    behind: str


def health_parts(
    facts: TableFacts, knobs: Knobs, expiry: Expiry, orphan_share: float | None, now: datetime
) -> dict[str, HealthPart]:
    """Return the parts by name. `orphan_share` is the share of orphans in the last scan, None without a scan."""
    return {
        "small_files": _small_files(facts, knobs, now),
        "deletes": _deletes(facts, knobs),
        "manifests": _manifests(facts, knobs),
        "snapshots": _snapshots(facts, expiry),
        "orphans": HealthPart(None, "no scan yet")
        if orphan_share is None
        else HealthPart(_score(1 - orphan_share), f"{orphan_share:.1%} of the files seen by the last scan"),
    }


def overall(parts: Mapping[str, HealthPart]) -> int | None:
    """Return the weighted mean of the parts that are known."""
    scored = [(WEIGHTS[name], part.score) for name, part in parts.items() if part.score is not None]
    weight = sum(w for w, _ in scored)
    return round(sum(w * s for w, s in scored) / weight) if weight else None


def files_to_save(partition: PartitionFacts, facts: TableFacts) -> int:
    """Return how many files fewer the partition would have after a rewrite of its candidates."""
    t = facts.thresholds.of(partition.data_bytes)
    if partition.candidate_files < 2:  # noqa: PLR2004 - one file cannot be merged with itself
        return 0
    outputs = expected_files(partition.candidate_bytes, t.target_bytes, t.min_bytes, t.max_bytes)
    return max(0, partition.candidate_files - outputs)


def _score(share: float) -> int:
    return round(100 * min(1.0, max(0.0, share)))


def _small_files(facts: TableFacts, knobs: Knobs, now: datetime) -> HealthPart:
    if (small := small_partitions(facts)) is not None:  # no rewrite helps readers, who open them all the same
        behind = f"{count(small.files, 'data file')} in {count(small.partitions, 'small partition')}"
        behind += f" where {small.enough} would do"
        return HealthPart(_score(small.enough / small.files), f"{behind}: see the advice on partitions")
    least, total = knobs[MIN_INPUT_FILES], facts.data_files
    excess = sum(files_to_save(p, facts) for p in admitted(facts, knobs, now) if p.candidate_files >= least)
    return HealthPart(
        _score(1 - excess / total) if total else 100, f"{excess} of {count(total, 'data file')} could be merged away"
    )


def _deletes(facts: TableFacts, knobs: Knobs) -> HealthPart:
    ratio = facts.deleted_rows / facts.records if facts.records else 0.0
    files = facts.delete_files
    per_file = files / facts.data_files if facts.data_files else float(files > 0)
    limit = knobs[DELETE_RATIO_THRESHOLD] or 1e-9
    score = _score(1 - max(ratio / limit / 2, per_file / 4))
    return HealthPart(score if files else 100, f"{count(files, 'delete file')}, {ratio:.1%} of the rows deleted")


def _manifests(facts: TableFacts, knobs: Knobs) -> HealthPart:
    data = [m for m in facts.manifests if m.content is ManifestContent.DATA]
    actual = sum(m.manifests for m in data)
    ideal = sum(max(1, math.ceil(m.bytes / facts.thresholds.manifest_target_bytes)) for m in data)
    healthy = actual < knobs[MIN_MANIFESTS] or actual <= ideal
    behind = f"{count(actual, 'data manifest')} where {ideal} would do"
    return HealthPart(100 if healthy else _score(ideal / actual), behind)


def _snapshots(facts: TableFacts, expiry: Expiry) -> HealthPart:
    total = len(facts.metadata.snapshots)
    size = facts.metadata.metadata_length
    share = 1 - len(expiry.snapshot_ids) / total if total else 1.0
    if size > LARGE_METADATA:
        share *= LARGE_METADATA / size
    behind = f"{len(expiry.snapshot_ids)} of {count(total, 'snapshot')} can expire, metadata file of {byte_size(size)}"
    return HealthPart(_score(share), behind)
