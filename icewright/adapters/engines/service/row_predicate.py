"""A predicate over rows, bound to the columns that a table has or had, and counted in Arrow batches."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pydantic import ValidationError
from pyiceberg.conversions import from_bytes
from pyiceberg.expressions import AlwaysTrue, And, BooleanExpression, BoundPredicate, Or
from pyiceberg.expressions.parser import parse
from pyiceberg.expressions.visitors import bind, extract_field_ids, rewrite_not
from pyiceberg.io.pyarrow import expression_to_pyarrow
from pyiceberg.schema import Schema, index_by_id
from pyiceberg.types import PrimitiveType, UUIDType
from pyparsing import ParseException

from icewright.adapters.engines.arrow.types import Field, arrow_schema
from icewright.core.errors import UsageError
from icewright.core.words import near

_EXAMPLE = "write it as in email = 'a@b.org' and id in (1, 2)"


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
                    known[field["name"]] = {**field, "required": False}
        usable = {field["id"]: (field, one) for field in known.values() if (one := _schema([field])) is not None}
        every = _schema([field for field, _ in usable.values()]) or Schema()
        try:
            bound = rewrite_not(bind(every, parse(text), case_sensitive=True))
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
        fields = tuple(field for field, one in usable.values() if not ids.isdisjoint(index_by_id(one)))
        columns = {every.find_column_name(number) or "": number for number in sorted(ids)}
        return RowPredicate(text, fields, columns, _schema(fields) or every, bound)

    def count(self, columns: Sequence[pa.Array], only: frozenset[int] | None = None) -> int:
        """Return how many rows match. With `only`, conditions on columns with other ids count as met."""
        bound = self.bound if only is None else _without_others(self.bound, only)
        batch = pa.RecordBatch.from_arrays(list(columns), schema=arrow_schema(self.fields))
        if isinstance(bound, AlwaysTrue):
            return len(batch)
        expression: pc.Expression = expression_to_pyarrow(bound, self.schema)
        return len(pa.Table.from_batches([batch]).filter(expression))

    def matches_bounds(self, lower: Mapping[int, bytes], upper: Mapping[int, bytes]) -> bool:
        """Return whether values that bounds spell out match; conditions on columns without bounds count as met."""
        spelt = {
            field.field_id: {_value(field.field_type, bounds[field.field_id]) for bounds in (lower, upper)}
            for field in self.schema.fields
            if isinstance(field.field_type, PrimitiveType) and field.field_id in lower and field.field_id in upper
        }
        only = frozenset(spelt).intersection(self.columns.values())
        if not only:
            return False
        rows = list(product(*spelt.values()))
        values = dict(zip(spelt, zip(*rows, strict=True), strict=True))
        types = [field.type for field in arrow_schema(self.fields)]
        nothing = [None] * len(rows)
        columns = [
            pa.array(values.get(field["id"], nothing), kind) for field, kind in zip(self.fields, types, strict=True)
        ]
        return self.count(columns, only) > 0


def _value(kind: PrimitiveType, bound: bytes) -> Any:  # noqa: ANN401 - of the column
    return bound if isinstance(kind, UUIDType) else from_bytes(kind, bound)


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
