"""Words of messages: numbers with their nouns, and names that were probably meant."""

from __future__ import annotations

import pytest

from icewright.core.words import count, figure, first_line, near, some


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


@pytest.mark.parametrize(
    ("value", "text"),
    [(12_345.6, "12346"), (3.0, "3"), (3.14159, "3.142"), (0.00003508311, "0.00003508"), (-0.5, "-0.5")],
)
def test_figures_have_no_power_of_ten(value: float, text: str) -> None:
    """Four digits of a fraction, however small it is."""
    assert figure(value) == text


def test_many_items_are_counted() -> None:
    """The first of them are named."""
    assert some([1, 2, 3]) == "1, 2, 3"
    assert some(range(2000), 2) == "0, 1 and 1,998 more"


@pytest.mark.parametrize(
    ("message", "line"), [("\nno such host\n  at x", "no such host"), (" ", "ValueError"), ("", "ValueError")]
)
def test_an_error_is_told_in_one_line(message: str, line: str) -> None:
    """The class stands for an error without a message, as drivers of databases raise them."""
    assert first_line(ValueError(message)) == line


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("clicks", "; did you mean lake.web.clicks?"),
        ("web.clicks", "; did you mean lake.web.clicks?"),
        ("lake.web.click", "; did you mean lake.web.clicks?"),
        ("none", "; known are lake.web.clicks_by_day, lake.web.clicks"),
    ],
)
def test_a_name_that_is_unknown_has_a_hint(name: str, hint: str) -> None:
    """A name that ends so goes before one that looks alike."""
    assert near(name, ["lake.web.clicks_by_day", "lake.web.clicks"]) == hint


def test_a_beginning_with_a_slip_has_a_hint() -> None:
    """The start of a long name goes before a name that is only as long, and what is hardly alike is no hint."""
    knobs = ["compact.strategy", "compact.target_file_size_mb"]
    assert near("compact.targt", knobs) == "; did you mean compact.target_file_size_mb?"
    assert near("prod.nope.x", ["prod.web.ads"], listed=False) == ""
