"""Random schemas, their evolution and rows, as a model apart from the product: what a reader must find in the end.

Values are plain: dates and times as numbers, decimals unscaled, structs as maps by field id.
"""

from __future__ import annotations

import math
import random
import struct
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from typing import Any
from uuid import UUID

import pyarrow as pa

from icewright.adapters.engines.arrow.types import Field, arrow_field, arrow_type
from icewright.core.schemas import inner_fields

_NULLS = 4  # one value in so many
_YEAR_0, _YEAR_10_000 = -62_167_219_200_000_000, 253_402_300_800_000_000  # microseconds
_MOMENTS = (_YEAR_0, -1, 0, 1, 1_700_000_000_123_456, _YEAR_10_000)
_TEXTS = ("", "a", "ab", "é" * 9, "x" * 16, "x" * 17, "x" * 15 + "\ud7ff", "\U0010ffff" * 17, "z" * 5000, "\0", "'`\".")
_BYTES = (b"", b"\0", b"\xff" * 16, b"\xff" * 17, b"a" * 15 + b"\xff\xff", b"\x80", b"y" * 5000)
_DOUBLES = (0.0, -0.0, 0.1, -1.5, float("nan"), float("inf"), float("-inf"), 5e-324, 1.7976931348623157e308)
_FLOATS = (0.0, -0.0, 1.5, -1.5, float("nan"), float("inf"), float("-inf"), 2.0**-149, 3.4028234663852886e38)
_VALUES: Mapping[str, Sequence[Any]] = {
    "boolean": (True, False),
    "int": (0, 1, -1, 2**31 - 1, -(2**31)),
    "long": (0, 1, -1, 2**63 - 1, -(2**63)),
    "float": _FLOATS,
    "double": _DOUBLES,
    "date": (-719_528, -1, 0, 20_000, 2_932_897, 2**31 - 1),  # from year 0 to years beyond 9999
    "time": (0, 1, 86_399_999_999),
    "timestamp": _MOMENTS,
    "timestamptz": _MOMENTS,
    "timestamp_ns": (-(2**63) + 1, -1, 0, 2**63 - 1),
    "timestamptz_ns": (-(2**63) + 1, -1, 0, 2**63 - 1),
    "string": _TEXTS,
    "binary": _BYTES,
    "uuid": (b"\0" * 16, b"\xff" * 16, b"\x80" + b"\0" * 15),
    "fixed[1]": (b"\0", b"\x7f", b"\x80", b"\xff"),
    "fixed[20]": (b"\0" * 20, b"\xff" * 20, b"a" * 20),
    "decimal(1, 0)": (0, 9, -9),
    "decimal(9, 2)": (0, 10**9 - 1, -(10**9) + 1, 128, -128, -129),
    "decimal(18, 18)": (0, 10**18 - 1, -(10**18) + 1),
    "decimal(38, 10)": (0, 10**38 - 1, -(10**38) + 1, 255, -256),
}
_WIDER = {"int": "long", "float": "double", "decimal(1, 0)": "decimal(9, 0)", "decimal(9, 2)": "decimal(38, 2)"}
_DEFAULTS: Mapping[str, tuple[Any, Any]] = {  # as JSON and plain
    "boolean": (True, True),
    "int": (-7, -7),
    "long": (2**63 - 1, 2**63 - 1),
    "double": (1.5, 1.5),
    "string": ("dé`fault", "dé`fault"),
    "date": ("1969-12-31", -1),
    "time": ("23:59:59.999999", 86_399_999_999),
    "timestamp": ("1969-12-31T23:59:59.999999", -1),
    "timestamptz": ("1969-12-31T23:59:59.999999+00:00", -1),
    "timestamp_ns": ("1969-12-31T23:59:59.999999999", -1),
    "uuid": (str(UUID(int=1)), UUID(int=1).bytes),
    "binary": ("00FF", b"\0\xff"),
    "fixed[1]": ("80", b"\x80"),
    "decimal(9, 2)": ("-1.28", -128),
}
_NAMES = ("c", "a.b", "é", "with space", "`q`", 'dou"ble', "日本", "C")


def digits(kind: str) -> tuple[int, int]:
    """Precision and scale of a decimal type."""
    precision, scale = kind.removeprefix("decimal(").removesuffix(")").split(",")
    return int(precision), int(scale)


