"""A predicate over rows, bound to the columns that a table has or had, and counted in Arrow batches."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from functools import cached_property
from itertools import pairwise, product
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pydantic import ValidationError
from pyiceberg.conversions import from_bytes
from pyiceberg.expressions import (
    AlwaysTrue,
    And,
    BooleanExpression,
    BoundEqualTo,
    BoundGreaterThan,
    BoundGreaterThanOrEqual,
    BoundIn,
    BoundIsNaN,
    BoundLiteralPredicate,
    BoundNotEqualTo,
    BoundNotIn,
    BoundNotNaN,
    BoundNotNull,
    BoundPredicate,
    BoundReference,
    BoundSetPredicate,
    LiteralPredicate,
    Not,
    NotNull,
    NotStartsWith,
    Or,
    Reference,
    SetPredicate,
    StartsWith,
)
from pyiceberg.expressions.literals import (
    AboveMax,
    BelowMin,
    DecimalLiteral,
    DoubleLiteral,
    FixedLiteral,
    FloatLiteral,
    Literal,
    StringLiteral,
)
from pyiceberg.expressions.parser import parse
from pyiceberg.expressions.visitors import bind, extract_field_ids, rewrite_not
from pyiceberg.io.pyarrow import expression_to_pyarrow
from pyiceberg.schema import Schema, index_by_id, index_by_name
from pyiceberg.types import (
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FixedType,
    FloatType,
    IcebergType,
    IntegerType,
    LongType,
    NestedField,
    PrimitiveType,
    StringType,
    TimestampType,
    TimestamptzType,
    TimeType,
    UUIDType,
)
from pyparsing import ParseException

from icewright.adapters.engines.arrow.types import Field, arrow_schema
from icewright.core.errors import UsageError
from icewright.core.words import near

_EXAMPLE = "write it as in email = 'a@b.org' and id in (1, 2)"
_INFINITE = {"inf", "infinity"}
_DAY = re.compile(r"\d{4}-\d\d-\d\d")
_TIMES = DateType | TimeType | TimestampType | TimestamptzType
_WORDS = re.compile(r"""'(?:[^']|'')*'|"(?:[^"\\]|\\.)*"|\w+""")


