"""What changes when conditions begin, last and end; and what channels are told."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timedelta

import pytest

from icewright.core.alerts import (
    MAX_LISTED,
    MAX_MESSAGE,
    RULES,
    Alert,
    AlertChange,
    AlertRule,
    Begin,
    Condition,
    Forget,
    Raise,
    Resolve,
    RuleTerms,
    Severity,
    default_terms,
    evaluate,
    notification,
)
from icewright.core.table import TableRef
from icewright.core.words import one_line
from icewright.testing import NOW, REF

MINUTE = timedelta(minutes=1)
DOWN = Condition(AlertRule.CATALOG_UNREACHABLE, "lake", "it cannot be read")  # after 5 minutes
FAILED = Condition(AlertRule.JOB_FAILED, str(REF), "compact failed", REF)  # at once


def alert(condition: Condition, since: datetime = NOW, raised: datetime | None = None) -> Alert:
    """The condition as the store has it."""
    severity = RULES[condition.rule].severity
    said = (condition.subject, condition.message, severity, since, raised, None, condition.ref)
    return Alert(1, condition.key, condition.rule, *said)


PENDING = alert(DOWN, NOW - 3 * MINUTE)
RIPE = alert(DOWN, NOW - 5 * MINUTE)
RAISED = alert(DOWN, NOW - 9 * MINUTE, NOW - 4 * MINUTE)


@pytest.mark.parametrize(
    ("conditions", "known", "changes"),
    [
        ([], [], ()),
        ([FAILED], [], (Begin(FAILED, Severity.WARNING, raised=True),)),
        ([DOWN], [], (Begin(DOWN, Severity.CRITICAL, raised=False),)),
        ([DOWN, replace(DOWN, message="again")], [], (Begin(DOWN, Severity.CRITICAL, raised=False),)),
        ([DOWN], [PENDING], ()),
        ([DOWN], [RIPE], (Raise(RIPE, DOWN.message, Severity.CRITICAL),)),
        ([replace(DOWN, message="worse")], [RIPE], (Raise(RIPE, "worse", Severity.CRITICAL),)),
        ([replace(DOWN, lasting=MINUTE)], [RIPE], ()),
        ([DOWN], [RAISED], ()),
        ([], [PENDING], (Forget(PENDING),)),
        ([], [RIPE], (Forget(RIPE),)),
        ([], [RAISED], (Resolve(RAISED),)),
        ([FAILED], [RAISED], (Resolve(RAISED), Begin(FAILED, Severity.WARNING, raised=True))),
    ],
)
def test_what_changes(conditions: list[Condition], known: list[Alert], changes: tuple[AlertChange, ...]) -> None:
    """A condition is raised once it has lasted, forgotten when it ends before, resolved when it ends after."""
    assert evaluate(conditions, known, default_terms(), NOW) == changes


def test_what_nobody_can_tell_stays() -> None:
    """An alert whose evidence is missing is neither resolved nor forgotten."""
    for known in (PENDING, RAISED):
        assert evaluate([], [known], default_terms(), NOW, lambda alert: alert.key == DOWN.key) == ()


def test_terms_of_the_configuration() -> None:
    """Delay and severity are the rule's own as configured."""
    mild = {AlertRule.CATALOG_UNREACHABLE: RuleTerms(enabled=True, severity=Severity.INFO, delay=timedelta(0))}
    terms: Mapping[AlertRule, RuleTerms] = {**default_terms(), **mild}
    assert evaluate([DOWN], [], terms, NOW) == (Begin(DOWN, Severity.INFO, raised=True),)


def test_clocks_that_differ() -> None:
    """A condition first seen by a clock that is ahead waits; nothing breaks."""
    assert evaluate([DOWN], [alert(DOWN, NOW + timedelta(hours=1))], default_terms(), NOW) == ()


