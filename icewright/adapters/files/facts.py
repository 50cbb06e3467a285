"""Table facts from manifests: counted per partition by Polars, never file by file in Python."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl
import pyarrow as pa

from icewright.adapters.files.bounds import Measured
from icewright.adapters.files.manifests import DATA, DELETED, EQUALITY_DELETES, POSITION_DELETES
from icewright.core.errors import MetadataUnreadable
from icewright.core.partitions import PartitionKey, partition_key, partition_text
from icewright.core.policy import MEGABYTE
from icewright.core.runs import FileAction
from icewright.core.sizes import FileHistogram, SizeClass
from icewright.core.steps import ConvertEqualityDeletes, RewriteDataFiles, RewritePositionDeletes
from icewright.core.table import (
    FORMAT_V3,
    ManifestContent,
    ManifestFacts,
    ManifestFile,
    PartitionFacts,
    TableFacts,
    TableMetadata,
    Thresholds,
)
from icewright.core.words import in_shell

_KEY = ["spec_id", "partition"]
_SMALL_MANIFEST = 0.75  # of the target, as for data files
_LARGE_MANIFEST = 2  # times the target, so that it makes two of about the target
_LEAST_TO_SPLIT = 100  # entries: below, the header with the table's schema may be what is large, and no split ends that


def table_facts(
    metadata: TableMetadata,
    thresholds: Thresholds,
    manifests: Sequence[ManifestFile],
    entries: pa.Table,
    measures: Mapping[tuple[int, str], Measured],
) -> TableFacts:
    """Return the facts of the current snapshot from its manifests and their entries.

    `measures` has the measures by column bounds of partitions, by spec id and partition text. Raises
    `MetadataUnreadable` when a manifest is of a partition spec that the table does not have.
    """
    specs = metadata.specs_by_id
    if foreign := next((m for m in manifests if m.spec_id not in specs), None):
        raise MetadataUnreadable(
            f"{metadata.ref}: {foreign.path} is of partition spec {foreign.spec_id}, which the table does not have: "
            f"`icewright check {in_shell(metadata.ref)}` lists what is wrong"
        )
    live = _live(entries, metadata)
    counted = _data(live.filter(pl.col("content") == DATA), metadata, thresholds)
    applying: pl.DataFrame | None = None
    if any(m.content is ManifestContent.DELETES for m in manifests):  # most tables have none, and joins take their time
        applying = _applying(live, metadata).collect()
        counted = counted.join(_deletes(applying.lazy(), metadata), on=_KEY, how="full", coalesce=True)
    measures_by_key = {partition_key(specs[s], text): measured for (s, text), measured in measures.items()}
    partitions = tuple(
        _partition(r, partition_key(specs[r["spec_id"]], r["partition"]), measures_by_key)
        for r in counted.sort(_KEY).collect().iter_rows(named=True)
    )
    return TableFacts(
        metadata=metadata,
        thresholds=thresholds,
        partitions=partitions,
        manifests=_manifest_facts(manifests, thresholds),
        delete_files=0 if applying is None else applying["delete"].n_unique(),
        deleted_rows=0 if applying is None else int(applying.filter("applies").unique("delete")["records"].sum()),
    )


def _live(entries: pa.Table, metadata: TableMetadata) -> pl.LazyFrame:
    """Return the live entries, days as dates however their writer stored them, so that a partition has one key."""
    live = pl.DataFrame(pl.from_arrow(entries)).lazy().filter(pl.col("status") != DELETED)
    specs = {s.spec_id: s for s in metadata.specs if any(f.transform == "day" for f in s.fields)}
    if not specs:
        return live
    keys = live.select(_KEY).unique().filter(pl.col("spec_id").is_in(list(specs))).collect()
    texts = [partition_text(partition_key(specs[spec_id], text)[1]) for spec_id, text in keys.rows()]
    renamed = keys.with_columns(pl.Series("renamed", texts, pl.String)).lazy()
    return (
        live.join(renamed, on=_KEY, how="left")
        .with_columns(partition=pl.coalesce("renamed", "partition"))
        .drop("renamed")
    )


def _data(data: pl.LazyFrame, metadata: TableMetadata, thresholds: Thresholds) -> pl.LazyFrame:
    size = pl.col("bytes")
    low, high = _sizes(thresholds)
    candidate = (size < low) | (size > high)
    limits = [0, *(limit * MEGABYTE for limit in FileHistogram.LIMITS_MB)]
    histogram = [
        (size >= low).sum() if high is None else ((size >= low) & (size < high)).sum()
        for low, high in zip(limits, [*limits[1:], None], strict=True)
    ]
    # a rewrite is no write: its snapshots do not make a partition hot
    written = [(s.snapshot_id, s.timestamp) for s in metadata.snapshots if s.operation != "replace"]
    times = pl.LazyFrame(written, schema={"snapshot_id": pl.Int64, "written": pl.Datetime("us", "UTC")}, orient="row")
    return (
        data.join(times, on="snapshot_id", how="left")
        .group_by(_KEY)
        .agg(
            data_files=pl.len(),
            data_bytes=size.sum(),
            records=pl.col("records").sum(),
            candidate_files=candidate.sum(),
            candidate_bytes=size.filter(candidate).sum(),
            last_write=pl.col("written").max(),
            first_write=pl.col("written").min(),
            writes=pl.col("written").drop_nulls().n_unique(),
            other_data=(pl.col("format") != "PARQUET").sum(),
            histogram=pl.concat_list(*(h.cast(pl.Int64) for h in histogram)).first(),
        )
        .join(_small(data.filter(size < low)), on=_KEY, how="left")
    )


def _small(small: pl.LazyFrame) -> pl.LazyFrame:
    """Return the size classes of each partition's small files, the smallest first."""
    exponent = pl.col("bytes").clip(1).log(2).floor()
    classes = small.group_by([*_KEY, exponent.alias("class")]).agg(
        files=pl.len(), bytes=pl.col("bytes").sum(), largest=pl.col("bytes").max()
    )
    return classes.sort("class").group_by(_KEY, maintain_order=True).agg(small=pl.struct("files", "bytes", "largest"))


