"""The listing of a table's locations compared with the files that the table reaches, in bounded memory.

For each listed path its hash stays in memory, eight bytes; the path itself is written to a temporary file when there
are many. Two paths with one hash count as the same path, so the listed one counts as reached: a collision keeps a file,
and never deletes one.
"""

from __future__ import annotations

import re
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import IO

import polars as pl
import pyarrow as pa

from icewright.adapters.engines.service.reachable import Canonical, file_name, unreached, with_key
from icewright.adapters.engines.service.successors import UnreferencedMetadata
from icewright.adapters.metadata.parsing import lineage
from icewright.core.errors import (
    AccessDenied,
    FileMissing,
    FolderMissing,
    MetadataUnreadable,
    Refused,
    UnsupportedTable,
)
from icewright.core.paths import key, local_path, metadata_folder
from icewright.core.places import Place, Spelling
from icewright.core.table import TableMetadata
from icewright.ports import TableFiles

ORPHAN: Mapping[str, pl.DataType | type[pl.DataType]] = {
    "path": pl.String,
    "bytes": pl.Int64,
    "modified": pl.Datetime("us", "UTC"),
}
_ALIAS = "a live file of the same name was not found where the table has it: it may be this one, under another path"
_SEED = 5
_SPELLING = Spelling()
_IN_MEMORY = 32 << 20  # bytes of candidates before they go to disk
_PREFIX = r"^((?:[A-Za-z][A-Za-z0-9+.-]*:(?://[^/]*)?)?)"
_METADATA_FILE = r"\.metadata\.json(?:\.gz)?$"
_STATS = 16  # concurrent requests for files that a listing lacks
_NUMBERED = re.compile(r"v?([0-9]{1,18})[-.].*")
_VERSION_HINT = "version-hint.text"
_COMPRESSED = pa.ipc.IpcWriteOptions(compression="lz4")
_NO_TIME = datetime(1970, 1, 1, tzinfo=UTC)  # what storage says, or something before it, that knows no time of a file
# what marks a dataset of another format, whose files are never orphans: folders, Paimon's snapshots, DuckLake's files
_FOREIGN_DATASETS = (
    r"(?:^|/)(?:(?:_delta_log|\.hoodie|_hudi|_versions|_spark_metadata|[^/]+\.lance)/"
    r"|snapshot/(?:LATEST|snapshot-[0-9]+)$|ducklake-[^/]+\.parquet$)"
)


def hashed(frame: pl.DataFrame, canonical: Canonical) -> pl.DataFrame:
    """Return a column `hash` of the key by which two spellings of one path meet."""
    return with_key(frame, canonical).with_columns(hash=pl.col("key").hash(_SEED)).drop("key")


@dataclass
class PathHashes:
    """Paths as hashes, each with the scheme and authority that it was named under, as a number into `prefixes`."""

    prefixes: list[str] = field(default_factory=list)
    hashes: list[pl.Series] = field(default_factory=list)
    codes: list[pl.Series] = field(default_factory=list)

    @staticmethod
    def of(chunks: Iterable[pl.DataFrame], canonical: Canonical) -> PathHashes:
        """Build the hashes of the `path` column of all chunks."""
        named = PathHashes()
        for chunk in chunks:
            named.add(hashed(chunk.select("path"), canonical))
        return named

    @staticmethod
    def joined(parts: Iterable[PathHashes]) -> PathHashes:
        """Return the union of the parts."""
        union = PathHashes()
        for part in parts:
            union.prefixes = list(dict.fromkeys([*union.prefixes, *part.prefixes]))
            codes = {old: union.prefixes.index(prefix) for old, prefix in enumerate(part.prefixes)}
            union.hashes += part.hashes
            union.codes += [c.replace_strict(codes, return_dtype=pl.UInt16) for c in part.codes]
        return union

    def add(self, frame: pl.DataFrame) -> None:
        """Add the rows of a frame with the columns `path` and `hash`."""
        if frame.is_empty():  # of which polars makes no numbers
            return
        prefix = frame["path"].str.extract(_PREFIX)
        self.prefixes = list(dict.fromkeys([*self.prefixes, *prefix.unique()]))
        codes = {name: number for number, name in enumerate(self.prefixes)}
        self.hashes.append(frame["hash"])
        self.codes.append(prefix.replace_strict(codes, return_dtype=pl.UInt16))

    def frame(self) -> pl.DataFrame:
        """Return a frame of `hash` (of the path) and `code` (number of its prefix)."""
        hashes, codes = [pl.Series(dtype=pl.UInt64), *self.hashes], [pl.Series(dtype=pl.UInt16), *self.codes]
        return pl.DataFrame({"hash": pl.concat(hashes), "code": pl.concat(codes)})


