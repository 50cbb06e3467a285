"""Avro object container files from storage, read into columns of requested fields only; errors name the broken file.

The blocks of a file are inflated here and joined into one, and Polars then decodes those of many files of one writer
schema in one call: the cost of small blocks (PyIceberg writes one per record) is paid once per file, and that of
parsing a schema once. One block of all files would cost a copy and fresh pages of memory for each of its sizes. Nested
records are flattened in the schema first, which changes no bytes, as a record is encoded as its fields in order: so the
fields of `data_file` become columns that Polars can skip, column statistics above all.
"""

from __future__ import annotations

import io
import json
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, TypeVar, cast

import polars as pl
import pyarrow as pa
import zstandard
from isal import igzip_lib, isal_zlib

from icewright.adapters.files.read_ahead import read_ahead
from icewright.adapters.read_limits import read_limits
from icewright.core.avro_values import AVRO_MAGIC, container_file, read_varint
from icewright.core.errors import MetadataTooLarge, MetadataUnreadable
from icewright.ports import Storage

# errors of the decompressors for a broken block, also for an impossible length in it
_BROKEN: tuple[type[Exception], ...] = (
    IndexError,
    MemoryError,
    OSError,
    OverflowError,
    cast("type[Exception]", igzip_lib.IsalError),
    zstandard.ZstdError,
    pa.ArrowInvalid,
)
_DEFLATE_STEP = 16 << 20  # bytes that are inflated at a time
_ZSTD_SLICE = 2048  # bytes, which inflate to 64 MiB at most: four bytes of a zstandard frame make up to 128 KiB
_SYNC = b"icewright-blocks"
# ids of fields that some writers write without one
_ALIASES = {"added_files_count": 504, "existing_files_count": 505, "deleted_files_count": 506}
_FLATTENED = "data_file"
T = TypeVar("T")
Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class Block:
    """A block of records, in a file compressed by the file's codec."""

    records: int
    content: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Container:
    """The header and the blocks of an Avro file."""

    meta: Mapping[str, bytes]
    blocks: tuple[Block, ...]

    @property
    def schema(self) -> bytes:
        """Return the writer schema, as JSON from the header."""
        return self.meta["avro.schema"]

    @property
    def codec(self) -> str:
        """Return the name of the blocks' codec."""
        return self.meta.get("avro.codec", b"null").decode()

    @property
    def records(self) -> int:
        """Return the number of records in all blocks."""
        return sum(b.records for b in self.blocks)

    def body(self) -> bytes:
        """Return the records of all blocks, inflated. Raises `ValueError` when a block is broken, and `TooLarge`."""
        return inflated((self.codec, block) for block in self.blocks)


def parse(content: bytes) -> Container:
    """Split a container into header and blocks. Raises `ValueError` when it is truncated or no Avro container."""
    try:
        return _parse(content)
    except (IndexError, KeyError, MemoryError, OverflowError) as error:  # MemoryError: a broken length
        raise ValueError(f"truncated or broken Avro file ({type(error).__name__}: {error})") from error


def _parse(content: bytes) -> Container:
    if content[:4] != AVRO_MAGIC:
        raise ValueError("not an Avro file")
    meta, position = _header(content)
    if "avro.schema" not in meta:
        raise ValueError("truncated or broken Avro file (its header has no schema)")
    sync = content[position : position + 16]
    if len(sync) < 16:  # noqa: PLR2004 - the length of a sync marker
        raise ValueError("truncated or broken Avro file (it ends within its header)")
    position += 16
    blocks: list[Block] = []
    while position < len(content):
        count, position = read_varint(content, position)
        length, position = read_varint(content, position)
        end = position + length
        if count < 0 or length < 0 or content[end : end + 16] != sync:
            raise ValueError("truncated or broken Avro file (a block does not end where it should)")
        blocks.append(Block(count, content[position:end]))
        position = end + 16
    return Container(meta, tuple(blocks))


