"""Sort orders and z-orders as texts: what Spark's procedure takes."""

from __future__ import annotations

import re
from dataclasses import dataclass

_ZORDER = re.compile(r"zorder\s*\((.*)\)", re.IGNORECASE | re.DOTALL)
_COLUMN = re.compile(r"\s*((?:`(?:[^`]|``)+`|[^\s,()`.]+)(?:\.(?:`(?:[^`]|``)+`|[^\s,()`.]+))*)([^,]*)(,|$)")
_PART = re.compile(r"`((?:[^`]|``)+)`|([^`.]+)")
_DIRECTION = re.compile(r"\s*(asc|desc)?\s*(?:nulls\s+(first|last))?\s*", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class OrderColumn:
    """A column of an order; nulls come first where it ascends, unless it is said otherwise."""

    name: str
    descending: bool = False
    nulls_last: bool = False


@dataclass(frozen=True, slots=True)
class Ordering:
    """The columns of an order up to the first that is no plain column, such as `bucket(4, id)`."""

    columns: tuple[OrderColumn, ...]
    zorder: bool
    whole: bool  # all of it is plain columns

    @classmethod
    def parse(cls, text: str) -> Ordering:
        """Read `id DESC, ts` or `zorder(a, b)`."""
        zorder = _ZORDER.fullmatch(text.strip())
        listed = zorder[1] if zorder else text
        columns: list[OrderColumn] = []
        position = 0
        while position < len(listed):
            match = _COLUMN.match(listed, position)
            direction = _DIRECTION.fullmatch(match[2]) if match else None
            if match is None or direction is None:
                return cls(tuple(columns), zorder is not None, whole=False)
            name = ".".join((quoted or plain).replace("``", "`") for quoted, plain in _PART.findall(match[1]))
            descending = (direction[1] or "").lower() == "desc"
            last = direction[2].lower() == "last" if direction[2] else descending
            columns.append(OrderColumn(name, descending, last))
            position = match.end()
            if not match[3]:
                break
        return cls(tuple(columns), zorder is not None, whole=bool(columns))
