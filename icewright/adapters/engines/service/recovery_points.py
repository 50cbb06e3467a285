"""Recovery points: tags made and retired in one commit, which writes no file but the table's metadata; their costs."""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from dataclasses import replace

import polars as pl

from icewright.adapters.engines.service import reachable as sets
from icewright.core.errors import InvariantViolated
from icewright.core.policy import Operation
from icewright.core.recovery import PointCosts, points
from icewright.core.runs import Outcome, committed
from icewright.core.steps import TagRecoveryPoints
from icewright.core.table import TableMetadata
from icewright.core.verify import identity_violations, ref_violations
from icewright.core.words import count
from icewright.ports import Catalog, SetRefs, StepRequest, TableFiles


def tag_recovery_points(catalog: Catalog, request: StepRequest, step: TagRecoveryPoints) -> Outcome:
    """Set the tags, or list those to set. Raises `CommitConflict` when the table changed meanwhile."""
    base = request.base
    if not request.dry_run:
        request.check()
        retired = frozenset(point.name for point in step.retire)
        after = catalog.commit(base, SetRefs(tuple(point.tag for point in step.make), retired))
        broken = identity_violations(base, after) + ref_violations(base, after, retired)
        broken += [f"point {p.name} was not made" for p in set(step.make) - set(points(after))]
        if broken:
            raise InvariantViolated(f"{base.ref}: recovery_points broke the table: {'; '.join(sorted(broken))}")
    made, gone = ("would make", "retire") if request.dry_run else ("made", "retired")
    return committed(
        Operation.RECOVERY_POINTS,
        f"{made} {count(len(step.make), 'recovery point')}, {gone} {len(step.retire)}",
        {"points_made": len(step.make), "points_retired": len(step.retire)},
        notes=(
            *(f"{made} {point.name} of snapshot {point.snapshot_id}" for point in step.make),
            *(f"{gone} {point.name} of snapshot {point.snapshot_id}" for point in step.retire),
        ),
    )


def point_costs(
    files: TableFiles, metadata: TableMetadata, of_points: AbstractSet[int], expiring: AbstractSet[int]
) -> PointCosts:
    """Return the bytes that the snapshots `of_points` alone need, when those that are `expiring` go with them."""
    snapshots = [s for s in metadata.snapshots if s.snapshot_id in of_points]
    if not snapshots:
        return PointCosts(0, {})
    rest = replace(
        metadata, snapshots=tuple(s for s in metadata.snapshots if s.snapshot_id not in of_points | expiring)
    )
    others = sets.manifests_of(files, rest.snapshots)
    manifests = sets.manifests_of(files, snapshots).join(others, on="path", how="anti")  # the rest need not be read
    lists = [
        sets.manifests_of(files, [s]).select("path", pl.lit(s.snapshot_id).alias("snapshot")).unique()
        for s in snapshots
    ]
    named = sets.as_files(manifests).with_columns(manifest=pl.col("path")).drop("kind")
    content = [
        frame.select("path", "bytes", manifest=pl.lit(manifests["path"]).gather(pl.col("manifest")))
        for frame in sets.content_by_manifest(files, manifests)
    ]
    needed = pl.concat([named, *content]).join(pl.concat(lists), left_on="manifest", right_on="path")
    needed = needed.select("path", "bytes", "snapshot").unique()
    needed = sets.unreached(needed, sets.reached(files, rest, others), files.canonical)
    single = needed.filter(pl.len().over("path") == 1).group_by("snapshot").agg(pl.col("bytes").sum())
    return PointCosts(int(needed.unique("path")["bytes"].sum()), dict(single.iter_rows()))
