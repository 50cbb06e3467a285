"""Guardrails as people write them, and what they let pass."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from icewright.core.errors import ConfigError
from icewright.core.guardrails import Bound, Guardrail, Values, parse_guardrail, parse_guardrails

HOURS = "expire_snapshots.retention_hours"
PROBE = "select count(*) from {table} where a in (1, 2)"


@pytest.mark.parametrize(
    ("text", "guardrail"),
    [
        ("remove_orphans.older_than_hours >= 48", Bound("remove_orphans.older_than_hours", at_least=True, bound=48)),
        (" remove_orphans.older_than_hours>=48 ", Bound("remove_orphans.older_than_hours", at_least=True, bound=48)),
        ("compact.hot_minutes <= 0.5", Bound("compact.hot_minutes", at_least=False, bound=0.5)),
        ("compact.delete_ratio_threshold >= 0.00001", Bound("compact.delete_ratio_threshold", True, 1e-05)),
        ("compact.max_file_group_size_mb <= 123456789", Bound("compact.max_file_group_size_mb", False, 123456789)),
        ("remove_orphans.mode in report, confirm", Values("remove_orphans.mode", ("report", "confirm"))),
        ("remove_orphans.mode  in  report,confirm", Values("remove_orphans.mode", ("report", "confirm"))),
        ("remove_orphans.mode in report", Values("remove_orphans.mode", ("report",))),
        ("remove_orphans.mode = report", Values("remove_orphans.mode", ("report",))),
        ("compact.enabled = true", Values("compact.enabled", (True,))),
        ("compact.enabled=False", Values("compact.enabled", (False,))),
        ("impact.probe = unset", Values("impact.probe", (None,))),
        (f"impact.probe = {PROBE}", Values("impact.probe", (PROBE,))),
        ("windows = mon-fri 22:00-06:00; sat,sun", Values("windows", ("mon-fri 22:00-06:00; sat,sun",))),
        ("remove_orphans.equal_authorities = unset", Values("remove_orphans.equal_authorities", ({},))),
        (
            "remove_orphans.equal_schemes = s3a=s3,oss=s3",
            Values("remove_orphans.equal_schemes", ({"s3a": "s3", "oss": "s3"},)),
        ),
        ("remove_orphans.every_hours = auto", Values("remove_orphans.every_hours", ("auto",))),
        ("execute.retry_limit = 1", Values("execute.retry_limit", (1,))),
        ("expire_snapshots.max_ref_age_hours = unset", Values("expire_snapshots.max_ref_age_hours", (None,))),
        ("expire_snapshots.retention_hours = 0.1e3", Values(HOURS, (100.0,))),
    ],
)
def test_guardrails_are_read(text: str, guardrail: Guardrail) -> None:
    """A guardrail is a knob, a sign and what the knob may be, and prints as it can be written."""
    assert parse_guardrail("guardrails[0]", text) == guardrail
    assert parse_guardrail("guardrails[0]", str(guardrail)) == guardrail


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("expire_snapshots.retention_hours > 24", "is no guardrail; write one as"),
        ("expire_snapshots.retention_hours >= a day", "is no guardrail; write one as"),
        ("expire_snapshots.retention_hours >= 1.2.3", "is no guardrail; write one as"),
        ("expire_snapshots.retention_hours >= .", "is no guardrail; write one as"),
        ("expire_snapshots.retention_hours >= 9999999999999999", "is no guardrail; write one as"),
        ("expire_snapshots.retention_hours => 24", "is no guardrail; write one as"),
        ("impact.probe == unset", "is no guardrail; write one as"),
        ("impact.probe =", "is no guardrail; write one as"),
        ("remove_orphans.modein report", "is no guardrail; write one as"),
        (24, "24 is no guardrail; write one as"),
        (None, "None is no guardrail; write one as"),
        ("expire_snapshots.retention_hour >= 24", "did you mean expire_snapshots.retention_hours?"),
        ("order >= 24", "order is no number: write `order in canonical, seaweedfs`"),
        ("compact.enabled <= 1", "compact.enabled is no number: write `compact.enabled = true`"),
        ("impact.probe >= 1", "impact.probe is no number: write `impact.probe = unset`"),
        ("remove_orphans.mode in report, remove", "'remove' is not one of report, confirm, delete"),
        ("remove_orphans.mode in report,", "'' is not one of report, confirm, delete"),
        ("remove_orphans.mode = unset", "'unset' is not one of report, confirm, delete"),
        ("compact.enabled = maybe", "'maybe' is not true or false"),
        ("compact.enabled in true", "compact.enabled is no choice: write `compact.enabled = true`"),
        ("impact.probe in a, b", "impact.probe is no choice: write `impact.probe = unset`"),
        ("execute.retry_limit in 1, 2", "execute.retry_limit is no choice: write `execute.retry_limit >= number`"),
        ("impact.probe = select 1", "does not name the table"),
        ("windows = always", "'always'"),
        ("execute.retry_limit = 99", "99' is not a whole number from 0 to 10"),
        ("remove_orphans.older_than_hours <= 12", "remove_orphans.older_than_hours is at least 24"),
        ("compact.delete_ratio_threshold >= 2", "compact.delete_ratio_threshold is at most 1"),
        ("properties.allow = no_such.*", "names no knob"),
    ],
)
def test_what_is_no_guardrail_is_refused(text: object, fault: str) -> None:
    """The refusal has the key path and says what is wrong with the text and what would be right."""
    with pytest.raises(ConfigError) as refused:
        parse_guardrail("guardrails[0]", text)
    assert len(refused.value.faults) == 1
    assert refused.value.faults[0].startswith("guardrails[0]: ")
    assert fault in refused.value.faults[0]


def test_an_unknown_knob_that_resembles_none_is_only_named() -> None:
    """A suggestion stands where there is one."""
    with pytest.raises(ConfigError) as refused:
        parse_guardrail("guardrails[0]", "zzz >= 24")
    assert refused.value.faults == ("guardrails[0]: there is no knob zzz",)


@pytest.mark.parametrize(
    "text",
    [
        "remove_orphans.older_than_hours >= 1",
        "compact.delete_ratio_threshold <= 2",
        "compact.delete_ratio_threshold >= 1",
    ],
)
def test_a_guardrail_may_bound_what_the_knob_bounds_already(text: str) -> None:
    """Only a guardrail that leaves the knob no value is refused."""
    assert str(parse_guardrail("guardrails[0]", text)) == text


@pytest.mark.parametrize(
    ("text", "value", "expected"),
    [
        ("remove_orphans.mode in report, confirm", "delete", "report"),
        ("remove_orphans.mode in confirm, report", "delete", "confirm"),
        ("remove_orphans.mode in report, confirm", "confirm", "confirm"),
        ("compact.enabled = true", False, True),
        ("compact.enabled = true", True, True),
        ("impact.probe = unset", PROBE, None),
        ("impact.probe = unset", None, None),
        ("execute.retry_limit = 1", 5, 1),
        ("remove_orphans.every_hours >= 24", "auto", "auto"),
        ("remove_orphans.every_hours >= 168", "auto", 168),
        ("remove_orphans.every_hours <= 720", "auto", 720),
        ("remove_orphans.every_hours <= 720", 168, 168),
        ("remove_orphans.every_hours >= 24", 12, 24),
        ("compact.target_file_size_mb <= 512", "auto", 512),
        ("compact.target_file_size_mb <= 1024", "auto", "auto"),
        ("compact.target_file_size_mb >= 128.5", "auto", 128.5),
    ],
)
@pytest.mark.cases(151)
def test_what_passes_a_guardrail_is_replaced(text: str, value: object, expected: object) -> None:
    """By the bound or the first of the values; a word that stands for a range of numbers must lie within the bound."""
    assert parse_guardrail("guardrails[0]", text).apply(value) == expected


@pytest.mark.parametrize(
    "raw",
    [
        ["remove_orphans.mode in report, confirm", "remove_orphans.mode in delete, confirm"],
        ["compact.enabled = true", "compact.enabled = false"],
        [f"{HOURS} >= 48", f"{HOURS} = 24"],
        [f"{HOURS} >= 48", f"{HOURS} <= 24"],
        ["compact.min_input_files >= 4.1", "compact.min_input_files <= 4.9"],
    ],
)
def test_guardrails_that_cannot_hold_together_are_refused(raw: Sequence[str]) -> None:
    """Which of them would win is nothing that anybody said."""
    _, faults = parse_guardrails(raw)
    (fault,) = faults
    assert all(text in fault for text in raw)
    assert "cannot hold together" in fault


def test_guardrails_that_hold_together_are_taken() -> None:
    """Several bounds of one knob leave a range; every fault of a list is said at once."""
    found, faults = parse_guardrails([f"{HOURS} >= 24", f"{HOURS} >= 48", f"{HOURS} <= 48", "zzz = 1", "order >= 1"])
    assert [str(guardrail) for guardrail in found] == [f"{HOURS} >= 24", f"{HOURS} >= 48", f"{HOURS} <= 48"]
    assert [fault.partition(": ")[0] for fault in faults] == ["guardrails[3]", "guardrails[4]"]


@pytest.mark.parametrize(
    "raw",
    [
        ["compact.enabled = true"],
        [f"{HOURS} <= 24", f"{HOURS} <= 48"],
        [f"{HOURS} >= 24", "compact.hot_minutes <= 5"],
        [f"{HOURS} >= 24", "compact.enabled = true"],
    ],
)
def test_guardrails_of_one_side_or_of_several_knobs_hold_together(raw: Sequence[str]) -> None:
    """One knob's bounds say nothing about another's, and two of one side are as good as the narrower one."""
    found, faults = parse_guardrails(raw)
    assert ([str(guardrail) for guardrail in found], faults) == (raw, [])


@pytest.mark.parametrize(("raw", "count"), [(None, 0), ([], 0), ({"a": 1}, 1), ("text", 1)])
def test_guardrails_are_a_list(raw: Any, count: int) -> None:
    """Nothing is no guardrail, and anything else than a list is one fault."""
    assert (parse_guardrails(raw)[0], len(parse_guardrails(raw)[1])) == ((), count)


def test_a_list_that_is_none_is_called_what_it_is() -> None:
    """The fault says what was given."""
    assert parse_guardrails({"a": 1})[1] == ["guardrails: a mapping given; write a list of bounds such as 'knob >= 24'"]
