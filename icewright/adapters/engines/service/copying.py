"""Copy of a table: its files at another place, with the paths in them, and a metadata file that any catalog takes.

Data files are copied as they are; position deletes, deletion vectors, manifests and manifest lists name other files,
and are written anew under the names that they had. What lies at the place already came from an earlier copy of the same
table, as the marker there says, and is left alone. The metadata file comes last: a copy without one is not whole.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import fastavro
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from icewright.adapters.engines.arrow.deletes import puffin_end
from icewright.adapters.engines.arrow.resolve import field_id
from icewright.adapters.engines.service.avro_records import (
    Record,
    container,
    decoded,
    encoded,
    field_type,
    names_by_id,
    plain_schema,
    translating_errors,
)
from icewright.adapters.engines.service.folders import files_below
from icewright.adapters.engines.service.footers import PARQUET_MAGIC, puffin_footer
from icewright.adapters.engines.service.integrity import IntegrityCheck
from icewright.adapters.engines.service.manifest_files import POSITION_DELETES
from icewright.adapters.engines.service.reachable import as_files, content_of, lists_of, manifests_of, statistics_of
from icewright.adapters.metadata.document import GZIP, Editor, decode, encode_as
from icewright.adapters.metadata.parsing import parse
from icewright.core import field_ids as ids
from icewright.core.copying import MARKER, CopyResult, Relocation, uuid_of_copy
from icewright.core.errors import FileMissing, MetadataUnreadable, Refused, UnsupportedTable
from icewright.core.integrity import CheckLevel
from icewright.core.places import Spelling
from icewright.core.table import MAIN, WRITE_PATHS, TableMetadata
from icewright.core.words import count
from icewright.ports import CopyRequest, TableFiles
from icewright.ports.work import WorkerThreads

_CONCURRENCY = 16
_REWRITTEN = ("position deletes", "deletion vectors", "manifest", "manifest list")  # kinds of files that name others
_SPELLING = Spelling()
_Row = tuple[str, str, int | None]  # path, target, bytes of a file; those of a manifest list nobody says


@dataclass
class TableCopy:
    """One copy of one table."""

    files: TableFiles
    request: CopyRequest
    _there: dict[str, int] = field(default_factory=dict, init=False)  # bytes of files at the place that name others
    _data: dict[str, str] = field(default_factory=dict, init=False)  # paths of data files, but those `_as_usual`

    def run(self) -> CopyResult:
        """Copy the table, or with `dry_run` return what that would copy."""
        base, dry_run = self.request.base, self.request.dry_run
        self._require_apart()
        content = self.files.read(base.metadata_location)
        present = self._present()
        document = self._document(content, frozenset(present["path"]))
        manifests = manifests_of(self.files, base.snapshots)
        wanted = self._wanted(manifests, present)
        location = self._metadata_file(base.metadata_location)
        result = CopyResult(
            base.ref,
            self._relocation.place,
            location,
            uuid_of_copy(base.table_uuid, self._relocation.place),
            len(base.snapshots),
            wanted.height,
            int(wanted["bytes"].sum()),
            max(0, present.height - 1),  # the marker
            dry_run,
        )
        if dry_run:
            return result
        if not present.height:
            self.files.write(self._marker, self._mark)
        self._copy_files(wanted)
        copied = encode_as(document, gzipped=content[:2] == GZIP)
        result = replace(result, own_faults=self._own_faults(parse(base.ref, location, copied), copied))
        self._require_own()
        if self.files.size(location) is None:
            self.files.write(location, copied)
        elif self.files.read(location) != copied:
            raise Refused(f"{location} is another metadata file: copy {base.ref} to another place")
        return result

    @cached_property
    def _relocation(self) -> Relocation:
        return Relocation.of(self.request.base, self.request.place)

    @property
    def _marker(self) -> str:
        return f"{self._relocation.place}/{MARKER}"

    @property
    def _mark(self) -> bytes:
        base = self.request.base
        return json.dumps({"table-uuid": base.table_uuid, "location": base.location}).encode()

    def _require_apart(self) -> None:
        """Raise `Refused` when the place meets the table's own."""
        base, place = self.request.base, self._relocation.place
        canonical = self.files.canonical
        wanted = _SPELLING.place(canonical(place))
        roots = base.roots
        meeting = [root for root in roots if _SPELLING.place(canonical(root)).may_meet(wanted)]
        if meeting:
            raise Refused(f"{base.ref}: {place} and the table's own place {meeting[0]} meet: name another place")

    def _require_own(self) -> None:
        """Raise `Refused` unless the place's marker says that it holds a copy of this table."""
        base, place = self.request.base, self._relocation.place
        try:
            mark = self.files.read(self._marker)
        except FileMissing:
            mark = b""
        if mark != self._mark:
            whose = "a copy of another table" if mark else "files that are no copy of a table"
            raise Refused(f"{base.ref}: {place} holds {whose}: nothing of it is touched; name another place")

    def _present(self) -> pl.DataFrame:
        """Return path and bytes of the files at the place. Raises `Refused` when they are no copy of this table."""
        none = pl.DataFrame(schema={"path": pl.String, "bytes": pl.Int64})
        frames = (frame.select("path", "bytes") for frame in files_below(self.files, self._relocation.place))
        hidden = pl.col("path").str.split("/").list.last().str.starts_with(".")  # as what a crash leaves of a write
        present = pl.concat([none, *frames]).filter(~hidden)
        if present.height:
            self._require_own()
        return present

    def _metadata_file(self, path: str) -> str:
        return f"{self._relocation.place}/metadata/{path.rpartition('/')[2]}"

    def _document(self, content: bytes, present: frozenset[str]) -> dict[str, Any]:
        """Return the fields of the copy's metadata file; its log has earlier copies.

        Raises `UnsupportedTable` when files are encrypted.
        """
        base, to = self.request.base, self._relocation
        document = decode(content, base.metadata_location)
        editor = Editor(document)
        if editor.get("encryption-keys", []):
            raise UnsupportedTable(f"{base.ref}: its files are encrypted, and paths in them cannot be changed")
        own = {name: to.own(path) for name, path in base.properties.items() if name in WRITE_PATHS}
        properties = {name: own.get(name, value) for name, value in base.properties.items()}
        snapshots = [self._snapshot(s) for s in editor.get("snapshots", []) if s["snapshot-id"] in base.by_id]
        log = [
            {**entry, "metadata-file": self._metadata_file(entry["metadata-file"])}
            for entry in editor.get("metadata-log", [])
        ]
        changed: dict[str, Any] = {
            "location": to.place,
            "table-uuid": uuid_of_copy(base.table_uuid, to.place),
            "properties": {name: value for name, value in properties.items() if value is not None},
            "snapshots": snapshots,
            "metadata-log": [entry for entry in log if entry["metadata-file"] in present],
        }
        for kind in ("statistics", "partition-statistics"):
            if kind in document:
                changed[kind] = [
                    {**file, "statistics-path": to.path(file["statistics-path"])}
                    for file in editor.get(kind, [])
                    if file["snapshot-id"] in base.by_id
                ]
        if (only := self.request.snapshot_id) is not None:
            logged = {"snapshot-id": only, "timestamp-ms": snapshots[0]["timestamp-ms"]}
            refs = {MAIN: {"snapshot-id": only, "type": "branch"}}
            changed |= {"current-snapshot-id": only, "refs": refs, "snapshot-log": [logged]}
        return {**document, **changed}

    def _snapshot(self, snapshot: Mapping[str, Any]) -> dict[str, Any]:
        """Return a snapshot that names the copied files."""
        copied, to = dict(snapshot), self._relocation
        if "manifest-list" in copied:
            copied["manifest-list"] = to.path(copied["manifest-list"])
        if "manifests" in copied:
            copied["manifests"] = [to.path(path) for path in copied["manifests"]]
        return copied

    def _wanted(self, manifests: pl.DataFrame, present: pl.DataFrame) -> pl.DataFrame:
        """Return the files of the table that the place lacks, with their `target`.

        Raises `Refused` when a file there is not the one that an earlier copy made.
        """
        base, to = self.request.base, self._relocation
        parts = [lists_of(base.snapshots), statistics_of(base), as_files(manifests), *content_of(self.files, manifests)]
        wanted: list[pl.DataFrame] = []
        rewritten = pl.col("kind").is_in(_REWRITTEN)
        for part in parts:
            target = part["path"].map_elements(to.path, return_dtype=pl.String).alias("target")
            named = part.with_columns(target)
            data = named.filter(kind="data").select("target", "path").iter_rows()
            self._data |= {target: path for target, path in data if path != self._as_usual(target)}
            joined = named.join(present.rename({"path": "target", "bytes": "found"}), on="target", how="left")
            other = joined.filter(~rewritten & (pl.col("bytes") != pl.col("found")))
            if other.height:
                path, found = other["target"][0], other["found"][0]
                raise Refused(f"{base.ref}: {path} has {found} bytes, and is not the table's: name another place")
            self._there |= dict(
                joined.filter(rewritten & pl.col("found").is_not_null()).select("target", "found").rows()
            )
            wanted.append(joined.filter(pl.col("found").is_null()).drop("found"))
        return pl.concat(wanted).unique("target", maintain_order=True)

    def _as_usual(self, target: str) -> str:
        """Return the path of a file in the table's location, spelt as the location is."""
        return self.request.base.location.rstrip("/") + target.removeprefix(self._relocation.place)

    def _deleted_from(self, path: str) -> str:
        """Return the name of a data file in the copy's deletes.

        Readers compare paths letter for letter: deletes that spell one otherwise than its entry delete nothing, and
        name no file of the copy either.
        """
        target = self._relocation.path(path)
        return target if self._data.get(target, self._as_usual(target)) == path else path

    def _copy_files(self, wanted: pl.DataFrame) -> None:
        """Copy files, those before others that name them."""
        steps: list[tuple[Sequence[str], Callable[[_Row], None]]] = [
            (("data", "equality deletes", "statistics", "partition statistics"), self._copy),
            (("position deletes",), self._rewriter(self._positions)),
            (("deletion vectors",), self._rewriter(self._vectors)),
            (("manifest",), self._rewriter(self._manifest)),
            (("manifest list",), self._rewriter(self._list)),
        ]
        for kinds, copy in steps:
            rows = wanted.filter(pl.col("kind").is_in(kinds)).select("path", "target", "bytes").rows()
            with WorkerThreads(_CONCURRENCY) as pool:
                list(pool.map(copy, rows))

    def _copy(self, row: _Row) -> None:
        path, target, length = row
        self.request.check()
        self.files.copy(path, target, length or 0)

    def _rewriter(self, rewritten: Callable[[str, int], bytes]) -> Callable[[_Row], None]:
        def copy(row: _Row) -> None:
            path, target, length = row
            self.request.check()
            content = rewritten(path, length or 0)
            self.files.write(target, content)
            self._there[target] = len(content)

        return copy

    def _positions(self, path: str, length: int) -> bytes:
        """Return a file of position deletes that names the copied data files."""
        content = self._whole(path, length)
        if not content.startswith(PARQUET_MAGIC):
            raise UnsupportedTable(
                f"{self.request.base.ref}: {path} has position deletes in another format than Parquet: compact the "
                "files that it masks, and expire the snapshots before"
            )
        try:
            table = pq.read_table(pa.BufferReader(content))
        except (pa.ArrowException, OSError) as error:
            raise MetadataUnreadable(f"{path} cannot be read: {error}") from error
        by_id = {field_id(field): number for number, field in enumerate(table.schema)}
        number = by_id.get(ids.DELETED_PATH, 0)
        paths = table.column(number).combine_chunks().cast(pa.string()).dictionary_encode()
        new = pa.DictionaryArray.from_arrays(
            paths.indices, pa.array([self._deleted_from(path) for path in paths.dictionary.to_pylist()], pa.string())
        )
        kind = table.schema.field(number)
        table = table.set_column(number, kind, new.cast(pa.string()).cast(kind.type))
        order = [(table.schema.names[n], "ascending") for n in (number, by_id.get(ids.DELETED_POSITION, 1))]
        sink = pa.BufferOutputStream()
        pq.write_table(table.sort_by(order), sink, compression="zstd", store_schema=False)
        return bytes(sink.getvalue())

    def _vectors(self, path: str, length: int) -> bytes:
        """Return a Puffin file whose vectors are of the copied data files; the vectors stay where they are in it."""
        content = self._whole(path, length)
        start, footer = puffin_footer(self.files, path, length)
        if footer is None:
            raise UnsupportedTable(f"{self.request.base.ref}: {path} has a compressed footer, which no writer makes")
        for blob in footer["blobs"]:
            of = blob.get("properties", {})
            if "referenced-data-file" in of:
                of["referenced-data-file"] = self._deleted_from(of["referenced-data-file"])
        return content[:start] + puffin_end(footer)

    def _manifest(self, path: str, _length: int) -> bytes:
        def change(record: Record, names: Mapping[int, str], schema: Any) -> None:  # noqa: ANN401 - JSON
            entry = record[names[ids.DATA_FILE]]
            self._change_entry(entry, names_by_id(field_type(schema, ids.DATA_FILE)))

        return self._avro(path, change)

    def _list(self, path: str, _length: int) -> bytes:
        def change(record: Record, names: Mapping[int, str], _: Any) -> None:  # noqa: ANN401 - JSON
            self._require_plain(record.get(names.get(ids.MANIFEST_KEY_METADATA, "")))
            target = self._relocation.path(record[names[ids.MANIFEST_PATH]])
            record |= {names[ids.MANIFEST_PATH]: target, names[ids.MANIFEST_LENGTH]: self._there[target]}

        return self._avro(path, change)

    def _avro(self, path: str, change: Callable[[Record, Mapping[int, str], Any], None]) -> bytes:
        """Return an Avro file with other values in its records; all that `change` does not touch stays."""
        file = self.files.avro(path)
        with translating_errors(path):
            schema = json.loads(file.meta["avro.schema"])
            plain = plain_schema(schema)
            records = decoded(plain, file.records, file.body)
            names = names_by_id(schema)
            for record in records:
                change(record, names, schema)
            header = {name: value.decode() for name, value in file.meta.items() if not name.startswith("avro.")}
            parsed = fastavro.parse_schema(plain)
            return container(schema, header, [encoded(parsed, record) for record in records])

    def _change_entry(self, entry: Record, names: Mapping[int, str]) -> None:
        """Let a data file's values name the copied files."""
        to = self._relocation
        self._require_plain(entry.get(names.get(ids.KEY_METADATA, "")))
        entry[names[ids.FILE_PATH]] = target = to.path(entry[names[ids.FILE_PATH]])
        if (referenced := entry.get(names.get(ids.REFERENCED_DATA_FILE, ""))) is not None:
            entry[names[ids.REFERENCED_DATA_FILE]] = self._deleted_from(referenced)
        if entry.get(names.get(ids.CONTENT, "")) != POSITION_DELETES:
            return
        # of a deleted one nobody reads the length
        entry[names[ids.FILE_SIZE]] = self._there.get(target, entry[names[ids.FILE_SIZE]])
        if entry[names[ids.FILE_FORMAT]].upper() == "PUFFIN":
            return
        # of many paths the bounds go: the order of paths may be another, and without bounds readers look into the file
        lower, upper = (
            self._path_bound(entry.get(names.get(which, ""))) for which in (ids.LOWER_BOUNDS, ids.UPPER_BOUNDS)
        )
        one_file = []
        if lower and lower == upper:
            one_file = [{"key": ids.DELETED_PATH, "value": self._deleted_from(lower.decode()).encode()}]
        for which in (ids.LOWER_BOUNDS, ids.UPPER_BOUNDS):
            if stated := entry.get(names.get(which, "")):
                entry[names[which]] = [pair for pair in stated if pair["key"] != ids.DELETED_PATH] + one_file
        for optional in (ids.COLUMN_SIZES, ids.SPLIT_OFFSETS):  # of the file as it was
            if optional in names:
                entry[names[optional]] = None

    @staticmethod
    def _path_bound(bounds: Sequence[Mapping[str, Any]] | None) -> bytes | None:
        return next((bytes(pair["value"]) for pair in bounds or () if pair["key"] == ids.DELETED_PATH), None)

    def _require_plain(self, key_metadata: object) -> None:
        if key_metadata is not None:
            raise UnsupportedTable(f"{self.request.base.ref}: its files are encrypted, and cannot be copied")

    def _whole(self, path: str, length: int) -> bytes:
        content = self.files.read_range(path, 0, length)
        if len(content) != length:
            raise MetadataUnreadable(f"{path} has {len(content)} bytes instead of {length}")
        return content

    def _own_faults(self, copied: TableMetadata, content: bytes) -> int:
        """Return how many faults of the metadata file break no read, and are therefore the table's own.

        Raises `MetadataUnreadable` unless every file of the copy exists, and is what its entry says.
        """
        report = IntegrityCheck(self.files, copied, CheckLevel.ENTRIES, content).run(lambda _: copied)
        if broken := [fault for fault in report.faults if fault.snapshot_ids]:
            first = broken[0]
            raise MetadataUnreadable(
                f"{copied.ref}: {count(len(broken), 'fault')} in the copy, such as {first.path} "
                f"({first.detail}); it has no metadata file, so no catalog takes it: check the table"
            )
        return len(report.faults)