def _sizes(thresholds: Thresholds) -> tuple[pl.Expr, pl.Expr]:
    """Return the bytes below and above which a file is a candidate, by the size of its partition where that decides."""
    partition_bytes = pl.col("bytes").sum().over(_KEY)
    low, high = pl.lit(thresholds.min_bytes), pl.lit(thresholds.max_bytes)
    for least, target in thresholds.steps:
        fitting = thresholds.scaled(target)
        low = pl.when(partition_bytes >= least).then(fitting.min_bytes).otherwise(low)
        high = pl.when(partition_bytes >= least).then(fitting.max_bytes).otherwise(high)
    return low, high


def _applying(live: pl.LazyFrame, metadata: TableMetadata) -> pl.LazyFrame:
    """Return delete files, numbered by `delete`, with `applies`: whether any data file of their scope is old enough.

    A position delete applies to data of the same or a lower sequence number, an equality delete to data of a lower
    one (spec, Scan Planning). An equality delete of an unpartitioned spec has a row in each partition that it
    applies to, and one in its own when it applies to none.
    """
    data = live.filter(pl.col("content") == DATA)
    oldest = data.group_by(_KEY).agg(oldest=pl.col("sequence_number").min())
    files = data.select(referenced="path", file_records="records", file_sequence="sequence_number")
    is_global = pl.col("spec_id").is_in(metadata.global_specs) & (pl.col("content") == EQUALITY_DELETES)
    own = live.filter(pl.col("content") != DATA).with_row_index("delete").with_columns(is_global=is_global)
    columns = own.collect_schema().names()
    spread = own.filter("is_global").drop(*_KEY).join(data.select(_KEY).unique(), how="cross").select(columns)
    joined = (
        pl.concat([own.filter(~pl.col("is_global")), spread])
        .join(oldest, on=_KEY, how="left")
        .join(files, on="referenced", how="left")
        .with_columns(
            vector=pl.col("format") == "PUFFIN",
            position=pl.col("content") == POSITION_DELETES,
            scoped=pl.col("referenced").is_not_null(),
        )
    )
    # what a delete is compared with: its own data file where it names one, else the oldest of the partition
    against = pl.when("scoped").then("file_sequence").otherwise("oldest")
    applies = (
        pl.when("position").then(pl.col("sequence_number") >= against).otherwise(pl.col("sequence_number") > against)
    )
    candidates = joined.with_columns(applies=applies.fill_null(value=False)).filter(
        pl.col("applies") | ~pl.col("is_global")
    )
    nowhere = own.filter("is_global").join(candidates.select("delete"), on="delete", how="anti")
    return pl.concat(
        [candidates, nowhere.with_columns(vector=False, position=False, scoped=False, applies=False)], how="diagonal"
    )


