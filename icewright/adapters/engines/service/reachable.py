"""What snapshots reach: manifest lists, manifests and content files, as columns; sets by anti-join, never by guess."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import polars as pl

from icewright.core.paths import key
from icewright.core.table import ManifestContent, ManifestFile, Snapshot, TableMetadata
from icewright.ports import Files

FILE = {"path": pl.String, "bytes": pl.Int64, "kind": pl.String}
_DELETED = 2
_KINDS = {0: "data", 1: "position deletes", 2: "equality deletes"}
# scheme and authority in front of a path, with any slashes that follow
_PREFIX = r"^(?:[A-Za-z][A-Za-z0-9+.-]*:)?(?://[^/]*)?/*"


def files_frame(rows: Iterable[tuple[str, int | None, str]]) -> pl.DataFrame:
    """Paths with their bytes (None: unknown) and kinds."""
    return pl.DataFrame(list(rows), schema=FILE, orient="row")


def manifests_of(files: Files, snapshots: Sequence[Snapshot]) -> pl.DataFrame:
    """The manifests that any of the snapshots lists, each once."""
    return pl.DataFrame(pl.from_arrow(files.manifest_lists(snapshots)))


def content_of(files: Files, manifests: pl.DataFrame) -> pl.DataFrame:
    """The content files that are live in the manifests, each path once."""
    chosen = manifests.select(
        "path",
        "length",
        "spec_id",
        "content",
        "sequence_number",
        "min_sequence_number",
        "added_snapshot_id",
        "added_files",
        "existing_files",
        "deleted_files",
    )
    listed = [ManifestFile(p, n, s, ManifestContent(c), *rest) for p, n, s, c, *rest in chosen.rows()]
    if not listed:
        return files_frame(())
    entries = pl.DataFrame(pl.from_arrow(files.entries(listed))).lazy().filter(pl.col("status") != _DELETED)
    vector = pl.col("format") == "PUFFIN"
    kind = (
        pl.when(vector)
        .then(pl.lit("deletion vectors"))
        .otherwise(pl.col("content").replace_strict(_KINDS, default="data"))
    )
    return entries.select("path", "bytes", kind.alias("kind")).unique("path").collect()


def lists_of(snapshots: Iterable[Snapshot]) -> pl.DataFrame:
    """The manifest lists of the snapshots."""
    return files_frame((s.manifest_list, None, "manifest list") for s in snapshots if s.manifest_list)


def statistics_of(metadata: TableMetadata) -> pl.DataFrame:
    """Statistics and partition statistics files that the metadata names."""
    rows = [(s.path, s.length, "statistics") for s in metadata.statistics]
    return files_frame([*rows, *((s.path, s.length, "partition statistics") for s in metadata.partition_statistics)])


def metadata_files_of(metadata: TableMetadata) -> pl.DataFrame:
    """The current metadata file and those that its log names."""
    rows = [(metadata.metadata_location, metadata.metadata_length, "metadata")]
    return files_frame([*rows, *((path, None, "metadata") for path in metadata.metadata_log)])


def reachable(files: Files, metadata: TableMetadata, snapshots: Sequence[Snapshot] | None = None) -> pl.DataFrame:
    """Every file that the metadata reaches, through all its snapshots or the given ones."""
    chosen = metadata.snapshots if snapshots is None else snapshots
    manifests = manifests_of(files, chosen)
    named = manifests.select("path", pl.col("length").alias("bytes"), pl.lit("manifest").alias("kind"))
    parts = [
        lists_of(chosen),
        named,
        content_of(files, manifests),
        statistics_of(metadata),
        metadata_files_of(metadata),
    ]
    return pl.concat(parts).unique("path", maintain_order=True)


def with_key(frame: pl.DataFrame) -> pl.DataFrame:
    """A column `key` by which two spellings of one path meet; see `icewright.core.paths.key`."""
    plain = pl.concat_str(pl.lit("/"), pl.col("path").str.replace(_PREFIX, "").str.replace_all(r"/{2,}", "/"))
    odd = pl.col("path").str.contains(r"[^\x00-\x7F]|%")
    return frame.with_columns(
        key=pl.when(odd)
        .then(pl.when(odd).then(pl.col("path")).map_elements(key, return_dtype=pl.String, skip_nulls=True))
        .otherwise(plain)
    )


def without(frame: pl.DataFrame, others: pl.DataFrame) -> pl.DataFrame:
    """The files of `frame` that `others` does not hold, however the paths are spelt."""
    return with_key(frame).join(with_key(others), on="key", how="anti").drop("key")
