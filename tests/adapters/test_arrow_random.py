"""Random tables of any types, evolved, from any writer: the outputs' rows, counts and bounds by a model apart."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import settings
from pyiceberg.conversions import from_bytes
from pyiceberg.types import (
    BooleanType,
    DateType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    PrimitiveType,
    StringType,
)

from icewright.adapters.engines.arrow import batch_rows
from icewright.adapters.engines.arrow.tasks import BinWritten, DeleteFile, DeleteKind, FileSlice
from icewright.adapters.engines.arrow.types import LAST_UPDATED, ROW_ID, Field, arrow_field, arrow_schema, stored_name
from tests.adapters.arrow_tables import Folder
from tests.adapters.random_files import Model, array, exact, plain, projected

TABLES = {"long": 5_000, "fast": 20}.get(settings.get_current_profile_name(), 60)
BATCH = 20
_ROW, _UPDATED = 2147483540, 2147483539  # the field ids of lineage
_PRIMITIVES: Mapping[str, PrimitiveType] = {
    str(kind): kind
    for kind in (BooleanType(), IntegerType(), LongType(), FloatType(), DoubleType(), DateType(), StringType())
}
_MODES = ("none", "counts", "full", "truncate(1)", "truncate(16)", "Truncate(2)", "truncate(0)", "wrong")
_DEFAULT, _COLUMN = "write.metadata.metrics.default", "write.metadata.metrics.column."
_PROPERTIES: Sequence[tuple[str, Sequence[str]]] = (
    ("compression-codec", ("zstd", "gzip", "snappy", "uncompressed", "lz4_raw", "brotli")),
    ("page-size-bytes", ("1", "100", "1048576")),
    ("page-row-limit", ("1", "3", "20000")),
    ("page-version", ("v1", "v2")),
    ("dict-size-bytes", ("1", "2097152")),
    ("row-group-size-bytes", ("64", "1000", "134217728")),
)


@pytest.fixture(autouse=True)
def codes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let texts of a few rows be read as codes, as are those of many rows with few values."""
    monkeypatch.setattr(batch_rows, "_ROWS_PER_BYTE", 0)