def _deletes(applying: pl.LazyFrame, metadata: TableMetadata) -> pl.LazyFrame:
    """Count delete files per partition: those that still apply, by kind, and those that apply to nothing.

    Merging makes a vector of each position delete file of format v3, and with the granularity `partition` one file of
    all. Else a file that names one data file alone can only be merged with others of that file.
    """
    per_file = (
        applying.filter("applies", "scoped")
        .group_by([*_KEY, "referenced"])
        .agg(n=pl.len(), ratio=pl.col("records").sum() / pl.col("file_records").first())
        .group_by(_KEY)
        .agg(most=pl.col("n").max(), most_ratio=pl.col("ratio").max(), shared=pl.col("n").filter(pl.col("n") > 1).sum())
    )
    plain = pl.col("position") & ~pl.col("vector")
    to_vectors = metadata.format_version >= FORMAT_V3
    by_partition = to_vectors or metadata.properties.get("write.delete.granularity", "").lower() == "partition"
    least = 1 if to_vectors else 2
    wide = plain & pl.col("applies") & (pl.lit(by_partition) | ~pl.col("scoped"))
    return (
        applying.group_by(_KEY)
        .agg(
            position_delete_files=(plain & pl.col("applies")).sum(),
            equality_delete_files=(~pl.col("position") & pl.col("applies")).sum(),
            deletion_vectors=(pl.col("vector") & pl.col("applies")).sum(),
            dangling_position_deletes=(pl.col("position") & ~pl.col("applies")).sum(),
            dangling_equality_deletes=(~pl.col("position") & ~pl.col("applies")).sum(),
            deleted_rows=pl.col("records").filter("applies").sum(),
            other_deletes=(~pl.col("vector") & (pl.col("format") != "PARQUET") & pl.col("applies")).sum(),
            unscoped=(~pl.col("scoped") & pl.col("applies")).sum(),
            wide=pl.when(wide.sum() >= least).then(wide.sum()).otherwise(0),
        )
        .join(per_file, on=_KEY, how="left")
        .with_columns(
            max_deletes_of_a_file=pl.col("most").fill_null(0) + pl.col("unscoped"),
            mergeable_deletes=pl.col("wide") + (0 if by_partition else pl.col("shared").fill_null(0)),
            max_delete_ratio_of_a_file=pl.col("most_ratio").fill_null(0.0),
        )
        .drop("unscoped", "wide", "most", "most_ratio", "shared")
    )


def rewrite_candidates(
    metadata: TableMetadata, entries: pa.Table, step: RewriteDataFiles | RewritePositionDeletes | ConvertEqualityDeletes
) -> tuple[FileAction, ...]:
    """Return the files of the step's partitions that Iceberg's planner takes by the step's options.

    Equality deletes of an unpartitioned spec are of all partitions.
    """
    partitions = set(step.partitions)
    live = _live(entries, metadata)
    keys = live.select(_KEY).unique().collect().rows()
    chosen = [(s, t) for s, t in keys if partition_key(metadata.specs_by_id[s], t) in partitions]
    own = pl.LazyFrame(chosen, schema={"spec_id": pl.Int32, "partition": pl.String}, orient="row")
    match step:
        case RewritePositionDeletes():
            plain = (pl.col("content") == POSITION_DELETES) & (pl.col("format") != "PUFFIN")
            frame = live.join(own, on=_KEY, how="semi").filter(plain)
            frame = frame.select("path", "bytes", kind=pl.lit("position deletes"))
        case ConvertEqualityDeletes():
            everywhere = pl.col("spec_id").is_in(metadata.global_specs)
            equality = live.filter(pl.col("content") == EQUALITY_DELETES)
            frame = pl.concat(
                [equality.filter(everywhere), equality.filter(~everywhere).join(own, on=_KEY, how="semi")]
            )
            frame = frame.select("path", "bytes", kind=pl.lit("equality deletes"))
        case RewriteDataFiles():
            # files of specs that the filter was not made for may match it too
            exact = {spec_id for spec_id, _ in partitions}
            exact = exact if len(exact) == 1 else exact & {metadata.default_spec_id}
            others = pl.LazyFrame([(s, t) for s, t in keys if s not in exact], own.collect_schema(), orient="row")
            inside = live.join(pl.concat([own, others]).unique(), on=_KEY, how="semi") if step.where else live
            frame = _planned(inside.filter(pl.col("content") == DATA), live, metadata, step)
    return tuple(FileAction(p, b, k) for p, b, k in frame.sort("path").collect().rows())