@dataclass
class LocationListing:
    """The listed files of a table's places: all are counted; old ones in no hidden folder are orphan candidates."""

    metadata: TableMetadata
    older_than: datetime
    canonical: Canonical
    roots: list[str] = field(default_factory=list)  # that are listed
    missing: list[str] = field(default_factory=list)  # roots that do not exist
    _named: PathHashes = field(default_factory=PathHashes)
    _old: list[pl.Series] = field(default_factory=list)
    _linked: list[str] = field(default_factory=list)  # the files that links lead to
    _metadata_files: list[pl.DataFrame] = field(default_factory=list)  # with when they were written
    _spool: IO[bytes] = field(default_factory=lambda: tempfile.SpooledTemporaryFile(_IN_MEMORY))  # noqa: SIM115 - `close`
    _writer: pa.ipc.RecordBatchStreamWriter | None = None

    @property
    def files(self) -> int:
        """Return how many files are listed; one that the store has listed twice counts once."""
        return self._named.frame()["hash"].n_unique()

    def add_all(self, root: str, batches: Iterable[pa.RecordBatch]) -> None:
        """Add all files below `root`, which need not exist: data and metadata may have folders of their own."""
        self.roots.append(root)
        try:
            for batch in batches:
                self.add(root, batch)
        except FolderMissing:
            self.missing.append(root)

    def add(self, root: str, batch: pa.RecordBatch) -> None:
        """Add files below `root`. Raises `Refused` when one of them belongs to another format's dataset."""
        frame = pl.DataFrame(pl.from_arrow(batch))
        relative = frame["path"].str.strip_prefix(root.rstrip("/") + "/")
        if (other := frame["path"].filter(relative.str.contains(_FOREIGN_DATASETS))).len():
            raise Refused(
                f"{self.metadata.ref}: {other[0]} belongs to a dataset of another format under the table's location",
                "other_format",
            )
        frame = hashed(frame, self.canonical)
        self._named.add(frame)
        named = frame.filter(pl.col("path").str.contains(_METADATA_FILE))
        self._metadata_files.append(named.select("path", "modified", "hash"))
        undated = frame.filter(pl.col("modified").is_null())["path"]
        self._linked += [self.canonical(path).rstrip("/") for path in undated]
        old = pl.col("modified").is_between(_NO_TIME, self.older_than, closed="none")
        self._keep(frame.filter(old & ~_hidden(relative, self.metadata)).select(*ORPHAN, "hash"))

    def _keep(self, candidates: pl.DataFrame) -> None:
        self._old.append(candidates["hash"])
        for batch in candidates.to_arrow(compat_level=pl.CompatLevel.oldest()).to_batches():
            if self._writer is None:
                self._writer = pa.ipc.new_stream(self._spool, batch.schema, options=_COMPRESSED)
            self._writer.write_batch(batch)

    def mismatches(self, reached: PathHashes, same: Callable[[str, str], bool]) -> list[tuple[str, str]]:
        """Return pairs of different prefixes under which one path is listed and is reached by the table."""
        if all(same(one, other) for one in self._named.prefixes for other in reached.prefixes):
            return []
        both = self._named.frame().join(reached.frame(), on="hash").select("code", "code_right").unique()
        met = [(self._named.prefixes[one], reached.prefixes[other]) for one, other in both.rows()]
        return [pair for pair in met if not same(*pair)]

    def unreferenced_metadata(self, reached: PathHashes) -> list[UnreferencedMetadata]:
        """Return the listed metadata files that the table does not reach."""
        if not self._metadata_files:
            return []
        unreferenced = pl.concat(self._metadata_files).join(reached.frame(), on="hash", how="anti")
        return [UnreferencedMetadata(*row) for row in unreferenced.select("path", "modified").rows()]

    def names_not_listed(
        self, reached: PathHashes, read: Callable[[], Iterable[pl.DataFrame]], files: TableFiles | None
    ) -> pl.Series:
        """Return the names, without folders and in lower case, of the files that the table reaches but were not listed.

        They may lie here all the same: a mount, a gateway or a file system that ignores case has two paths for a file.
        `read` reads the paths again, for which there is no need where all were listed. Raises `Refused` when a bucket
        of `files` (None: the listing is no store's) has an old one of them in a listed place.
        """
        listed = self._named.frame().select("hash").unique()
        if reached.frame().join(listed, on="hash", how="anti").is_empty():
            return pl.Series(dtype=pl.String)
        places = [_SPELLING.place(root) for root in self.roots if local_path(root) is None]
        names = []
        for chunk in read():
            unlisted = hashed(chunk.select("path"), self.canonical).join(listed, on="hash", how="anti")
            names.append(unlisted.select(file_name()))
            if files is not None:
                require_whole(files, self.metadata, _within(places, unlisted["path"])["path"], self.older_than)
        return pl.concat(names).to_series().unique()

    def orphans(self, reached: PathHashes) -> Iterator[pl.DataFrame]:
        """Yield the old files that neither table nor link leads to, with the columns of `ORPHAN`, chunk by chunk.

        A path that the store has listed twice counts once, as does one of two whose hashes are the same.
        """
        if self._writer is None:
            return
        repeated = self.files < self._named.frame().height
        linked = hashed(pl.DataFrame({"path": self._linked}), self.canonical)
        orphans = pl.DataFrame({"hash": pl.concat(self._old)}).join(reached.frame(), on="hash", how="anti")
        orphans = orphans.join(linked, on="hash", how="anti")
        self._writer.close()
        self._spool.seek(0)
        with pa.ipc.open_stream(self._spool) as reader:
            for batch in reader:
                matching = pl.DataFrame(pl.from_arrow(batch)).join(orphans, on="hash", how="semi")
                if repeated:
                    matching = matching.filter(pl.col("hash").is_first_distinct())
                    orphans = orphans.join(matching, on="hash", how="anti")
                yield matching.select(*ORPHAN)

    def close(self) -> None:
        """Delete the temporary file of candidates."""
        self._spool.close()