@dataclass(frozen=True)
class RowPredicate:
    """A bound predicate, and the top-level fields that hold its columns, none of which is required."""

    text: str
    fields: tuple[Field, ...]
    columns: Mapping[str, int]  # field ids by name
    schema: Schema
    bound: BooleanExpression

    @staticmethod
    def of(text: str, schemas: Sequence[Mapping[str, Any]], option: str = "--where") -> RowPredicate:
        """Parse a predicate over the columns of the schemas, of which the first that has a name says what it means.

        Raises `UsageError`, which names the option, for a text that is no predicate over these columns.
        """
        known: dict[str, Field] = {}
        for schema in schemas:
            for field in schema["fields"]:
                if field["name"] not in known and all(field["id"] != other["id"] for other in known.values()):
                    known[field["name"]] = _optional(field)
        usable = {
            field["id"]: (field, own_schema) for field in known.values() if (own_schema := _schema([field])) is not None
        }
        every = _schema([field for field, _ in usable.values()]) or Schema()
        try:
            unbound = _with_infinities(parse(text), every)
            _require_exact(text, unbound, every)
            bound = rewrite_not(bind(every, unbound, case_sensitive=True))
        except ParseException as error:  # its own text is the whole grammar
            rest = text[error.loc :]
            reason = f"it cannot be read from {rest!r} on" if rest else "it ends too early"
            raise UsageError(f"{option} {text}: {reason}; {_EXAMPLE}") from error
        except Exception as error:  # each library below has its own
            reason = " ".join(str(error).split())
            if unknown := re.search("Could not find field with name (.+), case_sensitive", reason):
                reason = f"the table has no column {unknown[1]}{near(unknown[1], list(known))}"
            raise UsageError(f"{option} {text}: {reason}; {_EXAMPLE}") from error
        ids = extract_field_ids(bound)
        if not ids:
            raise UsageError(f"{option} {text}: it names no column")
        fields = tuple(field for field, own_schema in usable.values() if not ids.isdisjoint(index_by_id(own_schema)))
        columns = {every.find_column_name(number) or "": number for number in sorted(ids)}
        return RowPredicate(text, fields, columns, _schema(fields) or every, bound)

    @staticmethod
    def every(text: str, schemas: Sequence[Mapping[str, Any]]) -> tuple[RowPredicate, ...]:
        """Return the predicate as `of` does, and for each dropped column that had one of its names what it meant then.

        Those match rows that have a value in the dropped column. Raises `UsageError` also for `is nan`, with which
        nobody could recheck what was found by SQL.
        """
        first = RowPredicate.of(text, schemas)
        if _names_nan(first.bound):
            raise UsageError(f"--where {text}: engines do not know `is nan`; NaN is above all numbers: write > 'inf'")
        _require_single(text, first.bound)
        used = {field["name"]: field for field in first.fields}
        others: dict[str, RowPredicate] = {}
        current = {field["id"] for field in schemas[0]["fields"]}
        for schema in schemas[1:]:
            older = [
                _completed(field, now)
                for field in schema["fields"]
                if (now := used.get(field["name"])) and (field["id"] not in current or field["id"] == now["id"])
            ]
            named = index_by_name(_schema([field for field in older if _schema([field]) is not None]) or Schema())
            dropped = {name: number for name, number in named.items() if first.columns.get(name, number) != number}
            if dropped and str(dropped) not in others:
                other = RowPredicate.of(text, [{"fields": older}, *schemas])
                present = [bind(other.schema, NotNull(term=Reference(name)), case_sensitive=True) for name in dropped]
                others[str(dropped)] = replace(other, bound=And(other.bound, *present))
        return first, *others.values()

    def count(self, columns: Sequence[pa.Array], only: frozenset[int] | None = None) -> int:
        """Return how many rows match. With `only`, conditions on columns with other ids count as met."""
        paths = dict(_paths(self.fields))
        values = {number: _inner(columns, paths[number]) for number in self.columns.values()}
        return self._matching(values, only)

    def matches_bounds(
        self, lower: Mapping[int, bytes], upper: Mapping[int, bytes], partition: Mapping[int, Any]
    ) -> bool:
        """Return whether values that bounds or a partition spell out match; conditions on other columns count as met.

        All are as a manifest stores them, by column id.
        """
        spelt: dict[int, list[Any]] = {}
        for number in self.columns.values():
            kind = self.schema.find_type(number)
            stored = [values[number] for values in (lower, upper, partition) if values.get(number) is not None]
            if stored and isinstance(kind, PrimitiveType):
                spelt[number] = list(dict.fromkeys(_value(kind, value) for value in stored))
        if not spelt:
            return False
        rows = zip(*product(*spelt.values()), strict=True)
        types = dict(_types(self.fields))
        values = {number: pa.array(column, types[number]) for number, column in zip(spelt, rows, strict=True)}
        return self._matching(values, frozenset(spelt)) > 0

    def _matching(self, values: Mapping[int, pa.Array], only: frozenset[int] | None) -> int:
        bound = self.bound if only is None else _without_others(self.bound, only)
        plain = {f"c{n}": v.storage if isinstance(v, pa.ExtensionArray) else v for n, v in values.items()}
        table = pa.table(plain)
        if isinstance(bound, AlwaysTrue):
            return len(table)
        expression: pc.Expression = expression_to_pyarrow(_with_bytes(_as_engines_do(bound)), self._by_number)
        return len(table.filter(expression))

    @cached_property
    def _by_number(self) -> Schema:
        """Return a schema that names columns by their ids, as names may hold anything; their types do not matter."""
        return Schema(*(NestedField(number, f"c{number}", BooleanType()) for number in self.columns.values()))


def _paths(fields: Sequence[Field]) -> Iterator[tuple[int, tuple[int, ...]]]:
    """Yield the id of each field and of those in its structs, with the place at each level."""
    for index, field in enumerate(fields):
        yield field["id"], (index,)
        yield from ((number, (index, *inner)) for number, inner in _paths(_fields_of(field)))


def _types(fields: Sequence[Field]) -> Iterator[tuple[int, pa.DataType]]:
    for field, arrow_field in zip(fields, arrow_schema(fields), strict=True):
        yield field["id"], arrow_field.type
        yield from _types(_fields_of(field))


def _fields_of(field: Field) -> Sequence[Field]:
    kind = field["type"]
    return kind["fields"] if isinstance(kind, Mapping) and kind["type"] == "struct" else ()


