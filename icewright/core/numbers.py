"""Whole numbers in properties and summaries: text that any writer of a table may have made as long as it likes."""

from __future__ import annotations

_COUNT_DIGITS = 20  # more than of any number that Iceberg counts
_DIGITS = 25  # of the largest number that a property may say before it simply means "as much as possible"


def whole_number(text: str) -> int | None:
    """Return a number in decimal digits, else None; more digits than any such number has mean the largest.

    Python refuses to read thousands of digits.
    """
    if not text.strip().isdecimal():
        return None
    digits = text.strip().lstrip("0")
    return 10**_DIGITS if len(digits) > _DIGITS else int(digits or "0")


def count_in(text: str) -> int | None:
    """Return a count in decimal digits as writers state it in summaries, else None; no count has more digits either."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) < _COUNT_DIGITS else None


def number_or(default: int, text: str) -> int:
    """Return a whole number, else the default."""
    number = whole_number(text)
    return default if number is None else number


def positive_number(text: str) -> int:
    """Return a whole number above 0, else 0."""
    return whole_number(text) or 0