def namesakes(files: pl.DataFrame, names: pl.Series) -> tuple[Mapping[str, str], pl.DataFrame]:
    """Return by path why files stay that bear one of the names, and the other files."""
    bears = files.select(file_name().is_in(names.implode())).to_series()
    return dict.fromkeys(files.filter(bears)["path"], _ALIAS), files.filter(~bears)


def _hidden(relative: pl.Series, metadata: TableMetadata) -> pl.Series:
    """Return which paths have a part that begins with `_` or `.`, unless the part is a partition of such a field."""
    names = {f.name for spec in metadata.specs for f in spec.fields if f.name[:1] in ("_", ".")}
    if names:
        own = "".join(f"(?!{re.escape(name)}=)" for name in names)
        pattern = re.compile(rf"(?:^|/){own}[_.]")
        hidden = pl.Series([pattern.search(path) is not None for path in relative])
    else:
        hidden = relative.str.contains(r"(?:^|/)[_.]")
    return hidden | relative.str.ends_with(_VERSION_HINT)


def metadata_files(listed: pl.DataFrame) -> pl.DataFrame:
    """Return the `path` and `modified` of listed files that are named as metadata files are."""
    return listed.filter(pl.col("path").str.contains(_METADATA_FILE)).select("path", "modified")


def require_whole(
    files: TableFiles, metadata: TableMetadata, unlisted: Iterable[str], before: datetime | None = None
) -> None:
    """Raise `Refused` when a listing lacks the current version, or what is there all the same and was `before` it.

    It has lost a page then, and with it perhaps a newer version, or another table.
    """
    current, stats = metadata.metadata_location, files.stat(sorted(unlisted), _STATS)
    there = {path for path, stat in stats.items() if stat and (before is None or (stat.modified or before) < before)}
    required = {current} & stats.keys() if re.search(_METADATA_FILE, current) else set()
    for path in sorted(required | there):
        raise Refused(
            f"{metadata.ref}: {path} is {'the current version' if path == current else 'there'}, and the listing of "
            "its folder does not have it: the listing is not whole, and a newer version may be missing too: nothing is "
            "deleted",
            "incomplete_listing",
        )


def _within(places: Sequence[Place], paths: Iterable[str]) -> pl.DataFrame:
    """Return the `path` of the files that lie in one of the places."""
    by_folder: dict[str, list[str]] = {}
    for path in paths:
        by_folder.setdefault(path.rpartition("/")[0], []).append(path)
    inside = (own for folder, own in by_folder.items() if any(_SPELLING.place(folder).within(one) for one in places))
    return pl.DataFrame({"path": [path for own in inside for path in own]}, {"path": pl.String})


def _missing(known: pl.DataFrame, listed: Iterable[pl.DataFrame], canonical: Canonical) -> Iterable[str]:
    """Return the known files that are not listed: by their spellings first, as most have that of the listing."""
    paths = [frame.select("path") for frame in listed]
    otherwise_spelt = known.join(pl.concat(paths), on="path", how="anti") if paths else known
    return unreached(otherwise_spelt, paths, canonical)["path"]


def _noting_versions(batches: Iterable[pa.RecordBatch], written: dict[str, datetime | None]) -> Iterator[pl.DataFrame]:
    """Yield listed files, and add to `written` when each of them that is named as metadata files are was written."""
    for batch in batches:
        frame = pl.DataFrame(pl.from_arrow(batch))
        written.update(metadata_files(frame).rows())
        yield frame


