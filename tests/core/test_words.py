"""Numbers with their nouns."""

from __future__ import annotations

import pytest

from icewright.core.words import count


@pytest.mark.parametrize(
    ("number", "noun", "text"),
    [
        (0, "file", "0 files"),
        (1, "file", "1 file"),
        (1197, "unreferenced file", "1,197 unreferenced files"),
        (2, "branch", "2 branches"),
        (2, "process", "2 processes"),
        (2, "entry", "2 entries"),
        (2, "day", "2 days"),
    ],
)
def test_a_noun_follows_its_number(number: int, noun: str, text: str) -> None:
    """The noun is in the plural unless the number is one."""
    assert count(number, noun) == text
