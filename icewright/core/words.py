"""Words for messages about wrong values: the kind of a value, and the name that was probably meant."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches


def kind(value: object) -> str:
    """Return the kind of a value in words, such as `a number`."""
    match value:
        case None:
            return "nothing"
        case bool():
            return "a truth value"
        case int() | float():
            return "a number"
        case str():
            return "text"
        case list():
            return "a list"
        case dict():
            return "a mapping"
    return type(value).__name__


def near(name: str, known: Sequence[str]) -> str:
    """Return a hint at the name that was probably meant."""
    alike = get_close_matches(name, known, 1)
    return f"; did you mean {alike[0]}?" if alike else f"; known are {', '.join(known)}" if known else ""


def count(number: int, noun: str) -> str:
    """Return a number with its noun, in the plural unless the number is one."""
    plural = f"{noun}es" if noun.endswith(("ch", "ss")) else f"{noun[:-1]}ies" if noun.endswith("ry") else f"{noun}s"
    return f"{number:,} {noun if number == 1 else plural}"