def unreferenced_metadata_beside(
    files: TableFiles,
    metadata: TableMetadata,
    former_versions: Iterable[str] = (),
    former_folders: Iterable[str] = (),
    scanned: Iterable[str] = (),
    manifests: Iterable[str] = (),
) -> list[UnreferencedMetadata]:
    """Return metadata files in the table's metadata folders that its log does not name and somebody may own.

    `former_versions` are the last ones of earlier names, wherever they lie: who dropped a name may have another for it.
    `former_folders` are those that the table has left, in which another catalog may still commit to it. Folders in
    those that the caller has `scanned` are left out.
    `manifests` are those of the table, where the caller knows them: what was lost of a listing is told by them too.
    Files older than the oldest version in the log are skipped, by their number or, where a catalog counts anew, by
    their time, unless two files have its number: then the table may have been forked there. Raises `Refused` when a
    listing is not whole.
    """
    written = _metadata_beside(files, metadata, former_folders, scanned, manifests)
    named_keys = {key(path) for path in (metadata.metadata_location, *metadata.metadata_log)}
    named_written = [at for path, at in written.items() if key(path) in named_keys and at is not None]
    oldest_written = min(named_written, default=None)
    number = _version(metadata.metadata_log[0] if metadata.metadata_log else metadata.metadata_location)

    def newer(one: UnreferencedMetadata) -> bool:
        version = _version(one.path)
        later = oldest_written is None or one.modified is None or one.modified >= oldest_written
        return later or number is None or version is None or version >= number

    numbers = Counter(_version(path) for path in written)
    unreferenced = [UnreferencedMetadata(path, at) for path, at in written.items() if key(path) not in named_keys]
    former = [UnreferencedMetadata(path, None) for path in former_versions if key(path) not in named_keys]
    return [*former, *(one for one in unreferenced if newer(one) or numbers[_version(one.path)] > 1)]


def _metadata_beside(
    files: TableFiles,
    metadata: TableMetadata,
    former_folders: Iterable[str],
    scanned: Iterable[str],
    manifests: Iterable[str],
) -> Mapping[str, datetime | None]:
    """Return when each file was written that is named as metadata files are, in the table's metadata folders.

    See `unreferenced_metadata_beside`. Raises `Refused` when a listing is not whole.
    """
    named = (metadata.metadata_location, *metadata.metadata_log)
    in_logs = (path.rpartition("/")[0] for path in named if "/" in path)  # a bare name is in no place
    folders = {metadata_folder(metadata.location, metadata.properties), *in_logs}
    known = {_SPELLING.place(folder): folder for folder in folders}
    left = {place: folder for folder in former_folders if (place := _SPELLING.place(folder)) not in known}
    written: dict[str, datetime | None] = {}
    unlisted: list[str] = []
    lists = [snapshot.manifest_list for snapshot in metadata.snapshots if snapshot.manifest_list]
    known_files = [*named, *lists, *manifests]
    current_folder = _SPELLING.place(metadata.metadata_folder)
    scanned_places = [_SPELLING.place(folder) for folder in scanned]
    for place, folder in (known | left).items():
        if any(place.within(one) for one in scanned_places):
            continue
        try:
            listed = _noting_versions(files.listing(folder), written)
            unlisted.extend(_missing(_within([place], known_files), listed, files.canonical))
        except AccessDenied:
            if place not in left:  # else: most likely storage that the table has moved out of
                raise
        except (FolderMissing, UnsupportedTable):
            # the folder of the next metadata file need not be there yet, nor those of former ones; and where nothing
            # can be listed, as on a cluster that the table has left, nothing is deleted either
            if place == current_folder:
                raise
    require_whole(files, metadata, unlisted)
    return written


def is_version(files: TableFiles, path: str, table_uuid: str) -> bool:
    """Return whether a file is still a version of a table, as far as can be told: another may bear its name now."""
    try:
        version = lineage(files.read(path), path)
    except FileMissing:
        return False
    except MetadataUnreadable:
        return True
    return version is None or version.table_uuid in ("", table_uuid)


def has_versions(files: TableFiles, beside: str, table_uuid: str, own: TableMetadata) -> bool:
    """Return whether a metadata file of a table, other than those of `own`, lies beside its last known one."""
    named = {key(path) for path in (own.metadata_location, *own.metadata_log)}
    paths: list[str] = []
    try:
        for batch in files.listing(beside.rpartition("/")[0]):
            paths += metadata_files(pl.DataFrame(pl.from_arrow(batch)))["path"].to_list()
    except (FolderMissing, UnsupportedTable):
        return False
    versions = (lineage(files.read(path), path) for path in paths if key(path) not in named)
    return any(version is not None and version.table_uuid == table_uuid for version in versions)


def _version(path: str) -> int | None:
    """Return the number that a metadata file's name begins with, as catalogs count them (`00012-`, or `v12.`)."""
    match = _NUMBERED.fullmatch(path.rpartition("/")[2])
    return int(match[1]) if match else None
