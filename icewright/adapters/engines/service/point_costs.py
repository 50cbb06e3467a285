"""What recovery points cost: the files that nothing but their snapshots needs."""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from dataclasses import replace

import polars as pl

from icewright.adapters.engines.service import reachable as sets
from icewright.core.recovery import PointCosts
from icewright.core.table import TableMetadata
from icewright.ports import TableFiles


def point_costs(
    files: TableFiles, metadata: TableMetadata, kept: AbstractSet[int], gone: AbstractSet[int]
) -> PointCosts:
    """Return the bytes that the snapshots `kept` alone need, when those that are `gone` go with them."""
    points = [s for s in metadata.snapshots if s.snapshot_id in kept]
    if not points:
        return PointCosts(0, {})
    rest = replace(metadata, snapshots=tuple(s for s in metadata.snapshots if s.snapshot_id not in kept | gone))
    others = sets.manifests_of(files, rest.snapshots)
    manifests = sets.without(sets.manifests_of(files, points), others, files.canonical)
    lists = [
        sets.manifests_of(files, [s]).select("path", pl.lit(s.snapshot_id).alias("snapshot")).unique() for s in points
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
