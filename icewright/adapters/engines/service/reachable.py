"""The files that snapshots reach, as columns: manifest lists, manifests and content files, compared by anti-joins."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace

import polars as pl

from icewright.core.errors import MetadataUnreadable
from icewright.core.paths import key, local_path
from icewright.core.places import is_object_store
from icewright.core.table import ManifestFile, Snapshot, TableMetadata
from icewright.ports import TableFiles

Canonical = Callable[[str], str]  # a folder without the links that lead to it
FILE = {"path": pl.String, "bytes": pl.Int64, "kind": pl.String}
CONTENT_KINDS = {0: "data", 1: "position deletes", 2: "equality deletes"}
_FEW = 50  # paths
# a path that names one file, whoever reads it: in an object store by its scheme and bucket, else from the root
_IN_A_STORE, _ROOTED = r"^[A-Za-z][A-Za-z0-9+.-]*://", r"^(?:[A-Za-z][A-Za-z0-9+.-]*:)?/"
# scheme and authority in front of a path, with any slashes that follow
_PREFIX = r"^(?:[A-Za-z][A-Za-z0-9+.-]*:(?://[^/]*)?)?/*"


def files_frame(rows: Iterable[tuple[str, int | None, str]]) -> pl.DataFrame:
    """Return paths with their bytes (None: unknown) and kinds."""
    return pl.DataFrame(list(rows), schema=FILE, orient="row")


@dataclass(frozen=True, slots=True)
class ComparedManifests:
    """Manifests whose content was compared with files, and the lists that name these and no others."""

    manifests: pl.DataFrame
    lists: frozenset[str]

    @classmethod
    def of(cls, snapshots: Iterable[Snapshot], manifests: pl.DataFrame) -> ComparedManifests:
        """Return the manifests that the snapshots list."""
        return cls(manifests, frozenset(s.manifest_list for s in snapshots if s.manifest_list is not None))


def of_snapshots(metadata: TableMetadata, snapshot_ids: Collection[int]) -> TableMetadata:
    """Return the metadata with some of its snapshots alone, and their refs and statistics."""
    return replace(
        metadata,
        refs=tuple(ref for ref in metadata.refs if ref.snapshot_id in snapshot_ids),
        snapshots=tuple(s for s in metadata.snapshots if s.snapshot_id in snapshot_ids),
        statistics=tuple(s for s in metadata.statistics if s.snapshot_id in snapshot_ids),
        partition_statistics=tuple(s for s in metadata.partition_statistics if s.snapshot_id in snapshot_ids),
    )


def manifests_of(files: TableFiles, snapshots: Sequence[Snapshot], *, totals: bool = False) -> pl.DataFrame:
    """Return the manifests that any of the snapshots lists, each once, with the columns of the manifest list.

    `totals`: a list that names fewer files than its snapshot's summary counts was cut short: `MetadataUnreadable`.
    """
    return pl.DataFrame(pl.from_arrow(files.manifest_lists(snapshots, totals=totals)))


def as_files(manifests: pl.DataFrame) -> pl.DataFrame:
    """Return manifests as rows of `files_frame`, the form in which files are deleted."""
    return manifests.select("path", pl.col("length").alias("bytes"), pl.lit("manifest").alias("kind"))


def listed(manifests: pl.DataFrame) -> list[ManifestFile]:
    """Return the rows of a frame of manifests as `ManifestFile` values."""
    columns = [f.name for f in fields(ManifestFile)]
    return [ManifestFile.of(row) for row in manifests[columns].iter_rows()]


def content_of(files: TableFiles, manifests: pl.DataFrame) -> Iterator[pl.DataFrame]:
    """Yield the content files that are live in the manifests, chunk by chunk; a path may come again."""
    for frame in content_by_manifest(files, manifests):
        yield frame.drop("manifest")


def content_by_manifest(files: TableFiles, manifests: pl.DataFrame) -> Iterator[pl.DataFrame]:
    """Yield what `content_of` does, with `manifest`: the row of `manifests` that each file is named by."""
    yield from map(with_kinds, paths_by_manifest(files, manifests))


def with_kinds(frame: pl.DataFrame) -> pl.DataFrame:
    """Return rows of `paths_by_manifest` as those of `content_by_manifest`."""
    vector = pl.col("format") == "PUFFIN"
    kind = pl.col("content").replace_strict(CONTENT_KINDS, default=CONTENT_KINDS[0])
    kinds = pl.when(vector).then(pl.lit("deletion vectors")).otherwise(kind).alias("kind")
    return frame.select("path", "bytes", kinds, "manifest")


def paths_by_manifest(files: TableFiles, manifests: pl.DataFrame, *, spare_cores: int = 0) -> Iterator[pl.DataFrame]:
    """Yield the rows of `content_by_manifest` as manifests have them: without kinds, for which each path costs more."""
    rows = listed(manifests)
    for batch in files.live_files(rows, spare_cores=spare_cores):
        yield _located(pl.DataFrame(pl.from_arrow(batch)), rows[0].path)


def lists_of(snapshots: Iterable[Snapshot]) -> pl.DataFrame:
    """Return the manifest lists of the snapshots."""
    return files_frame((s.manifest_list, None, "manifest list") for s in snapshots if s.manifest_list)


def statistics_of(metadata: TableMetadata) -> pl.DataFrame:
    """Return the statistics and partition statistics files that the metadata names."""
    rows = [(s.path, s.length, "statistics") for s in metadata.statistics]
    rows += [(s.path, s.length, "partition statistics") for s in metadata.partition_statistics]
    return _located(files_frame(rows), metadata.metadata_location)


def _located(frame: pl.DataFrame, owner: str) -> pl.DataFrame:
    """Return the files. Raises `MetadataUnreadable` when `owner` names one by a path that may mean several.

    Such a file, under another path in the listing, would look unreached.
    """
    unclear = frame.filter(~pl.col("path").str.contains(_IN_A_STORE if is_object_store(owner) else _ROOTED))
    if unclear.height:
        raise MetadataUnreadable(
            f"{owner} names {unclear['path'][0]}, which readers look for in different places: nothing is deleted "
            "until the table's writer names files by scheme, bucket and path"
        )
    return frame


def metadata_files_of(metadata: TableMetadata) -> pl.DataFrame:
    """Return the current metadata file and those that its log names."""
    rows = [(metadata.metadata_location, metadata.metadata_length, "metadata")]
    return files_frame([*rows, *((path, None, "metadata") for path in metadata.metadata_log)])


def reached(
    files: TableFiles,
    metadata: TableMetadata,
    manifests: pl.DataFrame | None = None,
    compared: pl.DataFrame | None = None,
) -> Iterator[pl.DataFrame]:
    """Yield every file that the metadata reaches, chunk by chunk.

    `manifests` are those of all snapshots, if the caller has read them; `compared` are manifests whose content the
    caller has compared already, which are not read again, as manifests never change.
    """
    manifests = manifests_of(files, metadata.snapshots) if manifests is None else manifests
    named = [lists_of(metadata.snapshots), statistics_of(metadata), metadata_files_of(metadata)]
    yield pl.concat([as_files(manifests), *named])
    fresh = manifests if compared is None else manifests.join(compared, on=["path", "length"], how="anti")
    yield from content_of(files, fresh)


def unreached(planned: pl.DataFrame, chunks: Iterable[pl.DataFrame], canonical: Canonical) -> pl.DataFrame:
    """Return the planned files that no chunk holds, however paths are spelt. All chunks are read, to find faults."""
    remaining = with_key(planned, canonical)
    for chunk in chunks:
        if remaining.height:
            remaining = remaining.join(with_key(chunk, canonical), on="key", how="anti")
    return remaining.drop("key")


def without_namesakes(
    planned: pl.DataFrame, chunks: Iterable[pl.DataFrame], canonical: Canonical, location: str
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return the files that no chunk holds, and those of them that have name and size of one that a chunk holds.

    A mount or a gateway gives one file two paths, of which at most one lies in the location of the table: only there
    names are compared.
    """
    below = pl.col("path").str.starts_with(location.rstrip("/") + "/")
    inside, live = planned.select(below.all()).item(), [planned.clear().select(file_name().alias("name"), "bytes")]

    def noted() -> Iterator[pl.DataFrame]:
        for chunk in chunks:
            live.append((chunk.filter(~below) if inside else chunk).select(file_name().alias("name"), "bytes"))
            yield chunk

    free = unreached(planned, noted(), canonical).with_columns(name=file_name())
    named = {how: free.join(pl.concat(live), on=["name", "bytes"], how=how).drop("name") for how in ("anti", "semi")}
    return named["anti"], named["semi"]