def _header(content: bytes) -> tuple[dict[str, bytes], int]:
    meta: dict[str, bytes] = {}
    position = 4
    while True:
        count, position = read_varint(content, position)
        if count == 0:
            return meta, position
        if count < 0:  # the block's length in bytes follows
            count, (_, position) = -count, read_varint(content, position)
        for _ in range(count):
            name, position = _read_bytes(content, position)
            meta[name.decode()], position = _read_bytes(content, position)


def _read_bytes(content: bytes, position: int) -> tuple[bytes, int]:
    length, position = read_varint(content, position)
    if not 0 <= length <= len(content) - position:  # a negative length would make the loop endless
        raise ValueError("truncated or broken Avro file (a length in its header makes no sense)")
    return content[position : position + length], position + length


class TooLarge(ValueError):
    """The blocks inflate to more bytes than `reading.max_manifest_mb` allows."""


def decompressed(containers: Iterable[Container]) -> list[Block]:
    """Return the records of each container as one inflated block, of at most `max_manifest_bytes` together.

    Raises `TooLarge` before more is inflated, and `ValueError` when a block is broken.
    """
    inflated_blocks: list[Block] = []
    remaining_bytes = read_limits().max_manifest_bytes
    for container in containers:
        inflated_blocks.append(
            Block(
                container.records, _inflated(((container.codec, block) for block in container.blocks), remaining_bytes)
            )
        )
        remaining_bytes -= len(inflated_blocks[-1].content)
    return inflated_blocks


def inflated(blocks: Iterable[tuple[str, Block]]) -> bytes:
    """Return the decompressed records of blocks, each given with its codec. Raises as `decompressed` does."""
    return _inflated(blocks, read_limits().max_manifest_bytes)


def _inflated(blocks: Iterable[tuple[str, Block]], remaining_bytes: int) -> bytes:
    parts: list[bytes] = []
    for codec, block in blocks:
        try:
            part = _inflate(codec, block.content, remaining_bytes)
        except _BROKEN as error:
            raise ValueError(f"truncated or broken Avro file ({type(error).__name__}: {error})") from error
        remaining_bytes -= len(part)
        if remaining_bytes < 0:
            raise TooLarge
        parts.append(part)
    return b"".join(parts)


def _inflate(codec: str, block: bytes, remaining_bytes: int) -> bytes:
    """Return the records of a block. Raises `TooLarge` soon after more than `remaining_bytes` bytes were inflated."""
    match codec:
        case "null":
            return block
        case "deflate":
            return _inflate_deflate(block, remaining_bytes)
        case "zstandard":
            return _inflate_zstandard(block, remaining_bytes)
        case "snappy":  # the length comes first, as a varint without zig-zag; four bytes of checksum follow
            length = shift = position = 0
            while True:
                byte = block[position]
                length |= (byte & 0x7F) << shift
                position, shift = position + 1, shift + 7
                if byte < 0x80:  # noqa: PLR2004
                    break
            if length > remaining_bytes:
                raise TooLarge
            inflated = bytes(pa.Codec("snappy").decompress(block[:-4], decompressed_size=length, asbytes=True))
            if zlib.crc32(inflated) != int.from_bytes(block[-4:], "big"):
                raise ValueError("truncated or broken Avro file (a checksum does not match)")
            return inflated
    raise ValueError(f"Avro codec {codec} is not supported")


def _inflate_deflate(block: bytes, remaining_bytes: int) -> bytes:
    stream, parts = isal_zlib.decompressobj(-15), list[bytes]()  # three times as fast as zlib
    while not stream.eof:
        parts.append(stream.decompress(block, _DEFLATE_STEP))
        remaining_bytes -= len(parts[-1])
        if remaining_bytes < 0:
            raise TooLarge
        block = stream.unconsumed_tail
        if not parts[-1] and not block and not stream.eof:
            raise ValueError("truncated or broken Avro file (a block ends early)")
    return b"".join(parts)