def _optional(field: Field) -> Field:
    """Return a field that may be null, as a required one in a struct is where the struct is."""
    inner = [_optional(inner_field) for inner_field in _fields_of(field)]
    return {**field, "required": False, **({"type": {**field["type"], "fields": inner}} if inner else {})}


def _completed(older: Field, now: Field) -> Field:
    """Return a struct as it was, with the fields that it has got since: a predicate may name some of each."""
    newer = {field["name"]: field for field in _fields_of(now)}
    inner = [_completed(field, newer.pop(field["name"], field)) for field in _fields_of(older)]
    ids = {field["id"] for field in inner}
    added = [field for field in newer.values() if field["id"] not in ids]
    return {**older, "type": {**older["type"], "fields": [*inner, *added]}} if inner else older


def _inner(columns: Sequence[pa.Array], path: tuple[int, ...]) -> pa.Array:
    place, *inner = path
    return pc.struct_field(columns[place], inner) if inner else columns[place]


def _value(kind: PrimitiveType, stored: Any) -> Any:  # noqa: ANN401 - of the column
    return from_bytes(kind, stored) if isinstance(stored, bytes) and not isinstance(kind, UUIDType) else stored


def _require_exact(text: str, expression: BooleanExpression, schema: Schema) -> None:
    """Raise `ValueError` for a condition that PyIceberg takes for another one than engines do.

    It rounds numbers, also to the greatest that a column can have, takes `_` in a pattern for itself, finds text in
    columns that have none, and takes numbers for days and times.
    """
    for word, pattern in pairwise(_WORDS.findall(text)):
        if word.lower() == "like" and pattern[0] == "'" and re.search(r"[_\\]", pattern):
            raise ValueError(f"engines differ in what _ and \\ mean in like {pattern}: write it with =, >= and <")
    for name, condition in _conditions(expression):
        kind = schema.find_type(name)
        if isinstance(condition, StartsWith | NotStartsWith) and not isinstance(kind, StringType):
            raise ValueError(f"column {name} is no text: like does not apply")  # noqa: TRY004 - the person's text
        for literal in condition.literals if isinstance(condition, SetPredicate) else {condition.literal}:
            if (reason := _inexact(literal, kind)) is not None:
                raise ValueError(f"column {name} {reason}")


def _inexact(literal: Literal[Any], kind: IcebergType) -> str | None:
    """Return why a literal may be another value of a column of this type than engines take it for."""
    if isinstance(kind, IntegerType | LongType) and isinstance(literal, DecimalLiteral):
        return "has whole numbers: write them without a point"
    if isinstance(kind, _TIMES) and not isinstance(literal, StringLiteral):
        return "has days or times: write them as text"
    if isinstance(kind, DateType) and not _DAY.fullmatch(str(literal.value)):
        return "has days: write them as in '2026-11-25'"
    value = literal.to(kind)
    too_long = isinstance(kind, DecimalType) and len(value.value.as_tuple().digits) > kind.precision
    # a condition with a value beyond the type is true or false, also for nulls
    return "can have no such value" if too_long or isinstance(value, AboveMax | BelowMin) else None


def _with_infinities(expression: BooleanExpression, schema: Schema) -> BooleanExpression:
    """Return the expression with `'inf'` as a number of single precision where the column has such.

    PyIceberg takes it for a value that no such column can have.
    """
    match expression:
        case And(left=left, right=right) | Or(left=left, right=right):
            return type(expression)(_with_infinities(left, schema), _with_infinities(right, schema))
        case Not(child=child):
            return Not(_with_infinities(child, schema))
        case LiteralPredicate(term=Reference(name=name) as term, literal=literal) if _is_single(schema, name):
            return type(expression)(term, _infinity(literal))
        case SetPredicate(term=Reference(name=name) as term, literals=literals) if _is_single(schema, name):
            return type(expression)(term, {_infinity(literal) for literal in literals})
    return expression


def _is_single(schema: Schema, name: str) -> bool:
    return name in index_by_name(schema) and isinstance(schema.find_type(name), FloatType)


def _infinity(literal: Literal[Any]) -> Literal[Any]:
    infinite = isinstance(literal, StringLiteral) and literal.value.lower().lstrip("+-") in _INFINITE
    return FloatLiteral(float(literal.value)) if infinite else literal