def with_key(frame: pl.DataFrame, canonical: Canonical) -> pl.DataFrame:
    """Add a column `key` that two spellings of one path share; see `icewright.core.paths.key`.

    `canonical` resolves the links in folders: a file is live under every link that leads to it.
    """
    if frame.height <= _FEW:  # what Polars takes for a call is more
        ends = [(path, path.rfind("/") + 1) for path in frame["path"]]
        resolved = {path[:end]: canonical(path[:end]) if end else "" for path, end in ends}
        keys = [key(resolved[path[:end]] + path[end:]) for path, end in ends]
        return frame.with_columns(pl.Series("key", keys, pl.String))
    path, name = pl.col("path"), pl.col("path").str.split("/").list.last()
    folder = path.str.strip_suffix(name)
    folders, slashes, some = frame.select(folder.unique().implode(), *_doubtful(path)).row()
    targets = {folder: canonical(folder) for folder in folders if folder}
    moved = {folder: to for folder, to in targets.items() if to not in (folder, local_path(folder))}
    if moved:
        path = pl.concat_str(folder.replace(moved), name)
        slashes, some = frame.select(_doubtful(path)).row()
    bare = path.str.replace(_PREFIX, "/")
    if slashes:
        bare = bare.str.replace_all(r"/{2,}", "/")
    if some:  # Polars takes the interpreter for a function of Python even where no path needs it
        decoded = pl.when(_odd(path)).then(path).map_elements(key, return_dtype=pl.String)
        bare = pl.when(_odd(path)).then(decoded).otherwise(bare)
    return frame.with_columns(key=bare)


def _doubtful(path: pl.Expr) -> tuple[pl.Expr, pl.Expr]:
    """Return whether any path has slashes in a row, and whether any has what only `icewright.core.paths.key` undoes."""
    slashes = path.str.replace(_PREFIX, "/").str.contains("//", literal=True)
    return slashes.any().alias("slashes"), _odd(path).any().alias("odd")


def _odd(path: pl.Expr) -> pl.Expr:
    return path.str.contains_any(["%", "./"]) | path.str.ends_with(".") | (path.str.len_bytes() != path.str.len_chars())


def file_name() -> pl.Expr:
    """Return the name of each file of a frame, without folders and in lower case."""
    return pl.col("path").str.extract(r"([^/]*)$").str.to_lowercase()
