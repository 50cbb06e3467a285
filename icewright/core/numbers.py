"""Whole numbers in properties and summaries: text that any writer of a table may have made as long as it likes."""

from __future__ import annotations

_DIGITS = 25  # of the largest number that a property may say before it simply means "as much as possible"


def whole_number(text: str) -> int | None:
    """Return a number in decimal digits, else None; more digits than any such number has mean the largest.

    Python refuses to read thousands of digits.
    """
    if not text.strip().isdecimal():
        return None
    digits = text.strip().lstrip("0")
    return 10**_DIGITS if len(digits) > _DIGITS else int(digits or "0")


def number_or(default: int, text: str) -> int:
    """Return a whole number, else the default."""
    number = whole_number(text)
    return default if number is None else number


def positive_number(text: str) -> int:
    """Return a whole number above 0, else 0."""
    return whole_number(text) or 0