class Model:
    """A schema that changes, and values of it."""

    def __init__(self, seed: int, *, by_name: bool) -> None:
        self.random = random.Random(seed)
        self.by_name = by_name  # files have no ids: names stay what they are
        self.last_id = 0
        self.fields: list[Field] = [self.column() for _ in range(self.random.randrange(1, 6))]
        self.names: dict[int, str] = {}

    def column(self, depth: int = 0) -> Field:
        """A new field of any type."""
        number = self._id()
        kind = self.kind(depth)
        more: dict[str, Any] = {}
        if isinstance(kind, str) and kind in _DEFAULTS and self.random.randrange(2):
            more["initial-default"], more["plain default"] = _DEFAULTS[kind]
        name = f"{self.random.choice(_NAMES)}{number}"
        return {"id": number, "name": name, "required": False, "type": kind, **more}

    def kind(self, depth: int) -> Any:
        """A type, nested to a depth of two."""
        shape = self.random.randrange(10) if depth < 2 else 9
        if shape > 2:
            return self.random.choice(list(_VALUES))
        if shape == 0:
            fields = [self.column(depth + 1) for _ in range(self.random.randrange(1, 4))]
            return {"type": "struct", "fields": fields}
        if shape == 1:
            inner = self.kind(depth + 1)
            return {"type": "list", "element-id": self._id(), "element": inner, "element-required": False}
        key, inner = self.random.choice(("string", "int", "uuid")), self.kind(depth + 1)
        ids = {"key-id": self._id(), "value-id": self._id()}
        return {"type": "map", **ids, "key": key, "value": inner, "value-required": False}

    def _id(self) -> int:
        self.last_id += 1
        return self.last_id

    def evolve(self) -> None:
        """Change the schema in one way, inside of structs too."""
        at = self.random.randrange(len(self.fields))
        if isinstance(self.fields[at]["type"], dict) and self.fields[at]["type"]["type"] == "struct":
            inner = list(self.fields[at]["type"]["fields"])
            self._change(inner, self.random.randrange(len(inner)), depth=1)
            self.fields[at] = {**self.fields[at], "type": {"type": "struct", "fields": inner}}
        else:
            self._change(self.fields, at, depth=0)

    def _change(self, fields: list[Field], at: int, depth: int) -> None:
        match self.random.randrange(6):
            case 0 if len(fields) > 1:
                dropped = fields.pop(at)
                if not self.by_name and self.random.randrange(2):  # and comes again under the same name
                    fields.append({**self.column(depth), "name": dropped["name"]})
            case 1 if not self.by_name:
                fields[at] = {**fields[at], "name": f"renamed{self._id()}"}
            case 2 if isinstance(fields[at]["type"], str) and fields[at]["type"] in _WIDER:
                fields[at] = {**fields[at], "type": _WIDER[fields[at]["type"]]}
            case 3:
                self.random.shuffle(fields)
            case _:
                fields.insert(at, self.column(depth))

    def value(self, kind: Any, *, null: bool = True) -> Any:
        """A plain value of a type."""
        if null and self.random.randrange(_NULLS) == 0:
            return None
        if isinstance(kind, str):
            if kind in _VALUES:
                return self.random.choice(_VALUES[kind])
            return self.random.choice((0, 1, 10 ** digits(kind)[0] - 1))
        match kind["type"]:
            case "struct":
                return {field["id"]: self.value(field["type"]) for field in kind["fields"]}
            case "list":
                return [self.value(kind["element"]) for _ in range(self.random.randrange(3))]
        keys = self.random.sample(_VALUES[kind["key"]], self.random.randrange(3))
        return [(key, self.value(kind["value"])) for key in keys]

    def rows(self, count: int) -> list[dict[int, Any]]:
        """Plain rows of the schema as it is now."""
        return [{field["id"]: self.value(field["type"]) for field in self.fields} for _ in range(count)]


def projected(row: Mapping[int, Any], fields: Sequence[Field]) -> dict[int, Any]:
    """A row as readers of a later schema find it."""
    return {field["id"]: _later(row, field) for field in fields}