def _planned(data: pl.LazyFrame, live: pl.LazyFrame, metadata: TableMetadata, step: RewriteDataFiles) -> pl.LazyFrame:
    """Return what `SizeBasedFileRewritePlanner` and `BinPackRewriteFilePlanner` take: files, then groups of them.

    A group is a partition; the files of all other specs are one group, as they are partitioned again.
    """
    option = {name: float(value) for name, value in step.options.items() if value.replace(".", "").isdecimal()}
    size = pl.col("bytes")
    low, high = option["min-file-size-bytes"], option["max-file-size-bytes"]
    by_deletes: list[str] = []
    if step.by_deletes:
        by_deletes = _with_deletes(live, metadata)["path"].to_list()
    elif ratio := option.get("delete-ratio-threshold"):
        by_deletes = _scoped_ratio(live, metadata).filter(pl.col("ratio") >= ratio).collect()["path"].to_list()
    current = pl.col("spec_id") == option.get("output-spec-id", metadata.default_spec_id)
    group = pl.when(current).then(pl.concat_str("spec_id", pl.lit(" "), "partition")).otherwise(pl.lit("older"))
    if step.options.get("rewrite-all") == "true":
        return data.select("path", "bytes", kind=pl.lit("data"))
    candidates = data.with_columns(deletes=pl.col("path").is_in(by_deletes), group=group).filter(
        (size < low) | (size > high) | pl.col("deletes")
    )
    many = pl.len().over("group") >= option["min-input-files"]
    enough = (pl.len().over("group") > 1) & (many | (size.sum().over("group") > option["target-file-size-bytes"]))
    worth = enough | (size.sum().over("group") > high) | pl.col("deletes").any().over("group")
    return candidates.filter(worth).select("path", "bytes", kind=pl.lit("data"))


def _with_deletes(live: pl.LazyFrame, metadata: TableMetadata) -> pl.DataFrame:
    """Return the data files that any delete file applies to."""
    data = live.filter(pl.col("content") == DATA)
    applying = _applying(live, metadata).filter("applies")
    own = applying.filter("scoped").select(path="referenced")
    wide = applying.filter(~pl.col("scoped")).select(*_KEY, "position", deleted_at="sequence_number")
    reached = data.join(wide, on=_KEY, how="inner").filter(
        pl.when("position")
        .then(pl.col("deleted_at") >= pl.col("sequence_number"))
        .otherwise(pl.col("deleted_at") > pl.col("sequence_number"))
    )
    return pl.concat([own, reached.select("path")]).unique().collect()


def _scoped_ratio(live: pl.LazyFrame, metadata: TableMetadata) -> pl.LazyFrame:
    """Return data files with the share of their rows that file-scoped delete files name."""
    data = live.filter(pl.col("content") == DATA)
    applying = _applying(live, metadata).filter("applies", "scoped")
    named = applying.group_by(path="referenced").agg(named=pl.col("records").sum())
    return data.join(named, on="path").select("path", ratio=pl.col("named") / pl.col("records"))


def _partition(row: dict[str, Any], key: PartitionKey, measures: Mapping[PartitionKey, Measured]) -> PartitionFacts:
    others = ("spec_id", "values", "histogram", "last_write", "first_write", "overlap", "lowest", "small")
    row["other_formats"] = (row["other_data"] or 0) + (row.get("other_deletes") or 0)
    counts = {name: row.get(name) or 0 for name in PartitionFacts.__dataclass_fields__ if name not in others}
    measured = measures.get(key, Measured())
    histogram = FileHistogram(tuple(row["histogram"])) if row["histogram"] else FileHistogram.empty()
    return PartitionFacts(
        spec_id=key[0],
        values=key[1],
        histogram=histogram,
        last_write=row["last_write"],
        first_write=row["first_write"],
        small=tuple(SizeClass(**size_class) for size_class in row["small"] or ()),
        lowest=measured.lowest,
        overlap=measured.overlap,
        **counts,
    )


def _manifest_facts(manifests: Sequence[ManifestFile], thresholds: Thresholds) -> tuple[ManifestFacts, ...]:
    small, large = (thresholds.manifest_target_bytes * share for share in (_SMALL_MANIFEST, _LARGE_MANIFEST))
    groups: dict[tuple[int, ManifestContent], list[ManifestFile]] = {}
    for manifest in manifests:
        groups.setdefault((manifest.spec_id, manifest.content), []).append(manifest)
    return tuple(
        ManifestFacts(
            spec_id=spec_id,
            content=content,
            manifests=len(group),
            bytes=sum(m.length for m in group),
            entries=sum(m.live_files for m in group),
            small=sum(m.length < small for m in group),
            large=sum(m.length > large and m.live_files >= _LEAST_TO_SPLIT for m in group),
            deleted_entries=sum(m.deleted_files for m in group),
        )
        for (spec_id, content), group in sorted(groups.items())
    )
