"""Whatever conditions come and go: each alert is raised once and resolved once, and never before its delay."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from itertools import count

from hypothesis import given
from hypothesis import strategies as st

from icewright.core.alerts import Alert, AlertRule, Begin, Condition, Forget, Raise, Resolve, default_terms, evaluate
from icewright.testing import NOW
from tests.examples import examples

RULES = (AlertRule.JOB_FAILED, AlertRule.CATALOG_UNREACHABLE, AlertRule.TABLE_UNHEALTHY)
CONDITION = st.builds(
    Condition,
    st.sampled_from(RULES),
    st.sampled_from("ab"),
    st.sampled_from(["bad", "worse"]),
    lasting=st.sampled_from([timedelta(0), timedelta(minutes=4)]),
)
ROUND = st.tuples(
    st.integers(0, 7).map(lambda minutes: timedelta(minutes=minutes)),
    st.lists(CONDITION, max_size=4, unique_by=lambda c: c.key),
    st.sets(st.sampled_from([f"{rule} {subject}" for rule in RULES for subject in "ab"]), max_size=2),
)


@examples(150)
@given(st.lists(ROUND, max_size=12))
def test_raised_once_and_resolved_once(rounds: list[tuple[timedelta, list[Condition], set[str]]]) -> None:
    """Raises and resolutions of a key take turns, what is raised held unbroken as long as its rule asks."""
    now, terms, numbers = NOW, default_terms(), count()
    alerts: dict[int, Alert] = {}
    begun: dict[str, datetime] = {}  # since when a condition holds, or may hold
    for passed, conditions, unknown in rounds:
        now += passed
        present = {condition.key: condition for condition in conditions}
        begun = {key: at for key, at in begun.items() if key in present or key in unknown}
        begun |= {key: now for key in present if key not in begun}
        still = [alert for alert in alerts.values() if alert.resolved_at is None]
        for change in evaluate(conditions, still, terms, now, lambda alert, unknown=unknown: alert.key in unknown):  # type: ignore[misc]
            match change:
                case Begin(condition=about, raised=raised):
                    assert about.key not in {alert.key for alert in still}
                    at_once = terms[about.rule].delay + about.lasting == timedelta(0)
                    assert raised == at_once
                    said = (about.subject, about.message, change.severity, now, now if raised else None)
                    made = Alert(next(numbers), about.key, about.rule, *said)
                    alerts[made.id] = made
                case Raise(alert=alert):
                    assert alert.raised_at is None
                    assert now - begun[alert.key] >= terms[alert.rule].delay + present[alert.key].lasting
                    alerts[alert.id] = replace(alerts[alert.id], raised_at=now)
                case Resolve(alert=alert):
                    assert alert.raised_at is not None
                    assert alert.key not in present
                    alerts[alert.id] = replace(alerts[alert.id], resolved_at=now)
                case Forget(alert=alert):
                    assert alert.raised_at is None
                    assert alert.key not in present
                    del alerts[alert.id]
        keys = [alert.key for alert in alerts.values() if alert.resolved_at is None]
        assert len(keys) == len(set(keys))
        assert present.keys() <= set(keys) <= present.keys() | unknown
