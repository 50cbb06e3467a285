"""Rules as people write them: checked, with every fault at once."""

from __future__ import annotations

import pytest

from icewright.core.errors import ConfigError, UsageError
from icewright.core.guardrails import Bound, parse_guardrail
from icewright.core.layering import parse_pattern, parse_settings

GUARD = Bound("remove_orphans.older_than_hours", at_least=True, bound=48)


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("lake", ("lake",)),
        ("lake.events-*", ("lake", "events-*")),
        ("lake.`a.b`.c", ("lake", "a.b", "c")),
        ("`la``ke`", ("la`ke",)),
        ("lake.a[0]", ("lake", "a[0]")),
    ],
)
def test_patterns_are_read(text: str, parts: tuple[str, ...]) -> None:
    """A pattern is a name of one part or more, quoted as names are."""
    assert parse_pattern(text) == parts


@pytest.mark.parametrize("text", ["", ".", "lake.", ".lake", "a..b", "`a", "`a`b", "a`b`"])
def test_what_is_no_pattern_is_refused(text: str) -> None:
    """The refusal shows the text and how to write one."""
    with pytest.raises(UsageError, match="names no catalog, namespace or table: write catalog"):
        parse_pattern(text)


def test_settings_are_read() -> None:
    """Values come out as the knobs' types."""
    raw = {"compact.min_input_files": "3", "compact.enabled": "false", "remove_orphans.older_than_hours": 48}
    assert parse_settings("policy[0].set", raw, [GUARD]) == {
        "compact.min_input_files": 3,
        "compact.enabled": False,
        "remove_orphans.older_than_hours": 48,
    }


def test_every_fault_is_said_at_once() -> None:
    """Unknown knobs, wrong values and passed guardrails are all listed, each under its key path."""
    raw = {
        "compact.min_input_file": 5,
        "colour": "red",
        "compact.strategy": "random",
        "remove_orphans.older_than_hours": 24,
        "importance": "high",
        7: 1,
    }
    with pytest.raises(ConfigError) as refused:
        parse_settings("policy[2].set", raw, [GUARD])
    assert refused.value.faults == (
        "policy[2].set.compact.min_input_file: there is no such knob; did you mean compact.min_input_files?",
        "policy[2].set.colour: there is no such knob",
        "policy[2].set.compact.strategy: 'random' is not one of binpack, sort, zorder",
        "policy[2].set.remove_orphans.older_than_hours: 24 passes the guardrail remove_orphans.older_than_hours >= 48",
        "policy[2].set.7: there is no such knob",
    )


@pytest.mark.parametrize("raw", [None, [], "compact", 5])
def test_settings_must_be_a_mapping(raw: object) -> None:
    """Anything else is one fault that shows what is expected."""
    with pytest.raises(ConfigError, match="set: expected knobs and their values"):
        parse_settings("set", raw)


@pytest.mark.parametrize(
    ("guardrail", "value", "said"),
    [
        ("remove_orphans.mode in report, confirm", "delete", "'delete' passes the guardrail"),
        ("compact.enabled = true", "false", "False passes the guardrail"),
        ("impact.probe = unset", "select 1 from {table}", "passes the guardrail"),
        ("remove_orphans.every_hours >= 168", "auto", "'auto' passes the guardrail"),
        ("properties.allow = unset", "importance", "'importance' passes the guardrail"),
    ],
)
@pytest.mark.cases(151)
def test_a_setting_that_passes_a_guardrail_is_refused(guardrail: str, value: object, said: str) -> None:
    """Choices, flags, texts and words for a range are bounded as numbers are, and the fault names the guardrail."""
    with pytest.raises(ConfigError) as refused:
        parse_settings("set", {guardrail.split(maxsplit=1)[0]: value}, [parse_guardrail("guardrails[0]", guardrail)])
    assert said in refused.value.faults[0]
    assert refused.value.faults[0].endswith(guardrail)


def test_a_setting_that_keeps_to_a_guardrail_is_taken() -> None:
    """What is among the values may be set, also when it says what holds anyway."""
    guards = [parse_guardrail("g", text) for text in ("remove_orphans.mode in report, confirm", "impact.probe = unset")]
    raw = {"remove_orphans.mode": "confirm", "impact.probe": None}
    assert parse_settings("set", raw, guards) == raw