def _inflate_zstandard(block: bytes, remaining_bytes: int) -> bytes:
    stream, parts = zstandard.ZstdDecompressor().decompressobj(), list[bytes]()
    for start in range(0, len(block), _ZSTD_SLICE):
        parts.append(stream.decompress(block[start : start + _ZSTD_SLICE]))
        remaining_bytes -= len(parts[-1])
        if remaining_bytes < 0:
            raise TooLarge
        if stream.eof:
            return b"".join(parts)
    raise ValueError("truncated or broken Avro file (a block ends early)")


def read(schema: bytes, blocks: Sequence[Block], ids: Sequence[int], required: Sequence[int] = ()) -> pl.DataFrame:
    """Return the fields with these ids as columns named by the id; a field that the writer's schema lacks is null.

    The blocks hold decompressed records in the encoding of the schema. Raises `ValueError` when a required field is
    missing or null anywhere, or a block has more records than bytes for them, and the errors of Polars.
    """
    flat = _flat(schema)
    for block in blocks:  # Polars allocates memory for this many records, and aborts the process if it cannot
        if block.records * flat.least_bytes > len(block.content):
            raise ValueError(
                f"truncated or broken Avro file ({block.records} records do not fit in {len(block.content)} bytes)"
            )
    if lacking := [i for i in required if i not in flat.ids]:
        raise ValueError(f"the writer's schema has no field of the ids {lacking}")
    columns = [str(i) for i in ids if i in flat.ids]
    filled = ((block.records, block.content) for block in blocks if block.records)
    content = container_file({"avro.schema": flat.schema, "avro.codec": b"null"}, _SYNC, filled)
    frame = pl.read_avro(io.BytesIO(content), columns=columns)
    if restored := [name for name in flat.with_nulls if name in columns]:
        frame = frame.with_columns(
            pl.struct(_field_of(record, *inner) for inner in flat.with_nulls[record].items()).alias(record)
            for record in restored
        )
    if empty := [i for i in required if frame[str(i)].null_count()]:
        raise ValueError(f"the fields {empty} are null in some record")
    return frame.select(pl.col(str(i)) if i in flat.ids else pl.lit(None).alias(str(i)) for i in ids)


def _field_of(record: str, name: str, is_null: bool) -> pl.Expr:
    return pl.lit(None, pl.Boolean).alias(name) if is_null else pl.col(record).struct.field(name)


@dataclass(frozen=True, slots=True)
class _Flat:
    schema: bytes
    ids: frozenset[int]
    least_bytes: int  # of a record; 1 for one without fields
    with_nulls: Mapping[str, Mapping[str, bool]]  # records with fields of type null: each field in order, whether it is


@lru_cache(maxsize=512)
def _flat(schema: bytes) -> _Flat:
    """Return the schema as Polars takes it: `data_file` flattened, fields named by their ids.

    The schema has no defaults other than null, no references to named types and no fields of type null, all of which
    Polars does not support. Values of type null take no bytes; Iceberg writes them for partition fields whose source
    column is dropped.
    """
    parsed = _stripped(json.loads(schema), {})
    fields: list[Any] = []
    for top in parsed["fields"]:
        inner = top["type"]
        flattened = top["name"] == _FLATTENED and isinstance(inner, dict) and inner.get("type") == "record"
        fields += inner["fields"] if flattened else [top]
    ids: set[int] = set()
    with_nulls: dict[str, Mapping[str, bool]] = {}
    for number, column in enumerate(fields):
        field_id, kind = column.get("field-id", _ALIASES.get(column["name"])), column["type"]
        name = f"unknown_{number}" if field_id is None else str(field_id)
        if isinstance(kind, dict) and any(inner["type"] == "null" for inner in kind.get("fields", ())):
            with_nulls[name] = {inner["name"]: inner["type"] == "null" for inner in kind["fields"]}
            kind = kind | {"fields": [inner for inner in kind["fields"] if inner["type"] != "null"]}
        fields[number] = column | {"name": name, "type": kind}
        ids |= set() if field_id is None else {int(field_id)}
    flat = parsed | {"fields": fields}
    return _Flat(json.dumps(flat).encode(), frozenset(ids), max(1, _least_bytes(flat)), with_nulls)


