"""Results of the library as rows: for Python, Arrow, Polars and notebooks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields, is_dataclass
from datetime import datetime
from html import escape
from types import NoneType
from typing import TYPE_CHECKING, Any, Generic, TypeVar, get_args, get_origin, get_type_hints, overload

from icewright.core.errors import requires_extra
from icewright.core.words import one_line, some

if TYPE_CHECKING:
    import polars as pl
    import pyarrow as pa

Row = TypeVar("Row")
_SHOWN = 100  # rows that a notebook shows
_LISTED = 20  # entries of a mapping in one cell
_PRINTED = 3  # rows that a console shows


class Rows(Sequence[Row], Generic[Row]):
    """Dataclasses of one kind, as a list, an Arrow table, a Polars frame, or a table in a notebook."""

    def __init__(self, kind: type[Row], rows: Sequence[Row]) -> None:
        self._kind, self._rows = kind, tuple(rows)

    @overload
    def __getitem__(self, index: int) -> Row: ...
    @overload
    def __getitem__(self, index: slice) -> Rows[Row]: ...
    def __getitem__(self, index: int | slice) -> Row | Rows[Row]:
        return Rows(self._kind, self._rows[index]) if isinstance(index, slice) else self._rows[index]

    def __len__(self) -> int:
        return len(self._rows)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Rows) and (self._kind, self._rows) == (other._kind, other._rows)

    def __hash__(self) -> int:
        return hash(self._rows)

    def __repr__(self) -> str:
        first, more = ", ".join(map(repr, self._rows[:_PRINTED])), len(self) - _PRINTED
        return f"Rows({len(self):,} {self._kind.__name__}: [{first}{f', and {more:,} more' if more > 0 else ''}])"

    def to_dicts(self) -> list[dict[str, Any]]:
        """Return the rows as dictionaries by field name."""
        return [asdict(row) for row in self._rows]  # type: ignore[call-overload]

    def to_arrow(self) -> pa.Table:
        """Return the rows as an Arrow table with a column for each field, whose type no row changes."""
        with requires_extra("engine", "to_arrow()"):
            import pyarrow as pa  # noqa: PLC0415 - takes long to load

        return pa.Table.from_pylist(self.to_dicts(), schema=pa.schema(_arrow_type(self._kind).fields))

    def to_polars(self) -> pl.DataFrame:
        """Return the rows as a Polars frame with a column for each field, whose type no row changes."""
        with requires_extra("engine", "to_polars()"):
            import polars as pl  # noqa: PLC0415 - takes long to load

        return pl.DataFrame(self.to_arrow())

    def _repr_html_(self) -> str:
        head = "".join(f"<th>{escape(column.name)}</th>" for column in fields(self._kind))  # type: ignore[arg-type]
        body = "".join(
            f"<tr>{''.join(f'<td>{as_html(_cell(value))}</td>' for value in row.values())}</tr>"
            for row in self[:_SHOWN].to_dicts()
        )
        more = f"<p>and {len(self) - _SHOWN:,} more rows</p>" if len(self) > _SHOWN else ""
        return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{more}"


def as_html(text: str) -> str:
    """Return a text as HTML, what nobody sees as escapes: with it a name looks like another."""
    return escape(one_line(text))


def _arrow_type(hint: Any) -> pa.DataType:  # noqa: ANN401 - a type, or what stands for one in an annotation
    """Return the Arrow type of a field by its annotation."""
    import pyarrow as pa  # noqa: PLC0415 - takes long to load

    if is_dataclass(hint):
        return pa.struct([(name, _arrow_type(field_hint)) for name, field_hint in get_type_hints(hint).items()])
    inner = [argument for argument in get_args(hint) if argument not in (NoneType, Ellipsis)]
    if get_origin(hint) is tuple:
        return pa.list_(_arrow_type(inner[0]))
    if get_origin(hint) is Mapping:
        return pa.map_(*map(_arrow_type, inner))
    if inner:  # it may be None
        return _arrow_type(inner[0])
    return {int: pa.int64(), float: pa.float64(), datetime: pa.timestamp("us", "UTC")}.get(hint, pa.string())


def _cell(value: object) -> str:
    match value:
        case None:
            return ""
        case list() | tuple():
            return some(value)
        case dict():
            return some([f"{name}: {_cell(item)}" for name, item in value.items()], _LISTED)
        case datetime():
            return f"{value:%Y-%m-%d %H:%M:%S}"
    return str(value)