def _conditions(expression: BooleanExpression) -> Iterator[tuple[str, LiteralPredicate | SetPredicate]]:
    match expression:
        case And(left=left, right=right) | Or(left=left, right=right):
            yield from _conditions(left)
            yield from _conditions(right)
        case Not(child=child):
            yield from _conditions(child)
        case LiteralPredicate(term=Reference(name=name)) | SetPredicate(term=Reference(name=name)):
            yield name, expression


def _as_engines_do(expression: BooleanExpression) -> BooleanExpression:
    """Return the expression as Spark and DuckDB take it.

    NaN is above all numbers, no null is outside of a list, and zeros of both signs are in one that has any.
    """
    match expression:
        case And(left=left, right=right) | Or(left=left, right=right):
            return type(expression)(_as_engines_do(left), _as_engines_do(right))
        case BoundIn(term=term, literals=literals):
            zero = _zero(literals)
            return expression if zero is None else Or(expression, BoundEqualTo(term=term, literal=zero))
        case BoundNotIn(term=term, literals=literals):
            zero, present = _zero(literals), And(BoundNotNull(term=term), expression)
            return present if zero is None else And(present, BoundNotEqualTo(term=term, literal=zero))
        case BoundGreaterThan(term=term) | BoundGreaterThanOrEqual(term=term):
            numbers = isinstance(term.ref().field.field_type, FloatType | DoubleType)
            return Or(BoundIsNaN(term=term), expression) if numbers else expression
    return expression


def _names_nan(expression: BooleanExpression) -> bool:
    match expression:
        case And(left=left, right=right) | Or(left=left, right=right):
            return _names_nan(left) or _names_nan(right)
    return isinstance(expression, BoundIsNaN | BoundNotNaN)


def _require_single(text: str, expression: BooleanExpression) -> None:
    """Raise `UsageError` for numbers that single precision rounds: DuckDB rounds them before it compares, Spark not."""
    match expression:
        case And(left=left, right=right) | Or(left=left, right=right):
            _require_single(text, left)
            _require_single(text, right)
        case BoundLiteralPredicate() | BoundSetPredicate() if isinstance(
            expression.term.ref().field.field_type, FloatType
        ):
            literals = expression.literals if isinstance(expression, BoundSetPredicate) else {expression.literal}
            for value in (float(number.value) for number in literals):
                (single,) = struct.unpack("<f", struct.pack("<f", value))
                if single != value:
                    name = expression.term.ref().field.name
                    raise UsageError(
                        f"--where {text}: column {name} has single precision, and engines differ in what {value} is "
                        f"there: write {Decimal(repr(single)):f}"
                    )


def _zero(literals: Iterable[Literal[Any]]) -> Literal[Any] | None:
    """Return the zero of a list of floats, of which Arrow finds only those of the same sign."""
    floats = (literal for literal in literals if isinstance(literal, FloatLiteral | DoubleLiteral))
    return next((literal for literal in floats if literal.value == 0), None)


def _with_bytes(expression: BooleanExpression) -> BooleanExpression:
    """Return the expression with UUIDs as bytes, as Arrow compares no UUIDs."""
    match expression:
        case And(left=left, right=right) | Or(left=left, right=right):
            return type(expression)(_with_bytes(left), _with_bytes(right))
        case BoundPredicate(term=term) if isinstance(term.ref().field.field_type, UUIDType):
            field = term.ref().field.model_copy(update={"field_type": FixedType(16)})
            column = BoundReference(field, term.ref().accessor)
            if isinstance(expression, BoundLiteralPredicate):
                return type(expression)(column, FixedLiteral(expression.literal.value))
            if isinstance(expression, BoundSetPredicate):
                return type(expression)(column, {FixedLiteral(literal.value) for literal in expression.literals})
            return type(expression)(column)
    return expression


def _schema(fields: Sequence[Field]) -> Schema | None:
    """Return the fields as a schema of PyIceberg; None when it has no such type."""
    try:
        return Schema.model_validate({"type": "struct", "fields": list(fields)})
    except ValidationError:
        return None


def _without_others(expression: BooleanExpression, ids: frozenset[int]) -> BooleanExpression:
    match expression:
        case And(left=left, right=right):
            return And(_without_others(left, ids), _without_others(right, ids))
        case Or(left=left, right=right):
            return Or(_without_others(left, ids), _without_others(right, ids))
        case BoundPredicate(term=term) if term.ref().field.field_id not in ids:
            return AlwaysTrue()
    return expression