def _stripped(node: Any, named: dict[str, Any]) -> Any:  # noqa: ANN401 - Avro schemas are JSON
    """Return a part of a schema without defaults, texts for people, and references to the types in `named`."""
    if isinstance(node, list):
        return [_stripped(one, named) for one in node]
    if isinstance(node, str):
        return named.get(node, node)
    if not isinstance(node, dict):
        return node
    attributes = {k: v for k, v in node.items() if k not in ("default", "doc", "aliases")}
    attributes |= {k: _stripped(v, named) for k, v in attributes.items() if k in ("type", "items", "values", "fields")}
    if "name" in attributes and attributes["type"] in ("fixed", "enum"):
        named[attributes["name"]] = attributes
    return attributes


def _least_bytes(kind: Any) -> int:  # noqa: ANN401 - Avro schemas are JSON
    """Return the least bytes of a value. Raises `ValueError` for an array whose items take none, of any number."""
    if isinstance(kind, list):  # the number of the branch comes first
        return 1 + min(map(_least_bytes, kind))
    if not isinstance(kind, dict):
        return int(kind != "null")
    match kind["type"]:
        case "record":
            return sum(_least_bytes(inner["type"]) for inner in kind["fields"])
        case "fixed":
            return int(kind["size"])
        case "array" if not _least_bytes(kind["items"]):
            raise ValueError("the writer's schema has an array whose items take no bytes")
        case "map":
            _least_bytes(kind["values"])
        case "array" | "enum":
            pass
        case inner:
            return _least_bytes(inner)
    return 1


def container(storage: Storage, path: str) -> Container:
    """Read and parse a container. Raises `MetadataUnreadable`."""
    return next(containers(storage, [(path, 0)]))


def containers(storage: Storage, files: Sequence[tuple[str, int]]) -> Iterator[Container]:
    """Read and parse containers by path and length, or 0. Raises `MetadataUnreadable`, also for another length."""
    limit = read_limits().manifest
    contents = read_ahead(lambda path: storage.read(path, limit), [path for path, _ in files])
    for (path, length), content in zip(files, contents, strict=True):
        if length and length != len(content):
            raise MetadataUnreadable(f"{path} has {len(content)} bytes where its manifest list says {length}")
        yield parsed(path, content)


def parsed(path: str, content: bytes) -> Container:
    """Parse the content of a file. Raises `MetadataUnreadable`."""
    try:
        return parse(content)
    except ValueError as error:
        raise MetadataUnreadable(f"{path}: {error}") from error


@contextmanager
def translating_errors(paths: Iterable[str]) -> Iterator[None]:
    """Translate errors of decoding in the block into `MetadataUnreadable` with the paths of the files."""
    try:
        yield
    except TooLarge as error:
        limit = read_limits().manifest
        problem = f"the records inflate to more than {limit.max_bytes} bytes"
        raise MetadataTooLarge(_names(paths), problem, limit.setting) from error
    except (
        pl.exceptions.PolarsError,
        pl.exceptions.PanicException,  # Polars panics at some invalid schemas
        LookupError,
        OSError,
        StopIteration,
        ValueError,
    ) as error:
        raise MetadataUnreadable(
            f"{_names(paths)}: not readable as Iceberg metadata ({type(error).__name__}: {error})"
        ) from error


def _names(paths: Iterable[str]) -> str:
    return ", ".join(list(paths)[:3])


def read_isolating_errors(
    read: Callable[[Sequence[Item]], T], items: Sequence[Item], alone: Callable[[Item], object]
) -> T:
    """Return the result of `read` on all items; when it fails, read each `alone`, so that the error names one item."""
    try:
        return read(items)
    except MetadataUnreadable:
        for item in items if len(items) > 1 else ():
            alone(item)
        raise