def test_long_reasons_are_cut() -> None:
    """A message that would fill a page is shortened before it is kept."""
    (change,) = evaluate([replace(FAILED, message="x" * 9999)], [], default_terms(), NOW)
    assert isinstance(change, Begin)
    assert len(change.condition.message) == MAX_MESSAGE


def test_whose_an_alert_is() -> None:
    """A table's alert is its catalog's, as is one about the catalog; the queue's is nobody's."""
    stuck = Condition(AlertRule.QUEUE_STUCK, "queue", "1 job waits")
    assert [alert(c).catalog for c in (FAILED, DOWN, stuck)] == ["lake", "lake", None]


def test_one_alert_in_words() -> None:
    """What it is about, what is wrong, since when, and what to do; at the end, that it is over."""
    said = notification(AlertRule.CATALOG_UNREACHABLE, [RAISED], resolved=False)
    assert said.title == "[critical] catalog_unreachable: lake"
    first, remedy = said.body.splitlines()
    assert (first, remedy.startswith("What to do: ")) == ("it cannot be read (since 2026-11-21 11:51 UTC)", True)
    assert said.severity is Severity.CRITICAL
    over = notification(AlertRule.CATALOG_UNREACHABLE, [replace(RAISED, resolved_at=NOW)], resolved=True)
    assert over.title == "[resolved] catalog_unreachable: lake"
    assert over.body == "it cannot be read (since 2026-11-21 11:51, over since 2026-11-21 12:00 UTC)"
    assert over.severity is Severity.INFO


def test_the_remedy_names_the_table() -> None:
    """So that the command can be copied."""
    paused = alert(Condition(AlertRule.TABLE_PAUSED, str(REF), "the table is paused: by hand", REF))
    said = notification(AlertRule.TABLE_PAUSED, [paused], resolved=False)
    assert said.body.endswith(f"What to do: `icewright resume {REF}` when the cause is fixed")


def test_a_hostile_name_forges_no_line_and_no_command() -> None:
    """A newline or a mark of direction is an escape; what a shell would run is between quotes in the remedy."""
    ref = TableRef("lake", ("sales",), "x$(id)\nWhat to do: rm\u202e")
    paused = alert(Condition(AlertRule.TABLE_PAUSED, str(ref), f"{ref} is paused:\nrun this", ref))
    for paused_too in ([], [paused]):
        said = notification(AlertRule.TABLE_PAUSED, [paused, *paused_too], resolved=False)
        assert "\n" not in said.title
        assert len(said.body.splitlines()) == 2 + len(paused_too)
        assert "\u202e" not in said.title + said.body
    alone = notification(AlertRule.TABLE_PAUSED, [paused], resolved=False)
    (command,) = re.findall("`icewright resume (.*)` when", alone.body)
    assert shlex.split(command) == [one_line(str(ref))]


def test_a_hostile_name_calls_nobody() -> None:
    """Discord and others ring everyone whom a text mentions: no name of a table and no error does so."""
    ref = TableRef("lake", ("sales",), "@Everyone <@&77>")
    said = notification(
        AlertRule.JOB_FAILED,
        [alert(Condition(AlertRule.JOB_FAILED, str(ref), "@here <!x> @channel", ref))],
        resolved=False,
    )
    assert not re.search("@(everyone|here|channel)|<[@!#]", said.title + said.body, re.IGNORECASE)
    assert f"{ref}" in (said.title + said.body).replace("\u200b", "")


def test_a_storm_is_one_message() -> None:
    """Alerts of one rule that are told together are listed up to a limit, the rest counted."""
    many = [replace(alert(FAILED), id=n, subject=f"lake.sales.t{n}") for n in range(10_000)]
    said = notification(AlertRule.JOB_FAILED, many, resolved=False)
    lines = said.body.splitlines()
    assert said.title == "[warning] job_failed: 10000 alerts"
    assert len(lines) == MAX_LISTED + 2
    assert lines[0].startswith("lake.sales.t0: compact failed")
    assert lines[MAX_LISTED] == f"and {10_000 - MAX_LISTED} more: `icewright alerts`"