def _later(row: Mapping[int, Any], field: Field) -> Any:
    kind = field["type"]
    if field["id"] not in row:
        return field.get("plain default")
    value = row[field["id"]]
    if value is None or isinstance(kind, str):
        return value
    match kind["type"]:
        case "struct":
            return projected(value, kind["fields"])
        case "list":
            return [_later({kind["element-id"]: one}, *inner_fields(kind)) for one in value]
    return [(key, _later({kind["value-id"]: one}, inner_fields(kind)[1])) for key, one in value]


def array(kind: Any, values: Sequence[Any]) -> pa.Array:
    """Plain values as Arrow, with field ids."""
    target = arrow_type(kind)
    if isinstance(kind, str):
        return _primitive(kind, target, values)
    mask = pa.array([value is None for value in values], pa.bool_())
    if kind["type"] == "struct":
        children = [array(f["type"], [None if v is None else v[f["id"]] for v in values]) for f in kind["fields"]]
        return pa.StructArray.from_arrays(children, fields=[arrow_field(f) for f in kind["fields"]], mask=mask)
    offsets, flat = [0], list[Any]()
    for value in values:
        flat += value or []
        offsets.append(len(flat))
    places = pa.array(offsets, pa.int32())
    if kind["type"] == "list":
        return pa.ListArray.from_arrays(places, array(kind["element"], flat), type=target, mask=mask)
    keys, items = array(kind["key"], [k for k, _ in flat]), array(kind["value"], [v for _, v in flat])
    return pa.MapArray.from_arrays(places, keys, items, type=target, mask=mask)


def _primitive(kind: str, target: pa.DataType, values: Sequence[Any]) -> pa.Array:
    if kind.startswith("decimal"):
        scale = digits(kind)[1]
        return pa.array([None if v is None else Decimal(f"{v}E-{scale}") for v in values], target)
    if kind == "uuid":
        return pa.ExtensionArray.from_storage(target, pa.array(values, pa.binary(16)))
    if kind == "date":
        return pa.array(values, pa.int32()).cast(target)
    if kind.startswith("time"):
        return pa.array(values, pa.int64()).cast(target)
    return pa.array(values, target)


def plain(kind: Any, found: pa.Array) -> list[Any]:
    """Arrow's values as plain ones: the inverse of `array`, of a reader's result."""
    if isinstance(found, pa.ChunkedArray):
        found = found.combine_chunks()
    if isinstance(kind, str):
        return _plain(kind, found)
    valid = found.is_valid().to_pylist()
    match kind["type"]:
        case "struct":
            children = {f["id"]: plain(f["type"], found.field(n)) for n, f in enumerate(kind["fields"])}
            return [{n: c[row] for n, c in children.items()} if ok else None for row, ok in enumerate(valid)]
        case "list":
            inner: list[Any] = plain(kind["element"], found.values)
        case _:
            keys = plain(kind["key"], found.keys)
            inner = list(zip(keys, plain(kind["value"], found.items), strict=True))
    offsets = found.offsets.to_pylist()
    return [inner[offsets[row] : offsets[row + 1]] if ok else None for row, ok in enumerate(valid)]


def _plain(kind: str, found: pa.Array) -> list[Any]:
    convert: Callable[[Any], Any] = lambda value: value  # noqa: E731 - one of three
    if kind.startswith("decimal"):
        scale = digits(kind)[1]
        convert = lambda value: _unscaled(value, scale)  # noqa: E731
    elif kind == "date":
        found = found.cast(pa.int32())
    elif kind.startswith("time"):
        found = found.cast(pa.int64())
    elif isinstance(found, pa.ExtensionArray):
        found = found.storage
    return [None if value is None else convert(value) for value in found.to_pylist()]


def _unscaled(value: Decimal, scale: int) -> int:
    sign, numbers, exponent = value.as_tuple()
    assert exponent == -scale
    return int("".join(map(str, numbers))) * (-1 if sign else 1)


def exact(value: Any) -> str:
    """The value so that equal texts are equal values: NaN equals itself, and zeros have a sign."""
    match value:
        case float():
            return "nan" if math.isnan(value) else struct.pack(">d", value).hex()
        case dict():
            return "{" + ",".join(f"{key}:{exact(inner)}" for key, inner in sorted(value.items())) + "}"
        case list() | tuple():
            return "[" + ",".join(map(exact, value)) + "]"
    return repr(value)
