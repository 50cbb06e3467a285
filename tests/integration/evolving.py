"""Tables of any columns and what writers do to them, by Iceberg's Java core where Spark would take long."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, date, datetime
from decimal import Decimal
from random import Random
from typing import Any

from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    PrimitiveType,
    StringType,
    StructType,
    TimestampType,
    TimestamptzType,
)

from tests.integration.bench import Bench
from tests.integration.javacore import JavaTable
from tests.integration.tables import create

#: Columns beside `id` and `part`, as Spark's types.
COLUMNS = (
    "boolean",
    "int",
    "float",
    "double",
    "decimal(7, 2)",
    "decimal(30, 5)",
    "string",
    "binary",
    "date",
    "timestamp",
    "timestamp_ntz",
    "struct<a: int, b: struct<c: string>>",
    "array<struct<x: int, y: string>>",
    "map<string, array<double>>",
)
_PARTS = ("a", "b c")
_VALUES: dict[type[IcebergType], tuple[Any, ...]] = {
    BooleanType: (True, False),
    IntegerType: (0, 1, -(2**31), 2**31 - 1),
    LongType: (0, 1, -(2**63), 2**63 - 1),
    FloatType: (0.0, 1.5, -1.5, float("nan"), float("inf")),
    DoubleType: (0.0, -0.0, 0.1, float("nan"), float("-inf")),
    StringType: ("", "é", "\U0010ffff" * 20, "long " * 1000),
    BinaryType: (b"", b"\xff" * 20, b"\0"),
    DateType: (date(1, 1, 1), date(1970, 1, 1), date(9999, 12, 31)),
    TimestampType: (datetime(1, 1, 1), datetime(2026, 1, 2, 3, 4, 5, 6)),  # noqa: DTZ001 - without a zone
    TimestamptzType: (datetime(1, 1, 1, tzinfo=UTC), datetime(2026, 1, 2, 3, 4, 5, 6, UTC)),
}
_NULLS = 4  # one value in so many


def value(kind: IcebergType, random: Random, *, required: bool = False) -> Any:
    """Any value of a type, as Arrow takes it; null among them."""
    if not required and random.randrange(_NULLS) == 0:
        return None
    match kind:
        case StructType():
            return {field.name: value(field.field_type, random) for field in kind.fields}
        case ListType():
            return [value(kind.element_type, random) for _ in range(random.randrange(3))]
        case MapType():
            keys = random.sample(("k", "", "é"), random.randrange(3))
            return [(key, value(kind.value_type, random)) for key in keys]
        case DecimalType():
            return Decimal(random.randrange(-(10**6), 10**6)).scaleb(-kind.scale)
    return random.choice(_VALUES[type(kind)])


class Evolving:
    """A table and its writers; each step takes a number by which it chooses, and says whether it did anything."""

    def __init__(
        self,
        bench: Bench,
        name: str,
        columns: tuple[str, ...],
        version: int,
        *,
        partitioned: bool,
        written: Mapping[str, str],
    ) -> None:
        self.bench, self.name, self.version = bench, name, version
        self.number = 0
        listed = ", ".join(["id int", "part string", *(f"c{number} {kind}" for number, kind in enumerate(columns))])
        properties = {"write.delete.mode": "merge-on-read", "write.update.mode": "merge-on-read", **written}
        self.quoted = create(bench, name, listed, "part" if partitioned else "", properties, version=version)

    def _columns(self, pick: int) -> dict[str, list[Any]]:
        random = Random(pick * 1000 + self.number)
        self.number += 1
        fields = JavaTable.load(self.bench, self.name).loaded().schema().fields
        columns = {field.name: [value(field.field_type, random) for _ in range(3)] for field in fields}
        ids = [self.number * 10 + row for row in range(3)]
        return {**columns, "id": ids, "part": [_PARTS[pick % 2]] * 3}

    def append(self, pick: int) -> bool:
        """Three rows of one partition."""
        columns, java = self._columns(pick), JavaTable.load(self.bench, self.name)
        java.append(java.data(columns))
        return True

    def copy(self, pick: int) -> bool:
        """Rows that there are once more, by Spark."""
        self.bench.sql(f"INSERT INTO {self.quoted} SELECT * FROM {self.quoted} WHERE id % 3 = {pick % 3}")  # noqa: S608
        return True

    def delete(self, pick: int) -> bool:
        """Rows by their positions, by Spark."""
        self.bench.sql(f"DELETE FROM {self.quoted} WHERE id % 5 = {pick % 5}")  # noqa: S608 - quoted
        return True

    def update(self, pick: int) -> bool:
        """Rows in place, by Spark."""
        self.bench.sql(f"UPDATE {self.quoted} SET id = id + 1000 WHERE id % 4 = {pick % 4}")  # noqa: S608 - quoted
        return True

    def equality(self, pick: int) -> bool:
        """Rows and, for the older ones of their partition, their keys in one or two columns of any type."""
        columns, java = self._columns(pick), JavaTable.load(self.bench, self.name)
        schema = java.loaded().schema()
        fields = [field for field in schema.fields if isinstance(field.field_type, PrimitiveType)]
        chosen = {fields[pick % len(fields)].name, fields[pick // 7 % len(fields)].name}
        random = Random(pick)
        keys = {key: [value(schema.find_field(key).field_type, random) for _ in range(3)] for key in sorted(chosen)}
        keys["part"] = columns["part"]  # by which the file is placed
        java.row_delta([java.data(columns)], [java.equality_deletes(keys, sorted(chosen))])
        return True

    def vectors(self, pick: int) -> bool:
        """Deletion vectors of up to three data files in one Puffin file."""
        java = JavaTable.load(self.bench, self.name)
        found = [one for one in java.live() if not one.deleted][: 1 + pick % 3]
        if self.version > 2 and found:
            java.row_delta(deletes=java.vectors({one: [pick % one.rows] for one in found}))
        return self.version > 2 and bool(found)

    def evolve(self, pick: int) -> bool:
        """A column comes, goes, moves, gets another name or a wider type, inside of another one too."""
        java = JavaTable.load(self.bench, self.name)
        types, update, schema = java.java.types.Types, java.table.updateSchema(), java.loaded().schema()
        own = [field for field in schema.fields if field.name not in ("id", "part")]
        structs = [(field.name, field.field_type) for field in own if isinstance(field.field_type, StructType)]
        self.number += 1
        fresh = f"n{self.number} é-"  # files have such names in another spelling
        match pick % 7:
            case 0 if len(own) > 1:
                update.deleteColumn(own[pick // 7 % len(own)].name)
            case 1 if own:
                update.renameColumn(own[pick // 7 % len(own)].name, fresh)
            case 2 if isinstance(schema.find_field("id").field_type, IntegerType):
                update.updateColumn("id", types.LongType.get())
            case 3 if any(isinstance(field.field_type, FloatType) for field in own):
                found = next(field.name for field in own if isinstance(field.field_type, FloatType))
                update.updateColumn(found, types.DoubleType.get())
            case 4 if structs:
                update.addColumn(structs[0][0], fresh, types.LongType.get())
            case 5 if structs and len(structs[0][1].fields) > 1:
                update.deleteColumn(f"{structs[0][0]}.{structs[0][1].fields[0].name}")
            case _:
                update.addColumn(fresh, types.StringType.get())
                update.moveFirst(fresh)
        update.commit()
        return True
