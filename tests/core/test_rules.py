"""Rules as people write them: checked, with every fault at once."""

from __future__ import annotations

import pytest

from icewright.core.errors import ConfigError, UsageError
from icewright.core.layering import Guardrail, parse_guardrail, parse_pattern, parse_settings

GUARD = Guardrail("remove_orphans.older_than_hours", at_least=True, bound=48)


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
    ("text", "guardrail"),
    [
        ("remove_orphans.older_than_hours >= 48", GUARD),
        (" remove_orphans.older_than_hours>=48 ", GUARD),
        ("compact.hot_minutes <= 0.5", Guardrail("compact.hot_minutes", at_least=False, bound=0.5)),
    ],
)
def test_guardrails_are_read(text: str, guardrail: Guardrail) -> None:
    """A guardrail is a knob, a sign and a number, and prints as it is written."""
    assert parse_guardrail("guardrails[0]", text) == guardrail
    assert parse_guardrail("guardrails[0]", str(guardrail)) == guardrail


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("expire_snapshots.retention_hours > 24", "is no guardrail; write one as"),
        ("expire_snapshots.retention_hours >= a day", "is no guardrail; write one as"),
        ("expire_snapshots.retention_hours >= 1.2.3", "is no guardrail; write one as"),
        ("expire_snapshots.retention_hours >= .", "is no guardrail; write one as"),
        (24, "24 is no guardrail; write one as"),
        (None, "None is no guardrail; write one as"),
        ("expire_snapshots.retention_hour >= 24", "did you mean expire_snapshots.retention_hours?"),
        ("zzz >= 24", "there is no knob zzz"),
        ("order >= 24", "order is no number"),
        ("compact.enabled <= 1", "compact.enabled is no number"),
    ],
)
def test_what_is_no_guardrail_is_refused(text: object, fault: str) -> None:
    """The refusal has the key path and says what is wrong with the text."""
    with pytest.raises(ConfigError) as refused:
        parse_guardrail("guardrails[0]", text)
    assert len(refused.value.faults) == 1
    assert refused.value.faults[0].startswith("guardrails[0]: ")
    assert fault in refused.value.faults[0]
