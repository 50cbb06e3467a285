"""When a layout is applied, kept and taken back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from icewright.core.layout import (
    AppliedLayout,
    FileSizes,
    LayoutReport,
    LayoutRule,
    LayoutTrial,
    LayoutVerdict,
    Measurement,
    RowLayout,
)
from icewright.core.policy import MEGABYTE
from icewright.core.table import TableRef
from icewright.testing import NOW

BEST = RowLayout(("host",))
SORTED = {"compact.strategy": "sort", "compact.sort_order": "host"}
OTHER = {"compact.strategy": "sort", "compact.sort_order": "day"}
APPLY, KEEP, TAKE_BACK, _ = LayoutVerdict
TABLE = TableRef("lake", ("sales",), "visits")


def applied(settings: Mapping[str, Any] = SORTED, *, before: float = 0.8, days: float = 8, written: bool = True) -> Any:
    """A layout that was applied so many days ago."""
    return AppliedLayout(NOW - timedelta(days=days), settings, before, written)


@pytest.mark.parametrize(
    ("reads", "best", "known", "verdict", "words"),
    [
        pytest.param(800, 100, {}, APPLY, "80% of all bytes, 10% by sort by host, which pays in 3.0 days", id="pays"),
        pytest.param(800, 700, {}, KEEP, "pays in 20.0 days; allowed are 10", id="pays-too-late"),
        pytest.param(800, 750, {}, KEEP, "no other layout is clearly better", id="within-error"),
        pytest.param(800, 100, {"runs": 0}, KEEP, "nobody knows how often they run", id="unknown-rate"),
        pytest.param(800, 100, {"tried": [SORTED]}, KEEP, "was applied before and is not again", id="once-only"),
        pytest.param(800, 100, {"chosen": "a person"}, KEEP, "a person: that stays", id="a-person-s"),
        pytest.param(100, 90, {"applied": applied()}, KEEP, "10% of all bytes, 80% before 20", id="helps"),
        pytest.param(750, 90, {"applied": applied()}, TAKE_BACK, "does not help", id="does-not-help"),
        pytest.param(750, 90, {"applied": applied(days=6)}, KEEP, "judged from", id="watched"),
        pytest.param(750, 90, {"applied": applied(written=False)}, KEEP, "no compaction", id="not-written-yet"),
        pytest.param(300, 90, {"applied": applied()}, KEEP, "no other layout", id="partly-written"),
        pytest.param(
            *(100, 90, {"applied": replace(applied(written=False), unknown=("host",))}, TAKE_BACK),
            "the table has no column host any more",
            id="its-column-went",
        ),
        pytest.param(
            800,
            100,
            {"measured": (900, 400)},
            APPLY,
            "80% of all bytes; Spark read 90% of a sample, 40% by sort by host, which pays in 4.0 days",
            id="measured",
        ),
        pytest.param(800, 100, {"measured": (900, 880)}, KEEP, "is clearly better, as Spark measured", id="no-better"),
        pytest.param(
            750,
            90,
            {"applied": applied(), "measured": (900, 90)},
            TAKE_BACK,
            "read 75% of all bytes",
            id="watched-as-before",
        ),
        pytest.param(300, 30, {"applied": applied(OTHER)}, APPLY, "30% of all bytes", id="other-queries"),
        pytest.param(
            100, 90, {"applied": applied(), "chosen": "an order"}, TAKE_BACK, "an order: that", id="overruled"
        ),
    ],
)
def test_what_is_done_about_a_layout(
    reads: int, best: int, known: Mapping[str, Any], verdict: LayoutVerdict, words: str
) -> None:
    """A layout is applied that pays in time, and taken back when it does not help or a person has chosen another."""
    figures = tuple(Measurement(read, 1.0) for read in known.get("measured", ())) or (None, None)
    trials = (LayoutTrial(None, reads, figures[0]), LayoutTrial(BEST, best, figures[1]))
    report = LayoutReport(TABLE, 1, 1000, 50, trials)
    rule = LayoutRule(known.get("runs", 1), 10, timedelta(days=7))
    found = rule.decide(report, known.get("applied"), known.get("tried", ()), known.get("chosen", ""), NOW)
    assert (found.verdict, words in found.reason) == (verdict, True), found


@pytest.mark.parametrize(("read", "filtered"), [(40, True), (46, False)])
def test_bloom_filters_have_to_pay(read: int, filtered: bool) -> None:
    """They take time and room: of two layouts that read about the same, the one without is set."""
    plain = RowLayout(("day",))
    with_blooms = replace(plain, blooms=("customer", "id"))
    trials = [
        LayoutTrial(layout, predicted, Measurement(found, 1.0))
        for layout, predicted, found in [(None, 100, 100), (plain, 60, 50), (with_blooms, 60, read)]
    ]
    report = LayoutReport(TABLE, 1, 100, 1000, tuple(trials))
    assert report.promising == (plain, with_blooms)
    best = report.measured or report
    assert (best.settings.get("compact.bloom_filters") == "customer, id") is filtered
    assert best.settings["compact.sort_order"] == "day"
    assert report.settings == {"compact.strategy": "sort", "compact.sort_order": "day"}


@pytest.mark.parametrize(
    ("mb", "steps", "smaller"),
    [
        pytest.param(512, (), (128, 32), id="default"),
        pytest.param(64, (), (16,), id="no-file-that-opens-longer-than-it-reads"),
        pytest.param(16, (), (), id="small-already"),
        pytest.param(512, ((0, 128), (1024, 256)), (), id="by-partition"),
    ],
)
def test_which_sizes_of_files_are_tried(mb: int, steps: tuple[tuple[int, int], ...], smaller: tuple[int, ...]) -> None:
    """A quarter and a sixteenth of the target, where opening such a file is half of reading it at most."""
    sizes = FileSizes(mb * MEGABYTE, steps)
    assert sizes.smaller == tuple(one * MEGABYTE for one in smaller)
    assert [sizes.of(size) for size in (0, 1024)] == ([128, 256] if steps else [mb * MEGABYTE] * 2)


@pytest.mark.parametrize(
    ("in_small", "set_to", "measured"),
    [
        pytest.param(20, 128.0, (BEST, replace(BEST, target=128 * MEGABYTE)), id="pays"),
        pytest.param(44, None, (BEST,), id="opening-takes-more"),  # 10 % fewer bytes, but four times the files
    ],
)
def test_smaller_files_have_to_pay_for_opening_them(
    in_small: int, set_to: float | None, measured: tuple[RowLayout, ...]
) -> None:
    """Bytes alone would always prefer small files: each opened file counts as reading 4 MB."""
    small = replace(BEST, target=128 * MEGABYTE)
    trials = [(None, 100, 4 / 512), (BEST, 50, 4 / 512), (small, in_small, 4 / 128)]
    report = LayoutReport(TABLE, 1, 100, 9, tuple(LayoutTrial(one, read, None, open_) for one, read, open_ in trials))
    assert report.promising == measured
    assert report.settings == SORTED | ({} if set_to is None else {"compact.target_file_size_mb": set_to})
    assert str(small) == "sort by host, files of 128.0 MB"
    assert report.runs_to_pay == (3 if set_to else 4)


@pytest.mark.parametrize(("read", "encoded"), [(44, True), (46, False)])
def test_dictionaries_have_to_pay(read: int, encoded: bool) -> None:
    """A reader holds one for each column: they are set where they save a tenth."""
    trials = [(None, 100), (BEST, 50), (replace(BEST, dictionaries=("id", "day")), read)]
    report = LayoutReport(TABLE, 1, 100, 9, tuple(LayoutTrial(one, found) for one, found in trials))
    assert report.settings == SORTED | ({"compact.dictionaries": "id, day"} if encoded else {})


def test_names_of_columns_are_quoted_where_they_have_to_be() -> None:
    """The order is text that Spark parses."""
    trials = (LayoutTrial(None, 9), LayoutTrial(RowLayout(("host", "a, b.c")), 1))
    report = LayoutReport(TABLE, 1, 9, 9, trials)
    assert report.settings["compact.sort_order"] == "host, `a, b.c`"