class Writer:
    """Files of a table as several programs write them."""

    def __init__(self, place: Path, model: Model, *, lineage: bool) -> None:
        self.folder, self.model, self.random, self.lineage = Folder(place), model, model.random, lineage
        self.slices: list[FileSlice] = []
        self.live: list[tuple[dict[int, Any], tuple[Any, ...] | None]] = []  # rows, with their lineage

    def file(self, number: int) -> None:
        """A file of the schema as it is now, and perhaps deletes of its rows by position."""
        model, random = self.model, self.random
        rows = model.rows(random.randrange(1, 30))
        fields: list[Field] = list(model.fields)
        random.shuffle(fields)
        if self.lineage and random.randrange(2):
            fields += [ROW_ID, LAST_UPDATED]
            for row in rows:
                known = random.randrange(2)
                row[_ROW] = 10_000 + random.randrange(100) if known else None
                row[_UPDATED] = random.randrange(1, 3) if known else None
        path = self.folder.place / f"in-{number}.parquet"
        columns = [self._flavoured(array(f["type"], [row[f["id"]] for row in rows])) for f in fields]
        wanted = [arrow_field(f).with_type(c.type) for f, c in zip(fields, columns, strict=True)]
        table = pa.Table.from_arrays(columns, schema=pa.schema(wanted))
        pq.write_table(table if not model.by_name else _without_ids(table), path, **self._options())
        dead = sorted(random.sample(range(len(rows)), random.randrange(len(rows) // 2 + 1)))
        deletes: tuple[DeleteFile, ...] = ()
        if dead and random.randrange(2):
            whole = self.lineage or random.randrange(2)
            deletes = (self.folder.vector(*dead) if whole else self.folder.positions(*((str(path), d) for d in dead)),)
        sequence, first = number + 1, number * 1000
        more = {"sequence_number": sequence, "first_row_id": first if self.lineage else None}
        self.slices.append(self.folder.file_slice(str(path), *deletes, **more))
        for position, row in enumerate(rows):
            if not deletes or position not in dead:
                own = row.pop(_ROW, None), row.pop(_UPDATED, None)
                inherited = (first + position, sequence)
                lineage = tuple(a if a is not None else b for a, b in zip(own, inherited, strict=True))
                self.live.append((row, lineage if self.lineage else None))

    def keys(self) -> None:
        """Delete, by an equality delete file, what equals some rows in up to two columns, or equals no row."""
        model, random = self.model, self.random
        primitive = [f for f in model.fields if isinstance(f["type"], str) and not f["type"].startswith("fixed")]
        chosen = random.sample(primitive, min(len(primitive), random.randrange(3)))
        if not chosen or not self.live:
            return
        samples = [projected(row, chosen) for row, _ in random.sample(self.live, min(len(self.live), 2))]
        samples.append({f["id"]: model.value(f["type"]) for f in chosen})
        path = self.folder.place / "keys.parquet"
        columns = [array(f["type"], [one[f["id"]] for one in samples]) for f in chosen]
        pq.write_table(pa.Table.from_arrays(columns, schema=arrow_schema(chosen)), path, **self._options())
        delete = DeleteFile(DeleteKind.EQUALITY, str(path), equality_ids=tuple(f["id"] for f in chosen))
        self.slices = [replace(one, deletes=(*one.deletes, delete)) for one in self.slices]
        dead = {exact(one) for one in samples}
        self.live = [(row, own) for row, own in self.live if exact(projected(row, chosen)) not in dead]

    def _flavoured(self, column: pa.Array) -> pa.Array:
        """The same values in another type of Arrow's, which the file's Arrow schema names."""
        kind = column.type
        match self.random.randrange(3):
            case 0 if pa.types.is_string(kind):
                return column.cast(self.random.choice((pa.large_string(), pa.string_view())))
            case 1 if pa.types.is_string(kind) or pa.types.is_int32(kind):
                return column.dictionary_encode()
            case 0 if pa.types.is_binary(kind):
                return column.cast(pa.large_binary())
            case 0 if pa.types.is_list(kind):
                return column.cast(pa.large_list(kind.value_field))
        return column

    def _options(self) -> dict[str, Any]:
        choose = self.random.choice
        return {
            "row_group_size": choose((3, 1000)),
            "version": choose(("1.0", "2.4", "2.6")) if not self._nanoseconds() else "2.6",
            "data_page_version": choose(("1.0", "2.0")),
            "use_dictionary": choose((True, False)),
            "store_schema": choose((True, False)),
            "store_decimal_as_integer": choose((True, False)),
            "compression": choose(("zstd", "snappy", "none")),
            "write_statistics": choose((True, False)),
        }

    def _nanoseconds(self) -> bool:
        return "_ns" in repr(self.model.fields)


def _without_ids(table: pa.Table) -> pa.Table:
    def bare(field: pa.Field) -> pa.Field:
        kind = field.type
        if pa.types.is_struct(kind):
            kind = pa.struct([bare(kind.field(n)) for n in range(kind.num_fields)])
        elif pa.types.is_map(kind):
            kind = pa.map_(bare(kind.key_field), bare(kind.item_field))
        elif pa.types.is_large_list(kind):
            kind = pa.large_list(bare(kind.value_field))
        elif pa.types.is_list(kind):
            kind = pa.list_(bare(kind.value_field))
        return pa.field(field.name, kind, field.nullable)

    return table.cast(pa.schema([bare(field) for field in table.schema]))


def _mapping(fields: Sequence[Field]) -> list[dict[str, Any]]:
    return [{"field-id": f["id"], "names": [stored_name(f["name"])], "fields": _inner(f["type"])} for f in fields]


def _inner(kind: Any) -> list[dict[str, Any]]:
    match kind if isinstance(kind, str) else kind["type"]:
        case "struct":
            return _mapping(kind["fields"])
        case "list":
            return [{"field-id": kind["element-id"], "names": ["element"], "fields": _inner(kind["element"])}]
        case "map":
            key = {"field-id": kind["key-id"], "names": ["key"]}
            return [key, {"field-id": kind["value-id"], "names": ["value"], "fields": _inner(kind["value"])}]
    return []


def _properties(model: Model) -> dict[str, str]:
    random = model.random
    found = {f"write.parquet.{name}": random.choice(values) for name, values in _PROPERTIES if random.randrange(3) == 0}
    if random.randrange(3):
        found[_DEFAULT] = random.choice(_MODES)
    elif random.randrange(2):
        found["write.metadata.metrics.max-inferred-column-defaults"] = str(random.randrange(3))
    for names, _ in _leaves(model.fields):
        if random.randrange(4) == 0:
            found[_COLUMN + ".".join(names)] = random.choice(_MODES)
    return found


def _leaves(fields: Sequence[Field], above: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Field]]:
    for field in fields:
        names = (*above, field["name"])
        if isinstance(field["type"], str):
            yield names, field
        elif field["type"]["type"] == "struct":
            yield from _leaves(field["type"]["fields"], names)


@pytest.mark.parametrize("batch", range(TABLES // BATCH))
def test_outputs_are_the_rows_and_their_metrics(batch: int, tmp_path: Path) -> None:
    """Each row that no delete names, with its lineage; each count and bound as the rows themselves say."""
    for seed in range(batch * BATCH, (batch + 1) * BATCH):
        place = tmp_path / str(seed)
        place.mkdir()
        check(place, seed)


def check(place: Path, seed: int) -> None:
    """Write a random table, rewrite it, and compare."""
    by_name = seed % 5 == 4
    model, lineage = Model(seed, by_name=by_name), seed % 3 == 0 and not by_name
    writer, history = Writer(place, model, lineage=lineage), []
    for number in range(model.random.randrange(1, 4)):
        writer.file(number)
        history += model.fields
        for _ in range(model.random.randrange(3)):
            model.evolve()
    if seed % 2:
        writer.keys()
    properties = _properties(model)
    if by_name:
        latest = {f["id"]: f for f in [*history, *model.fields]}
        properties["schema.name-mapping.default"] = json.dumps(_mapping(list(latest.values())))
    schema = {"type": "struct", "fields": list(model.fields)}
    sortable = [f["id"] for f in model.fields if isinstance(f["type"], str)] if seed % 4 == 1 else []
    order = tuple((n, bool(model.random.randrange(2)), bool(model.random.randrange(2))) for n in sortable[:2])
    writer.folder.of(schema=schema, properties=properties, has_row_ids=lineage, order=order)
    done = writer.folder.rewrite(*writer.slices, outputs=model.random.randrange(1, 3))
    assert isinstance(done, BinWritten), (seed, done)
    fields = [*model.fields, *([ROW_ID, LAST_UPDATED] if lineage else ())]
    expected = []
    for row, own in writer.live:
        wanted = projected(row, model.fields)
        if own is not None:
            wanted |= {_ROW: own[0], _UPDATED: own[1]}
        expected.append(exact(wanted))
    written: list[str] = []
    for entry in done.files:
        rows = _read(entry["file-path"], fields)
        written += [exact(row) for row in rows]
        _by_duckdb(entry["file-path"], rows, model.fields)
        for problem in _wrong_metrics(entry, rows, fields, properties):
            pytest.fail(f"table {seed}: {problem}")
    assert sorted(written) == sorted(expected) if order else written == expected, seed


def _read(path: str, fields: Sequence[Field]) -> list[dict[int, Any]]:
    table = pq.ParquetFile(path).read()
    columns = [plain(f["type"], table.column(n)) for n, f in enumerate(fields)]
    return [{f["id"]: c[row] for f, c in zip(fields, columns, strict=True)} for row in range(table.num_rows)]


def _by_duckdb(path: str, rows: Sequence[Mapping[int, Any]], fields: Sequence[Field]) -> None:
    """Count what is not null by another reader of Parquet."""
    with duckdb.connect() as connection:
        reading = connection.from_parquet(path)
        counts = reading.aggregate(
            ", ".join(f'count("{name.replace(chr(34), chr(34) * 2)}")' for name in reading.columns)
        )
        (found,) = counts.fetchall()
    assert list(found[: len(fields)]) == [sum(row[f["id"]] is not None for row in rows) for f in fields]


_ENTRY = ("value-counts", "null-value-counts", "nan-value-counts", "lower-bounds", "upper-bounds")


def _wrong_metrics(
    entry: Mapping[str, Any], rows: Sequence[Mapping[int, Any]], fields: Sequence[Field], properties: Mapping[str, str]
) -> Iterator[str]:
    maps = [dict(zip(*entry.get(name, {"keys": [], "values": []}).values(), strict=True)) for name in _ENTRY]
    values, nulls, nans, lower, upper = maps
    if entry["record-count"] != len(rows):
        yield f"{entry['record-count']} rows of {len(rows)}"
    for names, field in _leaves(fields):
        number, kind = field["id"], field["type"]
        mode = _mode(names, number, fields, properties)
        column = [_at(row, names, fields) for row in rows]
        if mode == "none":
            if any(number in found for found in maps):
                yield f"{names} has metrics in spite of mode none"
            continue
        known = [value for value in column if value is not None]
        if (values.get(number), nulls.get(number)) != (len(rows), len(rows) - len(known)):
            yield f"{names}: {values.get(number)} values and {nulls.get(number)} nulls of {len(rows)} and {len(known)}"
        if kind in ("float", "double"):
            numbers = [value for value in known if not math.isnan(value)]
            if nans.get(number) != len(known) - len(numbers):
                yield f"{names}: {nans.get(number)} NaN of {len(known) - len(numbers)}"
            known = numbers
        if mode == "counts" or not known:
            if number in lower or number in upper:
                yield f"{names} has bounds: {mode}"
            continue
        yield from _wrong_bounds(names, kind, mode, known, lower.get(number), upper.get(number))


def _wrong_bounds(
    names: tuple[str, ...], kind: str, mode: str, known: Sequence[Any], low_hex: str | None, high_hex: str | None
) -> Iterator[str]:
    low, high = min(known, key=_comparable), max(known, key=_comparable)
    limit = re.fullmatch(r"truncate\((\d+)\)", mode) if kind in ("string", "binary") else None
    if low_hex is None:
        yield f"{names} has no lower bound"
        return
    lowest = _decoded(kind, low_hex)
    if lowest != (low[: int(limit[1])] if limit else low):
        yield f"{names}: lower bound {lowest!r} of {low!r} by {mode}"
    if high_hex is None:
        if not limit or any(c not in ("\U0010ffff", 0xFF) for c in high[: int(limit[1])]) or len(high) <= int(limit[1]):
            yield f"{names} has no upper bound"
        return
    highest = _decoded(kind, high_hex)
    if not limit or len(high) <= int(limit[1]):
        if highest != high:
            yield f"{names}: upper bound {highest!r} of {high!r} by {mode}"
    elif len(highest) > int(limit[1]) or _comparable(highest) <= _comparable(high):
        yield f"{names}: upper bound {highest!r} of {high!r} by {mode}"


def _comparable(value: Any) -> Any:
    return value.encode() if isinstance(value, str) else value


def _decoded(kind: str, text: str) -> Any:
    """The plain value of a bound, by PyIceberg's reading of the spec."""
    raw = bytes.fromhex(text)
    if kind.startswith("decimal"):
        return int.from_bytes(raw, "big", signed=True)
    if kind in ("uuid", "binary") or kind.startswith("fixed"):
        return raw
    if kind.startswith("time"):
        return int.from_bytes(raw, "little", signed=True)
    return from_bytes(_PRIMITIVES[kind], raw)


def _at(row: Mapping[int, Any], names: Sequence[str], fields: Sequence[Field]) -> Any:
    value: Any = row
    for name in names:
        if value is None:
            return None
        field = next(f for f in fields if f["name"] == name)
        value, fields = value[field["id"]], field["type"]["fields"] if isinstance(field["type"], dict) else ()
    return value


def _mode(names: Sequence[str], number: int, fields: Sequence[Field], properties: Mapping[str, str]) -> str:
    """The column's metrics mode; what is no mode is the default's (Iceberg's MetricsConfig)."""
    mode = default = _valid(properties.get(_DEFAULT), "truncate(16)")
    limit = properties.get("write.metadata.metrics.max-inferred-column-defaults")
    columns = _first([f for f in fields if f["id"] not in (_ROW, _UPDATED)], 1000)
    if limit is not None and len(columns) > int(limit):
        mode, default = mode if number in columns[: int(limit)] else "none", "none"
    return _valid(properties.get(_COLUMN + ".".join(names), mode), default)


def _valid(mode: str | None, otherwise: str) -> str:
    mode = otherwise if mode is None else mode.lower()
    return mode if mode in ("none", "counts", "full") or re.fullmatch(r"truncate\([1-9]\d*\)", mode) else otherwise


def _first(fields: Sequence[Field], limit: int) -> list[int]:
    """The first primitive columns; what is inside of a column comes after what lies beside it."""
    own = [f["id"] for f in fields if isinstance(f["type"], str)]
    for f in fields:
        if not isinstance(f["type"], str):
            own += _inside(f["type"])
    return own[:limit]


def _inside(kind: Any) -> list[int]:
    match kind["type"]:
        case "struct":
            return _first(kind["fields"], 1000)
        case "list":
            return _pair([(kind["element-id"], kind["element"])])
    return _pair([(kind["key-id"], kind["key"]), (kind["value-id"], kind["value"])])


def _pair(children: Sequence[tuple[int, Any]]) -> list[int]:
    own = [number for number, kind in children if isinstance(kind, str)]
    return own + [n for _, kind in children if not isinstance(kind, str) for n in _inside(kind)]
